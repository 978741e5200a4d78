package peer

import "sync"

// overhead is what a message in the queue takes beside its bytes.
const overhead = 64

// queue holds what waits to be written to one connection. It takes messages only
// while a connection is there, so nothing piles up for a node that is down.
type queue struct {
	limit  int
	signal chan struct{} // something is there; holds one

	mu    sync.Mutex
	open  bool     // guarded by mu
	items [][]byte // guarded by mu
	bytes int      // guarded by mu: of items, and of what was taken and is being written
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, signal: make(chan struct{}, 1)}
}

// put queues a message and takes it over. An empty queue takes any message.
func (q *queue) put(b []byte) bool {
	q.mu.Lock()
	size := len(b) + overhead
	if !q.open || q.bytes > 0 && q.bytes+size > q.limit {
		q.mu.Unlock()
		return false
	}
	q.items = append(q.items, b)
	q.bytes += size
	first := len(q.items) == 1
	q.mu.Unlock()
	if first {
		select {
		case q.signal <- struct{}{}:
		default:
		}
	}
	return true
}

// take empties the queue into the slice that the last take gave, whose messages
// must have been written.
func (q *queue) take(last [][]byte) [][]byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	clear(last)
	q.items = last[:0]
	return items
}

// free gives the room of written messages back: their bytes and each one's overhead.
func (q *queue) free(bytes int) {
	q.mu.Lock()
	q.bytes -= bytes
	q.mu.Unlock()
}

// start opens the queue for a new connection, empty.
func (q *queue) start() { q.reset(true) }

// stop closes it and drops what waits; it returns how many messages those were.
func (q *queue) stop() int { return q.reset(false) }

func (q *queue) reset(open bool) (dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	dropped = len(q.items)
	q.open, q.items, q.bytes = open, nil, 0
	return dropped
}

// waiting is how many bytes wait.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}
