package broker

import (
	"sync"
	"time"

	"github.com/strandmq/strandmq/internal/httpapi"
)

// A pool is the memory that all streams of the node together may hold: batches that
// wait for the disk or for the caller to read the answers, deliveries on their way
// to members, and what keeps account of both.
//
//	held ████ ██ █ ████          a stream may hold an eighth of what is free: with few
//	free ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒    streams that is more than they want, and whoever takes
//	kept ░░░░░░                  much leaves more for the others than it took
//
// So nobody waits for a stream that does not move, and none has to be told of the
// others: as what is free shrinks, all shrink, and grow again with it. What a stream
// may hold in any case is set aside when it opens; a quarter of the pool is kept for
// that, and where it is used up, too, a stream is refused. (A. Choudhury and E. Hahne, "Dynamic queue length thresholds for
// shared-memory packet switches", 1998.)
type pool struct {
	max int64

	mu    sync.Mutex
	held  int64         // guarded by mu: by streams, or set aside for them
	freed chan struct{} // guarded by mu: closed when some of it is given back; nil: nobody waits
}

const (
	// leastHeld is what is set aside for a stream.
	leastHeld = 64 << 10
	// leastTaken is what a stream is given in any case: what is set aside holds it, and
	// the frame that goes on beside it.
	leastTaken = leastHeld / 2
	// batchCost is what a batch of a publish stream holds beside its bytes until it is
	// told: its answer, its place in the queues and what calls back.
	batchCost = 1 << 10
	// grantCost is what a hand-out holds that is not sent yet.
	grantCost = 128
	// deliveryCost is what a delivery of a frame holds beside its bytes.
	deliveryCost = 256
	// frameCopies is how often the bytes of a frame of deliveries are there while it
	// is sent: as read from the log, as messages, and encoded, in a buffer that grew.
	frameCopies = 4
)

// plainStream makes room for a stream of the plain HTTP API.
func (b *Broker) plainStream() (httpapi.Memory, error) {
	h, err := b.memory.open()
	if err != nil {
		return nil, wireError(b.explain(err), nil)
	}
	return plainMemory{h}, nil
}

// plainTopic tells the plain HTTP API how many partitions a topic has, and its incarnation.
func (b *Broker) plainTopic(name string) (partitions int, incarnation uint64, err error) {
	t, err := b.topic(name)
	if err != nil {
		return 0, 0, wireError(b.explain(err), nil)
	}
	return len(t.Partitions), t.Seed, nil
}

// plainMemory is a holding as the plain HTTP API asks for it.
type plainMemory struct{ h *holding }

// Take implements httpapi.Memory; what is taken together is mostly one message.
func (m plainMemory) Take(n int64) (bool, <-chan struct{}) { return m.h.take(n, true) }

// Give implements httpapi.Memory.
func (m plainMemory) Give(n int64) { m.h.give(n) }

// Close implements httpapi.Memory.
func (m plainMemory) Close() { m.h.close() }

// A holding is one stream's part of the pool.
type holding struct {
	pool *pool
	held int64 // guarded by pool.mu; below leastHeld the pool counts leastHeld
	over bool  // guarded by pool.mu: closed
}

// open sets the least aside for a stream, if there is room. It must be closed.
func (p *pool) open() (*holding, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held+leastHeld > p.max {
		return nil, &refusal{
			reason: "TOO_MANY_STREAMS", retryAfter: time.Second,
			text: "the streams that are open hold all the memory that streams may hold: close some and come again, or start the broker with a larger --stream-memory",
		}
	}
	p.held += leastHeld
	return &holding{pool: p}, nil
}

// take counts n bytes in that come together, if they are little, the stream may hold
// them, or the pool has them. If not, it returns what is closed when it is worth asking
// again. one tells that they are a single message: what is kept for the least of
// streams is for those, too, or large ones would wait for streams that do not move.
func (h *holding) take(n int64, one bool) (taken bool, freed <-chan struct{}) {
	p := h.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	most := p.shared()
	if one {
		most = p.max
	}
	more := max(h.held+n, leastHeld) - max(h.held, leastHeld)
	if n <= leastTaken || h.held+n <= p.bound() || p.held+more <= most {
		h.count(n)
		return true, nil
	}
	if p.freed == nil {
		p.freed = make(chan struct{})
	}
	return false, p.freed
}

// add counts n bytes in, whatever the pool has.
func (h *holding) add(n int64) {
	h.pool.mu.Lock()
	defer h.pool.mu.Unlock()
	h.count(n)
}

// give gives n bytes back.
func (h *holding) give(n int64) {
	p := h.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	h.count(-n)
	p.tell()
}

// count counts bytes in or out, unless the stream is over. pool.mu is held.
func (h *holding) count(n int64) {
	if !h.over {
		h.pool.held -= max(h.held, leastHeld)
		h.held += n
		h.pool.held += max(h.held, leastHeld)
	}
}

// close gives back all that is still held. What is counted afterwards is not.
func (h *holding) close() {
	p := h.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if !h.over {
		h.over = true
		p.held -= max(h.held, leastHeld)
		p.tell()
	}
}

// tell wakes who waits for room. p.mu is held.
func (p *pool) tell() {
	if p.freed != nil {
		close(p.freed)
		p.freed = nil
	}
}

// bound is how much a stream may hold. p.mu is held.
func (p *pool) bound() int64 { return max((p.shared()-p.held)/8, leastHeld) }

// shared is what of the pool is for more than the least of each stream.
func (p *pool) shared() int64 { return p.max - p.max/4 }

// room is how much of its bound a stream does not hold; none: 0 or less.
func (h *holding) room() int64 {
	h.pool.mu.Lock()
	defer h.pool.mu.Unlock()
	return h.pool.bound() - h.held
}

// inUse is what the streams hold.
func (p *pool) inUse() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}
