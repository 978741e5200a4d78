package consumer

import "github.com/strandmq/strandmq/partition"

// due is something to look at: a message that can be handed out, ordered by
// offset, or one whose deadline or wait ends, ordered by time.
type due struct {
	rank   uint64 // offset, or time
	until  partition.Millis
	offset partition.Offset
	slot   int32
}

// before orders what is due at one time by offset, so that the order of what is
// proposed follows from the state.
func (d due) before(o due) bool {
	return d.rank < o.rank || d.rank == o.rank && d.offset < o.offset
}

// heap is a binary heap of what is due, least first. Items are not removed when
// they cease to hold: whoever takes one out checks it, and prune drops the
// others once they outnumber those that hold. So a hand-out that is settled in
// time costs its deadline one comparison and no search.
type heap struct{ items []due }

func (h *heap) push(d due) {
	h.items = append(h.items, d)
	i := len(h.items) - 1
	for i > 0 {
		p := (i - 1) / 2
		if !d.before(h.items[p]) {
			break
		}
		h.items[i] = h.items[p]
		i = p
	}
	h.items[i] = d
}

func (h *heap) pop() due {
	top := h.items[0]
	n := len(h.items) - 1
	last := h.items[n]
	h.items = h.items[:n]
	if n > 0 {
		h.down(0, last)
	}
	return top
}

func (h *heap) down(i int, d due) {
	n := len(h.items)
	for {
		c := 2*i + 1
		if c >= n {
			break
		}
		if c+1 < n && h.items[c+1].before(h.items[c]) {
			c++
		}
		if !h.items[c].before(d) {
			break
		}
		h.items[i] = h.items[c]
		i = c
	}
	h.items[i] = d
}

// prune keeps the items that hold when there are far more than live can be.
func (h *heap) prune(live int, holds func(due) bool) {
	if len(h.items) <= 2*live+1024 {
		return
	}
	kept := h.items[:0]
	for _, d := range h.items {
		if holds(d) {
			kept = append(kept, d)
		}
	}
	h.items = kept
	for i := len(kept)/2 - 1; i >= 0; i-- {
		h.down(i, kept[i])
	}
}
