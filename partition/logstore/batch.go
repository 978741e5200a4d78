package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Batch gathers writes that reach the disk together or not at all. It belongs
// to one goroutine. Batches that write the same log must be committed in the
// order in which they were begun; Commit refuses one that comes too late.
//
// The first error of a call sticks: Commit returns it and writes nothing.
type Batch struct {
	s   *Store
	b   *pebble.Batch
	err error

	// behind is the newest file of before tables with tombstones were taken in; 0: none
	// were.
	behind uint64

	edits []logEdit
	index map[uint64]int // of edits by partition, once there are many
}

// logEdit is what a batch does to one log.
type logEdit struct {
	p     uint64
	start logState // as the store had it when the batch first looked
	now   logState // with what the batch did so far
	added []link   // entries of this batch that are still part of the log
	// rewrote tells that entries were replaced; blind, that the log was damaged
	// and is replaced as a whole, so that start says nothing.
	rewrote, blind bool
	erases         []Namespace // spaces with a tombstone over all that was there before
}

// Every Pebble batch begins with the row of the batch counter. Its value lies
// at a fixed place: header, kind, key length, key, value length.
const counterAt = 12 + 1 + 1 + (prefixLen + 1) + 1

// retainedBatchBytes is how large a batch buffer is kept for reuse. It is
// above the size of a batch under load, so that the hot path does not make
// garbage of that size.
const retainedBatchBytes = 4 << 20

// NewBatch begins a batch. One that is not committed must be closed.
func (s *Store) NewBatch() *Batch {
	b := &Batch{s: s}
	if b.err = s.enter(); b.err != nil {
		return b
	}
	defer s.leave()
	b.b = s.db.NewBatch(pebble.WithMaxRetainedSizeBytes(retainedBatchBytes))
	op := b.b.SetDeferred(len(s.counterKey), counterLen)
	copy(op.Key, s.counterKey)
	clear(op.Value)
	b.err = op.Finish()
	return b
}

// Close drops a batch that was not committed. It may follow Commit, too.
func (b *Batch) Close() {
	if b.b != nil {
		_ = b.b.Close()
		b.b = nil
	}
	if b.err == nil {
		b.err = &ErrBadBatch{What: "it was closed or committed before"}
	}
}

// Size is about how many bytes the batch will write to the log file.
func (b *Batch) Size() int {
	if b.b == nil {
		return 0
	}
	return b.b.Len()
}

// edit finds or begins the edit of a log. whole is for writes that replace all
// of it; they must work on a damaged log, too, for they are its repair.
func (b *Batch) edit(p uint64, whole bool) (*logEdit, error) {
	if b.err != nil {
		return nil, b.err
	}
	if b.index != nil {
		if i, ok := b.index[p]; ok {
			return &b.edits[i], nil
		}
	} else {
		for i := len(b.edits) - 1; i >= 0; i-- {
			if b.edits[i].p == p {
				return &b.edits[i], nil
			}
		}
	}
	st, err := b.s.logState(p)
	var damaged *ErrDamaged
	blind := whole && errors.As(err, &damaged)
	if err != nil && !blind {
		return nil, b.fail(err)
	}
	b.edits = append(b.edits, logEdit{p: p, start: st, now: st, blind: blind})
	if b.index == nil && len(b.edits) == 32 {
		b.index = make(map[uint64]int)
		for i := range b.edits {
			b.index[b.edits[i].p] = i
		}
	}
	if b.index != nil {
		b.index[p] = len(b.edits) - 1
	}
	return &b.edits[len(b.edits)-1], nil
}

func (b *Batch) fail(err error) error {
	if b.err == nil {
		b.err = err
	}
	return b.err
}

func (b *Batch) refuse(p uint64, format string, args ...any) error {
	return b.fail(&ErrBadBatch{Partition: p, What: fmt.Sprintf(format, args...)})
}

// Append writes entries to the end of a log. If the first one is there already,
// it and everything behind it give way. Indexes follow each other without a
// gap, terms do not fall. The payloads are copied.
func (b *Batch) Append(p uint64, entries []Entry) error {
	if len(entries) == 0 {
		return b.err
	}
	e, err := b.edit(p, false)
	if err != nil {
		return err
	}
	first := entries[0].Index
	switch {
	case first <= e.now.base.index:
		return b.refuse(p, "entry %d was truncated, the log begins at %d", first, e.now.base.index+1)
	case first > e.now.last.index+1:
		return b.refuse(p, "entry %d leaves a gap, the log ends at %d", first, e.now.last.index)
	case first <= e.now.last.index:
		if err := b.overwrite(e, first); err != nil {
			return err
		}
	}
	at := e.now.last
	for i := range entries {
		n := &entries[i]
		if n.Index != at.index+1 {
			return b.refuse(p, "entry %d follows entry %d", n.Index, at.index)
		}
		if n.Term < at.term {
			return b.refuse(p, "entry %d has term %d, the one before it %d", n.Index, n.Term, at.term)
		}
		if len(n.Data) > MaxEntryBytes {
			return b.refuse(p, "entry %d has %d bytes, at most %d", n.Index, len(n.Data), MaxEntryBytes)
		}
		// The value is laid out in the batch's own buffer, so the payload is
		// copied once here and not a second time by the batch.
		op := b.b.SetDeferred(entryKeyLen, entryHeaderLen+len(n.Data))
		appendEntryKey(op.Key[:0], p, n.Index)
		crc := encodeEntry(op.Value, op.Key, n, at.crc)
		if err := op.Finish(); err != nil {
			return b.fail(err)
		}
		at = link{index: n.Index, term: n.Term, crc: crc}
		e.added = append(e.added, at)
	}
	e.now.last = at
	return nil
}

// overwrite removes entries first and up, and makes the one before it the last.
func (b *Batch) overwrite(e *logEdit, first uint64) error {
	var prev link
	found := false
	keep := 0
	for i, l := range e.added {
		if l.index >= first {
			break
		}
		keep = i + 1
		if l.index == first-1 {
			prev, found = l, true
		}
	}
	switch {
	case found:
	case first-1 == e.now.base.index:
		prev = e.now.base
	case first-1 == e.start.last.index && len(e.added) == 0:
		prev = e.start.last
	default:
		var err error
		if prev, err = b.s.linkAt(e.p, first-1); err != nil {
			return b.fail(err)
		}
	}
	e.added = e.added[:keep]
	e.rewrote = true
	if err := b.b.DeleteRange(appendEntryKey(nil, e.p, first), appendEntryKey(nil, e.p, e.now.last.index+1), nil); err != nil {
		return b.fail(err)
	}
	e.now.last = prev
	return nil
}

// TruncatePrefix removes the entries up to and with index to. It remembers
// their last one's term and checksum, so that the chain goes on.
func (b *Batch) TruncatePrefix(p, to uint64) error {
	e, err := b.edit(p, false)
	if err != nil {
		return err
	}
	if to <= e.now.base.index {
		return nil
	}
	if to > e.now.last.index {
		return b.refuse(p, "cannot truncate to entry %d, the log ends at %d", to, e.now.last.index)
	}
	base, found := link{}, false
	for _, l := range e.added {
		if l.index == to {
			base, found = l, true
		}
	}
	if !found {
		if to == e.now.last.index {
			base = e.now.last
		} else if base, err = b.s.linkAt(p, to); err != nil {
			return b.fail(err)
		}
	}
	if err := b.b.DeleteRange(appendEntryKey(nil, p, e.now.base.index+1), appendEntryKey(nil, p, to+1), nil); err != nil {
		return b.fail(err)
	}
	e.now.base = base
	return b.setBase(p, base)
}

// ResetLog removes a whole log and lets it begin anew behind an entry that is
// known from elsewhere: a snapshot.
func (b *Batch) ResetLog(p, index, term uint64) error {
	e, err := b.edit(p, true)
	if err != nil {
		return err
	}
	e.rewrote = true
	if err := b.b.DeleteRange(appendPrefix(nil, nsEntry, p), appendPrefixEnd(nil, nsEntry, p), nil); err != nil {
		return b.fail(err)
	}
	e.erases = append(e.erases, nsEntry)
	base := link{index: index, term: term}
	e.now.base, e.now.last, e.added = base, base, nil
	return b.setBase(p, base)
}

func (b *Batch) setBase(p uint64, base link) error {
	key := appendPrefix(nil, nsBase, p)
	return b.fail2(b.b.Set(key, encodeBase(key, base), nil))
}

func (b *Batch) fail2(err error) error {
	if err != nil {
		return b.fail(err)
	}
	return nil
}

// SetHardState writes a partition's hard state.
func (b *Batch) SetHardState(p uint64, hs HardState) error {
	if b.err != nil {
		return b.err
	}
	key := appendPrefix(nil, nsHardState, p)
	return b.fail2(b.b.Set(key, encodeHardState(key, hs), nil))
}

// SetMeta writes a small named value of a partition: the applied index, say.
// A nil value removes it.
func (b *Batch) SetMeta(p uint64, name byte, value []byte) error {
	if b.err != nil {
		return b.err
	}
	key := append(appendPrefix(nil, nsMeta, p), name)
	if value == nil {
		return b.fail2(b.b.Delete(key, nil))
	}
	return b.fail2(b.b.Set(key, seal(key, append(make([]byte, 0, len(value)+sealLen), value...)), nil))
}

func (b *Batch) checkRows(ns Namespace, p uint64) error {
	if b.err == nil && !ns.rows() {
		return b.refuse(p, "namespace %02x is not the caller's", byte(ns))
	}
	return b.err
}

// Set writes a row, sealed. Key and value are copied.
func (b *Batch) Set(ns Namespace, p uint64, key, value []byte) error {
	if err := b.checkRows(ns, p); err != nil {
		return err
	}
	op := b.b.SetDeferred(prefixLen+len(key), len(value)+sealLen)
	putRowKey(op.Key, ns, p, key)
	copy(op.Value, value)
	seal(op.Key, op.Value[:len(value)])
	return b.fail2(op.Finish())
}

// Delete removes a row.
func (b *Batch) Delete(ns Namespace, p uint64, key []byte) error {
	if err := b.checkRows(ns, p); err != nil {
		return err
	}
	op := b.b.DeleteDeferred(prefixLen + len(key))
	putRowKey(op.Key, ns, p, key)
	return b.fail2(op.Finish())
}

// DeleteRange removes the rows from from on and below to. Their space comes back
// when the engine gets to it (Config.DeleteDelay).
func (b *Batch) DeleteRange(ns Namespace, p uint64, from, to []byte) error {
	if err := b.checkRows(ns, p); err != nil {
		return err
	}
	switch bytes.Compare(from, to) {
	case 0:
		return nil
	case 1:
		return b.refuse(p, "a range of the %v ends before it begins", ns)
	}
	return b.fail2(b.b.DeleteRange(appendKey(nil, ns, p, from), appendKey(nil, ns, p, to), nil))
}

// DropPartition removes everything that is stored of a partition.
func (b *Batch) DropPartition(p uint64) error {
	e, err := b.edit(p, true)
	if err != nil {
		return err
	}
	e.rewrote = true
	for _, ns := range perPartition() {
		if err := b.b.DeleteRange(appendPrefix(nil, ns, p), appendPrefixEnd(nil, ns, p), nil); err != nil {
			return b.fail(err)
		}
	}
	spaces := perPartition()
	e.erases = append(e.erases, spaces[:]...)
	e.now.base, e.now.last, e.added = link{}, link{}, nil
	return nil
}

func putRowKey(dst []byte, ns Namespace, p uint64, key []byte) {
	dst[0], dst[1] = keyFormat, byte(ns)
	binary.BigEndian.PutUint64(dst[2:], p)
	copy(dst[prefixLen:], key)
}

// Pending is a commit on its way to the disk.
type Pending struct {
	s       *Store
	b       *pebble.Batch
	counter uint64
	err     error
	done    bool
}

// Wait returns once the batch, and every one committed before it, is fsynced.
// An error means that it is not known whether it is on disk, and that the store
// has stopped. Wait must be called once for each Pending, by one goroutine;
// further calls return the same.
func (p *Pending) Wait() error {
	if p.done {
		return p.err
	}
	p.done = true
	if err := p.b.SyncWait(); err != nil {
		p.s.fail("sync", "log", err)
	}
	_ = p.b.Close()
	p.b = nil
	// The error of a failed fsync is recorded before Pebble hears of the end of
	// the fsync, so a failure cannot be overlooked here.
	if f := p.s.failure.Load(); f != nil {
		p.err = f
		return p.err
	}
	p.s.noteSynced(p.counter)
	// A partition that is acknowledged is one that is listed.
	if p.err = p.s.saveRegistry(); p.err != nil {
		return p.err
	}
	return nil
}

// Reached waits for the fsync like Wait, and tells nobody of it: the witness does not
// hear, and an error is Wait's to give. It is for simulators, whose disk says later
// what is durable. Wait must follow.
func (p *Pending) Reached() {
	if !p.done {
		_ = p.b.SyncWait()
	}
}

// Commit applies a batch, which readers see at once, and begins to sync it.
// Concurrent commits share fsyncs. The batch must not be used any more.
func (s *Store) Commit(b *Batch) (*Pending, error) {
	n, err := s.apply(b, !s.unsynced)
	if err != nil {
		b.Close()
		return nil, err
	}
	p := &Pending{s: s, b: b.b, counter: n}
	b.b = nil
	b.Close()
	return p, nil
}

// CommitNoSync applies a batch without asking for a sync. A crash may lose it,
// but only together with everything that was committed after it: the next
// synced commit takes it along.
func (s *Store) CommitNoSync(b *Batch) error {
	_, err := s.apply(b, false)
	b.Close()
	return err
}

func (s *Store) apply(b *Batch, sync bool) (n uint64, err error) {
	if b.err != nil {
		return 0, b.err
	}
	if s.cfg.ReadOnly {
		return 0, ErrReadOnly
	}
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.leave()

	// One at a time: the counter must rise in the order of the log file.
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	return s.applyLocked(b, sync)
}

// applyLocked needs commitMu.
func (s *Store) applyLocked(b *Batch, sync bool) (n uint64, err error) {
	for i := range b.edits {
		e := &b.edits[i]
		if e.blind {
			continue
		}
		st, err := s.logStateLocked(e.p)
		if err != nil {
			return 0, err
		}
		if st != e.start {
			return 0, &ErrBadBatch{Partition: e.p, What: "another batch was committed to this log in between"}
		}
	}
	n = s.counter + 1
	files := s.fs.newest.Load()
	if b.behind != 0 {
		files = b.behind
	}
	encodeCounter(b.b.Repr()[counterAt:counterAt+counterLen], s.counterKey, n)
	if err := s.pebbleApply(b.b, sync); err != nil {
		// The log writer may still hold the batch: it is not given back for
		// reuse but left to the garbage collector.
		b.b = nil
		return 0, err
	}
	s.counter = n
	s.pace.wrote(b.b.Len())
	if len(b.edits) > 0 {
		s.mu.Lock()
		for i := range b.edits {
			e := &b.edits[i]
			if e.now.base == (link{}) && e.now.last == (link{}) {
				delete(s.logs, e.p) // dropped
			} else {
				e.now.gen = n
				s.logs[e.p] = e.now
			}
			s.registry.note(e.p, n, e.now.base != (link{}) || e.now.last != (link{}))
			if e.rewrote {
				delete(s.vanished, e.p)
			}
			if e.rewrote || e.now.base != e.start.base {
				s.noteErased(e, files, n)
				s.forgetDamage(e.p, e.now.base.index, e.rewrote)
			}
		}
		s.mu.Unlock()
	}
	return n, nil
}

// pebbleApply turns whatever Pebble does about a failed write into an error.
// It panics in some places and in others calls Logger.Fatalf and goes on.
func (s *Store) pebbleApply(b *pebble.Batch, sync bool) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.fail("write", "log", fmt.Errorf("%v", r))
			err = s.failure.Load()
		}
	}()
	if sync {
		err = s.db.ApplyNoSyncWait(b, pebble.Sync)
	} else {
		err = s.db.Apply(b, pebble.NoSync)
	}
	if err != nil {
		s.fail("write", "log", err)
	}
	if f := s.failure.Load(); f != nil {
		return f
	}
	return nil
}
