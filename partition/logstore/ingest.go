package logstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// incomingName is the folder of tables that are on their way into the store.
// What is in there when a store is opened belongs to nobody.
const incomingName = "incoming"

// importTableBytes is how large the tables get that are made of a snapshot.
const importTableBytes = 64 << 20

// Import takes a partition's snapshot in: it verifies what comes and lays tables
// beside the store, in which every space of the partition begins with a tombstone
// over all of it. Switch then lets them take the place of what was there, all at
// once: readers and a power cut find the old partition or the new one.
//
// An Import belongs to one goroutine. It must end with Switch or Discard.
type Import struct {
	s    *Store
	p    uint64
	name string // its files begin with it

	head  SnapshotHead
	begun bool
	done  bool
	err   error // it cannot go on

	next  uint64 // chunk
	crc   uint32 // of the chunk before
	space int    // in perPartition: where the last row was
	key   []byte // of the last row
	base  link
	at    link // the last entry
	rows  uint64
	bytes uint64
	meta  map[byte][]byte // sealed; they wait for Switch

	table  *sstable.Writer
	size   int64
	start  []byte // where the open table's tombstone begins
	tables []string
	buf    []byte
}

var importSeq atomic.Uint64

// NewImport begins to take in a snapshot of a partition.
func (s *Store) NewImport(p uint64) (*Import, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	if s.cfg.ReadOnly {
		return nil, ErrReadOnly
	}
	return &Import{s: s, p: p, name: fmt.Sprintf("p%d-%d", p, importSeq.Add(1)), meta: make(map[byte][]byte)}, nil
}

// sweepIncoming removes what an earlier run left behind.
func (s *Store) sweepIncoming() {
	if err := s.cfg.FS.RemoveAll(s.incomingDir()); err != nil {
		s.cfg.Logger.Warn("what is left of a snapshot was not removed: it takes room and does no harm", "err", err)
	}
}

func (s *Store) incomingDir() string { return s.cfg.FS.PathJoin(s.cfg.Dir, incomingName) }

// Head is what the stream says of itself; zero before anything was read.
func (im *Import) Head() SnapshotHead { return im.head }

// Next is the chunk that comes next.
func (im *Import) Next() uint64 { return im.next }

// Broken is why no more can be taken in; nil if it can.
func (im *Import) Broken() error { return im.err }

// Done tells that the snapshot is here as a whole.
func (im *Import) Done() bool { return im.done }

// Meta is a named value in the snapshot; nil if there is none.
func (im *Import) Meta(name byte) []byte {
	row := im.meta[name]
	if row == nil {
		return nil
	}
	return row[: len(row)-sealLen : len(row)-sealLen] // it was verified when it came
}

// Read takes in a stream, to its end. When the stream breaks off, what came of it
// is kept: the next stream may go on at chunk Next. One of another export that
// begins at its beginning takes its place. An *ErrSnapshotGap tells that
// it begins elsewhere, *ErrBadSnapshot that it is not what was sent, and any other
// error but that of r that the disk could not take it; the two latter end the Import.
func (im *Import) Read(r io.Reader) error {
	if im.err != nil {
		return im.err
	}
	h, err := readSnapshotHead(r)
	if err != nil {
		return im.bad(err)
	}
	switch {
	case h.Partition != im.p:
		return im.bad(&ErrBadSnapshot{What: fmt.Sprintf("it is of p%d", h.Partition)})
	case im.begun && h.Stream != im.head.Stream && h.chunk == 0:
		// What came of another one is of no use any more.
		im.Discard()
		*im = Import{s: im.s, p: im.p, name: fmt.Sprintf("p%d-%d", im.p, importSeq.Add(1)), meta: make(map[byte][]byte)}
	case im.begun && h.Stream != im.head.Stream || !im.begun && h.chunk != 0:
		return &ErrSnapshotGap{Partition: im.p, Stream: h.Stream, Next: 0}
	case h.chunk != im.next:
		return &ErrSnapshotGap{Partition: im.p, Stream: im.head.Stream, Next: im.next}
	}
	if !im.begun {
		im.head, im.begun, im.crc = h, true, h.seed()
	}
	for !im.done {
		if err := im.chunk(r); err != nil {
			return err
		}
	}
	return nil
}

// bad remembers that the stream is not to be trusted.
func (im *Import) bad(err error) error {
	var b *ErrBadSnapshot
	if errors.As(err, &b) {
		b.Partition = im.p
		im.err = err
	}
	return err
}

func (im *Import) badf(format string, args ...any) error {
	return im.bad(&ErrBadSnapshot{What: fmt.Sprintf(format, args...)})
}

func (im *Import) chunk(r io.Reader) error {
	im.buf = append(im.buf[:0], make([]byte, chunkHeadLen)...)
	if _, err := io.ReadFull(r, im.buf); err != nil {
		return cutShort(err)
	}
	number, kind, n := binary.LittleEndian.Uint64(im.buf), im.buf[8], binary.LittleEndian.Uint32(im.buf[9:])
	if n > chunkMax {
		return im.badf("chunk %d has %d bytes, at most %d", number, n, chunkMax)
	}
	// A length is a claim: memory is taken as the bytes come.
	for want := chunkHeadLen + int(n) + 4; len(im.buf) < want; {
		at := len(im.buf)
		im.buf = append(im.buf, make([]byte, min(want-at, chunkBytes))...)
		if _, err := io.ReadFull(r, im.buf[at:]); err != nil {
			return cutShort(err)
		}
	}
	end := len(im.buf) - 4
	crc := binary.LittleEndian.Uint32(im.buf[end:])
	if got := chunkCRC(im.crc, im.buf[:end]); got != crc || number != im.next {
		return im.badf("chunk %d, expected as chunk %d, is not what was sent: checksum %08x, computed %08x", number, im.next, crc, got)
	}
	body := im.buf[chunkHeadLen:end]
	switch kind {
	case chunkRows:
		for len(body) > 0 {
			var err error
			if body, err = im.row(body); err != nil {
				im.err = err
				return im.bad(err)
			}
		}
	case chunkEnd:
		if err := im.finish(body); err != nil {
			im.err = err
			return im.bad(err)
		}
	default:
		return im.badf("chunk %d is of kind %d, which this program does not know", number, kind)
	}
	im.crc = crc
	im.next++
	return nil
}

// row takes the first row of a chunk and returns the rest.
func (im *Import) row(b []byte) (rest []byte, err error) {
	if len(b) < snapRowLen {
		return nil, &ErrBadSnapshot{What: "a row ends early"}
	}
	ns, kl, vl := Namespace(b[0]), int(binary.LittleEndian.Uint32(b[1:])), int(binary.LittleEndian.Uint32(b[5:]))
	if b = b[snapRowLen:]; kl+vl > len(b) {
		return nil, &ErrBadSnapshot{What: "a row ends early"}
	}
	key, value := appendKey(make([]byte, 0, prefixLen+kl), ns, im.p, b[:kl]), b[kl:kl+vl]
	rest = b[kl+vl:]
	if _, ok := decodeKey(key); !ok || ns == nsStore || ns == nsHardState {
		return nil, &ErrBadSnapshot{What: fmt.Sprintf("a row of the %v that cannot be", ns)}
	}
	if bytes.Compare(key, im.key) <= 0 {
		return nil, &ErrBadSnapshot{What: fmt.Sprintf("a row of the %v comes behind one that it should precede", ns)}
	}
	if ns == nsEntry {
		err = im.entry(key, value)
	} else if _, uerr := unseal(key, value, -1); uerr != nil {
		err = &ErrBadSnapshot{What: fmt.Sprintf("a row of the %v is not what was written", ns), Err: uerr}
	}
	if err != nil {
		return nil, err
	}
	switch ns {
	case nsBase:
		base, err := decodeBase(key, value)
		if err != nil {
			return nil, &ErrBadSnapshot{What: "where the log begins is unreadable", Err: err}
		}
		im.base, im.at = base, base
	case nsMeta:
		im.meta[key[prefixLen]] = bytes.Clone(value)
	default:
		if err := im.add(ns, key, value); err != nil {
			return nil, err
		}
	}
	im.key = append(im.key[:0], key...)
	im.rows++
	im.bytes += uint64(kl + vl)
	return rest, nil
}

// entry checks an entry and that it follows the one before it.
func (im *Import) entry(key, value []byte) error {
	e, crc, prev, err := decodeEntry(key, value)
	switch {
	case err != nil:
		return &ErrBadSnapshot{What: "an entry is not what was written", Err: err}
	case e.Index != im.at.index+1 || prev != im.at.crc || e.Term < im.at.term:
		return &ErrBadSnapshot{What: fmt.Sprintf("entry %d of term %d does not follow entry %d of term %d", e.Index, e.Term, im.at.index, im.at.term)}
	case len(e.Data) > MaxEntryBytes:
		return &ErrBadSnapshot{What: fmt.Sprintf("entry %d has %d bytes, at most %d", e.Index, len(e.Data), MaxEntryBytes)}
	}
	im.at = link{index: e.Index, term: e.Term, crc: crc}
	return nil
}

// finish compares what came with what the sender says it sent.
func (im *Import) finish(body []byte) error {
	switch {
	case len(body) != snapEndLen || binary.LittleEndian.Uint64(body) != im.rows || binary.LittleEndian.Uint64(body[8:]) != im.bytes:
		return &ErrBadSnapshot{What: fmt.Sprintf("it ends with %d rows of %d bytes, which is not what its end says", im.rows, im.bytes)}
	case im.at.index != im.head.Index || im.at.term != im.head.Term:
		return &ErrBadSnapshot{What: fmt.Sprintf("it ends at entry %d of term %d, which is not what its head says", im.at.index, im.at.term)}
	}
	// The spaces behind the last row are empty, and that has to be said, too.
	for im.space < len(perPartition())-1 {
		if err := im.leap(im.space + 1); err != nil {
			return err
		}
	}
	if err := im.closeTable(appendPrefixEnd(nil, nsEntry, im.p)); err != nil {
		return err
	}
	im.done = true
	return nil
}

// add puts a row into a table.
func (im *Import) add(ns Namespace, key, value []byte) error {
	spaces := perPartition()
	for spaces[im.space] != ns {
		if err := im.leap(im.space + 1); err != nil {
			return err
		}
	}
	if im.size >= im.s.importBytes() {
		if err := im.closeTable(key); err != nil {
			return err
		}
		if err := im.openTable(key); err != nil {
			return err
		}
	}
	im.size += int64(len(key) + len(value))
	return im.disk(im.table.Set(key, value))
}

func (s *Store) importBytes() int64 {
	if s.cfg.tableBytes > 0 {
		return s.cfg.tableBytes
	}
	return importTableBytes
}

// leap goes on to another space. Those of the small rows are written by Switch.
func (im *Import) leap(to int) error {
	spaces := perPartition()
	if im.table != nil {
		if err := im.closeTable(appendPrefixEnd(nil, spaces[im.space], im.p)); err != nil {
			return err
		}
	}
	im.space = to
	if ns := spaces[to]; ns.rows() || ns == nsEntry {
		return im.openTable(appendPrefix(nil, ns, im.p))
	}
	return nil
}

func (im *Import) openTable(start []byte) error {
	fs, dir := im.s.cfg.FS, im.s.incomingDir()
	if room, err := im.s.cfg.Room(); err == nil && room.Free < uint64(im.s.importBytes())+im.s.cfg.RoomNeeded() {
		// What the log needs to go on is not to be taken by what may be sent again.
		return &ErrDiskFull{Dir: im.s.cfg.Dir, Err: errors.New("no room for a snapshot")}
	}
	if len(im.tables) == 0 {
		if err := fs.MkdirAll(dir, 0o700); err != nil {
			return im.disk(err)
		}
	}
	path := fs.PathJoin(dir, fmt.Sprintf("%s-%03d.sst", im.name, len(im.tables)))
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return im.disk(err)
	}
	if fd := f.Fd(); fd != vfs.InvalidFd {
		_ = restrict(fd)
	}
	o := im.s.pebbleOptions(true)
	o.EnsureDefaults()
	im.table = sstable.NewWriter(objstorageprovider.NewFileWritable(f), o.MakeWriterOptions(0, o.FormatMajorVersion.MaxTableFormat()))
	im.tables = append(im.tables, path)
	im.size, im.start = 0, bytes.Clone(start)
	return nil
}

// closeTable ends the open table, whose tombstone reaches up to end. It is synced.
func (im *Import) closeTable(end []byte) error {
	w := im.table
	im.table = nil
	return im.disk(errors.Join(w.DeleteRange(im.start, end), w.Close()))
}

// disk gives an error of writing a table its type. It is the snapshot's trouble
// and not the store's, which has not seen the file.
func (im *Import) disk(err error) error {
	switch {
	case err == nil:
		return nil
	case diskFull(err):
		return &ErrDiskFull{Dir: im.s.cfg.Dir, Err: err}
	}
	return fmt.Errorf("logstore: writing a snapshot of p%d: %w", im.p, err)
}

// Discard gives up what came. It may follow Switch, too.
func (im *Import) Discard() {
	if im.err == nil {
		im.err = ErrClosed
	}
	if im.table != nil {
		_ = im.table.Close()
		im.table = nil
	}
	for _, path := range im.tables {
		_ = im.s.cfg.FS.Remove(path) // else the next start does
	}
	im.tables = nil
}

// Switch puts the snapshot in the place of what the store has of the partition.
// Of its own the partition keeps the hard state and the meta rows that are given,
// which take the place of those in the snapshot. Nothing else may write the
// partition meanwhile. It returns when all of it is on disk. After an error the
// store has the old partition, if it has not stopped.
func (im *Import) Switch(hs HardState, keep map[byte][]byte) error {
	if im.err != nil {
		return im.err
	}
	if !im.done {
		return fmt.Errorf("logstore: half a snapshot of p%d cannot be taken", im.p)
	}
	s := im.s
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	im.err = ErrClosed
	defer im.Discard()
	if hs.Commit != im.at.index {
		return fmt.Errorf("logstore: a snapshot of p%d to entry %d and a hard state that commits entry %d", im.p, im.at.index, hs.Commit)
	}
	if err := im.small(hs, keep); err != nil {
		return err
	}
	if err := s.rawSyncDir(s.incomingDir()); err != nil {
		return im.disk(err)
	}
	// What was written before must not be on disk later than the snapshot that
	// follows it. And with nothing of the partition left in memory tables, taking
	// the new ones in waits for no flush.
	if err := s.flush(); err != nil {
		return err
	}
	b := s.NewBatch()
	defer b.Close()
	if err := b.SetHardState(im.p, hs); err != nil {
		return err
	}
	spaces := perPartition()
	b.edits = append(b.edits, logEdit{p: im.p, now: logState{base: im.base, last: im.at}, rewrote: true, blind: true, erases: spaces[:]})
	defer s.dead.takesIn(im.p)()
	var n uint64
	s.commitMu.Lock()
	b.behind = s.fs.newest.Load()
	err := s.ingest(im.tables)
	if err == nil {
		// The hard state once more: if the list of tables should ever lose the
		// snapshot, what is committed will be found missing.
		n, err = s.applyLocked(b, true)
	}
	s.commitMu.Unlock()
	if err != nil {
		return err
	}
	p := &Pending{s: s, b: b.b, counter: n}
	b.b = nil
	return p.Wait()
}

// small writes the spaces of which the partition keeps something of its own.
func (im *Import) small(hs HardState, keep map[byte][]byte) error {
	row := func(ns Namespace, rows func() error) error {
		if err := im.openTable(appendPrefix(nil, ns, im.p)); err != nil {
			return err
		}
		if err := im.disk(rows()); err != nil {
			return err
		}
		return im.closeTable(appendPrefixEnd(nil, ns, im.p))
	}
	err := row(nsBase, func() error {
		key := appendPrefix(nil, nsBase, im.p)
		return im.table.Set(key, encodeBase(key, im.base))
	})
	if err != nil {
		return err
	}
	err = row(nsHardState, func() error {
		key := appendPrefix(nil, nsHardState, im.p)
		return im.table.Set(key, encodeHardState(key, hs))
	})
	if err != nil {
		return err
	}
	return row(nsMeta, func() error {
		for name := range 256 {
			key := append(appendPrefix(nil, nsMeta, im.p), byte(name))
			sealed := im.meta[byte(name)]
			if value, mine := keep[byte(name)]; mine && value == nil {
				sealed = nil
			} else if mine {
				sealed = seal(key, bytes.Clone(value))
			}
			if sealed == nil {
				continue
			}
			if err := im.table.Set(key, sealed); err != nil {
				return err
			}
		}
		return nil
	})
}

// ingest takes tables into the engine, all or none. It needs commitMu.
func (s *Store) ingest(paths []string) (err error) {
	defer recovered(&err)
	if f := s.failure.Load(); f != nil {
		return f
	}
	if err = s.db.Ingest(context.Background(), paths); err != nil {
		err = fmt.Errorf("logstore: taking a snapshot in: %w", err)
	}
	if f := s.failure.Load(); f != nil {
		return f // the engine was told that all went well
	}
	return err
}

// rawSyncDir is syncDir past the guard: what it is for may fail.
func (s *Store) rawSyncDir(dir string) error {
	d, err := s.cfg.FS.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
