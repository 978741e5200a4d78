package consumer

import "github.com/strandmq/strandmq/partition"

// handOut is one applied hand-out.
type handOut struct {
	Offset    partition.Offset
	Number    uint64 // of the hand-out in the group's partition: the fence
	Epoch     uint64
	Ordinal   uint32
	Attempt   uint32
	Size      uint32
	Replayed  bool
	Settled   bool // by being handed out: the group is at-most-once
	HandedAt  partition.Millis
	Deadline  partition.Millis
	FirstSeen partition.Millis
}

func (g *group) handOutOf(i int32) handOut {
	e := &g.entries[i]
	return handOut{
		Offset: e.offset, Number: e.handOut, Epoch: g.epoch, Ordinal: e.ordinal, Attempt: e.attempts,
		Size: e.size, Replayed: e.replayed, HandedAt: g.shown(e.handedAt), Deadline: g.shown(e.until), FirstSeen: e.firstSeen,
	}
}

// plan decides a proposed plan: every hand-out in it is checked against the
// state as it is now, and what no longer holds is void. A void redelivery
// changes nothing; a scanned message that is not handed out waits.
//
// What the leader foresaw is right if the log ends where it thought it would: the
// plan stands right behind the messages that it counted on, and a duplicate among
// them has no offset, so the log ends earlier. Then no offset from there on can be
// trusted to be the message that the plan took it for.
func (a *App) plan(at partition.Position, g *group, r *reader, see foresight) {
	g.forgetMembers()
	epoch, id := r.uvarint(), r.uvarint()
	note := voids{g: g, at: at.Index}
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
			note.one(partition.Offset(o))
			continue
		}
		if m := who[w]; m != none && g.mayGo(i) && g.canHold(m) {
			g.handOut(i, m, sessions[w], requests[w])
			g.handed(i, open, int(w))
		} else {
			note.one(partition.Offset(o))
		}
		if open != nil {
			g.hand.unplan(partition.Offset(o))
		}
	}

	o := partition.Offset(r.uvarint())
	stop := void || o > g.scanned // an earlier plan was void in part
	right := at.End
	if see.end != at.End {
		right = min(right, see.from)
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
		before := g.handOuts
		if !stop && o == g.scanned && o < right {
			stop = !g.scan(o, hash, size, w, who, sessions, requests, open)
		}
		switch {
		case g.handOuts != before:
			note.end()
		case w > 0:
			note.void(o)
		default: // nobody was to get it: it may stand in a run or not
		}
		o++
	}
	note.end()
	if open != nil {
		g.hand.planDone(open)
	}
}

// canHold tells whether the limits let a member get one more.
func (g *group) canHold(m int32) bool {
	return g.mayProbe(g.clock) && g.count[inFlight] < uint64(g.policy.MaxInFlightPartition) &&
		g.members[m].held < g.policy.MaxInFlightMember
}

// scan looks at the next message of the log: it is handed out to the planned
// member if its key is free, and waits otherwise. It tells whether to go on:
// at the limits of what may wait the group looks no further.
//
// Only after a reset is anything known of what it comes to: dead letters are
// passed over, and replayed ones take their place here.
func (g *group) scan(o partition.Offset, hash uint64, size uint32, w uint64, who []int32, sessions, requests []uint64, open *openPlan) bool {
	row, dead, passed := g.known(o)
	if passed {
		g.scanned = o + 1
		g.ahead--
		return true
	}
	free := true
	if key, keyed := g.keyOf(hash); keyed {
		free = g.keyFree(key, o)
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
	if m == none && !dead && g.queued(queuedMessage{o, hash, size}) {
		return true
	}
	i := g.enter(o, hash, size)
	if dead {
		g.again--
		g.revive(i, &row)
	}
	if m == none {
		g.enqueue(i)
		g.settleIn(i)
		return true
	}
	if key, keyed := g.keyOf(hash); keyed {
		k := g.openKey(key)
		ks := &g.keys[k]
		ks.head, ks.tail, ks.waiting = i, i, 1
		g.entries[i].key = k
	}
	g.handOut(i, m, sessions[w-1], requests[w-1])
	g.handed(i, open, int(w-1))
	return true
}

// keyFree tells whether a message that the scan comes to can go at once, as far
// as its key is concerned. A dead letter does not hold up what stands before it.
func (g *group) keyFree(key uint64, o partition.Offset) bool {
	k, ok := g.hashes.find(key)
	if !ok {
		ks, cold := g.onShelf(key)
		return !cold || ks.queue.n == 0 && !ks.blocked(o)
	}
	ks := &g.keys[k]
	return ks.waiting == 0 && !ks.blocked(o)
}

// queued puts a message that the scan comes to into its key's queue on disk,
// where that has begun or has to.
func (g *group) queued(m queuedMessage) bool {
	key, keyed := g.keyOf(m.hash)
	if !keyed {
		return false
	}
	k, ok := g.hashes.find(key)
	if !ok {
		ks, cold := g.onShelf(key)
		if !cold || ks.queue.n == 0 && !ks.blocked(m.offset) {
			return false
		}
		g.push(&ks.queue, key, m)
		g.countIn(&ks, m.offset, false)
		g.putKey(&ks)
		return true
	}
	ks := &g.keys[k]
	if ks.queue.n == 0 && (ks.waiting == 0 || ks.waiting < g.bounds.ofKey && g.inMemory() < g.bounds.messages) {
		return false
	}
	g.push(&ks.queue, key, m)
	g.countIn(ks, m.offset, false)
	g.soil(k)
	return true
}

// known is what is known of a message that the scan comes to: it is a dead
// letter, to be delivered again or to be passed over, or was discarded.
func (g *group) known(o partition.Offset) (row deadRow, dead, passed bool) {
	if g.ahead+g.again == 0 {
		return deadRow{}, false, false
	}
	row, dead, passed, err := g.rows.known(o)
	g.fault(err)
	return row, dead, passed
}

// known is that of a group that has such rows.
func (r rowsOf) known(o partition.Offset) (row deadRow, dead, passed bool, err error) {
	row, dead, err = r.dead(o)
	if err != nil {
		return deadRow{}, false, false, err
	}
	if dead {
		return row, true, !row.replaying, nil
	}
	_, passed, err = r.skippedAt(o)
	return deadRow{}, false, passed, err
}

// handed tells the hand of a hand-out, and settles it where that is the policy.
func (g *group) handed(i int32, open *openPlan, w int) {
	if open != nil {
		h := g.handOutOf(i)
		h.Settled = g.policy.AtMostOnce
		open.handed(w, h)
	}
	if g.policy.AtMostOnce {
		g.endHandOut(i, notEnded)
		g.acknowledge(i)
	}
}
