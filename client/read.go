package client

import (
	"context"
	"errors"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Place is where a read begins: a partition of a topic, and an offset in it.
type Place struct {
	Topic     string
	Partition uint32
	Offset    uint64
	// Incarnation is that of the page which the offset comes from. If the topic was
	// deleted since and another one has its name, the read is refused with
	// ErrTopicReplaced. 0: whatever topic has the name is read.
	Incarnation uint64
}

// Stored is a message as it is kept.
type Stored struct {
	Message
	Offset uint64
	// PublishTime is when the broker accepted the message.
	PublishTime time.Time
}

// Page is what one read gave.
type Page struct {
	Messages []Stored // in the order of offsets
	// Next is the offset to go on at.
	Next uint64
	// Incarnation tells the topic from others of its name, before and after: give it
	// along with Next.
	Incarnation uint64
	// Removed counts the messages before these that retention had removed before they
	// were read.
	Removed uint64
}

// longestRead bounds how long one call waits.
const longestRead = 20 * time.Second

// Read reads messages of one partition without a group: nothing is handed out, counted
// or settled, and reading again gives the same. It gives limit messages at most, 1 to
// 1,000, and 4 MiB; one always fits. When there is none it waits for one, for as long as
// wait says, at most 20 s; then the page is empty. Errors are ErrUnknownTopic, ErrTopicReplaced,
// Reason("UNKNOWN_PARTITION"), and those of a partition that stopped.
func (c *Client) Read(ctx context.Context, from Place, limit int, wait time.Duration) (Page, error) {
	req := &strandmqv1.ReadRequest{
		Topic: from.Topic, Places: []*strandmqv1.ReadPlace{{Partition: from.Partition, Offset: from.Offset}},
		MaxMessages: uint32(min(max(limit, 1), 1000)), WaitMs: min(max(wait, 0), longestRead).Milliseconds(),
		BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES, Incarnation: from.Incarnation,
	}
	res, err := ask(ctx, c, func(ctx context.Context, n *node) (*strandmqv1.ReadResponse, error) {
		res, err := n.read.Read(ctx, req)
		if err == nil && len(res.GetLeftOut()) > 0 {
			return nil, refused(res.GetLeftOut()[0].GetProblem(), false)
		}
		return res, err
	})
	var e *Error
	if errors.As(err, &e) && (e.Field == "places" || e.Field == "partition" || e.Field == "incarnation") {
		e.Field = "from"
	}
	if err != nil {
		return Page{}, err
	}
	page := Page{Next: from.Offset, Incarnation: res.GetIncarnation()}
	for _, g := range res.GetGaps() {
		page.Removed += g.GetLast() - g.GetFirst() + 1
	}
	for _, m := range res.GetMessages() {
		page.Messages = append(page.Messages, Stored{Message: readable(m.GetMessage()), Offset: m.GetOffset(), PublishTime: m.GetMessage().GetPublishTime().AsTime()})
	}
	for _, p := range res.GetNext() {
		page.Next = p.GetOffset()
	}
	return page, nil
}

// readable makes a message of a readable one, whose body is in bytes.
func readable(m *strandmqv1.Message) Message {
	out := Message{Key: m.GetKey(), ID: m.GetId(), Body: m.GetBytes()}
	if b := m.GetKeyBytes(); b != nil {
		out.Key = string(b)
	}
	for _, h := range m.GetHeaders() {
		value := h.GetValue()
		if b := h.GetValueBytes(); b != nil {
			value = string(b)
		}
		out.Headers = append(out.Headers, Header{Name: h.GetName(), Value: value})
	}
	return out
}
