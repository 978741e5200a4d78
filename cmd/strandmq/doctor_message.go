package main

import (
	"bytes"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/doctor"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

const (
	// copyTime is how far apart two messages are published at most that count as one that
	// a publisher sent twice.
	copyTime = time.Minute
	// copyLook bounds how many messages are looked through for copies, and copiesMost how
	// many of the key are compared.
	copyLook   = 50_000
	copiesMost = 50
)

// oneMessage are the flags that name a message to be asked about.
type oneMessage struct {
	id        string
	partition countFlag
	offset    positionFlag
}

func (m *oneMessage) flags(c *cobra.Command) {
	c.Flags().StringVar(&m.id, "id", "", "with --topic: why this message came twice")
	c.Flags().Var(&m.partition, "partition", "with --topic and --offset: the message's partition")
	c.Flags().Lookup("partition").DefValue = ""
	c.Flags().Var(&m.offset, "offset", "the message's place: "+messageGrammar)
}

// request is the question; nil: no message was named.
func (m *oneMessage) request(c *cobra.Command, topic string) (*strandmqv1.TraceRequest, error) {
	set := c.Flags().Changed
	req := &strandmqv1.TraceRequest{Topic: topic}
	switch {
	case !set("id") && !set("partition") && !set("offset"):
		return nil, nil
	case topic == "":
		return nil, usagef("--id, --partition and --offset need --topic")
	case set("id") && !set("partition") && !set("offset"):
		req.Which = &strandmqv1.TraceRequest_Id{Id: m.id}
	case !set("id") && set("partition") && set("offset"):
		place, err := place(m.partition.n, &m.offset)
		if err != nil {
			return nil, err
		}
		req.Which = &strandmqv1.TraceRequest_Place{Place: place}
	default:
		return nil, usagef("say which message: --id, or --partition and --offset")
	}
	return req, nil
}

// askMessage adds what is known of a message: what became of it in each group, and whether
// it is stored more than once.
func (a *app) askMessage(ctx context.Context, f *doctor.Facts, req *strandmqv1.TraceRequest, group string) error {
	api := a.dial()
	res, err := ask(ctx, api.trace.Trace, req)
	if err != nil {
		return err
	}
	for _, t := range res.GetMessages() {
		m := doctor.Message{
			Place: doctor.Place{Topic: req.GetTopic(), Number: t.GetPartition()}, Offset: t.GetOffset(),
			Key: keyText(t.GetMessage()), ID: t.GetMessage().GetId(), Published: unixMillis(t.GetMessage().GetPublishTime()),
		}
		for _, s := range t.GetStates() {
			if group != "" && s.GetGroup() != group {
				continue
			}
			c := doctor.Course{Group: s.GetGroup(), State: s.GetState(), Failed: attemptsOf(t, s.GetGroup())}
			for _, e := range t.GetEvents() {
				switch {
				case e.GetGroup() != s.GetGroup():
				case e.GetWhat() == "handed-out":
					c.HandedOut++
				case e.GetWhat() == "replayed":
					c.Again = append(c.Again, "it was replayed from the dead letters")
				case e.GetWhat() == "reset" && e.GetAgain():
					c.Again = append(c.Again, "the group was reset")
				case e.GetWhat() == "released":
					c.Again = append(c.Again, "a member released it unhandled")
				}
			}
			m.Courses = append(m.Courses, c)
		}
		if err := a.copies(ctx, api, &m, t); err != nil {
			f.Unreached = append(f.Unreached, doctor.Unreached{What: "what else is stored of the key", Why: err.Error()})
		}
		f.Messages = append(f.Messages, m)
	}
	return nil
}

// copies looks for messages of the same key and body that were published at about the time.
// Without a key a copy may be in any partition, and none is looked for.
func (a *app) copies(ctx context.Context, api *clients, m *doctor.Message, t *strandmqv1.MessageTrace) error {
	key, keyed := messageKey(t.GetMessage())
	if !keyed {
		return nil
	}
	at := t.GetMessage().GetPublishTime().AsTime()
	found, err := a.searchKey(ctx, api, keySearch{
		topic: m.Place.Topic, key: key, since: at.Add(-copyTime), until: at.Add(copyTime), most: copiesMost, look: copyLook,
	})
	if err != nil || found.partition != m.Place.Number {
		return err
	}
	for _, o := range found.offsets {
		if o == m.Offset {
			continue
		}
		res, err := ask(ctx, api.read.Read, &strandmqv1.ReadRequest{
			Topic: m.Place.Topic, Places: []*strandmqv1.ReadPlace{{Partition: m.Place.Number, Offset: o}}, MaxMessages: 1,
		})
		if err != nil {
			return err
		}
		for _, x := range res.GetMessages() {
			if x.GetOffset() == o && bytes.Equal(body(x.GetMessage()), body(t.GetMessage())) {
				m.Copies = append(m.Copies, doctor.Copy{Offset: o, ID: x.GetMessage().GetId(), Published: unixMillis(x.GetMessage().GetPublishTime())})
			}
		}
	}
	return nil
}
