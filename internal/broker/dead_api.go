package broker

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/record"
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
	states, err := a.b.states(ctx, t.Topic, g)
	if err != nil {
		return nil, err
	}
	res := &strandmqv1.ListDeadLettersResponse{}
	for _, s := range states {
		res.Total += s.Counts.Dead + s.Counts.Replaying
	}
	bytes := 0
	for ; at < len(t.Partitions); at, offset = at+1, 0 {
		for {
			// One more than fits tells whether there is a next page.
			want := size - len(res.GetDeadLetters()) + 1
			list, err := a.b.groups.DeadLetters(ctx, t.Partitions[at].ID, consumer.GroupID(g.ID), offset, min(want, 64))
			if err != nil {
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

// pageToken says where the next page begins.
func pageToken(at int, o partition.Offset) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d/%d", at, o))
}

func parsePage(token string, partitions int) (int, partition.Offset, error) {
	if token == "" {
		return 0, 0, nil
	}
	bad := refuse("BAD_VALUE", "page_token", "%s is not a page token: send it as the last answer gave it", plain.Quote(token))
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return 0, 0, bad
	}
	left, right, ok := strings.Cut(string(b), "/")
	at, err1 := strconv.ParseUint(left, 10, 31)
	o, err2 := strconv.ParseUint(right, 10, 63)
	if !ok || err1 != nil || err2 != nil || at >= uint64(partitions) {
		return 0, 0, bad
	}
	return int(at), partition.Offset(o), nil
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
	var where []place
	switch which := req.GetWhich().GetWhich().(type) {
	case *strandmqv1.DeadLetterSelector_Id:
		if where, err = a.b.findID(ctx, t, which.Id); err != nil {
			return nil, err
		}
	case *strandmqv1.DeadLetterSelector_Place:
		id, err := t.number(which.Place.GetPartition())
		if err != nil {
			return nil, err
		}
		where = []place{{int(which.Place.GetPartition()), id, partition.Offset(which.Place.GetOffset())}}
	default:
		return nil, refuse("BAD_VALUE", "which", "name one dead letter, by id or place")
	}
	for _, p := range where {
		d, err := a.b.groups.DeadLetter(ctx, p.id, consumer.GroupID(g.ID), p.offset)
		var not *consumer.ErrNotDead
		if errors.As(err, &not) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &strandmqv1.GetDeadLetterResponse{DeadLetter: deadLetterProto(t, g, d, req.GetBodyFormat(), true)}, nil
	}
	return nil, notDead("group " + g.Name + " has no such dead letter")
}

// ReplayDeadLetters delivers dead letters to their group again.
func (a deadAPI) ReplayDeadLetters(ctx context.Context, req *strandmqv1.ReplayDeadLettersRequest) (*strandmqv1.ReplayDeadLettersResponse, error) {
	t, g, err := a.b.group(req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	picks, err := a.b.pick(ctx, t, req.GetWhich())
	if err != nil {
		return nil, err
	}
	var replayed, already atomic.Uint64
	err = a.apply(ctx, t, g, picks, func(ctx context.Context, id partition.PartitionID, sel consumer.Selector) (int, error) {
		n, m, err := a.b.groups.Replay(ctx, id, consumer.GroupID(g.ID), sel)
		replayed.Add(uint64(n))
		already.Add(uint64(m))
		return n + m, err
	})
	if err != nil {
		return nil, err
	}
	return &strandmqv1.ReplayDeadLettersResponse{Replayed: replayed.Load(), Already: already.Load()}, nil
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
	picks, err := a.b.pick(ctx, t, req.GetWhich())
	if err != nil {
		return nil, err
	}
	var discarded atomic.Uint64
	err = a.apply(ctx, t, g, picks, func(ctx context.Context, id partition.PartitionID, sel consumer.Selector) (int, error) {
		n, err := a.b.groups.Discard(ctx, id, consumer.GroupID(g.ID), sel)
		discarded.Add(uint64(n))
		return n, err
	})
	if err != nil {
		return nil, err
	}
	return &strandmqv1.DiscardDeadLettersResponse{Discarded: discarded.Load()}, nil
}

// A place is where a message is stored.
type place struct {
	number int
	id     partition.PartitionID
	offset partition.Offset
}

// picks are selectors by partition. exact names single messages, of which at
// least one must be there.
type picks struct {
	of    map[partition.PartitionID]consumer.Selector
	exact bool
}

// pick turns a selector of the API into selectors of partitions.
func (b *Broker) pick(ctx context.Context, t *topic, sel *strandmqv1.DeadLetterSelector) (picks, error) {
	out := picks{of: map[partition.PartitionID]consumer.Selector{}}
	switch which := sel.GetWhich().(type) {
	case *strandmqv1.DeadLetterSelector_Id:
		found, err := b.findID(ctx, t, which.Id)
		if err != nil {
			return out, err
		}
		out.exact = true
		for _, p := range found {
			s := out.of[p.id]
			s.Offsets = append(s.Offsets, p.offset)
			out.of[p.id] = s
		}
	case *strandmqv1.DeadLetterSelector_Key:
		return b.pickKey(t, []byte(which.Key))
	case *strandmqv1.DeadLetterSelector_KeyBytes:
		return b.pickKey(t, which.KeyBytes)
	case *strandmqv1.DeadLetterSelector_Place:
		id, err := t.number(which.Place.GetPartition())
		if err != nil {
			return out, err
		}
		out.exact = true
		out.of[id] = consumer.Selector{Offsets: []partition.Offset{partition.Offset(which.Place.GetOffset())}}
	case *strandmqv1.DeadLetterSelector_All:
		if !which.All {
			return out, refuse("BAD_VALUE", "which.all", "false picks nothing: name an id, a key or a place")
		}
		for _, p := range t.Partitions {
			out.of[p.ID] = consumer.Selector{All: true}
		}
	default:
		return out, refuse("BAD_VALUE", "which", "say which: by id, key, place, or all")
	}
	return out, nil
}

func (b *Broker) pickKey(t *topic, key []byte) (picks, error) {
	if len(key) == 0 || len(key) > record.MaxKey {
		return picks{}, refuse("BAD_KEY", "which.key", "a key has 1 to %d bytes", record.MaxKey)
	}
	h := keyspace.Hash(t.Seed, key)
	id := t.Partitions[t.table.Lookup(h)].ID
	return picks{of: map[partition.PartitionID]consumer.Selector{id: {ByKey: true, KeyHash: h, HasKey: true, Key: key}}}, nil
}

// apply runs fn for every picked partition. Where single messages were named,
// finding none of them is an error.
func (a deadAPI) apply(ctx context.Context, t *topic, g *coordinator.Group, p picks, fn func(context.Context, partition.PartitionID, consumer.Selector) (int, error)) error {
	var found atomic.Int64
	var missing atomic.Pointer[consumer.ErrNotDead]
	err := each(ctx, t.Topic, func(ctx context.Context, _ int, id partition.PartitionID) error {
		sel, ok := p.of[id]
		if !ok {
			return nil
		}
		n, err := fn(ctx, id, sel)
		found.Add(int64(n))
		var not *consumer.ErrNotDead
		if errors.As(err, &not) {
			missing.Store(not)
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if p.exact && found.Load() == 0 {
		if not := missing.Load(); not != nil {
			return not
		}
		return notDead("group " + g.Name + " has no such dead letter")
	}
	return nil
}

// findID finds the messages of a topic with an id, by partition and offset.
func (b *Broker) findID(ctx context.Context, t *topic, id string) ([]place, error) {
	if err := names.MessageID(id); err != nil {
		return nil, inField(err, "which.id")
	}
	found := make([][]place, len(t.Partitions))
	err := each(ctx, t.Topic, func(ctx context.Context, i int, pid partition.PartitionID) error {
		offsets, err := b.host.FindByMessageID(ctx, pid, id)
		for _, o := range offsets {
			found[i] = append(found[i], place{i, pid, o})
		}
		return err
	})
	return slices.Concat(found...), err
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
