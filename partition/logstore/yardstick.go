package logstore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Yardstick tells what a disk and a bare Pebble give, for benchmarks to be a
// share of: how many values of a size a second committers store in a store of
// the same options, each value synced before its committer goes on with the
// next. There is no log, no checksum and no witness. It runs for as long as it
// is told to and leaves its files in cfg.Dir, which is to be empty. Only tests
// call it; a test of the house holds that.
func Yardstick(cfg Config, size, committers int, during time.Duration) (perSecond float64, err error) {
	s := &Store{cfg: cfg.withDefaults()}
	// The filesystem as it is: a failed write fails the measurement.
	s.fs = &guardFS{FS: s.cfg.FS, syncs: &s.syncs, report: s.fail}
	o := s.pebbleOptions(false)
	o.FS = s.cfg.FS
	db, err := pebble.Open(s.cfg.Dir, o)
	if err != nil {
		return 0, fmt.Errorf("yardstick: %w", err)
	}
	var (
		stored  atomic.Int64
		over    atomic.Bool
		mu      sync.Mutex
		failed  error
		running sync.WaitGroup
	)
	began := time.Now()
	for g := range committers {
		running.Go(func() {
			value := make([]byte, size)
			var key []byte
			for i := uint64(1); !over.Load(); i++ {
				key = appendEntryKey(key[:0], uint64(g+1), i)
				if err := db.Set(key, value, pebble.Sync); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
				stored.Add(1)
			}
		})
	}
	time.Sleep(during) // the length of the measurement
	over.Store(true)
	running.Wait()
	perSecond = float64(stored.Load()) / time.Since(began).Seconds()
	if err := db.Close(); failed == nil && err != nil {
		failed = err
	}
	if failed != nil {
		return 0, fmt.Errorf("yardstick: %w", failed)
	}
	return perSecond, nil
}
