package logstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// crowd makes a store of many partitions in small tables, merged, and takes its
// picture after a clean stop.
func crowd(t *testing.T, partitions uint64) (image, Config) {
	t.Helper()
	mem := newMem()
	cfg := testConfig(mem)
	cfg.tableBytes = 1 << 10
	s := mustOpen(t, cfg)
	for p := range partitions {
		commit(t, s, func(b *Batch) {
			_ = b.ResetLog(p, 1, 1)
			_ = b.SetHardState(p, HardState{Term: 1, Commit: 1})
			_ = b.SetMeta(p, 'm', fmt.Appendf(nil, "value of %d", p))
			_ = b.Set(IDs, p, []byte("id"), []byte("row"))
			_ = b.Append(p, []Entry{entry(1, 2, 100), entry(1, 3, 400)})
		})
	}
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Compact(context.Background(), []byte{keyFormat}, []byte{keyFormat + 1}, false); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return takeImage(t, mem), cfg
}

// manifestOf reads the list of tables of a picture.
func manifestOf(t *testing.T, img image) *manifestState {
	t.Helper()
	num, _, err := currentManifest(img.fs(t), "store/"+pebbleName)
	if err != nil {
		t.Fatal(err)
	}
	m := newManifestState()
	if _, _, err := scanRecords(img["store/"+pebbleName+"/"+manifestName(num)], 0, m.apply); err != nil {
		t.Fatal(err)
	}
	return m
}

// hide removes every table with rows that tell of partitions from on.
func hide(t *testing.T, img image, from uint64) (gone int) {
	t.Helper()
	for k, f := range manifestOf(t, img).tables {
		d, ok := decodeBound(f.first, false)
		if ok && !ownRows(f.first) && d.partition >= from {
			delete(img, "store/"+pebbleName+"/"+tableName(k.num))
			gone++
		}
	}
	return gone
}

// Tables that are gone hide partitions: they are listed all the same, each is
// named as damaged, and the others are served. It stays so after another start.
func TestHiddenPartitionsAreListed(t *testing.T) {
	t.Parallel()
	const partitions, from = 300, 150
	img, cfg := crowd(t, partitions)
	if n := hide(t, img, from); n < 3 {
		t.Fatalf("only %d tables hold nothing else", n)
	}
	cfg.FS = img.fs(t)
	for start := range 2 {
		s := mustOpen(t, cfg)
		ps, err := s.Partitions()
		if err != nil || len(ps) != partitions {
			t.Fatalf("start %d: %d partitions, %v", start, len(ps), err)
		}
		named := map[uint64]bool{}
		for _, d := range s.Damage() {
			if d.File == "" || d.What == "" {
				t.Fatalf("damage %+v", d)
			}
			for _, r := range d.Ranges {
				named[r.Partition] = true
			}
		}
		whole, bad := 0, 0
		for _, p := range ps {
			_, err1 := s.LastIndex(p)
			es, err2 := s.Entries(p, 2, 4, 0)
			row, err3 := s.Get(IDs, p, []byte("id"))
			hs, err4 := s.HardState(p)
			v, err5 := s.Meta(p, 'm')
			err := errors.Join(err1, err2, err3, err4, err5)
			var d *ErrDamaged
			switch {
			case err == nil && len(es) == 2 && string(row) == "row" && hs.Commit == 1 && string(v) == fmt.Sprintf("value of %d", p):
				whole++
			case errors.As(err, &d) && named[p]:
				bad++
			default:
				t.Fatalf("start %d: p%d: %d entries, row %q, %+v, meta %q, %v", start, p, len(es), row, hs, v, err)
			}
		}
		if whole < from/2 || bad < partitions-from-10 {
			t.Fatalf("start %d: %d are whole and %d damaged", start, whole, bad)
		}
		// It takes writes of partitions that are whole, and new ones.
		commit(t, s, func(b *Batch) {
			_ = b.Append(3, []Entry{entry(1, 4, 10)})
			_ = b.TruncatePrefix(3, 1)
			_ = b.ResetLog(1000, 1, 1)
		})
		commit(t, s, func(b *Batch) { _ = b.DropPartition(1000) })
		if err := s.flush(); err != nil {
			t.Fatal(err)
		}
		if es, err := s.Entries(3, 2, 5, 0); err != nil || len(es) != 3 {
			t.Fatalf("%d entries, %v", len(es), err)
		}
		// One that is given up can be made again.
		commit(t, s, func(b *Batch) { _ = b.DropPartition(299) })
		commit(t, s, func(b *Batch) {
			_ = b.ResetLog(299, 1, 1)
			_ = b.SetHardState(299, HardState{Term: 1, Commit: 1})
			_ = b.SetMeta(299, 'm', []byte("value of 299"))
			_ = b.Set(IDs, 299, []byte("id"), []byte("row"))
			_ = b.Append(299, []Entry{entry(1, 2, 100), entry(1, 3, 400)})
		})
		if _, err := s.Entries(299, 2, 4, 0); err != nil {
			t.Fatalf("what was made again: %v", err)
		}
		if start == 0 {
			commit(t, s, func(b *Batch) {
				_ = b.ResetLog(3, 1, 1)
				_ = b.Append(3, []Entry{entry(1, 2, 100), entry(1, 3, 400)})
			})
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// Nothing tells of them any more.
	delete(img, "store/"+registryName)
	cfg.FS = img.fs(t)
	_, err := Open(cfg)
	var d *ErrDamaged
	if !errors.As(err, &d) || d.File != registryName {
		t.Fatalf("without the list: %v", err)
	}
}

// forge puts a list of partitions into a picture, and if sealed makes the witness
// believe that it is the one of the last stop.
func forge(t *testing.T, img image, ps []uint64, sealed bool) image {
	t.Helper()
	out := image{}
	for name, data := range img {
		out[name] = data
	}
	w, _, err := decodeWitness(img["store/"+witnessName])
	if err != nil {
		t.Fatal(err)
	}
	list := encodeRegistry(w.store, 1, ps)
	out["store/"+registryName] = list
	if sealed {
		w.registry = binary.LittleEndian.Uint32(list[len(list)-4:])
		b := make([]byte, witnessFileLen)
		copy(b, encodeSlot(w))
		copy(b[slotStride:], encodeSlot(w))
		out["store/"+witnessName] = b
	}
	return out
}

// Without its list a store trusts its tables only when all of them read, and a
// table that does not is made up for by the list: with both it must not guess.
func TestListAndTableDamaged(t *testing.T) {
	t.Parallel()
	img, cfg := crowd(t, 40)
	table := ""
	for k, f := range manifestOf(t, img).tables {
		if name := "store/" + pebbleName + "/" + tableName(k.num); !ownRows(f.first) && name > table {
			table = name
		}
	}
	const list = "store/" + registryName
	for _, c := range []struct {
		what    string
		damaged []string
		refuses bool
	}{
		{"the list", []string{list}, false},
		{"a table", []string{table}, false},
		{"both", []string{list, table}, true},
	} {
		for _, gone := range []bool{false, true} {
			bad := maps.Clone(img)
			for _, name := range c.damaged {
				if delete(bad, name); !gone {
					bad[name] = slices.Clone(img[name])
					bad[name][len(bad[name])/2] ^= 8
				}
			}
			cfg.FS = bad.fs(t)
			s, err := Open(cfg)
			var d *ErrDamaged
			if refused := errors.As(err, &d); refused != c.refuses || err != nil && !refused {
				t.Errorf("%s, gone %v: %v", c.what, gone, err)
			}
			if refused := err != nil; refused && !mayRefuse(t, img, bad) {
				t.Errorf("%s, gone %v: refused, and it may not: %v", c.what, gone, err)
			}
			if s != nil {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// What the list says more or less than the tables.
func TestListAgainstTables(t *testing.T) {
	t.Parallel()
	img, cfg := crowd(t, 3)
	mem := img.fs(t)
	cfg.FS = mem
	s := mustOpen(t, cfg)
	crashed := takeImage(t, mem.CrashClone(vfs.CrashCloneCfg{}))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		img    image
		listed []uint64
		want   string // partitions
		lost   string // of them, what is damaged
	}{
		"as it was":                     {forge(t, img, []uint64{0, 1, 2}, true), nil, "[0 1 2]", "[]"},
		"one was there at the stop":     {forge(t, img, []uint64{0, 1, 2, 9}, true), nil, "[0 1 2 9]", "[9]"},
		"an older one after a stop":     {forge(t, img, []uint64{0, 1, 2, 9}, false), nil, "[0 1 2]", "[]"},
		"one was dropped, then a crash": {forge(t, crashed, []uint64{0, 1, 2, 9}, false), nil, "[0 1 2]", "[]"},
		"one was made, then a crash":    {forge(t, crashed, []uint64{0, 1}, false), nil, "[0 1 2]", "[]"},
	} {
		cfg.FS = c.img.fs(t)
		for range 2 {
			s := mustOpen(t, cfg)
			ps, err := s.Partitions()
			lost := []uint64{}
			for _, p := range ps {
				var d *ErrDamaged
				if _, err := s.LastIndex(p); errors.As(err, &d) {
					lost = append(lost, p)
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if fmt.Sprint(ps) != c.want || fmt.Sprint(lost) != c.lost || err != nil {
				t.Errorf("%s: partitions %v, damaged %v, %v; want %s and %s", name, ps, lost, err, c.want, c.lost)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A partition is listed before anyone hears that it is on disk, and no more once
// its end is.
func TestListedWhenAcknowledged(t *testing.T) {
	t.Parallel()
	mem := newMem()
	cfg := testConfig(mem)
	cfg.WitnessInterval = 10e9 // nobody else saves the list
	s := mustOpen(t, cfg)
	defer func() { _ = s.Close() }()
	onDisk := func() []uint64 {
		b, err := readAll(mem.CrashClone(vfs.CrashCloneCfg{}), "store/"+registryName)
		if err != nil {
			t.Fatal(err)
		}
		_, _, ps, err := decodeRegistry(b)
		if err != nil {
			t.Fatal(err)
		}
		return ps
	}
	b := s.NewBatch()
	_ = b.ResetLog(7, 1, 1)
	if err := s.CommitNoSync(b); err != nil {
		t.Fatal(err)
	}
	commit(t, s, func(b *Batch) { _ = b.ResetLog(5, 1, 1) })
	if ps := onDisk(); !slices.Equal(ps, []uint64{5, 7}) {
		t.Fatalf("listed %v", ps)
	}
	b = s.NewBatch()
	_ = b.DropPartition(7)
	if err := s.CommitNoSync(b); err != nil {
		t.Fatal(err)
	}
	if err := s.SyncWitness(); err != nil {
		t.Fatal(err)
	}
	if ps := onDisk(); !slices.Equal(ps, []uint64{5, 7}) {
		t.Fatalf("listed %v although the end is not on disk", ps)
	}
	commit(t, s, func(b *Batch) { _ = b.Append(5, []Entry{entry(1, 2, 10)}) })
	if ps := onDisk(); !slices.Equal(ps, []uint64{5}) {
		t.Fatalf("listed %v", ps)
	}
}

func FuzzDecodeRegistry(f *testing.F) {
	f.Add(encodeRegistry([16]byte{1}, 7, nil))
	f.Add(encodeRegistry([16]byte{1}, 7, []uint64{0, 3, 1 << 60}))
	f.Fuzz(func(t *testing.T, b []byte) {
		store, counter, ps, err := decodeRegistry(b)
		if err != nil {
			return
		}
		again := encodeRegistry(store, counter, ps)
		if binary.LittleEndian.Uint32(b[8:]) == FormatVersion && !slices.Equal(again, b) {
			t.Fatalf("%x reads as %d partitions, which are %x", b, len(ps), again)
		}
	})
}
