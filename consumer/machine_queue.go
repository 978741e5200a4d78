package consumer

import (
	"bytes"
	"encoding/binary"

	"github.com/strandmq/strandmq/partition"
)

// What waits in memory is bounded by constants, and what waits at all by the
// policy. A key keeps its first messages in memory and the others in a queue on
// disk: rows of up to rowMessages messages, each of which names the next, so
// that a million messages behind one key are four thousand small rows, and one
// more costs a row that is in memory anyway. Once the messages of a key in
// memory are handled, the first row's come in.
//
// When as much waits in memory as may, a key that cannot go at once is shelved:
// all of it goes to disk (machine_shelf.go).
//
// These numbers decide what is in memory and what is in rows, on every replica
// alike: they are part of how commands are applied.
const (
	memoryMessages = 8192 // that wait in memory; about 150 B each
	memoryOfKey    = 32   // of one key, before its queue begins
	rowMessages    = 256  // in one row of a queue
)

// bounds are those numbers; tests have smaller ones.
type bounds struct {
	messages int
	ofKey    int32
	row      uint32
}

// queue is what of a key waits on disk, all of it behind what waits in memory.
// What is out may stand behind it, after a change of mode; it is put where it
// belongs when it comes back.
type queue struct {
	n      uint64 // messages
	failed uint64 // of them, those that failed
	parked uint64 // and those that did not and wait behind a dead letter
	first  partition.Offset
	last   partition.Offset // first message of the last row
	end    partition.Offset // last message
	tail   uint32           // messages in the last row, if more can be added there; else 0
}

// queueRow is a row of a queue: one message with all that is known of it, or
// several that were never handed out.
type queueRow struct {
	kind byte
	next partition.Offset // first message of the next row; 0: there is none
	key  uint64
	body []byte
}

const (
	queueWhole byte = 1 // one message, with its state
	queueMixed byte = 2 // each message has a key hash of its own
	queueHead       = 17
)

// queuedMessage is a message that was never handed out, in a row.
type queuedMessage struct {
	offset partition.Offset
	hash   uint64
	size   uint32
}

func (q queueRow) encode() []byte {
	b := append(make([]byte, 0, queueHead+len(q.body)), q.kind)
	b = binary.LittleEndian.AppendUint64(b, uint64(q.next))
	b = binary.LittleEndian.AppendUint64(b, q.key)
	return append(b, q.body...)
}

func decodeQueueRow(key, v []byte) (queueRow, error) {
	r := reader{b: v}
	q := queueRow{kind: r.byte(), next: partition.Offset(r.fixed64()), key: r.fixed64()}
	q.body = r.b
	switch {
	case q.kind != 0 && q.kind != queueWhole && q.kind != queueMixed:
		r.fail("unknown kind")
	case q.next != 0 && q.next <= lastOffset(key):
		r.fail("the next row is not behind this one")
	}
	if r.bad != "" {
		return queueRow{}, r.ofRow(key, r.bad)
	}
	return q, nil
}

// appendQueued adds a message behind the one before it in its row; the first one
// of a row is its own predecessor.
func appendQueued(b []byte, before partition.Offset, m queuedMessage, mixed bool) []byte {
	b = binary.AppendUvarint(b, uint64(m.offset-before))
	b = binary.AppendUvarint(b, uint64(m.size))
	if mixed {
		b = binary.LittleEndian.AppendUint64(b, m.hash)
	}
	return b
}

func encodeQueued(ms []queuedMessage, mixed bool) (b []byte) {
	before := ms[0].offset
	for _, m := range ms {
		b = appendQueued(b, before, m, mixed)
		before = m.offset
	}
	return b
}

// messages reads what a row that is not whole holds.
func (q queueRow) messages(key []byte) (ms []queuedMessage, err error) {
	r := reader{b: q.body}
	at := lastOffset(key)
	for len(r.b) > 0 {
		d := r.uvarint()
		if (d == 0) != (len(ms) == 0) || at+partition.Offset(d) < at {
			r.fail("out of order")
		}
		at += partition.Offset(d)
		m := queuedMessage{offset: at, size: r.uint32(), hash: q.key}
		if q.kind&queueMixed != 0 {
			m.hash = r.fixed64()
		}
		ms = append(ms, m)
	}
	if len(ms) == 0 {
		r.fail("an empty row")
	}
	if why := r.finish(); why != "" {
		return nil, r.ofRow(key, why)
	}
	return ms, nil
}

// queueRow reads a row that must be there.
func (g *group) queueRow(o partition.Offset) (key []byte, q queueRow) {
	key = g.rows.key(rowQueue, o)
	var v []byte
	var err error
	if i := g.tails.find(o); i >= 0 {
		v = g.tails.rows[i].row
	} else {
		v, err = g.rows.Get(key)
	}
	if err == nil && v == nil {
		err = &ErrRow{Key: key, Why: "a row of a queue is missing"}
	}
	if err == nil {
		q, err = decodeQueueRow(key, v)
	}
	g.fault(err)
	return key, q
}

func (g *group) putQueueRow(o partition.Offset, q queueRow) {
	g.tails.forget(o)
	g.rows.Put(g.rows.key(rowQueue, o), q.encode())
}

// chain names the row that follows a row.
func (g *group) chain(o, next partition.Offset) {
	_, r := g.queueRow(o)
	r.next = next
	g.putQueueRow(o, r)
}

// mixed tells whether messages of several key hashes share a queue.
func (g *group) mixed() bool { return g.policy.Mode != ByKey }

// push adds a message that was never handed out to the end of a queue.
func (g *group) push(q *queue, key uint64, m queuedMessage) {
	mixed := g.mixed()
	if q.n > 0 && q.tail > 0 && q.tail < g.bounds.row {
		r := g.growTail(q.last)
		if r == nil {
			return
		}
		r.row = appendQueued(r.row, q.end, m, mixed)
		q.tail++
	} else {
		r := queueRow{key: key, body: appendQueued(nil, m.offset, m, mixed)}
		if mixed {
			r.kind = queueMixed
		}
		g.append(q, m.offset, r)
		q.tail = 1
	}
	q.end = m.offset
	q.n++
}

// append adds a row to the end of a queue.
func (g *group) append(q *queue, o partition.Offset, r queueRow) {
	if q.n > 0 {
		g.chain(q.last, o)
	} else {
		q.first = o
	}
	q.last, q.end, q.tail = o, o, 0
	g.putQueueRow(o, r)
}

// whole is the row of a message with all that is known of it. A time to come is
// stored less all leaps of the clock so far, so that the next leap moves it too.
func (g *group) whole(key uint64, e *entry) queueRow {
	stored := *e
	if e.at == failed {
		stored.until -= g.leapt
	}
	return queueRow{kind: queueWhole, key: key, body: g.encodeEntry(&stored)}
}

func (g *group) pushWhole(q *queue, key uint64, e *entry) {
	g.append(q, e.offset, g.whole(key, e))
	q.n++
}

// entryOf is the message that a whole row holds.
func (g *group) entryOf(key []byte, r queueRow) (entry, error) {
	e, _, err := decodeEntry(key, r.body)
	if err == nil && e.at == inFlight {
		err = &ErrRow{Key: bytes.Clone(key), Why: "in a queue, and held"}
	}
	if e.at == failed {
		e.until += g.leapt
	}
	e.stored = false
	return e, err
}

// fresh tells whether nothing is known of a message but that it is there.
func (e *entry) fresh() bool {
	return e.handOut == 0 && !e.replayed && !e.history && e.at != failed
}

// Messages on disk are counted where they stand: failed, parked behind a dead
// letter of their key, or deferred.

func (g *group) countIn(ks *keyState, o partition.Offset, hasFailed bool) {
	switch {
	case hasFailed:
		ks.queue.failed++
		g.disk[failed]++
	case ks.blocked(o):
		ks.queue.parked++
		g.disk[parked]++
	default:
		g.disk[deferred]++
	}
}

func (g *group) countOut(ks *keyState, o partition.Offset, hasFailed bool) {
	switch {
	case hasFailed:
		ks.queue.failed--
		g.disk[failed]--
	case ks.blocked(o):
		ks.queue.parked--
		g.disk[parked]--
	default:
		g.disk[deferred]--
	}
}

// recount counts what of a key's queue is parked, after its dead letters changed.
func (g *group) recount(ks *keyState) {
	q := &ks.queue
	now := uint64(0)
	switch {
	case q.n == 0 || len(ks.blockers) == 0:
	case ks.blockers[0] < q.first:
		now = q.n - q.failed
	default: // only after a change of mode
		g.walk(ks, func(m queuedMessage, hasFailed bool) bool {
			if !hasFailed && ks.blocked(m.offset) {
				now++
			}
			return true
		})
	}
	g.disk[parked] += now - q.parked
	g.disk[deferred] -= now - q.parked
	q.parked = now
}

// walk calls fn with the messages of a queue on disk, in order.
func (g *group) walk(ks *keyState, fn func(m queuedMessage, hasFailed bool) bool) {
	if ks.queue.n == 0 {
		return
	}
	for o := ks.queue.first; ; {
		key, r := g.queueRow(o)
		if g.broken != nil {
			return
		}
		if r.kind == queueWhole {
			e, err := g.entryOf(key, r)
			g.fault(err)
			if !fn(queuedMessage{e.offset, e.keyHash, e.size}, e.at == failed) {
				return
			}
		} else {
			ms, err := r.messages(key)
			g.fault(err)
			for _, m := range ms {
				if !fn(m, false) {
					return
				}
			}
		}
		if o = r.next; o == 0 || g.broken != nil {
			return
		}
	}
}

// pull takes a row, or up to so many messages of it, off the front of a queue.
func (g *group) pull(q *queue, most int) (ms []queuedMessage, e entry, whole bool) {
	key, r := g.queueRow(q.first)
	if g.broken != nil {
		return nil, entry{}, false
	}
	g.deleteQueueRow(q.first)
	if r.kind == queueWhole {
		var err error
		e, err = g.entryOf(key, r)
		g.fault(err)
		g.pulled(q, r.next, 1)
		return nil, e, true
	}
	ms, err := r.messages(key)
	g.fault(err)
	if most = max(most, 1); len(ms) <= most {
		g.pulled(q, r.next, len(ms))
		return ms, entry{}, false
	}
	rest := ms[most:]
	r.body = encodeQueued(rest, r.kind&queueMixed != 0)
	g.putQueueRow(rest[0].offset, r)
	if q.last == q.first {
		q.last = rest[0].offset
		if q.tail > 0 {
			q.tail = uint32(len(rest))
		}
	}
	g.pulled(q, rest[0].offset, most)
	return ms[:most], entry{}, false
}

func (g *group) pulled(q *queue, next partition.Offset, n int) {
	q.first = next
	q.n -= uint64(n)
	if q.n == 0 {
		q.first, q.last, q.end, q.tail = 0, 0, 0, 0
	}
}

// fill brings the first messages of a key's queue into memory when none is left
// there.
func (g *group) fill(k int32) {
	for g.keys[k].head == none && g.keys[k].queue.n > 0 && g.broken == nil {
		g.soil(k)
		ms, e, whole := g.pull(&g.keys[k].queue, min(int(g.bounds.ofKey), g.bounds.messages-g.inMemory()))
		if whole {
			g.countOut(&g.keys[k], e.offset, e.at == failed)
			g.enqueue(g.enterAgain(e))
			continue
		}
		for _, m := range ms {
			g.countOut(&g.keys[k], m.offset, false)
		}
		for _, m := range ms {
			g.enqueue(g.enter(m.offset, m.hash, m.size))
		}
	}
}

// enterAgain makes an entry of a message that comes back from disk.
func (g *group) enterAgain(e entry) int32 {
	i := g.enter(e.offset, e.keyHash, e.size)
	at := e.at
	e.at = deferred
	g.entries[i] = e
	g.stand(i, at)
	return i
}

// sink moves an entry that stands behind messages of its key on disk to its
// place among them: it came back out of order. That takes a change of mode, or a
// replay after one.
func (g *group) sink(i int32) {
	k := g.entries[i].key
	ks := &g.keys[k]
	e := g.entries[i]
	q := &ks.queue
	for at := q.first; ; {
		key, r := g.queueRow(at)
		if g.broken != nil {
			return
		}
		if r.next != 0 && r.next < e.offset {
			at = r.next
			continue
		}
		row := g.whole(ks.hash, &e)
		row.next = r.next
		var ms []queuedMessage
		if r.kind != queueWhole {
			var err error
			ms, err = r.messages(key)
			g.fault(err)
		}
		n := len(ms)
		for n > 0 && ms[n-1].offset > e.offset {
			n--
		}
		if n < len(ms) { // into the middle of a row
			rest := r
			rest.body = encodeQueued(ms[n:], r.kind&queueMixed != 0)
			g.putQueueRow(ms[n].offset, rest)
			row.next = ms[n].offset
			r.body = encodeQueued(ms[:n], r.kind&queueMixed != 0)
			if q.last == at {
				q.last, q.tail = ms[n].offset, uint32(len(ms)-n)
			}
		} else if q.last == at {
			q.last, q.end, q.tail = e.offset, e.offset, 0
		}
		r.next = e.offset
		g.putQueueRow(at, r)
		g.putQueueRow(e.offset, row)
		break
	}
	q.n++
	g.countIn(ks, e.offset, e.at == failed)
	g.soil(k)
	g.dequeue(i)
	g.leave(i)
}

// sunk tells whether an entry stands behind messages of its key on disk, and
// sinks it.
func (g *group) sunk(i int32) bool {
	e := &g.entries[i]
	if e.key == none || e.at == inFlight {
		return false
	}
	if ks := &g.keys[e.key]; ks.queue.n == 0 || e.offset < ks.queue.first {
		return false
	}
	g.sink(i)
	return true
}

// eachQueued calls fn with every message on disk, row by row in the order of
// their first messages: those that were never handed out, or one with its state.
// fn must not write.
func (g *group) eachQueued(fn func(row partition.Offset, ms []queuedMessage, e *entry)) {
	g.putTails()
	var bad error
	err := g.rows.Scan(g.rows.prefix(rowQueue), nil, func(k, v []byte) bool {
		r, err := decodeQueueRow(k, v)
		if err == nil && r.kind == queueWhole {
			var e entry
			if e, err = g.entryOf(k, r); err == nil {
				fn(lastOffset(k), nil, &e)
			}
		} else if err == nil {
			var ms []queuedMessage
			if ms, err = r.messages(k); err == nil {
				fn(lastOffset(k), ms, nil)
			}
		}
		bad = err
		return err == nil
	})
	if err == nil {
		err = bad
	}
	g.fault(err)
}

// oldestQueued is the first message in a queue on disk, if there is one: what
// the floor no longer holds and the group still needs.
func (g *group) oldestQueued() (o partition.Offset, ok bool, err error) {
	err = g.rows.Scan(g.rows.prefix(rowQueue), nil, func(k, _ []byte) bool {
		o, ok = lastOffset(k), true
		return false
	})
	return o, ok, err
}

// unsettledOnDisk finds a message on disk of which more is known than that it is
// there. Nothing on disk is out.
func (g *group) unsettledOnDisk(o partition.Offset) (e entry, ok bool) {
	key := g.rows.key(rowQueue, o)
	v, err := g.rows.Get(key)
	if err != nil || v == nil {
		g.fault(err)
		return entry{}, false
	}
	r, err := decodeQueueRow(key, v)
	if err == nil && r.kind == queueWhole {
		e, err = g.entryOf(key, r)
		ok = true
	}
	g.fault(err)
	return e, ok && err == nil
}
