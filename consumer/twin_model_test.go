package consumer

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// The twin is one group in one partition, as slow and as simple as it can be
// made: a slice of messages, each with every hand-out that it ever had. It is
// written from the promises, not from the machine. Where the machine may choose
// (what to scan, whom to serve, which jitter), the twin is told what was chosen
// and judges it; where it may not (results, attempts, tokens, limits), the twin
// says what must come out.
type twin struct {
	id      GroupID
	pol     Policy
	paused  bool
	epoch   uint64
	start   partition.Offset
	scanned partition.Offset // as the machine chose
	clock   partition.Millis
	msgs    []*twinMsg
	last    uint64            // highest hand-out number so far
	over    map[string]uint64 // sessions of a member below this one have ended
	handed  uint64
	failed  uint64
	circuit twinCircuit
	step    int // of the script
	ruled   int // the step of the last change of policy
}

// waitUnknown is the wait after a failure until the machine's choice is seen.
const waitUnknown partition.Millis = -1

// twinPhase is where an unsettled message stands, or how it was settled.
type twinPhase int

const (
	tFresh   twinPhase = iota // not handed out since the start, a release or a replay
	tOut                      // handed out
	tBackoff                  // failed; may go out again from notBefore on
	tAcked
	tSkipped
	tDead
)

var twinPhaseNames = [...]string{"fresh", "out", "backoff", "acked", "skipped", "dead"}

func (p twinPhase) String() string { return twinPhaseNames[p] }

type twinMsg struct {
	off       partition.Offset
	key       uint64 // hash; two keys may share one
	name      string // of the key
	size      int
	phase     twinPhase
	attempts  uint32
	tried     uint32 // attempts when it last failed, that one included
	notBefore partition.Millis
	firstSeen partition.Millis
	replaying bool
	parks     bool       // it died while the group parked, and the group still does
	since     uint64     // epoch that it was last made fresh in by a reset
	died      uint64     // last hand-out when it last died
	outs      []*twinOut // all, of all epochs
}

// twinOut is one hand-out; ended is empty while it is the current one.
type twinOut struct {
	num      uint64
	ordinal  uint32
	epoch    uint64
	member   string
	session  uint64
	attempt  uint32
	at       partition.Millis
	deadline partition.Millis
	first    partition.Millis // when the message was first handed out
	replayed bool
	ended    string           // ack, nack, reject, lapse, session-lost, release, reset
	seen     partition.Millis // judgeFrozen: the time that it had when last looked at,
	led      partition.Millis // when that was
	back     partition.Millis // how far the clock had gone back
	changes  int              // and how many leaders there had been
	over     int              // the step in which it ended
	moved    int              // the step in which it was extended
	killed   bool             // its end made the message a dead letter
	given    bool             // a call was answered with it
	request  uint64           // tag of the request it answered, as the machine says
}

func newTwin(spec GroupSpec, end partition.Offset, now partition.Millis) *twin {
	return &twin{
		id: spec.ID, pol: spec.Policy, paused: spec.Paused,
		start: min(spec.Start, end), scanned: min(spec.Start, end), clock: now,
		over: map[string]uint64{},
	}
}

func (w *twin) tick(now partition.Millis) { w.clock = max(w.clock, now) }

// leap moves the clock, and all that is timed with it.
func (w *twin) leap(now, to partition.Millis) {
	w.tick(now)
	d := to - w.clock
	if d <= 0 {
		return
	}
	for _, m := range w.msgs {
		if o := m.current(); o != nil {
			o.at, o.deadline, o.moved = o.at+d, o.deadline+d, w.step
		}
		if m.phase == tBackoff && m.notBefore > w.clock {
			m.notBefore += d
		}
	}
	w.circuit.until += d
	w.clock = to
}

func (w *twin) publish(key uint64, name string, size int) {
	w.msgs = append(w.msgs, &twinMsg{off: partition.Offset(len(w.msgs)), key: key, name: name, size: size})
}

func (m *twinMsg) current() *twinOut {
	if m.phase != tOut {
		return nil
	}
	return m.outs[len(m.outs)-1]
}

func (m *twinMsg) unsettled() bool {
	return m.phase == tFresh || m.phase == tOut || m.phase == tBackoff
}

func (m *twinMsg) find(num uint64) *twinOut {
	for _, o := range m.outs {
		if o.num == num {
			return o
		}
	}
	return nil
}

// unnamed is a hand-out of which is not known yet what number it has: an
// at-most-once group keeps nothing of it.
func (m *twinMsg) unnamed(epoch uint64, ordinal uint32) *twinOut {
	for _, o := range m.outs {
		if o.num == 0 && o.epoch == epoch && o.ordinal == ordinal {
			return o
		}
	}
	return nil
}

// outOf is the message that has a hand-out of this number.
func (w *twin) outOf(num uint64) *twinMsg {
	for _, m := range w.msgs {
		if m.find(num) != nil {
			return m
		}
	}
	return nil
}

// sameStrand tells whether the group's mode orders the two messages.
func (w *twin) sameStrand(a, b *twinMsg) bool {
	switch w.pol.Mode {
	case ByKey:
		return a.key == b.key
	case ByPartition:
		return true
	default:
		return false
	}
}

// holders is what keeps a message from being handed out: an earlier one that is
// unsettled, an earlier one that is dead and parks, one that is out. A dead one
// from before the group was told to park may park or not: then dead is it and
// sure is false.
func (w *twin) holders(m *twinMsg) (unsettled, dead, out *twinMsg, sure bool) {
	for _, e := range w.msgs {
		if e == m || !w.sameStrand(e, m) || e.off < w.start {
			continue
		}
		switch {
		case e.phase == tOut && out == nil:
			out = e
		case e.off < m.off && e.unsettled() && unsettled == nil:
			unsettled = e
		case e.off < m.off && e.phase == tDead && w.pol.OnExhaustion == Park && !sure:
			dead, sure = e, e.parks
		}
	}
	return unsettled, dead, out, sure
}

func (w *twin) inFlight(member string) (of, all uint32) {
	for _, m := range w.msgs {
		if o := m.current(); o != nil {
			all++
			if o.member == member {
				of++
			}
		}
	}
	return of, all
}

func (w *twin) sessionOver(member string, session uint64) bool {
	return session < w.over[member]
}

// mayHandOut judges a hand-out by P3, P5 and the limits, at the twin's clock.
func (w *twin) mayHandOut(m *twinMsg, member string, session uint64) error {
	if w.paused {
		return fmt.Errorf("the group is paused")
	}
	if m.off < w.start {
		return fmt.Errorf("it lies before the group's start %d", w.start)
	}
	if !m.unsettled() {
		return fmt.Errorf("it is %v", m.phase)
	}
	if m.phase == tOut {
		return fmt.Errorf("it is out already, as hand-out %d", m.current().num)
	}
	if m.phase == tBackoff && m.notBefore > w.clock {
		return fmt.Errorf("it backs off until %d and it is %d", m.notBefore, w.clock)
	}
	unsettled, dead, out, sure := w.holders(m)
	switch {
	case unsettled != nil:
		return fmt.Errorf("P3: %d of its strand, before it, is unsettled (%v)", unsettled.off, unsettled.phase)
	case out != nil:
		return fmt.Errorf("P3: %d of its strand is out", out.off)
	case sure:
		return fmt.Errorf("park: %d of its strand is dead", dead.off)
	}
	if w.sessionOver(member, session) {
		return fmt.Errorf("session %d of %s has ended", session, member)
	}
	if err := w.mayTry(); err != nil {
		return err
	}
	of, all := w.inFlight(member)
	if of >= w.pol.MaxInFlightMember {
		return fmt.Errorf("%s holds %d of at most %d", member, of, w.pol.MaxInFlightMember)
	}
	if all >= w.pol.MaxInFlightPartition {
		return fmt.Errorf("%d of at most %d are out", all, w.pol.MaxInFlightPartition)
	}
	return nil
}

// handOut takes a legal hand-out over and says what it must look like.
func (w *twin) handOut(m *twinMsg, num uint64, member string, session uint64) *twinOut {
	m.attempts++
	w.handed++
	w.last = num
	ordinal := uint32(1)
	for _, o := range m.outs {
		if o.epoch >= m.since {
			ordinal++
		}
	}
	if m.firstSeen == 0 {
		m.firstSeen = w.clock
	}
	o := &twinOut{
		num: num, ordinal: ordinal, epoch: w.epoch, member: member, session: session,
		attempt: m.attempts, at: w.clock, deadline: w.clock + w.pol.AckDeadline, first: m.firstSeen, replayed: m.replaying,
	}
	m.outs = append(m.outs, o)
	m.phase = tOut
	if w.circuit.open {
		w.circuit.probe = o
	}
	if w.pol.AtMostOnce {
		w.end(o, "ack")
		m.phase, m.replaying = tAcked, false
	}
	return o
}

func (w *twin) end(o *twinOut, how string) { o.ended, o.over = how, w.step }

// fail ends the current hand-out as a charged failure. The wait is the
// machine's choice within the bounds of backoff; see judgeBackoff.
func (w *twin) fail(m *twinMsg, how string) (dead bool) {
	o := m.current()
	w.end(o, how)
	w.failed++
	charged := w.broke(m, o)
	if how == "reject" || charged && w.pol.MaxAttempts > 0 && m.attempts >= w.pol.MaxAttempts {
		o.killed = true
		w.die(m)
		return true
	}
	m.phase, m.notBefore, m.tried = tBackoff, waitUnknown, m.attempts
	if !charged {
		m.attempts--
	}
	return false
}

func (w *twin) die(m *twinMsg) {
	m.phase, m.replaying = tDead, false
	m.died = w.last
	m.parks = w.pol.OnExhaustion == Park && w.pol.Mode != NoOrder
}

// setPolicy changes the rules for what is to come.
func (w *twin) setPolicy(p Policy) {
	a, b := w.pol, p
	if a.BreakerPercent != b.BreakerPercent || a.BreakerKeys != b.BreakerKeys || a.BreakerWindow != b.BreakerWindow || a.AtMostOnce != b.AtMostOnce {
		w.circuit = twinCircuit{opened: w.circuit.opened}
	}
	w.pol, w.ruled = p, w.step
	if p.OnExhaustion != Park || p.Mode == NoOrder {
		for _, m := range w.msgs {
			m.parks = false
		}
	}
}

// backoffBounds is the shortest and longest wait after the message's attempts.
func (w *twin) backoffBounds(attempts uint32) (lo, hi partition.Millis) {
	lo = w.pol.Backoff
	for range attempts - 1 {
		if lo *= 2; lo >= w.pol.BackoffMax {
			break
		}
	}
	lo = min(lo, w.pol.BackoffMax)
	return lo, min(lo+lo/4, w.pol.BackoffMax)
}

// release ends the current hand-out uncharged.
func (w *twin) release(m *twinMsg, how string) {
	o := m.current()
	w.end(o, how)
	w.gaveBack(o)
	m.attempts--
	m.phase, m.notBefore = tFresh, 0
}

// verdict is what a settlement must come to.
type verdict struct {
	ok       bool
	either   bool // success and stale are both right; nothing may change
	held     bool // *ErrHeldTooLong
	dead     bool
	deadline partition.Millis // extend
	changed  bool
}

// settle judges and takes over one settlement by a token that the cluster made.
func (w *twin) settle(t Token, a Action, delay partition.Millis) verdict {
	if int(t.Offset) >= len(w.msgs) {
		return verdict{}
	}
	m := w.msgs[t.Offset]
	o := m.find(t.HandOut)
	if o == nil || o.epoch != t.Epoch || o.ordinal != t.Ordinal {
		return verdict{}
	}
	if o != m.current() {
		return w.settleAgain(m, o, a)
	}
	switch a {
	case Ack:
		w.end(o, "ack")
		w.succeeded(m, o)
		m.phase, m.replaying = tAcked, false
		return verdict{ok: true, changed: true}
	case Nack:
		dead := w.fail(m, "nack")
		if !dead && delay > 0 {
			m.notBefore = w.clock + delay
		}
		return verdict{ok: true, dead: dead, changed: true}
	case Reject:
		return verdict{ok: true, dead: w.fail(m, "reject"), changed: true}
	case Release:
		w.release(m, "release")
		return verdict{ok: true, changed: true}
	default:
		if delay == 0 {
			delay = w.pol.AckDeadline
		}
		limit := o.at + w.pol.MaxHold
		until := w.clock + delay
		if until > limit && (o.deadline >= limit || w.clock >= limit) {
			return verdict{held: true}
		}
		until = min(until, limit)
		o.deadline, o.moved = until, w.step
		return verdict{ok: true, deadline: until, changed: true}
	}
}

// ended tells whether a token's delivery has ended.
func (w *twin) ended(t Token) bool {
	o := w.msgs[t.Offset].find(t.HandOut)
	return o != nil && o != w.msgs[t.Offset].current()
}

// settleAgain judges a token whose delivery has ended. Nothing may change.
func (w *twin) settleAgain(m *twinMsg, o *twinOut, a Action) verdict {
	last := m.outs[len(m.outs)-1] == o
	switch {
	case o.epoch != w.epoch:
		// The epoch is over. Below the reset's target an ack that settled
		// still stands, so its repeat may be told so.
		return verdict{either: a == Ack && o.ended == "ack"}
	case a == Ack && o.ended == "ack":
		return verdict{ok: true}
	case a == Nack && o.ended == "nack":
		if last && (m.phase == tBackoff || m.phase == tDead) {
			return verdict{ok: true, dead: o.killed}
		}
		return verdict{either: true, dead: o.killed}
	case a == Reject && o.ended == "reject":
		if last && m.phase == tDead {
			return verdict{ok: true, dead: true}
		}
		return verdict{either: true, dead: true}
	case a == Release && o.ended == "release":
		return verdict{either: true}
	default:
		return verdict{}
	}
}

// endSessions ends a member's sessions below one, charged.
func (w *twin) endSessions(member string, before uint64) (failed []*twinMsg) {
	w.over[member] = max(w.over[member], before)
	var held []*twinMsg
	for _, m := range w.msgs {
		if o := m.current(); o != nil && o.member == member && o.session < before {
			held = append(held, m)
		}
	}
	// One after the other, as they were handed out: one of them can open the
	// circuit for those behind it.
	slices.SortFunc(held, func(a, b *twinMsg) int { return cmp.Compare(a.current().num, b.current().num) })
	for _, m := range held {
		if !w.fail(m, "session-lost") {
			failed = append(failed, m)
		}
	}
	return failed
}

// leave ends a session and what was before it, uncharged.
func (w *twin) leave(member string, session uint64) {
	w.over[member] = max(w.over[member], session+1)
	for _, m := range w.msgs {
		if o := m.current(); o != nil && o.member == member && o.session <= session {
			w.release(m, "release")
		}
	}
}

// reset moves the group. It returns the floor before.
func (w *twin) reset(to partition.Offset) partition.Offset {
	floor := w.floor()
	end := partition.Offset(len(w.msgs))
	to = min(to, end)
	w.epoch++
	w.circuit = twinCircuit{opened: w.circuit.opened}
	for _, m := range w.msgs {
		if o := m.current(); o != nil {
			w.end(o, "reset")
		}
		switch {
		case m.phase == tDead:
		case m.replaying:
			// It came out of the dead letters and was not handled: it is one
			// still, wherever the group moves to.
			w.die(m)
		case m.off >= to:
			m.phase, m.attempts, m.notBefore, m.firstSeen = tFresh, 0, 0, 0
			m.since = w.epoch
		case m.unsettled() && m.off >= w.start:
			m.phase = tSkipped
		}
	}
	w.start = min(w.start, to)
	w.scanned = to
	return floor
}

// floor is the first offset that is neither settled nor dead.
func (w *twin) floor() partition.Offset {
	for _, m := range w.msgs {
		if m.off >= w.start && m.unsettled() {
			return m.off
		}
	}
	return partition.Offset(len(w.msgs))
}

func (w *twin) selected(s Selector, m *twinMsg) bool {
	switch {
	case s.All:
		return true
	case s.ByKey:
		return m.key == s.KeyHash && m.name == string(s.Key)
	}
	for _, o := range s.Offsets {
		if o == m.off {
			return true
		}
	}
	return false
}

// replay sets dead letters to be delivered again.
// As many may be on their way as messages may be deferred.
func (w *twin) replay(s Selector) (replayed, already int, limited bool) {
	under := w.replayingOf(Selector{All: true})
	for _, m := range w.msgs {
		switch {
		case !w.selected(s, m):
		case m.replaying:
			already++
		case m.phase != tDead:
		case under >= int(w.pol.MaxDeferred):
			return replayed, already, true
		default:
			replayed++
			under++
			m.phase, m.replaying, m.attempts, m.notBefore = tFresh, true, 0, 0
		}
	}
	return replayed, already, false
}

func (w *twin) replayingOf(s Selector) (n int) {
	for _, m := range w.msgs {
		if m.replaying && w.selected(s, m) {
			n++
		}
	}
	return n
}

// discard gives dead letters up.
func (w *twin) discard(s Selector) (n int) {
	for _, m := range w.msgs {
		if w.selected(s, m) && m.phase == tDead {
			m.phase = tSkipped
			n++
		}
	}
	return n
}

// states is how a message may be named at the twin's clock. It is one name,
// save where the texts leave open which of two reasons is told. What backed off
// stands where it would without by the present time, whatever the log's is.
func (w *twin) states(m *twinMsg, now partition.Millis) []string {
	clock := w.clock
	w.tick(now)
	names := w.statesAt(m)
	w.clock = clock
	return names
}

func (w *twin) statesAt(m *twinMsg) []string {
	if m.off < w.start {
		return []string{"skipped"}
	}
	switch m.phase {
	case tAcked:
		return []string{"acked"}
	case tSkipped:
		return []string{"skipped"}
	case tDead:
		return []string{"dead"}
	case tOut:
		return []string{"in-flight"}
	}
	if m.off >= w.scanned {
		return []string{"not-scanned"}
	}
	unsettled, dead, out, sure := w.holders(m)
	var names []string
	if m.phase == tBackoff && m.notBefore > w.clock {
		return []string{"backing-off"}
	}
	if dead != nil {
		names = append(names, "parked")
	}
	if unsettled != nil || out != nil {
		names = append(names, "blocked")
	}
	if names == nil || !sure && dead != nil {
		names = append(names, "ready")
	}
	return names
}

// shareHas tells whether a message belongs to a share. A group that keeps one
// order over the whole partition cannot be shared by key.
func (w *twin) shareHas(s Share, m *twinMsg) bool {
	if s.HeldOnly {
		return false
	}
	return w.pol.Mode == ByPartition || shareOf(m.key, s.Shares) == s.Share
}

// twinWaiter is a call that waits for a first delivery.
type twinWaiter struct {
	member  string
	session uint64
	shares  Share
	limit   int
}

// stuck names a message that should have been handed out: somebody waits for it
// and nothing stands in its way. The machine has had its turn at the clock.
func (w *twin) stuck(waiters []twinWaiter) error {
	if w.paused {
		return nil
	}
	scan := w.scanned
	for _, m := range w.msgs {
		if m.off < w.start || !m.unsettled() || m.phase == tOut {
			continue
		}
		if m.off >= scan && w.scanMayStop(m) {
			return nil
		}
		for _, r := range waiters {
			if !w.shareHas(r.shares, m) {
				continue
			}
			if _, dead, _, _ := w.holders(m); dead == nil && w.mayHandOut(m, r.member, r.session) == nil {
				return fmt.Errorf("%s of session %d waits for a message and %d could be handed out (scanned %d)", r.member, r.session, m.off, scan)
			}
		}
	}
	return nil
}

// scanMayStop tells whether a limit of deferred messages lets the scan stop
// before a message: everything scanned, unsettled and not out counts.
func (w *twin) scanMayStop(n *twinMsg) bool {
	var all uint32
	for _, m := range w.msgs[:n.off] {
		if m.off >= w.start && m.phase == tDead && w.pol.OnExhaustion == Park {
			all++ // its key is remembered
		}
		if m.off < w.start || !m.unsettled() || m.phase == tOut {
			continue
		}
		all++
	}
	return all >= w.pol.MaxDeferred
}

// unfinished is a message that a member who takes and acks everything should
// not leave behind.
func (w *twin) unfinished() *twinMsg {
	for _, m := range w.msgs {
		if m.off < w.start || !m.unsettled() {
			continue
		}
		if m.off >= w.scanned && w.scanMayStop(m) {
			return nil
		}
		if _, dead, _, _ := w.holders(m); dead == nil {
			return m
		}
	}
	return nil
}

// waiting counts what was scanned and waits; what is replayed has room of its
// own.
func (w *twin) waiting() (n int) {
	for _, m := range w.msgs {
		if m.off >= w.start && m.off < w.scanned && !m.replaying && (m.phase == tFresh || m.phase == tBackoff) {
			n++
		}
	}
	return n
}
