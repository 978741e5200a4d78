package consumer

import (
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// taker is one call of one member for work, over all the partitions that it
// asks. Its credit is shared between them, so that no more is ever handed out
// than it asked for. Calls come from the goroutine of an App and must not block.
type taker interface {
	// Room tells whether it can take something now, and whether it ever will
	// again.
	Room() (now, open bool)
	// Reserve reserves one delivery of a size in bytes.
	Reserve(size int) bool
	// Return returns reservations that came to nothing.
	Return(n, bytes int)
	// Handed brings applied hand-outs, each of which was reserved.
	Handed(p partition.PartitionID, hs []handOut)
	// Ended tells that a partition has nothing more for it, and why.
	Ended(p partition.PartitionID, why error)
}

// sleeper is a taker that tells when it can take something again.
type sleeper interface {
	// Sleep tells that the waiter is not looked at until an awake event names it.
	// It is false if the taker has room after all.
	Sleep(w *waiter) bool
}

// demand is the event by which a member asks a partition for work.
type demand struct {
	Group   GroupID
	Member  string
	Session uint64
	Request uint64 // tag of the request id; 0: none
	Call    uint64 // of two calls of one request, the later has the higher number
	Share   uint32
	Shares  uint32
	Taker   taker
	Sleeper sleeper // the taker, if it is one; else nil
	// Tried, if not nil, is called once when all that was there when the demand
	// came has been planned: what the taker has no reservation for by then is
	// not to be had now.
	Tried func()
}

// Unheard implements partition.Unheard: nothing is to be had there.
func (d demand) Unheard(err error) {
	if d.Tried != nil {
		d.Tried()
	}
	if d.Sleeper != nil {
		d.Taker.Ended(0, err)
	}
}

// awake is the event by which a sleeper's waiter is looked at again.
type awake struct{ w *waiter }

// Unheard implements partition.Unheard.
func (a awake) Unheard(err error) { a.w.Taker.Ended(0, err) }

// withdrawal is the event that sends a demand's waiter away: its taker is not
// open any more.
type withdrawal struct {
	Group GroupID
	Taker taker
}

// hand is what acts for a group where its partition is led: who waits for work,
// what can be handed out, what was proposed. All of it is in memory only, and
// none of it decides: a hand that is wrong wastes a proposal.
type hand struct {
	g       *group
	waiters []*waiter
	lanes   []lane // by share of keys
	timers  heap   // by the group's time
	pace    pace
	open    []*openPlan // proposed and not applied yet, in order
	lastID  uint64
	out     []handed

	reserved table            // keys of messages that are planned to be handed out
	next     partition.Offset // first message that no plan has looked at
	planned  int              // hand-outs in open plans
	pending  int              // messages in open plans that will wait
	untried  int              // waiters that have to be told that all was tried
	stint    int              // how many neighbours one waiter gets in its turn
	waking   partition.Millis // when it was proposed to bring something back from disk, as the pace's passed; 0: nothing is on its way
	behind   bool             // a plan was void in part: look again at what follows
	writer   *planWriter      // of the App
	stirred  bool             // among the App's
	fresh    []*waiter        // came since the last turn
	noted    partition.Millis // when all waiters were last asked whether they wait
	lapses   []lapse
	queries  []query // wait for what is on its way to their sessions

	unread   *partition.ErrUnreadable // what the last look at the log met
	unreadAt partition.Millis         // and when, by the leader's own clock
}

// coming tells whether something is on its way to the session, and request, of
// a query: proposed and not applied yet. An answer before that would not have
// it, and nobody would ask for it again.
func (h *hand) coming(q query) bool {
	for _, p := range h.open {
		for i, w := range p.waiters {
			if p.taken[i].n > 0 && w.Member == q.Member && w.Session == q.Session && (q.Request == 0 || w.Request == q.Request) {
				return true
			}
		}
	}
	return false
}

// answer answers the queries for which nothing is on its way any more.
func (h *hand) answer() {
	kept := h.queries[:0]
	for _, q := range h.queries {
		if h.coming(q) {
			kept = append(kept, q)
			continue
		}
		q.Done(h.g.part, h.g.holding(q))
	}
	clear(h.queries[len(kept):])
	h.queries = kept
}

// lane is one share of a partition's keys: what of it can go, and who gets it.
type lane struct {
	ready  heap
	queue  []*waiter
	cursor int  // whose turn it is in the queue
	stint  int  // so many of its turn it got
	dry    bool // nobody can take more in this turn
}

// waiter is a demand and what is planned for it.
type waiter struct {
	demand
	tried bool
	slot  int32 // its member, if the name there still fits
	plan  uint64
	index int     // in that plan's table
	gone  bool    // wants no more
	rests bool    // its taker sleeps: it is in no lane
	heir  *waiter // the same request, asked again
}

// openPlan is a plan on its way through the log.
type openPlan struct {
	id      uint64
	at      partition.Millis // when it was proposed, as the pace's passed
	end     partition.Offset // where its scan ends
	pending int
	waiters []*waiter
	taken   []credit
	got     [][]handOut
	again   []partition.Offset // what it would hand out that was scanned before
}

type credit struct{ n, bytes int }

// handed is what an applied plan gave to a waiter.
type handed struct {
	to *waiter
	hs []handOut
}

func (g *group) lead(writer *planWriter) {
	g.hand = &hand{g: g, writer: writer}
	for i := range g.members {
		g.members[i].asked = 0
	}
	g.hand.rewind()
	g.hand.rebuild()
}

// rests tells whether there is nothing to do until an event comes, or a command is
// applied. What only a busy group needs is let go.
func (h *hand) rests() bool {
	if len(h.open) > 0 || h.waking != 0 || len(h.out) > 0 || len(h.queries) > 0 || h.untried > 0 || h.pace.leapAt != 0 {
		return false
	}
	if h.timed() {
		return false
	}
	const few = 16
	if cap(h.timers.items) > few {
		h.timers.items = nil
	}
	if h.reserved.n == 0 && len(h.reserved.slots) > few {
		h.reserved.slots = nil
	}
	if cap(h.out) > few {
		h.out = nil
	}
	if cap(h.lapses) > few {
		h.lapses = nil
	}
	awake := false
	for i := range h.lanes {
		l := &h.lanes[i]
		awake = awake || len(l.queue) > 0
		if len(l.ready.items) == 0 && cap(l.ready.items) > few {
			l.ready.items = nil
		}
	}
	return !awake
}

// rewind forgets what was planned; what comes of it later is void or found.
func (h *hand) rewind() {
	for _, p := range h.open {
		h.close(p)
	}
	h.open = nil
	h.reserved.clear()
	h.next, h.behind = h.g.scanned, false
	h.unread = nil
	h.planned, h.pending, h.waking = 0, 0, 0
	for i := range h.g.entries {
		h.g.entries[i].planned = false
	}
	for i := range h.g.members {
		h.g.members[i].planned = 0
	}
	h.answer()
}

// rebuild finds what can go, and when the rest can, from the state alone.
func (h *hand) rebuild() {
	for i := range h.lanes {
		h.lanes[i].ready.items = nil
	}
	if len(h.lanes) == 0 || h.g.policy.Mode == ByPartition {
		h.spread(1)
	}
	h.timers.items = nil
	for i := range h.g.entries {
		e := &h.g.entries[i]
		switch e.at {
		case ready:
			h.pushReady(int32(i))
		case inFlight:
			h.pushTimer(int32(i), e.until)
		case failed:
			h.backOff(int32(i))
		default:
		}
	}
}

// spread divides the keys into n lanes, and the waiters with them.
func (h *hand) spread(n uint32) {
	if h.g.policy.Mode == ByPartition {
		n = 1 // there is one queue; a share of it would be empty
	}
	n = max(1, min(n, 1024))
	old := h.lanes
	h.lanes = make([]lane, n)
	for _, w := range h.waiters {
		if !w.rests {
			h.line(w)
		}
	}
	for i := range old {
		for _, d := range old[i].ready.items {
			if e := &h.g.entries[d.slot]; e.at != vacant && e.offset == d.offset {
				h.laneOf(e).ready.push(d)
			}
		}
	}
}

// line puts a waiter into its lanes: one, or several if it counts fewer shares.
func (h *hand) line(w *waiter) {
	first, end := lanesOf(w.Share, w.Shares, len(h.lanes))
	for i := first; i < end; i++ {
		h.lanes[i].queue = append(h.lanes[i].queue, w)
	}
}

// rest takes a waiter out of its lanes if its taker sleeps.
func (h *hand) rest(w *waiter) bool {
	if w.Sleeper == nil || !w.Sleeper.Sleep(w) {
		return false
	}
	w.rests = true
	h.unline(w)
	return true
}

// unline takes a waiter out of its lanes.
func (h *hand) unline(w *waiter) {
	first, end := lanesOf(w.Share, w.Shares, len(h.lanes))
	for i := first; i < end; i++ {
		l := &h.lanes[i]
		if n := slices.Index(l.queue, w); n >= 0 {
			l.queue = slices.Delete(l.queue, n, n+1)
			if l.cursor > n {
				l.cursor--
			}
		}
	}
}

// awake puts a waiter back whose taker slept.
func (h *hand) awake(w *waiter) {
	if w.rests && !w.gone {
		w.rests = false
		h.line(w)
	}
}

// withdraw lets go whoever waits for a taker.
func (h *hand) withdraw(y taker) {
	i := slices.IndexFunc(h.waiters, func(w *waiter) bool { return w.Taker == y })
	if i < 0 {
		return
	}
	w := h.waiters[i]
	w.gone = true
	h.waiters = slices.Delete(h.waiters, i, i+1)
	h.unline(w)
}

// lanesOf is which of a number of lanes a share stands for: first to before end.
func lanesOf(share, shares uint32, lanes int) (first, end int) {
	n, of := uint64(lanes), uint64(max(shares, 1))
	s := uint64(share) % of
	f, e := s*n/of, ((s+1)*n+of-1)/of
	if of >= n {
		e = f + 1
	}
	return int(f), int(min(e, n))
}

func (h *hand) laneOf(e *entry) *lane { return &h.lanes[shareOf(e.keyHash, uint32(len(h.lanes)))] }

func (h *hand) pushReady(i int32) {
	e := &h.g.entries[i]
	h.laneOf(e).ready.push(due{rank: uint64(e.offset), offset: e.offset, slot: i})
}

func (h *hand) pushTimer(i int32, at partition.Millis) {
	e := &h.g.entries[i]
	h.timers.push(due{rank: uint64(max(at, 0)), until: e.until, offset: e.offset, slot: i})
	h.timers.prune(int(h.g.count[inFlight]+h.g.count[failed]), h.ticks)
}

// backOff waits for the end of a backoff, if it is still to come. What waits no
// more is not timed.
func (h *hand) backOff(i int32) {
	if e := &h.g.entries[i]; e.until > h.g.clock {
		h.pushTimer(i, e.until)
	} else {
		h.pushReady(i)
	}
}

// ticks tells whether a timer is still for what it was set for.
func (h *hand) ticks(d due) bool {
	e := &h.g.entries[d.slot]
	return e.offset == d.offset && e.until == d.until && (e.at == inFlight || e.at == failed)
}

// goes tells whether a ready item still can go.
func (h *hand) goes(d due, now partition.Millis) bool {
	e := &h.g.entries[d.slot]
	if e.offset != d.offset || e.planned {
		return false
	}
	switch e.at {
	case ready:
		return true
	case failed:
		if e.until > now {
			return false
		}
		if e.key == none {
			return true
		}
		k := &h.g.keys[e.key]
		return k.head == d.slot && k.inFlight == 0 && !k.blocked(e.offset)
	default:
		return false
	}
}

// early tells whether a ready item is not due after all: the clock went back
// since its timer fired. It needs a timer again, or nobody would look at it.
func (h *hand) early(d due, now partition.Millis) bool {
	e := &h.g.entries[d.slot]
	return e.offset == d.offset && !e.planned && e.at == failed && e.until > now
}

// What the machine tells the hand, if there is one.

func (g *group) tellReady(i int32) {
	if g.hand != nil {
		g.hand.pushReady(i)
	}
}

func (g *group) tellBackoff(i int32) {
	if g.hand != nil {
		g.hand.backOff(i)
	}
}

func (g *group) tellDeadline(i int32) {
	if g.hand != nil {
		g.hand.pushTimer(i, g.entries[i].until)
	}
}

// demand takes a waiter in.
func (h *hand) demand(d demand) {
	h.g.forgetMembers()
	w := &waiter{demand: d, slot: none}
	for _, o := range h.waiters {
		// A call that slept while it was asked again comes too late.
		if o.gone || !o.same(d) || o.Call <= d.Call {
			continue
		}
		if _, open := o.Taker.Room(); open {
			h.dismiss(w, &ErrSuperseded{})
			return
		}
	}
	if d.Tried != nil {
		h.untried++
	}
	kept := h.waiters[:0]
	var most uint32 = 1
	for _, o := range h.waiters {
		if o.Sleeper == nil { // those tell when they go
			if _, open := o.Taker.Room(); !open {
				o.gone = true
			}
		}
		if !o.gone && o.same(d) {
			// The same call again: its caller gave up on the first one. What is
			// on its way to that one goes to this.
			o.heir = w
			h.dismiss(o, &ErrSuperseded{})
		}
		if o.gone {
			h.unline(o)
		} else {
			kept = append(kept, o)
			most = max(most, o.Shares)
		}
	}
	clear(h.waiters[len(kept):])
	h.waiters = append(kept, w)
	h.fresh = append(h.fresh, w)
	w.slot = h.g.memberOf(w.Member)
	most = max(most, d.Shares)
	if int(most) != len(h.lanes) && h.g.policy.Mode != ByPartition {
		h.spread(most)
		return
	}
	h.line(w)
}

// same tells whether a demand is of the request that a waiter asks for.
func (w *waiter) same(d demand) bool {
	return d.Request != 0 && w.Request == d.Request && w.Session == d.Session && w.Member == d.Member
}

// ErrSuperseded ends a call whose request was asked again with the same id.
type ErrSuperseded struct{}

func (e *ErrSuperseded) Error() string {
	return "the same request was asked again: the later call gets the deliveries"
}

// endSessions sends away the waiters of a member's ended sessions.
func (h *hand) endSessions(name string, below uint64) {
	for _, w := range h.waiters {
		if !w.gone && w.Member == name && w.Session < below {
			h.dismiss(w, &ErrSessionEnded{Member: name, Session: w.Session})
		}
	}
	if m, ok := h.g.names[name]; ok && h.g.members[m].askedIn < below {
		h.g.members[m].asked = 0
	}
}

// dismiss sends a waiter away.
func (h *hand) dismiss(w *waiter, why error) {
	w.gone = true
	w.Taker.Ended(h.g.part, why)
	if w.Tried != nil && !w.tried {
		w.tried = true
		w.Tried()
	}
}

// end sends everybody away.
func (h *hand) end(why error) {
	for _, q := range h.queries {
		q.Done(h.g.part, holding{Err: why})
	}
	h.queries = nil
	h.flush()
	h.rewind()
	for _, w := range h.waiters {
		if !w.gone {
			h.dismiss(w, why)
		}
	}
	h.waiters, h.lanes = nil, nil
	h.g.shared.unset()
}

// close returns what an open plan had reserved and not handed out.
func (h *hand) close(p *openPlan) {
	for i, w := range p.waiters {
		back := p.taken[i]
		for _, o := range p.got[i] {
			back.n--
			back.bytes -= int(o.Size)
		}
		if back.n > 0 {
			w.Taker.Return(back.n, back.bytes)
		}
	}
}

// planApplied finds the plan that is being applied, if it is one of ours.
func (h *hand) planApplied(id uint64) *openPlan {
	for i, p := range h.open {
		if p.id != id {
			continue
		}
		// Those before it were lost on the way: the log keeps their order.
		for _, lost := range h.open[:i] {
			h.drop(lost)
			h.behind = true
			for _, o := range lost.again {
				h.unplan(o)
			}
		}
		h.open = slices.Delete(h.open, 0, i+1)
		return p
	}
	return nil
}

// drop takes a plan out of the counts.
func (h *hand) drop(p *openPlan) {
	h.close(p)
	h.pending -= p.pending
	for i, w := range p.waiters {
		h.planned -= p.taken[i].n
		if m := h.memberOf(w); m != none {
			h.g.members[m].planned -= uint32(min(p.taken[i].n, int(h.g.members[m].planned)))
		}
	}
}

func (p *openPlan) handed(w int, o handOut) {
	if p.got[w] == nil {
		p.got[w] = make([]handOut, 0, p.taken[w].n)
	}
	p.got[w] = append(p.got[w], o)
}

func (h *hand) unplan(o partition.Offset) {
	i, ok := h.g.offsets.find(uint64(o))
	if !ok {
		return
	}
	if e := &h.g.entries[i]; e.planned {
		e.planned = false
		if h.g.mayGo(i) {
			h.pushReady(i)
		}
	}
}

func (h *hand) unreserve(hash uint64) {
	if key, keyed := h.g.keyOf(hash); keyed {
		h.reserved.del(key)
	}
}

// planDone hears that one of the hand's plans was applied.
func (h *hand) planDone(p *openPlan) {
	h.drop(p)
	for i, w := range p.waiters {
		hs := p.got[i]
		if len(hs) == 0 {
			continue
		}
		if w.heir == nil {
			h.out = append(h.out, handed{w, hs})
			continue
		}
		// What the heir cannot take is held by its session all the same, and
		// found when it asks again.
		heir, n := w.heir, 0
		for heir.heir != nil {
			heir = heir.heir
		}
		bytes := 0
		for n < len(hs) && heir.Taker.Reserve(int(hs[n].Size)) {
			bytes += int(hs[n].Size)
			n++
		}
		h.out = append(h.out, handed{heir, hs[:n]}, handed{w, hs[n:]})
		for _, o := range hs[:n] {
			w.Taker.Return(1, int(o.Size))
		}
	}
	if h.g.scanned != p.end {
		h.behind = true
	}
	if h.behind && len(h.open) == 0 {
		h.reserved.clear()
		h.next, h.behind = h.g.scanned, false
	}
	h.answer()
}

// tell calls Tried for those who wait for it.
func (h *hand) tell() {
	if h.untried == 0 {
		return
	}
	h.untried = 0
	for _, w := range h.waiters {
		if w.Tried != nil && !w.tried {
			w.tried = true
			w.Tried()
		}
	}
}

// flush brings applied hand-outs to those who wait for them.
func (h *hand) flush() {
	for i := range h.out {
		if o := &h.out[i]; len(o.hs) > 0 {
			o.to.Taker.Handed(h.g.part, o.hs)
		}
		h.out[i] = handed{}
	}
	h.out = h.out[:0]
}

func (h *hand) memberOf(w *waiter) int32 {
	if w.slot == none || h.g.members[w.slot].name != w.Member {
		m, ok := h.g.names[w.Member]
		if !ok {
			return none
		}
		w.slot = m
	}
	return w.slot
}
