package broker

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// leftOut is what a call that concerns several partitions did without: those that
// stopped. One that is damaged must not keep the others from being read, asked
// or told anything.
type leftOut struct {
	b *Broker
	// looks: the call only looks, and does without partitions that too few nodes are
	// there for, too.
	looks bool

	mu  sync.Mutex
	out []*strandmqv1.LeftOut // guarded by mu: by partition
}

// without is nil for the error of a partition that stopped, which it notes, and
// every other error as it is.
func (r *leftOut) without(number int, err error) error {
	if !errors.As(err, new(*partition.ErrDamaged)) && !(r.looks && err != nil && r.b.noQuorum(err) != nil) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i, noted := slices.BinarySearchFunc(r.out, uint32(number), func(l *strandmqv1.LeftOut, n uint32) int { return int(l.GetPartition()) - int(n) })
	if !noted {
		r.out = slices.Insert(r.out, i, &strandmqv1.LeftOut{Partition: uint32(number), Problem: r.b.explain(err).problem(nil)})
	}
	return nil
}

// has tells whether a partition was left out.
func (r *leftOut) has(number int) bool {
	return slices.ContainsFunc(r.out, func(l *strandmqv1.LeftOut) bool { return int(l.GetPartition()) == number })
}

// refusal is for calls that come to nothing without what was left out; nil when
// nothing was.
func (r *leftOut) refusal() error {
	if len(r.out) == 0 {
		return nil
	}
	p := r.out[0].GetProblem()
	return refuse(p.GetReason(), "", "%s", p.GetMessage())
}

// each is the function each for the partitions that work, and notes the others.
func (r *leftOut) each(ctx context.Context, t *coordinator.Topic, fn func(ctx context.Context, i int, id partition.PartitionID) error) error {
	r.looks = ctx.Value(behindKey{}) != nil
	return each(ctx, t, func(ctx context.Context, i int, id partition.PartitionID) error {
		return r.without(i, fn(ctx, i, id))
	})
}
