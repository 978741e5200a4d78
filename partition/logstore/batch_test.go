package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestRefusals holds what Append and its like refuse, and that a refused batch
// writes nothing.
func TestRefusals(t *testing.T) {
	s := mustOpen(t, testConfig(newMem()))
	defer func() { _ = s.Close() }()
	commit(t, s, func(b *Batch) {
		_ = b.Append(1, []Entry{entry(2, 1, 10), entry(2, 2, 10), entry(2, 3, 10)})
		_ = b.TruncatePrefix(1, 1)
	})
	for name, fill := range map[string]func(b *Batch) error{
		"gap":            func(b *Batch) error { return b.Append(1, []Entry{entry(2, 5, 10)}) },
		"truncated":      func(b *Batch) error { return b.Append(1, []Entry{entry(2, 1, 10)}) },
		"term falls":     func(b *Batch) error { return b.Append(1, []Entry{entry(1, 4, 10)}) },
		"hole inside":    func(b *Batch) error { return b.Append(1, []Entry{entry(2, 4, 10), entry(2, 6, 10)}) },
		"too large":      func(b *Batch) error { return b.Append(1, []Entry{entry(2, 4, MaxEntryBytes+2)}) },
		"beyond the end": func(b *Batch) error { return b.TruncatePrefix(1, 4) },
		"namespace":      func(b *Batch) error { return b.Set(nsEntry, 1, nil, nil) },
	} {
		b := s.NewBatch()
		_ = b.SetMeta(1, 'x', []byte(name))
		var bad *ErrBadBatch
		if err := fill(b); !errors.As(err, &bad) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := s.Commit(b); !errors.As(err, &bad) {
			t.Errorf("%s: commit: %v", name, err)
		}
		if v, err := s.Meta(1, 'x'); v != nil || err != nil {
			t.Errorf("%s: something was written: %q %v", name, v, err)
		}
	}
	var compacted *ErrCompacted
	if _, err := s.Entries(1, 1, 3, 0); !errors.As(err, &compacted) || compacted.First != 2 {
		t.Errorf("entries: %v", err)
	}
	var unavailable *ErrUnavailable
	if _, err := s.Entries(1, 3, 5, 0); !errors.As(err, &unavailable) || unavailable.Last != 3 {
		t.Errorf("entries: %v", err)
	}
	if term, err := s.Term(1, 1); term != 2 || err != nil {
		t.Errorf("term of the entry before the first: %d %v", term, err)
	}
	// Two batches begun on the same state: the second would break the chain.
	b1, b2 := s.NewBatch(), s.NewBatch()
	_ = b1.Append(1, []Entry{entry(2, 4, 10)})
	_ = b2.Append(1, []Entry{entry(3, 4, 10)})
	if err := s.CommitNoSync(b1); err != nil {
		t.Fatal(err)
	}
	var bad *ErrBadBatch
	if _, err := s.Commit(b2); !errors.As(err, &bad) {
		t.Errorf("late batch: %v", err)
	}
	if err := s.CommitNoSync(b1); !errors.As(err, &bad) {
		t.Errorf("a batch committed twice: %v", err)
	}
}

func TestEntriesMaxBytes(t *testing.T) {
	s := mustOpen(t, testConfig(newMem()))
	defer func() { _ = s.Close() }()
	commit(t, s, func(b *Batch) {
		for i := uint64(1); i <= 10; i++ {
			_ = b.Append(1, []Entry{entry(1, i, 100)})
		}
	})
	for _, c := range []struct{ max, want int }{{0, 10}, {1, 1}, {100, 1}, {199, 1}, {200, 2}, {5000, 10}} {
		if es, err := s.Entries(1, 1, 11, c.max); err != nil || len(es) != c.want {
			t.Errorf("max %d: %d entries, %v; want %d", c.max, len(es), err, c.want)
		}
	}
}

// TestDamagedEntry writes a wrong byte behind the engine's back: its own
// checksums are right, the chain is not.
func TestDamagedEntry(t *testing.T) {
	var faults atomic.Int64
	cfg := testConfig(newMem())
	told := make(chan Fault, 10)
	cfg.OnFault = func(f Fault) { faults.Add(1); told <- f }
	s := mustOpen(t, cfg)
	for i := uint64(1); i <= 5; i++ {
		commit(t, s, func(b *Batch) {
			_ = b.Append(1, []Entry{entry(1, i, 100)})
			_ = b.Append(2, []Entry{entry(1, i, 100)})
		})
	}
	swap := func(from, to []byte) {
		v, err := s.get(from, nil)
		if err != nil || v == nil {
			t.Fatal(err)
		}
		if err := s.db.Set(to, v, nil); err != nil {
			t.Fatal(err)
		}
	}
	swap(appendEntryKey(nil, 2, 3), appendEntryKey(nil, 1, 3)) // another log's entry
	var d *ErrDamaged
	for range 2 {
		es, err := s.Entries(1, 1, 6, 0)
		if !errors.As(err, &d) || es != nil || fmt.Sprint(d.Ranges) != "[p1 [3..3]]" {
			t.Fatalf("%d entries, %v", len(es), err)
		}
	}
	if f := <-told; f.Stopped || !errors.As(f.Err, &d) {
		t.Fatalf("told %v", f)
	}
	if es, err := s.Entries(1, 1, 3, 0); err != nil || len(es) != 2 {
		t.Fatalf("what is good is not served: %v", err)
	}
	if err := s.verify(2); err != nil {
		t.Fatalf("the other log: %v", err)
	}
	if err := s.verify(1); !errors.As(err, &d) {
		t.Fatalf("verify: %v", err)
	}
	// An entry that is gone.
	if err := s.db.Delete(appendEntryKey(nil, 2, 4), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.verify(2); !errors.As(err, &d) || fmt.Sprint(d.Ranges) != "[p2 [4..4]]" {
		t.Fatalf("verify: %v", err)
	}
	// The repair: the whole log is replaced.
	commit(t, s, func(b *Batch) {
		_ = b.ResetLog(1, 10, 2)
		_ = b.Append(1, []Entry{entry(2, 11, 100)})
		_ = b.DropPartition(2)
	})
	if err := errors.Join(s.verify(1), s.verify(2)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := faults.Load(); n > 2 {
		t.Fatalf("told %d times", n)
	}
}

// TestDamagedRow writes rows behind the engine's back: the engine's checksums are
// right, the row's is not, or it is that of another key.
func TestDamagedRow(t *testing.T) {
	for _, ns := range []Namespace{Offsets, IDs, Producers, AppRows} {
		t.Run(ns.String(), func(t *testing.T) {
			told := make(chan Fault, 10)
			cfg := testConfig(newMem())
			cfg.OnFault = func(f Fault) { told <- f }
			s := mustOpen(t, cfg)
			defer func() { _ = s.Close() }()
			commit(t, s, func(b *Batch) {
				for _, p := range []uint64{1, 2} {
					_ = b.Set(ns, p, []byte("a"), []byte("first"))
					_ = b.Set(ns, p, []byte("b"), []byte("second"))
					_ = b.Set(ns, p, []byte("c"), nil)
				}
			})
			row, err := s.get(appendKey(nil, ns, 1, []byte("a")), nil)
			if err != nil {
				t.Fatal(err)
			}
			flipped := bytes.Clone(row)
			flipped[2] ^= 1
			for name, wrong := range map[string][]byte{
				"another row's": row, "a flipped bit": flipped, "cut": row[:len(row)-1], "no checksum": row[:3], "nothing": {},
			} {
				if err := s.db.Set(appendKey(nil, ns, 1, []byte("b")), wrong, nil); err != nil {
					t.Fatal(err)
				}
				var d *ErrDamaged
				if v, err := s.Get(ns, 1, []byte("b")); !errors.As(err, &d) || v != nil || d.Ranges[0].Partition != 1 {
					t.Errorf("%s: read as %q, %v", name, v, err)
				}
				var seen []string
				look := func(k, v []byte) bool { seen = append(seen, string(k)+"="+string(v)); return true }
				if err := s.Iterate(ns, 1, nil, nil, look); !errors.As(err, &d) || fmt.Sprint(seen) != "[a=first]" {
					t.Errorf("%s: walked %q, %v", name, seen, err)
				}
				seen = nil
				if err := s.IterateReverse(ns, 1, nil, nil, look); !errors.As(err, &d) || fmt.Sprint(seen) != "[c=]" {
					t.Errorf("%s: walked back %q, %v", name, seen, err)
				}
				seen = nil
				if err := s.Iterate(ns, 2, nil, nil, look); err != nil || fmt.Sprint(seen) != "[a=first b=second c=]" {
					t.Errorf("%s: the other partition gives %q, %v", name, seen, err)
				}
			}
			if f := <-told; f.Stopped {
				t.Errorf("told %v", f)
			}
			if v, err := s.AppendGet([]byte("before "), ns, 1, []byte("a")); err != nil || string(v) != "before first" {
				t.Errorf("appended %q, %v", v, err)
			}
			if v, err := s.Get(ns, 1, []byte("c")); err != nil || v == nil || len(v) != 0 {
				t.Errorf("an empty row is %v, %v", v, err)
			}
		})
	}
}

// TestCacheHolds reads a row over and over, when memory tables have grown to the
// cache's size: the engine takes them out of it, and once left nothing of it.
func TestCacheHolds(t *testing.T) {
	cfg := testConfig(newMem())
	cfg.CacheBytes, cfg.MemTableBytes = 1<<20, 1<<20
	s := mustOpen(t, cfg)
	defer func() { _ = s.Close() }()
	for i := range 400 {
		commit(t, s, func(b *Batch) { _ = b.Set(IDs, 1, fmt.Appendf(nil, "%03d", i), make([]byte, 16<<10)) })
	}
	// Compactions under way replace tables, and with them what the cache holds:
	// it counts once they are done.
	for try := 1; ; try++ {
		before := s.Metrics()
		for range 1000 {
			if v, err := s.Get(IDs, 1, []byte("005")); err != nil || len(v) != 16<<10 {
				t.Fatalf("%d bytes, %v", len(v), err)
			}
		}
		after := s.Metrics()
		misses, hits := after.CacheMisses-before.CacheMisses, after.CacheHits-before.CacheHits
		if misses < hits/10 {
			return
		}
		if try == 100 {
			t.Fatalf("%d blocks were read from disk for one row, %d from memory", misses, hits)
		}
	}
}

// TestCommittedTailGone loses the end of a log that the hard state knows to be
// committed; and a log that is damaged as a whole can still be replaced.
func TestCommittedTailGone(t *testing.T) {
	cfg := testConfig(newMem())
	s := mustOpen(t, cfg)
	commit(t, s, func(b *Batch) {
		_ = b.Append(1, []Entry{entry(1, 1, 100), entry(1, 2, 100)})
		_ = b.SetHardState(1, HardState{Term: 1, Commit: 2})
	})
	if err := s.db.Delete(appendEntryKey(nil, 1, 2), nil); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	clear(s.logs)
	s.mu.Unlock()
	var d *ErrDamaged
	if _, err := s.LastIndex(1); !errors.As(err, &d) || fmt.Sprint(d.Ranges) != "[p1 [2..2]]" {
		t.Fatalf("last index: %v", err)
	}
	b := s.NewBatch()
	if err := b.Append(1, []Entry{entry(1, 2, 100)}); !errors.As(err, &d) {
		t.Fatalf("append to a damaged log: %v", err)
	}
	b.Close()
	commit(t, s, func(b *Batch) { _ = b.DropPartition(1) })
	if last, err := s.LastIndex(1); err != nil || last != 0 {
		t.Fatalf("after the drop: %d %v", last, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReadersBesideWriter reads logs while they grow, shrink and are rewritten:
// a reader sees entries as written, or that they are gone, and never damage.
func TestReadersBesideWriter(t *testing.T) {
	cfg := testConfig(newMem())
	var faults atomic.Int64
	cfg.OnFault = func(Fault) { faults.Add(1) }
	s := mustOpen(t, cfg)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				first, err1 := s.FirstIndex(1)
				last, err2 := s.LastIndex(1)
				_, err3 := s.Entries(1, first, last+1, 1<<20)
				_, err4 := s.Get(IDs, 1, []byte("k001"))
				_, err5 := s.Partitions()
				for _, err := range []error{err1, err2, err3, err4, err5} {
					var (
						c *ErrCompacted
						u *ErrUnavailable
						b *ErrBadBatch
					)
					if err != nil && !errors.As(err, &c) && !errors.As(err, &u) && !errors.As(err, &b) {
						t.Errorf("reader: %v", err)
						return
					}
				}
			}
		})
	}
	r := newRun(3)
	for range 300 {
		if err := r.step(s, nil); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if err := r.now.compare(s); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if faults.Load() != 0 {
		t.Fatalf("%d faults told", faults.Load())
	}
	if _, err := s.Entries(1, 1, 2, 0); !errors.Is(err, ErrClosed) {
		t.Fatalf("after close: %v", err)
	}
	if err := s.Close(); !errors.Is(err, ErrClosed) {
		t.Fatalf("close twice: %v", err)
	}
}

// TestCloseWithPending closes a store before a commit was waited for.
func TestCloseWithPending(t *testing.T) {
	mem := newMem()
	s := mustOpen(t, testConfig(mem))
	b := s.NewBatch()
	_ = b.Append(1, []Entry{entry(1, 1, 100)})
	p, err := s.Commit(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, testConfig(mem.CrashClone(vfs.CrashCloneCfg{})))
	if last, err := s.LastIndex(1); err != nil || last != 1 {
		t.Fatalf("last %d, %v", last, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLargeBatch is one that does not fit a memory table and takes another way
// through the engine.
func TestLargeBatch(t *testing.T) {
	cfg := testConfig(newMem())
	s := mustOpen(t, cfg)
	commit(t, s, func(b *Batch) {
		for i := uint64(1); i <= 20; i++ {
			_ = b.Append(1, []Entry{entry(1, i, 100_000)})
		}
	})
	for range 2 {
		if err := s.verify(1); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, cfg)
	}
	m := s.Metrics()
	if m.Batches != 2 || m.Fsyncs == 0 && m.DiskBytes == 0 {
		t.Fatalf("metrics %+v", m)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
