// Package histogram counts values by buckets, for whoever counts where every nanosecond
// is one of a delivery's: equal values that come one after the other are added at once.
//
//	one goroutine:  Run.Add, Run.Add, ... Run.Flush ─┐
//	any goroutine:  Histogram.Add ───────────────────┼─► Histogram ──Read──► Reading
//
// It promises that counts only grow, that a Reading's count is the sum of its buckets,
// and that nobody waits for anybody. It knows no names, labels and units: those are of
// whoever shows it.
package histogram

import "sync/atomic"

// Histogram is counts of values by upper bounds. Any goroutine may use it.
type Histogram struct {
	bounds []int64
	counts []atomic.Uint64 // one more than bounds: what is above them
	sum    atomic.Int64
}

// New makes a histogram with these upper bounds, which ascend, and one bucket for what is
// above all of them.
func New(bounds ...int64) *Histogram {
	return &Histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
}

// Add counts a value n times.
func (h *Histogram) Add(v int64, n int) {
	if n <= 0 {
		return
	}
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i].Add(uint64(n))
	h.sum.Add(v * int64(n))
}

// Reading is a histogram at one moment.
type Reading struct {
	Bounds []int64
	UpTo   []uint64 // how many values are not above each bound
	Count  uint64   // all
	Sum    int64
}

// Read reads the counts. What is added meanwhile is in some of them.
func (h *Histogram) Read() Reading {
	r := Reading{Bounds: h.bounds, UpTo: make([]uint64, len(h.bounds)), Sum: h.sum.Load()}
	for i := range h.counts {
		r.Count += h.counts[i].Load()
		if i < len(r.UpTo) {
			r.UpTo[i] = r.Count
		}
	}
	return r
}

// Add adds another reading of the same bounds.
func (r *Reading) Add(x Reading) {
	if r.Bounds == nil {
		r.Bounds, r.UpTo = x.Bounds, make([]uint64, len(x.UpTo))
	}
	for i, n := range x.UpTo {
		r.UpTo[i] += n
	}
	r.Count, r.Sum = r.Count+x.Count, r.Sum+x.Sum
}

// Run gathers equal values that follow each other. Its zero value is ready, of one
// goroutine, and of one histogram.
type Run struct {
	value int64
	n     int
}

// Add counts a value once, at Flush or before.
func (r *Run) Add(h *Histogram, v int64) {
	if v != r.value {
		r.Flush(h)
		r.value = v
	}
	r.n++
}

// Flush gives the histogram what was gathered.
func (r *Run) Flush(h *Histogram) {
	h.Add(r.value, r.n)
	r.n = 0
}
