package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/strandmq/strandmq/partition"
)

func stackOf() string { return string(debug.Stack()) }

// twinSeen is what the machine says of one message.
type twinSeen struct {
	unsettled bool
	at        standing
	e         entry
	member    string
	dead      bool
	replaying bool
}

func (s twinSeen) String() string {
	if !s.unsettled {
		return fmt.Sprintf("dead %v replaying %v", s.dead, s.replaying)
	}
	return fmt.Sprintf("standing %d, hand-out %d to %s/%d, attempts %d, ordinal %d, until %d, dead %v replaying %v",
		s.at, s.e.handOut, s.member, s.e.session, s.e.attempts, s.e.ordinal, s.e.until, s.dead, s.replaying)
}

func (w *twinWorld) see(g *group, m *twinMsg) twinSeen {
	var s twinSeen
	o := m.off
	if e, at, ok := g.lookup(o, m.key, -1); ok {
		s.unsettled, s.e, s.at = true, e, at
		if s.e.member != none {
			s.member = g.members[s.e.member].name
		}
	}
	row, ok, err := g.rows.dead(o)
	if err != nil {
		w.fail("dead row of %d: %v", o, err)
	}
	s.dead, s.replaying = ok, row.replaying
	return s
}

// observe compares every message of every group with its twin. After the
// leader's own commands it first takes over what they were free to choose:
// scanning, lapses that are due, legal hand-outs.
func (w *twinWorld) observe(from string) {
	for _, g := range w.groups {
		if w.fault == nil {
			w.observeGroup(g, from)
		}
	}
}

func (w *twinWorld) observeGroup(tg *twinGroup, from string) {
	g, tw := w.app.group(tg.id), tg.tw
	if (g == nil) != tg.gone {
		w.fail("%v: there is %v, deleted %v", tg.id, g != nil, tg.gone)
	}
	if g == nil || tg.gone {
		return
	}
	free := from == "drive"
	if g.clock < tw.clock || g.clock > twinStart+w.passed {
		w.fail("%v: the group's clock went from %d to %d, and it is %d", tg.id, tw.clock, g.clock, twinStart+w.passed)
	}
	tw.clock = g.clock
	end := partition.Offset(len(w.msgs))
	switch {
	case g.scanned < tw.scanned || g.scanned > end:
		w.fail("%v: scanned went from %d to %d of %d", tg.id, tw.scanned, g.scanned, end)
	case g.scanned != tw.scanned && !free:
		w.fail("%v: scanned went from %d to %d by a command from %s", tg.id, tw.scanned, g.scanned, from)
	case g.start != tw.start || g.epoch != tw.epoch || g.paused != tw.paused || g.policy != tw.pol:
		w.fail("%v: start %d epoch %d paused %v policy %+v; the twin has %d %d %v %+v", tg.id, g.start, g.epoch, g.paused, g.policy, tw.start, tw.epoch, tw.paused, tw.pol)
	}
	grown, before := g.scanned > tw.scanned, tw.waiting()
	tw.scanned = g.scanned
	if w.fault != nil {
		return
	}
	if free {
		w.takeOver(tg, g)
	}
	for _, m := range tw.msgs {
		if w.fault == nil {
			w.compare(tg, m, w.see(g, m))
		}
	}
	if grown {
		// Replayed messages have room of their own, which the machine gives up
		// while they are out: so the bound holds with as many added.
		if n := tw.waiting() - tw.replayingOf(Selector{All: true}); n > max(before, int(tw.pol.MaxDeferred)) {
			w.fail("%v: %d messages wait, at most %d may", tg.id, n, tw.pol.MaxDeferred)
		}
	}
	if w.fault == nil {
		w.judgeCircuit(tg, g)
	}
	if o := g.outcomes; w.fault == nil && o.nacked+o.rejected+o.lapsed+o.lost != g.retried {
		w.fail("%v: %d attempts failed, and by how they ended %+v did", tg.id, g.retried, o)
	}
	if w.fault == nil && (g.handedOut != tw.handed || g.retried != tw.failed) {
		w.fail("%v: handed out %d and retried %d; the twin has %d and %d", tg.id, g.handedOut, g.retried, tw.handed, tw.failed)
	}
}

// takeOver follows the machine where it was free, and judges each step.
func (w *twinWorld) takeOver(tg *twinGroup, g *group) {
	tw := tg.tw
	type given struct {
		m *twinMsg
		s twinSeen
	}
	var out []given
	for _, m := range tw.msgs {
		s := w.see(g, m)
		if o := m.current(); o != nil && (!s.unsettled || s.at != inFlight || s.e.handOut != o.num) {
			w.fail("I26: %v: hand-out %d of %d ended at %d by no command, its deadline is %d (%v)", tg.id, o.num, m.off, tw.clock, o.deadline, s)
			return
		}
		if m.unsettled() && m.phase != tOut && m.off < tw.scanned {
			switch {
			case s.unsettled && s.at == inFlight:
				out = append(out, given{m, s})
			case !s.unsettled && !s.dead && tw.pol.AtMostOnce && m.off >= tw.start:
				out = append(out, given{m, s})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b given) int { return int(a.s.e.handOut) - int(b.s.e.handOut) })
	for _, x := range out {
		m, s := x.m, x.s
		member, session := s.member, s.e.session
		if tw.pol.AtMostOnce {
			// Nothing is kept of it: to whom it went is seen when a call returns.
			if err := tw.mayHandOut(m, "", 1<<62); err != nil {
				w.fail("%v: %d was handed out (at most once) and must not be: %v", tg.id, m.off, err)
				return
			}
			tw.handOut(m, 0, "", 0)
			continue
		}
		if err := tw.mayHandOut(m, member, session); err != nil {
			w.fail("%v: %d was handed out to %s/%d and must not be: %v", tg.id, m.off, member, session, err)
			return
		}
		if s.e.handOut <= tw.last {
			w.fail("%v: hand-out %d of %d is not above the last, %d", tg.id, s.e.handOut, m.off, tw.last)
			return
		}
		tw.handOut(m, s.e.handOut, member, session).request = s.e.request
	}
	if n := uint64(len(out)); tw.pol.AtMostOnce {
		tw.last = max(tw.last, g.handOuts)
		_ = n
	}
}

// judgeWait learns a wait after a failure and judges its length.
func (w *twinWorld) judgeWait(tg *twinGroup, m *twinMsg, s twinSeen, delay partition.Millis) {
	lo, hi := tg.tw.backoffBounds(m.tried)
	if delay > 0 {
		lo, hi = delay, delay
	}
	wait := s.e.until - tg.tw.clock
	if wait < lo || wait > hi {
		w.fail("I26: %v: %d waits %d ms after attempt %d, the policy says %d to %d", tg.id, m.off, wait, m.tried, lo, hi)
	}
	m.notBefore = s.e.until
}

// compare holds one message against what the machine says of it.
func (w *twinWorld) compare(tg *twinGroup, m *twinMsg, s twinSeen) {
	tw := tg.tw
	bad := func(why string) {
		w.fail("%v: message %d (key %s) is %v in the twin (attempts %d, replaying %v), and the machine says: %v: %s",
			tg.id, m.off, m.name, m.phase, m.attempts, m.replaying, s, why)
	}
	if m.replaying != (s.dead && s.replaying) {
		bad("replaying")
		return
	}
	if !m.replaying && (m.phase == tDead) != s.dead {
		bad("I24: dead or not")
		return
	}
	known := m.unsettled() && m.off < tw.scanned && m.off >= tw.start
	if known != s.unsettled {
		bad("settled or not")
		return
	}
	if !known {
		return
	}
	e := s.e
	switch {
	case e.attempts != m.attempts:
		bad("I21: attempts")
	case e.keyHash != m.key || int(e.size) != m.size:
		bad("key or size")
	case e.firstSeen != m.firstSeen:
		bad(fmt.Sprintf("first seen %d, the twin says %d", e.firstSeen, m.firstSeen))
	}
	switch m.phase {
	case tOut:
		o := m.current()
		if s.at != inFlight || e.handOut != o.num || s.member != o.member || e.session != o.session ||
			e.ordinal != o.ordinal || e.until != o.deadline || e.handedAt != o.at {
			bad(fmt.Sprintf("the hand-out is %+v", *o))
		}
	case tBackoff:
		if s.at != failed {
			bad("waits after a failure")
		} else if m.notBefore == waitUnknown {
			w.judgeWait(tg, m, s, 0)
		} else if e.until != m.notBefore && max(e.until, m.notBefore) > tw.clock { // when what is over ended is no matter
			bad(fmt.Sprintf("not before %d", m.notBefore))
		}
	case tFresh:
		if s.at != ready && s.at != deferred && s.at != parked {
			bad("waits")
		}
	}
}

// judgeCalls looks at every call that returned.
func (w *twinWorld) judgeCalls() {
	w.mu.Lock()
	var back []*twinCall
	for _, c := range w.calls {
		if c.done && !c.judged {
			c.judged = true
			back = append(back, c)
		}
	}
	w.mu.Unlock()
	for _, c := range back {
		if w.fault == nil {
			w.judgeCall(c)
		}
	}
}

func (w *twinWorld) judgeCall(c *twinCall) {
	tg, tw := c.g, c.g.tw
	name := fmt.Sprintf("%v: receive %d of %s/%d %q", tg.id, c.n, c.req.Member, c.req.Session, c.req.RequestID)
	tg.note("receive %d: %s err %v idle %v", c.n, deliveriesText(c.out), c.err, c.idle != "")
	if c.err != nil {
		var ended *ErrSessionEnded
		var unknown *ErrUnknownGroup
		var twice *ErrSuperseded
		switch {
		case c.dropped:
		case errors.As(c.err, &ended) && tw.sessionOver(c.req.Member, c.req.Session):
		case errors.As(c.err, &unknown) && tg.gone:
		case errors.As(c.err, &twice) && w.askedTwice(c):
			// Which of two calls of one request is sent away depends on which of
			// them came to its demand first.
		default:
			w.fail("%s: %v", name, c.err)
		}
		return
	}
	if len(c.out) == 0 && c.idle == "" {
		w.fail("%s: nothing, and no reason", name)
	}
	if len(c.out) > c.req.Max {
		w.fail("%s: %d deliveries, asked for %d", name, len(c.out), c.req.Max)
	}
	size, fresh, old := 0, false, false
	got := map[uint64]bool{}
	for i, d := range c.out {
		if i > 0 && c.out[i-1].Message.Offset >= d.Message.Offset {
			w.fail("%s: offsets %d and %d are not in order", name, c.out[i-1].Message.Offset, d.Message.Offset)
		}
		o := w.judgeDelivery(c, name, d)
		if o == nil {
			return
		}
		m := tw.msgs[d.Token.Offset]
		size += m.size
		if id := c.req.RequestID; id != "" && o.request != requestTag(id) && o.request != 0 {
			w.fail("%s: hand-out %d of %d is another request's", name, o.num, m.off)
		}
		fresh, old = fresh || o.num > c.coming, old || o.num <= c.begun
		got[o.num] = true
		o.given = true
		tg.tokens = append(tg.tokens, d.Token)
	}
	if limit := c.req.MaxBytes; limit > 0 && len(c.out) > 1 && size > limit {
		w.fail("%s: %d bytes, asked for %d", name, size, limit)
	}
	if c.req.RequestID != "" && fresh && old {
		w.fail("%s: P8: a retry was given new deliveries beside those that it had: %s", name, deliveriesText(c.out))
	}
	// P8: what the session holds comes before anything new; and a retried
	// request has again what it had.
	for _, m := range tw.msgs {
		o := m.current()
		if o == nil || got[o.num] || o.num > c.begun || o.member != c.req.Member || o.session != c.req.Session {
			continue
		}
		if c.req.RequestID == "" && fresh {
			w.fail("%s: P8: new deliveries, while %d is outstanding and was left out", name, m.off)
		}
		if c.req.RequestID != "" && slices.Contains(tg.requests[c.requestKey()], o.num) && len(c.out) < c.req.Max && c.req.MaxBytes == 0 {
			w.fail("%s: the request is a retry, and hand-out %d of %d, which it had, was left out", name, o.num, m.off)
		}
	}
	for n := range got {
		if !slices.Contains(tg.requests[c.requestKey()], n) {
			tg.requests[c.requestKey()] = append(tg.requests[c.requestKey()], n)
		}
	}
}

// judgeDelivery holds one delivery against the hand-out that it is of.
func (w *twinWorld) judgeDelivery(c *twinCall, name string, d Delivery) *twinOut {
	tw := c.g.tw
	if int(d.Token.Offset) >= len(tw.msgs) || d.Token.Offset != d.Message.Offset {
		w.fail("%s: token of %d for message %d", name, d.Token.Offset, d.Message.Offset)
		return nil
	}
	m := tw.msgs[d.Token.Offset]
	o := m.find(d.Token.HandOut)
	if o == nil {
		// At most once: who got it is known only now, which may be after a reset.
		if o = m.unnamed(d.Token.Epoch, d.Token.Ordinal); o != nil {
			if other := tw.outOf(d.Token.HandOut); other != nil {
				w.fail("%s: hand-out %d of %d is of %d, too", name, d.Token.HandOut, m.off, other.off)
			}
			o.num, o.member, o.session = d.Token.HandOut, c.req.Member, c.req.Session
		}
	}
	switch {
	case o == nil:
		w.fail("%s: P5: hand-out %d of %d was not applied", name, d.Token.HandOut, m.off)
		return nil
	case o.ended != "" && o.over < c.step && !(o.ended == "ack" && tw.pol.AtMostOnce):
		w.fail("%s: hand-out %d of %d had ended (%s) when it was given", name, o.num, m.off, o.ended)
	case o.member != c.req.Member || o.session != c.req.Session:
		w.fail("%s: hand-out %d of %d is %s/%d's", name, o.num, m.off, o.member, o.session)
	case d.Attempt != o.attempt || d.Token.Ordinal != o.ordinal || d.Token.Epoch != o.epoch ||
		(d.Deadline > o.deadline || d.Deadline < o.deadline-w.back) && o.moved < c.step ||
		d.FirstSeen != o.first || d.Replayed != o.replayed || d.Fence != o.num:
		w.fail("%s: delivery %+v is of %+v", name, d, *o)
	case d.Token.Partition != twinPart || d.Token.Group != c.g.id || !w.shell.seal.made(d.Token):
		w.fail("%s: token %+v", name, d.Token)
	case !bytes.Equal(d.Message.Record.Body, w.msgs[m.off].Record.Body) || string(d.Message.Record.Key) != m.name:
		w.fail("%s: message %d is another", name, m.off)
	case o.num > c.coming && tw.ruled < c.step && !tw.shareHas(c.req.Shares[0], m):
		w.fail("%s: new delivery %d is not of its share", name, m.off)
	}
	return o
}

func (w *twinWorld) askedTwice(c *twinCall) bool {
	for _, o := range w.calls {
		if o != c && o.g == c.g && c.req.RequestID != "" && o.requestKey() == c.requestKey() {
			return true
		}
	}
	return false
}

func (c *twinCall) requestKey() string {
	return fmt.Sprintf("%s/%d/%s", c.req.Member, c.req.Session, c.req.RequestID)
}

func deliveriesText(ds []Delivery) string {
	var b strings.Builder
	for _, d := range ds {
		fmt.Fprintf(&b, "[%d attempt %d of %d until %d] ", d.Message.Offset, d.Attempt, d.Token.HandOut, d.Deadline)
	}
	return b.String()
}

func (g *twinGroup) note(format string, args ...any) {
	g.lines = append(g.lines, fmt.Sprintf(format, args...))
}

// judgeRest looks for work that should have been done: the machine had its turn
// at this moment and said that there is nothing.
func (w *twinWorld) judgeRest() {
	for _, tg := range w.groups {
		if w.fault != nil || tg.gone {
			continue
		}
		tw := tg.tw
		clock := tw.clock
		now := w.time(tg)
		tw.clock = now // only to judge: the group's clock moves by commands
		ahead := now - w.now
		var waiters []twinWaiter
		for _, c := range w.calls {
			if c.g == tg && !w.isDone(c) {
				waiters = append(waiters, twinWaiter{member: c.req.Member, session: c.req.Session, shares: c.req.Shares[0], limit: c.req.Max})
			}
		}
		waiters = append(waiters, w.streamWaiters(tg)...)
		if err := tw.stuck(waiters); err != nil {
			w.fail("stuck: %v: %v", tg.id, err)
		}
		w.judgeProbe(tg, waiters, ahead)
		for _, m := range tw.msgs {
			o := m.current()
			if o != nil {
				if o.deadline <= now {
					w.fail("stuck: %v: %d did not lapse: its deadline was %d, it is %d", tg.id, m.off, o.deadline, now)
				}
				if w.wake == 0 || w.wake > o.deadline-ahead {
					w.fail("stuck: %v: %d lapses at %d, and the next turn is asked for at %d", tg.id, m.off, o.deadline-ahead, w.wake)
				}
				w.judgeFrozen(tg, m, o)
			}
			for _, c := range w.calls {
				if c.g != tg || w.isDone(c) {
					continue
				}
				if o != nil && o.num <= c.begun && o.member == c.req.Member && o.session == c.req.Session &&
					(c.req.RequestID == "" || slices.Contains(tg.requests[c.requestKey()], o.num)) {
					w.fail("P8: %v: receive %d of %s waits, and the session holds %d", tg.id, c.n, c.req.Member, m.off)
				}
			}
			if m.phase == tBackoff && m.notBefore > now && (w.wake == 0 || w.wake > m.notBefore-ahead) {
				// Would anybody get it then?
				tw.clock = m.notBefore
				for _, r := range waiters {
					_, dead, _, _ := tw.holders(m)
					if dead == nil && tw.shareHas(r.shares, m) && tw.mayHandOut(m, r.member, r.session) == nil {
						w.fail("stuck: %v: %d can go out to %s at %d, and the next turn is asked for at %d", tg.id, m.off, r.member, m.notBefore-ahead, w.wake)
					}
				}
				tw.clock = now
			}
		}
		tw.clock = clock
	}
}

// judgeFrozen holds a delivery that is out against the time that truly passed
// while one leader led: whatever clocks say, it lapses. A clock that is ahead makes
// it last a ninth longer. What an earlier leader proposed may have been lost.
func (w *twinWorld) judgeFrozen(tg *twinGroup, m *twinMsg, o *twinOut) {
	if o.seen != o.deadline-o.at || o.changes != w.changes {
		// New, or extended: what it is given counts from here.
		o.seen, o.led, o.back, o.changes = o.deadline-o.at, w.led, w.back, w.changes
	}
	// A step back since the last turn looks as if less time had passed.
	if w.led-o.led > (o.seen+w.back-o.back)*slower/(slower-1)+2 {
		w.fail("I26: %v: %d is out for %d ms under one leader, and was given %d", tg.id, m.off, w.led-o.led, o.seen)
	}
}

// judgeCounts holds what operators see against the twin: I18.
func (w *twinWorld) judgeCounts(tg *twinGroup) {
	if tg.gone {
		return
	}
	tw := tg.tw
	st, err := w.shell.Stats(context.Background(), twinPart, tg.id)
	if err != nil {
		w.fail("stats: %v", err)
		return
	}
	tally := map[string]uint64{}
	for _, m := range tw.msgs {
		for _, g := range w.app.groups {
			s := g.where(m.off, m.key, w.now)
			if g.id != tg.id {
				continue
			}
			tg.note("message %d: %s attempts %d %s", m.off, s.State, s.Attempts, s.Detail)
			may := tw.states(m, w.time(tg))
			if !slices.Contains(may, s.State) {
				w.fail("%v: %d is %q by its state, the twin says %q (scanned %d)", tg.id, m.off, s.State, may, tw.scanned)
				return
			}
			if m.unsettled() && s.Attempts != m.attempts {
				w.fail("%v: %d has %d attempts by its state, the twin says %d", tg.id, m.off, s.Attempts, m.attempts)
			}
			if m.off >= tw.start {
				tally[s.State]++
			}
		}
	}
	c := st.Counts
	got := map[string]uint64{
		"ready": c.Ready, "blocked": c.Blocked, "in-flight": c.InFlight, "backing-off": c.BackingOff, "parked": c.Parked,
		"dead": c.Dead, "acked": c.Acked, "skipped": c.Skipped, "not-scanned": c.NotScanned,
	}
	var sum uint64
	for name, n := range got {
		sum += n
		if tally[name] != n {
			w.fail("I18: %v: %s is %d, and %d messages are", tg.id, name, n, tally[name])
		}
	}
	if end := uint64(len(w.msgs)); sum != end-uint64(tw.start) {
		w.fail("I18: %v: the counts add up to %d of %d: %+v", tg.id, sum, end-uint64(tw.start), c)
	}
	replaying := uint64(0)
	for _, m := range tw.msgs {
		if m.replaying {
			replaying++
		}
	}
	if c.Replaying != replaying || c.HandedOut != tw.handed || c.Retried != tw.failed {
		w.fail("%v: replaying %d handed out %d retried %d; the twin has %d %d %d", tg.id, c.Replaying, c.HandedOut, c.Retried, replaying, tw.handed, tw.failed)
	}
	if st.Oldest != tw.floor() || st.Floor < st.Oldest || st.Scanned != tw.scanned || st.Start != tw.start || st.Epoch != tw.epoch || st.Paused != tw.paused {
		w.fail("%v: floor %d scanned %d start %d epoch %d; the twin has %d %d %d %d", tg.id, st.Oldest, st.Scanned, st.Start, st.Epoch, tw.floor(), tw.scanned, tw.start, tw.epoch)
	}
	holds := map[string]uint64{}
	for _, m := range tw.msgs {
		if o := m.current(); o != nil {
			holds[o.member]++
		}
	}
	for _, h := range st.Members {
		if holds[h.Member] != h.InFlight {
			w.fail("%v: %s holds %d, the twin says %d", tg.id, h.Member, h.InFlight, holds[h.Member])
		}
		delete(holds, h.Member)
	}
	if len(holds) > 0 {
		w.fail("%v: holders %v are not listed", tg.id, holds)
	}
	tg.note("counts %+v", c)
}

// judgeDead holds the list of dead letters against the twin's.
func (w *twinWorld) judgeDead(tg *twinGroup) {
	if tg.gone {
		return
	}
	list, err := w.shell.DeadLetters(context.Background(), twinPart, tg.id, 0, 1000)
	if err != nil {
		w.fail("dead letters: %v", err)
		return
	}
	var want []*twinMsg
	for _, m := range tg.tw.msgs {
		if m.phase == tDead || m.replaying {
			want = append(want, m)
		}
	}
	if len(list) != len(want) {
		w.fail("I24: %v: %d dead letters are listed, the twin has %d", tg.id, len(list), len(want))
		return
	}
	for i, d := range list {
		m := want[i]
		if d.Offset != m.off || d.Replaying != m.replaying || string(d.Message.Record.Key) != m.name || d.KeyHash != m.key {
			w.fail("I24: %v: dead letter %+v, the twin has %d of %s, replaying %v", tg.id, d, m.off, m.name, m.replaying)
			continue
		}
		full, err := w.shell.DeadLetter(context.Background(), twinPart, tg.id, d.Offset)
		if err != nil {
			w.fail("dead letter %d: %v", d.Offset, err)
			continue
		}
		var ended []*twinOut
		for _, o := range m.outs {
			switch o.ended {
			case "nack", "reject", "lapse", "session-lost":
				if o.epoch >= m.since {
					ended = append(ended, o)
				}
			}
		}
		if m.replaying {
			// What failed since the replay is not in the dead letter yet.
			n := 0
			for n < len(ended) && ended[n].num <= m.died {
				n++
			}
			ended = ended[:n]
		}
		ended = ended[max(0, len(ended)-32):]
		if len(full.History) != len(ended) {
			w.fail("I24: %v: dead letter %d has a history of %d, the twin knows %d", tg.id, d.Offset, len(full.History), len(ended))
			continue
		}
		for k, a := range full.History {
			o := ended[k]
			if a.Attempt != o.attempt || a.Member != o.member || a.Outcome != o.ended || a.HandedOut != o.at {
				w.fail("I24: %v: dead letter %d, attempt %+v, the twin has %+v", tg.id, d.Offset, a, *o)
			}
		}
	}
}
