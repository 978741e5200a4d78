package broker

import (
	"sync"
	"sync/atomic"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
)

// live is the sessions that have a stream on this node, so that calls beside
// the stream reach it.
type live struct {
	mu sync.RWMutex
	of map[uint64]*attendance                      // guarded by mu: by session
	in map[consumer.GroupID]map[uint64]*attendance // guarded by mu: those with a window
}

// An attendance is a session with a stream, as calls beside it see it.
type attendance struct {
	group   consumer.GroupID
	session uint64
	left    atomic.Bool // Leave was called
	window  *window     // of a Subscribe stream; nil: its deliveries are settled on the stream
}

func newLive() *live {
	return &live{of: map[uint64]*attendance{}, in: map[consumer.GroupID]map[uint64]*attendance{}}
}

func (l *live) add(a *attendance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of[a.session] = a
	if a.window == nil {
		return
	}
	if l.in[a.group] == nil {
		l.in[a.group] = map[uint64]*attendance{}
	}
	l.in[a.group][a.session] = a
}

func (l *live) remove(a *attendance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, a.session)
	delete(l.in[a.group], a.session)
	if len(l.in[a.group]) == 0 {
		delete(l.in, a.group)
	}
}

// leaving tells a session's stream that it ends by a Leave.
func (l *live) leaving(session uint64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if a := l.of[session]; a != nil {
		a.left.Store(true)
	}
}

// settled tells the windows of a group what became of deliveries.
func (l *live) settled(g consumer.GroupID, list []consumer.Settlement, results []consumer.SettleResult) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, a := range l.in[g] {
		a.window.settled(list, results)
	}
}

// A window is the deliveries of a Subscribe stream that are not settled. They
// are settled by calls beside the stream, or lapse, and then others may follow.
type window struct {
	free func(n int) // so many more may be handed out

	mu  sync.Mutex
	out map[handed]partition.Millis // guarded by mu: when each lapses
}

// handed names one hand-out.
type handed struct {
	partition partition.PartitionID
	fence     uint64
}

func newWindow(free func(n int)) *window {
	return &window{free: free, out: map[handed]partition.Millis{}}
}

// add notes deliveries on their way to the member, and tells how many of them are
// settled already: they make room when they are sent.
func (w *window) add(h *consumer.Handed) (settled int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range h.Deliveries {
		d := &h.Deliveries[i]
		if d.Settled {
			settled++
			continue
		}
		w.out[handed{h.Partition, d.Fence}] = d.Deadline
	}
	return settled
}

func (w *window) settled(list []consumer.Settlement, results []consumer.SettleResult) {
	n := 0
	w.mu.Lock()
	for i, r := range results {
		of := handed{list[i].Token.Partition, list[i].Token.HandOut}
		if _, ours := w.out[of]; !ours || r.Err != nil {
			continue // what is stale lapses
		}
		if list[i].Action == consumer.Extend {
			w.out[of] = r.Deadline
			continue
		}
		delete(w.out, of)
		n++
	}
	w.mu.Unlock()
	if n > 0 {
		w.free(n)
	}
}

// lapsed drops what has lapsed by now.
func (w *window) lapsed(now partition.Millis) {
	n := 0
	w.mu.Lock()
	for of, deadline := range w.out {
		if deadline <= now {
			delete(w.out, of)
			n++
		}
	}
	w.mu.Unlock()
	if n > 0 {
		w.free(n)
	}
}
