package consumer

import (
	"fmt"

	"github.com/strandmq/strandmq/partition"
)

// Tracer reads one message's life in every group back from the commands of its
// partition, given in the order of the log from the message's own entry on.
//
// A plan only proposes, and the few that were void cannot be told from the
// command alone without the whole state. What comes later tells: a leader plans
// a message again only when it is not out. So a hand-out is taken back when the
// next plan names the message again and nothing had ended it; the last one is
// for the caller to compare with the present state (Settle).
type Tracer struct {
	offset partition.Offset
	groups map[GroupID]*traced
	events []TraceEvent
}

// traced is the message in one group, as far as the commands tell.
type traced struct {
	policy   Policy
	known    bool // policy and position are known
	paused   bool
	scanned  bool
	out      bool
	dead     bool
	replayed bool // came out of the dead letters, and was not handled yet
	settled  bool
	epoch    uint64
	clock    partition.Millis
	until    partition.Millis
	handed   partition.Millis
	member   string
	session  uint64
	attempts uint32
	ordinal  uint32
	event    int // of the last hand-out, in events
	sessions map[string]uint64
}

// NewTracer traces the message at an offset. What is not in the commands given
// to it, since it came before, is taken from the groups' present state.
func NewTracer(o partition.Offset) *Tracer {
	return &Tracer{offset: o, groups: make(map[GroupID]*traced)}
}

// Group tells a group that exists now.
func (t *Tracer) Group(id GroupID, p Policy) { t.group(id).policy = p }

func (t *Tracer) group(id GroupID) *traced {
	g, ok := t.groups[id]
	if !ok {
		g = &traced{policy: Default(), event: -1, sessions: make(map[string]uint64)}
		t.groups[id] = g
	}
	return g
}

// Events is what happened, in the order of the log.
func (t *Tracer) Events() []TraceEvent {
	es := make([]TraceEvent, 0, len(t.events))
	for _, e := range t.events {
		if e.What != "" {
			es = append(es, e)
		}
	}
	return es
}

func (t *Tracer) add(at partition.Index, h header, g *traced, what, detail string) {
	t.events = append(t.events, TraceEvent{
		Time: g.clock, Index: at, Group: h.group, What: what, Member: g.member, Attempt: g.attempts, Detail: detail,
	})
}

// Command reads one command.
func (t *Tracer) Command(at partition.Index, cmd []byte) error {
	r := reader{b: cmd}
	h := r.header()
	if r.bad != "" {
		return &ErrCommand{Why: r.bad}
	}
	g := t.group(h.group)
	if h.kind != cmdCreate || g.clock == 0 {
		g.clock = max(g.clock, h.now)
	}
	switch h.kind {
	case cmdCreate:
		r.string()
		r.uvarint()
		g.paused = r.bool()
		g.policy = r.policy()
	case cmdPolicy:
		g.policy = r.policy()
	case cmdPause:
		g.paused = r.bool()
	case cmdReset:
		t.reset(at, h, g, partition.Offset(r.uvarint()))
	case cmdSessions, cmdLeave:
		name, below := r.string(), r.uvarint()
		g.sessions[name] = max(g.sessions[name], below)
		if g.out && g.member == name && g.session < below {
			if h.kind == cmdSessions {
				t.failed(at, h, g, "session-lost", "", 0, false)
			} else {
				t.released(at, h, g, "the member left")
			}
		}
	case cmdPlan:
		t.plan(at, h, g, &r)
	case cmdSettle:
		s := r.settlements()
		for range s.n {
			k, a, delay, reason := s.next()
			if r.bad == "" && k.Offset == t.offset && g.out && k.Ordinal == g.ordinal {
				t.settle(at, h, g, a, delay, string(reason))
			}
		}
	case cmdLapse:
		r.uvarint()
		for range r.count(2) {
			o := partition.Offset(r.uvarint())
			r.uvarint()
			if o == t.offset && g.out && g.clock >= g.until {
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
			if o != t.offset || !g.dead {
				continue
			}
			g.dead, g.member = false, ""
			if h.kind == cmdReplay {
				t.add(at, h, g, "replayed", "")
				g.attempts, g.replayed = 0, true
			} else {
				t.add(at, h, g, "discarded", "")
				g.settled = true
			}
		}
	default:
		return nil
	}
	if r.bad != "" {
		return &ErrCommand{Why: r.bad}
	}
	return nil
}

func (t *Tracer) reset(at partition.Index, h header, g *traced, to partition.Offset) {
	g.epoch++
	switch {
	case g.dead:
		// What is dead stays dead.
	case g.replayed:
		g.member, g.out = "", false
		g.dead, g.replayed = true, false
		t.add(at, h, g, "reset", "before it was handled: the message is a dead letter again")
	case to <= t.offset:
		if g.scanned {
			g.member = ""
			t.add(at, h, g, "reset", fmt.Sprintf("to offset %d: the message is delivered again", to))
		}
		g.scanned, g.settled, g.dead, g.out, g.attempts, g.ordinal = false, false, false, false, 0, 0
	case !g.settled && !g.dead:
		g.member = ""
		t.add(at, h, g, "reset", fmt.Sprintf("to offset %d: the message was skipped", to))
		g.scanned, g.settled, g.out = true, true, false
	}
}

// plan looks for the message in a plan.
func (t *Tracer) plan(at partition.Index, h header, g *traced, r *reader) {
	epoch, _ := r.uvarint(), r.uvarint()
	if !g.known {
		// The first plan seen tells the epoch of what came before.
		g.known, g.epoch = true, max(g.epoch, epoch)
	}
	n := r.count(10)
	who := make([]planMember, n)
	for i := range who {
		who[i] = planMember{r.string(), r.uvarint(), r.fixed64()}
	}
	void := epoch != g.epoch || g.paused
	hand := func(w uint64) {
		if r.bad != "" || w >= uint64(n) || void || who[w].session < g.sessions[who[w].name] {
			return
		}
		if g.out {
			// The one before was void: nobody plans what is out.
			g.attempts--
			g.ordinal--
			t.events[g.event].What = ""
		}
		g.attempts++
		g.ordinal++
		g.member, g.session = who[w].name, who[w].session
		g.handed, g.until = g.clock, g.clock+g.policy.AckDeadline
		g.out, g.scanned = true, true
		g.event = len(t.events)
		if g.policy.AtMostOnce {
			t.add(at, h, g, "handed-out", "at most once")
			g.out, g.settled, g.replayed = false, true, false
			return
		}
		t.add(at, h, g, "handed-out", fmt.Sprintf("for %d ms", g.until-g.clock))
	}
	for range r.count(2) {
		o, w := partition.Offset(r.uvarint()), r.uvarint()
		if o == t.offset && !g.settled && !g.dead {
			hand(w)
		}
	}
	o := partition.Offset(r.uvarint())
	for range r.count(10) {
		r.fixed64()
		r.uvarint()
		if w := r.uvarint(); o == t.offset && !g.settled && !g.dead {
			if w > 0 {
				hand(w - 1)
			}
			g.scanned = g.scanned || !void
		}
		o++
	}
}

func (t *Tracer) settle(at partition.Index, h header, g *traced, a Action, delay partition.Millis, reason string) {
	switch a {
	case Ack:
		t.add(at, h, g, "acked", "")
		g.out, g.settled, g.replayed = false, true, false
	case Nack:
		t.failed(at, h, g, "nacked", reason, delay, false)
	case Reject:
		t.failed(at, h, g, "rejected", reason, 0, true)
	case Extend:
		if delay == 0 {
			delay = g.policy.AckDeadline
		}
		g.until = min(g.clock+delay, g.handed+g.policy.MaxHold)
		t.add(at, h, g, "extended", fmt.Sprintf("for %d ms from now", g.until-g.clock))
	case Release:
		t.released(at, h, g, "")
	}
}

func (t *Tracer) released(at partition.Index, h header, g *traced, why string) {
	t.add(at, h, g, "released", why)
	g.out = false
	g.attempts--
}

func (t *Tracer) failed(at partition.Index, h header, g *traced, what, reason string, delay partition.Millis, last bool) {
	g.out = false
	if last || g.policy.MaxAttempts > 0 && g.attempts >= g.policy.MaxAttempts {
		t.add(at, h, g, what, reason)
		t.add(at, h, g, "dead-lettered", reason)
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
	t.add(at, h, g, what, detail)
}

// Settle compares with the present state: a hand-out at the end of which the
// state knows nothing was void.
func (t *Tracer) Settle(id GroupID, out bool) {
	if g, ok := t.groups[id]; ok && g.out && !out {
		t.events[g.event].What = ""
	}
}
