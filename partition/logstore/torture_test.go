package logstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

func newMem() *vfs.MemFS { return vfs.NewCrashableMem() }

// testConfig makes tables small, so that flushes, compactions and new log files
// happen within a few batches.
func testConfig(fsys vfs.FS) Config {
	return Config{Dir: "store", FS: fsys, MemTableBytes: 256 << 10, CacheBytes: 1 << 20, MinSyncInterval: -1, pause: time.Microsecond, ScrubBytesPerSecond: -1}
}

// powerCut runs batches, cuts the power at a random moment, opens what is left
// on the disk, and does it again with that.
func powerCut(t *testing.T, seed uint64, unsynced bool) error {
	t.Helper()
	r := newRun(seed)
	mem := newMem()
	for range 4 {
		cfg := testConfig(mem)
		cfg.unsynced = unsynced
		s, err := Open(cfg)
		if err != nil {
			return err
		}
		if err := r.check(s); err != nil {
			_ = s.Close()
			return err
		}
		// The cut falls before, during or after the fsync of some batch, or
		// right at the start.
		cutAt := r.rng.IntN(50)
		how := vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(seed, 2))}
		if r.rng.IntN(3) > 0 {
			how.UnsyncedDataPercent = r.rng.IntN(101)
		}
		cut, begun, disk := make(chan *vfs.MemFS, 1), false, mem
		for i := range cutAt {
			acked := r.acked
			var between func()
			if i == cutAt-1 {
				between = func() {
					begun = true
					go func() { cut <- disk.CrashClone(how) }()
				}
			}
			if err := r.step(s, between); err != nil {
				return err
			}
			if begun {
				// The cut may have come before this batch was synced.
				r.acked = acked
			}
		}
		if begun {
			mem = <-cut
		} else {
			mem = disk.CrashClone(how)
		}
		if err := s.Close(); err != nil {
			return err
		}
	}
	return nil
}

func TestPowerCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(trials(30)) {
		if err := powerCut(t, seed, false); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// TestPowerCutNoticesNoSync is the control: a store that does not fsync must
// not pass.
func TestPowerCutNoticesNoSync(t *testing.T) {
	for seed := range uint64(20) {
		err := powerCut(t, seed, true)
		var d *ErrDamaged
		switch {
		case err == nil:
		case errors.Is(err, errForgot), errors.As(err, &d) && strings.Contains(d.What, "older than what was acknowledged"):
			t.Logf("noticed at seed %d: %v", seed, err)
			return
		default:
			t.Fatalf("seed %d: failed, but not for want of an fsync: %v", seed, err)
		}
	}
	t.Fatal("a store without fsync passed: the test of power cuts proves nothing")
}

// failNth lets the n-th file system operation of a kind fail, once or from then
// on, and checks what the store makes of it. It tells whether the operation
// was reached.
func failNth(seed uint64, n int64, kind errorfs.OpReadWrite, sticky bool) (hit bool, err error) {
	mem := newMem()
	var count atomic.Int64
	var armed atomic.Bool
	fsys := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !armed.Load() || op.Kind.ReadOrWrite() != kind || op.Kind == errorfs.OpRemove {
			return nil
		}
		if c := count.Add(1); c == n || (sticky && c > n) {
			return errorfs.ErrInjected
		}
		return nil
	}))
	r := newRun(seed)
	var stopped atomic.Int64
	cfg := testConfig(fsys)
	cfg.OnFault = func(f Fault) {
		if f.Stopped {
			stopped.Add(1)
		}
	}
	// A store with some data, then the errors.
	s, err := Open(cfg)
	if err != nil {
		return false, err
	}
	for range 20 {
		if err := r.step(s, nil); err != nil {
			return false, err
		}
	}
	if err := s.Close(); err != nil {
		return false, err
	}
	r.acked = r.at
	armed.Store(true)
	s, err = Open(cfg)
	if err == nil {
		err = r.check(s)
		for i := 0; i < 60 && err == nil; i++ {
			if err = r.step(s, nil); err == nil && i%10 == 0 {
				err = r.now.compare(s)
			}
		}
		if f := s.Err(); f != nil {
			// Stopped: every call says so, with the first error.
			b := s.NewBatch()
			if _, cerr := s.Commit(b); cerr != f {
				return true, fmt.Errorf("commit after the failure: %v, want %v", cerr, f)
			}
			if _, gerr := s.Entries(1, 1, 2, 0); gerr != f {
				return true, fmt.Errorf("entries after the failure: %v, want %v", gerr, f)
			}
			if _, gerr := s.LastIndex(1); gerr != f {
				return true, fmt.Errorf("last index after the failure: %v, want %v", gerr, f)
			}
			if _, gerr := s.HardState(1); gerr != f {
				return true, fmt.Errorf("hard state after the failure: %v, want %v", gerr, f)
			}
			if werr := s.SyncWitness(); werr != f {
				return true, fmt.Errorf("witness after the failure: %v, want %v", werr, f)
			}
			if err == nil {
				return true, fmt.Errorf("failed without telling a caller")
			}
		}
		if err != nil && !errors.Is(err, errorfs.ErrInjected) {
			_ = s.Close()
			return true, fmt.Errorf("not the injected error: %w", err)
		}
		_ = s.Close()
		if s.Err() != nil && stopped.Load() > 1 {
			return true, fmt.Errorf("OnFault was told %d times", stopped.Load())
		}
	}
	armed.Store(false)
	hit = count.Load() >= n
	// What is on the disk, and only that, must hold all that was acknowledged.
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	s, err = Open(testConfig(clone))
	if err != nil {
		return hit, fmt.Errorf("after the failure: %w", err)
	}
	if err := r.check(s); err != nil {
		_ = s.Close()
		return hit, fmt.Errorf("after the failure: %w", err)
	}
	return hit, s.Close()
}

func TestFailNth(t *testing.T) {
	t.Parallel()
	for _, kind := range []errorfs.OpReadWrite{errorfs.OpIsWrite, errorfs.OpIsRead} {
		for _, sticky := range []bool{false, true} {
			name := fmt.Sprintf("%v/sticky=%v", kind, sticky)
			t.Run(name, func(t *testing.T) {
				// The sample looks at every operation of the open and then at
				// ever wider gaps; with more trials the gaps close.
				step := int64(max(1, 400/max(12, trials(25))))
				runs := 0
				for n := int64(1); ; n += 1 + rand.New(rand.NewPCG(uint64(n), 3)).Int64N(2*step) {
					hit, err := failNth(uint64(n), n, kind, sticky)
					if err != nil {
						t.Fatalf("operation %d: %v", n, err)
					}
					if !hit {
						break
					}
					runs++
				}
				t.Logf("%d runs", runs)
				if runs < 5 {
					t.Fatal("hardly any operation was hit")
				}
			})
		}
	}
}
