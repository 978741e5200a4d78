package logstore

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// BenchmarkCommit is the hot path: one entry for each of eight partitions a
// batch, synced, batches in a row with a few of them under way. The same bytes
// through Pebble alone in the same run are the yardstick.
func BenchmarkCommit(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10, 100 << 10} {
		for _, partitions := range []int{1, 8} {
			data := make([]byte, size)
			for i := range data {
				data[i] = byte(i * 7)
			}
			b.Run(fmt.Sprintf("store/size=%d/partitions=%d", size, partitions), func(b *testing.B) {
				s := mustOpen(b, Config{Dir: b.TempDir() + "/s"})
				pipeline(b, size*partitions, func(i int) func() error {
					bt := s.NewBatch()
					for p := range partitions {
						_ = bt.Append(uint64(p+1), []Entry{{Term: 1, Index: uint64(i + 1), Data: data}})
					}
					p, err := s.Commit(bt)
					if err != nil {
						b.Fatal(err)
					}
					return p.Wait
				})
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			})
			b.Run(fmt.Sprintf("pebble/size=%d/partitions=%d", size, partitions), func(b *testing.B) {
				s := &Store{cfg: Config{Dir: b.TempDir()}.withDefaults(), merges: newCompactions(time.Second, func() {})}
				s.fs = &guardFS{FS: s.cfg.FS, syncs: &s.syncs, report: s.fail}
				o := s.pebbleOptions(false)
				o.FS = s.cfg.FS
				db, err := pebble.Open(s.cfg.Dir, o)
				if err != nil {
					b.Fatal(err)
				}
				pipeline(b, size*partitions, func(i int) func() error {
					bt := db.NewBatch(pebble.WithMaxRetainedSizeBytes(retainedBatchBytes))
					for p := range partitions {
						if err := bt.Set(appendEntryKey(nil, uint64(p+1), uint64(i+1)), data, nil); err != nil {
							b.Fatal(err)
						}
					}
					if err := db.ApplyNoSyncWait(bt, pebble.Sync); err != nil {
						b.Fatal(err)
					}
					return func() error {
						if err := bt.SyncWait(); err != nil {
							return err
						}
						return bt.Close()
					}
				})
				if err := db.Close(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// pipeline commits in one goroutine and waits in another, eight at a time.
func pipeline(b *testing.B, bytes int, commit func(i int) func() error) {
	b.SetBytes(int64(bytes))
	b.ReportAllocs()
	b.ResetTimer()
	waits := make(chan func() error, 8)
	var wg sync.WaitGroup
	wg.Go(func() {
		for w := range waits {
			if err := w(); err != nil {
				b.Error(err)
			}
		}
	})
	for i := range b.N {
		waits <- commit(i)
	}
	close(waits)
	wg.Wait()
	b.StopTimer()
}

// BenchmarkEntries reads 1 MiB of log at a time.
func BenchmarkEntries(b *testing.B) {
	for _, size := range []int{1 << 10, 100 << 10} {
		s := mustOpen(b, Config{Dir: b.TempDir() + "/s"})
		n := uint64(4 << 20 / size)
		for i := uint64(1); i <= n; i++ {
			bt := s.NewBatch()
			_ = bt.Append(1, []Entry{{Term: 1, Index: i, Data: make([]byte, size)}})
			if err := s.CommitNoSync(bt); err != nil {
				b.Fatal(err)
			}
		}
		per := max(1, uint64(1<<20/size))
		b.Run(fmt.Sprintf("copy/size=%d", size), func(b *testing.B) {
			b.SetBytes(int64(per) * int64(size))
			b.ReportAllocs()
			for i := range b.N {
				lo := 1 + uint64(i)*per%(n-per)
				if es, err := s.Entries(1, lo, lo+per, 0); err != nil || len(es) != int(per) {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("scan/size=%d", size), func(b *testing.B) {
			b.SetBytes(int64(per) * int64(size))
			b.ReportAllocs()
			for i := range b.N {
				lo := 1 + uint64(i)*per%(n-per)
				if err := s.Scan(1, lo, lo+per, func(Entry, uint32) bool { return true }); err != nil {
					b.Fatal(err)
				}
			}
		})
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReopen opens a store after a crash that left 128 MiB of log to
// replay: files checked, replayed once read-only, and once for good.
func BenchmarkReopen(b *testing.B) {
	const size, n = 128 << 10, 1024
	mem := newMem()
	s := mustOpen(b, Config{Dir: "store", FS: mem})
	for i := uint64(1); i <= n; i++ {
		commit(b, s, func(bt *Batch) { _ = bt.Append(1, []Entry{{Term: 1, Index: i, Data: make([]byte, size)}}) })
	}
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size * n)
	for b.Loop() {
		b.StopTimer()
		disk := clone.CrashClone(vfs.CrashCloneCfg{})
		b.StartTimer()
		s := mustOpen(b, Config{Dir: "store", FS: disk})
		b.StopTimer()
		if last, err := s.LastIndex(1); err != nil || last != n {
			b.Fatal(last, err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkSnapshot streams a partition of 64 MiB, in entries of 16 KiB, from one
// store into another one on the same disk, until it is there and durable.
func BenchmarkSnapshot(b *testing.B) {
	cfg := Config{Dir: b.TempDir() + "/from", ScrubBytesPerSecond: -1}
	from := mustOpen(b, cfg)
	defer from.Close()
	cfg.Dir = b.TempDir() + "/to"
	to := mustOpen(b, cfg)
	defer to.Close()
	const count = 4096
	for i := uint64(1); i <= count; i++ {
		commit(b, from, func(b *Batch) {
			_ = b.Append(7, []Entry{entry(1, i, 16<<10)})
			_ = b.Set(Offsets, 7, binary.BigEndian.AppendUint64(nil, i), make([]byte, 40))
		})
	}
	b.SetBytes(count * 16 << 10)
	for b.Loop() {
		e, err := from.Export(7, time.Minute, time.Minute)
		if err != nil {
			b.Fatal(err)
		}
		if err := e.Begin(count, nil, func(uint64) ([]byte, error) { return nil, nil }); err != nil {
			b.Fatal(err)
		}
		r, _ := e.From(0)
		im, _ := to.NewImport(7)
		if err := im.Read(r); err != nil {
			b.Fatal(err)
		}
		if err := im.Switch(HardState{Term: 1, Commit: count}, nil); err != nil {
			b.Fatal(err)
		}
		e.Close()
	}
}
