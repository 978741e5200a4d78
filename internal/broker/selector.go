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

// A place is where a message is stored.
type place struct {
	number int
	id     partition.PartitionID
	offset partition.Offset
}

// findID finds the messages of a topic with an id, by partition and offset.
// When there are none, and a partition that stopped may have one, it is an error.
func (b *Broker) findID(ctx context.Context, t *topic, id string) ([]place, error) {
	r := &leftOut{b: b}
	found, err := b.findIDIn(ctx, t, id, r)
	if err == nil && len(found) == 0 {
		err = r.refusal()
	}
	return found, err
}

// findIDIn is findID in the partitions that work.
func (b *Broker) findIDIn(ctx context.Context, t *topic, id string, r *leftOut) ([]place, error) {
	if err := names.MessageID(id); err != nil {
		return nil, inField(err, "which.id")
	}
	found := make([][]place, len(t.Partitions))
	err := r.each(ctx, t.Topic, func(ctx context.Context, i int, pid partition.PartitionID) error {
		offsets, err := b.parts.FindByMessageID(ctx, pid, id)
		for _, o := range offsets {
			found[i] = append(found[i], place{i, pid, o})
		}
		return err
	})
	return slices.Concat(found...), err
}

// findDead is findID for a group's dead letters: it also finds those whose message
// retention has passed.
func (b *Broker) findDead(ctx context.Context, t *topic, g *coordinator.Group, id string) ([]place, error) {
	r := &leftOut{b: b}
	kept, err := b.findIDIn(ctx, t, id, r)
	if err != nil {
		return nil, err
	}
	found := make([][]place, len(t.Partitions))
	err = r.each(ctx, t.Topic, func(ctx context.Context, i int, pid partition.PartitionID) error {
		offsets, err := b.parts.CopiesOf(ctx, pid, consumer.GroupID(g.ID), id)
		for _, o := range offsets {
			if p := (place{i, pid, o}); !slices.Contains(kept, p) { // retention may pass it between the two looks
				found[i] = append(found[i], p)
			}
		}
		return err
	})
	out := append(slices.Concat(found...), kept...)
	if err == nil && len(out) == 0 {
		err = r.refusal()
	}
	return out, err
}

// picks are selectors by partition. exact names single messages, of which at
// least one must be there.
type picks struct {
	of    map[partition.PartitionID]consumer.Selector
	exact bool
}

// pick turns a selector of the API into selectors of partitions.
func (b *Broker) pick(ctx context.Context, t *topic, g *coordinator.Group, sel *strandmqv1.DeadLetterSelector) (picks, error) {
	out := picks{of: map[partition.PartitionID]consumer.Selector{}}
	switch which := sel.GetWhich().(type) {
	case *strandmqv1.DeadLetterSelector_Id:
		found, err := b.findDead(ctx, t, g, which.Id)
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
		p, err := b.message(ctx, t, which.Place, "which.place")
		if err != nil {
			return out, err
		}
		out.exact = true
		out.of[p.id] = consumer.Selector{Offsets: []partition.Offset{p.offset}}
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

// applyPicks runs fn for every picked partition, and gives those that stopped.
// Where single messages were named, finding none of them is an error, and so is
// it when all that were picked stopped.
func (b *Broker) applyPicks(
	ctx context.Context, t *topic, g *coordinator.Group, p picks, fn func(context.Context, partition.PartitionID, consumer.Selector) (int, error),
) ([]*strandmqv1.LeftOut, error) {
	var found atomic.Int64
	var missing atomic.Pointer[consumer.ErrNotDead]
	r := &leftOut{b: b}
	err := r.each(ctx, t.Topic, func(ctx context.Context, _ int, id partition.PartitionID) error {
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
		return nil, err
	}
	if n := len(r.out); n > 0 && n == len(p.of) {
		return nil, r.refusal()
	}
	if p.exact && found.Load() == 0 {
		if not := missing.Load(); not != nil {
			return nil, not
		}
		return nil, notDead("group " + g.Name + " has no such dead letter")
	}
	return r.out, nil
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
