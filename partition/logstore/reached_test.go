package logstore

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The witness hears of a batch by Wait, and not by Reached.
func TestReachedTellsNobody(t *testing.T) {
	s := mustOpen(t, testConfig(vfs.NewMem()))
	defer s.Close()
	p, err := s.Commit(s.NewBatch())
	if err != nil {
		t.Fatal(err)
	}
	before := s.synced.Load()
	p.Reached()
	if now := s.synced.Load(); now != before {
		t.Fatalf("batch %d counts as synced, %d was before", now, before)
	}
	if err := p.Wait(); err != nil || s.synced.Load() != before+1 {
		t.Fatalf("%v, %d counts as synced, want %d", err, s.synced.Load(), before+1)
	}
	p.Reached() // again, and after all
}
