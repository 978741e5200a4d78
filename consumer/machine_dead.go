package consumer

import "github.com/strandmq/strandmq/partition"

// die moves an entry, whose last attempt is given, to the dead letters.
func (g *group) die(i int32, last Attempt) {
	e := &g.entries[i]
	row := deadRow{
		keyHash: e.keyHash, size: e.size, ordinal: e.ordinal, handOut: e.handOut,
		firstSeen: e.firstSeen, deadSince: g.clock, last: e.last,
	}
	if e.replayed {
		before, _, err := g.rows.dead(e.offset)
		g.fault(err)
		row.attempts, row.history = before.attempts, before.history
		g.replaying--
	}
	row.attempts += e.attempts
	if e.history {
		since, err := g.rows.history(e.offset)
		g.fault(err)
		row.history = append(row.history, since...)
		g.rows.del(rowHistory, e.offset)
	}
	row.history = lastAttempts(append(row.history, last))
	o, hash := e.offset, e.keyHash
	g.rows.putDead(o, &row)
	g.dead++
	g.finish(e.ordinal)
	k := e.key
	g.dequeue(i)
	g.leave(i)
	if k != none {
		g.relieve(k)
	}
	if key, keyed := g.keyOf(hash); keyed && g.policy.OnExhaustion == Park {
		g.block(key, o)
	}
}

// addHistory keeps a failed attempt on disk: what fails for hours must not
// grow in memory.
func (g *group) addHistory(e *entry, a Attempt) {
	var as []Attempt
	if e.history {
		var err error
		as, err = g.rows.history(e.offset)
		g.fault(err)
	}
	as = lastAttempts(append(as, a))
	g.rows.Put(g.rows.key(rowHistory, e.offset), appendAttempts(nil, as))
	e.history = true
}

// deadResult is what became of a replay or discard.
type deadResult struct {
	done    int  // replayed, or discarded
	already int  // replayed before and not handled yet
	missing int  // no dead letter there
	limited bool // stopped at the limit of replayed messages
}

// replay sets dead letters to be handed out again: before whatever of their key
// waits, since their offsets are lower, with fresh attempts.
func (g *group) replay(at partition.Position, offsets []partition.Offset) (res deadResult) {
	for n, o := range offsets {
		row, ok, err := g.rows.dead(o)
		g.fault(err)
		switch {
		case !ok:
			res.missing++
			continue
		case row.replaying:
			res.already++
			continue
		case g.replaying >= uint64(g.policy.MaxDeferred):
			res.limited = true
			note := voids{g: g, at: at.Index}
			for _, o := range offsets[n:] {
				note.one(o)
			}
			return res
		}
		row.replaying = true
		g.rows.putDead(o, &row)
		g.dead--
		g.replaying++
		res.done++
		if o >= g.scanned {
			// The group was reset to before it: it comes when the scan does, for
			// messages of its key that are not scanned yet come first.
			g.ahead--
			g.again++
			g.unblock(row.keyHash, o)
			continue
		}
		i := g.enter(o, row.keyHash, row.size)
		g.revive(i, &row)
		g.enqueue(i)
		g.settleIn(i)
		g.unblock(row.keyHash, o)
	}
	return res
}

// revive makes an entry that of a dead letter that is delivered again.
func (g *group) revive(i int32, row *deadRow) {
	e := &g.entries[i]
	e.ordinal, e.handOut, e.firstSeen = row.ordinal, row.handOut, row.firstSeen
	e.last, e.replayed = row.last, true
}

// discard gives dead letters up.
func (g *group) discard(offsets []partition.Offset) (res deadResult) {
	for _, o := range offsets {
		row, ok, err := g.rows.dead(o)
		g.fault(err)
		switch {
		case !ok:
			res.missing++
			continue
		case row.replaying:
			res.already++
			continue
		}
		g.rows.dropDead(o, row.keyHash)
		g.dropCopy(o)
		g.rows.putRun(run{o, o, byDiscard})
		g.dead--
		g.skipped++
		g.unblock(row.keyHash, o)
		res.done++
	}
	return res
}

// eachDead calls fn with the dead letters from an offset on, in order.
func (g *group) eachDead(from partition.Offset, fn func(o partition.Offset, d deadRow) bool) error {
	var bad error
	err := g.rows.Scan(g.rows.prefix(rowDead), g.rows.key(rowDead, from), func(k, v []byte) bool {
		d, err := decodeDead(k, v)
		if err != nil {
			bad = err
			return false
		}
		return fn(lastOffset(k), d)
	})
	if err != nil {
		return err
	}
	return bad
}

// deadOfKey lists the offsets of a key's dead letters, by hash, in order.
func (g *group) deadOfKey(hash uint64) ([]partition.Offset, error) {
	var os []partition.Offset
	prefix := g.rows.key(rowDeadKey, partition.Offset(hash))
	err := g.rows.Scan(prefix, nil, func(k, _ []byte) bool {
		os = append(os, lastOffset(k))
		return true
	})
	return os, err
}

// fault keeps the first error of a row that cannot be read: Apply returns it
// and the replica stops.
func (g *group) fault(err error) {
	if err != nil && g.broken == nil {
		g.broken = err
	}
}
