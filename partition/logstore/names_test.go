package logstore

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What is affected has the names that the store was told last, also when it does
// not open; without them, numbers.
func TestNames(t *testing.T) {
	mem := vfs.NewMem()
	cfg := testConfig(mem)
	s := mustOpen(t, cfg)
	commit(t, s, func(b *Batch) { _ = b.Append(3, []Entry{entry(1, 1, 10), entry(1, 2, 10)}) })
	if err := s.Name(map[uint64]string{3: "an older name"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Name(map[uint64]string{3: "partition 0 of topic orders"}); err != nil {
		t.Fatal(err)
	}
	if got := s.NameOf(3) + ", " + s.NameOf(4); got != "partition 0 of topic orders (p3), p4" {
		t.Errorf("the log calls them %s", got)
	}
	must(t, s.Close())
	if err := s.Name(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	path := mem.PathJoin(cfg.Dir, namesName)
	good, err := readAll(mem, path)
	if err != nil {
		t.Fatal(err)
	}
	put := func(b []byte) {
		f, err := mem.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(bytes.Clone(b)); err != nil { // Pebble under the race detector may change what it is given
			t.Fatal(err)
		}
		must(t, f.Close())
	}
	// The log is gone: what it held is told.
	ls, err := mem.List(mem.PathJoin(cfg.Dir, pebbleName))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range ls {
		if strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".log") {
			must(t, mem.Remove(mem.PathJoin(cfg.Dir, pebbleName, name)))
		}
	}
	for what, c := range map[string]struct {
		file []byte
		want string
	}{
		"with names":     {good, "affected: partition 0 of topic orders, "},
		"cut short":      {good[:len(good)-3], "affected: p3, "},
		"another letter": {[]byte(strings.Replace(string(good), "orders", "ordert", 1)), "affected: p3, "},
		"nothing in it":  {nil, "affected: p3, "},
	} {
		put(c.file)
		s, err := Open(cfg)
		var d *ErrDamaged
		if !errors.As(err, &d) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
		if s != nil {
			must(t, s.Close())
		}
	}
}

// Where nothing can be served, the error names the file, everything that is
// affected, and the way out; what only holds settings is removed, and all is there.
func TestNamesOfEverything(t *testing.T) {
	for name, how := range map[string]func(b []byte) []byte{
		"MANIFEST flipped": func(b []byte) []byte { b[len(b)/3] ^= 4; return b },
		"MANIFEST cut":     func(b []byte) []byte { return b[:len(b)/3] },
		"MANIFEST zeroed":  func(b []byte) []byte { clear(b[len(b)/3:]); return b },
		"MANIFEST empty":   func([]byte) []byte { return nil },
		"OPTIONS cut":      func(b []byte) []byte { return b[:bytes.Index(b, []byte("block_restart_"))+14] },
		"OPTIONS zeroed":   func(b []byte) []byte { clear(b); return b },
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			cfg := testConfig(mem)
			s := mustOpen(t, cfg)
			commit(t, s, func(b *Batch) { _ = b.Append(3, []Entry{entry(1, 1, 10), entry(1, 2, 10)}) })
			must(t, s.Name(map[uint64]string{3: "partition 0 of topic orders"}))
			must(t, s.Close())
			ls, err := mem.List(mem.PathJoin(cfg.Dir, pebbleName))
			must(t, err)
			slices.Sort(ls)
			prefix, _, _ := strings.Cut(name, " ")
			file := ""
			for _, n := range ls {
				if strings.HasPrefix(n, prefix) {
					file = n // the last one is in use
				}
			}
			at := mem.PathJoin(cfg.Dir, pebbleName, file)
			b, err := readAll(mem, at)
			must(t, err)
			f, err := mem.Create(at, vfs.WriteCategoryUnspecified)
			must(t, err)
			_, err = f.Write(bytes.Clone(how(b)))
			must(t, errors.Join(err, f.Close()))
			_, err = Open(cfg)
			var d *ErrDamaged
			if !errors.As(err, &d) || !strings.Contains(err.Error(), "file "+file) {
				t.Fatalf("the error does not name %s: %v", file, err)
			}
			if prefix == "MANIFEST" {
				if !strings.Contains(err.Error(), "affected: partition 0 of topic orders, from entry 1 on; nothing was changed: restore the folder") {
					t.Errorf("what is affected? %v", err)
				}
				return
			}
			if !strings.Contains(err.Error(), "remove it and start again") {
				t.Errorf("no way out: %v", err)
			}
			must(t, mem.Remove(at))
			s = mustOpen(t, cfg)
			if es, err := s.Entries(3, 1, 3, 1<<20); err != nil || len(es) != 2 {
				t.Errorf("%v, %v", es, err)
			}
			must(t, s.Close())
		})
	}
}

// The same where the witness is gone or does not read.
func TestNamesWithoutWitness(t *testing.T) {
	for what, spoil := range map[string]func(t *testing.T, mem *vfs.MemFS, at string){
		"gone": func(t *testing.T, mem *vfs.MemFS, at string) { must(t, mem.Remove(at)) },
		"zeroed": func(t *testing.T, mem *vfs.MemFS, at string) {
			b, err := readAll(mem, at)
			must(t, err)
			f, err := mem.Create(at, vfs.WriteCategoryUnspecified)
			must(t, err)
			_, err = f.Write(make([]byte, len(b)))
			must(t, errors.Join(err, f.Close()))
		},
	} {
		t.Run(what, func(t *testing.T) {
			mem := vfs.NewMem()
			cfg := testConfig(mem)
			s := mustOpen(t, cfg)
			commit(t, s, func(b *Batch) { _ = b.Append(3, []Entry{entry(1, 1, 10)}) })
			must(t, s.Name(map[uint64]string{3: "partition 0 of topic orders"}))
			must(t, s.Close())
			spoil(t, mem, mem.PathJoin(cfg.Dir, witnessName))
			_, err := Open(cfg)
			var d *ErrDamaged
			if !errors.As(err, &d) || !strings.Contains(err.Error(), "file "+witnessName) || !strings.Contains(err.Error(), "affected: partition 0 of topic orders, from entry 1 on") {
				t.Errorf("what is affected? %v", err)
			}
		})
	}
}

// One form for every range.
func TestEntries(t *testing.T) {
	for want, r := range map[string]Range{
		"entry 7":            {Low: 7, High: 7},
		"entries 7 to 9":     {Low: 7, High: 9},
		"from entry 7 on":    {Low: 7},
		"from entry 2 on":    {Low: 2, High: 1}, // nothing is told upside down
		"entries 1 to 10000": {Low: 1, High: 10000},
	} {
		if got := r.Entries(); got != want {
			t.Errorf("%+v is %q, want %q", r, got, want)
		}
	}
}

func FuzzDecodeNames(f *testing.F) {
	f.Add(encodeNames(map[uint64]string{0: "the metadata log", 3: "partition 0 of topic a"}))
	f.Add(encodeNames(nil))
	f.Add([]byte("strandmq names 2\ncrc 00000000\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := decodeNames(b)
		if err != nil {
			return
		}
		again, err := decodeNames(encodeNames(all))
		if err != nil || len(all) > 0 && !maps.Equal(all, again) && !strings.ContainsAny(string(b), "\r") {
			t.Fatalf("%q: %v, and again %v, %v", b, all, again, err)
		}
	})
}
