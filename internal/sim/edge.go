package sim

import (
	"context"
	"slices"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
)

// edge is the node as the groups' shell sees it.
type edge struct {
	n    *node
	boot int
}

func (e *edge) gone() error {
	if !e.n.up || e.n.boot != e.boot {
		return &partition.ErrStopped{}
	}
	return nil
}

// Propose waits, in a fiber.
func (e *edge) Propose(_ context.Context, id partition.PartitionID, cmd []byte) (res any, err error) {
	f, done := e.n.s.fiber, false
	bad := e.ProposeAsync(id, cmd, func(r any, er error) {
		res, err, done = r, er, true
		e.n.s.after(0, "resume", f.resume)
	})
	if bad != nil {
		return nil, bad
	}
	for !done {
		if !f.wait() {
			return nil, &partition.ErrOutcomeUnknown{Partition: id, Why: "the run ended"}
		}
	}
	return res, err
}

func (e *edge) ProposeAsync(id partition.PartitionID, cmd []byte, done func(any, error)) error {
	if err := e.gone(); err != nil {
		return err
	}
	if id != partition.Metadata && e.n.s.planted.lies(e.n, id, cmd, done) {
		return nil
	}
	c := e.n.call(func(err error) { done(nil, err) })
	err := e.n.core.ProposeAsync(id, slices.Clone(cmd), func(res any, err error) {
		if e.n.answered(c) {
			done(res, err)
		}
	})
	if err != nil {
		e.n.answered(c)
		return err
	}
	// What is sent again on the way comes twice, the second time late.
	if id != partition.Metadata && e.n.s.rand.net.Float64() < e.n.s.plan.twice {
		again := slices.Clone(cmd)
		e.n.later(e.n.s.between(e.n.s.rand.net, 0, 3*time.Second), "again", func() {
			if repeatable(again) {
				e.n.s.count.twice++
				_ = e.n.core.ProposeAsync(id, again, func(any, error) {})
				e.n.kick()
			}
		})
	}
	e.n.kick()
	return nil
}

// repeatable commands do nothing more the second time: settlements. (Their kind is
// the second byte, see docs/format/delivery.md.)
func repeatable(cmd []byte) bool { return len(cmd) > 1 && cmd[1] == 9 }

func (e *edge) Post(id partition.PartitionID, ev any) error {
	if err := e.gone(); err != nil {
		return err
	}
	defer e.n.kick()
	return e.n.core.Post(id, ev)
}

func (e *edge) Tell(id partition.PartitionID, ev any) error {
	if err := e.gone(); err != nil {
		return err
	}
	defer e.n.kick()
	return e.n.core.Tell(id, ev)
}

func (e *edge) View(_ context.Context, id partition.PartitionID, fn func(partition.App, partition.Position)) error {
	if err := e.gone(); err != nil {
		return err
	}
	return e.n.core.Look(id, func(x partition.App, at partition.Position) { fn(x.(*app).App, at) })
}

func (e *edge) ReadAt(id partition.PartitionID, os []partition.Offset) ([]partition.Message, error) {
	if err := e.gone(); err != nil {
		return nil, err
	}
	return e.n.core.ReadAt(id, os)
}

func (e *edge) ReadRawAt(id partition.PartitionID, os []partition.Offset, out []partition.RawMessage) ([]partition.RawMessage, error) {
	if err := e.gone(); err != nil {
		return out, err
	}
	return e.n.core.ReadRawAt(id, os, out)
}

func (e *edge) Commands(ctx context.Context, id partition.PartitionID, from partition.Index, fn func(partition.LogEntry) bool) error {
	if err := e.gone(); err != nil {
		return err
	}
	return e.n.core.Commands(ctx, id, from, fn)
}

func (e *edge) Led(id partition.PartitionID) (partition.Led, error) {
	if err := e.gone(); err != nil {
		return nil, err
	}
	return e.n.core.Led(id)
}

func (e *edge) IndexOf(id partition.PartitionID, o partition.Offset) (partition.Index, error) {
	if err := e.gone(); err != nil {
		return 0, err
	}
	return e.n.core.IndexOf(id, o)
}

// app is the groups of a partition as a node has them, with what the simulator wants
// to know of them and what a planted fault does to them.
type app struct {
	*consumer.App
	n         *node
	id        partition.PartitionID
	restoring bool // applies again what the checkpoint does not have
}

func (n *node) newApp(id partition.PartitionID, rows partition.Rows) (partition.App, error) {
	if id == partition.Metadata {
		return n.metadata(rows)
	}
	inner, err := consumer.NewApp(id, n.s.planted.rows(n, rows))
	if err != nil {
		return nil, err
	}
	a := &app{App: inner, n: n, id: id, restoring: true}
	n.apps[id] = a
	return a, nil
}

// Apply implements partition.App.
func (a *app) Apply(at partition.Position, cmd []byte) (any, error) {
	if a.n.s.planted.skips(a, cmd) {
		return nil, nil
	}
	return a.App.Apply(at, cmd)
}
