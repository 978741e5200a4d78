package sim

import (
	"container/heap"
	"iter"
	"time"
)

// event is what happens at a time; of two at one time the one that was asked for
// first.
type event struct {
	at   time.Duration
	seq  uint64
	what string
	do   func()
}

type events []*event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(*event)) }
func (h *events) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}

// after has something happen later.
func (s *Sim) after(d time.Duration, what string, do func()) {
	s.seq++
	heap.Push(&s.heap, &event{s.now + max(d, 0), s.seq, what, do})
}

// fiber is a call that waits for answers: it runs until it waits, and goes on where
// it was when it is told to. Only one thing runs at a time.
type fiber struct {
	s     *Sim
	next  func() (struct{}, bool)
	yield func(struct{}) bool
}

// spawn runs fn, which may call what waits.
func (s *Sim) spawn(fn func()) {
	f := &fiber{s: s}
	next, stop := iter.Pull(func(yield func(struct{}) bool) {
		f.yield = yield
		fn()
		delete(s.fibers, f)
	})
	f.next = next
	s.fibers[f] = stop
	f.resume()
}

func (f *fiber) resume() {
	was := f.s.fiber
	f.s.fiber = f
	f.next()
	f.s.fiber = was
}

// wait returns when f is resumed. It is false when the run has ended.
func (f *fiber) wait() bool { return f.yield(struct{}{}) }
