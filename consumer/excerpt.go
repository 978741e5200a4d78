package consumer

import (
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// Window is which of a message's events are told: the first ones and the latest.
type Window struct {
	First, Last int
	Before      partition.Index // only of entries before this one; 0: of all
}

// Has tells whether what happened in an entry is among what the window looks at.
func (w Window) Has(at partition.Index) bool { return w.Before == 0 || at < w.Before }

// Excerpt is what a window shows of a list that may be long: how it began, and the
// latest. It keeps little more than that.
type Excerpt[E any] struct {
	show  Window
	spare int // so many may be removed again
	first []E
	last  []E // once the first are full, and some before the latest
	cut   int // so many were left out between the two
}

// NewExcerpt begins an empty one. The window's Before is the caller's.
func NewExcerpt[E any](show Window) *Excerpt[E] { return &Excerpt[E]{show: show} }

// Len is how many were added, without those that were removed.
func (x *Excerpt[E]) Len() int { return len(x.first) + x.cut + len(x.last) }

// Add puts one at the end.
func (x *Excerpt[E]) Add(e E) {
	// Each of these may be removed, without one in its place: so twice as many.
	if len(x.first) < 2*x.show.First && len(x.last) == 0 && x.cut == 0 {
		x.first = append(x.first, e)
		return
	}
	// Room is made for twice as many, so that making it is rare.
	if keep := x.show.Last + x.spare; len(x.last) >= 2*keep {
		x.cut += len(x.last) - keep
		x.last = slices.Delete(x.last, 0, len(x.last)-keep)
	}
	x.last = append(x.last, e)
}

// Remove takes back what was added as number i, from 0: those behind it are one fewer.
func (x *Excerpt[E]) Remove(i int) {
	switch at := i - len(x.first) - x.cut; {
	case i < len(x.first):
		x.first = slices.Delete(x.first, i, i+1)
	case at >= 0:
		x.last = slices.Delete(x.last, at, at+1)
	default:
		x.cut--
	}
}

// Told is what is shown, in order, and how many were left out behind the window's first.
func (x *Excerpt[E]) Told() ([]E, uint64) {
	all, cut := slices.Concat(x.first, x.last), x.cut
	if more := len(all) - x.show.First - x.show.Last; more > 0 {
		all, cut = slices.Delete(all, x.show.First, x.show.First+more), cut+more
	}
	return all, uint64(cut)
}
