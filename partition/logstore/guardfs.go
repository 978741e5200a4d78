package logstore

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// guardFS stands between Pebble and the disk and makes the first failed write
// the last one. When a write, fsync, create or rename fails, it reports the
// failure and from then on changes nothing on disk: what is there is what a
// power cut at that moment would have left, and recovery from that is tested.
//
// To Pebble it pretends that all went well. That is deliberate. Told the truth,
// Pebble retries (a second fsync after a failed one may succeed although the
// data is gone), loops, waits for a flush that cannot end, or panics in a
// goroutine that is not ours. The callers of this package get the truth from
// the store, which looks at its own failure before it answers anything.
type guardFS struct {
	vfs.FS
	failed atomic.Bool
	report func(op, path string, err error) // called at least once
	syncs  *syncStats
	watch  diskWatch
	merges *compactions           // nil: there are none
	lost   map[string]missingFile // set before Pebble opens, not changed afterwards
	rot    atomic.Bool            // damage was met that is not gone
	newest atomic.Uint64          // number of the newest of the engine's files
	// dead gives what stands in for a block that does not read and nobody needs, or nil.
	dead func(name string, at int64, n int) []byte
}

func (g *guardFS) fault(op, path string, err error) {
	// The report comes first: whoever sees failed, and lets an fsync pass that
	// did not happen, must find the failure on record.
	g.report(op, path, err)
	g.failed.Store(true)
}

// rotten tells that who reads here gets no data but damage.
func (g *guardFS) rotten() {
	g.rot.Store(true)
	if g.merges != nil {
		g.merges.failed()
	}
}

// GetDiskUsage is also what a compaction asks when it has done its work (see
// compactions).
func (g *guardFS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	if g.merges != nil {
		g.merges.worked()
	}
	return g.FS.GetDiskUsage(path)
}

func (g *guardFS) Unwrap() vfs.FS { return g.FS }

func (g *guardFS) wrap(f vfs.File, path string) vfs.File {
	w := &guardFile{File: f, g: g, path: path}
	if strings.HasSuffix(path, ".log") {
		w.syncs = g.syncs
	}
	// Only the operating system's files have a descriptor.
	if fd := f.Fd(); fd != vfs.InvalidFd {
		_ = restrict(fd)
	}
	return w
}

// created takes note of a file's number. They rise.
func (g *guardFS) created(number uint64) {
	for {
		old := g.newest.Load()
		if number <= old || g.newest.CompareAndSwap(old, number) {
			return
		}
	}
}

// fileNumber is the number in the name of a file of the engine's; 0 if it has none.
func fileNumber(base string) uint64 {
	n, _ := strconv.ParseUint(strings.TrimRight(base, ".abcdefghijklmnopqrstuvwxyz"), 10, 64)
	return n
}

func (g *guardFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	g.created(fileNumber(g.PathBase(name)))
	if g.failed.Load() {
		return &lostFile{name: name}, nil
	}
	op := g.watch.begin("create", name)
	f, err := g.FS.Create(name, c)
	g.watch.end(op)
	if err != nil {
		g.fault("create", name, err)
		return &lostFile{name: name}, nil
	}
	return g.wrap(f, name), nil
}

// errStopped is what reading a file gives after the failure. Files may end
// early then, and Pebble must not take that for damage: it panics, in
// goroutines of its own, over a value file that is cut short.
var errStopped = errors.New("the store has stopped")

func (g *guardFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if g.failed.Load() {
		// Compactions try again at once, for ever, until the store is closed.
		time.Sleep(10 * time.Millisecond)
		return nil, errStopped
	}
	return g.openChecked(name, opts)
}

func (g *guardFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if g.failed.Load() {
		return &lostFile{name: name}, nil
	}
	f, err := g.FS.OpenReadWrite(name, c, opts...)
	if err != nil {
		g.fault("open", name, err)
		return &lostFile{name: name}, nil
	}
	return g.wrap(f, name), nil
}

func (g *guardFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if g.failed.Load() {
		return &lostFile{name: newname}, nil
	}
	op := g.watch.begin("reuse", newname)
	f, err := g.FS.ReuseForWrite(oldname, newname, c)
	g.watch.end(op)
	if err != nil {
		g.fault("reuse", newname, err)
		return &lostFile{name: newname}, nil
	}
	return g.wrap(f, newname), nil
}

func (g *guardFS) Link(oldname, newname string) error {
	return g.change("link", newname, func() error { return g.FS.Link(oldname, newname) })
}

func (g *guardFS) Rename(oldname, newname string) error {
	return g.change("rename", newname, func() error { return g.FS.Rename(oldname, newname) })
}

func (g *guardFS) MkdirAll(dir string, perm os.FileMode) error {
	return g.change("mkdir", dir, func() error { return g.FS.MkdirAll(dir, perm&0o700) })
}

func (g *guardFS) change(op, path string, do func() error) error {
	if g.failed.Load() {
		return nil
	}
	id := g.watch.begin(op, path)
	err := do()
	g.watch.end(id)
	if err != nil {
		g.fault(op, path, err)
	}
	return nil
}

// A file that is not removed takes room and does no harm, so failing to remove
// one is no reason to stop.
func (g *guardFS) Remove(name string) error {
	if g.failed.Load() {
		return nil
	}
	return g.FS.Remove(name)
}

func (g *guardFS) RemoveAll(name string) error {
	if g.failed.Load() {
		return nil
	}
	return g.FS.RemoveAll(name)
}

func (g *guardFS) Lock(name string) (io.Closer, error) {
	l, err := g.FS.Lock(name)
	if err == nil && vfs.Root(g.FS) == vfs.Default {
		// By path: to open and close the file would give up the lock.
		_ = os.Chmod(name, 0o600)
	}
	return l, err
}

func (g *guardFS) OpenDir(name string) (vfs.File, error) {
	f, err := g.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &guardFile{File: f, g: g, path: name}, nil
}

// guardFile is a file that is written through guardFS.
type guardFile struct {
	vfs.File
	g     *guardFS
	path  string
	syncs *syncStats // of log files
}

func (f *guardFile) Write(p []byte) (int, error) {
	if f.g.failed.Load() {
		return len(p), nil
	}
	op := f.g.watch.begin("write", f.path)
	_, err := f.File.Write(p)
	f.g.watch.end(op)
	if err != nil {
		f.g.fault("write", f.path, err)
	}
	return len(p), nil
}

func (f *guardFile) WriteAt(p []byte, off int64) (int, error) {
	if f.g.failed.Load() {
		return len(p), nil
	}
	op := f.g.watch.begin("write", f.path)
	_, err := f.File.WriteAt(p, off)
	f.g.watch.end(op)
	if err != nil {
		f.g.fault("write", f.path, err)
	}
	return len(p), nil
}

func (f *guardFile) Sync() error { return f.sync(f.File.Sync) }

func (f *guardFile) SyncData() error { return f.sync(f.File.SyncData) }

func (f *guardFile) sync(do func() error) error {
	if f.g.failed.Load() {
		return nil
	}
	start := time.Now()
	op := f.g.watch.begin("fsync", f.path)
	err := do()
	f.g.watch.end(op)
	if err != nil {
		f.g.fault("fsync", f.path, err)
		return nil
	}
	if f.syncs != nil {
		f.syncs.observe(time.Since(start))
	}
	return nil
}

func (f *guardFile) SyncTo(length int64) (bool, error) {
	if f.g.failed.Load() {
		return true, nil
	}
	op := f.g.watch.begin("fsync", f.path)
	full, err := f.File.SyncTo(length)
	f.g.watch.end(op)
	if err != nil {
		f.g.fault("fsync", f.path, err)
		return true, nil
	}
	return full, nil
}

// Reserving blocks is a matter of speed; without them the write behind it tells.
func (f *guardFile) Preallocate(off, length int64) error {
	if f.g.failed.Load() {
		return nil
	}
	return f.File.Preallocate(off, length)
}

func (f *guardFile) Close() error {
	if err := f.File.Close(); err != nil && !f.g.failed.Load() {
		f.g.fault("close", f.path, err)
	}
	return nil
}

// lostFile is what a file made after the failure is: nothing.
type lostFile struct {
	name string
	size int64
}

func (f *lostFile) Close() error                           { return nil }
func (f *lostFile) Read([]byte) (int, error)               { return 0, io.EOF }
func (f *lostFile) ReadAt([]byte, int64) (int, error)      { return 0, io.EOF }
func (f *lostFile) Write(p []byte) (int, error)            { f.size += int64(len(p)); return len(p), nil }
func (f *lostFile) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (f *lostFile) Preallocate(int64, int64) error         { return nil }
func (f *lostFile) Stat() (vfs.FileInfo, error)            { return lostInfo{f}, nil }
func (f *lostFile) Sync() error                            { return nil }
func (f *lostFile) SyncTo(int64) (bool, error)             { return true, nil }
func (f *lostFile) SyncData() error                        { return nil }
func (f *lostFile) Prefetch(int64, int64) error            { return nil }
func (f *lostFile) Fd() uintptr                            { return vfs.InvalidFd }

type lostInfo struct{ f *lostFile }

func (i lostInfo) Name() string           { return i.f.name }
func (i lostInfo) Size() int64            { return i.f.size }
func (i lostInfo) Mode() os.FileMode      { return 0o600 }
func (i lostInfo) ModTime() time.Time     { return time.Time{} }
func (i lostInfo) IsDir() bool            { return false }
func (i lostInfo) Sys() any               { return nil }
func (i lostInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
