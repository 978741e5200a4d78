package sim

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/partition/logstore"
)

// room is what a node's disk has left. It gets low, and then the node refuses
// publishes and leads nothing that another can lead; or it ends, and then the next
// write is refused, with which the store stops, and the node. It is started again as
// long as it takes.
//
//	plenty ─► low: publishes are refused ─► none: writes are refused ─► plenty
//
// What is low is decided by the broker's own code (logstore.Room.Low), from what the
// file system says. Which write is refused first is the seed's: one of the log.
type room struct {
	mu   sync.Mutex // tables are written in Pebble's goroutines
	low  bool
	none bool
	left int // so many writes still fit
}

const (
	plenty  = 1 << 40
	little  = 1 << 20
	reserve = 64 << 20
)

// free is what the file system says.
func (r *room) free() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.none:
		return 0
	case r.low:
		return little
	}
	return plenty
}

func (r *room) set(low, none bool, left int) {
	r.mu.Lock()
	r.low, r.none, r.left = low, none, left
	r.mu.Unlock()
}

// take is a write that needs room.
func (r *room) take(op, name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.none {
		return nil
	}
	if r.left--; r.left >= 0 {
		return nil
	}
	return &os.PathError{Op: op, Path: name, Err: syscall.ENOSPC}
}

// GetDiskUsage implements vfs.FS.
func (d *disk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	free := d.room.free()
	return vfs.DiskUsage{AvailBytes: free, TotalBytes: plenty, UsedBytes: plenty - free}, nil
}

// roomyFile is a file that is written as long as there is room.
type roomyFile struct {
	vfs.File
	room *room
	name string
}

func (f *roomyFile) Write(p []byte) (int, error) {
	if err := f.room.take("write", f.name); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

// fills is a disk that gets full for a while. room tells what is to be undone by then.
func (s *Sim) fills(n *node) {
	r := s.rand.fault
	s.say("%v: the disk is nearly full", n.id)
	n.room.set(true, false, 0)
	n.kick()
	if boot := n.boot; r.IntN(2) == 0 {
		s.after(s.between(r, 0, 5*time.Second), "full", func() {
			if n.boot == boot && n.room.free() == little {
				n.filling = true
			}
		})
	}
	s.after(s.between(r, 500*time.Millisecond, 20*time.Second), "room", func() {
		if !s.healed {
			s.say("%v: the disk has room", n.id)
			n.hasRoom()
		}
	})
}

func (n *node) hasRoom() {
	n.room.set(false, false, 0)
	n.filling = false
}

// looksForRoom is a tick's look, as the broker looks: it says to the core and to the
// other nodes that this one should lead nothing.
func (n *node) looksForRoom() {
	at, err := logstore.Config{FS: n.disk, Dir: "data"}.Room()
	if err != nil {
		n.s.fault("%v does not know how much room it has: %v", n.id, err)
		return
	}
	n.low = at.Low(reserve, n.low)
	if n.s.planted.is("full-leads", 1) {
		return
	}
	n.core.Full(n.low)
	if n.low && n.s.now-n.saidLow > time.Second {
		n.saidLow = n.s.now
		n.tell(n.core.UnfitFrames())
	}
}

// refused is a write for which there is no room: what the store makes of it. As with an
// fsync that fails it is one of its own, which is waited for.
func (n *node) refused() error {
	n.s.say("%v: the disk is full", n.id)
	n.s.count.faults["write refused"]++
	n.room.set(true, true, 0)
	p, err := n.store.Commit(n.store.NewBatch())
	if err == nil {
		err = p.Wait()
	}
	if !errors.As(n.store.Err(), new(*logstore.ErrDiskFull)) {
		n.s.fault("%v: its disk is full, and its store says: %v", n.id, n.store.Err())
	}
	return err
}

// noRoom tells whether a node did not start since its disk is full: it says so, and is
// started again. What it wrote until then stays, or is lost with the power.
func (n *node) noRoom(err error) bool {
	if n.room.free() > 0 {
		return false
	}
	r := n.s.rand.fault
	if !errors.As(err, new(*logstore.ErrDiskFull)) {
		n.s.fault("%v: its disk is full, and its start says: %v", n.id, err)
	}
	n.s.say("%v does not start: no room", n.id)
	n.s.count.faults["start refused"]++
	if r.IntN(2) == 0 {
		n.disk.mem = n.disk.mem.CrashClone(vfs.CrashCloneCfg{})
	}
	n.room.set(true, true, r.IntN(3))
	n.s.after(n.s.between(r, 100*time.Millisecond, 3*time.Second), "start", n.back)
	return true
}

// errLow is what a publisher is told by a node whose disk is nearly full.
var errLow = errors.New("DISK_FULL")
