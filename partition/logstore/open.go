package logstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sort"

	"github.com/cockroachdb/pebble/v2"
)

const (
	pebbleName = "pebble"
	lockName   = "LOCK"
)

// Open opens the store in cfg.Dir and makes one if the folder is empty. It
// returns only once everything is checked that can be without reading it all;
// until then nothing on disk is changed but the lock.
//
// Errors: *ErrInUse, *ErrForeign, *ErrNoStore, *ErrNewerFormat, *ErrDamaged,
// *ErrAccess, *ErrDiskFull, *ErrFailed.
func Open(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		cfg:        cfg.withDefaults(),
		counterKey: counterKey(),
		logs:       make(map[uint64]logState),
		failedCh:   make(chan struct{}),
		damages:    make(chan *ErrDamaged, 16),
		rots:       make(chan *rotError, 16),
		told:       make(map[string]bool),
		registry:   registry{known: make(map[uint64]bool), gone: make(map[uint64]uint64)},
		drained:    make(chan struct{}, 1),
		wake:       make(chan struct{}, 1),
		scrubNow:   make(chan struct{}, 1),
	}
	s.dead.erased, s.dead.coming, s.dead.looked = make(map[space]erasure), make(map[uint64]bool), make(map[place]*verdict)
	s.merges = newCompactions(s.cfg.pause, s.stopDisk)
	s.fs = &guardFS{FS: s.cfg.FS, syncs: &s.syncs, report: s.fail, merges: s.merges, dead: s.deadBlock}
	if err := s.open(); err != nil {
		// A write that failed on the way is the cause of whatever came later.
		if f := s.failure.Load(); f != nil {
			err = s.openError(f)
		}
		err = s.named(err)
		_ = s.abandon()
		return nil, err
	}
	s.cfg.Logger.Info("store open", "dir", s.cfg.Dir, "store", fmt.Sprintf("%x", s.id.store[:4]), "boot", s.boot, "batch", s.counter,
		"cacheBytes", s.cfg.CacheBytes, "memTableBytes", s.cfg.MemTableBytes, "minSyncInterval", s.cfg.MinSyncInterval,
		"witnessInterval", s.cfg.WitnessInterval, "deleteDelay", s.cfg.DeleteDelay, "readOnly", s.cfg.ReadOnly)
	return s, nil
}

// abandon closes a store that did not open. The folder was not closed cleanly
// in any sense, so the witness is left as it is.
func (s *Store) abandon() error {
	s.fs.failed.Store(true)
	var errs []error
	if s.db != nil {
		errs = append(errs, s.closePebble())
	}
	if s.witness != nil {
		errs = append(errs, s.witness.close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

func (s *Store) open() error {
	s.loadNames() // first: whatever is wrong is told by them
	if _, err := s.lookAt(); err != nil {
		return err
	}
	if err := s.lockDir(); err != nil {
		return err
	}
	// What was there before the lock was held may have been another process
	// at work.
	fresh, err := s.lookAt()
	if err != nil {
		return err
	}
	var t testimony
	if !fresh {
		if t, fresh, err = s.readWitness(); err != nil {
			return err
		}
	}
	if fresh && (s.cfg.MustExist || s.cfg.ReadOnly) {
		return &ErrNoStore{Dir: s.cfg.Dir}
	}
	if fresh {
		err = s.create()
	} else {
		err = s.reopen(t)
	}
	if err != nil {
		return err
	}
	if s.cfg.ReadOnly {
		s.synced.Store(s.counter)
	} else {
		s.sweepIncoming()
	}
	if f := s.failure.Load(); f != nil {
		return f
	}
	s.knowPartitions()
	s.pace.opened(s.cfg.MemTableBytes)
	s.unsynced = s.cfg.unsynced // not before: what makes the store is always synced
	s.stop, s.stopped, s.watched = make(chan struct{}), make(chan struct{}), make(chan struct{})
	go s.keep()
	go s.watch(s.stop, s.watched)
	if s.loadScrub(); !s.cfg.ReadOnly && s.cfg.ScrubBytesPerSecond > 0 {
		s.scrubStop, s.scrubDone = make(chan struct{}), make(chan struct{})
		go s.scrub(s.scrubStop, s.scrubDone)
	}
	return nil
}

// lookAt finds out what the folder is, without touching it.
func (s *Store) lookAt() (fresh bool, err error) {
	f := s.cfg.FS
	ls, err := f.List(s.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		if s.cfg.MustExist || s.cfg.ReadOnly {
			return true, &ErrNoStore{Dir: s.cfg.Dir}
		}
		return true, s.makeDir()
	}
	if err != nil {
		if info, serr := f.Stat(s.cfg.Dir); serr == nil && !info.IsDir() {
			return false, &ErrForeign{Dir: s.cfg.Dir, What: "it is a file"}
		}
		return false, s.openError(err)
	}
	var witness, engine, list bool
	var others []string
	for _, name := range ls {
		switch name {
		case witnessName:
			witness = true
		case pebbleName:
			engine = true
		case registryName, registryNew:
			list = true
		case lockName, namesName, namesNew, "lost+found":
		default:
			others = append(others, name)
		}
	}
	switch {
	case witness:
		return false, nil
	case engine:
		sub, err := f.List(f.PathJoin(s.cfg.Dir, pebbleName))
		if err != nil {
			return false, s.openError(err)
		}
		if len(sub) > 0 || list {
			return false, s.noWitness()
		}
		return true, nil
	case list:
		return false, s.noWitness()
	case len(others) > 0:
		sort.Strings(others)
		return false, &ErrForeign{Dir: s.cfg.Dir, What: fmt.Sprintf("it holds other files, %s among them", others[0])}
	}
	return true, nil
}

func (s *Store) noWitness() error {
	return &ErrDamaged{Dir: s.cfg.Dir, File: witnessName, What: "the witness is gone: it cannot be told whether the data is as new as what was acknowledged"}
}

// makeDir makes the folder, with those above it that are missing, in a way that
// lasts: a new name is on disk only once the folder that holds it is synced.
func (s *Store) makeDir() error {
	f := s.cfg.FS
	var parents []string
	for dir := s.cfg.Dir; ; {
		up := f.PathDir(dir)
		parents = append(parents, up)
		if _, err := f.Stat(up); err == nil || up == dir || up == "." || up == "" {
			break
		}
		dir = up
	}
	if err := f.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		if diskFull(err) {
			return s.openError(err)
		}
		return &ErrAccess{Path: s.cfg.Dir, Err: err} // nothing is there that could be damaged
	}
	for _, dir := range parents {
		if err := s.syncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) lockDir() error {
	path := s.cfg.FS.PathJoin(s.cfg.Dir, lockName)
	l, err := s.fs.Lock(path)
	if err == nil {
		s.lock = l
		return nil
	}
	if lockHeldElsewhere(err) {
		return &ErrInUse{Dir: s.cfg.Dir, PID: lockHolder(path)}
	}
	if _, serr := s.cfg.FS.Stat(path); serr == nil && !noAccess(err) && !diskFull(err) {
		// Held by this process: the file system keeps count of its own locks.
		return &ErrInUse{Dir: s.cfg.Dir, PID: os.Getpid()}
	}
	return s.openError(err)
}

// readWitness reads the witness. A store whose making was cut short has
// acknowledged nothing, and is made again.
func (s *Store) readWitness() (t testimony, fresh bool, err error) {
	b, err := readWitness(s.cfg.FS, s.cfg.FS.PathJoin(s.cfg.Dir, witnessName))
	if err != nil {
		return t, false, s.openError(err)
	}
	t, torn, err := decodeWitness(b)
	if err != nil {
		// The very first write of the witness comes before anything else.
		if ls, lerr := s.cfg.FS.List(s.pebbleDir()); errors.Is(lerr, fs.ErrNotExist) || (lerr == nil && len(ls) == 0) {
			return testimony{}, true, nil
		}
		return t, false, &ErrDamaged{Dir: s.cfg.Dir, File: witnessName, What: "the witness does not read: it cannot be told whether the data is as new as what was acknowledged", Err: err}
	}
	if t.version > FormatVersion {
		return t, false, &ErrNewerFormat{Dir: s.cfg.Dir, What: "store", Found: uint64(t.version), Known: FormatVersion}
	}
	if torn != nil {
		s.cfg.Logger.Warn("one slot of the witness does not read; the other one is used", "err", torn)
	}
	return t, t.state == stateMaking, nil
}

// create makes a new store: the witness first, in a state that says so, so that
// a cut anywhere in between is known for what it is.
func (s *Store) create() error {
	f := s.fs
	path := f.PathJoin(s.cfg.Dir, witnessName)
	if err := f.RemoveAll(s.pebbleDir()); err != nil {
		return s.openError(err)
	}
	s.id = identity{version: FormatVersion, store: newStoreID(), cluster: s.cfg.ClusterID}
	w, err := openWitness(f, path, testimony{})
	if err != nil {
		return s.openError(err)
	}
	s.witness = w
	making := testimony{state: stateMaking, store: s.id.store}
	if err := w.enter(making); err != nil {
		return s.openError(err)
	}
	if err := f.MkdirAll(s.pebbleDir(), 0o700); err != nil {
		return s.openError(err)
	}
	if err := s.syncDir(s.cfg.Dir); err != nil {
		return err
	}
	if f.failed.Load() {
		return s.failure.Load()
	}
	// Twice: the first log file of a new store is written in the oldest form, in
	// which no chunk says how much of the file was synced before it.
	first, err := s.openPebble(false)
	if err == nil {
		err = first.Close()
	}
	if err != nil {
		return s.openError(err)
	}
	s.merges = newCompactions(s.cfg.pause, s.stopDisk)
	s.fs.merges = s.merges
	if s.db, err = s.openPebble(false); err != nil {
		return s.openError(err)
	}
	// From here on this is the first batch of the store, and like any other.
	b := s.NewBatch()
	if b.err == nil {
		b.err = b.b.Set(identityKey(), encodeIdentity(identityKey(), s.id), nil)
	}
	pending, err := s.Commit(b)
	if err != nil {
		return s.openError(err)
	}
	if err := pending.Wait(); err != nil {
		return s.openError(err)
	}
	s.registry.stale.Store(true)
	if err := s.saveRegistry(); err != nil {
		return err
	}
	s.boot = 1
	if err := w.enter(testimony{state: stateOpen, store: s.id.store, boot: s.boot, counter: s.counter}); err != nil {
		return s.openError(err)
	}
	return nil
}

// reopen opens a store that was there before.
func (s *Store) reopen(t testimony) error {
	rep, err := s.preflight(t)
	if err != nil {
		return s.openError(err)
	}
	if err := s.confirm(t, rep); err != nil {
		return err
	}
	s.boot = t.boot
	if s.cfg.ReadOnly {
		s.witness = &witness{last: t}
		s.db, err = s.openPebble(true)
		return s.openError(err)
	}
	// The store is sound. Say that it is open before it is changed, so that
	// a crash from here on is not held against it.
	if s.witness, err = openWitness(s.fs, s.fs.PathJoin(s.cfg.Dir, witnessName), t); err != nil {
		return s.openError(err)
	}
	s.boot++
	t.state, t.boot, t.manifest, t.manifestSize, t.registry = stateOpen, s.boot, 0, 0, 0
	if err := s.witness.enter(t); err != nil {
		return s.openError(err)
	}
	if s.db, err = s.openPebble(false); err != nil {
		return s.openError(err)
	}
	// Pebble replayed the log and wrote what it held into tables: all that was
	// read is synced now, also what a failed fsync had left in doubt.
	n, err := s.counterOf(s.db, false)
	if err != nil {
		return err
	}
	if n != s.counter {
		return s.amnesia(s.db, fmt.Sprintf("the store ended at batch %d and opened at batch %d", s.counter, n))
	}
	s.synced.Store(n)
	return nil
}

// openPebble opens the engine; a panic in it is an error.
func (s *Store) openPebble(readOnly bool) (db *pebble.DB, err error) {
	defer recovered(&err)
	return pebble.Open(s.pebbleDir(), s.pebbleOptions(readOnly))
}

func (s *Store) syncDir(dir string) error {
	if dir == "" {
		dir = "."
	}
	d, err := s.fs.OpenDir(dir)
	if err != nil {
		return s.openError(err)
	}
	return s.openError(errors.Join(d.Sync(), d.Close()))
}

// openError gives an error of opening its type.
func (s *Store) openError(err error) error {
	var (
		damaged *ErrDamaged
		foreign *ErrForeign
		newer   *ErrNewerFormat
		full    *ErrDiskFull
		access  *ErrAccess
		inUse   *ErrInUse
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &full):
		return full
	case errors.As(err, &damaged), errors.As(err, &foreign), errors.As(err, &newer), errors.As(err, &access), errors.As(err, &inUse):
		return err
	case diskFull(err):
		return &ErrDiskFull{Dir: s.cfg.Dir, Err: err}
	case noAccess(err):
		return &ErrAccess{Path: s.cfg.Dir, Err: err}
	case pebble.IsCorruptionError(err), errors.Is(err, pebble.ErrDBNotPristine), errors.Is(err, pebble.ErrDBDoesNotExist), errors.Is(err, fs.ErrNotExist):
		return &ErrDamaged{Dir: s.cfg.Dir, What: "the data does not open", Err: err}
	}
	if lockHeldElsewhere(err) {
		return &ErrInUse{Dir: s.cfg.Dir}
	}
	return fmt.Errorf("opening %s: %w", s.cfg.Dir, err)
}
