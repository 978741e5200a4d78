package consumer

import "github.com/strandmq/strandmq/partition"

// HandOut is one applied hand-out.
type HandOut struct {
	Offset    partition.Offset
	Number    uint64 // of the hand-out in the group's partition: the fence
	Epoch     uint64
	Ordinal   uint32
	Attempt   uint32
	Size      uint32
	Replayed  bool
	Deadline  partition.Millis
	FirstSeen partition.Millis
}

func (g *group) handOutOf(i int32) HandOut {
	e := &g.entries[i]
	return HandOut{
		Offset: e.offset, Number: e.handOut, Epoch: g.epoch, Ordinal: e.ordinal, Attempt: e.attempts,
		Size: e.size, Replayed: e.replayed, Deadline: e.until, FirstSeen: e.firstSeen,
	}
}

// plan decides a proposed plan: every hand-out in it is checked against the
// state as it is now, and what no longer holds is void. A void redelivery
// changes nothing; a scanned message that is not handed out waits.
func (a *App) plan(at partition.Position, g *group, r *reader) {
	g.forgetMembers()
	epoch, id := r.uvarint(), r.uvarint()
	void := epoch != g.epoch || g.paused
	var open *openPlan
	if g.hand != nil {
		open = g.hand.planApplied(id)
	}
	// Who gets something. A member whose session ended gets nothing.
	n := r.count(10)
	who := a.holders[:0]
	var sessions, requests []uint64
	if n > 0 {
		sessions, requests = make([]uint64, n), make([]uint64, n)
	}
	for i := range n {
		name := r.string()
		sessions[i], requests[i] = r.uvarint(), r.fixed64()
		m := none
		if !void && r.bad == "" {
			m = g.memberOf(name)
			if sessions[i] < g.members[m].sessions {
				m = none
			}
		}
		who = append(who, m)
	}
	a.holders = who

	for range r.count(2) {
		o, w := r.uvarint(), r.uvarint()
		if r.bad != "" || w >= uint64(n) {
			r.fail("no such member in the plan")
			break
		}
		i, ok := g.offsets.find(o)
		if !ok {
			continue
		}
		if m := who[w]; m != none && g.mayGo(i) && g.canHold(m) {
			g.give(i, m, sessions[w], requests[w])
			g.handed(i, open, int(w))
		}
		if open != nil && ok {
			g.hand.unplan(partition.Offset(o))
		}
	}

	o := partition.Offset(r.uvarint())
	stop := void
	switch {
	case stop || o <= g.scanned:
	case o <= at.Start && o <= at.End:
		// Retention was faster: what it removed is lost to this group.
		g.rows.putRun(run{g.scanned, o - 1, byExpiry})
		g.skipped += uint64(o - g.scanned)
		g.expired += uint64(o - g.scanned)
		g.scanned = o
	default:
		stop = true // an earlier plan was void in part
	}
	for range r.count(10) {
		hash, size, w := r.fixed64(), r.uint32(), r.uvarint()
		if r.bad != "" || w > uint64(n) {
			r.fail("no such member in the plan")
			break
		}
		if open != nil && w > 0 {
			g.hand.unreserve(hash)
		}
		if !stop && o == g.scanned && o < at.End {
			stop = !g.scan(o, hash, size, w, who, sessions, requests, open)
		}
		o++
	}
	if open != nil {
		g.hand.planDone(open)
	}
}

// canHold tells whether the limits let a member get one more.
func (g *group) canHold(m int32) bool {
	return g.count[inFlight] < uint64(g.policy.MaxInFlightPartition) &&
		g.members[m].held < g.policy.MaxInFlightMember
}

// scan looks at the next message of the log: it is handed out to the planned
// member if its key is free, and waits otherwise. It tells whether to go on:
// at the limits of what may wait the group looks no further.
func (g *group) scan(o partition.Offset, hash uint64, size uint32, w uint64, who []int32, sessions, requests []uint64, open *openPlan) bool {
	free := true
	if key, keyed := g.keyOf(hash); keyed {
		if k, ok := g.hashes.find(key); ok {
			free = false
			if ks := &g.keys[k]; ks.waiting-ks.inFlight >= int32(g.policy.MaxDeferredKey) {
				return false
			}
		}
	}
	m := none
	if free && w > 0 {
		if m = who[w-1]; m != none && !g.canHold(m) {
			m = none
		}
	}
	if m == none && !g.room() {
		return false
	}
	g.scanned = o + 1
	i := g.enter(o, hash, size)
	if m == none {
		g.enqueue(i)
		return true
	}
	if key, keyed := g.keyOf(hash); keyed {
		k := g.openKey(key)
		ks := &g.keys[k]
		ks.head, ks.tail, ks.waiting = i, i, 1
		g.entries[i].key = k
	}
	g.give(i, m, sessions[w-1], requests[w-1])
	g.handed(i, open, int(w-1))
	return true
}

// handed tells the hand of a hand-out, and settles it where that is the policy.
func (g *group) handed(i int32, open *openPlan, w int) {
	if open != nil {
		open.handed(w, g.handOutOf(i))
	}
	if g.policy.AtMostOnce {
		g.take(i, notEnded)
		g.acknowledge(i)
	}
}
