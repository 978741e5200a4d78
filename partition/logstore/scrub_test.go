package logstore

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// Nobody reads the damaged entry: the scrub finds it, names it, goes on behind
// it, and remembers over a restart how far it came.
func TestScrubFindsRot(t *testing.T) {
	cfg := Config{Dir: t.TempDir() + "/s"}
	s := mustOpen(t, cfg)
	big := make([]byte, 1<<20)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	commit(t, s, func(b *Batch) {
		_ = b.Append(3, []Entry{entry(1, 1, 100), {Term: 1, Index: 2, Data: big}, entry(1, 3, 100), entry(1, 4, 100)})
		_ = b.Append(4, []Entry{entry(1, 1, 100)})
		for i := range 1000 {
			_ = b.Set(IDs, 4, fmt.Appendf(nil, "k%04d", i), []byte("v"))
		}
	})
	if st := s.Scrub(); st.Passes != 0 || !st.Last.IsZero() || st.Disabled {
		t.Fatalf("a new store was scrubbed: %+v", st)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	flipOnDisk(t, cfg.Dir, ".blob")
	cfg.ScrubEvery, cfg.ScrubBytesPerSecond = time.Millisecond, 1<<40
	s = mustOpen(t, cfg)
	until(t, "the scrub is through", func() bool { return s.Scrub().Passes >= 2 })
	if got := s.Damage(); len(got) != 1 || fmt.Sprint(got[0].Ranges) != "[p3 [2..2]]" {
		t.Fatalf("damage %v", got)
	}
	passes := s.Scrub().Passes
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.ScrubEvery = time.Hour
	s = mustOpen(t, cfg)
	if st := s.Scrub(); st.Passes < passes-1 || st.Last.IsZero() || st.Bytes < 3000 {
		t.Fatalf("after %d passes and a restart: %+v", passes, st)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// The chain is looked at across pages, and rows of every kind.
func TestScrubReadsEverything(t *testing.T) {
	cfg := testConfig(newMem())
	cfg.ScrubEvery, cfg.ScrubBytesPerSecond = time.Millisecond, 1<<40
	s := mustOpen(t, cfg)
	const n, size = 40, 50_000
	for i := uint64(1); i <= n; i++ {
		commit(t, s, func(b *Batch) {
			_ = b.Append(1, []Entry{entry(1, i, size)})
			_ = b.Set(Producers, 1, []byte{byte(i)}, []byte("row"))
		})
	}
	passes := s.Scrub().Passes
	until(t, "a whole pass", func() bool { return s.Scrub().Passes >= passes+2 })
	if st := s.Scrub(); !st.Began.IsZero() && st.Passes == 0 {
		t.Fatalf("%+v", st)
	}
	until(t, "a pass that read all", func() bool { st := s.Scrub(); return st.Began.IsZero() && st.Bytes >= n*size })
	if d := s.Damage(); len(d) != 0 {
		t.Fatalf("damage %v in what is sound", d)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A log that goes beneath the scrub, as when a replica is made anew, does not end it: the
// scrub finds the end that is no more, and passes go on.
func TestScrubOutlivesALog(t *testing.T) {
	cfg := testConfig(newMem())
	cfg.ScrubEvery, cfg.ScrubBytesPerSecond = time.Millisecond, 1<<40
	s := mustOpen(t, cfg)
	fill := func(n uint64) {
		t.Helper()
		commit(t, s, func(b *Batch) {
			for i := uint64(1); i <= n; i++ {
				_ = b.Append(1, []Entry{entry(1, i, 100)})
			}
		})
	}
	drop := func() {
		t.Helper()
		commit(t, s, func(b *Batch) { _ = b.DropPartition(1) })
	}
	w := &scrubber{s: s, stop: make(chan struct{})}
	for _, cut := range []func(){
		drop,
		func() { drop(); fill(2) },
		func() { commit(t, s, func(b *Batch) { _ = b.TruncatePrefix(1, 4) }) },
	} {
		fill(5)
		cut()
		if _, err := w.entriesFrom(1, 1, 5); err == nil || !changedMeanwhile(err) {
			t.Errorf("entries 1 to 5 are read: %v", err)
		}
		drop()
	}
	for range 200 {
		fill(20)
		drop()
	}
	passes := s.Scrub().Passes
	until(t, "passes that go on", func() bool { return s.Scrub().Passes >= passes+2 })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestScrubRow(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	for _, st := range []ScrubState{{}, {Passes: 3, Last: at, Bytes: 9, Next: 7}, {Passes: 1, Began: at}} {
		got, err := decodeScrub(scrubKey(), encodeScrub(scrubKey(), st))
		if err != nil || got != st {
			t.Fatalf("%+v comes back as %+v, %v", st, got, err)
		}
	}
	row := encodeScrub(scrubKey(), ScrubState{Passes: 1})
	row[3] ^= 1
	if _, err := decodeScrub(scrubKey(), row); err == nil {
		t.Fatal("a damaged row passes")
	}
}

// The closer the tables that wait come to where Pebble stops writes, the longer
// the pause for the same bytes; while flushes keep up there is none.
func TestPace(t *testing.T) {
	s := &Store{cfg: Config{MemTableBytes: 1 << 20}.withDefaults()}
	s.pace.opened(1 << 20)
	s.pace.rotated() // the first tables are small, a quarter and a half
	s.pace.rotated()
	s.pace.wrote(1000)
	if d := s.Pace(); d != 0 || s.behind() {
		t.Fatalf("%v although two small tables wait, a backlog of %.2f", d, s.backlog())
	}
	s.pace.flushed(2, 768<<10, time.Second)
	s.pace.filled.Store(0)
	last := time.Duration(0)
	for i := range 16 { // up to four full tables
		s.pace.wrote(256 << 10)
		d := s.Pace()
		if b := s.backlog(); (b < 2) != (d == 0) || d < last {
			t.Fatalf("backlog %.2f: %v after %v", b, d, last)
		}
		last = d
		if i%4 == 3 {
			s.pace.rotated()
		}
	}
	if last < time.Millisecond || s.Pace() != 0 {
		t.Fatalf("the last pause was %v, and nothing new costs %v", last, s.Pace())
	}
	s.pace.flushed(4, 4<<20, time.Second)
	s.pace.wrote(1000)
	if d := s.Pace(); d != 0 || s.behind() {
		t.Fatalf("%v although all is flushed", d)
	}
}
