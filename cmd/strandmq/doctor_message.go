package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/doctor"
	"github.com/strandmq/strandmq/internal/quantity"
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

// aboutMessage is what was found out of a message.
type aboutMessage struct {
	messages []doctor.Message
	without  []doctor.Unreached // what was not looked at
	err      error
}

func (t *aboutMessage) leave(what, format string, args ...any) {
	t.without = append(t.without, doctor.Unreached{What: what, Why: fmt.Sprintf(format, args...)})
}

// askMessage finds out what is known of a message: what became of it in each group, and
// whether it is stored more than once. What has not answered within the time is left.
func (a *app) askMessage(ctx context.Context, req *strandmqv1.TraceRequest, group string, within time.Duration) (t aboutMessage) {
	asking, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	late := func(what string, err error) {
		if asking.Err() != nil {
			err = fmt.Errorf("not all was looked at within %s: --timeout allows more", quantity.FormatSpan(within))
		}
		t.leave(what, "%v", err)
	}
	api := dialAny(nil, a.servers...) // who does not answer is told among the facts
	res, err := ask(asking, api.trace.Trace, req)
	switch {
	case err != nil && asking.Err() != nil && ctx.Err() == nil:
		late("what became of the message", err)
		return t
	case err != nil:
		t.err = err
		return t
	}
	if res.GetBehind() != "" {
		t.leave("what became of the message lately", "%s", res.GetBehind())
	}
	if n := len(res.GetMessages()); n >= mostOfID {
		t.leave("further messages of the id", "there may be more than %d: name one by --partition and --offset", n)
	}
	for _, x := range res.GetMessages() {
		m := doctor.Message{
			Place: doctor.Place{Topic: req.GetTopic(), Number: x.GetPartition()}, Offset: x.GetOffset(),
			Key: keyText(x.GetMessage()), ID: x.GetMessage().GetId(), Published: unixMillis(x.GetMessage().GetPublishTime()),
			Cut: x.GetCut(), Courses: courses(x, group),
		}
		for _, e := range x.GetEvents() {
			if e.GetWhat() == "duplicate" {
				m.Repeats++
			}
		}
		at := fmt.Sprintf("offset %d of partition %d", m.Offset, m.Place.Number)
		switch {
		case m.Cut > 0:
			t.leave(quantity.Some(m.Cut, "event")+" of "+at, "only the first and the latest were looked at: strandmq trace --before pages back")
		case x.GetTruncated():
			t.leave("later repeats of the publish of "+at, "so much was published since that they were not looked for")
		}
		if withoutReasons(x) {
			t.leave("why deliveries of "+at+" failed", olderTells)
		}
		if err := a.copies(asking, api, &t, &m, x); err != nil {
			late("what else is stored of the key of "+at, err)
		}
		t.messages = append(t.messages, m)
	}
	t.err = ctx.Err()
	return t
}

// mostOfID is how many messages of one id a broker traces.
const mostOfID = 20

// courses are how a message went in each group.
func courses(t *strandmqv1.MessageTrace, group string) (out []doctor.Course) {
	for _, s := range t.GetStates() {
		if group != "" && s.GetGroup() != group {
			continue
		}
		c := doctor.Course{Group: s.GetGroup(), State: s.GetState(), Failed: attemptsOf(t, s.GetGroup())}
		for _, e := range t.GetEvents() {
			again := ""
			switch {
			case e.GetGroup() != s.GetGroup():
			case e.GetWhat() == "handed-out":
				c.HandedOut++
			case e.GetWhat() == "replayed":
				again = "it was replayed from the dead letters"
			case e.GetWhat() == "reset" && e.GetAgain():
				again = "the group was reset"
			case e.GetWhat() == "released":
				again = "a member released it unhandled"
			}
			if again != "" {
				c.Again = append(c.Again, doctor.Again{What: again, When: unixMillis(e.GetTime()), How: e.GetDetail()})
			}
		}
		out = append(out, c)
	}
	return out
}

// copies looks for messages of the same key and body that were published at about the time.
// Without a key a copy may be in any partition, and none is looked for.
func (a *app) copies(ctx context.Context, api *clients, told *aboutMessage, m *doctor.Message, t *strandmqv1.MessageTrace) error {
	what := fmt.Sprintf("what else is stored like offset %d of partition %d", m.Offset, m.Place.Number)
	key, keyed := messageKey(t.GetMessage())
	if !keyed {
		told.leave(what, "it has no key, so a copy may be in any partition: none was looked for")
		return nil
	}
	at := t.GetMessage().GetPublishTime().AsTime()
	found, err := a.searchKey(ctx, api, keySearch{
		topic: m.Place.Topic, key: key, since: at.Add(-copyTime), until: at.Add(copyTime), most: copiesMost, look: copyLook,
	})
	switch {
	case err != nil:
		return err
	case found.partition != m.Place.Number:
		told.leave(what, "its key belongs to partition %d by now: none was looked for", found.partition)
		return nil
	case found.cut:
		told.leave(what, "%s messages of the minutes around it were looked through, back to offset %d, and no earlier ones", quantity.Count(found.looked), found.first)
	case found.more:
		told.leave(what, "only the newest %d messages of its key within a minute of it were compared", copiesMost)
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

// withMessage adds what was found out of a message to the facts.
func withMessage(f *doctor.Facts, req *strandmqv1.TraceRequest, t *aboutMessage) {
	f.Messages, f.Unreached = append(f.Messages, t.messages...), append(f.Unreached, t.without...)
	if req.GetId() == "" {
		return
	}
	// An id is looked for in the partitions that work.
	for _, topic := range f.Topics {
		for _, p := range topic.Partitions {
			if topic.Name == req.GetTopic() && p.Fault != "" {
				f.Unreached = append(f.Unreached, doctor.Unreached{What: fmt.Sprintf("messages of the id in partition %d", p.Number), Why: p.Fault})
			}
		}
	}
}
