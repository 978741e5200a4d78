package sim

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
)

// A disk gives back something else than what was written: while a node is off, a bit of
// an entry or of a row flips in the table or value file that has it, or all of it is
// zero. Whoever reads it first finds it, by the store's own checks: the start, the groups,
// whoever feeds another replica, the scrub, or the judge.
//
//	off ─► the store merges all into new tables ─► a row, by the seed ─► its bytes in the files ─► flip ─► start
//
// When tables are written no seed chooses, so neither which rows share a block, nor
// which lie beside each other: in runs with this fault each has a block of its own
// (logstore.Config.Simulated). Who looks for a row reads the block where it would be, so
// damage of one partition may be met by its neighbour, which then is damaged, too; if
// that is the metadata log the node does not start, and is replaced.
//
// A disk is damaged once, and no other one before all is made anew.

// minFlip is how long a row has to be to be found in a file by its bytes.
const minFlip = 20

// mayFlip tells whether a node's disk may be damaged: others have all that it has.
func (s *Sim) mayFlip(n *node) bool { return s.cluster != nil && !n.spoiled && s.mayLose(n) }

// flips has a node fall, and come back with something damaged.
func (s *Sim) flips(n *node) {
	r := s.rand.fault
	n.off("power cut", r.IntN(3))
	s.after(s.between(r, 10*time.Millisecond, 3*time.Second), "start", func() {
		if n.up || n.broken {
			return
		}
		if !s.healed {
			s.flip(n)
		}
		n.back()
	})
}

// flip damages something that a node has of a partition.
func (s *Sim) flip(n *node) {
	r := s.rand.fault
	n.disk = newDisk(n.disk.mem, &n.room)
	store, err := logstore.Open(n.storeConfig())
	if err != nil {
		s.fault("%v does not come back: opening its store: %v", n.id, err)
		return
	}
	if err := store.MergeNow(); err != nil {
		s.fault("%v: merging: %v", n.id, err)
		return
	}
	ps := s.parts()
	p := ps[r.IntN(len(ps))]
	var what string
	var row []byte
	pl := n.held[p]
	for tries := 0; row == nil && tries < 10 && pl != nil && !pl.out && !n.rot[p]; tries++ {
		what, row = n.choose(store, p)
	}
	if err := store.Close(); err != nil { // it writes tables of all that there is
		s.fault("%v: closing: %v", n.id, err)
		return
	}
	if row == nil {
		return
	}
	zero, at, bit := r.IntN(4) == 0, r.IntN(len(row)), byte(1)<<r.IntN(8)
	if !n.disk.damage("data", row, func(b []byte) {
		if zero {
			clear(b)
		} else {
			b[at] ^= bit
		}
	}) {
		s.fault("%v: %s of %v is in none of its files", n.id, what, p)
		return
	}
	n.flipped[p], n.spoiled = true, true
	s.count.faults["flip: "+strings.Fields(what)[0]]++
	s.say("%v: %s of %v is damaged, all of it: %v", n.id, what, p, zero)
}

// choose draws an entry or a row that a store has of a partition.
func (n *node) choose(store *logstore.Store, p partition.PartitionID) (what string, row []byte) {
	r := n.s.rand.fault
	if r.IntN(2) == 0 {
		first, err := store.FirstIndex(uint64(p))
		last, err2 := store.LastIndex(uint64(p))
		if err != nil || err2 != nil || first > last {
			return "", nil
		}
		i := first + r.Uint64N(last-first+1)
		_ = store.Scan(uint64(p), i, i+1, func(e logstore.Entry, _ uint32) bool {
			row = slices.Clone(e.Data)
			return true
		})
		what = "entry"
	} else {
		ns := rowSpaces[r.IntN(len(rowSpaces))]
		seen := 0
		_ = store.Iterate(ns, uint64(p), nil, nil, func(_, v []byte) bool {
			if len(v) >= minFlip {
				if seen++; r.IntN(seen) == 0 {
					row = slices.Clone(v)
				}
			}
			return true
		})
		what = strings.ReplaceAll(ns.String(), " ", "-")
	}
	if len(row) < minFlip || n.holds(store, row) != 1 {
		return "", nil // what else has the same bytes would be damaged, too
	}
	return what, row
}

// rowSpaces are the rows that a partition has beside its log and its votes.
var rowSpaces = []logstore.Namespace{logstore.Offsets, logstore.IDs, logstore.Producers, logstore.AppRows}

// holds counts the entries and rows of a store that have bytes in them.
func (n *node) holds(store *logstore.Store, what []byte) (count int) {
	in := func(b []byte) bool {
		if bytes.Contains(b, what) {
			count++
		}
		return true
	}
	for _, p := range n.s.logs() {
		first, _ := store.FirstIndex(uint64(p))
		last, _ := store.LastIndex(uint64(p))
		_ = store.Scan(uint64(p), first, last+1, func(e logstore.Entry, _ uint32) bool { return in(e.Data) })
		for _, ns := range rowSpaces {
			_ = store.Iterate(ns, uint64(p), nil, nil, func(_, v []byte) bool { return in(v) })
		}
	}
	return count
}

// damage changes bytes wherever a table or a value file has them. It tells whether any
// does.
func (d *disk) damage(dir string, what []byte, change func([]byte)) (found bool) {
	names, err := d.mem.List(dir)
	if err != nil {
		return false
	}
	for _, name := range names {
		path := d.mem.PathJoin(dir, name)
		if info, err := d.mem.Stat(path); err != nil {
			continue
		} else if info.IsDir() {
			found = d.damage(path, what, change) || found
			continue
		}
		if !strings.HasSuffix(name, ".sst") && !strings.HasSuffix(name, ".blob") {
			continue
		}
		found = damageFile(d.mem, path, what, change) || found
	}
	return found
}

func damageFile(fs vfs.FS, path string, what []byte, change func([]byte)) (found bool) {
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false
	}
	data := make([]byte, info.Size())
	if _, err := f.ReadAt(data, 0); err != nil && len(data) > 0 {
		return false
	}
	for from := 0; ; {
		i := bytes.Index(data[from:], what)
		if i < 0 {
			break
		}
		from += i
		b := slices.Clone(what)
		change(b)
		if _, err := f.WriteAt(b, int64(from)); err != nil {
			return false
		}
		found = true
		from += len(what)
	}
	return found && f.Sync() == nil
}

// rotten says what of a partition here does not read, as the broker's agent takes it
// from the store: what a file may hold besides does not count.
func (n *node) rotten(p partition.PartitionID) string {
	if !n.spoiled || n.s.planted.is("unreported-damage", 1) {
		return ""
	}
	for _, d := range n.store.Damage() {
		if d.Bound {
			continue
		}
		for _, r := range d.Ranges {
			if r.Partition == uint64(p) {
				return d.What + ", " + r.Entries()
			}
		}
	}
	return ""
}

// scrubs reads all that a node has, again and again, as long as something of it is
// damaged and was not made anew. What a whole pass does not meet nobody needs any more.
func (n *node) scrubs() {
	if len(n.flipped) == 0 {
		return
	}
	n.later(n.s.between(n.s.rand.disk, time.Second, 30*time.Second), "scrub", func() {
		if err := n.store.ScrubNow(); err != nil {
			n.s.say("%v: the scrub: %v", n.id, n.store.Err() != nil)
		}
		for _, p := range n.s.parts() {
			info, err := n.core.Info(p)
			if n.flipped[p] && err == nil && info.Fault == "" && !n.rot[p] && n.rotten(p) == "" && n.s.planted.kind != "unreported-damage" {
				n.s.say("%v: nobody needs what is damaged of %v", n.id, p)
				delete(n.flipped, p)
			}
		}
		if info, err := n.core.Info(partition.Metadata); err == nil && info.Damaged {
			n.unreadable(&partition.ErrDamaged{Partition: partition.Metadata, Why: info.Fault})
			return
		}
		n.scrubs()
	})
}

// excuses tells whether an error is what damage on a node's disk makes of a read.
func (n *node) excuses(err error) bool { return n.spoiled && damaged(err) }

func damaged(err error) bool {
	return errors.As(err, new(*partition.ErrDamaged)) || errors.As(err, new(*logstore.ErrDamaged)) || errors.As(err, new(*partition.ErrUnreadable))
}

// spoiled tells whether anything is or was damaged anywhere.
func (s *Sim) spoiled() bool {
	return slices.ContainsFunc(s.nodes, func(n *node) bool { return n.spoiled })
}

// unreadable tells whether a node did not start since what it needs is damaged: the
// cluster gives it up, and another one comes for it.
func (n *node) unreadable(err error) bool {
	if !n.spoiled || !damaged(err) {
		return false
	}
	n.s.say("%v does not start: what it needs is damaged", n.id)
	n.s.count.faults["start: damaged"]++
	n.off("damaged", 1)
	n.lostDisk()
	n.giveUp()
	n.s.cluster.steward.lost = append(n.s.cluster.steward.lost, n)
	n.s.count.placed["disk lost"]++
	return true
}
