package consumer

import (
	"cmp"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// Retention, as the groups of a partition see it. The log decides what is to go
// (partition.TrimTo); each group has its say in Keeps, and in Trim, the same log
// entry, takes its leave of what goes:
//
//   - what it holds is kept, up to its limit;
//   - what it had not settled is lost, with a record (machine_loss.go), and the
//     next message of the key goes on;
//   - what is dead, or was dead and is delivered again, is copied
//     (machine_copy.go): from then on the copy is the message.

// copyChunk is how many dead letters one trim copies at most, and copyBytes how
// much: it keeps the partition's turn short. The next trim goes on.
const (
	copyChunk = 1000
	copyBytes = 8 << 20
)

// needs is the first message that the group has not settled: neither handled,
// nor dead, whether or not it is delivered again. It is a question, so a row that
// cannot be read is its answer and breaks nothing.
func (g *group) needs() (partition.Offset, error) {
	f := g.scanned
	for i := range g.entries {
		if e := &g.entries[i]; e.at != vacant && !e.replayed && e.offset < f {
			f = e.offset
		}
	}
	f, err := g.needsOnDisk(f)
	if err != nil || f < g.scanned {
		return f, err
	}
	for left := g.ahead + g.again; left > 0; left-- {
		_, dead, passed, err := g.rows.known(f)
		if err != nil || !dead && !passed {
			return f, err
		}
		f++
	}
	return f, nil
}

// needsOnDisk is the first message on disk before an offset that was not dead
// before; else the offset.
func (g *group) needsOnDisk(f partition.Offset) (first partition.Offset, bad error) {
	first = f
	if g.onDisk() == 0 {
		return first, nil
	}
	err := g.rows.Scan(g.rows.prefix(rowQueue), nil, func(k, v []byte) bool {
		if lastOffset(k) >= f {
			return false
		}
		r, err := decodeQueueRow(k, v)
		if err == nil && r.kind == queueWhole {
			var e entry
			if e, err = g.entryOf(k, r); err == nil && e.replayed {
				return true
			}
		}
		first, bad = lastOffset(k), err
		return false
	})
	return first, cmp.Or(err, bad)
}

// Keeps implements partition.Trimmer.
func (a *App) Keeps(at partition.Position, t partition.TrimTo, log partition.Kept) (partition.Offset, error) {
	to := t.To
	if t.Done && len(a.groups) > 0 {
		done := at.End
		for _, g := range a.groups {
			need, err := g.needs()
			if err != nil {
				return 0, err
			}
			done = min(done, need)
		}
		to = max(to, done)
	}
	for _, g := range a.groups {
		if g.policy.Retention != Hold {
			continue
		}
		need, err := g.needs()
		if err != nil {
			return 0, err
		}
		if need >= to {
			continue
		}
		if !t.Firm {
			least, err := g.holds(t, log)
			if err != nil {
				return 0, err
			}
			need = max(need, least)
		}
		to = min(to, need)
	}
	// A trim copies no more dead letters than its turn can bear.
	for _, g := range a.groups {
		left, bytes := copyChunk, copyBytes
		err := g.eachDead(at.Start, func(o partition.Offset, d deadRow) bool {
			if o >= to {
				return false
			}
			left--
			bytes -= int(d.size)
			if left < 0 || bytes < 0 && left < copyChunk-1 {
				to = o
				return false
			}
			return true
		})
		if err != nil {
			return 0, err
		}
		if g.broken != nil {
			return 0, g.broken
		}
	}
	return max(to, at.Start), nil
}

// holds is the first message that the group's limits still let it hold.
func (g *group) holds(t partition.TrimTo, log partition.Kept) (least partition.Offset, err error) {
	if most := g.policy.HoldBytes; most > 0 {
		// What the topic's own limits would keep is not charged to the group.
		end, _, err := log.Before(t.To)
		if err != nil {
			return 0, err
		}
		if end > most {
			if least, err = log.Find(end-most, 0); err != nil {
				return 0, err
			}
		}
	}
	if most := g.policy.HoldAge; most > 0 {
		young, err := log.Find(0, t.Now-most)
		if err != nil {
			return 0, err
		}
		least = max(least, young)
	}
	return least, nil
}

// Takes implements partition.Trimmer.
func (a *App) Takes(_ partition.Position, to partition.Offset) (os []partition.Offset, err error) {
	for _, g := range a.groups {
		of, err := g.uncopied(to)
		if err != nil {
			return nil, err
		}
		os = append(os, of...)
	}
	slices.Sort(os)
	return slices.Compact(os), nil
}

// Trim implements partition.Trimmer.
func (a *App) Trim(_ partition.Position, t partition.TrimTo, to partition.Offset, log partition.Kept) error {
	for _, g := range a.groups {
		if err := g.copyDead(to, log); err != nil {
			return err
		}
		was := a.mark(g)
		why := g.expire(to, t)
		g.kept = max(g.kept, to)
		if g.broken != nil {
			return g.broken
		}
		a.tell(g, was, why)
	}
	return nil
}

// expire takes from the group what is before an offset and not settled, and
// writes down what it lost, and why.
func (g *group) expire(to partition.Offset, t partition.TrimTo) (why lossCause) {
	why = lossBySize
	switch {
	case g.policy.Retention == Hold:
		why = lossByLimit
	case t.Why == partition.ByAge:
		why = lossByAge
	}
	var on losses
	g.expireQueued(to, &on)
	var lost []partition.Offset
	for i := range g.entries {
		if e := &g.entries[i]; e.at != vacant && !e.replayed && e.offset < to {
			lost = append(lost, e.offset)
		}
	}
	slices.SortFunc(lost, cmp.Compare)
	for _, o := range lost {
		if i, ok := g.offsets.find(uint64(o)); ok {
			g.lose(i)
		}
	}
	for _, o := range lost {
		on.add(o)
	}
	n := on.n
	l := loss{first: on.first, last: on.last, cause: why, from: t.Now, until: t.Now}
	if g.scanned < to {
		from := g.scanned
		unseen := g.expireUnseen(to)
		if unseen > 0 {
			if l.last = to - 1; n == 0 {
				l.first = from
			}
		}
		n += unseen
	}
	if n == 0 {
		return why
	}
	g.skipped += n
	g.expired += n
	l.count = n
	g.addLoss(l)
	return why
}

// lose forgets an entry whose message is gone. A token of it is stale from now
// on; what it hid behind it comes up.
func (g *group) lose(i int32) {
	if g.entries[i].at == inFlight {
		g.gaveBack(g.entries[i].handOut)
		g.endHandOut(i, notEnded)
	}
	if e := &g.entries[i]; e.history {
		g.rows.del(rowHistory, e.offset)
	}
	g.dequeue(i)
	g.leave(i)
}

// expireUnseen counts what of the messages up to an offset the group has not
// looked at: all but dead letters, and what was discarded before a reset. Dead
// letters that the scan was to find and deliver again are found here.
func (g *group) expireUnseen(to partition.Offset) uint64 {
	gone := uint64(to - g.scanned)
	var n uint64
	for _, r := range g.gaps(g.scanned, to, byReset) {
		n += uint64(r.last - r.first + 1)
	}
	var again []partition.Offset
	if g.again > 0 {
		g.fault(g.eachDead(g.scanned, func(o partition.Offset, d deadRow) bool {
			if o < to && d.replaying {
				again = append(again, o)
			}
			return o < to
		}))
	}
	g.again -= uint64(len(again))
	g.ahead -= gone - n - uint64(len(again))
	g.scanned = to
	for _, o := range again {
		row, _, err := g.rows.dead(o)
		g.fault(err)
		i := g.enter(o, row.keyHash, row.size)
		g.revive(i, &row)
		g.enqueue(i)
		g.settleIn(i)
	}
	return n
}

// answerOffsets is for how many offsets before the log's start a group remembers
// what became of them: who sends an ack again, since the first answer was lost,
// must not hear otherwise because the message was removed meanwhile.
const answerOffsets = 64 << 10

// answers is the first offset of which the group can tell what became of it.
func (g *group) answers() partition.Offset { return g.kept - min(g.kept, answerOffsets) }

// lost tells whether a message that is gone may have been lost to the group. A
// record has no more than its ends.
func (g *group) lost(o partition.Offset) bool {
	for _, l := range g.keeping().losses {
		if l.first <= o && o <= l.last {
			return true
		}
	}
	return false
}
