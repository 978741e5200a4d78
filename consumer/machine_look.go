package consumer

import "github.com/strandmq/strandmq/partition"

// lookup finds a message that is neither settled nor dead, in memory or on disk,
// by its offset and key hash, and where it stands at a time of the group.
func (g *group) lookup(o partition.Offset, hash uint64, t partition.Millis) (e entry, at standing, ok bool) {
	if i, ok := g.offsets.find(uint64(o)); ok {
		return g.entries[i], g.standing(i, t), true
	}
	if g.onDisk() == 0 {
		return entry{}, vacant, false
	}
	e = entry{offset: o, keyHash: hash, key: none, member: none, at: deferred}
	key, keyed := g.keyOf(hash)
	if !keyed {
		if whole, ok := g.unsettledOnDisk(o); ok {
			if whole.at == failed && whole.until > t {
				return whole, failed, true
			}
			return whole, ready, true
		}
		m, ok := g.inQueue(&keyState{queue: g.loose}, o)
		e.size = m.size
		return e, ready, ok
	}
	ks := g.keyAnywhere(key)
	if ks == nil {
		return entry{}, vacant, false
	}
	m, ok := g.inQueue(ks, o)
	if !ok {
		return entry{}, vacant, false
	}
	e.size = m.size
	if whole, ok := g.unsettledOnDisk(o); ok {
		e = whole
	}
	switch {
	case e.at == failed && e.until > t:
		at = failed
	case ks.blocked(o):
		at = parked
	case ks.cold && o == ks.queue.first:
		at = ready
	default:
		at = deferred
	}
	return e, at, true
}

// keyAnywhere finds a key in memory or on the shelf, and leaves it there.
func (g *group) keyAnywhere(key uint64) *keyState {
	if k, ok := g.hashes.find(key); ok {
		return &g.keys[k]
	}
	if ks, ok := g.onShelf(key); ok {
		return &ks
	}
	return nil
}

// inQueue finds a message in a queue on disk.
func (g *group) inQueue(ks *keyState, o partition.Offset) (m queuedMessage, ok bool) {
	if q := &ks.queue; q.n == 0 || o < q.first || o > q.end {
		return queuedMessage{}, false
	}
	g.walk(ks, func(at queuedMessage, _ bool) bool {
		m, ok = at, at.offset == o
		return at.offset < o
	})
	return m, ok
}

// headOf is the message that a key waits for.
func (g *group) headOf(ks *keyState) (o partition.Offset) {
	if ks.head != none {
		return g.entries[ks.head].offset
	}
	return ks.queue.first
}

// tallyDisk moves what failed and is on disk to where it stands at a time.
func (g *group) tallyDisk(t partition.Millis, count *[standings]uint64) {
	g.eachWake(1, func(at partition.Millis, _ partition.Offset, _ uint64, _ bool) bool {
		if at+g.leapt > t {
			return false
		}
		count[failed]--
		count[ready]++
		return true
	})
	if g.timed == g.disk[failed] {
		return
	}
	// After a change of mode, or a replay, something failed stands behind others.
	g.fault(g.rows.Scan(g.rows.prefix(rowQueue), nil, func(k, v []byte) bool {
		r, err := decodeQueueRow(k, v)
		if err != nil || r.kind != queueWhole {
			return err == nil
		}
		e, err := g.entryOf(k, r)
		if _, keyed := g.keyOf(r.key); err != nil || !keyed || e.at != failed || e.until > t {
			return err == nil
		}
		if ks := g.keyAnywhere(r.key); ks.blocked(e.offset) {
			count[failed]--
			count[parked]++
		} else if !ks.cold || e.offset != ks.queue.first {
			count[failed]--
			count[deferred]++
		}
		return true
	}))
}
