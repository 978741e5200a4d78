package consumer

import (
	"fmt"

	"github.com/strandmq/strandmq/partition"
)

// tracer reads one message's life in every group back from the commands of its
// partition, given in the order of the log from the message's own entry on. What
// a command proposed and Apply did not do it takes from the rows that Apply left
// (machine_void.go), and so the policies that held: nothing here is guessed.
//
// Of a group that was deleted the rows are gone with it. What it was handed and
// did not settle is told as if every plan had taken effect, but for one that the
// next plan shows to have been void: nobody plans what is out.
type tracer struct {
	offset partition.Offset
	show   Window
	groups map[GroupID]*traced
	events *Excerpt[TraceEvent]
	term   uint64 // of the entry that is read
}

// traced is the message in one group.
type traced struct {
	past
	exists   bool
	made     bool // its create was seen, or it was there before the message
	policy   Policy
	out      bool
	dead     bool
	replayed bool // came out of the dead letters, and was not handled yet
	settled  bool
	epoch    uint64 // of the last hand-out
	clock    partition.Millis
	until    partition.Millis
	handed   partition.Millis
	member   string
	session  uint64
	attempts uint32
	ordinal  uint32
	event    int // of the last hand-out, counted from 0; -1: not shown
	hands    []aHand
	ended    string // how the last hand-out did, as it was told; or the message: discarded
	moved    bool   // the group was reset since then
}

// newTracer traces the message at an offset.
func newTracer(o partition.Offset, show Window) *tracer {
	return &tracer{offset: o, show: show, groups: make(map[GroupID]*traced), events: NewExcerpt[TraceEvent](show)}
}

// know tells a group that exists, and what its rows tell of its past.
func (t *tracer) know(id GroupID, p past) {
	g := t.group(id)
	g.past, g.exists = p, true
}

func (t *tracer) group(id GroupID) *traced {
	g, ok := t.groups[id]
	if !ok {
		g = &traced{policy: Default(), event: -1}
		t.groups[id] = g
	}
	return g
}

// undo takes an event back: the ones behind it are one fewer.
func (t *tracer) undo(event int) {
	if event < 0 {
		return
	}
	t.events.Remove(event)
	for _, g := range t.groups {
		if g.event > event {
			g.event--
		}
	}
}

// add tells what happened to what a group's member has, or had.
func (t *tracer) add(at partition.Index, h header, g *traced, e TraceEvent) {
	e.Member, e.Attempt = g.member, g.attempts
	t.put(at, h, g, e)
}

func (t *tracer) put(at partition.Index, h header, g *traced, e TraceEvent) {
	if !t.show.Has(at) {
		return
	}
	e.Time, e.Index, e.Term, e.Group = g.clock, at, t.term, h.group
	// Of each group one may be taken back later without another in its place.
	t.events.spare = len(t.groups)
	t.events.Add(e)
}

// command reads one command.
func (t *tracer) command(at partition.Index, cmd []byte) error {
	r := reader{b: cmd}
	h := r.header()
	if r.bad != "" {
		return r.ofCommand(r.bad)
	}
	g := t.group(h.group)
	if p, ok := g.policyAt(at); ok {
		g.policy, g.made = p, true
	}
	if h.kind != cmdCreate || !g.made {
		g.clock = max(g.clock, h.now)
	}
	switch h.kind {
	case cmdCreate:
		r.string()
		start, _, p := partition.Offset(r.uvarint()), r.bool(), r.policy()
		if r.bad == "" && !g.made { // again changes nothing
			g.policy = p
			g.settled = start > t.offset
		}
	case cmdPolicy:
		g.policy = r.policy()
	case cmdReset:
		t.reset(at, h, g, partition.Offset(r.uvarint()))
	case cmdSessions, cmdLeave:
		name, below := r.string(), r.uvarint()
		if g.out && g.member == name && g.session < below {
			if h.kind == cmdSessions {
				t.failed(at, h, g, "session-lost", "", 0, false)
			} else {
				t.released(at, h, g, "the member left")
			}
		}
	case cmdPlan, cmdForesee:
		if h.kind == cmdForesee {
			r.foresight()
		}
		t.plan(at, h, g, &r)
	case cmdSettle:
		s := r.settlements()
		for {
			k, a, delay, reason, ok := s.next()
			if !ok {
				break
			}
			switch {
			case k.Offset != t.offset:
			case g.out && k.Ordinal == g.ordinal && k.Epoch == g.epoch:
				t.settle(at, h, g, k, a, delay, string(reason))
			case g.exists:
				t.refused(at, h, g, k, a)
			}
		}
	case cmdLapse:
		epoch := r.uvarint()
		for range r.count(2) {
			o := partition.Offset(r.uvarint())
			r.uvarint()
			if o == t.offset && g.out && epoch == g.epoch && !g.void[at] && g.clock >= g.until {
				t.failed(at, h, g, "lapsed", fmt.Sprintf("no answer within %d ms", g.until-g.handed), 0, false)
			}
		}
	case cmdLeap:
		d := r.time() - g.clock
		if r.bad == "" && d > 0 {
			g.clock += d
			if g.out {
				g.handed, g.until = g.handed+d, g.until+d
			}
		}
	case cmdReplay, cmdDiscard:
		for _, o := range r.offsets() {
			if o != t.offset || !g.dead || g.void[at] {
				continue
			}
			g.dead, g.member = false, ""
			if h.kind == cmdReplay {
				t.add(at, h, g, TraceEvent{What: "replayed"})
				g.attempts, g.replayed = 0, true
			} else {
				t.add(at, h, g, TraceEvent{What: "discarded"})
				g.settled, g.ended = true, "discarded"
			}
		}
	default:
		return nil
	}
	g.made = true
	if r.bad != "" {
		return r.ofCommand(r.bad)
	}
	return nil
}

func (t *tracer) reset(at partition.Index, h header, g *traced, to partition.Offset) {
	g.moved = true
	switch {
	case g.dead:
		// What is dead stays dead.
	case g.replayed:
		g.member, g.out = "", false
		g.dead, g.replayed = true, false
		t.add(at, h, g, TraceEvent{What: "reset", Detail: "before it was handled: the message is a dead letter again"})
	case to <= t.offset:
		if g.ordinal > 0 || g.settled {
			g.member = ""
			t.add(at, h, g, TraceEvent{What: "reset", Detail: fmt.Sprintf("to offset %d: the message is delivered again", to), Again: true})
		}
		g.settled, g.dead, g.out, g.attempts, g.ordinal = false, false, false, 0, 0
	case !g.settled && !g.dead:
		g.member = ""
		t.add(at, h, g, TraceEvent{What: "reset", Detail: fmt.Sprintf("to offset %d: the message was skipped", to)})
		g.settled, g.out = true, false
	}
}

// plan looks for the message in a plan.
func (t *tracer) plan(at partition.Index, h header, g *traced, r *reader) {
	epoch, _ := r.uvarint(), r.uvarint()
	n := r.count(10)
	who := make([]planMember, n)
	for i := range who {
		who[i] = planMember{r.string(), r.uvarint(), r.fixed64()}
	}
	void := g.void[at]
	handOut := func(w uint64) {
		if r.bad != "" || w >= uint64(n) || void {
			return
		}
		if g.out && g.exists {
			return // Apply would not have done it
		}
		if g.out {
			g.attempts--
			g.ordinal--
			t.undo(g.event)
		}
		g.attempts++
		g.ordinal++
		g.member, g.session = who[w].name, who[w].session
		g.handed, g.until = g.clock, g.clock+g.policy.AckDeadline
		g.out, g.epoch = true, epoch
		g.hand()
		g.event = -1
		if t.show.Has(at) {
			g.event = t.events.Len()
		}
		if g.policy.AtMostOnce {
			t.add(at, h, g, TraceEvent{What: "handed-out", Detail: "at most once", Settled: true})
			g.out, g.settled, g.replayed, g.ended = false, true, false, "acked"
			return
		}
		t.add(at, h, g, TraceEvent{What: "handed-out", Detail: fmt.Sprintf("for %d ms", g.until-g.clock), Until: g.until})
	}
	for range r.count(2) {
		o, w := partition.Offset(r.uvarint()), r.uvarint()
		if o == t.offset && !g.settled && !g.dead {
			handOut(w)
		}
	}
	o := partition.Offset(r.uvarint())
	for range r.count(10) {
		r.fixed64()
		r.uvarint()
		if w := r.uvarint(); o == t.offset && !g.settled && !g.dead {
			if w > 0 {
				handOut(w - 1)
			}
		}
		o++
	}
}

func (t *tracer) settle(at partition.Index, h header, g *traced, k Token, a Action, delay partition.Millis, reason string) {
	switch a {
	case Ack:
		t.add(at, h, g, TraceEvent{What: "acked"})
		g.out, g.settled, g.replayed, g.ended = false, true, false, "acked"
	case Nack:
		t.failed(at, h, g, "nacked", reason, delay, false)
	case Reject, bury:
		t.failed(at, h, g, "rejected", reason, 0, true)
	case Extend:
		if delay == 0 {
			delay = g.policy.AckDeadline
		}
		until, most := g.clock+delay, g.handed+g.policy.MaxHold
		if until > most && (g.until >= most || g.clock >= most) {
			t.tellRefused(at, h, g, k, a, heldLongest)
			return
		}
		g.until = min(until, most)
		t.add(at, h, g, TraceEvent{What: "extended", Detail: fmt.Sprintf("for %d ms from now", g.until-g.clock), Until: g.until})
	case Release:
		t.released(at, h, g, "")
	}
}

func (t *tracer) released(at partition.Index, h header, g *traced, why string) {
	t.add(at, h, g, TraceEvent{What: "released", Detail: why})
	g.out, g.ended = false, "released"
	g.attempts--
}

func (t *tracer) failed(at partition.Index, h header, g *traced, what, reason string, delay partition.Millis, last bool) {
	g.out, g.ended = false, what
	free := g.free[at] && !last
	if last || !free && g.policy.MaxAttempts > 0 && g.attempts >= g.policy.MaxAttempts {
		t.add(at, h, g, TraceEvent{What: what, Detail: reason, Reason: reason})
		t.add(at, h, g, TraceEvent{What: "dead-lettered", Detail: reason, Reason: reason})
		g.dead, g.replayed = true, false
		return
	}
	if delay == 0 {
		delay = g.policy.backoff(h.group, t.offset, g.attempts)
	}
	detail := fmt.Sprintf("next attempt in %d ms at the earliest", delay)
	if reason != "" {
		detail = reason + "; " + detail
	}
	if free {
		detail += "; the circuit was open: not charged"
	}
	t.add(at, h, g, TraceEvent{What: what, Detail: detail, Reason: reason, NextAttempt: g.clock + delay, Uncharged: free})
	if free {
		g.attempts--
	}
}
