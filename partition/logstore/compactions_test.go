package logstore

import (
	"context"
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
