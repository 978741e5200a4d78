package consumer

import (
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// What retention takes from the queues on disk: all before an offset that is not
// delivered again. What is, has a copy, and stays.

// losses gathers what of a group's messages was lost.
type losses struct {
	n           uint64
	first, last partition.Offset
}

func (l *losses) add(o partition.Offset) {
	if l.n == 0 {
		l.first, l.last = o, o
	}
	l.first, l.last = min(l.first, o), max(l.last, o)
	l.n++
}

// expireQueued loses what waits on disk before an offset, key by key, and with
// it what of those keys waits in memory.
func (g *group) expireQueued(to partition.Offset, lost *losses) {
	if g.onDisk() == 0 {
		return
	}
	var keys []uint64
	var alone []partition.Offset
	inOrder := g.policy.Mode != NoOrder
	g.fault(g.rows.Scan(g.rows.prefix(rowQueue), nil, func(k, v []byte) bool {
		o := lastOffset(k)
		if o >= to {
			return false
		}
		switch r, err := decodeQueueRow(k, v); {
		case err != nil:
			g.fault(err)
			return false
		case inOrder:
			keys = append(keys, r.key)
		case r.kind == queueWhole:
			alone = append(alone, o)
		}
		return true
	}))
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		k, ok := g.findKey(key)
		if !ok || g.broken != nil {
			continue
		}
		g.expireRows(&g.keys[k].queue, &g.keys[k], to, lost)
		g.soil(k)
		var gone []partition.Offset
		for i := g.keys[k].head; i != none; i = g.entries[i].next {
			if e := &g.entries[i]; !e.replayed && e.offset < to {
				gone = append(gone, e.offset)
			}
		}
		for _, o := range gone {
			if i, ok := g.offsets.find(uint64(o)); ok {
				lost.add(o)
				g.lose(i)
			}
		}
		if k, ok := g.hashes.find(key); ok {
			g.relieve(k)
		}
	}
	for _, o := range alone {
		e, ok := g.unsettledOnDisk(o)
		if !ok || e.replayed {
			continue
		}
		at := partition.Millis(0)
		if e.at == failed {
			at = max(e.until-g.leapt, 1)
		} else {
			e.at = ready
		}
		g.dropWake(at, o)
		g.deleteQueueRow(o)
		g.disk[e.at]--
		g.forgetHistory(&e)
		lost.add(o)
	}
	if !inOrder {
		g.expireRows(&g.loose, nil, to, lost)
	}
}

// expireRows takes what is before an offset off the front of a queue; ks is nil
// for the queue of what has no order.
func (g *group) expireRows(q *queue, ks *keyState, to partition.Offset, lost *losses) {
	var stay []entry // delivered again
	var rest []queuedMessage
	count := func(o partition.Offset, hasFailed bool) {
		if ks == nil {
			g.disk[ready]--
		} else {
			g.countOut(ks, o, hasFailed)
		}
	}
	for q.n > 0 && q.first < to && g.broken == nil {
		ms, e, whole := g.pull(q, 1<<30)
		switch {
		case whole && e.replayed:
			count(e.offset, e.at == failed)
			stay = append(stay, e)
		case whole:
			count(e.offset, e.at == failed)
			g.forgetHistory(&e)
			lost.add(e.offset)
		}
		for n, m := range ms {
			if m.offset >= to {
				rest = ms[n:] // the row in which the offset lies is the last one
				break
			}
			count(m.offset, false)
			lost.add(m.offset)
		}
	}
	for _, m := range rest {
		count(m.offset, false)
	}
	behind := *q
	*q = queue{}
	var hash uint64
	if ks != nil {
		hash, q.failed, q.parked = ks.hash, behind.failed, behind.parked
	}
	for i := range stay {
		g.pushWhole(q, hash, &stay[i])
		g.countIn(ks, stay[i].offset, stay[i].at == failed)
	}
	for _, m := range rest {
		g.push(q, hash, m)
		if ks == nil {
			g.disk[ready]++
		} else {
			g.countIn(ks, m.offset, false)
		}
	}
	g.join(q, behind)
}

// join puts a queue behind another one; what of it failed or is parked has been
// counted.
func (g *group) join(q *queue, behind queue) {
	switch {
	case behind.n == 0:
	case q.n == 0:
		failed, parked := q.failed, q.parked
		*q = behind
		q.failed, q.parked = failed, parked
	default:
		g.chain(q.last, behind.first)
		q.n += behind.n
		q.last, q.end, q.tail = behind.last, behind.end, behind.tail
	}
}

func (g *group) forgetHistory(e *entry) {
	if e.history {
		g.rows.del(rowHistory, e.offset)
	}
}
