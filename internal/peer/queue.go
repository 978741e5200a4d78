package peer

import "sync"

// overhead is what a message in the queue takes beside its bytes.
const overhead = 64

// urgentShare of the queue's limit is room for urgent messages beside the others:
// without it a queue that is full of what is large would keep out what is small.
const urgentShare = 8

// queue holds what waits to be written to one connection. It takes messages only
// while a connection is there, so nothing piles up for a node that is down. Urgent
// ones go before the others; of each kind they keep their order.
type queue struct {
	limit  int
	signal chan struct{} // something is there; holds one

	mu     sync.Mutex
	open   bool     // guarded by mu
	items  [][]byte // guarded by mu
	urgent [][]byte // guarded by mu
	// guarded by mu: of items, and of what was taken of them and is being written; and
	// the same of urgent
	bytes, urgentBytes int
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, signal: make(chan struct{}, 1)}
}

// put queues a message and takes it over. An empty queue takes any message.
func (q *queue) put(b []byte, urgent bool) bool {
	items, bytes, limit := &q.items, &q.bytes, q.limit
	if urgent {
		items, bytes, limit = &q.urgent, &q.urgentBytes, q.limit/urgentShare
	}
	q.mu.Lock()
	size := len(b) + overhead
	if !q.open || *bytes > 0 && *bytes+size > limit {
		q.mu.Unlock()
		return false
	}
	*items = append(*items, b)
	*bytes += size
	first := len(*items) == 1
	q.mu.Unlock()
	if first {
		select {
		case q.signal <- struct{}{}:
		default:
		}
	}
	return true
}

// take empties the queue of what is not urgent into the slice that the last take
// gave, whose messages must have been written.
func (q *queue) take(last [][]byte) [][]byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	clear(last)
	q.items = last[:0]
	return items
}

// takeUrgent takes what is urgent; nil: there is nothing.
func (q *queue) takeUrgent() [][]byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.urgent
	q.urgent = nil
	return items
}

// free gives the room of written messages back: their bytes and each one's overhead.
func (q *queue) free(bytes int, urgent bool) {
	q.mu.Lock()
	if urgent {
		q.urgentBytes -= bytes
	} else {
		q.bytes -= bytes
	}
	q.mu.Unlock()
}

// start opens the queue for a new connection, empty.
func (q *queue) start() { q.reset(true) }

// stop closes it and drops what waits; it returns how many messages those were.
func (q *queue) stop() int { return q.reset(false) }

func (q *queue) reset(open bool) (dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	dropped = len(q.items) + len(q.urgent)
	q.open, q.items, q.urgent, q.bytes, q.urgentBytes = open, nil, nil, 0, 0
	return dropped
}

// waiting is how many bytes wait.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes + q.urgentBytes
}
