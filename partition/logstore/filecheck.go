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
// be opened, value files at their ends. A table that is not stops the start, for
// Pebble cannot go on without; all of them are told in one error. A value file
// that is not is told, too, and the store goes on without what was in it.
func (s *Store) checkFiles(dir string, m *manifestState) error {
	files := m.files()
	tables := make(map[string]tableFile)
	for k, t := range m.tables {
		if !t.virtual {
			tables[tableName(k.num)] = t
		}
	}
	names := slices.SortedFunc(maps.Keys(files), func(a, b file) int { return strings.Compare(a.name, b.name) })
	var all *ErrDamaged
	for _, f := range names {
		d := &ErrDamaged{Dir: s.cfg.Dir, File: f.name, Ranges: tidy(files[f])}
		var why error
		path := s.cfg.FS.PathJoin(dir, f.name)
		info, err := s.cfg.FS.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			d.What, why = "a file of the store is gone", errFileGone
		case err != nil:
			return err
		case uint64(info.Size()) != f.size:
			why = fmt.Errorf("a file of the store has %d bytes, %d were written", info.Size(), f.size)
			d.What = why.Error()
		case isValues(f.name):
			if why, err = s.checkValueFile(path, info.Size()); err != nil {
				return err
			}
			d.What, d.Err = "a file of values does not read", why
		default:
			why = s.checkTable(path, tables[f.name])
			d.What, d.Err = "a table does not read", why
		}
		switch {
		case why == nil:
		case isValues(f.name):
			if s.fs.lost == nil {
				s.fs.lost = make(map[string]lostValues)
			}
			s.fs.lost[f.name] = lostValues{size: f.size, why: why}
			if len(d.Ranges) > 0 { // else nothing refers to it any more
				s.reportDamage(d)
			}
		case all == nil:
			all = d
		default:
			all.File += ", " + d.File
			all.Ranges = tidy(append(all.Ranges, d.Ranges...))
		}
	}
	if all == nil {
		return nil
	}
	return all
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
// of one size that were exchanged are each without a fault.
func (s *Store) checkTable(path string, t tableFile) (damage error) {
	defer recovered(&damage)
	f, err := s.fs.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(context.Background(), readable, s.pebbleOptions(true).MakeReaderOptions())
	if err != nil {
		return errors.Join(err, readable.Close())
	}
	defer func() { _ = r.Close() }()
	dels, err := r.NewRawRangeDelIter(context.Background(), sstable.NoFragmentTransforms, sstable.NoReadEnv)
	if err != nil {
		return err
	}
	if dels != nil {
		dels.Close()
	}
	if t.first == nil {
		return nil // only parts of it are in use; or it holds no keys
	}
	var values sstable.TableBlobContext
	values.BlobHandleFn = nothing // they are of no interest
	it, err := r.NewIter(sstable.NoTransforms, nil, nil, values)
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }()
	for kv, ends := it.First(), 0; ends < 2; kv, ends = it.Last(), ends+1 {
		if err := it.Error(); err != nil {
			return err
		}
		if kv == nil {
			break // only deleted ranges
		}
		key, seq := kv.K.UserKey, uint64(kv.SeqNum())
		if bytes.Compare(key, t.first) < 0 || bytes.Compare(key, t.last) > 0 || seq < t.lowSeq || seq > t.highSeq {
			return errors.New("it holds what another table should hold")
		}
	}
	return nil
}

// nothing stands for a value that nobody asks for.
func nothing[P, V any](P, []byte) (none V) { return none }
