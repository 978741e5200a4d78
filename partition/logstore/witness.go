package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The witness is a small file beside the store that remembers how far the
// store was synced. A store that opens behind its witness has forgotten what
// it acknowledged, whatever its own files say.
//
// It has two slots, 4096 bytes apart so that no sector or page holds both. An
// update goes to the older one, so one good slot is always there. A slot,
// little endian, 512 bytes:
//
//	+0    magic           8 bytes "SMQWITNS"
//	+8    version         u32
//	+12   state           u8    1 being made, 2 open or not closed, 3 closed
//	+13   -               3 bytes, zero
//	+16   sequence        u64   of the updates; the higher one counts
//	+24   store id        16 bytes
//	+40   boot            u64   times the store was opened
//	+48   counter         u64   highest batch known to be synced
//	+56   manifest        u64   number and size of the MANIFEST when closed:
//	+64   manifest size   u64   it must be the very same at the next open
//	+72   registry        u32   checksum of the PARTITIONS file when closed; 0: none
//	+76   -               zero
//	+508  crc             u32   CRC32C over all before
const (
	witnessName    = "WITNESS"
	witnessMagic   = "SMQWITNS"
	slotLen        = 512
	slotStride     = 4096
	witnessFileLen = slotStride + slotLen
)

// witnessState is how the store was left.
type witnessState byte

const (
	stateMaking witnessState = 1
	stateOpen   witnessState = 2
	stateClosed witnessState = 3
)

// testimony is the content of a slot.
type testimony struct {
	version      uint32
	state        witnessState
	sequence     uint64
	store        [16]byte
	boot         uint64
	counter      uint64
	manifest     uint64
	manifestSize uint64
	registry     uint32
}

func encodeSlot(t testimony) []byte {
	b := make([]byte, slotLen)
	copy(b, witnessMagic)
	binary.LittleEndian.PutUint32(b[8:], t.version)
	b[12] = byte(t.state)
	binary.LittleEndian.PutUint64(b[16:], t.sequence)
	copy(b[24:], t.store[:])
	binary.LittleEndian.PutUint64(b[40:], t.boot)
	binary.LittleEndian.PutUint64(b[48:], t.counter)
	binary.LittleEndian.PutUint64(b[56:], t.manifest)
	binary.LittleEndian.PutUint64(b[64:], t.manifestSize)
	binary.LittleEndian.PutUint32(b[72:], t.registry)
	binary.LittleEndian.PutUint32(b[slotLen-4:], crc32.Checksum(b[:slotLen-4], castagnoli))
	return b
}

func decodeSlot(b []byte) (testimony, error) {
	if len(b) < slotLen {
		return testimony{}, fmt.Errorf("%d bytes, want %d", len(b), slotLen)
	}
	b = b[:slotLen]
	if string(b[:8]) != witnessMagic {
		return testimony{}, errors.New("no magic")
	}
	want := binary.LittleEndian.Uint32(b[slotLen-4:])
	if got := crc32.Checksum(b[:slotLen-4], castagnoli); got != want {
		return testimony{}, fmt.Errorf("checksum %08x, computed %08x", want, got)
	}
	t := testimony{
		version:      binary.LittleEndian.Uint32(b[8:]),
		state:        witnessState(b[12]),
		sequence:     binary.LittleEndian.Uint64(b[16:]),
		boot:         binary.LittleEndian.Uint64(b[40:]),
		counter:      binary.LittleEndian.Uint64(b[48:]),
		manifest:     binary.LittleEndian.Uint64(b[56:]),
		manifestSize: binary.LittleEndian.Uint64(b[64:]),
		registry:     binary.LittleEndian.Uint32(b[72:]),
	}
	copy(t.store[:], b[24:])
	if t.version <= FormatVersion && (t.state < stateMaking || t.state > stateClosed) {
		return testimony{}, fmt.Errorf("state %d", t.state)
	}
	return t, nil
}

// decodeWitness reads a whole witness. One bad slot is what a power cut during
// an update leaves; it is told in torn. Two are an error.
func decodeWitness(b []byte) (t testimony, torn error, err error) {
	slot := func(at int) (testimony, error) {
		if len(b) < at {
			return testimony{}, errors.New("missing")
		}
		return decodeSlot(b[at:])
	}
	one, err1 := slot(0)
	two, err2 := slot(slotStride)
	switch {
	case err1 != nil && err2 != nil:
		return testimony{}, nil, fmt.Errorf("both slots are bad: %w, %w", err1, err2)
	case err1 != nil:
		return two, err1, nil
	case err2 != nil:
		return one, err2, nil
	case one.store != two.store:
		return testimony{}, nil, errors.New("the slots are of two stores")
	case two.sequence > one.sequence:
		return two, nil, nil
	}
	return one, nil, nil
}

// witness is the open file.
type witness struct {
	mu   sync.Mutex
	f    vfs.File // nil when read-only
	last testimony
}

// readWitness reads the file; nil if there is none.
func readWitness(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, 2*slotStride))
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	if b == nil {
		b = []byte{}
	}
	return b, f.Close()
}

// openWitness opens the file for updates. The first one must be enter.
func openWitness(fsys vfs.FS, path string, last testimony) (*witness, error) {
	f, err := fsys.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	return &witness{f: f, last: last}, nil
}

// enter writes a change of state into both slots, one after the other, so that
// losing either slot later does not bring the former state back.
func (w *witness) enter(t testimony) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.version = FormatVersion
	for range 2 {
		t.sequence = w.last.sequence + 1
		if err := w.write(t); err != nil {
			return err
		}
	}
	return nil
}

// advance makes the witness know of counter n.
func (w *witness) advance(n uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil || n <= w.last.counter {
		return nil
	}
	t := w.last
	t.counter = n
	t.sequence++
	return w.write(t)
}

func (w *witness) write(t testimony) error {
	if _, err := w.f.WriteAt(encodeSlot(t), int64(t.sequence%2)*slotStride); err != nil {
		return err
	}
	if err := w.f.SyncData(); err != nil {
		return err
	}
	w.last = t
	return nil
}

func (w *witness) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return nil
	}
	err := w.f.Close()
	w.f = nil
	return err
}
