package broker

import (
	"slices"
	"strings"

	"github.com/strandmq/strandmq/internal/record"
)

// What a message of a unary call is stored with when the call came with it, so that
// whoever handles the message, or traces it, finds the call: the headers' names.
const (
	storedRequest = "x-request-id"
	storedParent  = "traceparent"
)

// mark gives messages the trace that their call is a part of and the id that its
// caller gave it, where they have no headers of these names. An id that was made here
// says nothing to anyone outside, so it is not stored.
//
// What a message or the call has no room for is left out: nothing may be refused for
// it. Ids and sequences tell repeats apart from others by key, id and body, so a retry
// with other headers is still a duplicate.
func (q *request) mark(p *publication, producer string) {
	if q == nil || !q.given && q.parent == "" {
		return
	}
	room := record.MaxBatchBytes - record.Size(record.Meta{ProducerID: producer}, p.records)
	if q.parent != "" {
		room = p.mark(record.Header{Name: storedParent, Value: []byte(q.parent)}, room)
	}
	if q.given {
		p.mark(record.Header{Name: storedRequest, Value: []byte(q.id)}, room)
	}
}

// markFrame bounds what a header takes in a record beside its name and value: their
// lengths, and one more byte of the list's and the record's own.
const markFrame = 8

// mark adds a header, and gives the room that is left in the call.
func (p *publication) mark(h record.Header, room int) int {
	size := len(h.Name) + len(h.Value)
	for i := range p.records {
		r := &p.records[i]
		held := 0
		for _, has := range r.Headers {
			held += len(has.Name) + len(has.Value)
		}
		named := slices.ContainsFunc(r.Headers, func(has record.Header) bool { return strings.EqualFold(has.Name, h.Name) })
		if named || len(r.Headers) >= record.MaxHeaders || held+size > record.MaxHeaderBytes || size+markFrame > room {
			continue
		}
		r.Headers = append(r.Headers, h)
		room -= size + markFrame
	}
	return room
}
