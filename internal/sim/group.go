package sim

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
)

// groupBook is what clients of a group saw of it in one partition.
type groupBook struct {
	s      *Sim
	part   partition.PartitionID
	id     consumer.GroupID
	policy consumer.Policy
	order  bool // of keys
	most   uint32
	least  partition.Millis // shortest deadline that it ever had
	outs   map[uint64]*out
	of     map[partition.Offset][]*out // in the order of hand-outs seen
	byKey  map[string][]*out
	acked  map[partition.Offset]*out // confirmed
	tried  map[partition.Offset]bool // an ack was sent
	resets int
	gave   map[partition.Offset]bool // may have been given back, uncharged
	left   bool                      // so may anything
	again  bool                      // something was replayed
	lost   map[string]uint64         // sessions of a member that were told to end, by the highest
}

// out is a hand-out as a client saw it.
type out struct {
	d       consumer.Delivery
	member  string
	session uint64
	key     string
	at      time.Duration // when it was first seen
	sent    time.Duration // when it was first settled, or tried; 0: never
	longer  bool          // it may have been extended
}

func (j *judge) group(p partition.PartitionID, id consumer.GroupID) *groupBook {
	for _, g := range j.groups {
		if g.part == p && g.id == id {
			return g
		}
	}
	return nil
}

func (j *judge) addGroup(p partition.PartitionID, id consumer.GroupID, pol consumer.Policy) {
	j.groups = append(j.groups, &groupBook{
		s: j.s, part: p, id: id, policy: pol, order: pol.Mode != consumer.NoOrder, most: pol.MaxAttempts, least: pol.AckDeadline,
		outs: make(map[uint64]*out), of: make(map[partition.Offset][]*out), byKey: make(map[string][]*out),
		acked: make(map[partition.Offset]*out), tried: make(map[partition.Offset]bool), gave: make(map[partition.Offset]bool),
		lost: make(map[string]uint64),
	})
}

func (g *groupBook) fault(format string, args ...any) {
	g.s.fault("%v of %v: %s", g.id, g.part, fmt.Sprintf(format, args...))
}

// delivered judges what a member was given.
func (g *groupBook) delivered(member string, session uint64, d consumer.Delivery) *out {
	o, n := d.Message.Offset, d.Fence
	g.s.count.deliveries++
	g.s.note(uint64(g.id), uint64(g.part), uint64(o), n, uint64(d.Attempt))
	b := g.s.judge.logs[g.part]
	if int(o) >= len(b.messages) || b.messages[o] == nil || b.messages[o].sum != sumOf(&d.Message) {
		g.fault("P1: %d was delivered as %q", o, d.Message.Record.Body)
		return nil
	}
	if was := g.outs[n]; was != nil {
		// Asked again: the same delivery (P8).
		if was.d.Message.Offset != o || was.d.Attempt != d.Attempt || was.d.Token != d.Token || was.member != member || was.session != session {
			g.fault("P8: hand-out %d was of %d to %s/%d, attempt %d, and is of %d to %s/%d, attempt %d",
				n, was.d.Message.Offset, was.member, was.session, was.d.Attempt, o, member, session, d.Attempt)
		}
		return was
	}
	x := &out{d: d, member: member, session: session, key: string(d.Message.Record.Key), at: g.s.now}
	if g.most > 0 && d.Attempt > g.most || d.Attempt == 0 {
		g.fault("P7: %d has its attempt %d of at most %d", o, d.Attempt, g.most)
	}
	if a := g.acked[o]; a != nil && n > a.d.Fence && d.Token.Epoch == a.d.Token.Epoch {
		g.fault("P6: %d was acked by hand-out %d, confirmed, and is delivered again by %d", o, a.d.Fence, n)
	}
	var before *out
	for _, y := range g.of[o] {
		if y.d.Token.Epoch == d.Token.Epoch && y.d.Fence < n && (before == nil || y.d.Fence > before.d.Fence) {
			before = y
		}
	}
	if before != nil {
		g.again2(before, x)
	}
	if g.order && !d.Replayed {
		for _, y := range g.byKey[x.key] {
			if y.d.Message.Offset > o && y.d.Fence < n && y.d.Token.Epoch == d.Token.Epoch {
				g.fault("P3: %d of key %s is handed out by %d: it was not settled when %d, later of the key, was handed out by %d",
					o, x.key, n, y.d.Message.Offset, y.d.Fence)
			}
		}
	}
	g.outs[n] = x
	g.of[o] = append(g.of[o], x)
	g.byKey[x.key] = append(g.byKey[x.key], x)
	return x
}

// again2 judges a hand-out of a message against the one before it that was seen.
func (g *groupBook) again2(before, x *out) {
	ords := x.d.Token.Ordinal - before.d.Token.Ordinal
	if x.d.Token.Ordinal <= before.d.Token.Ordinal {
		g.fault("P5: hand-out %d of %d is its %d., and %d was its %d.", x.d.Fence, x.d.Message.Offset, x.d.Token.Ordinal, before.d.Fence, before.d.Token.Ordinal)
		return
	}
	if x.d.Replayed == before.d.Replayed && !g.again {
		if most := before.d.Attempt + ords; x.d.Attempt > most || x.d.Attempt < most && !g.gave[x.d.Message.Offset] && !g.left && g.policy.BreakerPercent == 0 {
			g.fault("P5: %d had attempt %d by hand-out %d, and %d hand-outs later has attempt %d by %d, and nobody gave it back",
				x.d.Message.Offset, before.d.Attempt, before.d.Fence, ords, x.d.Attempt, x.d.Fence)
		}
	}
	// Nobody touched it, so its time was up: not before it is (I26), save for the two
	// seconds that a clock can cost, and a second for being noticed.
	if g.s.plan.has("jump") || g.s.plan.has("drift") && len(g.s.nodes) > 1 {
		return // each step of a clock costs two seconds
	}
	if before.sent == 0 && !before.longer && g.lost[before.member] <= before.session && !g.left {
		least := time.Duration(g.least)*time.Millisecond*4/5 - 3*time.Second
		if g.s.now-before.at < least {
			g.fault("I26: %d was handed out to %s, who did nothing, and %v later again: its deadline was %d ms", x.d.Message.Offset, before.member, g.s.now-before.at, g.least)
		}
	}
}

// settling takes note that a settlement is about to be sent.
func (g *groupBook) settling(x *out, a consumer.Action) {
	if x.sent == 0 && a != consumer.Extend {
		x.sent = g.s.now
	}
	switch a {
	case consumer.Ack:
		g.tried[x.d.Message.Offset] = true
	case consumer.Release:
		g.gave[x.d.Message.Offset] = true
	case consumer.Extend:
		x.longer = true
	}
}

// settled judges the answer. asked is when it was sent.
func (g *groupBook) settled(x *out, a consumer.Action, asked time.Duration, res consumer.SettleResult) {
	o := x.d.Message.Offset
	g.s.count.settled++
	var stale *consumer.ErrStale
	var unknown *partition.ErrOutcomeUnknown
	var stopped *partition.ErrStopped
	var led *partition.ErrNotLeader
	var long *consumer.ErrHeldTooLong
	switch {
	case res.Err == nil:
	case errors.As(res.Err, &stale), errors.As(res.Err, &unknown), errors.As(res.Err, &stopped), errors.As(res.Err, &led), errors.As(res.Err, &long), retriable(res.Err):
		return
	default:
		g.fault("settling %d with %v: %v", o, a, res.Err)
		return
	}
	if a == consumer.Ack {
		g.acked[o] = x
	}
	if a != consumer.Extend && asked != x.sent {
		return // it may repeat an earlier one, which nobody heard of
	}
	for _, y := range g.of[o] {
		if y.d.Fence > x.d.Fence && y.d.Token.Epoch == x.d.Token.Epoch && y.at < asked {
			g.fault("P6: the token of hand-out %d of %d was taken (%v, sent at %v), and hand-out %d was out by then (at %v, attempt %d, replayed %v)",
				x.d.Fence, o, a, asked, y.d.Fence, y.at, y.d.Attempt, y.d.Replayed)
		}
	}
	if !g.order {
		return
	}
	for _, y := range g.byKey[x.key] {
		if y.d.Message.Offset != o && y.d.Fence > x.d.Fence && y.d.Token.Epoch == x.d.Token.Epoch && y.at < asked {
			g.fault("P3: %d of key %s was out, as hand-out %d, when %d of it was handed out by %d", o, x.key, x.d.Fence, y.d.Message.Offset, y.d.Fence)
		}
	}
}

// counts: every message of the log is somewhere, once (P10, I18).
func (g *groupBook) counts(st consumer.GroupState) {
	c := st.Counts
	sum := c.Ready + c.Blocked + c.InFlight + c.BackingOff + c.Parked + c.Dead + c.Acked + c.Skipped + c.NotScanned
	if all := uint64(st.Position.End - st.Start); sum != all {
		g.fault("P10: the counts add up to %d of %d: %+v", sum, all, c)
	}
	var lost uint64
	for _, l := range st.Kept.Losses {
		lost += l.Count
	}
	if lost != c.Expired || c.Expired > c.Skipped {
		g.fault("P10: %d were lost by the records, %d by the counts, of %d skipped", lost, c.Expired, c.Skipped)
	}
	if g.resets > 0 {
		return
	}
	if n := uint64(len(g.acked)); c.Acked < n {
		g.fault("P6: %d acks were confirmed, and %d messages count as acked", n, c.Acked)
	}
	if n := uint64(len(g.tried)); c.Acked > n {
		g.fault("P10: %d messages count as acked, and acks were sent for %d", c.Acked, n)
	}
}

// dead: a dead letter is one of the messages, whole, once, and was not acked (P7).
func (g *groupBook) dead(n *node, ds []consumer.DeadLetter) {
	b := g.s.judge.logs[g.part]
	last := -1
	for _, d := range ds {
		if int(d.Offset) <= last {
			g.fault("P7: dead letter %d comes after %d", d.Offset, last)
		}
		last = int(d.Offset)
		switch {
		case last >= len(b.messages) || b.messages[last] == nil:
			g.fault("P7: dead letter %d is no message", d.Offset)
		case n.spoiled && len(d.Message.Record.Body) == 0: // it does not read there
		case !bytes.Equal(d.Message.Record.Body, []byte(b.messages[last].m.body)):
			g.fault("P7: dead letter %d has the body %q, the message had %q", d.Offset, d.Message.Record.Body, b.messages[last].m.body)
		case g.acked[d.Offset] != nil && g.resets == 0 && !g.again:
			g.fault("P7: dead letter %d was acked, and that was confirmed", d.Offset)
		}
	}
}
