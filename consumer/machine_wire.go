package consumer

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/strandmq/strandmq/internal/format"
)

// reader takes a command or row apart. It never fails on the way: after the
// first fault everything reads as zero, and finish says what it was.
type reader struct {
	b     []byte
	bad   string
	newer error // *format.ErrNewer: then bad says so too
}

// version reads the version that a command or row begins with.
func (r *reader) version(what string, known byte) { r.versions(what, known, known) }

// versions is version where several are read, from the oldest on; it gives which.
func (r *reader) versions(what string, oldest, known byte) byte {
	v := r.byte()
	if r.newer = format.Check(what, uint64(v), uint64(known)); r.newer != nil {
		r.fail(r.newer.Error())
	} else if v < oldest {
		r.fail("unknown version")
	}
	return v
}

// ofCommand is the error of a command that reads as said, ofRow that of a row.
func (r *reader) ofCommand(why string) error { return &ErrCommand{Why: why, Err: r.newer} }

func (r *reader) ofRow(key []byte, why string) error {
	return &ErrRow{Key: bytes.Clone(key), Why: why, Err: r.newer}
}

func (r *reader) fail(why string) {
	if r.bad == "" {
		r.bad = why
	}
	r.b = nil
}

// finish returns the first fault, or that something is left over.
func (r *reader) finish() string {
	if r.bad == "" && len(r.b) > 0 {
		r.bad = "bytes left over"
	}
	return r.bad
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail("cut off")
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) uvarint() uint64 {
	// Nearly all numbers are small: one byte is read without a call.
	if len(r.b) > 0 && r.b[0] < 0x80 {
		c := r.b[0]
		r.b = r.b[1:]
		return uint64(c)
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("bad number")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail("bad number")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) uint32() uint32 {
	v := r.uvarint()
	if v > math.MaxUint32 {
		r.fail("number too large")
		return 0
	}
	return uint32(v)
}

// count reads how many items follow, each of at least size bytes. A count that
// cannot be true is refused before anything is made of it.
func (r *reader) count(size int) int {
	v := r.uvarint()
	if v > uint64(len(r.b)/size) {
		r.fail("count beyond the end")
		return 0
	}
	return int(v)
}

func (r *reader) fixed64() uint64 {
	if len(r.b) < 8 {
		r.fail("cut off")
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *reader) fixed32() uint32 {
	if len(r.b) < 4 {
		r.fail("cut off")
		return 0
	}
	v := binary.LittleEndian.Uint32(r.b)
	r.b = r.b[4:]
	return v
}

// bytes reads a counted string; it aliases what is read.
func (r *reader) bytes() []byte {
	n := r.count(1)
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) string() string { return string(r.bytes()) }

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}
