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
	max    atomic.Int64
	bucket [len(fsyncBounds) + 1]atomic.Int64
}

func (s *syncStats) observe(d time.Duration) {
	s.count.Add(1)
	s.total.Add(int64(d))
	for {
		m := s.max.Load()
		if int64(d) <= m || s.max.CompareAndSwap(m, int64(d)) {
			break
		}
	}
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
	FsyncMax    time.Duration
	FsyncCounts []int64 // by FsyncBuckets

	Batches       uint64        // committed, over the store's life
	Synced        uint64        // the newest of them known to be synced
	WriteStalls   int64         // times that writes had to wait for flushes
	WriteStallFor time.Duration // all together

	MemTableBytes  uint64 // not yet flushed
	MemTables      int64  // 1 when flushes keep up; at 4 writes wait
	L0Sublevels    int32
	CompactionDebt uint64 // bytes that compactions still have to move
	LogBytes       uint64 // of the log files that a restart would replay
	TableBytes     uint64 // tables and value files in use
	DiskBytes      uint64 // all that is on disk
	CacheHits      int64
	CacheMisses    int64
}

// Metrics reads the counters. It takes locks of the write path for a moment:
// once a second is fine, once a batch is not.
func (s *Store) Metrics() Metrics {
	m := Metrics{
		Fsyncs:        s.syncs.count.Load(),
		FsyncTotal:    time.Duration(s.syncs.total.Load()),
		FsyncMax:      time.Duration(s.syncs.max.Load()),
		FsyncCounts:   make([]int64, len(s.syncs.bucket)),
		Synced:        s.synced.Load(),
		WriteStalls:   s.stalls.Load(),
		WriteStallFor: time.Duration(s.stallTime.Load()),
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
	m.MemTableBytes = p.MemTable.Size
	m.MemTables = p.MemTable.Count
	m.L0Sublevels = p.Levels[0].Sublevels
	m.CompactionDebt = p.Compact.EstimatedDebt
	m.LogBytes = p.WAL.PhysicalSize
	total := p.Total()
	m.TableBytes = uint64(total.TablesSize) + total.EstimatedReferencesSize
	m.DiskBytes = p.DiskSpaceUsage()
	m.CacheHits, m.CacheMisses = p.BlockCache.Hits, p.BlockCache.Misses
	return m
}

// Stalled tells whether commits wait for flushes just now. It is cheap.
func (s *Store) Stalled() bool { return s.stallSince.Load() != 0 }

// DiskUsage is the room of the file system that the store lies on.
type DiskUsage struct {
	Total, Available uint64 // of the file system, bytes
	Store            uint64 // used by this store
}

// DiskUsage asks the file system.
func (s *Store) DiskUsage() (DiskUsage, error) {
	if err := s.enter(); err != nil {
		return DiskUsage{}, err
	}
	defer s.leave()
	u, err := s.cfg.FS.GetDiskUsage(s.cfg.Dir)
	if err != nil {
		return DiskUsage{}, err
	}
	return DiskUsage{Total: u.TotalBytes, Available: u.AvailBytes, Store: s.db.Metrics().DiskSpaceUsage()}, nil
}
