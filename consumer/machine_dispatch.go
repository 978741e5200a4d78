package consumer

import "github.com/strandmq/strandmq/partition"

const (
	maxPlanItems   = 4096    // messages in one plan: keeps a turn under a millisecond or two
	maxPlanBytes   = 4 << 20 // of log that one turn looks at
	maxPlanMembers = 1024    // calls that one plan gives to: its table stays small
	maxOpenPlans   = 4       // plans of a group on their way at once
	maxLapses      = 4096    // in one command

	// A plan that was not applied after so long is taken for lost. If it comes
	// after all it is applied like any other.
	planPatience partition.Millis = 30_000
	// So long after a lapse was proposed it is proposed again.
	lapsePatience partition.Millis = 5_000
	notedEvery    partition.Millis = 500
)

// drive is a group's part of the leader's turn.
func (h *hand) drive(now partition.Millis, log partition.Log, cmds [][]byte) (_ [][]byte, wake partition.Millis) {
	h.flush()
	at := h.keepTime(now)
	cmds = h.catchUp(now, cmds)
	cmds = h.fire(at, cmds)
	cmds = h.wakeShelf(at, cmds)
	if len(h.open) > 0 && h.pace.passed-h.open[0].at > planPatience {
		h.rewind()
		h.rebuild()
	}
	more := false
	h.note(now)
	if !h.g.paused && len(h.waiters) > 0 && len(h.open) < maxOpenPlans {
		cmds, more = h.makePlan(at, log, cmds)
	}
	if !more && !h.behind && len(h.open) < maxOpenPlans {
		h.tell()
	}
	if more {
		return cmds, now
	}
	return cmds, h.wakeToRead(now, h.wake(now))
}

// note remembers who waits for work, for those who ask what holds it up. It asks
// all of them twice a second at most, and new ones at once.
func (h *hand) note(now partition.Millis) {
	ask := h.fresh
	if now < h.noted || now-h.noted >= notedEvery {
		ask, h.noted = h.waiters, now
	}
	for _, w := range ask {
		if w.gone || w.rests { // without credit nothing is asked for
			continue
		}
		if _, open := w.Taker.Room(); !open {
			continue
		}
		if m := h.memberOf(w); m != none {
			ms := &h.g.members[m]
			ms.asked, ms.askedIn, ms.share, ms.of = now, w.Session, w.Share, w.Shares
		}
	}
	clear(h.fresh)
	h.fresh = h.fresh[:0]
}

// fire proposes lapses, and lets go what waited for its next attempt.
func (h *hand) fire(now partition.Millis, cmds [][]byte) [][]byte {
	h.lapses = h.lapses[:0]
	for len(h.timers.items) > 0 && partition.Millis(h.timers.items[0].rank) <= now && len(h.lapses) < maxLapses {
		d := h.timers.pop()
		if !h.ticks(d) {
			continue
		}
		e := &h.g.entries[d.slot]
		if e.at == failed {
			h.pushReady(d.slot)
			continue
		}
		h.lapses = append(h.lapses, lapse{e.offset, e.handOut})
		h.pushTimer(d.slot, now+lapsePatience)
	}
	if len(h.lapses) > 0 {
		cmds = append(cmds, encodeLapses(now, h.g.id, h.g.epoch, h.lapses))
	}
	return cmds
}

// makePlan plans hand-outs to those who wait: first of what was scanned
// before, then of what follows in the log. It tells whether there is more to do
// at once.
func (h *hand) makePlan(now partition.Millis, log partition.Log, cmds [][]byte) (_ [][]byte, more bool) {
	// A plan that was given up for lost and came after all may have scanned on.
	h.next = max(h.next, h.g.scanned)
	probe := h.g.breaker.open
	if probe && (h.planned > 0 || !h.g.mayProbe(now)) {
		return cmds, false
	}
	if !h.work(log) || !h.wanted() {
		return cmds, false
	}
	h.lastID++
	p := &openPlan{id: h.lastID, at: h.pace.passed}
	h.writer.reset(h.next)
	h.stint = h.stintOf(log)
	budget := int(h.g.policy.MaxInFlightPartition) - int(h.g.count[inFlight]) - h.planned
	full := false
	if probe {
		budget = min(budget, 1)
		h.probe(now, p, &budget)
	} else {
		full = h.redeliver(now, p, &budget)
	}
	if !full {
		full = h.look(log, p, &budget)
	}
	w := h.writer
	if w.nAgain == 0 && w.nScan == 0 {
		return cmds, false
	}
	p.end = h.next
	h.open = append(h.open, p)
	h.planned += w.planned
	p.pending = w.nScan - (w.planned - w.nAgain)
	h.pending += p.pending
	if h.g.policy.AtMostOnce {
		h.reserved.clear()
	}
	return append(cmds, w.encode(now, h.g.id, h.g.epoch, p.id, log.Position().End, log.Foreseen())), full
}

// maxStint is how many neighbours one waiter gets before the next one's turn.
const maxStint = 64

// stintOf divides what there is to hand out among those who wait, by share.
func (h *hand) stintOf(log partition.Log) int {
	some := 0
	if end := log.Foreseen(); end > h.next {
		some = int(min(end-h.next, 1<<20))
	}
	queue := 1
	for i := range h.lanes {
		some += len(h.lanes[i].ready.items)
		queue = max(queue, len(h.lanes[i].queue))
	}
	return max(1, min(maxStint, some/(queue*len(h.lanes))))
}

// work tells whether there may be something to hand out or to scan.
func (h *hand) work(log partition.Log) bool {
	for i := range h.lanes {
		if len(h.lanes[i].ready.items) > 0 {
			return true
		}
	}
	return !h.behind && h.next < log.Foreseen() && !h.stands(h.pace.turn)
}

// wanted finds which lanes have somebody with room.
func (h *hand) wanted() bool {
	some := false
	for i := range h.lanes {
		l := &h.lanes[i]
		l.dry = true
		for n := 0; n < len(l.queue); n++ {
			w := l.queue[n]
			now, open := w.Taker.Room()
			if !open || w.gone {
				w.gone = true
				l.queue = append(l.queue[:n], l.queue[n+1:]...)
				n--
				continue
			}
			if !now && h.rest(w) {
				n--
				continue
			}
			if now && h.canHold(w) {
				l.dry, some = false, true
				break
			}
		}
	}
	return some
}

// canHold tells whether a waiter's member may get one more here.
func (h *hand) canHold(w *waiter) bool {
	m := h.memberOf(w)
	if m == none {
		return true
	}
	ms := &h.g.members[m]
	return ms.held+ms.planned < h.g.policy.MaxInFlightMember && w.Session >= ms.sessions
}

// pick finds who gets a message of a lane: the waiters in turn, each for a stint
// of neighbours, so that what one member gets and settles is runs.
func (h *hand) pick(l *lane, p *openPlan, size uint32) (index int32) {
	for tries := len(l.queue); tries > 0 && len(l.queue) > 0; tries-- {
		if l.cursor >= len(l.queue) {
			l.cursor = 0
		}
		w := l.queue[l.cursor]
		if l.stint++; l.stint >= h.stint {
			l.stint = 0
			l.cursor++
		}
		if (w.plan == p.id || len(p.waiters) < maxPlanMembers) && !w.gone && h.canHold(w) {
			if w.Taker.Reserve(int(size)) {
				return h.taken(w, p, size)
			}
			if h.rest(w) {
				l.stint = 0
				continue
			}
		}
		if l.stint > 0 { // it got its last one
			l.stint = 0
			l.cursor++
		}
	}
	l.dry = true
	return none
}

// taken notes that a waiter's credit was taken for a plan.
func (h *hand) taken(w *waiter, p *openPlan, size uint32) int32 {
	if w.plan != p.id {
		w.plan, w.index = p.id, len(p.waiters)
		p.waiters = append(p.waiters, w)
		p.taken = append(p.taken, credit{})
		p.got = append(p.got, nil)
		h.writer.table = append(h.writer.table, planMember{w.Member, w.Session, w.Request})
		if h.memberOf(w) == none {
			// Known from here on, so that what is planned for it is counted.
			w.slot = h.g.memberOf(w.Member)
		}
	}
	c := &p.taken[w.index]
	c.n++
	c.bytes += int(size)
	h.g.members[w.slot].planned++
	return int32(w.index)
}

// redeliver plans messages that were scanned before. It tells whether the plan
// is full.
func (h *hand) redeliver(now partition.Millis, p *openPlan, budget *int) (full bool) {
	for i := range h.lanes {
		l := &h.lanes[i]
		l.ready.prune(int(h.g.count[ready]+h.g.count[failed]), func(d due) bool { return h.goes(d, now) || h.early(d, now) })
		for len(l.ready.items) > 0 && !l.dry && *budget > 0 {
			if h.writer.nAgain >= maxPlanItems {
				return true
			}
			d := l.ready.items[0]
			if !h.goes(d, now) {
				l.ready.pop()
				if h.early(d, now) {
					h.pushTimer(d.slot, h.g.entries[d.slot].until)
				}
				continue
			}
			e := &h.g.entries[d.slot]
			w := h.pick(l, p, e.size)
			if w == none {
				break
			}
			l.ready.pop()
			e.planned = true
			p.again = append(p.again, e.offset)
			h.writer.redeliver(e.offset, int(w))
			*budget--
		}
	}
	return false
}

// look plans the next messages of the log: those whose key is free go to
// somebody, the others are scanned so that what is behind them can go.
func (h *hand) look(log partition.Log, p *openPlan, budget *int) (full bool) {
	at := log.Position()
	end := log.Foreseen()
	if h.behind || h.next >= end || h.next < at.Start || *budget <= 0 || h.stands(h.pace.turn) {
		return false
	}
	amo, one := h.g.policy.AtMostOnce, h.g.policy.Mode == ByPartition
	wait := h.pending + int(h.g.waiting())
	stopped := false
	wet := 0
	for i := range h.lanes {
		if !h.lanes[i].dry {
			wet++
		}
	}
	if wet == 0 {
		return false
	}
	err := log.Keys(h.next, maxPlanBytes, func(o partition.Offset, hash uint64, size int) bool {
		stopped = true
		if o != h.next || *budget <= 0 || wet == 0 {
			return false
		}
		if h.writer.nScan >= maxPlanItems {
			stopped = false
			return false
		}
		if _, _, passed := h.g.known(o); passed {
			h.writer.pass(hash, uint32(size), none)
			h.next++
			stopped = false
			return true
		}
		free := true
		key, keyed := h.g.keyOf(hash)
		if keyed {
			if free = h.g.keyFree(key, o); one && !free {
				return false
			}
		}
		w := none
		if free {
			l := &h.lanes[0]
			if len(h.lanes) > 1 {
				l = &h.lanes[shareOf(hash, uint32(len(h.lanes)))]
			}
			index, again := int32(0), false
			if keyed {
				index, again = h.reserved.find(key)
			}
			switch {
			case again && !amo:
				if one {
					return false
				}
			case again:
				// At most once, the key is free again at once: the same member
				// gets its next, so that its order is seen by one.
				if to := p.waiters[index]; !h.canHold(to) || !to.Taker.Reserve(size) {
					return false
				} else {
					w = h.taken(to, p, uint32(size))
				}
			case !l.dry:
				w = h.pick(l, p, uint32(size))
				if w == none {
					wet--
				}
			}
			if w != none && keyed {
				h.reserved.put(key, w)
			}
		}
		if w == none {
			if wet == 0 || one || wait >= int(h.g.policy.MaxDeferred) {
				return false
			}
			wait++
		} else {
			*budget--
		}
		h.writer.pass(hash, uint32(size), w)
		h.next++
		stopped = false
		return true
	})
	if err != nil {
		h.cannotRead(err)
	}
	// What stopped short of the end for its size goes on in the next turn; what
	// stopped for want of room waits for an event.
	return err == nil && !stopped && h.next < end
}
