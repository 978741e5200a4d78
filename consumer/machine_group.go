package consumer

import (
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// group is one group's replicated state in a partition. Every change happens in
// Apply, and each of them keeps what follows true:
//
//   - a message below scanned is in entries (unsettled), in the dead rows, or
//     settled; one that is replayed is in entries and in the dead rows;
//   - a key's queue holds its entries, by offset, and behind them what of the key
//     is on disk; only a key that is on the shelf has messages and no entry;
//   - only the head of a queue is ready, and only when nothing of the key is in
//     flight and no dead letter before it parks the key. That is P3.
type group struct {
	id     GroupID
	part   partition.PartitionID
	rows   rowsOf
	name   string
	policy Policy
	paused bool

	start    partition.Offset
	scanned  partition.Offset
	kept     partition.Offset // start of the log when last seen
	epoch    uint64
	handOuts uint64 // number of the last hand-out: the fence
	clock    partition.Millis

	entries   []entry
	vacancy   int32 // first vacant slot
	keys      []keyState
	keyGap    []int32 // vacant slots of keys
	members   []member
	memberGap []int32 // vacant slots of members
	crowd     int     // so many members, and those of whom nothing is known are forgotten
	names     map[string]int32
	offsets   table // offset → entry
	hashes    table // key hash → key

	count     [standings]uint64
	dead      uint64
	acked     uint64
	skipped   uint64
	expired   uint64
	replaying uint64
	ahead     uint64 // dead or discarded before a reset, and not scanned again yet: the scan passes over them
	again     uint64 // of the replaying ones, those that the scan will find
	handedOut uint64
	retried   uint64
	outcomes  outcomes
	refused   refusals
	parking   uint64 // keys that a dead letter parks
	parkeds   uint64 // how often that began, since this state was made: for notices
	breaker   breaker
	at        partition.Index // of the command that is being applied

	// What waits on disk: machine_queue.go, machine_shelf.go.
	bounds    bounds
	disk      [standings]uint64
	loose     queue            // without an order, and never handed out
	cold      uint64           // keys on the shelf
	wakes     uint64           // what there wants to come back
	timed     uint64           // of that, what backs off
	firstWake partition.Millis // the first of it, less all leaps, or before that
	wakeGone  bool             // the first of it may be gone
	leapt     partition.Millis // all leaps of the clock
	filter    keyFilter
	tails     tails
	ended     int // members of whom an ended session is known

	// What the next checkpoint writes.
	touched  []int32 // slots whose entry changed; touching marks them
	touching []bool
	gone     []partition.Offset // stored entries that are no more
	soiled   []uint64           // keys whose queue on disk changed
	sweep    bool               // rows of earlier epochs may be left

	counted counted // not replicated: where the partition is led, until the command is applied
	broken  error   // a row that cannot be read
	hand    *hand   // nil where the partition is not led
	shared  *sharedClock
}

func newGroup(id GroupID, part partition.PartitionID, rows partition.Rows, most bounds) *group {
	return &group{
		id: id, part: part, rows: rowsOf{rows, id},
		vacancy: none, names: make(map[string]int32), crowd: crowd, shared: &sharedClock{}, bounds: most,
	}
}

// waiting counts what was scanned and is not handed out, in memory and on disk:
// what max_deferred bounds.
func (g *group) waiting() uint64 {
	return uint64(g.inMemory()) + g.onDisk() + g.parking - (g.replaying - g.again)
}

// onDisk counts what waits on disk.
func (g *group) onDisk() uint64 {
	return g.disk[failed] + g.disk[ready] + g.disk[deferred] + g.disk[parked]
}

// room tells whether one more message may wait.
func (g *group) room() bool {
	// Replayed messages have an allowance of their own, so that a full group
	// can still be mended by a replay; some may be in flight, hence the sign.
	return int64(g.waiting()) < int64(g.policy.MaxDeferred)
}

func (g *group) tick(now partition.Millis) {
	g.clock = max(g.clock, now)
}

// keyOf is the hash by which a message queues.
func (g *group) keyOf(hash uint64) (uint64, bool) {
	switch g.policy.Mode {
	case ByPartition:
		return 0, true
	case NoOrder:
		return 0, false
	default:
		return hash, true
	}
}

func (g *group) touch(i int32) {
	if !g.touching[i] {
		g.touching[i] = true
		g.touched = append(g.touched, i)
	}
}

func (g *group) stand(i int32, s standing) {
	e := &g.entries[i]
	g.count[e.at]--
	g.count[s]++
	e.at = s
}

// enter makes an entry, not yet in any queue.
func (g *group) enter(o partition.Offset, hash uint64, size uint32) int32 {
	i := g.vacancy
	if i == none {
		i = int32(len(g.entries))
		g.entries = append(g.entries, entry{})
		g.touching = append(g.touching, false)
	} else {
		g.vacancy = g.entries[i].next
	}
	g.entries[i] = entry{
		offset: o, keyHash: hash, size: size,
		key: none, next: none, member: none, prevHeld: none, nextHeld: none,
		at: deferred,
	}
	g.count[deferred]++
	g.offsets.put(uint64(o), i)
	g.touch(i)
	return i
}

// leave removes an entry that is in no queue and held by nobody.
func (g *group) leave(i int32) {
	e := &g.entries[i]
	g.count[e.at]--
	if e.stored {
		g.gone = append(g.gone, e.offset)
	}
	g.offsets.del(uint64(e.offset))
	*e = entry{next: g.vacancy}
	g.vacancy = i
}

// enqueue puts an entry into its key's queue, by offset.
func (g *group) enqueue(i int32) {
	e := &g.entries[i]
	hash, keyed := g.keyOf(e.keyHash)
	if !keyed {
		if e.at == deferred {
			g.stand(i, ready)
			g.tellReady(i)
		}
		return
	}
	k := g.openKey(hash) // which can bring others of the key into memory
	ks := &g.keys[k]
	e = &g.entries[i]
	e.key = k
	ks.waiting++
	if e.at == deferred && ks.blocked(e.offset) {
		g.stand(i, parked)
	}
	switch {
	case ks.head == none:
		ks.head, ks.tail = i, i
	case g.entries[ks.tail].offset < e.offset:
		g.entries[ks.tail].next = i
		ks.tail = i
	default:
		// Only what was dead comes back before others: in order, so the place
		// of the one before is where to look first.
		before := none
		if ks.inserted != none && g.entries[ks.inserted].offset < e.offset {
			before = ks.inserted
		} else if g.entries[ks.head].offset < e.offset {
			before = ks.head
		}
		ks.inserted = i
		if before == none {
			if g.entries[ks.head].at == ready {
				g.stand(ks.head, deferred)
			}
			e.next = ks.head
			ks.head = i
			break
		}
		for n := g.entries[before].next; n != none && g.entries[n].offset < e.offset; n = g.entries[n].next {
			before = n
		}
		e.next = g.entries[before].next
		g.entries[before].next = i
		if e.next == none {
			ks.tail = i
		}
	}
	if ks.head == i {
		g.refresh(k)
	}
}

// dequeue takes an entry out of its key's queue and lets the next come up.
func (g *group) dequeue(i int32) {
	e := &g.entries[i]
	k := e.key
	if k == none {
		return
	}
	ks := &g.keys[k]
	if ks.head == i {
		ks.head = e.next
		if ks.head == none {
			ks.tail = none
		}
	} else {
		p := ks.head
		for g.entries[p].next != i {
			p = g.entries[p].next
		}
		g.entries[p].next = e.next
		if ks.tail == i {
			ks.tail = p
		}
	}
	if ks.inserted == i {
		ks.inserted = none
	}
	ks.waiting--
	e.key, e.next = none, none
	g.refresh(k)
}

func (g *group) openKey(hash uint64) int32 {
	if k, ok := g.hashes.find(hash); ok {
		return k
	}
	if k, ok := g.unshelve(hash); ok {
		return k
	}
	return g.newKey(hash)
}

// findKey finds a key, on the shelf too.
func (g *group) findKey(hash uint64) (int32, bool) {
	if k, ok := g.hashes.find(hash); ok {
		return k, true
	}
	return g.unshelve(hash)
}

func (g *group) newKey(hash uint64) (k int32) {
	if n := len(g.keyGap); n > 0 {
		k = g.keyGap[n-1]
		g.keyGap = g.keyGap[:n-1]
	} else {
		k = int32(len(g.keys))
		g.keys = append(g.keys, keyState{})
	}
	g.keys[k] = keyState{hash: hash, head: none, tail: none, inserted: none}
	g.hashes.put(hash, k)
	return k
}

// forgetKey takes a key out of memory.
func (g *group) forgetKey(k int32) {
	g.hashes.del(g.keys[k].hash)
	g.keys[k] = keyState{head: none, tail: none, inserted: none}
	g.keyGap = append(g.keyGap, k)
}

// soil notes that a key's row is to be written.
func (g *group) soil(k int32) {
	if ks := &g.keys[k]; !ks.soiled {
		ks.soiled = true
		g.soiled = append(g.soiled, ks.hash)
	}
}

// refresh sets the head of a queue ready if it may go, and forgets a key that
// has nothing left.
func (g *group) refresh(k int32) {
	ks := &g.keys[k]
	h := ks.head
	if h == none {
		switch {
		case ks.queue.n > 0:
			g.fill(k)
		case len(ks.blockers) == 0:
			if ks.row {
				g.rows.Delete(g.rows.keyRow(ks.hash))
			}
			g.forgetKey(k)
		}
		return
	}
	e := &g.entries[h]
	if ks.inFlight > 0 || ks.blocked(e.offset) {
		return
	}
	switch e.at {
	case deferred:
		g.stand(h, ready)
		g.tellReady(h)
	case failed:
		g.tellBackoff(h)
	default:
	}
}

// repark looks at a whole queue again after its blockers changed.
func (g *group) repark(k int32) {
	ks := &g.keys[k]
	for i := ks.head; i != none; i = g.entries[i].next {
		e := &g.entries[i]
		switch e.at {
		case ready, deferred, parked:
			s := deferred
			if ks.blocked(e.offset) {
				s = parked
			}
			if e.at != s {
				g.stand(i, s)
			}
		default:
		}
	}
	g.recount(ks)
	g.refresh(k)
}

// block parks a key behind a dead letter.
func (g *group) block(hash uint64, o partition.Offset) {
	k := g.openKey(hash)
	ks := &g.keys[k]
	n, found := slices.BinarySearch(ks.blockers, o)
	if found {
		return
	}
	if len(ks.blockers) == 0 {
		g.parking++
		g.parkeds++
	}
	ks.blockers = slices.Insert(ks.blockers, n, o)
	g.soil(k)
	g.repark(k)
	g.relieve(k)
}

// unblock lets a key flow past what is no longer a dead letter.
func (g *group) unblock(hash uint64, o partition.Offset) {
	hash, keyed := g.keyOf(hash)
	if !keyed {
		return
	}
	k, ok := g.findKey(hash)
	if !ok {
		return
	}
	ks := &g.keys[k]
	n, found := slices.BinarySearch(ks.blockers, o)
	if !found {
		g.relieve(k)
		return
	}
	ks.blockers = slices.Delete(ks.blockers, n, n+1)
	if len(ks.blockers) == 0 {
		g.parking--
	}
	g.soil(k)
	g.repark(k)
	g.relieve(k)
}

// mayGo tells whether an entry can be handed out at the group's present time.
func (g *group) mayGo(i int32) bool {
	e := &g.entries[i]
	switch e.at {
	case ready:
		return true
	case failed:
		if g.clock < e.until {
			return false
		}
		if e.key == none {
			return true
		}
		ks := &g.keys[e.key]
		return ks.head == i && ks.inFlight == 0 && !ks.blocked(e.offset)
	default:
		return false
	}
}

// handOut hands an entry out. The caller has checked mayGo and the limits.
func (g *group) handOut(i, m int32, session, request uint64) {
	e := &g.entries[i]
	g.handOuts++
	g.handedOut++
	e.attempts++
	e.ordinal++
	e.handOut, e.session, e.request = g.handOuts, session, request
	e.handedAt = g.clock
	e.until = g.clock + g.policy.AckDeadline
	if e.firstSeen == 0 {
		e.firstSeen = g.clock
	}
	e.last = notEnded
	g.probing(e.offset)
	g.stand(i, inFlight)
	g.touch(i)
	if e.key != none {
		g.keys[e.key].inFlight++
	}
	g.hold(i, m)
	if !g.policy.AtMostOnce {
		g.tellDeadline(i) // else it is settled by this very entry
	}
}

func (g *group) hold(i, m int32) {
	e, ms := &g.entries[i], &g.members[m]
	e.member = m
	e.prevHeld, e.nextHeld = ms.tail, none
	if ms.tail == none {
		ms.head = i
	} else {
		g.entries[ms.tail].nextHeld = i
	}
	ms.tail = i
	ms.held++
}

// endHandOut ends a hand-out: the entry is in flight no more and in nobody's list.
// It stands deferred until the caller says better.
func (g *group) endHandOut(i int32, how ending) {
	e := &g.entries[i]
	ms := &g.members[e.member]
	if e.prevHeld == none {
		ms.head = e.nextHeld
	} else {
		g.entries[e.prevHeld].nextHeld = e.nextHeld
	}
	if e.nextHeld == none {
		ms.tail = e.prevHeld
	} else {
		g.entries[e.nextHeld].prevHeld = e.prevHeld
	}
	e.prevHeld, e.nextHeld = none, none
	ms.held--
	e.last = how
	if e.key != none {
		g.keys[e.key].inFlight--
	}
	g.stand(i, deferred)
	g.touch(i)
}

// acknowledge removes an entry for good.
func (g *group) acknowledge(i int32) {
	e := &g.entries[i]
	if e.ordinal != 1 {
		g.rows.putException(g.epoch, e.offset, e.ordinal)
	}
	if e.history {
		g.rows.del(rowHistory, e.offset)
	}
	if e.replayed {
		g.rows.dropDead(e.offset, e.keyHash)
		g.dropCopy(e.offset)
		g.replaying--
	}
	g.acked++
	g.finish(e.ordinal)
	k := e.key
	g.dequeue(i)
	g.leave(i)
	if k != none {
		g.relieve(k)
	}
}

// release gives a message back uncharged.
func (g *group) release(i int32) {
	g.endHandOut(i, byRelease)
	g.entries[i].attempts--
	g.gaveBack(g.entries[i].handOut)
	g.wait(i)
	g.settleIn(i)
}

// wait lets a deferred entry that is in its queue stand where it belongs.
func (g *group) wait(i int32) {
	e := &g.entries[i]
	if e.key == none {
		g.stand(i, ready)
		g.tellReady(i)
		return
	}
	ks := &g.keys[e.key]
	if ks.blocked(e.offset) {
		g.stand(i, parked)
	}
	g.refresh(e.key)
}

// fail charges a hand-out that came to nothing: another attempt after a wait,
// or the dead letters, in the same log entry (P7). It tells whether it died.
func (g *group) fail(i int32, how ending, reason string, delay partition.Millis) bool {
	e := &g.entries[i]
	free := g.broke(e.keyHash, e.handOut) && how != byReject
	a := g.attempt(e, how, reason)
	g.retried++
	g.outcomes.failed(how)
	g.endHandOut(i, how)
	if how == byReject || !free && g.policy.MaxAttempts > 0 && e.attempts >= g.policy.MaxAttempts {
		g.die(i, a)
		return true
	}
	g.addHistory(e, a)
	if delay == 0 {
		delay = g.policy.backoff(g.id, e.offset, e.attempts)
	}
	if free {
		e.attempts--
		g.rows.putUncharged(g.at, e.offset)
	}
	e.until = g.clock + delay
	g.stand(i, failed)
	if e.key == none {
		g.tellBackoff(i)
	} else {
		g.refresh(e.key)
	}
	g.settleIn(i)
	return false
}

// bury makes a dead letter of a message that cannot be read. No consumer failed,
// so the circuit breaker hears nothing of it but that another probe may go.
func (g *group) bury(i int32, reason string) bool {
	e := &g.entries[i]
	a := g.attempt(e, byReject, reason)
	g.retried++
	g.outcomes.failed(byReject)
	g.gaveBack(e.handOut)
	g.endHandOut(i, byReject)
	g.die(i, a)
	return true
}

// attempt is what is written down of a hand-out that ends now.
func (g *group) attempt(e *entry, how ending, reason string) Attempt {
	return Attempt{
		Attempt: e.attempts, Member: g.members[e.member].name,
		HandedOut: e.handedAt, Ended: g.clock, Outcome: how.String(), Reason: reason,
	}
}

// memberOf finds a member's slot, or makes one.
func (g *group) memberOf(name string) int32 {
	if m, ok := g.names[name]; ok {
		return m
	}
	var m int32
	if n := len(g.memberGap); n > 0 {
		m = g.memberGap[n-1]
		g.memberGap = g.memberGap[:n-1]
	} else {
		m = int32(len(g.members))
		g.members = append(g.members, member{})
	}
	g.members[m] = member{name: name, head: none, tail: none}
	g.names[name] = m
	return m
}

// forgetMembers makes room when many names were seen of which nothing is known
// any more. Only called where no slot of a member is at hand.
func (g *group) forgetMembers() {
	if len(g.names) < g.crowd {
		return
	}
	for i := range g.members {
		ms := &g.members[i]
		if ms.name != "" && ms.held == 0 && ms.sessions == 0 && ms.planned == 0 {
			delete(g.names, ms.name)
			*ms = member{head: none, tail: none}
			g.memberGap = append(g.memberGap, int32(i))
		}
	}
	g.crowd = max(crowd, 2*len(g.names))
}

// crowd is how many members a partition knows before it forgets any.
const crowd = 1024

// endSessions notes that a member's sessions below a number ended.
func (g *group) endSessions(m int32, below uint64) {
	ms := &g.members[m]
	if below <= ms.sessions {
		return
	}
	if ms.sessions == 0 {
		g.ended++
	}
	ms.sessions = below
	g.rows.putMember(ms)
	if g.ended > maxEndedSessions {
		g.forgetSession()
	}
}

// maxEndedSessions bounds the members of whom an ended session is remembered.
// It is needed only while a hand-out to that session can still be on its way.
const maxEndedSessions = 4096

// forgetSession drops the oldest ended session of a member who holds nothing.
func (g *group) forgetSession() {
	oldest := none
	for i := range g.members {
		ms := &g.members[i]
		if ms.sessions == 0 || ms.held > 0 {
			continue
		}
		if oldest == none || ms.sessions < g.members[oldest].sessions ||
			ms.sessions == g.members[oldest].sessions && ms.name < g.members[oldest].name {
			oldest = int32(i)
		}
	}
	if oldest != none {
		ms := &g.members[oldest]
		g.rows.dropMember(ms.name)
		ms.sessions = 0
		g.ended--
	}
}
