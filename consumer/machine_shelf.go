package consumer

import (
	"encoding/binary"
	"slices"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/partition"
)

// The shelf is where keys go of which nothing is out, when as much waits in
// memory as may: all their messages, what parks them, and when they can go next.
// A key on the shelf costs no memory. Its row says that it is there; another row,
// ordered by time, when it wants to come back (docs/format/delivery.md).
//
// A key comes back when something is done with it (a replay, a discard), or by a
// command that the leader proposes when its time has come and there is room
// again. What comes back may fill memory twice over, so that messages that
// nobody takes do not keep out others.

// wakeAtOnce is how many keys one command brings back.
const wakeAtOnce = 256

// shelfSeen bounds how many rows a turn looks through for keys that somebody
// waits for.
const shelfSeen = 4096

// inMemory counts what waits in memory.
func (g *group) inMemory() int {
	return int(g.count[failed] + g.count[ready] + g.count[deferred] + g.count[parked])
}

// over tells whether more waits in memory than may: messages, or keys.
func (g *group) over() bool {
	return g.inMemory() > g.bounds.messages || g.hashes.n > g.bounds.messages+int(g.count[inFlight])
}

// relieve shelves a key, or a message of none, if it must be.
func (g *group) relieve(k int32) {
	if ks := &g.keys[k]; ks.inFlight == 0 && (ks.head != none || len(ks.blockers) > 0) && g.over() {
		g.shelve(k)
	}
}

// settleIn looks after a message that came to wait, or is out: it goes where it belongs.
func (g *group) settleIn(i int32) {
	k := g.entries[i].key
	switch {
	case g.entries[i].at == inFlight: // that is with whoever has it
	case k == none:
		if g.over() {
			g.shelveOne(i)
		}
	case !g.sunk(i):
		g.relieve(k)
	}
}

// due is when a key or message on the shelf wants to come back, less the leaps
// of the clock before it went there; ready: at any time.
type shelfDue struct {
	at    partition.Millis
	timed bool
}

// shelve moves a key with all its messages to disk.
func (g *group) shelve(k int32) {
	ks := g.keys[k]
	behind := ks.queue
	ks.queue = queue{}
	ks.wants, ks.headReady = shelfDue{}, false
	if h := ks.head; h != none {
		if e := &g.entries[h]; !ks.blocked(e.offset) {
			ks.wants.timed = true
			ks.headReady = e.at == ready
			if e.at == failed {
				ks.wants.at = max(e.until-g.leapt, 1) // 0 is of what does not back off
			}
		}
	}
	for i := ks.head; i != none; {
		e := g.entries[i]
		if e.fresh() {
			g.push(&ks.queue, ks.hash, queuedMessage{e.offset, e.keyHash, e.size})
		} else {
			g.pushWhole(&ks.queue, ks.hash, &e)
		}
		g.countIn(&ks, e.offset, e.at == failed)
		g.leave(i)
		i = e.next
	}
	if ks.headReady {
		g.disk[deferred]--
		g.disk[ready]++
	}
	ks.queue.failed, ks.queue.parked = ks.queue.failed+behind.failed, ks.queue.parked+behind.parked
	g.join(&ks.queue, behind)
	g.forgetKey(k)
	ks.cold = true
	g.putKey(&ks)
	if ks.wants.timed {
		g.putWake(ks.wants.at, ks.queue.first, ks.hash, true)
	}
	g.cold++
	g.filter.add(ks.hash)
}

// shelveOne moves a message without an order to disk.
func (g *group) shelveOne(i int32) {
	e := g.entries[i]
	if e.fresh() {
		g.push(&g.loose, 0, queuedMessage{e.offset, e.keyHash, e.size})
		g.disk[ready]++
	} else {
		at := partition.Millis(0)
		if e.at == failed {
			at = max(e.until-g.leapt, 1)
		}
		g.putQueueRow(e.offset, g.whole(0, &e))
		g.putWake(at, e.offset, e.keyHash, false)
		g.disk[e.at]++
	}
	g.leave(i)
}

// onShelf finds a key on the shelf.
func (g *group) onShelf(hash uint64) (ks keyState, ok bool) {
	if g.cold == 0 || !g.filter.may(hash) {
		return keyState{}, false
	}
	key := g.rows.keyRow(hash)
	v, err := g.rows.Get(key)
	if err != nil || v == nil {
		g.fault(err)
		return keyState{}, false
	}
	ks, err = decodeKey(key, v)
	g.fault(err)
	return ks, err == nil && ks.cold
}

// unshelve brings a key back into memory, if it is on the shelf.
func (g *group) unshelve(hash uint64) (k int32, ok bool) {
	ks, ok := g.onShelf(hash)
	if !ok {
		return none, false
	}
	if ks.wants.timed {
		g.dropWake(ks.wants.at, ks.queue.first)
	}
	if ks.headReady {
		g.disk[ready]--
		g.disk[deferred]++
	}
	ks.cold, ks.headReady, ks.wants, ks.row = false, false, shelfDue{}, true
	if g.cold--; g.cold == 0 {
		g.filter = keyFilter{}
	}
	k = g.newKey(hash)
	g.keys[k] = ks
	g.fill(k)
	g.putKey(&g.keys[k]) // what says that it is on the shelf must not stay
	return k, true
}

// wakeAll applies what the leader proposed to bring back: times and messages.
func (g *group) wakeAll(r *reader) {
	if n := 2*g.bounds.messages - g.inMemory(); r.bool() && g.loose.n > 0 && r.bad == "" && n > 0 {
		g.wakeLoose(min(n, g.bounds.messages))
	}
	for range r.count(2) {
		at, o := r.time(), partition.Offset(r.uvarint())
		if r.bad != "" || at+g.leapt > g.clock || g.inMemory() >= 2*g.bounds.messages {
			continue
		}
		hash, keyed, ok := g.wakeRow(at, o)
		switch {
		case !ok:
		case keyed:
			g.unshelve(hash)
		default:
			g.wakeOne(at, o)
		}
	}
	if g.hand != nil {
		g.hand.waking = 0
	}
}

// wakeShelf is the leader's part: it proposes to bring back what has come due,
// if there is room. When memory is full of what nobody takes, it looks for what
// somebody would.
func (h *hand) wakeShelf(at partition.Millis, cmds [][]byte) [][]byte {
	if h.waking != 0 && h.pace.passed-h.waking < lapsePatience {
		return cmds
	}
	h.waking = 0
	g := h.g
	loose := g.loose.n > 0 && (2*g.inMemory() < g.bounds.messages ||
		g.inMemory() < 2*g.bounds.messages && slices.Contains(h.starved(at), true))
	next, some := g.nextWake()
	due := some && next+g.leapt <= at && g.inMemory() < 2*g.bounds.messages
	if !loose && !due {
		return cmds
	}
	var ws []wake
	if due {
		picky, seen := g.inMemory() >= g.bounds.messages/2, 0
		starved := h.starved(at)
		g.eachWake(next, func(t partition.Millis, o partition.Offset, hash uint64, _ bool) bool {
			seen++
			if t+g.leapt > at || len(ws) == wakeAtOnce || seen > shelfSeen {
				return false
			}
			if !picky || starved[shareOf(hash, uint32(len(h.lanes)))] {
				ws = append(ws, wake{t, o})
			}
			return true
		})
	}
	if len(ws) == 0 && !loose {
		return cmds
	}
	h.waking = max(h.pace.passed, 1)
	return append(cmds, encodeWake(at, g.id, loose, ws))
}

func (g *group) wakeLoose(n int) {
	ms, _, _ := g.pull(&g.loose, n)
	for _, m := range ms {
		g.disk[ready]--
		g.enqueue(g.enter(m.offset, m.hash, m.size))
	}
}

// wakeOne brings back a message without an order.
func (g *group) wakeOne(at partition.Millis, o partition.Offset) {
	e, ok := g.unsettledOnDisk(o)
	if !ok {
		g.fault(&ErrRow{Key: g.rows.key(rowQueue, o), Why: "a message on the shelf is missing"})
		return
	}
	g.dropWake(at, o)
	g.deleteQueueRow(o)
	if e.at == failed {
		g.disk[failed]--
		g.entryWaits(g.enterAgain(e))
		return
	}
	g.disk[ready]--
	g.enqueue(g.enterAgain(e))
}

// entryWaits takes in a failed message of no key.
func (g *group) entryWaits(i int32) { g.tellBackoff(i) }

// starved tells which lanes have somebody who would take something, and nothing
// in memory to take.
func (h *hand) starved(at partition.Millis) []bool {
	s := make([]bool, len(h.lanes))
	for i := range h.lanes {
		l := &h.lanes[i]
		s[i] = slices.ContainsFunc(l.queue, func(w *waiter) bool {
			now, open := w.Taker.Room()
			return now && open && !w.gone && h.canHold(w)
		}) && !slices.ContainsFunc(l.ready.items, func(d due) bool { return h.goes(d, at) })
	}
	return s
}

// Rows of the shelf.

func (r rowsOf) keyRow(hash uint64) []byte {
	return binary.BigEndian.AppendUint64(r.prefix(rowBlocked), hash)
}

const (
	keyCold  byte = 1 // on the shelf
	keyTimed byte = 2 // and wants to come back
	keyReady byte = 4 // its first message can go
)

// putKey writes what a key has besides its messages in memory; nothing, if there
// is nothing.
func (g *group) putKey(ks *keyState) {
	key := g.rows.keyRow(ks.hash)
	ks.row = ks.cold || len(ks.blockers) > 0 || ks.queue.n > 0
	if !ks.row {
		g.rows.Delete(key)
		return
	}
	var flags byte
	if ks.cold {
		flags |= keyCold
	}
	if ks.wants.timed {
		flags |= keyTimed
	}
	if ks.headReady {
		flags |= keyReady
	}
	b := append(make([]byte, 0, 48), rowVersion, flags)
	b = binary.AppendUvarint(b, uint64(ks.wants.at))
	b = appendQueue(b, &ks.queue)
	b = binary.AppendUvarint(b, uint64(len(ks.blockers)))
	for _, o := range ks.blockers {
		b = binary.AppendUvarint(b, uint64(o))
	}
	g.rows.Put(key, b)
}

func appendQueue(b []byte, q *queue) []byte {
	for _, v := range []uint64{q.n, q.failed, q.parked, uint64(q.first), uint64(q.last), uint64(q.end), uint64(q.tail)} {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

func (r *reader) queue() queue {
	q := queue{n: r.uvarint(), failed: r.uvarint(), parked: r.uvarint()}
	q.first, q.last, q.end = partition.Offset(r.uvarint()), partition.Offset(r.uvarint()), partition.Offset(r.uvarint())
	q.tail = r.uint32()
	if q.first > q.last || q.last > q.end || q.n == 0 && (q.end > 0 || q.tail > 0) || q.failed+q.parked > q.n {
		r.fail("impossible queue")
	}
	return q
}

func decodeKey(key, v []byte) (keyState, error) {
	r := reader{b: v}
	r.version("delivery row", rowVersion)
	flags := r.byte()
	ks := keyState{hash: uint64(lastOffset(key)), head: none, tail: none, inserted: none, row: true}
	ks.cold, ks.headReady = flags&keyCold != 0, flags&keyReady != 0
	ks.wants = shelfDue{timed: flags&keyTimed != 0, at: r.time()}
	ks.queue = r.queue()
	ks.blockers = r.offsets()
	if flags >= keyReady<<1 || flags > keyCold && flags&keyCold == 0 || !slices.IsSorted(ks.blockers) {
		r.fail("impossible state of a key")
	}
	if why := r.finish(); why != "" {
		return keyState{}, r.ofRow(key, why)
	}
	return ks, nil
}

func (r rowsOf) wakeKey(at partition.Millis, o partition.Offset) []byte {
	return r.key2(rowWake, uint64(at), o)
}

// putWake notes when a key, or a message of none, wants to come back.
func (g *group) putWake(at partition.Millis, o partition.Offset, hash uint64, keyed bool) {
	g.rows.Put(g.rows.wakeKey(at, o), binary.LittleEndian.AppendUint64(appendBool(nil, keyed), hash))
	g.wakes++
	if at > 0 {
		g.timed++
	}
	if g.wakes == 1 || at < g.firstWake {
		g.firstWake, g.wakeGone = at, false
	}
}

func (g *group) dropWake(at partition.Millis, o partition.Offset) {
	g.rows.Delete(g.rows.wakeKey(at, o))
	if at > 0 {
		g.timed--
	}
	g.wakes--
	g.wakeGone = g.wakeGone || at == g.firstWake
}

// nextWake is when the first of what wants to come back does, less all leaps. It
// looks for it where it may be gone: once for all that a command brought back.
func (g *group) nextWake() (partition.Millis, bool) {
	if g.wakes > 0 && g.wakeGone {
		g.eachWake(g.firstWake, func(at partition.Millis, _ partition.Offset, _ uint64, _ bool) bool {
			g.firstWake = at
			return false
		})
		g.wakeGone = false
	}
	return g.firstWake, g.wakes > 0
}

func (g *group) wakeRow(at partition.Millis, o partition.Offset) (hash uint64, keyed, ok bool) {
	key := g.rows.wakeKey(at, o)
	v, err := g.rows.Get(key)
	if err != nil || v == nil {
		g.fault(err)
		return 0, false, false
	}
	r := reader{b: v}
	keyed, hash = r.bool(), r.fixed64()
	if why := r.finish(); why != "" {
		g.fault(r.ofRow(key, why))
		return 0, false, false
	}
	return hash, keyed, true
}

// eachWake calls fn with what wants to come back, by time.
func (g *group) eachWake(from partition.Millis, fn func(at partition.Millis, o partition.Offset, hash uint64, keyed bool) bool) {
	prefix := g.rows.prefix(rowWake)
	var bad error
	err := g.rows.Scan(prefix, g.rows.wakeKey(from, 0), func(k, v []byte) bool {
		r := reader{b: v}
		keyed, hash := r.bool(), r.fixed64()
		if why := r.finish(); why != "" {
			bad = r.ofRow(k, why)
			return false
		}
		return fn(partition.Millis(binary.BigEndian.Uint64(k[len(prefix):])), lastOffset(k), hash, keyed)
	})
	if err == nil {
		err = bad
	}
	g.fault(err)
}

// keyFilter tells of most keys that they are not on the shelf: a Bloom filter of
// constant size (Bloom 1970). It is made anew from the rows at a start, and
// decides nothing.
type keyFilter struct{ bits []uint64 }

const filterBits = 1 << 19 // 64 KiB, and only where there is a shelf

func (f *keyFilter) add(hash uint64) {
	if f.bits == nil {
		f.bits = make([]uint64, filterBits/64)
	}
	h := keyspace.Mix(hash)
	for _, b := range [2]uint64{h % filterBits, h >> 32 % filterBits} {
		f.bits[b/64] |= 1 << (b % 64)
	}
}

func (f *keyFilter) may(hash uint64) bool {
	if f.bits == nil {
		return false
	}
	h := keyspace.Mix(hash)
	for _, b := range [2]uint64{h % filterBits, h >> 32 % filterBits} {
		if f.bits[b/64]&(1<<(b%64)) == 0 {
			return false
		}
	}
	return true
}
