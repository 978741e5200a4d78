package logstore

import (
	"context"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A partition that is erased leaves its rows in the tables under a tombstone, until a
// compaction takes them away. A compaction reads what it takes away: at a damaged block
// it fails, for as long as the table is there. And who looks for a key beside the
// erased ones reads the block in which it would be, and meets damage that is nobody's
// any more: the partition that is made anew in the place of the erased one does at once.
//
// So of a block that does not read it is found out whether anybody needs it. The
// table's index says between which keys its rows lie. It is dead if of every partition
// that there is, and whose rows could lie there, all of that space was erased after the
// table was written, or lies outside its log. Who reads a dead block gets one row instead that is erased like
// those it had, with a checksum that fits: seeks pass over it, and the next compaction
// drops it.
//
//	index      … ─────────┐ from            to ┌───────── …
//	block                 │ (does not read)    │
//	partitions     p4 ────┼──── p5 ────────────┼──── p6        what there is
//	tombstones         ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓           newer than the table
//
// Three things keep it from hiding a row that somebody needs:
//
//   - the tombstone is newer than all that the table has. Files are numbered as they are
//     begun, and what a file gets is settled by then: one that was begun before a batch has
//     nothing that is written after it. Of tombstones of before the store was opened the
//     sequence numbers tell. A compaction to the last level takes those away, but not from
//     what a tombstone that is still there covers;
//   - it is on the disk: if it were lost in a crash, and the row with it in a
//     compaction, the old replica would be back with a hole;
//   - a row that was never in the table need not have been erased: partitions that
//     the store does not know have no rows, and while one is taken in it counts as known.
//
// A reader that began before the erasure may get the stand-in in the place of rows that
// it still sees. The stand-in does not pass for a row of ours: it has no seal.
type deadBlocks struct {
	evalMu sync.Mutex // one at a time is looked into; before mu

	mu     sync.Mutex
	ready  bool     // the store knows its partitions
	found  []uint64 // those that the tables had rows of when it was opened
	atOpen uint64   // tombstones up to this sequence number are in tables
	erased map[space]erasure
	coming map[uint64]bool // partitions that are being taken in
	gen    uint64          // of erased, and of what logs begin and end with
	looked map[place]*verdict
}

// space is all rows of one kind of a partition.
type space struct {
	ns Namespace
	p  uint64
}

func (sp space) span() span {
	return span{appendPrefix(nil, sp.ns, sp.p), appendPrefixEnd(nil, sp.ns, sp.p)}
}

// rows is where a row may be: of most spaces not at the bare prefix, to which the index
// of a table often shortens what is before it.
func (sp space) rows() span {
	all := sp.span()
	switch sp.ns {
	case nsEntry, nsMeta, Offsets, IDs, Producers:
		all.from = append(all.from, 0)
	}
	return all
}

// erasure is what is known of a space's last tombstone since the store was opened.
type erasure struct {
	upTo  uint64 // what is in files up to this one is erased
	batch uint64 // on the disk when this batch is
}

// place is a block in a file.
type place struct {
	file string
	at   int64
	len  int
}

// verdict is what is known of a block that does not read.
type verdict struct {
	instead []byte // it is dead, and this takes its place

	facts *blockFacts
	gen   uint64 // when it was looked at
	batch uint64 // which was not on the disk then; 0: all were
}

// blockFacts does not change.
type blockFacts struct {
	from, to []byte // keys of the index before and at the block: from <= row <= to
	spans    []span // where its rows may lie: the parts of it that are in use
	newest   uint64 // sequence number in the table, as far as it has any
	number   uint64 // of the table's file
	before   []span // erased since, by tombstones in tables
}

// maxLooked bounds what is remembered of blocks; beyond it all are looked at anew.
const maxLooked = 1000

// knowPartitions has blocks looked at: which partitions there are is known now.
func (s *Store) knowPartitions() {
	atOpen := uint64(0)
	if m := s.manifest(); m != nil {
		for _, t := range m.tables {
			atOpen = max(atOpen, t.highSeq)
		}
		s.fs.created(max(m.nextFile, 1) - 1)
	}
	d := &s.dead
	d.mu.Lock()
	d.ready, d.atOpen = true, atOpen
	d.mu.Unlock()
}

// noteErased takes note of a batch that took something of a log away, or erased whole
// spaces of a partition: all that they had in files up to one.
func (s *Store) noteErased(e *logEdit, upTo, batch uint64) {
	d := &s.dead
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, ns := range e.erases {
		d.erased[space{ns, e.p}] = erasure{upTo: upTo, batch: batch}
	}
	d.gen++
}

// takesIn says that a partition is being taken in, until the answer is called.
func (d *deadBlocks) takesIn(p uint64) (done func()) {
	d.mu.Lock()
	d.coming[p] = true
	d.mu.Unlock()
	return func() {
		d.mu.Lock()
		delete(d.coming, p)
		d.mu.Unlock()
	}
}

// deadBlock returns what stands in for a block that does not read, trailer and all; nil
// if somebody may need it. It takes no lock of Pebble's: whoever reads may hold them.
func (s *Store) deadBlock(name string, at int64, n int) (instead []byte) {
	defer func() {
		if recover() != nil {
			instead = nil // Pebble's, over something else that does not read
		}
	}()
	d, key := &s.dead, place{name, at, n}
	d.evalMu.Lock()
	defer d.evalMu.Unlock()
	d.mu.Lock()
	v, ready, gen := d.looked[key], d.ready, d.gen
	d.mu.Unlock()
	if !ready || n <= blockTrailerLen {
		return nil
	}
	synced := s.synced.Load()
	if v != nil && (v.instead != nil || v.gen == gen && (v.batch == 0 || synced < v.batch)) {
		return v.instead
	}
	next := &verdict{gen: gen}
	if v != nil {
		next.facts = v.facts
	}
	if next.facts == nil {
		next.facts = s.factsOf(key)
	}
	if next.facts != nil {
		var covered []span
		covered, next.batch = s.erasedIn(next.facts, synced)
		dead, wait := s.nobodyNeeds(next.facts.spans, covered, synced)
		if next.batch == 0 || wait != 0 && wait < next.batch {
			next.batch = wait
		}
		if dead {
			next.instead = standIn(s.pebbleOptions(true), key, next.facts, covered)
		}
	}
	d.mu.Lock()
	if len(d.looked) >= maxLooked {
		clear(d.looked)
	}
	d.looked[key] = next
	d.mu.Unlock()
	if next.instead != nil {
		s.cfg.Logger.Info("a damaged block is passed over: all that may be in it was erased", "file", name, "at", at, "bytes", n)
		s.merges.retry() // what failed on it may pass now
	}
	return next.instead
}

// erasedIn is what was erased since a block was written, and is on the disk. wait is the
// first batch that is not, and erases more; 0 if there is none.
func (s *Store) erasedIn(f *blockFacts, synced uint64) (covered []span, wait uint64) {
	covered = slices.Clone(f.before)
	d := &s.dead
	d.mu.Lock()
	for sp, e := range d.erased {
		switch {
		case e.upTo < f.number:
		case e.batch > synced:
			if wait == 0 || e.batch < wait {
				wait = e.batch
			}
		default:
			covered = append(covered, sp.span())
		}
	}
	d.mu.Unlock()
	return union(covered), wait
}

// nobodyNeeds tells whether no partition can have a row in spans that is not covered. If
// it is not so, wait is the first batch that could change that when it is on the disk.
func (s *Store) nobodyNeeds(spans, covered []span, synced uint64) (dead bool, wait uint64) {
	own := span{appendPrefix(nil, nsStore, 0), appendPrefixEnd(nil, nsStore, ^uint64(0))}
	known := s.registry.all()
	s.dead.mu.Lock()
	known = append(known, s.dead.found...)
	for p := range s.dead.coming {
		known = append(known, p)
	}
	s.dead.mu.Unlock()
	for _, sp := range spans {
		if _, some := sp.and(own); some {
			return false, 0
		}
		for _, ns := range perPartition() {
			for _, p := range known {
				needs, batch := s.needs(space{ns, p})
				if batch > synced {
					wait = batch
					needs = space{ns, p}.rows()
				}
				if part, some := sp.and(needs); some && !part.within(covered) {
					return false, wait
				}
			}
		}
	}
	return len(spans) > 0, 0
}

// needs is where a partition may have rows of a kind, if a batch is on the disk: of a log
// whose ends are known, what is between them.
func (s *Store) needs(sp space) (all span, batch uint64) {
	if sp.ns == nsEntry {
		s.mu.RLock()
		st, known := s.logs[sp.p]
		s.mu.RUnlock()
		if known {
			return span{appendEntryKey(nil, sp.p, st.base.index+1), appendEntryKey(nil, sp.p, st.last.index+1)}, st.gen
		}
	}
	return sp.rows(), 0
}

// factsOf finds out what a block may hold; nil if it is no block of rows, or that cannot
// be told.
func (s *Store) factsOf(b place) *blockFacts {
	m := s.manifest()
	if m == nil {
		return nil
	}
	f := &blockFacts{}
	var parts []span
	for k, t := range m.tables {
		if tableName(t.fileOf(k)) == b.file {
			parts = append(parts, t.span())
			f.number, f.newest = t.fileOf(k), max(f.newest, t.highSeq)
		}
	}
	if len(parts) == 0 || !s.boundsOf(b, f) {
		return nil
	}
	all := span{f.from, append(slices.Clone(f.to), 0)}
	for _, part := range parts {
		if in, some := part.and(all); some {
			f.spans = append(f.spans, in)
		}
	}
	s.dead.mu.Lock()
	atOpen := s.dead.atOpen
	s.dead.mu.Unlock()
	for k, t := range m.tables {
		if _, some := t.span().and(all); !some || t.highSeq <= f.newest {
			continue
		}
		f.before = append(f.before, s.tombstones(tableName(t.fileOf(k)), t, f.newest, atOpen)...)
	}
	f.before = union(f.before)
	return f
}

// openPlain opens a table beside Pebble; what is damaged of it is damaged.
func (s *Store) openPlain(name string) (*sstable.Reader, vfs.File, error) {
	path := s.cfg.FS.PathJoin(s.pebbleDir(), name)
	f, err := s.cfg.FS.Open(path)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	checked := &checkedFile{File: f, name: name, size: info.Size()}
	readable, err := sstable.NewSimpleReadable(checked)
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	o := s.pebbleOptions(true)
	o.EnsureDefaults()
	r, err := sstable.NewReader(context.Background(), readable, o.MakeReaderOptions())
	if err != nil {
		_ = readable.Close()
		return nil, nil, err
	}
	return r, checked, nil
}

// boundsOf finds a block of rows in the index of its table.
func (s *Store) boundsOf(b place, f *blockFacts) bool {
	r, file, err := s.openPlain(b.file)
	if err != nil {
		return false
	}
	defer func() { _ = r.Close() }()
	l, err := r.Layout()
	if err != nil {
		return false
	}
	for _, h := range l.Index {
		data := make([]byte, h.Length+blockTrailerLen)
		if _, err := file.ReadAt(data, int64(h.Offset)); err != nil || data[h.Length] != notCompressed {
			return false
		}
		var it colblk.IndexIter
		if err := it.Init(pebble.DefaultComparer, data[:h.Length:h.Length], sstable.NoTransforms); err != nil {
			return false
		}
		for ok := it.First(); ok; ok = it.Next() {
			bh, err := it.BlockHandleWithProperties()
			if err != nil {
				return false
			}
			f.to = slices.Clone(it.Separator())
			if int64(bh.Offset) == b.at {
				return int(bh.Length)+blockTrailerLen == b.len
			}
			f.from = f.to
		}
	}
	return false
}

// notCompressed is the kind of a block, in its trailer.
const notCompressed = 0

// tombstones reads those of a table that erase all that a block of another one may have
// and were there when the store was opened. Later ones are known already.
func (s *Store) tombstones(name string, t tableFile, newer, upTo uint64) (out []span) {
	r, _, err := s.openPlain(name)
	if err != nil {
		return nil
	}
	defer func() { _ = r.Close() }()
	it, err := r.NewRawRangeDelIter(context.Background(), sstable.NoFragmentTransforms, sstable.NoReadEnv)
	if err != nil || it == nil {
		return nil
	}
	defer it.Close()
	for k, err := it.First(); k != nil && err == nil; k, err = it.Next() {
		newest := uint64(0)
		for _, key := range k.Keys {
			seq := uint64(key.SeqNum())
			if seq == 0 && t.lowSeq == t.highSeq {
				seq = t.lowSeq // of a snapshot: the MANIFEST alone has its number
			}
			if seq <= upTo {
				newest = max(newest, seq)
			}
		}
		if newest <= newer {
			continue
		}
		whole := span{slices.Clone(k.Start), slices.Clone(k.End)}
		if part, some := whole.and(span{t.first, t.last}); some {
			out = append(out, part)
		}
	}
	return out
}

// fileOf is the file that a table is in, by number.
func (t tableFile) fileOf(k tableKey) uint64 {
	if t.virtual {
		return t.backing
	}
	return k.num
}

// span is the keys that a table may have. Its last one may be where a tombstone ends,
// which it has not.
func (t tableFile) span() span {
	if t.first == nil {
		return span{}
	}
	if len(t.last) == prefixLen && t.last[0] == keyFormat && Namespace(t.last[1]) != nsBase && Namespace(t.last[1]) != nsHardState {
		return span{t.first, t.last}
	}
	return span{t.first, append(slices.Clone(t.last), 0)}
}
