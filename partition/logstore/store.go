package logstore

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Store is the open store of a node. All methods may be called concurrently.
//
// Lock order: commitMu, then mu, then damageMu, the registry's or that
// of the dead blocks. The witness has
// a lock of its own that is taken last.
type Store struct {
	cfg        Config
	fs         *guardFS
	db         *pebble.DB
	lock       io.Closer
	witness    *witness
	id         identity
	boot       uint64
	unsynced   bool
	counterKey []byte // shared, read only

	commitMu sync.Mutex // orders batches
	counter  uint64     // of the last batch applied; under commitMu

	mu   sync.RWMutex
	logs map[uint64]logState // what is known of each log; written under both locks
	// vanished are partitions that were there at the last clean stop and of which
	// nothing is left. Written like logs.
	vanished map[uint64]bool

	synced     atomic.Uint64 // highest counter known to be on disk
	syncs      syncStats
	pace       pace
	stalls     atomic.Int64
	stallSince atomic.Int64 // unix nanoseconds; 0 when there is none
	stallTime  atomic.Int64

	failure  atomic.Pointer[ErrFailed] // the first; never changes again
	failedCh chan struct{}             // closed with it
	damages  chan *ErrDamaged          // on their way to OnFault
	rots     chan *rotError            // met in the background, to be named
	damageMu sync.Mutex
	told     map[string]bool // damage that OnFault knows of
	damage   []Damage        // found, and not written over since
	merges   *compactions
	dead     deadBlocks
	registry registry
	names    names
	unsure   bool // a table does not read as a whole; set before Pebble opens

	// users counts the calls under way, plus closedBit once Close began; drained
	// is closed when Close may go on.
	users   atomic.Int64
	drained chan struct{}

	wake    chan struct{} // the keeper has something to witness
	stop    chan struct{}
	stopped chan struct{}
	watched chan struct{}

	exportMu sync.Mutex
	exports  map[*Export]bool // that are open

	scrubMu   sync.Mutex
	scrubbed  ScrubState // guarded by scrubMu
	scrubOnce sync.Once
	scrubStop chan struct{} // nil when there is no scrub
	scrubNow  chan struct{} // holds one: something is to be looked at
	scrubDone chan struct{}
}

const closedBit = 1 << 40

// enter begins a call. Each must end with leave.
func (s *Store) enter() error {
	if s.users.Add(1)&closedBit != 0 {
		s.leave()
		return ErrClosed
	}
	if f := s.failure.Load(); f != nil {
		s.leave()
		return f
	}
	return nil
}

func (s *Store) leave() {
	if s.users.Add(-1) == closedBit {
		select {
		case s.drained <- struct{}{}:
		default:
		}
	}
}

// fail stops the store. The first failure stands.
func (s *Store) fail(op, path string, err error) {
	f := &ErrFailed{Op: op, Path: path, Err: err}
	if diskFull(err) {
		f.Err = &ErrDiskFull{Dir: s.cfg.Dir, Err: err}
	}
	if s.failure.CompareAndSwap(nil, f) {
		s.fs.failed.Store(true)
		s.cfg.Logger.Error("the store stopped", "op", op, "path", path, "err", err)
		close(s.failedCh)
	}
}

// Failed is closed when the store has stopped for good; Err says why.
func (s *Store) Failed() <-chan struct{} { return s.failedCh }

// Err is the failure that stopped the store, or nil.
func (s *Store) Err() error {
	if f := s.failure.Load(); f != nil {
		return f
	}
	return nil
}

// noteSynced records that everything up to batch n is on disk.
func (s *Store) noteSynced(n uint64) {
	for {
		old := s.synced.Load()
		if n <= old || s.synced.CompareAndSwap(old, n) {
			break
		}
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// SyncWitness makes the witness know, durably, of every batch that is known to
// be synced. It must be called before a vote is answered: a store that comes
// back without the vote is then found out. It costs an fsync if there is
// something new.
func (s *Store) SyncWitness() error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.cfg.ReadOnly {
		return nil
	}
	if err := s.saveRegistry(); err != nil {
		return err
	}
	if err := s.witness.advance(s.synced.Load()); err != nil {
		s.fail("write", witnessName, err)
	}
	return s.Err()
}

// keep is the store's goroutine: it advances the witness while there is
// activity and tells of faults. It ends when stop is closed.
func (s *Store) keep() {
	defer close(s.stopped)
	failed := s.failedCh
	var due <-chan time.Time
	timer := time.NewTimer(0)
	if !timer.Stop() {
		<-timer.C
	}
	defer timer.Stop()
	tell := func(f Fault) {
		if s.cfg.OnFault != nil {
			s.cfg.OnFault(f)
		}
	}
	for {
		wake := s.wake
		if due != nil {
			wake = nil // it will be witnessed when due anyway
		}
		select {
		case <-s.stop:
			return
		case <-failed:
			failed = nil
			tell(Fault{Stopped: true, Err: s.failure.Load()})
		case d := <-s.damages:
			tell(Fault{Err: d})
		case rot := <-s.rots:
			s.nameRot(rot)
		case <-wake:
			timer.Reset(s.cfg.WitnessInterval)
			due = timer.C
		case <-due:
			due = nil
			if s.failure.Load() == nil && s.saveRegistry() == nil {
				if err := s.witness.advance(s.synced.Load()); err != nil {
					s.fail("write", witnessName, err)
				}
			}
		}
	}
}

// Close ends the store. It waits for calls under way; a Pending may still be
// waited for. After a clean close the next open accepts no torn file at all.
func (s *Store) Close() error {
	s.endScrub()
	if s.users.Add(closedBit)&^(closedBit-1) != closedBit {
		s.users.Add(-closedBit)
		return ErrClosed
	}
	if s.users.Load() != closedBit {
		<-s.drained
	}
	s.endExports() // no new one begins now
	return s.shut()
}

// shut closes what is open, in order. It is used by a failed Open, too.
func (s *Store) shut() error {
	var errs []error
	if s.stop != nil {
		close(s.stop)
		<-s.stopped
		<-s.watched
	}
	if s.db != nil {
		if s.failure.Load() == nil && !s.cfg.ReadOnly {
			// So that the next open has nothing to replay.
			if err := s.flush(); err != nil {
				errs = append(errs, err)
			} else if s.failure.Load() == nil {
				s.synced.Store(s.counter) // also what was committed without a sync
				errs = append(errs, s.saveRegistry())
			}
		}
		// A failed store is closed like any other: the guard has taken the
		// disk away from under it.
		if err := s.closePebble(); err != nil {
			errs = append(errs, err)
		}
	}
	if s.witness != nil {
		if errors.Join(errs...) == nil && s.failure.Load() == nil && s.db != nil && !s.cfg.ReadOnly {
			errs = append(errs, s.sealWitness())
		}
		errs = append(errs, s.witness.close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	if f := s.failure.Load(); f != nil {
		return f
	}
	return errors.Join(errs...)
}

func (s *Store) flush() (err error) {
	defer recovered(&err)
	return s.db.Flush()
}

func (s *Store) closePebble() (err error) {
	defer recovered(&err)
	s.merges.end()
	return s.db.Close()
}

// stopDisk has the next start find what a crash now would leave.
func (s *Store) stopDisk() { s.fs.failed.Store(true) }

// recovered turns a panic of Pebble into an error.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("logstore: pebble: %v", r)
	}
}

// sealWitness writes that the store was closed, and how its MANIFEST was left.
func (s *Store) sealWitness() error {
	num, size, err := currentManifest(s.fs, s.pebbleDir())
	if err != nil {
		return err
	}
	t := s.witness.last
	t.state, t.counter = stateClosed, s.counter
	t.manifest, t.manifestSize = num, size
	t.registry = s.registry.sum()
	return s.witness.enter(t)
}

func (s *Store) pebbleDir() string { return s.cfg.FS.PathJoin(s.cfg.Dir, pebbleName) }

func newStoreID() (id [16]byte) {
	_, _ = rand.Read(id[:]) // never fails: the runtime stops the process instead
	return id
}

// ID names the store for all time, in hex. A copy of its folder has the same.
func (s *Store) ID() string { return hex.EncodeToString(s.id.store[:]) }

// Boot is how often the store was opened, this time included: of two copies of
// one folder that both run, the older one knows a lower number.
func (s *Store) Boot() uint64 { return s.boot }
