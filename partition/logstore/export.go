package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// A snapshot is one partition as a stream: a head, then chunks of rows, then a
// chunk that says that all were there. Every checksum covers the one before it,
// so chunks that are left out, come twice or are of another stream do not pass.
// Its layout is drawn in docs/format/snapshot.md.
//
//	rows at one moment ──► chunk 0, 1, 2 … end ──► verified ──► tables beside the store ──► Switch
//	(Export)                     any bytes          (Import)        nobody reads them      all at once
const (
	snapshotMagic   = "SMQSNAPS"
	snapshotVersion = 1
	snapHeadLen     = 8 + 4 + 4 + 5*8 // before the caller's data
	snapDataMax     = 1 << 20
	chunkHeadLen    = 8 + 1 + 4
	chunkBytes      = 1 << 20
	chunkMax        = 64 << 20
	snapRowLen      = 1 + 4 + 4
	chunkRows       = 1
	chunkEnd        = 2
	snapEndLen      = 8 + 8
)

// SnapshotHead says what a stream holds.
type SnapshotHead struct {
	Stream    uint64 // tells one export from another
	Partition uint64
	Index     uint64 // the last entry in it
	Term      uint64 // that entry's
	Data      []byte // the caller's, at most 1 MiB

	chunk uint64 // the first one that follows
}

func (h *SnapshotHead) append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, snapshotMagic...)
	dst = binary.LittleEndian.AppendUint32(dst, snapshotVersion)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(h.Data)))
	for _, v := range [...]uint64{h.Stream, h.Partition, h.Index, h.Term, h.chunk} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	dst = append(dst, h.Data...)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[at:], castagnoli))
}

// seed is what the checksum of the first chunk covers of the head: all but which
// chunk comes first.
func (h *SnapshotHead) seed() uint32 {
	w := *h
	w.chunk = 0
	b := w.append(nil)
	return binary.LittleEndian.Uint32(b[len(b)-4:])
}

func readSnapshotHead(r io.Reader) (h SnapshotHead, err error) {
	b := make([]byte, snapHeadLen, snapHeadLen+256)
	if _, err := io.ReadFull(r, b); err != nil {
		return h, cutShort(err)
	}
	if string(b[:8]) != snapshotMagic {
		return h, &ErrBadSnapshot{What: "it does not begin like one"}
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != snapshotVersion {
		return h, &ErrBadSnapshot{What: fmt.Sprintf("its version is %d, this program knows version %d", v, snapshotVersion)}
	}
	n := binary.LittleEndian.Uint32(b[12:])
	if n > snapDataMax {
		return h, &ErrBadSnapshot{What: fmt.Sprintf("its head has %d bytes of data, at most %d", n, snapDataMax)}
	}
	for i, v := range []*uint64{&h.Stream, &h.Partition, &h.Index, &h.Term, &h.chunk} {
		*v = binary.LittleEndian.Uint64(b[16+8*i:])
	}
	rest := make([]byte, n+4)
	if _, err := io.ReadFull(r, rest); err != nil {
		return h, cutShort(err)
	}
	h.Data = rest[:n:n]
	if got, want := crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, h.Data), binary.LittleEndian.Uint32(rest[n:]); got != want {
		return h, &ErrBadSnapshot{What: "its head is not what was sent", Err: fmt.Errorf("checksum %08x, computed %08x", want, got)}
	}
	return h, nil
}

// cutShort names the end of a stream that came too early for what it is.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func beginChunk(dst []byte, number uint64) []byte {
	dst = binary.LittleEndian.AppendUint64(dst[:0], number)
	return append(dst, chunkRows, 0, 0, 0, 0)
}

func endChunk(b []byte, kind byte, before uint32) ([]byte, uint32) {
	b[8] = kind
	binary.LittleEndian.PutUint32(b[9:], uint32(len(b)-chunkHeadLen))
	crc := chunkCRC(before, b)
	return binary.LittleEndian.AppendUint32(b, crc), crc
}

func chunkCRC(before uint32, b []byte) uint32 {
	var prev [4]byte
	binary.LittleEndian.PutUint32(prev[:], before)
	return crc32.Update(crc32.Checksum(prev[:], castagnoli), castagnoli, b)
}

func appendSnapRow(dst []byte, ns Namespace, key, value []byte) []byte {
	dst = append(dst, byte(ns))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(key)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(value)))
	dst = append(dst, key...)
	return append(dst, value...)
}

// Export is one partition as it is at one moment, to be sent elsewhere. It keeps
// what the store would give up meanwhile, so it has an end: its limit, and much
// sooner when nobody reads on. It must be closed.
type Export struct {
	s    *Store
	p    uint64
	idle time.Duration
	stop time.Time // the limit

	mu     sync.Mutex
	snap   *pebble.Snapshot // nil when it is over
	why    error
	timer  *time.Timer
	reader *exportReader // the one that reads now

	base  link
	head  SnapshotHead
	omit  []byte // meta rows that are not part of it
	marks []exportMark
}

// exportMark is where a chunk begins.
type exportMark struct {
	space  int // in perPartition
	key    []byte
	before uint32
	at     link // the entry before, in the space of entries
	rows   uint64
	bytes  uint64
}

// Export begins an export. Nothing is read yet but where the log begins.
func (s *Store) Export(p uint64, limit, idle time.Duration) (*Export, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	e := &Export{s: s, p: p, idle: idle, stop: time.Now().Add(limit), snap: s.db.NewSnapshot()}
	e.timer = time.AfterFunc(min(idle, limit), e.late)
	s.exportMu.Lock()
	if s.exports == nil {
		s.exports = make(map[*Export]bool)
	}
	s.exports[e] = true
	s.exportMu.Unlock()
	key := appendPrefix(nil, nsBase, p)
	row, err := e.get(key)
	if err == nil && row != nil { // else it begins with entry 1
		if e.base, err = decodeBase(key, row); err != nil {
			err = s.damaged("where the log begins is unreadable", err, Range{Partition: p, Low: 1})
		}
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// late ends an export that nobody reads any more.
func (e *Export) late() { e.end(&ErrExportOver{Partition: e.p}) }

// Close ends the export. Whoever still reads gets an error.
func (e *Export) Close() { e.end(ErrClosed) }

func (e *Export) end(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.snap == nil {
		return
	}
	e.timer.Stop()
	if e.reader != nil {
		e.reader.drop()
	}
	e.why = why
	// An error here says that iterators are open, and there are none.
	_ = e.snap.Close()
	e.snap = nil
	e.s.exportMu.Lock()
	delete(e.s.exports, e)
	e.s.exportMu.Unlock()
}

// endExports closes what is still open when the store is closed.
func (s *Store) endExports() {
	s.exportMu.Lock()
	var all []*Export
	for e := range s.exports {
		all = append(all, e)
	}
	s.exportMu.Unlock()
	for _, e := range all {
		e.Close()
	}
}

func (e *Export) get(key []byte) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.snap == nil {
		return nil, e.why
	}
	v, closer, err := e.snap.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, e.s.readError(err, Range{Partition: e.p, Low: 1})
	}
	out := bytes.Clone(v)
	return out, closer.Close()
}

// Meta reads a named value as it was at the moment; nil if there was none.
func (e *Export) Meta(name byte) ([]byte, error) {
	key := append(appendPrefix(nil, nsMeta, e.p), name)
	row, err := e.get(key)
	if err != nil || row == nil {
		return nil, err
	}
	v, err := unseal(key, row, -1)
	if err != nil {
		return nil, e.s.damaged(fmt.Sprintf("value %d is not what was written", name), err, Range{Partition: e.p, Low: 1})
	}
	return v, nil
}

// Begin says how far the export goes, which meta rows are not part of it, and
// what the caller puts into the head. It returns the last entry's term, which data
// is given.
func (e *Export) Begin(to uint64, omit []byte, data func(term uint64) ([]byte, error)) error {
	var term uint64
	switch {
	case to == e.base.index:
		term = e.base.term
	case to < e.base.index:
		return &ErrCompacted{Partition: e.p, Index: to, First: e.base.index + 1}
	default:
		key := appendEntryKey(nil, e.p, to)
		row, err := e.get(key)
		if err != nil {
			return err
		}
		here := Range{Partition: e.p, Low: to, High: to}
		if row == nil {
			return e.s.damaged("entries are missing", nil, here)
		}
		last, _, _, err := decodeEntry(key, row)
		if err != nil {
			return e.s.damaged("an entry is not what was written", err, here)
		}
		term = last.Term
	}
	b, err := data(term)
	if err != nil {
		return err
	}
	if len(b) > snapDataMax {
		return fmt.Errorf("logstore: a snapshot's head with %d bytes of data, at most %d", len(b), snapDataMax)
	}
	e.head = SnapshotHead{Stream: rand.Uint64(), Partition: e.p, Index: to, Term: term, Data: b}
	e.omit = omit
	e.marks = []exportMark{{before: e.head.seed()}}
	return nil
}

// Head is what the stream begins with.
func (e *Export) Head() SnapshotHead { return e.head }

// From reads the stream from a chunk on: 0, or one that an earlier reader of this
// export came to. One reader at a time: a new one ends the one before.
func (e *Export) From(chunk uint64) (io.Reader, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.snap == nil {
		return nil, e.why
	}
	if chunk >= uint64(len(e.marks)) {
		return nil, fmt.Errorf("logstore: chunk %d of a snapshot was not made yet", chunk)
	}
	if e.reader != nil {
		e.reader.drop()
	}
	h := e.head
	h.chunk = chunk
	e.reader = &exportReader{e: e, chunk: chunk, at: e.marks[chunk], out: h.append(nil)}
	return e.reader, nil
}

// exportReader makes chunks as they are read.
type exportReader struct {
	e     *Export
	it    *pebble.Iterator // in the space that at names; nil between two
	out   []byte
	buf   []byte
	chunk uint64 // the next one
	at    exportMark
	done  bool
	err   error
}

// drop gives the iterator back; the reader reads no more.
func (r *exportReader) drop() {
	if r.it != nil {
		_ = r.it.Close()
		r.it = nil
	}
	if r.err == nil {
		r.err = ErrClosed
	}
}

// Read implements io.Reader.
func (r *exportReader) Read(b []byte) (int, error) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	if r.e.snap == nil {
		return 0, r.e.why
	}
	if len(r.out) == 0 && r.err == nil && !r.done {
		if r.err = r.next(); r.err != nil && r.it != nil {
			_ = r.it.Close()
			r.it = nil
		}
	}
	switch {
	case len(r.out) > 0:
	case r.err != nil:
		return 0, r.err
	case r.done:
		return 0, io.EOF
	}
	n := copy(b, r.out)
	r.out = r.out[n:]
	r.e.timer.Reset(max(0, min(r.e.idle, time.Until(r.e.stop))))
	return n, nil
}

// next makes one chunk.
func (r *exportReader) next() error {
	e := r.e
	r.buf = beginChunk(r.buf, r.chunk)
	spaces := perPartition()
	kind := byte(chunkRows)
	for len(r.buf) < chunkBytes && r.at.space < len(spaces) {
		if err := r.fill(spaces[r.at.space]); err != nil {
			return err
		}
	}
	if len(r.buf) == chunkHeadLen {
		kind = chunkEnd
		r.done = true
		r.buf = binary.LittleEndian.AppendUint64(r.buf, r.at.rows)
		r.buf = binary.LittleEndian.AppendUint64(r.buf, r.at.bytes)
	}
	r.out, r.at.before = endChunk(r.buf, kind, r.at.before)
	r.buf = r.out
	r.chunk++
	if uint64(len(e.marks)) == r.chunk {
		m := r.at
		m.key = bytes.Clone(m.key)
		e.marks = append(e.marks, m)
	}
	return nil
}

// fill takes rows of one space until the chunk is full or the space is done.
func (r *exportReader) fill(ns Namespace) error {
	e := r.e
	if ns == nsHardState { // whoever takes the snapshot has a vote of its own
		r.at.space++
		return nil
	}
	if r.it == nil {
		if err := r.open(ns); err != nil {
			return err
		}
	}
	for ok := r.it.Valid(); ok; ok = r.it.Next() {
		if len(r.buf) >= chunkBytes {
			r.at.key = append(r.at.key[:0], r.it.Key()...)
			return nil
		}
		key := r.it.Key()
		value, err := valueOf(r.it)
		if err != nil {
			return e.s.readError(err, Range{Partition: e.p, Low: 1})
		}
		if ns == nsEntry {
			if err := r.entry(key, value); err != nil {
				return err
			}
		} else if _, err := unseal(key, value, -1); err != nil {
			return e.s.badRow(ns, e.p, err)
		}
		if ns == nsMeta && bytes.IndexByte(e.omit, key[prefixLen]) >= 0 {
			continue
		}
		r.buf = appendSnapRow(r.buf, ns, key[prefixLen:], value)
		r.at.rows++
		r.at.bytes += uint64(len(key) - prefixLen + len(value))
	}
	if err := r.it.Error(); err != nil {
		return e.s.readError(err, Range{Partition: e.p, Low: r.at.at.index + 1})
	}
	if ns == nsEntry && max(r.at.at.index, e.base.index) != e.head.Index {
		d := e.s.damaged("entries are missing", nil, Range{Partition: e.p, Low: r.at.at.index + 1, High: e.head.Index})
		e.s.reportDamage(d)
		return d
	}
	err := r.it.Close()
	r.it = nil
	r.at.space++
	r.at.key = r.at.key[:0]
	return err
}

func (r *exportReader) open(ns Namespace) (err error) {
	e := r.e
	lower, upper := appendPrefix(nil, ns, e.p), appendPrefixEnd(nil, ns, e.p)
	if ns == nsEntry {
		lower, upper = appendEntryKey(nil, e.p, e.base.index+1), appendEntryKey(nil, e.p, e.head.Index+1)
		if len(r.at.key) == 0 {
			r.at.at = e.base
		}
	}
	if len(r.at.key) > 0 {
		lower = bytes.Clone(r.at.key)
	}
	if r.it, err = e.snap.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper}); err != nil {
		return e.s.readError(err, Range{Partition: e.p, Low: 1})
	}
	r.it.First()
	return nil
}

// entry checks that an entry follows the one before it.
func (r *exportReader) entry(key, value []byte) error {
	e := r.e
	x, crc, prev, err := decodeEntry(key, value)
	what := "an entry is not what was written"
	switch {
	case err != nil:
	case x.Index != r.at.at.index+1:
		what, err = "entries are missing", fmt.Errorf("entry %d follows entry %d", x.Index, r.at.at.index)
	case prev != r.at.at.crc:
		what, err = "an entry does not follow the one before it", fmt.Errorf("link %08x, want %08x", prev, r.at.at.crc)
	}
	if err != nil {
		at := r.at.at.index + 1
		d := e.s.damaged(what, err, Range{Partition: e.p, Low: at, High: at})
		e.s.reportDamage(d)
		return d
	}
	r.at.at = link{index: x.Index, term: x.Term, crc: crc}
	return nil
}
