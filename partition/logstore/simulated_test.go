package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestSimulated: a bit that flips in a row spoils that one alone, whatever lies beside
// it, and a scrub that is asked for names it.
func TestSimulated(t *testing.T) {
	fs := vfs.NewMem()
	cfg := Config{Dir: "d", FS: fs, ScrubBytesPerSecond: -1, Simulated: true}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	const rows, bad = 20, 7
	key := func(i int) []byte { return fmt.Appendf(nil, "row%02d", i) }
	value := func(i int) []byte { return fmt.Appendf(nil, "what is stored in row %02d", i) }
	for i := range rows {
		b := s.NewBatch()
		if err := b.Set(AppRows, 1, key(i), value(i)); err != nil {
			t.Fatal(err)
		}
		if err := s.CommitNoSync(b); err != nil {
			t.Fatal(err)
		}
		if i == rows/2 {
			if err := s.flush(); err != nil { // so that there are two tables
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(s.MergeNow(), s.Close()); err != nil {
		t.Fatal(err)
	}
	flipped := 0
	dir := fs.PathJoin("d", pebbleName)
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !isTable(name) && !isValues(name) {
			continue
		}
		data, err := readAll(fs, fs.PathJoin(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		at := bytes.Index(data, value(bad))
		if at < 0 {
			continue
		}
		f, err := fs.OpenReadWrite(fs.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte{data[at] ^ 1}, int64(at))
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		flipped++
	}
	if flipped != 1 {
		t.Fatalf("%d tables have the row", flipped)
	}
	if s, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range rows {
		v, err := s.Get(AppRows, 1, key(i))
		if i == bad {
			if !errors.As(err, new(*ErrDamaged)) {
				t.Errorf("the row of which a bit flipped: %q, %v", v, err)
			}
		} else if err != nil || !bytes.Equal(v, value(i)) {
			t.Errorf("row %d: %q, %v", i, v, err)
		}
	}
	if err := s.ScrubNow(); err != nil {
		t.Fatal(err)
	}
	named := false
	for _, d := range s.Damage() {
		named = named || !d.Bound && len(d.Ranges) == 1 && d.Ranges[0].Partition == 1
	}
	if !named {
		t.Errorf("the scrub names %+v", s.Damage())
	}
}
