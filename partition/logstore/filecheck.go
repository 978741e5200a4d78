package logstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/sstable"
)

// checkFiles looks at the files that the MANIFEST lists: tables whole enough to
// be opened, value files at their ends. One that is not is told, and the store
// goes on without what was in it. Only a table that holds rows of the store itself
// stops the start: how far the store came could not be told without them.
func (s *Store) checkFiles(dir string, m *manifestState) error {
	files := m.files()
	tables, firsts := make(map[string]tableFile), make(map[string][]byte)
	for k, t := range m.tables {
		name := tableName(k.num)
		if t.virtual {
			name = tableName(t.backing)
		} else {
			tables[name] = t
		}
		if at, ok := firsts[name]; t.first != nil && (!ok || bytes.Compare(t.first, at) < 0) {
			firsts[name] = t.first
		}
	}
	names := slices.SortedFunc(maps.Keys(files), func(a, b file) int { return strings.Compare(a.name, b.name) })
	var without []*ErrDamaged // whose contents are lost
	refuse := false
	for _, f := range names {
		d, lost, err := s.checkFile(dir, f, tables[f.name])
		if err != nil {
			return err
		}
		if d == nil {
			continue
		}
		d.Ranges, d.bound = tidy(files[f]), true
		s.unsure = s.unsure || isTable(f.name)
		if !lost {
			continue
		}
		refuse = refuse || isTable(f.name) && ownRows(firsts[f.name])
		without = append(without, d)
		if s.fs.lost == nil {
			s.fs.lost = make(map[string]missingFile)
		}
		s.fs.lost[f.name] = missingFile{size: f.size, why: d.Err}
	}
	if refuse {
		all := without[0]
		if errors.Is(all.Err, errFileGone) || errors.Is(all.Err, errWrongSize) {
			all.Err = nil // What says it
		}
		for _, d := range without[1:] {
			all.File += ", " + d.File
			all.Ranges = append(all.Ranges, d.Ranges...)
		}
		all.Ranges = tidy(all.Ranges)
		all.What += ", and with it rows of the store itself"
		return all
	}
	for _, d := range without {
		if len(d.Ranges) > 0 { // else nothing refers to it any more
			s.reportDamage(d)
		}
	}
	return nil
}

// ownRows tells whether a table that begins with this key may hold rows of the
// store itself.
func ownRows(first []byte) bool {
	return first != nil && bytes.Compare(first, appendPrefix(nil, nsStore, 1)) < 0
}

// checkFile looks at one file. lost tells that nothing in it is to be read; else
// d is no more than a doubt.
func (s *Store) checkFile(dir string, f file, t tableFile) (d *ErrDamaged, lost bool, err error) {
	bad := func(what string, why error) *ErrDamaged {
		return &ErrDamaged{Dir: s.cfg.Dir, File: f.name, What: what, Err: why}
	}
	path := s.cfg.FS.PathJoin(dir, f.name)
	info, err := s.cfg.FS.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return bad("a file of the store is gone", errFileGone), true, nil
	case err != nil:
		return nil, false, err
	case uint64(info.Size()) != f.size:
		return bad(fmt.Sprintf("a file of the store has %d bytes, %d were written", info.Size(), f.size), errWrongSize), true, nil
	case isValues(f.name):
		why, err := s.checkValueFile(path, info.Size())
		if err != nil || why == nil {
			return nil, false, err
		}
		return bad("a file of values does not read", why), true, nil
	}
	why, lost := s.checkTable(path, t)
	switch {
	case why == nil:
		return nil, false, nil
	case noAccess(why):
		return nil, false, why // whoever runs the broker may not read it: nothing is damaged
	}
	return bad("a table does not read", why), lost, nil
}

// tidy sorts ranges and drops what is there twice.
func tidy(rs []Range) []Range {
	slices.SortFunc(rs, func(a, b Range) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Low, b.Low), cmp.Compare(a.High, b.High))
	})
	return slices.Compact(rs)
}

// checkValueFile checks the end of a value file.
func (s *Store) checkValueFile(path string, size int64) (damage, err error) {
	if size < valueFooterLen {
		return errShortRead, nil
	}
	f, err := s.cfg.FS.Open(path)
	if err != nil {
		return nil, err
	}
	var b [valueFooterLen]byte
	_, err = f.ReadAt(b[:], size-valueFooterLen)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return checkValueEnd(b[:], s.cfg.FS.PathBase(path)), nil
}

// checkTable reads what Pebble reads of a table when it opens it, and whether
// its first and last key are of the table that the MANIFEST means: two tables
// of one size that were exchanged are each without a fault. lost tells that
// nothing in it can be read or trusted; otherwise what does not read is a part of
// which a read will tell.
func (s *Store) checkTable(path string, t tableFile) (why error, lost bool) {
	defer func() {
		if r := recover(); r != nil {
			why, lost = fmt.Errorf("%w: %v", errEngine, r), true
		}
	}()
	f, err := s.fs.Open(path)
	if err != nil {
		return err, true
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close()), true
	}
	r, err := sstable.NewReader(context.Background(), readable, s.pebbleOptions(true).MakeReaderOptions())
	if err != nil {
		return errors.Join(err, readable.Close()), true
	}
	defer func() { _ = r.Close() }()
	dels, err := r.NewRawRangeDelIter(context.Background(), sstable.NoFragmentTransforms, sstable.NoReadEnv)
	if err != nil {
		return err, true
	}
	if dels != nil {
		dels.Close()
	}
	var values sstable.TableBlobContext
	values.BlobHandleFn = nothing // they are of no interest
	it, err := r.NewIter(sstable.NoTransforms, nil, nil, values)
	if err != nil {
		return err, true
	}
	defer func() { _ = it.Close() }()
	_, why = r.ReadPropertiesBlock(context.Background(), nil)
	if t.first == nil {
		return why, false // only parts of it are in use; or it holds no keys
	}
	unread := 0
	for kv, end := it.First(), 0; end < 2; kv, end = it.Last(), end+1 {
		if err := it.Error(); err != nil {
			why = err
			unread++
			continue
		}
		if kv == nil {
			break // only deleted ranges
		}
		key, seq := kv.K.UserKey, uint64(kv.SeqNum())
		if seq == 0 && t.lowSeq == t.highSeq {
			seq = t.lowSeq // of a snapshot: the MANIFEST alone has its number
		}
		if bytes.Compare(key, t.first) < 0 || bytes.Compare(key, t.last) > 0 || seq < t.lowSeq || seq > t.highSeq {
			return errors.New("it holds what another table should hold"), true
		}
	}
	return why, unread == 2 // which table it is cannot be told
}

// nothing stands for a value that nobody asks for.
func nothing[P, V any](P, []byte) (none V) { return none }
