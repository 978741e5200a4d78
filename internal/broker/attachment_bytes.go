package broker

// What other nodes hand out is held at the node of the member until the member takes
// it, so it has to count there before it is sent. A node hands out only what it has
// bytes for, beside credit, and says when it has something larger:
//
//	lend ──grant_bytes──► lender: hands out within them ──handed──► given ──Poll──► member
//	  ▲  └─ counted                └─ wants_bytes: the next is larger        └─ counts elsewhere
//	  └─────────────── room is made as the member takes ◄──────────────────────┘
//
// A node that hands out nothing has a few KiB, however many messages its member asked
// for. The window doubles each time it is too small, up to what a frame may have or the
// memory allows, and is small again after a time in which nothing went out.

// lend grants bytes, as the memory of streams allows. mu is held.
func (a *attachment) lend() {
	mem := a.g.mem
	a.short = nil
	if mem == nil || a.over {
		return
	}
	waiting := a.g.waiting.Load()
	least := leastFrame / max(1, a.g.crowd.Load())
	most := func() int64 { return max(least, min(a.window, mem.room()/(4*frameCopies))) }
	switch need := a.wants - a.bytes; {
	case need <= 0:
		a.wants = 0
	case waiting == 0 || waiting+a.wants <= most():
		taken, freed := mem.take(need*frameCopies, true)
		if !taken {
			a.short = freed
			return
		}
		a.bytes, a.gives, a.wants = a.bytes+need, a.gives+need, 0
		a.window = min(2*max(a.window, least), frameBytes)
	}
	// At most half of it is asked for at a time, so that frames are worth their way.
	if n := most() - waiting - a.bytes; n >= most()/2 {
		if taken, _ := mem.take(n*frameCopies, false); taken {
			a.bytes, a.gives = a.bytes+n, a.gives+n
		}
	}
}

// repaid gives the memory back of bytes that came, and count as waiting, or were given
// back.
func (a *attachment) repaid(n int64, wants bool) {
	mem := a.g.mem
	if mem == nil {
		if wants { // so there is something
			nudge(a.g.starved)
		}
		return
	}
	if n != 0 {
		mem.give(n * frameCopies)
	}
	if n != 0 || wants {
		nudge(a.wake)
	}
}

// shrink calls back what is more than the least.
func (a *attachment) shrink() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.window > 0 && !a.over {
		a.window, a.shrinks = 0, true
		nudge(a.wake)
	}
}
