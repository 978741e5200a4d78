package logstore

import (
	"bytes"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// compactions lets Pebble merge tables, as many at a time as it asks for, and
// holds it up where it would not hold itself: a compaction that meets damage
// fails, is picked again at once, reads and writes up to the damage, and fails.
// Each failure in a row doubles the pause before the next.
//
// The pause lies inside the failed compaction, before it has ended, and it gives
// its place to others: what it was merging counts as being merged, so Pebble
// picks what can be merged beside it. If it had ended, Pebble would pick the same
// again, before all others and for ever: damage in the newest tables (level 0)
// makes them ever more, and they come first when they are many; with the
// thousandth, writes stop.
//
//	Started ── reads ── fails ── GetDiskUsage ── Done ── picked again
//	                      met      ├─ pause ─┤
//
// Pebble asks for the room on the disk when a compaction has done its work or
// failed, without a lock of its own: there is no other such moment. It does not
// say for which compaction it reads or asks; Started, reads, the question and Done
// have their goroutine in common, so that is what a running one is known by.
// Where the question does not come, in the rewriting of value files, the pause is
// in Done, and keeps its place.
type compactions struct {
	first, longest time.Duration
	every          time.Duration // how often it is looked whether one more may run
	ending         chan struct{}
	undo           func() // has nothing reach the disk any more
	once           sync.Once

	mu       sync.Mutex
	db       pebble.DBForCompaction
	running  int
	started  map[uint64]*grant // by goroutine, until they are done
	spoiled  map[uint64]bool   // goroutines that cut a table at damage, and whether they are held
	inRow    int               // failures that followed each other
	quiet    time.Time         // with no failure until then, the row has ended
	again    chan struct{}     // closed: what failed may be tried again
	closed   bool
	granting bool
	granted  *sync.Cond // granting ended
	stop     chan struct{}
}

func newCompactions(first time.Duration, undo func()) *compactions {
	c := &compactions{
		undo: undo,
		// An hour for a second: each try gathers the newest tables anew, and
		// what is merged between two tries stays apart from what was before.
		first: first, longest: 4096 * first, every: max(first/10, time.Millisecond),
		ending: make(chan struct{}), again: make(chan struct{}), stop: make(chan struct{}),
		started: make(map[uint64]*grant), spoiled: make(map[uint64]bool),
	}
	c.granted = sync.NewCond(&c.mu)
	return c
}

// failed tells that what runs in this goroutine met damage. Most often that is no
// compaction.
func (c *compactions) failed() {
	id := goroutine()
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.started[id]; g != nil {
		g.met = true
	}
	if cutting() {
		c.spoiled[id] = false
	}
}

// cutting tells whether this goroutine cuts a table: a compaction that takes away what a
// deleted range covers, and nothing else, makes what is left of a table on either side a
// table of its own, and looks for its first or last key. Damage there is no key to
// Pebble, and it would go on without that side, and without all rows in it.
func cutting() bool {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, ".exciseTable") {
			return true
		}
		if !more {
			return false
		}
	}
}

// worked tells that what runs in this goroutine has done its work, or failed. It
// returns when it may end.
func (c *compactions) worked() {
	id := goroutine()
	c.mu.Lock()
	if _, spoiled := c.spoiled[id]; spoiled {
		c.spoiled[id] = true
		c.mu.Unlock()
		// What it has done must not be, so it does not end. When it has to, nothing of
		// it reaches the disk.
		<-c.ending
		c.undo()
		return
	}
	g := c.started[id]
	if g == nil || !g.met || g.paused {
		c.mu.Unlock()
		return
	}
	g.paused = true
	c.running--
	pause, again := c.next()
	c.mu.Unlock()
	c.grant()
	c.wait(pause, again)
}

// next is the pause after one more failure. The lock is held.
func (c *compactions) next() (time.Duration, <-chan struct{}) {
	now := time.Now()
	if now.After(c.quiet) {
		c.inRow = 0
	}
	pause := min(c.first<<min(c.inRow, 20), c.longest)
	c.inRow++
	c.quiet = now.Add(3*pause + time.Minute)
	return pause, c.again
}

func (c *compactions) wait(pause time.Duration, again <-chan struct{}) {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-again:
	case <-c.ending:
	}
}

// retry ends the pauses there are: there is less damage than there was.
func (c *compactions) retry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inRow = 0
	close(c.again)
	c.again = make(chan struct{})
}

// goroutine is the number of the one that runs.
func goroutine() uint64 {
	var buf [40]byte
	line := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	digits, _, _ := bytes.Cut(line, []byte(" "))
	id, _ := strconv.ParseUint(string(digits), 10, 64)
	return id
}

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

func (c *compactions) newGrant() *grant { return &grant{c: c} }

// grant is the right to run one compaction. The lock of compactions is held
// around its fields.
type grant struct {
	c      *compactions
	id     uint64 // its goroutine
	met    bool   // damage
	paused bool   // or pauses: it has no place
}

// Started implements pebble.CompactionGrantHandle.
func (g *grant) Started() {
	g.id = goroutine()
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	g.c.started[g.id] = g
}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (*grant) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (*grant) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements pebble.CompactionGrantHandle. It is called without any lock of
// Pebble's.
func (g *grant) Done() {
	c := g.c
	c.mu.Lock()
	delete(c.started, g.id)
	var pause time.Duration
	var again <-chan struct{}
	if g.met && !g.paused {
		pause, again = c.next()
	}
	c.mu.Unlock()
	if pause > 0 {
		c.wait(pause, again)
	}
	c.mu.Lock()
	if !g.paused {
		c.running--
	}
	c.mu.Unlock()
	c.grant()
}
