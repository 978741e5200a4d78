package logstore

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// compactions lets Pebble merge tables, as many at a time as it asks for, and
// holds it up where it would not hold itself: a compaction that meets damage
// fails, is picked again at once, reads and writes up to the damage, and fails.
// Each failure in a row doubles the pause before the next, during which the
// failed one keeps its place, so that another one may run beside it.
type compactions struct {
	first, longest time.Duration
	every          time.Duration // how often it is looked whether one more may run
	met            atomic.Int64  // when a compaction last met damage, unix nanoseconds
	ending         chan struct{}
	once           sync.Once

	mu       sync.Mutex
	db       pebble.DBForCompaction
	running  int
	inRow    int // failures without a success between
	closed   bool
	granting bool
	granted  *sync.Cond // granting ended
	stop     chan struct{}
}

func newCompactions(first time.Duration) *compactions {
	c := &compactions{first: first, longest: 64 * first, every: max(first/10, time.Millisecond), ending: make(chan struct{}), stop: make(chan struct{})}
	c.granted = sync.NewCond(&c.mu)
	return c
}

// failed tells that a compaction met damage.
func (c *compactions) failed() { c.met.Store(time.Now().UnixNano()) }

// end ends pauses, also those to come. It comes before Pebble is closed.
func (c *compactions) end() { c.once.Do(func() { close(c.ending) }) }

// Register implements pebble.CompactionScheduler.
func (c *compactions) Register(_ int, db pebble.DBForCompaction) {
	c.db = db
	go func() {
		t := time.NewTicker(c.every)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				c.grant()
			case <-c.stop:
				return
			}
		}
	}()
}

// Unregister implements pebble.CompactionScheduler.
func (c *compactions) Unregister() {
	c.stop <- struct{}{}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for c.granting {
		c.granted.Wait()
	}
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler. The
// ticker sees it, too.
func (c *compactions) UpdateGetAllowedWithoutPermission() {}

// TrySchedule implements pebble.CompactionScheduler.
func (c *compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.db.GetAllowedWithoutPermission() <= c.running {
		return false, nil // Pebble waits for a grant now
	}
	c.running++
	return true, c.newGrant()
}

// grant runs the compaction that waits, if one more may run.
func (c *compactions) grant() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.granting {
		c.granted.Wait()
	}
	for !c.closed && c.db.GetAllowedWithoutPermission() > c.running {
		c.running++
		c.granting = true
		c.mu.Unlock() // it takes locks of Pebble's
		waiting, _ := c.db.GetWaitingCompaction()
		taken := waiting && c.db.Schedule(c.newGrant())
		c.mu.Lock()
		c.granting = false
		c.granted.Broadcast()
		if !taken {
			c.running--
			return
		}
	}
}

func (c *compactions) newGrant() *grant { return &grant{c: c, began: time.Now().UnixNano()} }

// grant is the right to run one compaction.
type grant struct {
	c     *compactions
	began int64
}

// Started implements pebble.CompactionGrantHandle.
func (*grant) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (*grant) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (*grant) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements pebble.CompactionGrantHandle. It is called without any lock of
// Pebble's.
func (g *grant) Done() {
	c := g.c
	c.mu.Lock()
	pause := time.Duration(0)
	if c.met.Load() >= g.began {
		pause = min(c.first<<min(c.inRow, 10), c.longest)
		c.inRow++
	} else {
		c.inRow = 0
	}
	c.mu.Unlock()
	if pause > 0 {
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-c.ending:
		}
		t.Stop()
	}
	c.mu.Lock()
	c.running--
	c.mu.Unlock()
	c.grant()
}
