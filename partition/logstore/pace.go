package logstore

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Memory tables are written to the log as fast as it takes them and to tables as
// fast as flushes go, which is slower. When four wait, Pebble lets every write
// wait until one is done: for as long as a second. So whoever writes is slowed
// down before, to what flushes achieve, and then further:
//
//	tables waiting, the one being filled by its part     share of the flush rate
//	below 2                                              no limit
//	2 .. 3                                               150 % .. 50 %
//	3 .. 4                                               50 % .. 25 %
//
// One table that is flushed while the next one fills is how it should be. What counts,
// as with Pebble, is what tables take, in whole ones of the configured size: after
// a start the first is small, and each next one twice as large.
type pace struct {
	largest int64        // what a memory table takes at most; set before use
	waiting atomic.Int64 // bytes of memory tables that are full and not flushed yet
	filled  atomic.Int64 // bytes in the one in use, about
	fresh   atomic.Int64 // bytes written since Pace was last asked

	mu    sync.Mutex
	rate  float64 // bytes a second that flushes achieve; guarded by mu
	size  int64   // of the table in use, about; guarded by mu
	queue []int64 // sizes of those that wait, oldest first; guarded by mu
}

// firstTable is the size of Pebble's first memory table.
const firstTable = 256 << 10

// firstRate stands in until a flush was seen.
const firstRate = 128 << 20

func (p *pace) wrote(n int) {
	p.filled.Add(int64(n))
	p.fresh.Add(int64(n))
}

// opened tells that the store is open, with one empty memory table: opening makes
// log files without filling any.
func (p *pace) opened(largest int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.largest, p.size, p.queue = largest, min(firstTable, largest), nil
	p.waiting.Store(0)
	p.filled.Store(0)
}

// rotated tells that a memory table is full.
func (p *pace) rotated() {
	p.mu.Lock()
	defer p.mu.Unlock()
	// One batch can make Pebble skip sizes.
	full := min(max(p.size, p.filled.Load()), p.largest)
	p.queue = append(p.queue, full)
	p.size = min(2*full, p.largest)
	p.waiting.Add(full)
	p.filled.Store(0)
}

// flushed tells that memory tables became tables.
func (p *pace) flushed(tables int, bytes uint64, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A batch that is too large for a memory table is one of its own, without
	// a rotation: so the count may be short for a while, and never long.
	gone := min(tables, len(p.queue))
	for _, size := range p.queue[:gone] {
		p.waiting.Add(-size)
	}
	p.queue = slices.Delete(p.queue, 0, gone)
	if bytes < 1<<20 || took <= 0 {
		return // the fixed costs are most of it
	}
	r := float64(bytes) / took.Seconds()
	if p.rate == 0 {
		p.rate = r
	}
	p.rate += (r - p.rate) / 4
}

// backlog is how many memory tables of the full size wait to be flushed, the one
// in use by its part.
func (s *Store) backlog() float64 {
	p, table := &s.pace, float64(s.cfg.MemTableBytes)
	return float64(p.waiting.Load())/table + min(float64(p.filled.Load())/table, 1)
}

// behind tells that flushes do not keep up, so that work in the background
// should wait.
func (s *Store) behind() bool { return s.backlog() >= 2 || s.Stalled() }

// Pace returns how long to wait before the next batch, so that flushes keep up
// with what was committed since the last call. It is 0 as long as they do. It is
// for one goroutine that commits everything.
func (s *Store) Pace() time.Duration {
	n := s.pace.fresh.Swap(0)
	b := s.backlog()
	if b < 2 || n == 0 {
		return 0
	}
	share := 1.5 - (b - 2)
	if b > 3 {
		share = max(0.5-(b-3)/4, 0.25)
	}
	s.pace.mu.Lock()
	rate := s.pace.rate
	s.pace.mu.Unlock()
	if rate == 0 {
		rate = firstRate
	}
	return time.Duration(float64(n) / (rate * share) * float64(time.Second))
}
