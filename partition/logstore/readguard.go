package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Tables and value files are checked here, below Pebble, block by block as they
// are read. Pebble checks the same sums itself; it must not get to see a block
// that fails, for three reasons:
//
//   - it then tries each of the first 320,000 bits of the block for the one that
//     flipped, a checksum over the whole block each time: 40 s for a block of
//     1 MiB, on whatever goroutine reads;
//   - told of damage to a value file in a compaction, it panics, in a goroutine
//     that is not ours: the end of the process;
//   - in a value file that was exchanged for another one, every sum is right.
//
// What Pebble gets instead is an error that it knows nothing about and passes
// on. Whoever reads turns it into *ErrDamaged; a compaction that meets it
// changes nothing and is tried again later (see compactions).

// rotError tells of a block that cannot be read as it was written.
type rotError struct {
	file string // base name
	at   int64
	len  int
	why  error
}

func (e *rotError) Error() string {
	if e.len == 0 {
		return fmt.Sprintf("%s: %v", e.file, e.why)
	}
	return fmt.Sprintf("%s, %d bytes at %d: %v", e.file, e.len, e.at, e.why)
}

func (e *rotError) Unwrap() error { return e.why }

// These stand for errors of the file system that Pebble would know and treat in
// its own way.
var (
	errFileGone  = errors.New("the file is gone")
	errShortRead = errors.New("the file ends early")
	errWrongSize = errors.New("the file has another size")
)

// isTable and isValues tell the files that are made of blocks.
func isTable(name string) bool  { return strings.HasSuffix(name, ".sst") }
func isValues(name string) bool { return strings.HasSuffix(name, ".blob") }

// openChecked opens a file for reading; tables and value files are checked.
func (g *guardFS) openChecked(name string, opts []vfs.OpenOption) (vfs.File, error) {
	base := g.PathBase(name)
	if !isTable(base) && !isValues(base) {
		return g.FS.Open(name, opts...)
	}
	if l, ok := g.lost[base]; ok {
		g.rotten()
		return nil, &rotError{file: base, why: l.why}
	}
	f, err := g.FS.Open(name, opts...)
	if errors.Is(err, fs.ErrNotExist) {
		g.rotten()
		return nil, &rotError{file: base, why: errFileGone}
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	if isValues(base) && info.Size() < valueFooterLen {
		_ = f.Close()
		g.rotten()
		return nil, &rotError{file: base, why: errShortRead}
	}
	return &checkedFile{File: f, g: g, name: base, size: info.Size()}, nil
}

// checkedFile is a table or value file that is read.
type checkedFile struct {
	vfs.File
	g    *guardFS // nil: whoever reads is not Pebble
	name string
	size int64
}

// A block's trailer: its kind u8, and a checksum u32 of block and kind.
const blockTrailerLen = 5

// ReadAt reads a block with its trailer, or the end of the file.
func (f *checkedFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	if n == len(p) && errors.Is(err, io.EOF) {
		err = nil
	}
	if err == nil {
		err = f.check(p, off)
	} else if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errShortRead
	}
	if err == nil {
		return n, nil
	}
	rot := &rotError{file: f.name, at: off, len: len(p), why: err}
	if f.g == nil {
		return n, rot
	}
	if f.g.failed.Load() {
		return n, errStopped // files may end early now, and nothing is to be made of it
	}
	if isTable(f.name) {
		if instead := f.g.dead(f.name, off, len(p)); instead != nil {
			return copy(p, instead), nil
		}
	}
	f.g.rotten()
	return n, rot
}

func (f *checkedFile) check(p []byte, off int64) error {
	if off+int64(len(p)) < f.size {
		if len(p) <= blockTrailerLen {
			return nil
		}
		return sameSum(binary.LittleEndian.Uint32(p[len(p)-4:]), maskedCRC(p[:len(p)-4]))
	}
	if isValues(f.name) && len(p) == valueFooterLen {
		return checkValueEnd(p, f.name)
	}
	return nil // a table's end: Pebble checks it, and says so
}

func sameSum(want, got uint32) error {
	if want != got {
		return fmt.Errorf("checksum %08x, computed %08x", want, got)
	}
	return nil
}

// The end of a value file: crc u32, index offset u64, index length u64,
// checksum type u8, format u8, file number u64, magic 8 bytes.
const valueFooterLen = 38

// checkValueEnd checks the end of a value file, and that it is the end of the
// file of this name: two that were exchanged are each without a fault.
func checkValueEnd(b []byte, name string) error {
	if err := sameSum(binary.LittleEndian.Uint32(b), maskedCRC(b[4:])); err != nil {
		return err
	}
	num, err := strconv.ParseUint(strings.TrimSuffix(name, ".blob"), 10, 64)
	if err != nil {
		return err
	}
	if made := binary.LittleEndian.Uint64(b[22:]); made != num {
		return fmt.Errorf("it is what was written as file %06d", made)
	}
	return nil
}

// missingFile is a table or value file that the store goes on without: what was
// in it cannot be read, and everything else can. To Pebble it is there, with the size
// that it had, until it tries to read it.
type missingFile struct {
	size uint64
	why  error
}

func (g *guardFS) List(dir string) ([]string, error) {
	ls, err := g.FS.List(dir)
	if err != nil || len(g.lost) == 0 || g.PathBase(dir) != pebbleName {
		return ls, err
	}
	there := make(map[string]bool, len(ls))
	for _, name := range ls {
		there[name] = true
	}
	for name := range g.lost {
		if !there[name] {
			ls = append(ls, name)
		}
	}
	return ls, nil
}

func (g *guardFS) Stat(name string) (vfs.FileInfo, error) {
	if l, ok := g.lost[g.PathBase(name)]; ok {
		return lostInfo{&lostFile{name: g.PathBase(name), size: int64(l.size)}}, nil
	}
	return g.FS.Stat(name)
}
