package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// The registry is a small file beside the tables that lists the partitions, so
// that damage to tables cannot hide one: a partition that nobody knows of would
// be made anew, empty. Little endian:
//
//	+0       magic       8 bytes "SMQPARTS"
//	+8       version     u32
//	+12      count       u32
//	+16      store id    16 bytes
//	+32      counter     u64   the batch it was written behind
//	+40      partitions  u64 each, rising
//	+40+8n   crc         u32   CRC32C over all before
//
// It is replaced as a whole: written beside, synced, renamed. A new partition is
// in it before anyone is told that the batch which made it is on disk; a dropped
// one leaves it after the batch that dropped it is. So what was acknowledged is
// listed, and what is listed too much was dropped just before a crash.
//
// It says nothing that whole tables do not say, too: when it does not read, and
// tables do, it is made again.
const (
	registryName    = "PARTITIONS"
	registryNew     = registryName + ".new"
	registryMagic   = "SMQPARTS"
	registryHeadLen = 40
)

func encodeRegistry(store [16]byte, counter uint64, ps []uint64) []byte {
	b := make([]byte, 0, registryHeadLen+8*len(ps)+4)
	b = append(b, registryMagic...)
	b = binary.LittleEndian.AppendUint32(b, FormatVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(ps)))
	b = append(b, store[:]...)
	b = binary.LittleEndian.AppendUint64(b, counter)
	for _, p := range ps {
		b = binary.LittleEndian.AppendUint64(b, p)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeRegistry(b []byte) (store [16]byte, counter uint64, ps []uint64, err error) {
	if len(b) < registryHeadLen+4 {
		return store, 0, nil, fmt.Errorf("%d bytes, at least %d", len(b), registryHeadLen+4)
	}
	if string(b[:8]) != registryMagic {
		return store, 0, nil, errors.New("no magic")
	}
	end := len(b) - 4
	if want, got := binary.LittleEndian.Uint32(b[end:]), crc32.Checksum(b[:end], castagnoli); got != want {
		return store, 0, nil, fmt.Errorf("checksum %08x, computed %08x", want, got)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v > FormatVersion {
		return store, 0, nil, fmt.Errorf("version %d", v)
	}
	if n := binary.LittleEndian.Uint32(b[12:]); uint64(n)*8 != uint64(end-registryHeadLen) {
		return store, 0, nil, fmt.Errorf("%d partitions in %d bytes", n, len(b))
	}
	copy(store[:], b[16:])
	counter = binary.LittleEndian.Uint64(b[32:])
	for at := registryHeadLen; at < end; at += 8 {
		p := binary.LittleEndian.Uint64(b[at:])
		if n := len(ps); n > 0 && ps[n-1] >= p {
			return store, 0, nil, fmt.Errorf("partition %d follows partition %d", p, ps[n-1])
		}
		ps = append(ps, p)
	}
	return store, counter, ps, nil
}

// registry is which partitions there are.
type registry struct {
	fileMu sync.Mutex // one write of the file at a time; before mu

	mu    sync.Mutex
	known map[uint64]bool
	gone  map[uint64]uint64 // dropped by this batch, which may not be on disk yet
	crc   uint32            // of the file; 0: there is none
	added bool              // something is known that the file does not list
	stale atomic.Bool       // the file does not say what it should
}

func (g *registry) sum() uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.crc
}

// note takes a batch's word that a partition is there, or is no more.
func (g *registry) note(p, counter uint64, there bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case there && g.gone[p] != 0:
		delete(g.gone, p)
	case there && !g.known[p]:
		g.known[p], g.added = true, true
		g.stale.Store(true)
	case !there && g.known[p] && g.gone[p] == 0:
		g.gone[p] = counter
		g.stale.Store(true)
	}
}

// all returns the partitions of which there may be anything, also those that were
// dropped when that may not be on disk.
func (g *registry) all() []uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.known))
}

// list returns the partitions that are there, in order.
func (g *registry) list() []uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	ps := make([]uint64, 0, len(g.known))
	for p := range g.known {
		if g.gone[p] == 0 {
			ps = append(ps, p)
		}
	}
	slices.Sort(ps)
	return ps
}

// saveRegistry brings the file up to what is known to be on disk. A write that
// fails stops the store.
func (s *Store) saveRegistry() error {
	g := &s.registry
	if !g.stale.Load() || s.cfg.ReadOnly {
		return nil
	}
	g.fileMu.Lock()
	defer g.fileMu.Unlock()
	g.mu.Lock()
	if !g.stale.Load() {
		g.mu.Unlock()
		return nil
	}
	synced, changed := s.synced.Load(), g.added || g.crc == 0
	for p, n := range g.gone {
		if n <= synced {
			delete(g.known, p)
			delete(g.gone, p)
			changed = true
		}
	}
	ps := slices.Sorted(maps.Keys(g.known))
	g.added = false
	g.stale.Store(len(g.gone) > 0)
	g.mu.Unlock()
	if !changed {
		return nil // what was dropped is not on disk yet
	}
	b := encodeRegistry(s.id.store, synced, ps)
	sum := binary.LittleEndian.Uint32(b[len(b)-4:]) // a file may change what it is given to write
	if err := s.replaceFile(registryName, registryNew, b); err != nil {
		s.fail("write", registryName, err)
	}
	if f := s.failure.Load(); f != nil {
		return f
	}
	g.mu.Lock()
	g.crc = sum
	g.mu.Unlock()
	return nil
}

// readRegistry reads the file. why tells what is the matter with it, if it says
// nothing that can be relied on.
func (s *Store) readRegistry(t testimony) (ps []uint64, why error, err error) {
	b, err := readAll(s.cfg.FS, s.cfg.FS.PathJoin(s.cfg.Dir, registryName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("it is gone"), nil
	}
	if err != nil {
		return nil, nil, err
	}
	store, _, ps, why := decodeRegistry(b)
	switch {
	case why != nil:
		return nil, why, nil
	case store != t.store:
		return nil, errors.New("it is of another store"), nil
	case t.state == stateClosed && t.registry != 0 && t.registry != binary.LittleEndian.Uint32(b[len(b)-4:]):
		return nil, errors.New("it is not the one of the last stop"), nil
	}
	s.registry.crc = binary.LittleEndian.Uint32(b[len(b)-4:])
	return ps, nil, nil
}

// loadRegistry finds out which partitions there are, from the registry and from
// the tables, before anything is changed.
//
// One that is listed, and of which no row is left although everything reads, was
// dropped if the store crashed behind it; after a clean stop it was lost.
func (s *Store) loadRegistry(db *pebble.DB, t testimony) error {
	g := &s.registry
	listed, why, err := s.readRegistry(t)
	if err != nil {
		return s.openError(err)
	}
	found, damage := partitionsOf(db)
	s.dead.found = found
	switch {
	case damage != nil && !isDamage(damage):
		return s.openError(damage)
	case damage != nil && why != nil:
		return &ErrDamaged{Dir: s.cfg.Dir, File: registryName, Err: damage, What: fmt.Sprintf(
			"neither the list of partitions (%v) nor the tables tell which partitions there are", why)}
	case why != nil:
		s.cfg.Logger.Warn("the list of partitions does not read: it is made again from the tables", "file", registryName, "why", why)
		g.added = true
	}
	for _, p := range listed {
		some := slices.Contains(found, p)
		if !some {
			if some, err = s.anyRow(db, p); err != nil && !isDamage(err) {
				return s.openError(err)
			}
		}
		switch {
		case some, err != nil:
		case t.state == stateClosed:
			if s.vanished == nil {
				s.vanished = make(map[uint64]bool)
			}
			s.vanished[p] = true
		default:
			g.added = true // dropped just before a crash
			continue
		}
		g.known[p] = true
	}
	for _, p := range found {
		if g.known[p] {
			continue
		}
		// Rows alone are found again or not; a log is listed.
		if some, err := s.anyLog(db, p); some || err != nil {
			g.known[p], g.added = true, true // made just before a crash
		}
	}
	g.stale.Store(g.added)
	return nil
}

// anyRow tells whether anything is stored of a partition.
func (s *Store) anyRow(db *pebble.DB, p uint64) (bool, error) {
	spaces := perPartition()
	return anyIn(db, p, spaces[:]...)
}

// anyLog tells whether a partition has a log, if an empty one.
func (s *Store) anyLog(db *pebble.DB, p uint64) (bool, error) {
	return anyIn(db, p, nsBase, nsEntry)
}

func anyIn(db *pebble.DB, p uint64, spaces ...Namespace) (bool, error) {
	for _, ns := range spaces {
		it, err := db.NewIter(&pebble.IterOptions{LowerBound: appendPrefix(nil, ns, p), UpperBound: appendPrefixEnd(nil, ns, p)})
		if err != nil {
			return false, err
		}
		some := it.First()
		if err := errors.Join(it.Error(), it.Close()); some || err != nil {
			return some, err
		}
	}
	return false, nil
}

// gone tells whether nothing is left of a partition that was there.
func (s *Store) gone(p uint64) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.vanished[p]
}

// Partitions lists the partitions that anything is stored of, in order, also
// those whose rows do not read.
func (s *Store) Partitions() ([]uint64, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	found, err := partitionsOf(s.db)
	if err != nil {
		if err = s.readError(err, Range{}); !isDamage(err) {
			return nil, err
		}
	}
	ps := append(found, s.registry.list()...)
	slices.Sort(ps)
	return slices.Compact(ps), nil
}
