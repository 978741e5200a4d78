package httpapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A stream sends messages as they are read, as lines or as events.
//
//	Read ──some──► room for them? ──► write, within WriteTime ──► Read from there on
//	                   └─no─► let them go, wait, read again
//
// What it holds is what was set aside when it opened; only a message that is larger
// than that has to be given room, and is not held while it waits.
type stream struct {
	api  *api
	w    http.ResponseWriter
	rc   *http.ResponseController
	ctx  context.Context
	req  *strandmqv1.ReadRequest
	left int64 // messages that may still be sent

	coded   bool
	events  bool
	forever bool // else it ends where there is no more
	beat    time.Duration
	told    []uint32
	set     int64 // set aside for what is read next
}

const (
	// Of a Read; what is set aside for a stream holds it, in the forms that it takes.
	streamBytes    = 8 << 10
	streamMessages = 100
	copies         = 4 // as read, on its way through the call, as JSON
	// maxPlaces is how many partitions a stream of events reads: each event's id names
	// them all.
	maxPlaces = 64
	// beat is how often a stream of events says that it is there.
	beat = 15 * time.Second
	// quick is how often what cannot be read at the moment is tried.
	quick = 500 * time.Millisecond
)

func (s *stream) run() error {
	mem, err := s.api.cfg.Stream()
	if err != nil {
		return err
	}
	defer mem.Close()
	wait := s.req.GetWaitMs()
	if s.forever {
		wait = beat.Milliseconds()
	}
	s.req.WaitMs = 0 // what is wrong with the request shows before anything is sent
	s.req.MaxBytes = streamBytes
	begun := false
	for s.left > 0 {
		s.req.MaxMessages = uint32(min(s.left, streamMessages))
		res, err := s.api.calls.read.Read(s.ctx, s.req)
		if err == nil && !begun {
			if s.events && len(res.GetNext()) > maxPlaces {
				return refuse("BAD_VALUE", "partition", "the topic has %d partitions, and the id of an event names the place in each: name up to %d of them, with partition=0 and so on", len(res.GetNext()), maxPlaces)
			}
			if err := s.begin(res); err != nil {
				return nil //nolint:nilerr // the caller is gone
			}
			begun = true
		}
		switch {
		case err == nil:
		case !begun:
			return asked(err)
		case s.passes(err):
			continue
		default:
			s.end(err)
			return nil
		}
		taken, room, err := s.room(mem, res)
		if err != nil {
			return nil //nolint:nilerr // the caller is gone
		}
		if !room {
			continue
		}
		err = s.send(res)
		mem.Give(taken)
		if err != nil {
			return nil //nolint:nilerr // the caller is gone, or takes nothing
		}
		if !s.forever && s.req.GetWaitMs() >= wait && len(res.GetMessages()) == 0 && len(res.GetGaps()) == 0 {
			return nil
		}
		s.goOn(res, wait)
	}
	return nil
}

// goOn has the next Read begin where the last one ended.
func (s *stream) goOn(res *strandmqv1.ReadResponse, wait int64) {
	s.req.Start, s.req.Partitions, s.req.Places, s.req.Incarnation, s.req.WaitMs = nil, nil, res.GetNext(), res.GetIncarnation(), wait
	s.left -= int64(len(res.GetMessages()))
}

// passes waits after what may pass; only those who stay listen for that.
func (s *stream) passes(err error) bool {
	p := problemOf(err)
	if !s.forever || p.retryAfter == 0 || p.reason == "NOT_READY" || s.ctx.Err() != nil {
		return false
	}
	if s.events && s.put([]byte(": "+p.reason+"\n\n")) != nil {
		return false
	}
	wait := time.NewTimer(quick)
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// room has what was read counted. Without room it is let go, and read again once
// there is room for as much; it fails when the caller is gone meanwhile.
func (s *stream) room(mem Memory, res *strandmqv1.ReadResponse) (taken int64, ok bool, err error) {
	n := int64(proto.Size(res)) * copies
	if n <= s.set {
		n, s.set = s.set, 0
		return n, true, nil
	}
	mem.Give(s.set)
	s.set = 0
	ok, freed := mem.Take(n)
	if ok {
		return n, true, nil
	}
	res.Messages = nil
	var beats <-chan time.Time
	if s.events {
		ticker := time.NewTicker(s.beat)
		defer ticker.Stop()
		beats = ticker.C
	}
	for !ok {
		select {
		case <-beats:
			if err := s.put([]byte(": waits for memory\n\n")); err != nil {
				return 0, false, err
			}
			continue
		case <-freed:
		case <-s.ctx.Done():
			return 0, false, s.ctx.Err()
		}
		ok, freed = mem.Take(n)
	}
	s.set = n
	return 0, false, nil
}

// begin sends what comes before the first message.
func (s *stream) begin(res *strandmqv1.ReadResponse) error {
	h := s.w.Header()
	h.Set("Content-Type", lines)
	if !s.events {
		return s.put(nil)
	}
	h.Set("Content-Type", events)
	// A page that loses the connection before a message came goes on from here, too.
	first := slices.Clone(res.GetNext())
	for i, p := range first {
		at := &strandmqv1.ReadPlace{Partition: p.GetPartition(), Offset: p.GetOffset()}
		for _, m := range res.GetMessages() {
			if m.GetPartition() == at.GetPartition() {
				at.Offset = min(at.GetOffset(), m.GetOffset())
			}
		}
		for _, g := range res.GetGaps() {
			if g.GetPartition() == at.GetPartition() {
				at.Offset = min(at.GetOffset(), g.GetFirst())
			}
		}
		first[i] = at
	}
	return s.put([]byte("retry: 1000\nid: " + places(first, res.GetIncarnation()) + "\n\n"))
}

// send sends what one Read gave.
func (s *stream) send(res *strandmqv1.ReadResponse) error {
	var out []byte
	for _, g := range gaps(res.GetGaps()) {
		out = s.line(out, "lost", "", g)
	}
	for _, l := range s.api.leftOut(res.GetLeftOut()) {
		if !slices.Contains(s.told, l.Partition) {
			s.told = append(s.told, l.Partition)
			out = s.line(out, "left_out", "", l)
		}
	}
	// The place behind each message, of which the last is that of the answer.
	at := make([]*strandmqv1.ReadPlace, 0, len(res.GetNext()))
	of := map[uint32]*strandmqv1.ReadPlace{}
	if s.events {
		for _, p := range res.GetNext() {
			at = append(at, &strandmqv1.ReadPlace{Partition: p.GetPartition(), Offset: p.GetOffset()})
			of[p.GetPartition()] = at[len(at)-1]
		}
		for _, m := range slices.Backward(res.GetMessages()) {
			of[m.GetPartition()].Offset = m.GetOffset()
		}
	}
	for _, m := range res.GetMessages() {
		id := ""
		if s.events {
			of[m.GetPartition()].Offset = m.GetOffset() + 1
			id = places(at, res.GetIncarnation())
		}
		out = s.line(out, "", id, show(m.GetMessage(), m.GetPartition(), m.GetOffset(), s.coded))
	}
	if len(out) == 0 && s.events && s.req.GetWaitMs() > 0 {
		out = []byte(": nothing new\n\n")
	}
	if len(out) == 0 {
		return nil
	}
	return s.put(out)
}

// line appends one line, or one event.
func (s *stream) line(out []byte, kind, id string, v any) []byte {
	if !s.events {
		if kind != "" {
			v = map[string]any{kind: v}
		}
		text, _ := encode(v) // a value of this package
		return append(out, text...)
	}
	if id != "" {
		out = append(append(append(out, "id: "...), id...), '\n')
	}
	if kind != "" {
		out = append(append(append(out, "event: "...), kind...), '\n')
	}
	text, _ := encode(v) // likewise
	return append(append(append(out, "data: "...), text...), '\n')
}

// end tells why a stream ends. A caller who is gone hears nothing, and one of a
// broker that stops comes again by itself.
func (s *stream) end(err error) {
	p := problemOf(err)
	if s.ctx.Err() != nil || s.events && p.reason == "NOT_READY" {
		return
	}
	told := p.written(s.api.cfg.Row)
	told.RequestID = s.w.Header().Get(RequestHeader)
	_ = s.put(s.line(nil, "problem", "", told))
}

// put writes, and waits for the caller to take it.
func (s *stream) put(b []byte) error {
	if err := s.rc.SetWriteDeadline(time.Now().Add(s.api.cfg.WriteTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if len(b) > 0 {
		if _, err := s.w.Write(b); err != nil {
			return err
		}
	} else {
		s.w.WriteHeader(http.StatusOK)
	}
	if err := s.rc.Flush(); err != nil {
		return err
	}
	// An idle stream is not a slow one.
	return s.rc.SetWriteDeadline(time.Time{})
}
