package sim

import (
	"errors"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is a node's file system, in memory. Of the store's log files it keeps what
// is not durable yet to itself, as a page cache does: an fsync of one returns at
// once, and the simulator says later when what it covered really is on disk. So a
// power cut loses exactly what it should, to the byte, and the same each time.
//
//	Pebble ─ Write ─► cached │ ─ settle(mark) ─► MemFS ─ CrashClone ─► next boot
//	         Sync ──► nothing │
//
// Tables and the MANIFEST are written in Pebble's background, at times that nobody
// chose; they go straight through. What a store holds does not depend on them.
type disk struct {
	vfs.FS // what is durable, and all that is not a log file
	mem    *vfs.MemFS

	mu      sync.Mutex
	through bool     // log files are not kept back: the store is being opened or closed
	dead    bool     // the power is off: nothing is written any more
	current *logFile // the newest log
	files   int
	failing error // what the next fsync of a log ends with
	lies    bool  // what is told of as durable need not be
	room    *room
}

var _ vfs.FS = (*disk)(nil)

// mark is how much of which log a write reaches.
type mark struct {
	file *logFile
	to   int64
}

var errDisk = errors.New("input/output error (simulated)")

func newEmptyDisk() *disk { return &disk{mem: vfs.NewCrashableMem()} }

func newDisk(mem *vfs.MemFS, room *room) *disk {
	return &disk{FS: mem, mem: mem, through: true, room: room}
}

// Create implements vfs.FS.
func (d *disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.room.take("create", name); err != nil {
		return nil, err
	}
	f, err := d.FS.Create(name, c)
	return d.wrap(name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (d *disk) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.ReuseForWrite(old, name, c)
	return d.wrap(name, f, err)
}

func (d *disk) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return f, err
	}
	f = &roomyFile{f, d.room, name}
	if !strings.HasSuffix(name, ".log") {
		return f, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files++
	d.current = &logFile{File: f.(*roomyFile).File, d: d, name: name}
	return d.current, nil
}

// OpenReadWrite implements vfs.FS.
func (d *disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, c, opts...)
	if err != nil || !strings.HasSuffix(name, "WITNESS") {
		return f, err
	}
	return &testimony{f, d}, nil
}

// testimony is the file in which a store says how far it was synced. It counts the
// fsyncs that returned, and here they return at once: so what it tells of has to be
// durable before it is written.
type testimony struct {
	vfs.File
	d *disk
}

func (f *testimony) WriteAt(p []byte, at int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.dead {
		return len(p), nil
	}
	if c := f.d.current; c != nil && !f.d.lies {
		if err := c.settle(c.written); err != nil {
			return 0, err
		}
	}
	return f.File.WriteAt(p, at)
}

// hold begins to keep back what is not durable.
func (d *disk) hold() {
	d.mu.Lock()
	d.through = false
	d.mu.Unlock()
}

// written is up to where the newest log was written. Those before it are durable: the
// store closed them.
func (d *disk) written() mark {
	d.mu.Lock()
	defer d.mu.Unlock()
	return mark{d.current, d.current.written}
}

// settle makes durable what was written up to a mark.
func (d *disk) settle(m mark) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return m.file.settle(m.to)
}

// fail makes the next fsync of a log fail.
func (d *disk) fail() {
	d.mu.Lock()
	d.failing = errDisk
	d.mu.Unlock()
}

// has tells whether what goes up to a mark is durable.
func (d *disk) has(m mark) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return m.file.durable >= m.to
}

// kept is how many bytes of the newest log are durable.
func (d *disk) kept() mark {
	d.mu.Lock()
	defer d.mu.Unlock()
	return mark{d.current, d.current.durable}
}

// cut is a power cut: what is durable is kept, and of the newest log what goes up
// to a mark.
func (d *disk) cut(upTo mark) (*vfs.MemFS, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	if upTo.file == d.current {
		err = upTo.file.settle(upTo.to)
	}
	// MemFS copies all of a file to sync it, so that is done once.
	err = errors.Join(err, d.current.File.Sync())
	d.dead = true
	return d.mem.CrashClone(vfs.CrashCloneCfg{}), err
}

// logFile is a log of the store, written from front to back. Fields are under the
// disk's lock.
type logFile struct {
	vfs.File
	d       *disk
	name    string
	cached  []byte
	durable int64
	written int64
}

func (f *logFile) Write(p []byte) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.dead {
		return len(p), nil
	}
	if err := f.d.room.take("write", f.name); err != nil {
		return 0, err
	}
	f.cached = append(f.cached, p...)
	f.written += int64(len(p))
	if f.d.through {
		return len(p), f.settle(f.written)
	}
	return len(p), nil
}

// settle writes through up to a place. What is written through counts as synced: cut
// and Close see to it.
func (f *logFile) settle(to int64) error {
	if to <= f.durable || f.d.dead {
		return nil
	}
	n := to - f.durable
	if _, err := f.File.Write(f.cached[:n]); err != nil {
		return err
	}
	f.cached = f.cached[n:]
	f.durable = to
	return nil
}

func (f *logFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.through {
		return f.File.Sync()
	}
	if err := f.d.failing; err != nil && !f.d.dead {
		f.d.failing = nil
		return err
	}
	return nil
}

func (f *logFile) SyncData() error { return f.Sync() }

func (f *logFile) SyncTo(int64) (bool, error) { return true, f.Sync() }

// Close makes the rest durable: a store that goes on to the next log waits for that.
func (f *logFile) Close() error {
	f.d.mu.Lock()
	err := f.settle(f.written)
	if !f.d.dead {
		err = errors.Join(err, f.File.Sync())
	}
	f.d.mu.Unlock()
	return errors.Join(err, f.File.Close())
}
