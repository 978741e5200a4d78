package broker

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// traceAPI is strandmq.v1.TraceService.
type traceAPI struct{ b *Broker }

// The bounds of one Trace.
const (
	maxTraced      = 20
	maxTraceEvents = 1000
	firstEvents    = 10        // of those, when there are more: how it began
	maxTraceBytes  = 256 << 20 // of record batches looked through for repeats
)

// Trace reads one message's life back from the log.
func (a traceAPI) Trace(ctx context.Context, req *strandmqv1.TraceRequest) (*strandmqv1.TraceResponse, error) {
	t, err := a.b.topic(req.GetTopic())
	if err != nil {
		return nil, err
	}
	if n := req.GetLimit(); n > maxTraceEvents {
		return nil, refuse("BAD_VALUE", "limit", "%d is too many: ask for 1 to %d", n, maxTraceEvents)
	}
	ctx, held := maybeBehind(ctx)
	var where []place
	switch which := req.GetWhich().(type) {
	case *strandmqv1.TraceRequest_Id:
		if where, err = a.b.findID(ctx, t, which.Id); err != nil {
			return nil, err
		}
		if len(where) == 0 {
			return nil, refuse("UNKNOWN_MESSAGE", "id", "topic %s keeps no message with id %s: correct the id, or give the place; what retention has removed is not known any more", t.Name, plain.Quote(which.Id))
		}
	case *strandmqv1.TraceRequest_Place:
		p, err := a.b.message(ctx, t, which.Place, "place")
		if err != nil {
			return nil, err
		}
		pos, err := a.b.parts.Position(ctx, p.id)
		if err != nil {
			return nil, err
		}
		if p.offset < pos.Start {
			return nil, refuse("UNKNOWN_MESSAGE", "place.offset", "retention removed offset %d of partition %d, and with it what the log says of it: it keeps offsets from %d to before %d", p.offset, p.number, pos.Start, pos.End)
		}
		if p.offset >= pos.End {
			return nil, refuse("UNKNOWN_MESSAGE", "place.offset", "partition %d keeps offsets from %d to before %d, and not %d", p.number, pos.Start, pos.End, p.offset)
		}
		where = []place{p}
	default:
		return nil, refuse("BAD_VALUE", "which", "name a message, by id or place")
	}
	res := &strandmqv1.TraceResponse{}
	for _, p := range where[:min(len(where), maxTraced)] {
		m, err := a.b.trace(ctx, p, windowOf(req))
		if err != nil {
			return nil, err
		}
		res.Messages = append(res.Messages, m)
	}
	res.Behind = held.words(a.b)
	return res, nil
}

// windowOf is which events a request wants.
func windowOf(req *strandmqv1.TraceRequest) consumer.Window {
	show := consumer.Window{Last: int(req.GetLimit()), Before: partition.Index(req.GetBefore())}
	if show.Last == 0 {
		show.Last = maxTraceEvents
	}
	if show.Before == 0 {
		show.First = min(firstEvents, show.Last/2)
		show.Last -= show.First
	}
	return show
}

// trace puts one message's life together: its publish and repeats from the
// batches of the log, the rest from the groups' commands, both in the log's
// order.
func (b *Broker) trace(ctx context.Context, p place, show consumer.Window) (*strandmqv1.MessageTrace, error) {
	l, err := b.parts.Life(ctx, p.id, p.offset, show)
	if err != nil {
		return nil, err
	}
	msg, life := l.message, l.groups
	out := &strandmqv1.MessageTrace{
		Message:   fromRecord(msg.Record, int64(msg.PublishTime), strandmqv1.BodyFormat_BODY_FORMAT_UNSPECIFIED),
		Partition: uint32(p.number), Offset: uint64(p.offset),
	}
	out.TraceId, out.RequestId = calledBy(msg.Record.Headers)
	events := slices.Concat(l.publishes, life.Events)
	slices.SortStableFunc(events, func(x, y consumer.TraceEvent) int { return cmp.Compare(x.Index, y.Index) })
	// Each of the two has its first and its latest, so the first and the latest of all
	// are among them.
	all := consumer.NewExcerpt[consumer.TraceEvent](show)
	for _, e := range events {
		all.Add(e)
	}
	events, out.Cut = all.Told()
	if out.Cut += l.cut + life.Cut; out.Cut > 0 {
		out.CutAt = uint32(show.First)
	}
	out.Truncated = l.truncated || out.Cut > 0
	m := b.coord.View()
	for _, e := range events {
		out.Events = append(out.Events, traceEvent(e, m))
	}
	for _, s := range life.States {
		out.States = append(out.States, &strandmqv1.TraceState{Group: s.Name, State: s.State, Attempts: s.Attempts, Detail: valid(s.Detail)})
	}
	return out, nil
}

func traceEvent(e consumer.TraceEvent, m *coordinator.Map) *strandmqv1.TraceEvent {
	name := ""
	if e.Group != 0 { // else it concerns all
		name = "(deleted)" // the log knows a group by its number only
		if g, ok := m.GroupByID(coordinator.GroupID(e.Group)); ok {
			name = g.Name
		}
	}
	return &strandmqv1.TraceEvent{
		Time: timestampOrNil(int64(e.Time)), LogIndex: uint64(e.Index), Term: e.Term, Node: uint64(e.Node), Group: name, What: e.What,
		Member: e.Member, Attempt: e.Attempt, Detail: valid(e.Detail), Reason: valid(e.Reason),
		Until: timestampOrNil(int64(e.Until)), NextAttempt: timestampOrNil(int64(e.NextAttempt)),
		Uncharged: e.Uncharged, Settled: e.Settled, Again: e.Again,
	}
}

// publishes finds a message's publish and, if it has an id, the repeats of it
// that stored nothing. It looks through a bounded part of the log.
func (b *Broker) publishes(ctx context.Context, id partition.PartitionID, msg partition.Message, show consumer.Window) (out []consumer.TraceEvent, cut uint64, truncated bool, err error) {
	first, err := b.host.IndexOf(id, msg.Offset)
	if err != nil {
		return nil, 0, false, err
	}
	events := consumer.NewExcerpt[consumer.TraceEvent](show)
	event := func(e partition.LogEntry, what, detail string) {
		if show.Has(e.Index) {
			events.Add(consumer.TraceEvent{Time: e.Time, Index: e.Index, Term: e.Term, What: what, Detail: detail})
		}
	}
	looked, found := 0, false
	var broken error
	err = b.host.Scan(ctx, id, first, func(e partition.LogEntry) bool {
		if e.Kind != partition.Batches {
			return true
		}
		if looked += len(e.Data); looked > maxTraceBytes {
			truncated = true
			return false
		}
		if !found {
			if msg.Offset < e.First || msg.Offset >= e.First+partition.Offset(e.Count) {
				return true // another batch of the same entry
			}
			event(e, "published", "")
			found = true
			return msg.Record.ID != ""
		}
		if msg.Record.ID == "" {
			return false
		}
		batch, _, err := record.View(e.Data)
		if err != nil {
			broken = err
			return false
		}
		if batch.Len() == e.Count || !batch.HasIDs() {
			return true // all of it was stored, so none of it is a repeat
		}
		batch.Each(func(_ int, r record.Raw) bool {
			if r.KeyHash() != msg.Record.KeyHash || string(r.ID()) != msg.Record.ID || string(r.Key()) != string(msg.Record.Key) {
				return true
			}
			if string(r.Body()) == string(msg.Record.Body) {
				event(e, "duplicate", "the publisher sent it again; nothing was stored")
			} else {
				event(e, "duplicate", "another body came with the same id and was refused")
			}
			return true
		})
		return true
	})
	led, unread := b.host.Led(id)
	out, cut = events.Told()
	for i := range out {
		out[i].Node = led.By(out[i].Term)
	}
	return out, cut, truncated, errors.Join(err, broken, unread)
}
