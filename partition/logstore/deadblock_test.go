package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// rot changes a bit in the one table that has these bytes, the newest of those that do.
func (img image) rot(t *testing.T, what []byte) (name string) {
	t.Helper()
	for _, name = range slices.Backward(slices.Sorted(maps.Keys(img))) {
		if at := bytes.Index(img[name], what); at >= 0 && isTable(name) {
			img[name] = slices.Clone(img[name])
			img[name][at] ^= 1
			return name
		}
	}
	t.Fatalf("no table has %q", what)
	return ""
}

// rowOf is a row that is found in a file by its bytes.
func rowOf(p uint64, i, version int) []byte {
	return fmt.Appendf(nil, "row %02d of p%d, version %d", i, p, version)
}

// fillRows makes a partition with a log and rows.
func fillRows(t *testing.T, s *Store, p uint64, rows, version int) {
	t.Helper()
	commit(t, s, func(b *Batch) {
		_ = b.ResetLog(p, 0, 0)
		_ = b.Append(p, []Entry{entry(1, 1, 100), entry(1, 2, 100)})
		for i := range rows {
			_ = b.Set(IDs, p, fmt.Appendf(nil, "%02d", i), rowOf(p, i, version))
		}
	})
}

// allRows reads the rows of a partition, and whether they are those that were written.
func allRows(s *Store, p uint64, rows, version int) error {
	n := 0
	wrong := error(nil)
	err := s.Iterate(IDs, p, nil, nil, func(_, v []byte) bool {
		if want := rowOf(p, n, version); !bytes.Equal(v, want) {
			wrong = fmt.Errorf("p%d has %q, want %q", p, v, want)
		}
		n++
		return true
	})
	if err == nil && wrong == nil && n != rows {
		wrong = fmt.Errorf("p%d has %d rows, want %d", p, n, rows)
	}
	return errors.Join(err, wrong)
}

// A block that does not read has rows of partitions 2 and 3, the last and the first. Each
// of them is damaged until it is erased and made anew, and so is who was made anew while
// the other one may need the block. Then it is nobody's: all reads, the next compaction
// takes it away, and so it was before, too, when the store is opened again instead.
func TestErasedDamage(t *testing.T) {
	t.Parallel()
	const rows = 60
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			mem := newMem()
			cfg := testConfig(mem)
			s := mustOpen(t, cfg)
			for p := uint64(1); p <= 4; p++ {
				fillRows(t, s, p, rows, 1)
			}
			must(t, errors.Join(s.MergeNow(), s.Close()))
			img := takeImage(t, mem)
			img.rot(t, rowOf(2, rows-1, 1))
			cfg.FS = img.fs(t)
			s = mustOpen(t, cfg)
			defer func() { _ = s.Close() }()

			var d *ErrDamaged
			version := map[uint64]int{1: 1, 2: 1, 3: 1, 4: 1}
			state := func(damaged ...uint64) {
				t.Helper()
				for p := uint64(1); p <= 4; p++ {
					err := allRows(s, p, rows, version[p])
					if errors.As(err, &d) != slices.Contains(damaged, p) || err != nil && d == nil {
						t.Fatalf("p%d: %v; %v are damaged", p, err, damaged)
					}
				}
			}
			remake := func(p uint64) {
				t.Helper()
				commit(t, s, func(b *Batch) { _ = b.DropPartition(p) })
				fillRows(t, s, p, rows, 2)
				version[p] = 2
			}
			shared := sharing(t, s, rows)
			state(shared...)
			for i, p := range shared {
				for _, left := range shared[i:] { // its own damage is named
					if err := allRows(s, left, rows, 1); !errors.As(err, &d) || d.Ranges[0].Partition != left {
						t.Fatalf("p%d: %v", left, err)
					}
				}
				remake(p)
			}
			if restart {
				must(t, s.Close())
				s = mustOpen(t, cfg)
			}
			state()
			must(t, errors.Join(s.MergeNow(), s.ScrubNow()))
			state()
			noDamage(t, s)
			must(t, s.Close())
			s = mustOpen(t, cfg)
			state()
		})
	}
}

// sharing tells which partitions cannot be read.
func sharing(t *testing.T, s *Store, rows int) (ps []uint64) {
	t.Helper()
	for p := uint64(1); p <= 4; p++ {
		err := allRows(s, p, rows, 1)
		if errors.As(err, new(*ErrDamaged)) {
			ps = append(ps, p)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if len(ps) < 2 {
		t.Fatalf("only %v have rows in the block", ps)
	}
	return ps
}

// The last row of a partition is damaged, and has a block of its own. The index puts the
// block before whatever comes behind it: the partition that is made anew reads, and so
// does one that has no rows there at all. Not before the erasure is on the disk, though:
// the row could be merged away, and come back missing in a crash.
func TestErasedDamageAtAnEnd(t *testing.T) {
	t.Parallel()
	const rows = 5
	mem := newMem()
	cfg := testConfig(mem)
	cfg.Simulated = true
	s := mustOpen(t, cfg)
	fillRows(t, s, 1, rows, 1)
	fillRows(t, s, 2, 0, 1)
	commit(t, s, func(b *Batch) { _ = b.Set(Producers, 1, []byte("a"), []byte("something that lies behind")) })
	must(t, errors.Join(s.MergeNow(), s.Close()))
	img := takeImage(t, mem)
	img.rot(t, rowOf(1, rows-1, 1))
	cfg.FS = img.fs(t)
	s = mustOpen(t, cfg)
	defer func() { _ = s.Close() }()
	if err := allRows(s, 1, rows, 1); !errors.As(err, new(*ErrDamaged)) {
		t.Fatalf("the damaged row: %v", err)
	}
	b := s.NewBatch()
	_ = b.DropPartition(1)
	_ = b.DropPartition(2)
	must(t, s.CommitNoSync(b))
	if s.deadBlock(damagedPlace(t, s)) != nil {
		t.Fatal("the block is passed over, and a crash could bring its row back")
	}
	fillRows(t, s, 1, rows, 2)
	fillRows(t, s, 2, 0, 2)
	must(t, errors.Join(allRows(s, 1, rows, 2), allRows(s, 2, 0, 2)))
	if s.deadBlock(damagedPlace(t, s)) == nil {
		t.Fatal("the block is not passed over")
	}
	must(t, s.MergeNow())
	must(t, errors.Join(allRows(s, 1, rows, 2), allRows(s, 2, 0, 2)))
	noDamage(t, s)
}

// What was written since a partition was erased is not taken for what was erased: damage to
// it is named, whether batches wrote it or it came with a snapshot. With the next erasure
// that is gone, too.
func TestDamageSinceErasure(t *testing.T) {
	t.Parallel()
	snapshot := stream(t, export(t, source(t)), 0)
	for _, how := range []string{"batches", "snapshot"} {
		t.Run(how, func(t *testing.T) {
			mem := newMem()
			s := mustOpen(t, testConfig(mem))
			defer func() { _ = s.Close() }()
			fillRows(t, s, 1, 60, 1)
			fillRows(t, s, 7, 60, 1)
			must(t, s.MergeNow())
			remake := func() {
				t.Helper()
				commit(t, s, func(b *Batch) { _ = b.DropPartition(7) })
				if how == "snapshot" {
					must(t, takeIn(s, snapshot))
				} else {
					commit(t, s, func(b *Batch) {
						_ = b.ResetLog(7, 0, 0)
						for i := range 60 { // as many blocks as the snapshot has
							_ = b.Set(AppRows, 7, fmt.Appendf(nil, "group/%02d", i), bytes.Repeat([]byte{byte(i)}, 900))
						}
					})
				}
				must(t, s.flush())
			}
			read := func() error {
				return s.Iterate(AppRows, 7, nil, nil, func(_, _ []byte) bool { return true })
			}
			for range 2 {
				remake()
				must(t, s.MergeNow()) // nothing of before is left, and what is has lost its numbers
				for k, table := range s.manifest().tables {
					neededBlocks(t, s, tableName(table.fileOf(k)))
				}
				must(t, s.Close())
				img := takeImage(t, mem)
				img.rot(t, bytes.Repeat([]byte{44}, 900))
				mem = img.fs(t)
				s = mustOpen(t, testConfig(mem))
				if err := read(); !errors.As(err, new(*ErrDamaged)) {
					t.Fatalf("a damaged row that was written since: %v", err)
				}
				must(t, allRows(s, 1, 60, 1))
			}
			remake()
			must(t, errors.Join(read(), s.MergeNow(), read(), allRows(s, 1, 60, 1)))
		})
	}
}

// neededBlocks looks at the blocks of a table that have a row which somebody needs.
func neededBlocks(t *testing.T, s *Store, name string) {
	t.Helper()
	data, err := readAll(s.cfg.FS, s.cfg.FS.PathJoin(s.pebbleDir(), name))
	if err != nil {
		return // it was merged meanwhile
	}
	for _, part := range partsOf(t, name, data) {
		row := bytes.Contains(data[part.at:part.at+part.len], bytes.Repeat([]byte{44}, 900))
		if part.what == "data" && row && s.deadBlock(name, int64(part.at), int(part.len)+blockTrailerLen) != nil {
			t.Fatalf("%s: a block that was written since the erasure counts as erased", name)
		}
	}
}

// TestDeadBlocks asks of every block of a store at work whether somebody needs it, cuts the
// power, and damages those that nobody does. All that was acknowledged must be there, and
// nothing else: what is erased in a batch that is not on the disk counts as there.
func TestDeadBlocks(t *testing.T) {
	t.Parallel()
	dead, lived := 0, 0
	for round := range trials(3) {
		r := newRun(200 + uint64(round))
		mem := newMem()
		cfg := testConfig(mem)
		cfg.blockBytes = 100 + 200*(round%3)
		s := mustOpen(t, cfg)
		write := func(sync bool, fill func(b *Batch, next model)) {
			t.Helper()
			b, next := s.NewBatch(), r.now.clone()
			fill(b, next)
			if !sync {
				must(t, s.CommitNoSync(b))
				r.took(next)
				return
			}
			p, err := s.Commit(b)
			must(t, err)
			r.took(next)
			must(t, p.Wait())
			r.acked = r.at
		}
		for i := range 120 {
			must(t, r.step(s, nil))
			if i%15 == 14 {
				must(t, s.flush())
			}
			if i%40 == 39 {
				must(t, s.MergeNow())
			}
			sync := r.rng.IntN(3) > 0
			if i%8 == 7 {
				write(sync, func(b *Batch, next model) {
					p := uint64(1 + r.rng.IntN(4))
					_ = b.DropPartition(p)
					next[p] = modelLog{}
				})
			}
			write(sync, func(b *Batch, next model) { // whoever has rows has a log
				for p := uint64(1); p <= 4; p++ {
					if l := next[p]; l.baseIndex == 0 && len(l.entries) == 0 {
						_ = b.ResetLog(p, 1, 1)
						l.baseIndex, l.baseTerm = 1, 1
						next[p] = l
					}
				}
			})
			if i%12 != 11 {
				continue
			}
			img := takeImage(t, mem.CrashClone(vfs.CrashCloneCfg{}))
			n := 0
			for k, table := range s.manifest().tables {
				name := path.Join("store", pebbleName, tableName(table.fileOf(k)))
				if img[name] == nil {
					continue
				}
				data := slices.Clone(img[name])
				for _, part := range partsOf(t, name, data) {
					if part.what == "data" && s.deadBlock(path.Base(name), int64(part.at), int(part.len)+blockTrailerLen) != nil {
						data[part.at+part.len/2] ^= 32
						n++
					}
				}
				img[name] = data
			}
			after := *r
			after.history = maps.Clone(r.history)
			crashed := cfg
			crashed.FS = img.fs(t)
			c, err := Open(crashed)
			if err == nil {
				err = errors.Join(after.check(c), c.Close())
			}
			switch {
			case err == nil:
				dead += n
			case errors.As(err, new(*ErrDamaged)) && n > 0:
				lived += n
				t.Logf("LIVED %d %v", n, err)
			default:
				t.Fatalf("round %d, step %d, with %d blocks that nobody needs: %v", round, i, n, err)
			}
		}
		must(t, s.Close())
	}
	t.Logf("%d blocks could be done without, %d could not after the power cut", dead, lived)
}

// damagedPlace is the one block that was looked into.
func damagedPlace(t *testing.T, s *Store) (string, int64, int) {
	t.Helper()
	s.dead.mu.Lock()
	defer s.dead.mu.Unlock()
	if len(s.dead.looked) != 1 {
		t.Fatalf("%d blocks were looked into", len(s.dead.looked))
	}
	for p := range s.dead.looked {
		return p.file, p.at, p.len
	}
	return "", 0, 0
}

// TestErasedDamageEverywhere damages blocks of a store of which much was written over,
// deleted and cut, and has those partitions be made anew that do not read. Nothing that
// reads is other than what was written, and in the end all of it reads and merges.
func TestErasedDamageEverywhere(t *testing.T) {
	t.Parallel()
	healed, remade := 0, 0
	for round := range trials(2) {
		r := newRun(100 + uint64(round))
		mem := newMem()
		cfg := testConfig(mem)
		cfg.blockBytes = 100 + 100*(round%4) // some rows each
		for range 2 {
			s := mustOpen(t, cfg)
			for range 60 {
				must(t, r.step(s, nil))
			}
			if round%2 == 0 {
				must(t, s.MergeNow())
			}
			must(t, s.Close())
		}
		img := takeImage(t, mem)
		for _, name := range slices.Sorted(maps.Keys(img)) {
			if !isTable(name) {
				continue
			}
			for i, part := range partsOf(t, name, img[name]) {
				if part.what != "data" || r.rng.IntN(2) == 0 {
					continue
				}
				data := slices.Clone(img[name])
				data[part.at+part.len/2] ^= 4
				bad := maps.Clone(img)
				bad[name] = data
				n, err := heal(t, bad.fs(t), r.now.clone())
				if err != nil {
					t.Errorf("round %d, %s, block %d: %v", round, path.Base(name), i, err)
				} else if n > 0 {
					healed++
				}
				remade += n
			}
		}
	}
	t.Logf("%d stores are well again, %d partitions were made anew", healed, remade)
}

// heal erases what does not read and makes it anew, until all reads.
func heal(t *testing.T, mem *vfs.MemFS, want model) (remade int, err error) {
	s, err := Open(testConfig(mem))
	if err != nil {
		var d *ErrDamaged
		if errors.As(err, &d) {
			return 0, nil // it has rows of the store itself
		}
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	damaged := func() (ps []uint64, err error) {
		for _, p := range slices.Sorted(maps.Keys(want)) {
			l := want[p]
			if index, _ := l.last(); index == 0 {
				continue // rows without a log are found again or not
			}
			err := l.compare(s, p)
			for _, ns := range []Namespace{Offsets, Producers, AppRows} { // as the scrub does
				if err == nil {
					err = s.Iterate(ns, p, nil, nil, func(k, _ []byte) bool {
						t.Errorf("p%d has a row %q that nobody wrote", p, k)
						return true
					})
				}
			}
			if errors.As(err, new(*ErrDamaged)) {
				ps = append(ps, p)
			} else if err != nil {
				return ps, fmt.Errorf("SILENT: p%d: %w", p, err)
			}
		}
		return ps, nil
	}
	for tries := 0; ; tries++ {
		ps, err := damaged()
		if err != nil {
			return remade, err
		}
		if len(ps) == 0 {
			break
		}
		if tries > 2*len(want) {
			return remade, fmt.Errorf("%v stay damaged: %v", ps, s.Damage())
		}
		for _, p := range ps {
			commit(t, s, func(b *Batch) { _ = b.DropPartition(p) })
			l := modelLog{baseIndex: 5, baseTerm: 1, rows: map[string]string{}}
			commit(t, s, func(b *Batch) {
				_ = b.ResetLog(p, l.baseIndex, l.baseTerm)
				for i := range uint64(3) {
					l.entries = append(l.entries, entry(1, 6+i, 400))
				}
				_ = b.Append(p, l.entries)
				for i := range 10 {
					key := fmt.Sprintf("k%03d", 5*i)
					l.rows[key] = fmt.Sprint("new ", i)
					_ = b.Set(IDs, p, []byte(key), []byte(l.rows[key]))
				}
			})
			want[p] = l
			remade++
		}
	}
	s.compactAll()
	ps, err := damaged()
	if err == nil && len(ps) > 0 {
		err = fmt.Errorf("%v are damaged after a compaction", ps)
	}
	return remade, err
}
