package logstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/strandmq/strandmq/internal/format"
)

// ErrClosed is returned by calls on a store that was closed.
var ErrClosed = errors.New("logstore: the store is closed")

// ErrReadOnly is returned by writes to a store opened read-only.
var ErrReadOnly = errors.New("logstore: the store was opened read-only")

// ErrInUse tells that another process, or this one, has the folder open.
type ErrInUse struct {
	Dir string
	PID int // 0 when it is not known
}

func (e *ErrInUse) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("folder %s is in use by %s: stop it, or choose another folder", e.Dir, who)
}

// ErrForeign tells that a folder holds something that is not this store.
type ErrForeign struct {
	Dir  string
	What string
}

func (e *ErrForeign) Error() string {
	return fmt.Sprintf("folder %s is not this node's store: %s; choose an empty folder, or the one the node was started with", e.Dir, e.What)
}

// ErrNoStore tells that a store was expected and the folder holds none.
type ErrNoStore struct{ Dir string }

func (e *ErrNoStore) Error() string {
	return fmt.Sprintf("folder %s holds no store, but this node had one: restore the folder, or replace the node by one with a new id", e.Dir)
}

// ErrNewerFormat tells that a newer version of the program wrote the folder.
type ErrNewerFormat struct {
	Dir   string
	What  string // what is newer: the store or the tables below it
	Found uint64
	Known uint64
}

func (e *ErrNewerFormat) Error() string {
	return fmt.Sprintf("folder %s: %v", e.Dir, e.Unwrap())
}

// Unwrap gives the *format.ErrNewer without the folder.
func (e *ErrNewerFormat) Unwrap() error {
	return &format.ErrNewer{What: e.What, Found: e.Found, Known: e.Known}
}

// Range is a part of one partition's log, both ends included. A High of 0 says
// that the end is not known.
type Range struct {
	Partition uint64
	Low, High uint64
}

// String prints a range as p3 [17..40].
func (r Range) String() string {
	if r.High == 0 {
		return fmt.Sprintf("p%d [%d..]", r.Partition, r.Low)
	}
	return fmt.Sprintf("p%d [%d..%d]", r.Partition, r.Low, r.High)
}

// Entries says which entries a range has: entry 7, entries 7 to 9, from entry 7 on.
func (r Range) Entries() string { return Entries(r.Low, r.High) }

// Entries says which entries low to high are; a high below low says that the end
// is not known.
func Entries(low, high uint64) string {
	switch {
	case high < low:
		return fmt.Sprintf("from entry %d on", low)
	case high == low:
		return fmt.Sprintf("entry %d", low)
	}
	return fmt.Sprintf("entries %d to %d", low, high)
}

// ErrDamaged tells that stored data is not what was written. Nothing that it
// names is served; nothing is cut off to make it fit.
type ErrDamaged struct {
	Dir    string
	File   string  // the file, when one is to blame
	What   string  // what is wrong
	Ranges []Range // parts of logs that are or may be lost; empty when it cannot be told
	Err    error   // the error below, if any

	Names map[uint64]string // what people call the partitions, where that is known
	Way   string            // what to do; empty: to restore the folder

	bound bool // Ranges are what the file may hold, and not what was looked at
}

// Brief is what is wrong and in which file, for who knows of what and what to do.
func (e *ErrDamaged) Brief() string {
	out := e.What
	if e.File != "" && !strings.Contains(fmt.Sprint(e.Err), e.File) {
		out += ", file " + e.File
	}
	if e.Err != nil {
		out += " (" + e.Err.Error() + ")"
	}
	return out
}

// Affected names a range, by its name if there is one, else as p3.
func (e *ErrDamaged) Affected(r Range) string {
	name := e.Names[r.Partition]
	if name == "" {
		name = fmt.Sprintf("p%d", r.Partition)
	}
	return name + ", " + r.Entries()
}

func (e *ErrDamaged) Error() string {
	var b strings.Builder
	b.WriteString("damaged data")
	if e.Dir != "" {
		b.WriteString(" in " + e.Dir)
	}
	if e.File != "" {
		b.WriteString(", file " + e.File)
	}
	b.WriteString(": " + e.What)
	if len(e.Ranges) > 0 {
		b.WriteString("; affected: ")
		for i, r := range e.Ranges {
			if i == 16 {
				fmt.Fprintf(&b, " and %d more", len(e.Ranges)-i)
				break
			}
			if i > 0 {
				b.WriteString("; ")
			}
			b.WriteString(e.Affected(r))
		}
	}
	if e.Err != nil {
		b.WriteString(" (" + e.Err.Error() + ")")
	}
	way := e.Way
	if way == "" {
		way = "restore the folder from a copy, or replace this replica"
	}
	b.WriteString("; nothing was changed: " + way)
	return b.String()
}

func (e *ErrDamaged) Unwrap() error { return e.Err }

// ErrAccess tells that the folder cannot be read or written.
type ErrAccess struct {
	Path string
	Err  error
}

func (e *ErrAccess) Error() string {
	return fmt.Sprintf("no access to %s: %v; give the user that runs the broker read and write access, or choose another folder", e.Path, e.Err)
}

func (e *ErrAccess) Unwrap() error { return e.Err }

// ErrDiskFull tells that the disk has no room left.
type ErrDiskFull struct {
	Dir string
	Err error
}

func (e *ErrDiskFull) Error() string {
	return fmt.Sprintf("no space left for %s: free some and start again; what was acknowledged is on disk", e.Dir)
}

func (e *ErrDiskFull) Unwrap() error { return e.Err }

// ErrFailed tells that a write or fsync failed. The store takes no further
// writes: what the disk holds behind a failed fsync is not known until the
// store is opened again.
type ErrFailed struct {
	Op   string
	Path string
	Err  error
}

func (e *ErrFailed) Error() string {
	var full *ErrDiskFull
	if errors.As(e.Err, &full) { // it says what to do
		return "store stopped: " + full.Error()
	}
	return fmt.Sprintf("store stopped: %s %s: %v; check the disk and start the broker again", e.Op, e.Path, e.Err)
}

func (e *ErrFailed) Unwrap() error { return e.Err }

// ErrCompacted tells that an entry is no longer in the log.
type ErrCompacted struct {
	Partition uint64
	Index     uint64
	First     uint64 // the first one still there
}

func (e *ErrCompacted) Error() string {
	return fmt.Sprintf("entry %d of p%d is gone, the log begins at %d", e.Index, e.Partition, e.First)
}

// ErrUnavailable tells that an entry is not in the log yet.
type ErrUnavailable struct {
	Partition uint64
	Index     uint64
	Last      uint64
}

func (e *ErrUnavailable) Error() string {
	return fmt.Sprintf("entry %d of p%d does not exist, the log ends at %d", e.Index, e.Partition, e.Last)
}

// ErrBadBatch tells that a batch does not fit the log. Nothing was written.
type ErrBadBatch struct {
	Partition uint64
	What      string
}

func (e *ErrBadBatch) Error() string {
	return fmt.Sprintf("batch refused for p%d: %s", e.Partition, e.What)
}

// ErrExportOver tells that an export went on for longer than it may, or that
// nobody read it for a while.
type ErrExportOver struct{ Partition uint64 }

func (e *ErrExportOver) Error() string {
	return fmt.Sprintf("the export of p%d took too long and was ended: begin another", e.Partition)
}

// ErrBadSnapshot tells that a snapshot that came is not what was sent. Nothing of
// it was taken over.
type ErrBadSnapshot struct {
	Partition uint64
	What      string
	Err       error
}

func (e *ErrBadSnapshot) Error() string {
	s := fmt.Sprintf("the snapshot of p%d was refused: %s", e.Partition, e.What)
	if e.Err != nil {
		s += " (" + e.Err.Error() + ")"
	}
	return s + "; nothing was changed: it has to be sent again"
}

func (e *ErrBadSnapshot) Unwrap() error { return e.Err }

// ErrSnapshotGap tells that a snapshot's stream does not go on where the last one
// broke off.
type ErrSnapshotGap struct {
	Partition uint64
	Stream    uint64 // the one that is half here; 0 for none
	Next      uint64 // its next chunk
}

func (e *ErrSnapshotGap) Error() string {
	return fmt.Sprintf("of the snapshot of p%d chunk %d of stream %x is next: go on there", e.Partition, e.Next, e.Stream)
}

// Fault is what Config.OnFault is told.
type Fault struct {
	// Stopped tells that the store has stopped: it is the end of the store,
	// and the last fault that is told. Otherwise damaged data was found, and
	// what is not damaged is still served.
	Stopped bool
	Err     error // *ErrFailed or *ErrDamaged
}
