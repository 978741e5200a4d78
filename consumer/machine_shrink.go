package consumer

import "slices"

// idleSlots is how many empty slots a group keeps for the next message.
const idleSlots = 16

// shrink gives memory back when nothing waits and nothing is out: what a busy
// group needed, an idle one must not keep.
func (g *group) shrink() {
	if g.offsets.n > 0 {
		return
	}
	if cap(g.entries) > idleSlots {
		g.entries, g.vacancy = nil, none
		g.touching, g.touched = nil, nil
		g.offsets = table{}
	}
	if cap(g.gone) > idleSlots {
		g.gone = nil
	}
	if g.hashes.n == 0 && cap(g.keys) > idleSlots {
		g.keys, g.keyGap, g.hashes = nil, nil, table{}
	}
	if cap(g.soiled) > idleSlots {
		g.soiled = nil
	}
	if g.hand != nil {
		g.hand.shrink()
	}
}

// shrink forgets what was queued for a group in which nothing waits. Items left
// in heaps are those of what was settled, and the places that they name may be gone:
// they go whatever plan is on its way.
func (h *hand) shrink() {
	h.timers = heap{}
	for i := range h.lanes {
		h.lanes[i].ready = heap{}
	}
	if len(h.open) > 0 {
		return
	}
	h.lapses, h.reserved = nil, table{}
	if len(h.out) == 0 {
		h.out = nil
	}
	// Calls that ended are found by the next one; here there may be none.
	over := func(w *waiter) bool {
		_, open := w.Taker.Room()
		w.gone = w.gone || !open
		return w.gone
	}
	h.waiters = slices.DeleteFunc(h.waiters, over)
	for i := range h.lanes {
		l := &h.lanes[i]
		if l.queue = slices.DeleteFunc(l.queue, over); len(l.queue) == 0 {
			l.queue = nil
		}
	}
	if len(h.waiters) == 0 {
		h.waiters = nil
	}
}
