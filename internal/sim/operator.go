package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
)

// operator looks after a group in one partition: it looks, and changes things.
type operator struct {
	s      *Sim
	r      *rand.Rand
	g      *groupBook
	paused bool
	state  consumer.GroupState // when it last looked
	looked bool
	done   bool
}

func (o *operator) heal() {
	o.done = true
	o.look()
}

// undone says what the group has still to do, as it was when last looked at, and looks
// again. What is dead is replayed until it is handled.
func (o *operator) undone() string {
	defer o.look()
	if !o.looked {
		return fmt.Sprintf("%v of %v does not tell its state", o.g.id, o.g.part)
	}
	o.looked = false
	c := o.state.Counts
	if o.state.Paused || o.paused {
		o.pause(false)
	}
	if c.Dead+c.Parked > 0 { // those that are replayed may wait for an earlier one that is not
		o.act("replay", func(n *node) error {
			_, _, err := n.shell.Replay(context.Background(), o.g.part, o.g.id, consumer.Selector{All: true})
			return err
		})
	}
	if c.Lag() > 0 || c.Dead > 0 || c.Replaying > 0 {
		return fmt.Sprintf("%v of %v is not done: %+v, stalls %+v, circuit %+v", o.g.id, o.g.part, c, o.state.Stalls, o.state.Circuit)
	}
	if end := partition.Offset(len(o.s.judge.logs[o.g.part].messages)); o.state.Position.End < end {
		return fmt.Sprintf("%v of %v ends at %d of %d", o.g.id, o.g.part, o.state.Position.End, end)
	}
	return ""
}

// act is something that an operator does, once.
func (o *operator) act(what string, do func(n *node) error) {
	o.s.call(o.g.part, do, func(err error) {
		var dead *consumer.ErrNotDead
		var limit *consumer.ErrReplayLimit
		var going *consumer.ErrReplaying
		var group *consumer.ErrUnknownGroup
		if err != nil && !retriable(err) && !errors.As(err, &dead) && !errors.As(err, &limit) && !errors.As(err, &going) && !errors.As(err, &group) {
			o.g.fault("%s: %v", what, err)
		}
	})
}

func (o *operator) pause(on bool) {
	o.paused = on
	o.act("pause", func(n *node) error { return n.shell.SetPaused(context.Background(), o.g.part, o.g.id, on) })
}

// look takes the group's state and its dead letters, at one moment.
func (o *operator) look() {
	o.s.call(o.g.part, func(n *node) error {
		if !o.s.judge.newest(n, o.g.part) {
			return &partition.ErrNotLeader{Partition: o.g.part}
		}
		st, err := n.shell.Stats(context.Background(), o.g.part, o.g.id)
		if err != nil {
			return err
		}
		ds, err := n.shell.DeadLetters(context.Background(), o.g.part, o.g.id, 0, 1000)
		if err != nil {
			return err
		}
		o.s.judge.look(n)
		o.g.counts(st)
		o.g.dead(n, ds)
		o.state, o.looked = st, true
		return nil
	}, func(err error) {
		var group *consumer.ErrUnknownGroup
		if err != nil && !retriable(err) && !errors.As(err, &group) {
			o.g.fault("a look at it: %v", err)
		}
	})
}

func (o *operator) loop() {
	if o.done {
		return
	}
	o.look()
	kind := operatorKinds[o.r.IntN(len(operatorKinds))]
	if o.s.plan.has(kind) {
		o.s.count.faults[kind]++
		o.do(kind)
	}
	if n := o.s.leader(o.g.part); n != nil {
		o.s.planted.forgetIDs("lost-id", n, o.g.part)
	}
	o.s.after(o.s.between(o.r, 100*time.Millisecond, 6*time.Second), "operator", o.loop)
}

func (o *operator) do(kind string) {
	g, ctx := o.g, context.Background()
	end := len(o.s.judge.logs[g.part].messages)
	at := partition.Offset(o.r.IntN(end + 1))
	switch kind {
	case "pause":
		o.pause(true)
		o.s.after(o.s.between(o.r, 100*time.Millisecond, 4*time.Second), "resume", func() { o.pause(false) })
	case "policy":
		p := g.policy
		p.MaxAttempts = []uint32{0, 1, 2, 5}[o.r.IntN(4)]
		p.AckDeadline = []partition.Millis{500, 2_000, 8_000}[o.r.IntN(3)]
		p.MaxHold = max(p.MaxHold, p.AckDeadline)
		p.OnExhaustion = []consumer.Exhaustion{consumer.Skip, consumer.Park}[o.r.IntN(2)]
		p.Retention = []consumer.Retention{consumer.Expire, consumer.Hold}[o.r.IntN(2)]
		p.MaxInFlightMember = []uint32{1, 4, 1000}[o.r.IntN(3)]
		g.policy = p
		if g.most != 0 && p.MaxAttempts != 0 {
			g.most = max(g.most, p.MaxAttempts)
		} else {
			g.most = 0
		}
		g.least = min(g.least, p.AckDeadline)
		o.act(kind, func(n *node) error { return n.shell.SetPolicy(ctx, g.part, g.id, p) })
	case "reset":
		g.resets++
		o.act(kind, func(n *node) error { _, err := n.shell.Reset(ctx, g.part, g.id, at); return err })
	case "replay":
		g.again = true
		which := consumer.Selector{All: true}
		if o.r.IntN(2) == 0 {
			which = consumer.Selector{Offsets: []partition.Offset{at}}
		}
		o.act(kind, func(n *node) error { _, _, err := n.shell.Replay(ctx, g.part, g.id, which); return err })
	case "discard":
		o.act(kind, func(n *node) error {
			_, err := n.shell.Discard(ctx, g.part, g.id, consumer.Selector{Offsets: []partition.Offset{at, at + 1, at + 2}})
			return err
		})
	case "trim":
		t := partition.TrimTo{To: at, Why: partition.ByAge, Done: o.r.IntN(4) == 0}
		if n := o.s.leader(g.part); n != nil {
			t.Now = n.clock()
			if len(o.s.nodes) > 1 && o.s.plan.has("power") && o.r.IntN(2) == 0 {
				o.s.misses(n, g.part, o.r)
			}
			if err := n.core.TrimAsync(g.part, t, func(any, error) {}); err != nil && !retriable(err) {
				g.fault("trim: %v", err)
			}
			n.kick()
		}
	case "leave":
		g.left = true
		for _, c := range o.s.clients {
			if m, ok := c.(*member); ok && m.group == g.id && o.r.IntN(2) == 0 {
				l := m.links[o.r.IntN(len(m.links))]
				session := l.session
				l.drop()
				for _, p := range l.parts {
					o.s.judge.group(p, g.id).left = true
					o.s.call(p, func(n *node) error { return n.shell.LeaveSession(ctx, p, g.id, m.name, session) }, func(error) {})
				}
				break
			}
		}
	}
}
