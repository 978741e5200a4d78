package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/pebble/v2"
)

// logState is where a log begins and ends. gen tells two states apart that
// look alike: it is the counter of the batch that made this one.
type logState struct {
	base link // the last entry that is no longer there; index 0 if none ever was
	last link // the newest entry; the base if the log is empty
	gen  uint64
}

// logState returns a log's state; the zero state for one that does not exist.
func (s *Store) logState(p uint64) (logState, error) {
	if err := s.enter(); err != nil {
		return logState{}, err
	}
	defer s.leave()
	s.mu.RLock()
	st, ok := s.logs[p]
	s.mu.RUnlock()
	if ok {
		return st, nil
	}
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	return s.logStateLocked(p)
}

// logStateLocked needs commitMu, so that nothing is committed between reading
// the rows and remembering what they say.
func (s *Store) logStateLocked(p uint64) (logState, error) {
	s.mu.RLock()
	st, ok := s.logs[p]
	s.mu.RUnlock()
	if ok {
		return st, nil
	}
	st, found, err := s.readLogState(p)
	if err != nil {
		s.noteDamage(err)
		return st, err
	}
	if !found {
		return st, nil
	}
	s.mu.Lock()
	s.logs[p] = st
	s.mu.Unlock()
	return st, nil
}

// readLogState finds a log's ends on disk and checks that they fit together:
// the first entry follows the base, the last one is not before what the hard
// state says is committed.
func (s *Store) readLogState(p uint64) (st logState, found bool, err error) {
	key := appendPrefix(nil, nsBase, p)
	row, err := s.get(key, nil)
	if err != nil {
		return st, false, s.readError(err, Range{Partition: p, Low: 1})
	}
	if row != nil {
		if st.base, err = decodeBase(key, row); err != nil {
			return st, false, s.damaged("where the log begins is unreadable", err, Range{Partition: p, Low: 1})
		}
		found = true
	}
	st.last = st.base
	it, err := s.db.NewIter(&pebble.IterOptions{
		// Not the bare prefix: what was deleted of the partition before ends
		// there, and a damaged table of that one would be looked into.
		LowerBound: appendEntryKey(nil, p, 0),
		UpperBound: appendPrefixEnd(nil, nsEntry, p),
	})
	if err != nil {
		return st, false, s.readError(err, Range{Partition: p, Low: st.base.index + 1})
	}
	defer func() { _ = it.Close() }()
	if it.First() {
		found = true
		first := binary.BigEndian.Uint64(it.Key()[prefixLen:])
		if first != st.base.index+1 {
			return st, false, s.damaged("entries are missing", nil, Range{Partition: p, Low: st.base.index + 1, High: first - 1})
		}
		if !it.Last() {
			return st, false, s.readError(it.Error(), Range{Partition: p, Low: first})
		}
		index := binary.BigEndian.Uint64(it.Key()[prefixLen:])
		value, err := valueOf(it)
		if err != nil {
			return st, false, s.readError(err, Range{Partition: p, Low: index, High: index})
		}
		e, crc, _, err := decodeEntry(it.Key(), value)
		if err != nil {
			return st, false, s.damaged("an entry is not what was written", err, Range{Partition: p, Low: index, High: index})
		}
		st.last = link{index: index, term: e.Term, crc: crc}
	} else if err := it.Error(); err != nil {
		return st, false, s.readError(err, Range{Partition: p, Low: st.base.index + 1})
	}
	hs, err := s.hardState(p)
	if err != nil {
		return st, false, err
	}
	if !found && s.gone(p) {
		return st, false, s.damaged("nothing is left of a partition", nil, Range{Partition: p, Low: 1})
	}
	if hs.Commit > st.last.index {
		return st, false, s.damaged("committed entries are missing", nil, Range{Partition: p, Low: st.last.index + 1, High: hs.Commit})
	}
	return st, found, nil
}

// FirstIndex is the index of a log's first entry; one past the last if the log
// is empty.
func (s *Store) FirstIndex(p uint64) (uint64, error) {
	st, err := s.logState(p)
	return st.base.index + 1, err
}

// LastIndex is the index of a log's last entry; if the log is empty, that of
// the last one it had.
func (s *Store) LastIndex(p uint64) (uint64, error) {
	st, err := s.logState(p)
	return st.last.index, err
}

// Term is the term of an entry; the one before the first is known too.
func (s *Store) Term(p, index uint64) (uint64, error) {
	st, err := s.logState(p)
	if err != nil {
		return 0, err
	}
	switch {
	case index == st.last.index:
		return st.last.term, nil
	case index == st.base.index:
		return st.base.term, nil
	case index < st.base.index:
		return 0, &ErrCompacted{Partition: p, Index: index, First: st.base.index + 1}
	case index > st.last.index:
		return 0, &ErrUnavailable{Partition: p, Index: index, Last: st.last.index}
	}
	l, err := s.linkAt(p, index)
	return l.term, err
}

// linkAt reads and checks one entry that lies inside the log.
func (s *Store) linkAt(p, index uint64) (l link, err error) {
	err = s.Scan(p, index, index+1, func(e Entry, crc uint32) bool {
		l = link{index: e.Index, term: e.Term, crc: crc}
		return true
	})
	return l, err
}

// Entries reads entries lo and up, below hi, verified. It stops before the
// entry that would take their payloads beyond maxBytes (0: no limit), but
// returns at least one. What it returns is the caller's.
func (s *Store) Entries(p, lo, hi uint64, maxBytes int) ([]Entry, error) {
	if hi <= lo {
		return nil, nil
	}
	out := make([]Entry, 0, min(hi-lo, 64))
	var arena []byte
	size := 0
	err := s.Scan(p, lo, hi, func(e Entry, _ uint32) bool {
		size += len(e.Data)
		if maxBytes > 0 && size > maxBytes && len(out) > 0 {
			return false
		}
		// Small payloads share a buffer; large ones get one of their own, so
		// that keeping one does not keep others.
		if n := len(e.Data); n >= 8<<10 {
			e.Data = append(make([]byte, 0, n), e.Data...)
		} else {
			if cap(arena)-len(arena) < n {
				arena = make([]byte, 0, 32<<10)
			}
			at := len(arena)
			arena = append(arena, e.Data...)
			e.Data = arena[at:len(arena):len(arena)]
		}
		out = append(out, e)
		return true
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Scan calls fn with entries lo and up, below hi, verified, until fn returns
// false. It copies nothing: the payload is valid until fn returns. crc is the
// entry's checksum, which stands for the whole log up to it.
//
// Damage found on the way ends the scan with *ErrDamaged, after fn had what is
// good before it.
func (s *Store) Scan(p, lo, hi uint64, fn func(e Entry, crc uint32) bool) error {
	if hi <= lo {
		return nil
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	st, err := s.logState(p)
	if err != nil {
		return err
	}
	next, err := s.scan(p, lo, hi, st, fn)
	if err == nil {
		return nil
	}
	// The log may have been truncated or rewritten between the look at its
	// state and the read. Then it was no damage: look again, and only if
	// nothing changed meanwhile believe it.
	s.commitMu.Lock()
	again, stateErr := s.logStateLocked(p)
	s.commitMu.Unlock()
	var damaged *ErrDamaged
	if stateErr != nil || again == st || !errors.As(err, &damaged) {
		s.noteDamage(err)
		return err
	}
	if next > lo {
		// fn saw entries that may be replaced by now; the caller must not get
		// a mixture of two logs.
		return &ErrBadBatch{Partition: p, What: fmt.Sprintf("the log changed while entries %d and up were read: read again", lo)}
	}
	if _, err = s.scan(p, lo, hi, again, fn); err != nil {
		s.noteDamage(err)
	}
	return err
}

func (s *Store) scan(p, lo, hi uint64, st logState, fn func(e Entry, crc uint32) bool) (next uint64, err error) {
	if lo <= st.base.index {
		return lo, &ErrCompacted{Partition: p, Index: lo, First: st.base.index + 1}
	}
	if hi-1 > st.last.index {
		return lo, &ErrUnavailable{Partition: p, Index: max(lo, st.last.index+1), Last: st.last.index}
	}
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: appendEntryKey(nil, p, lo),
		UpperBound: appendEntryKey(nil, p, hi),
	})
	if err != nil {
		return lo, s.readError(err, Range{Partition: p, Low: lo, High: hi - 1})
	}
	defer func() { _ = it.Close() }()
	next = lo
	var before uint32
	known := false
	if lo == st.base.index+1 {
		before, known = st.base.crc, true
	}
	for ok := it.First(); ok; ok = it.Next() {
		index := binary.BigEndian.Uint64(it.Key()[prefixLen:])
		if index != next {
			return next, s.damaged("entries are missing", nil, Range{Partition: p, Low: next, High: index - 1})
		}
		here := Range{Partition: p, Low: index, High: index}
		value, err := valueOf(it)
		if err != nil {
			return next, s.readError(err, here)
		}
		e, crc, prev, err := decodeEntry(it.Key(), value)
		if err != nil {
			return next, s.damaged("an entry is not what was written", err, here)
		}
		if known && prev != before {
			return next, s.damaged("an entry does not follow the one before it", fmt.Errorf("link %08x, want %08x", prev, before), here)
		}
		if index == st.last.index && crc != st.last.crc {
			return next, s.damaged("the last entry is not the one that was written last", fmt.Errorf("checksum %08x, want %08x", crc, st.last.crc), here)
		}
		next++
		if !fn(e, crc) {
			return next, nil
		}
		before, known = crc, true
	}
	if err := it.Error(); err != nil {
		return next, s.readError(err, Range{Partition: p, Low: next, High: hi - 1})
	}
	if next != hi {
		return next, s.damaged("entries are missing", nil, Range{Partition: p, Low: next, High: hi - 1})
	}
	return next, nil
}

// HardState reads a partition's hard state; zero if it has none.
func (s *Store) HardState(p uint64) (HardState, error) {
	if err := s.enter(); err != nil {
		return HardState{}, err
	}
	defer s.leave()
	return s.hardState(p)
}

func (s *Store) hardState(p uint64) (HardState, error) {
	key := appendPrefix(nil, nsHardState, p)
	row, err := s.get(key, nil)
	if err != nil {
		return HardState{}, s.readError(err, Range{Partition: p, Low: 1})
	}
	if row == nil {
		return HardState{}, nil
	}
	hs, err := decodeHardState(key, row)
	if err != nil {
		return HardState{}, s.damaged("the hard state is not what was written", err, Range{Partition: p, Low: 1})
	}
	return hs, nil
}

// Meta reads a named value of a partition; nil if there is none.
func (s *Store) Meta(p uint64, name byte) ([]byte, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	key := append(appendPrefix(nil, nsMeta, p), name)
	row, err := s.get(key, nil)
	if err != nil {
		return nil, s.readError(err, Range{Partition: p, Low: 1})
	}
	if row == nil {
		return nil, nil
	}
	v, err := unseal(key, row, -1)
	if err != nil {
		return nil, s.damaged(fmt.Sprintf("value %d is not what was written", name), err, Range{Partition: p, Low: 1})
	}
	return v, nil
}

// errEngine is a panic of Pebble over what it read.
var errEngine = errors.New("pebble gave up")

// valueOf fetches the value that an iterator is at. Where a value file of its
// own ends in damage, Pebble panics instead of returning an error.
func valueOf(it *pebble.Iterator) (v []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			v, err = nil, fmt.Errorf("%w: %v", errEngine, r)
		}
	}()
	return it.ValueAndErr()
}

// noteDamage tells of damage found by a read, once per file or range.
func (s *Store) noteDamage(err error) {
	var d *ErrDamaged
	if errors.As(err, &d) {
		s.reportDamage(d)
	}
}

func (s *Store) damaged(what string, err error, r Range) *ErrDamaged {
	return &ErrDamaged{Dir: s.cfg.Dir, What: what, Ranges: []Range{r}, Err: err}
}

// readError gives an error of Pebble's read path its type. A table that is gone
// is damage like one that does not read. Where no range is known, that of the
// damaged file's keys is taken.
func (s *Store) readError(err error, r Range) error {
	if err == nil {
		return s.damaged("rows vanished", nil, r)
	}
	if f := s.failure.Load(); f != nil {
		return f // files may have ended early since
	}
	var rot *rotError
	if errors.As(err, &rot) {
		d := s.damaged("stored data does not read", rot, r)
		d.File = rot.file
		if r == (Range{}) {
			d.Ranges, d.bound = s.rangesOf(rot.file), true
		}
		s.reportDamage(d)
		return d
	}
	if pebble.IsCorruptionError(err) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, errEngine) {
		d := s.damaged("stored data does not read", err, r)
		if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
			d.File = s.cfg.FS.PathBase(info.Path)
			if r == (Range{}) {
				d.Ranges, d.bound = rangesBetween(info.Bounds.Start, info.Bounds.End.Key), true
			}
		}
		s.reportDamage(d)
		return d
	}
	return fmt.Errorf("logstore: reading p%d: %w", r.Partition, err)
}
