package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/strandmq/strandmq/internal/format"
)

// Error tells why bytes are not a batch that may be stored.
type Error struct {
	Record int    // which record, from 1; 0: the batch as a whole
	Why    string // what is wrong, and the limit where there is one
	Err    error  // *format.ErrNewer for a batch of a newer format
}

func (e *Error) Error() string {
	if e.Record > 0 {
		return fmt.Sprintf("record batch: record %d: %s", e.Record-1, e.Why) // told from 0, as everywhere
	}
	return "record batch: " + e.Why
}

func (e *Error) Unwrap() error { return e.Err }

func tooLarge(what string, n, limit int, unit string) *Error {
	return &Error{Why: fmt.Sprintf("%s has %d %s; at most %d are stored", what, n, unit, limit)}
}

// Batch is a checked view of an encoded batch. It aliases the bytes that it was
// parsed from; they must not change while it is in use.
type Batch struct {
	b     []byte
	first int // where the records begin
	count int
}

// Parse checks the batch at the start of b and returns a view of it and what
// follows it. The error is always an *Error.
func Parse(b []byte) (Batch, []byte, error) { return ParseEach(b, nil) }

// ParseEach is Parse that shows every record to fn on the way, in order, so
// that who has more to check need not walk the batch again. The first error of
// fn ends it and is returned as it is. The fields are valid until fn returns.
func ParseEach(b []byte, fn func(i int, r Raw, f *Fields) error) (Batch, []byte, error) {
	bt, rest, err := View(b)
	if err != nil {
		return Batch{}, b, err
	}
	want := binary.LittleEndian.Uint32(bt.b[offCRC:])
	if got := crc32.Checksum(bt.b[offLength:], castagnoli); got != want {
		return Batch{}, b, &Error{Why: fmt.Sprintf("checksum %08x where the bytes give %08x: they were changed on the way", want, got)}
	}
	if err := bt.check(fn); err != nil {
		return Batch{}, b, err
	}
	return bt, rest, nil
}

// View is Parse without the work per byte: for bytes that Parse has accepted
// before and that something else has kept whole since. Only the header is
// looked at.
func View(b []byte) (Batch, []byte, error) {
	if len(b) < fixedSize {
		return Batch{}, b, &Error{Why: fmt.Sprintf("%d bytes are too few: a batch has at least %d", len(b), fixedSize)}
	}
	if m := binary.LittleEndian.Uint16(b); m != Magic {
		return Batch{}, b, &Error{Why: fmt.Sprintf("begins with %#04x, not with %#04x: not a record batch", m, Magic)}
	}
	if v := b[2]; v != Version {
		return Batch{}, b, &Error{
			Why: fmt.Sprintf("of format %d; this version reads %d", v, Version),
			Err: format.Check("record batch", uint64(v), uint64(Version)),
		}
	}
	switch f := b[offFlags]; {
	case f&^(flagIDs|flagInOrder) != 0:
		return Batch{}, b, &Error{Why: fmt.Sprintf("unknown flags %#02x", f)}
	case f&flagInOrder != 0 && b[offProducer] != 0:
		return Batch{}, b, &Error{Why: "has a producer and is flagged as in order: a producer's sequence has an order of its own"}
	}
	length := uint64(binary.LittleEndian.Uint32(b[offLength:]))
	total := length + offLength + 4
	if total > MaxBatchBytes {
		return Batch{}, b, &Error{Why: fmt.Sprintf("%d bytes; a batch has at most %d: send smaller batches", total, MaxBatchBytes)}
	}
	if total > uint64(len(b)) {
		return Batch{}, b, &Error{Why: fmt.Sprintf("cut off: %d of %d bytes", len(b), total)}
	}
	count := binary.LittleEndian.Uint32(b[offCount:])
	if count == 0 || count > MaxBatchRecords {
		return Batch{}, b, &Error{Why: fmt.Sprintf("%d records; a batch has 1 to %d", count, MaxBatchRecords)}
	}
	first := fixedSize + int(b[offProducer])
	if uint64(first) > total {
		return Batch{}, b, &Error{Why: "the header is longer than the batch"}
	}
	return Batch{b: b[:total:total], first: first, count: int(count)}, b[total:], nil
}

// check walks every record once: framing, limits and the flags that promise
// something about them.
func (bt Batch) check(fn func(i int, r Raw, f *Fields) error) error {
	at, ids := bt.first, false
	var fields Fields
	for i := 1; i <= bt.count; i++ {
		body, next, ok := frame(bt.b, at)
		if !ok {
			return &Error{Record: i, Why: "its length does not fit the batch"}
		}
		r := Raw{b: body}
		if err := r.read(&fields); err != nil {
			err.Record = i
			return err
		}
		if fn != nil {
			if err := fn(i-1, r, &fields); err != nil {
				return err
			}
		}
		ids = ids || body[0]&recID != 0
		at = next
	}
	if at != len(bt.b) {
		return &Error{Why: fmt.Sprintf("%d bytes behind the last record", len(bt.b)-at)}
	}
	if ids != bt.HasIDs() {
		return &Error{Why: "the id flag does not fit the records"}
	}
	return nil
}

// frame returns the record whose length stands at b[at], and where the next
// begins.
func frame(b []byte, at int) (rec []byte, next int, ok bool) {
	if at >= len(b) {
		return nil, 0, false
	}
	// A record of under 128 bytes has a length of one byte: the common case.
	n, k := uint64(b[at]), 1
	if n >= 0x80 {
		if n, k = binary.Uvarint(b[at:]); k <= 0 || k != uvarintLen(n) {
			return nil, 0, false
		}
	}
	at += k
	if n < 1+8+1 || n > uint64(len(b)-at) {
		return nil, 0, false
	}
	return b[at : at+int(n) : at+int(n)], at + int(n), true
}

// Len returns how many records the batch has.
func (bt Batch) Len() int { return bt.count }

// Bytes returns the encoded batch.
func (bt Batch) Bytes() []byte { return bt.b }

// HasIDs tells whether some record has a message id.
func (bt Batch) HasIDs() bool { return bt.b[offFlags]&flagIDs != 0 }

// InOrder tells whether nothing behind a refused record may be stored.
func (bt Batch) InOrder() bool { return bt.b[offFlags]&flagInOrder != 0 }

// PublishTime returns when the broker took the batch in, in ms.
func (bt Batch) PublishTime() int64 { return int64(binary.LittleEndian.Uint64(bt.b[offTime:])) }

// Producer returns the producer's id as it stands in the batch (empty: none),
// and the sequence of the first record.
func (bt Batch) Producer() (id []byte, firstSequence uint64) {
	n := int(bt.b[offProducer])
	return bt.b[offProducer+1 : offProducer+1+n], binary.LittleEndian.Uint64(bt.b[offProducer+1+n:])
}

// SetPublishTime stamps the batch, in place, and seals it anew. Only who owns
// the bytes may call it.
func (bt Batch) SetPublishTime(ms int64) {
	binary.LittleEndian.PutUint64(bt.b[offTime:], uint64(ms))
	seal(bt.b)
}

// Each calls fn with every record in order until it returns false.
func (bt Batch) Each(fn func(i int, r Raw) bool) {
	at := bt.first
	for i := 0; i < bt.count; i++ {
		body, next, ok := frame(bt.b, at)
		if !ok || !fn(i, Raw{b: body}) {
			return
		}
		at = next
	}
}

// Cursor walks a batch without a function call per record.
type Cursor struct {
	b    []byte
	at   int
	left int
}

// Cursor returns a cursor before the first record.
func (bt Batch) Cursor() Cursor { return Cursor{b: bt.b, at: bt.first, left: bt.count} }

// Next returns the next record, or false behind the last one.
func (c *Cursor) Next() (Raw, bool) {
	if c.left == 0 {
		return Raw{}, false
	}
	body, next, ok := frame(c.b, c.at)
	if !ok {
		c.left = 0
		return Raw{}, false
	}
	c.at = next
	c.left--
	return Raw{b: body}, true
}
