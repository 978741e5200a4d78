package broker

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// deadAPI is strandmq.v1.DeadLetterService.
type deadAPI struct{ b *Broker }

const (
	defaultPage = 100
	maxPage     = 1000
	// maxPageBytes bounds a page's messages; the first always fits.
	maxPageBytes = 4 << 20
)

// ListDeadLetters lists a page.
func (a deadAPI) ListDeadLetters(ctx context.Context, req *strandmqv1.ListDeadLettersRequest) (*strandmqv1.ListDeadLettersResponse, error) {
	t, g, err := a.b.group(req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	if req.GetPageSize() > maxPage {
		return nil, refuse("BAD_VALUE", "page_size", "%d is too many: ask for 1 to %d", req.GetPageSize(), maxPage)
	}
	if r := checkFormat(req.GetBodyFormat()); r != nil {
		return nil, r
	}
	size := int(req.GetPageSize())
	if size == 0 {
		size = defaultPage
	}
	at, offset, err := parsePage(req.GetPageToken(), len(t.Partitions))
	if err != nil {
		return nil, err
	}
	ctx, held := maybeBehind(ctx)
	states, r, err := a.b.statesOfRest(ctx, t.Topic, g)
	if err != nil {
		return nil, err
	}
	if len(r.out) == len(states) {
		return nil, r.refusal()
	}
	res := &strandmqv1.ListDeadLettersResponse{}
	defer func() { res.LeftOut, res.Behind = r.out, held.words(a.b) }() // one may stop while it is read
	for _, s := range states {
		res.Total += s.Counts.Dead + s.Counts.Replaying
	}
	bytes := 0
	for ; at < len(t.Partitions); at, offset = at+1, 0 {
		for {
			// One more than fits tells whether there is a next page.
			want := size - len(res.GetDeadLetters()) + 1
			list, err := a.b.parts.DeadLetters(ctx, t.Partitions[at].ID, consumer.GroupID(g.ID), offset, min(want, 64))
			if err := r.without(at, err); err != nil {
				return nil, err
			}
			for _, d := range list {
				bytes += recordBytes(d.Message.Record)
				if len(res.GetDeadLetters()) == size || len(res.GetDeadLetters()) > 0 && bytes > maxPageBytes {
					res.NextPageToken = pageToken(at, d.Offset)
					return res, nil
				}
				res.DeadLetters = append(res.DeadLetters, deadLetterProto(t, g, d, req.GetBodyFormat(), false))
				offset = d.Offset + 1
			}
			if len(list) == 0 {
				break
			}
		}
	}
	return res, nil
}

// GetDeadLetter gives one with its history.
func (a deadAPI) GetDeadLetter(ctx context.Context, req *strandmqv1.GetDeadLetterRequest) (*strandmqv1.GetDeadLetterResponse, error) {
	t, g, err := a.b.group(req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	if r := checkFormat(req.GetBodyFormat()); r != nil {
		return nil, r
	}
	ctx, held := maybeBehind(ctx)
	var where []place
	switch which := req.GetWhich().GetWhich().(type) {
	case *strandmqv1.DeadLetterSelector_Id:
		if where, err = a.b.findDead(ctx, t, g, which.Id); err != nil {
			return nil, err
		}
	case *strandmqv1.DeadLetterSelector_Place:
		p, err := a.b.message(ctx, t, which.Place, "which.place")
		if err != nil {
			return nil, err
		}
		where = []place{p}
	default:
		return nil, refuse("BAD_VALUE", "which", "name one dead letter, by id or place")
	}
	for _, p := range where {
		d, err := a.b.parts.DeadLetter(ctx, p.id, consumer.GroupID(g.ID), p.offset)
		var not *consumer.ErrNotDead
		if errors.As(err, &not) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &strandmqv1.GetDeadLetterResponse{DeadLetter: deadLetterProto(t, g, d, req.GetBodyFormat(), true), Behind: held.words(a.b)}, nil
	}
	return nil, notDead("group " + g.Name + " has no such dead letter")
}

// ReplayDeadLetters delivers dead letters to their group again.
func (a deadAPI) ReplayDeadLetters(ctx context.Context, req *strandmqv1.ReplayDeadLettersRequest) (*strandmqv1.ReplayDeadLettersResponse, error) {
	t, g, err := a.b.group(req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	picks, err := a.b.pick(ctx, t, g, req.GetWhich())
	if err != nil {
		return nil, err
	}
	var replayed, already atomic.Uint64
	left, err := a.b.applyPicks(ctx, t, g, picks, func(ctx context.Context, id partition.PartitionID, sel consumer.Selector) (int, error) {
		n, m, err := a.b.parts.Replay(ctx, id, consumer.GroupID(g.ID), sel)
		replayed.Add(uint64(n))
		already.Add(uint64(m))
		return n + m, err
	})
	if err != nil {
		return nil, err
	}
	return &strandmqv1.ReplayDeadLettersResponse{Replayed: replayed.Load(), Already: already.Load(), LeftOut: left}, nil
}

// DiscardDeadLetters gives dead letters up.
func (a deadAPI) DiscardDeadLetters(ctx context.Context, req *strandmqv1.DiscardDeadLettersRequest) (*strandmqv1.DiscardDeadLettersResponse, error) {
	t, g, err := a.b.group(req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	if _, all := req.GetWhich().GetWhich().(*strandmqv1.DeadLetterSelector_All); all && req.GetConfirm() != g.Name {
		return nil, refuse("NOT_CONFIRMED", "confirm", "discarding all dead letters of group %s cannot be undone: confirm it by giving the group's name again", g.Name)
	}
	picks, err := a.b.pick(ctx, t, g, req.GetWhich())
	if err != nil {
		return nil, err
	}
	var discarded atomic.Uint64
	left, err := a.b.applyPicks(ctx, t, g, picks, func(ctx context.Context, id partition.PartitionID, sel consumer.Selector) (int, error) {
		n, err := a.b.parts.Discard(ctx, id, consumer.GroupID(g.ID), sel)
		discarded.Add(uint64(n))
		return n, err
	})
	if err != nil {
		return nil, err
	}
	return &strandmqv1.DiscardDeadLettersResponse{Discarded: discarded.Load(), LeftOut: left}, nil
}

func deadLetterProto(t *topic, g *coordinator.Group, d consumer.DeadLetter, format strandmqv1.BodyFormat, history bool) *strandmqv1.DeadLetter {
	out := &strandmqv1.DeadLetter{
		Message: fromRecord(d.Message.Record, int64(d.Message.PublishTime), format),
		Topic:   t.Name, Group: g.Name, Partition: t.place[d.Partition], Offset: uint64(d.Offset),
		Attempts: d.Attempts, FirstSeen: timestampOrNil(int64(d.FirstSeen)), DeadSince: timestampOrNil(int64(d.DeadSince)),
		Reason: valid(d.Reason), Replaying: d.Replaying,
	}
	if !history {
		return out
	}
	for _, h := range d.History {
		out.History = append(out.History, &strandmqv1.Attempt{
			Attempt: h.Attempt, Member: h.Member, HandedOut: timestampOrNil(int64(h.HandedOut)), Ended: timestampOrNil(int64(h.Ended)),
			Outcome: h.Outcome, Reason: valid(h.Reason),
		})
	}
	return out
}
