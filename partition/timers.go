package partition

import (
	"container/heap"
	"math"
)

// never is the time of what nobody asked for.
const never = Millis(math.MaxInt64)

// timers are when to look at which replica: the earliest first, and of two at
// the same time the one with the lower id.
type timers struct{ h timerHeap }

type timer struct {
	at Millis
	r  *replica
}

func (ts *timers) push(t timer) { heap.Push(&ts.h, t) }

// next is when the first one is due; never if there is none.
func (ts *timers) next() Millis {
	if len(ts.h) == 0 {
		return never
	}
	return ts.h[0].at
}

// due takes one whose time has come; nil when there is none.
func (ts *timers) due(now Millis) *replica {
	if len(ts.h) == 0 || ts.next() > now {
		return nil
	}
	return heap.Pop(&ts.h).(timer).r
}

// timerHeap implements heap.Interface.
type timerHeap []timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h timerHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(t any)        { *h = append(*h, t.(timer)) }
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = timer{}
	*h = (*h)[:last]
	return t
}

func (t timer) before(u timer) bool { return t.at < u.at || t.at == u.at && t.r.id < u.r.id }
