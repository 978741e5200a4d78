package logstore

import (
	"sync/atomic"
	"time"
)

// FsyncBuckets are the upper bounds of Metrics.FsyncCounts; one more count is
// for what took longer.
func FsyncBuckets() []time.Duration {
	return append([]time.Duration(nil), fsyncBounds[:]...)
}

var fsyncBounds = [...]time.Duration{
	100 * time.Microsecond, 200 * time.Microsecond, 400 * time.Microsecond, 800 * time.Microsecond,
	1600 * time.Microsecond, 3200 * time.Microsecond, 6400 * time.Microsecond, 12800 * time.Microsecond,
	25600 * time.Microsecond, 51200 * time.Microsecond, 102400 * time.Microsecond, 204800 * time.Microsecond,
	409600 * time.Microsecond, 819200 * time.Microsecond, 1638400 * time.Microsecond, 3276800 * time.Microsecond,
}

// syncStats counts fsyncs of the log by how long they took.
type syncStats struct {
	count  atomic.Int64
	total  atomic.Int64
	bucket [len(fsyncBounds) + 1]atomic.Int64
}

func (s *syncStats) observe(d time.Duration) {
	s.count.Add(1)
	s.total.Add(int64(d))
	i := 0
	for i < len(fsyncBounds) && d > fsyncBounds[i] {
		i++
	}
	s.bucket[i].Add(1)
}

// Metrics is how the store has been doing since it was opened.
type Metrics struct {
	Fsyncs      int64         // of the log
	FsyncTotal  time.Duration // all together
	FsyncCounts []int64       // by FsyncBuckets

	Batches       uint64        // committed, over the store's life
	WriteStalls   int64         // times that writes had to wait for flushes
	WriteStallFor time.Duration // all together

	SlowWrites int64         // to the disk, that took a second or more
	StuckFor   time.Duration // see Store.Stuck

	L0Sublevels    int32  // tables that a read may have to look into
	CompactionDebt uint64 // bytes that compactions still have to move
	LogBytes       uint64 // of the log files that a restart would replay
	DiskBytes      uint64 // all that is on disk
	CacheHits      int64  // blocks of tables that were in memory
	CacheMisses    int64

	// What Config.Memory bounds, as it is now.
	MemTableBytes uint64 // set aside for tables not yet on disk, those that a read still holds included
	CacheBytes    int64  // of blocks
}

// Metrics reads the counters. It takes locks of the write path for a moment:
// once a second is fine, once a batch is not.
func (s *Store) Metrics() Metrics {
	m := Metrics{
		Fsyncs:        s.syncs.count.Load(),
		FsyncTotal:    time.Duration(s.syncs.total.Load()),
		FsyncCounts:   make([]int64, len(s.syncs.bucket)),
		WriteStalls:   s.stalls.Load(),
		WriteStallFor: time.Duration(s.stallTime.Load()),
		SlowWrites:    s.fs.watch.slow.Load(),
		StuckFor:      s.Stuck(),
	}
	for i := range s.syncs.bucket {
		m.FsyncCounts[i] = s.syncs.bucket[i].Load()
	}
	if s.enter() != nil {
		return m
	}
	defer s.leave()
	s.commitMu.Lock()
	m.Batches = s.counter
	s.commitMu.Unlock()
	p := s.db.Metrics()
	m.L0Sublevels = p.Levels[0].Sublevels
	m.CompactionDebt = p.Compact.EstimatedDebt
	m.LogBytes = p.WAL.PhysicalSize
	// The engine counts as local only the value files made since it was opened.
	local, all := &p.BlobFiles.Local, &p.BlobFiles
	m.DiskBytes = p.DiskSpaceUsage() - local.LiveSize - local.ObsoleteSize - local.ZombieSize +
		all.LiveSize + all.ObsoleteSize + all.ZombieSize
	m.CacheHits, m.CacheMisses, m.CacheBytes = p.BlockCache.Hits, p.BlockCache.Misses, p.BlockCache.Size
	m.MemTableBytes = p.MemTable.Size + p.MemTable.ZombieSize
	return m
}

// Stalled tells whether commits wait for flushes just now. It is cheap.
func (s *Store) Stalled() bool { return s.stallSince.Load() != 0 }
