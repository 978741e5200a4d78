package consumer

import (
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// settleAll applies settlements in order, each with a result of its own.
func (g *group) settleAll(r *reader) []SettleResult {
	s := r.settlements()
	res := make([]SettleResult, 0, s.n)
	for {
		t, a, delay, reason, ok := s.next()
		if !ok {
			return res
		}
		if s.again > 0 && len(res) == cap(res) {
			res = slices.Grow(res, s.again+1)
		}
		res = append(res, g.settleOne(t, a, delay, reason))
	}
}

// settle is P6: only the current token of a message changes anything; what
// repeats the settlement that took effect is success; everything else is stale.
func (g *group) settle(t Token, a Action, delay partition.Millis, reason []byte) SettleResult {
	if t.Epoch != g.epoch {
		return stale("the group was reset since")
	}
	i, ok := g.offsets.find(uint64(t.Offset))
	if !ok {
		return g.settleAgain(t, a)
	}
	if e := &g.entries[i]; e.handOut != t.HandOut || e.ordinal != t.Ordinal || e.at != inFlight {
		return g.settleEnded(e, t, a)
	}
	switch a {
	case Ack:
		g.went(t.HandOut)
		g.outcomes.handled += uint64(max(g.clock-g.entries[i].handedAt, 0))
		g.endHandOut(i, notEnded)
		g.acknowledge(i)
		return SettleResult{}
	case Nack:
		return SettleResult{Dead: g.fail(i, byNack, string(reason), delay)}
	case Reject:
		return SettleResult{Dead: g.fail(i, byReject, string(reason), 0)}
	case bury:
		return SettleResult{Dead: g.bury(i, string(reason))}
	case Extend:
		return g.extend(i, delay)
	case Release:
		g.release(i)
		return SettleResult{}
	default:
		return SettleResult{Err: &ErrBadSettlement{Field: "action", Why: "unknown"}}
	}
}

// settleEnded answers for an unsettled message by a token that is not current.
func (g *group) settleEnded(e *entry, t Token, a Action) SettleResult {
	switch {
	case t.HandOut > g.handOuts:
		return stale("this hand-out never took effect")
	case e.handOut != t.HandOut || e.at == inFlight:
		g.late(a, g.policy.AckDeadline+g.clock-e.handedAt)
		return stale("the message was handed out again since")
	case a == Nack && e.last == byNack || a == Release && e.last == byRelease:
		// The hand-out ended. The same answer again changes nothing and is no
		// error: its first reply may have been lost.
		return SettleResult{Again: true}
	default:
		if e.last == byLapse {
			g.late(a, g.clock-e.handedAt)
		}
		return stale(ended(e.last))
	}
}

func stale(why string) SettleResult { return SettleResult{Err: &ErrStale{Why: why}} }

func ended(how ending) string {
	switch how {
	case byNack:
		return "it was nacked"
	case byLapse:
		return "its deadline passed and it lapsed"
	case bySession:
		return "the session that held it ended"
	case byRelease:
		return "it was released"
	case byReject:
		return "it was rejected"
	default:
		return "it ended"
	}
}

// settleAgain answers for a message that is not unsettled.
func (g *group) settleAgain(t Token, a Action) SettleResult {
	if t.Offset >= g.scanned || t.Offset < g.start {
		return stale("the message is not handed out")
	}
	if e, ok := g.unsettledOnDisk(t.Offset); ok {
		return g.settleEnded(&e, t, a)
	}
	row, dead, err := g.rows.dead(t.Offset)
	g.fault(err)
	if dead {
		again := a == Nack && row.last == byNack || a == Reject && row.last == byReject
		if again && row.handOut == t.HandOut {
			return SettleResult{Dead: true, Again: true}
		}
		if row.last == byLapse && row.handOut == t.HandOut {
			g.late(a, g.policy.AckDeadline)
		}
		return stale("the message is a dead letter")
	}
	if t.Offset < g.answers() || t.Offset < g.kept && g.lost(t.Offset) {
		return stale("the message expired: retention removed it")
	}
	_, skipped, err := g.rows.skippedAt(t.Offset)
	g.fault(err)
	// Nothing is kept of what the first hand-out settled, which is nearly
	// everything.
	ordinal, err := g.rows.ackedBy(g.epoch, t.Offset)
	g.fault(err)
	switch {
	case skipped:
		return stale("the message was given up")
	case ordinal != t.Ordinal:
		g.late(a, g.policy.AckDeadline)
		return stale("another hand-out of the message was acked")
	case a == Ack:
		return SettleResult{Again: true}
	default:
		return stale("it was acked")
	}
}

// extend moves a deadline: from now on, but not beyond max hold.
func (g *group) extend(i int32, delay partition.Millis) SettleResult {
	e := &g.entries[i]
	if delay == 0 {
		delay = g.policy.AckDeadline
	}
	most := e.handedAt + g.policy.MaxHold
	until := g.clock + delay
	if until > most {
		until = most
		if e.until >= most || g.clock >= most {
			return SettleResult{Err: &ErrHeldTooLong{Until: g.shown(e.until), MaxHold: g.policy.MaxHold}, Deadline: g.shown(e.until)}
		}
	}
	if until != e.until {
		e.until = until
		g.touch(i)
		g.tellDeadline(i)
	}
	return SettleResult{Deadline: g.shown(until)}
}

// lapseAll fails the hand-outs whose deadline passed, if it did by the group's
// clock and nothing came between.
func (g *group) lapseAll(at partition.Position, r *reader) {
	note := voids{g: g, at: at.Index}
	epoch := r.uvarint()
	for range r.count(2) {
		o, n := partition.Offset(r.uvarint()), r.uvarint()
		if r.bad != "" || epoch != g.epoch {
			continue
		}
		i, ok := g.offsets.find(uint64(o))
		if !ok {
			continue
		}
		switch e := &g.entries[i]; {
		case e.at != inFlight:
		case e.handOut != n || g.clock < e.until:
			note.one(o)
		default:
			g.fail(i, byLapse, fmt.Sprintf("no answer within %d ms", e.until-e.handedAt), 0)
		}
	}
}
