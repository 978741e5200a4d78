package logstore

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
)

// logReport is what the log files say that a restart would replay.
type logReport struct {
	batches     int
	first, last uint64 // counters
	lastFile    string
	manifest    string // the list of tables
}

// preflight looks at the files below Pebble before Pebble does, and changes
// nothing. It finds what Pebble would open over in silence: a MANIFEST or log
// that ends early although more was written, files that are gone, log files
// that do not follow each other. What it cannot see, for want of proof in the
// files themselves, the witness catches: see confirm.
//
// A file that no list knows is not damage after a crash: a flush that was cut
// short leaves one. After a clean stop the MANIFEST must be the very same file
// as then, byte count included, which leaves no room for such doubts.
func (s *Store) preflight(t testimony) (logReport, error) {
	var rep logReport
	dir := s.pebbleDir()
	ls, err := s.cfg.FS.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return rep, &ErrDamaged{Dir: s.cfg.Dir, What: "the folder " + pebbleName + " is gone"}
	}
	if err != nil {
		return rep, err
	}
	if err := s.checkEngineFormat(dir); err != nil {
		return rep, err
	}
	if err := s.checkSettings(dir, ls); err != nil {
		return rep, err
	}
	num, size, err := currentManifest(s.cfg.FS, dir)
	if err != nil {
		return rep, s.missing("MANIFEST", "the list of tables is gone", err)
	}
	name := manifestName(num)
	if t.state == stateClosed && (num != t.manifest || size != t.manifestSize) {
		return rep, &ErrDamaged{Dir: s.cfg.Dir, File: name, What: fmt.Sprintf(
			"the list of tables is not the one of the last stop: file %d with %d bytes, expected file %d with %d", num, size, t.manifest, t.manifestSize)}
	}
	data, err := readAll(s.cfg.FS, s.cfg.FS.PathJoin(dir, name))
	if err != nil {
		return rep, err
	}
	m := newManifestState()
	end, at, err := scanRecords(data, 0, m.apply)
	switch {
	case err != nil:
		return rep, &ErrDamaged{Dir: s.cfg.Dir, File: name, What: fmt.Sprintf("the list of tables does not read at byte %d", at), Err: err}
	case end == endDamage:
		return rep, &ErrDamaged{Dir: s.cfg.Dir, File: name, What: fmt.Sprintf("the list of tables is damaged at byte %d: what follows would be forgotten", at)}
	case end == endTorn && t.state == stateClosed:
		return rep, &ErrDamaged{Dir: s.cfg.Dir, File: name, What: fmt.Sprintf("the list of tables ends in half a record at byte %d although the store was closed", at)}
	}
	if err := s.checkFiles(dir, m); err != nil {
		return rep, err
	}
	rep, err = s.checkLogs(dir, ls, m.minLog, t.state == stateClosed)
	rep.manifest = name
	return rep, err
}

// checkSettings reads the newest file of the engine's settings, as the engine
// does: it does not open under others than it was made with.
func (s *Store) checkSettings(dir string, ls []string) error {
	newest := ""
	for _, name := range ls {
		if strings.HasPrefix(name, "OPTIONS-") && name > newest {
			newest = name
		}
	}
	if newest == "" {
		return nil
	}
	data, err := readAll(s.cfg.FS, s.cfg.FS.PathJoin(dir, newest))
	if err != nil {
		return err
	}
	o := s.pebbleOptions(true)
	o.EnsureDefaults()
	if err := o.CheckCompatibility(dir, string(data)); err != nil {
		return &ErrDamaged{
			Dir: s.cfg.Dir, File: newest, What: "the engine's settings are not what was written", Err: err,
			Way: "there are no messages in this file, and the engine needs none: remove it and start again, and look at the disk",
		}
	}
	return nil
}

// missing tells a file that is not there from one that cannot be looked at.
func (s *Store) missing(file, what string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoManifest) {
		return &ErrDamaged{Dir: s.cfg.Dir, File: file, What: what, Err: err}
	}
	return err
}

// checkEngineFormat refuses what a newer engine wrote, and a store whose mark
// of the format is gone: Pebble would take it for the oldest format.
func (s *Store) checkEngineFormat(dir string) error {
	mark, err := atomicfs.ReadMarker(s.cfg.FS, dir, "format-version")
	if err != nil {
		return err
	}
	v, err := strconv.ParseUint(mark, 10, 32)
	if err != nil {
		return &ErrDamaged{Dir: s.cfg.Dir, File: "marker.format-version", What: "the mark of the table format is gone or unreadable", Err: err}
	}
	if v > uint64(pebble.FormatNewest) {
		return &ErrNewerFormat{Dir: s.cfg.Dir, What: "table", Found: v, Known: uint64(pebble.FormatNewest)}
	}
	return nil
}

// checkLogs reads the log files that a restart would replay. All but the newest
// must end cleanly, and the batch counters must rise by one from the first
// batch to the last, over all files.
func (s *Store) checkLogs(dir string, ls []string, minLog uint64, closed bool) (rep logReport, err error) {
	var nums []uint64
	for _, name := range ls {
		if n, ok := strings.CutSuffix(name, ".log"); ok {
			num, err := strconv.ParseUint(n, 10, 64)
			if err != nil {
				return rep, &ErrForeign{Dir: s.cfg.Dir, What: "it holds a file " + name}
			}
			if num >= minLog {
				nums = append(nums, num)
			}
		}
	}
	sort.Slice(nums, func(i, j int) bool { return nums[i] < nums[j] })
	for i, num := range nums {
		name := logName(num)
		data, err := readAll(s.cfg.FS, s.cfg.FS.PathJoin(dir, name))
		if err != nil {
			return rep, err
		}
		end, at, err := scanRecords(data, uint32(num), func(rec []byte) error {
			n, err := batchCounter(rec, s.counterKey)
			if err != nil {
				return err
			}
			if rep.batches > 0 && n != rep.last+1 {
				return fmt.Errorf("batch %d follows batch %d: those between are gone", n, rep.last)
			}
			if rep.batches == 0 {
				rep.first = n
			}
			rep.last, rep.lastFile = n, name
			rep.batches++
			return nil
		})
		d := &ErrDamaged{Dir: s.cfg.Dir, File: name, Err: err}
		switch {
		case err != nil:
			d.What = fmt.Sprintf("the log does not read at byte %d", at)
		case end == endDamage:
			d.What = fmt.Sprintf("the log is damaged at byte %d: what follows would be forgotten", at)
		case end == endTorn && i < len(nums)-1:
			d.What = fmt.Sprintf("the log ends in half a record at byte %d although a newer one exists", at)
		case end == endTorn && closed:
			d.What = fmt.Sprintf("the log ends in half a record at byte %d although the store was closed", at)
		default:
			continue
		}
		d.Ranges = s.lostInLogs(dir, nums, i, at)
		return rep, d
	}
	return rep, nil
}

// confirm opens Pebble read-only, so that it deletes nothing, and compares what
// it holds with the witness and with what preflight saw in the log files.
func (s *Store) confirm(t testimony, rep logReport) (err error) {
	db, err := s.openPebble(true)
	if err != nil {
		return s.openError(err)
	}
	defer func() {
		if cerr := db.Close(); err == nil && cerr != nil {
			err = s.openError(cerr)
		}
	}()

	row, err := getRow(db, identityKey())
	if err != nil {
		return s.openError(s.readError(err, Range{}))
	}
	if row == nil {
		return &ErrDamaged{Dir: s.cfg.Dir, File: rep.manifest, What: "the row that names the store is in none of the tables that this list has: the list is not what was written"}
	}
	if s.id, err = decodeIdentity(identityKey(), row); err != nil {
		return &ErrDamaged{Dir: s.cfg.Dir, What: "the row that names the store is not what was written", Err: err}
	}
	switch {
	case s.id.version > FormatVersion:
		return &ErrNewerFormat{Dir: s.cfg.Dir, What: "store", Found: uint64(s.id.version), Known: FormatVersion}
	case s.id.store != t.store:
		return &ErrForeign{Dir: s.cfg.Dir, What: "the witness and the data are of two different stores"}
	case s.cfg.ClusterID != "" && s.id.cluster != s.cfg.ClusterID:
		return &ErrForeign{Dir: s.cfg.Dir, What: fmt.Sprintf("it belongs to cluster %q, this node to %q", s.id.cluster, s.cfg.ClusterID)}
	}

	flushed, err := s.counterOf(db, true)
	if err != nil {
		return err
	}
	counter, err := s.counterOf(db, false)
	if err != nil {
		return err
	}
	switch {
	case rep.batches > 0 && rep.first > flushed+1:
		return s.amnesia(db, fmt.Sprintf("the tables end at batch %d and the log begins at batch %d: log files are gone", flushed, rep.first))
	case counter < max(flushed, rep.last):
		return s.amnesia(db, fmt.Sprintf("batch %d was read from the log but the store ends at batch %d", rep.last, counter))
	case counter < t.counter:
		return s.amnesia(db, fmt.Sprintf("the store ends at batch %d, batch %d was synced: it is older than what was acknowledged", counter, t.counter))
	}
	s.counter = counter
	return s.loadRegistry(db, t)
}

// amnesia is the error for a store that is older than it should be. Which logs
// lost their ends cannot be told, so all are named from their end on.
func (s *Store) amnesia(db *pebble.DB, what string) error {
	d := &ErrDamaged{Dir: s.cfg.Dir, What: what}
	ps, err := partitionsOf(db)
	if err != nil {
		return d
	}
	for _, p := range ps {
		it, err := db.NewIter(&pebble.IterOptions{LowerBound: appendPrefix(nil, nsEntry, p), UpperBound: appendPrefixEnd(nil, nsEntry, p)})
		if err != nil {
			return d
		}
		r := Range{Partition: p, Low: 1}
		if it.Last() {
			if k, ok := decodeKey(it.Key()); ok {
				r.Low = k.index + 1
			}
		}
		if it.Close() == nil {
			d.Ranges = append(d.Ranges, r)
		}
	}
	return d
}

// counterOf reads the batch counter; of the tables only, if flushed.
func (s *Store) counterOf(db *pebble.DB, flushed bool) (uint64, error) {
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound:                s.counterKey,
		UpperBound:                append(append([]byte(nil), s.counterKey...), 0),
		OnlyReadGuaranteedDurable: flushed,
	})
	if err != nil {
		return 0, s.openError(err)
	}
	defer func() { _ = it.Close() }()
	if !it.First() {
		if err := it.Error(); err != nil {
			return 0, s.openError(s.readError(err, Range{}))
		}
		return 0, nil
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return 0, s.openError(s.readError(err, Range{}))
	}
	n, err := decodeCounter(s.counterKey, v)
	if err != nil {
		return 0, &ErrDamaged{Dir: s.cfg.Dir, What: "the batch counter is not what was written", Err: err}
	}
	return n, nil
}

func getRow(db *pebble.DB, key []byte) ([]byte, error) {
	v, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := append([]byte{}, v...)
	return out, closer.Close()
}

// partitionsOf finds the partitions in every namespace by leaping from one to
// the next. Damage in any of them may hide a partition that has rows there alone;
// those that were found are returned with it.
func partitionsOf(db *pebble.DB) ([]uint64, error) {
	seen := make(map[uint64]bool)
	var damage error
	for _, ns := range perPartition() {
		err := partitionsIn(db, ns, seen)
		if err != nil && !isDamage(err) {
			return nil, err
		}
		damage = cmp.Or(damage, err)
	}
	return slices.Sorted(maps.Keys(seen)), damage
}

func partitionsIn(db *pebble.DB, ns Namespace, seen map[uint64]bool) error {
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: []byte{keyFormat, byte(ns)},
		UpperBound: []byte{keyFormat, byte(ns) + 1},
	})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; {
		k, good := decodeKey(it.Key())
		if !good {
			break
		}
		seen[k.partition] = true
		if k.partition+1 == 0 {
			break
		}
		ok = it.SeekGE(appendPrefix(nil, ns, k.partition+1))
	}
	return errors.Join(it.Error(), it.Close())
}

var errNoManifest = errors.New("no mark names a MANIFEST")

func manifestName(num uint64) string { return fmt.Sprintf("MANIFEST-%06d", num) }

// currentManifest finds the MANIFEST in use, and its size.
func currentManifest(fsys vfs.FS, dir string) (num, size uint64, err error) {
	name, err := atomicfs.ReadMarker(fsys, dir, "manifest")
	if err != nil {
		return 0, 0, err
	}
	if name == "" {
		return 0, 0, errNoManifest
	}
	num, err = strconv.ParseUint(strings.TrimPrefix(name, "MANIFEST-"), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %w", errNoManifest, err)
	}
	info, err := fsys.Stat(fsys.PathJoin(dir, manifestName(num)))
	if err != nil {
		return 0, 0, err
	}
	return num, uint64(info.Size()), nil
}

func readAll(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	data := make([]byte, info.Size())
	_, err = io.ReadFull(f, data)
	return data, errors.Join(err, f.Close())
}
