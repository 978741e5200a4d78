package logstore

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Damage is a piece of stored data that was found not to be what was written.
type Damage struct {
	File   string // empty if no one file is to blame
	What   string
	Ranges []Range
	Bound  bool // the ranges are what the file may hold: the scrub tells what is damaged of it
	Found  time.Time
}

// maxDamage bounds what is kept of damage that was found. The log has all of it:
// beyond the bound, whenever it is met.
const maxDamage = 1000

// Damage lists what was found since the store was opened, by reads, by the
// scrub, by compactions and at the start, and has neither been written over nor
// removed since.
func (s *Store) Damage() []Damage {
	s.damageMu.Lock()
	defer s.damageMu.Unlock()
	return slices.Clone(s.damage)
}

// reportDamage tells OnFault of damage, once for each place.
func (s *Store) reportDamage(d *ErrDamaged) {
	key := damageKey(d.File, d.What, d.Ranges)
	s.damageMu.Lock()
	told, full := s.told[key], len(s.told) >= maxDamage
	if !told && !full {
		s.told[key] = true
		s.damage = append(s.damage, Damage{File: d.File, What: d.What, Ranges: d.Ranges, Bound: d.bound, Found: time.Now()})
	}
	if told && !d.bound {
		// It was looked at since, and all of it is damaged.
		for i := range s.damage {
			x := &s.damage[i]
			x.Bound = x.Bound && damageKey(x.File, x.What, x.Ranges) != key
		}
	}
	s.damageMu.Unlock()
	if told {
		return
	}
	if d.bound {
		s.scrubSoon()
	}
	d.Names = s.called()
	affected := make([]string, 0, len(d.Ranges))
	for _, r := range d.Ranges {
		affected = append(affected, d.Affected(r))
	}
	s.cfg.Logger.Error("damaged data", "file", d.File, "what", d.What, "affected", affected, "err", d.Err)
	select {
	case s.damages <- d:
	default: // OnFault is slow; the log has it
	}
}

func damageKey(file, what string, ranges []Range) string {
	if file != "" {
		what = "" // the same place is found in more than one way
	}
	return fmt.Sprint(file, what, ranges)
}

// forgetDamage drops what is known of a log's part that is gone: all of it if it
// was rewritten, else up to the new base.
func (s *Store) forgetDamage(p, base uint64, all bool) {
	s.damageMu.Lock()
	defer s.damageMu.Unlock()
	if len(s.damage) == 0 {
		return
	}
	had := len(s.damage)
	s.damage = slices.DeleteFunc(s.damage, func(d Damage) bool {
		if len(d.Ranges) == 0 || slices.ContainsFunc(d.Ranges, func(r Range) bool {
			return r.Partition != p || (!all && (r.High == 0 || r.High > base))
		}) {
			return false
		}
		delete(s.told, damageKey(d.File, d.What, d.Ranges))
		return true
	})
	if len(s.damage) == 0 {
		s.fs.rot.Store(false)
	}
	if len(s.damage) < had {
		s.merges.retry()
	}
}

// rotInBackground takes note of damage that a compaction met. It is called under
// locks of Pebble's, so naming what is damaged is left to the keeper.
func (s *Store) rotInBackground(rot *rotError) {
	select {
	case s.rots <- rot:
	default: // the same again, most likely; it is met again, too
	}
}

func (s *Store) nameRot(rot *rotError) {
	s.reportDamage(&ErrDamaged{
		Dir: s.cfg.Dir, File: rot.file, What: "a compaction met data that does not read", Ranges: s.rangesOf(rot.file), bound: true, Err: rot,
	})
}

// rangesOf says what a file may hold, by the MANIFEST as it is on disk.
func (s *Store) rangesOf(name string) []Range {
	m := s.manifest()
	if m == nil {
		return nil
	}
	for f, rs := range m.files() {
		if f.name == name {
			return tidy(rs)
		}
	}
	return nil
}

// manifest reads the MANIFEST as it is on disk; nil if that cannot be done.
func (s *Store) manifest() *manifestState {
	dir := s.pebbleDir()
	num, _, err := currentManifest(s.cfg.FS, dir)
	if err != nil {
		return nil
	}
	data, err := readAll(s.cfg.FS, s.cfg.FS.PathJoin(dir, manifestName(num)))
	if err != nil {
		return nil
	}
	m := newManifestState()
	// It may be written just now: what was read up to the end is enough.
	if _, _, err := scanRecords(data, 0, m.apply); err != nil {
		return nil
	}
	return m
}

// isDamage tells damage from other errors.
func isDamage(err error) bool {
	var d *ErrDamaged
	var rot *rotError
	return errors.As(err, &d) || errors.As(err, &rot) || pebble.IsCorruptionError(err)
}
