package logstore

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustOpen(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

func entry(term, index uint64, size int) Entry {
	return Entry{Term: term, Index: index, Type: byte(index), Data: bytes.Repeat([]byte{byte(index), byte(term)}, size/2)}
}

// verify reads a whole log.
func (s *Store) verify(p uint64) error {
	st, err := s.logState(p)
	if err != nil {
		return err
	}
	return s.Scan(p, st.base.index+1, st.last.index+1, func(Entry, uint32) bool { return true })
}

func commit(t testing.TB, s *Store, fill func(b *Batch)) {
	t.Helper()
	b := s.NewBatch()
	fill(b)
	p, err := s.Commit(b)
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	if err := p.Wait(); err != nil {
		t.Fatalf("wait: %v", err)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, name := range []string{"memory", "disk"} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Dir: "store", FS: vfs.NewCrashableMem(), ClusterID: "c1"}
			if name == "disk" {
				cfg.FS, cfg.Dir = nil, t.TempDir()+"/store"
			}
			s := mustOpen(t, cfg)
			for i := uint64(1); i <= 20; i++ {
				commit(t, s, func(b *Batch) {
					for p := uint64(1); p <= 3; p++ {
						_ = b.Append(p, []Entry{entry(1, i, 1000)})
						_ = b.SetHardState(p, HardState{Term: 1, Vote: p, Commit: i - 1})
						_ = b.Set(Offsets, p, []byte{byte(i)}, fmt.Appendf(nil, "row %d", i))
						_ = b.SetMeta(p, 'a', []byte{byte(i)})
					}
				})
			}
			check := func(s *Store) {
				t.Helper()
				ps, err := s.Partitions()
				if err != nil || fmt.Sprint(ps) != "[1 2 3]" {
					t.Fatalf("partitions %v %v", ps, err)
				}
				for _, p := range ps {
					es, err := s.Entries(p, 1, 21, 0)
					if err != nil || len(es) != 20 {
						t.Fatalf("%d entries, %v", len(es), err)
					}
					for i, e := range es {
						if want := entry(1, uint64(i+1), 1000); e.Index != want.Index || e.Type != want.Type || !bytes.Equal(e.Data, want.Data) {
							t.Fatalf("entry %d differs", i+1)
						}
					}
					if hs, err := s.HardState(p); err != nil || hs != (HardState{1, p, 19}) {
						t.Fatalf("hard state %v %v", hs, err)
					}
					if v, err := s.Meta(p, 'a'); err != nil || !bytes.Equal(v, []byte{20}) {
						t.Fatalf("meta %v %v", v, err)
					}
					if v, err := s.Get(Offsets, p, []byte{7}); err != nil || string(v) != "row 7" {
						t.Fatalf("row %q %v", v, err)
					}
				}
			}
			check(s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, cfg)
			check(s)
			if s.boot != 2 {
				t.Fatalf("boot %d", s.boot)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
