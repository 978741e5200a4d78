package logstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestCompactionsBesideDamage: among the newest tables is one that does not read.
// Pebble picks it, with all that lies above it, before everything else, and again
// when that failed. Beside it what can be merged is merged: the newest tables stay
// few, or writes would stop in the end. A compaction that pauses holds up no close.
func TestCompactionsBesideDamage(t *testing.T) {
	t.Parallel()
	const partitions, rounds, few = 40, 60, 12
	cfg := testConfig(newMem())
	cfg.pause = time.Hour
	s := mustOpen(t, cfg)
	round := func(index uint64) {
		t.Helper()
		commit(t, s, func(b *Batch) {
			for p := uint64(1); p <= partitions; p++ {
				if index > 2 && p > 5 && p <= partitions-5 {
					continue // some of these do not read
				}
				_ = b.Append(p, []Entry{entry(1, index, 200)})
			}
		})
		if err := s.flush(); err != nil {
			t.Fatal(err)
		}
	}
	round(1) // with the store's own rows, and to the bottom
	if err := s.db.Compact(context.Background(), []byte{keyFormat}, []byte{keyFormat + 1}, false); err != nil {
		t.Fatal(err)
	}
	round(2)
	if err := s.SyncWitness(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	img := takeImage(t, cfg.FS.(*vfs.MemFS))
	newest := ""
	for name := range img {
		if kind(name) == "sst" && name > newest {
			newest = name
		}
	}
	img[newest][len(img[newest])/2-500] ^= 1
	cfg.FS = img.fs(t)
	s = mustOpen(t, cfg)
	for n := range uint64(rounds) {
		round(3 + n)
	}
	for began := time.Now(); ; time.Sleep(time.Millisecond) { // compactions tell nobody that they are done
		s.merges.mu.Lock()
		failed := s.merges.inRow
		s.merges.mu.Unlock()
		m := s.db.Metrics()
		if failed == 1 && m.Levels[0].Sublevels <= few {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("%d compactions met damage, and the newest tables lie %d deep:\n%v", failed, m.Levels[0].Sublevels, m)
		}
	}
	for p := uint64(1); p <= 5; p++ {
		if es, err := s.Entries(p, 3, 3+rounds, 0); err != nil || len(es) != rounds {
			t.Errorf("p%d: %d entries, %v", p, len(es), err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A partition is erased, and the table in which its entries are has a damaged block right
// behind them. To Pebble what is left of the table ends there, and all entries behind the
// damage would be gone.
func TestCutAtDamage(t *testing.T) {
	t.Parallel()
	const partitions, entries = 4, 90
	mem := newMem()
	cfg := testConfig(mem)
	s := mustOpen(t, cfg)
	name := func(p uint64, i int) []byte { return fmt.Appendf(nil, "entry %d of p%d, %0100d", i, p, i) }
	fill := func(p uint64) {
		t.Helper()
		var es []Entry
		for i := 1; i <= entries; i++ {
			es = append(es, Entry{Index: uint64(i), Term: 1, Data: name(p, i)})
		}
		commit(t, s, func(b *Batch) { _ = b.Append(p, es) })
	}
	for p := uint64(1); p <= partitions; p++ {
		fill(p)
	}
	must(t, s.MergeNow())
	img := takeImage(t, mem.CrashClone(vfs.CrashCloneCfg{})) // files go while this looks
	file := img.rot(t, name(2, 1))                           // nobody has read it yet
	f, err := mem.OpenReadWrite(file, vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = f.WriteAt(img[file], 0)
	must(t, errors.Join(err, f.Close()))
	commit(t, s, func(b *Batch) { _ = b.DropPartition(1) })
	must(t, s.flush())
	cut := func() bool {
		s.merges.mu.Lock()
		defer s.merges.mu.Unlock()
		for _, held := range s.merges.spoiled {
			if held {
				return true
			}
		}
		return false
	}
	until(t, "the table is to be cut", cut)
	look := func() {
		t.Helper()
		if err := s.verify(2); !errors.As(err, new(*ErrDamaged)) {
			t.Fatalf("p2, which is damaged: %v", err)
		}
		for p := uint64(3); p <= partitions; p++ {
			must(t, s.verify(p))
			if last, err := s.LastIndex(p); err != nil || last != entries {
				t.Fatalf("p%d ends at entry %d, %v", p, last, err)
			}
		}
	}
	look()
	for p := uint64(partitions + 1); p < partitions+3; p++ { // it works, and comes back as it was
		fill(p)
		must(t, s.Close())
		s = mustOpen(t, cfg)
		must(t, s.verify(p))
		look()
	}
	// Once nobody needs the block any more the table is merged, unless it is to be cut before
	// that: then at a later start.
	commit(t, s, func(b *Batch) { _ = b.DropPartition(2) })
	fill(1)
	fill(2)
	until(t, "the table is merged", func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		merged := make(chan error, 1)
		go func() { merged <- s.db.Compact(ctx, []byte{keyFormat}, []byte{keyFormat + 1}, false) }()
		for {
			select {
			case err := <-merged:
				must(t, err)
				return true
			case <-time.After(time.Millisecond): // between two looks
			}
			if cut() {
				cancel()
				<-merged
				must(t, s.Close())
				s = mustOpen(t, cfg)
				return false
			}
		}
	})
	must(t, errors.Join(s.verify(1), s.verify(2), s.verify(3), s.Close()))
}
