package record

import (
	"encoding/binary"
	"fmt"
)

// Raw is one record of a batch, decoded as far as one asks. It aliases the
// batch.
type Raw struct{ b []byte }

// KeyHash returns the hash of the key (of the id, for a keyless record that has
// one).
func (r Raw) KeyHash() uint64 { return binary.LittleEndian.Uint64(r.b[1:]) }

// Size returns the bytes that the record takes in the batch, without its
// length.
func (r Raw) Size() int { return len(r.b) }

// HasKey tells an empty key from none.
func (r Raw) HasKey() bool { return r.b[0]&recKey != 0 }

// HasID tells whether the record has a message id.
func (r Raw) HasID() bool { return r.b[0]&recID != 0 }

// Key returns the key, nil when there is none.
func (r Raw) Key() []byte {
	if !r.HasKey() {
		return nil
	}
	key, _, _ := field(r.b, 9)
	return key
}

// ID returns the message id, nil when there is none.
func (r Raw) ID() []byte {
	if !r.HasID() {
		return nil
	}
	at := 9
	if r.HasKey() {
		_, at, _ = field(r.b, at)
	}
	id, _, _ := field(r.b, at)
	return id
}

// Body returns the body.
func (r Raw) Body() []byte {
	at := r.headersAt()
	n, k := binary.Uvarint(r.b[at:])
	at += k
	for ; n > 0; n-- {
		_, at, _ = field(r.b, at)
		_, at, _ = field(r.b, at)
	}
	return r.b[at:]
}

// Record decodes everything. Key, header values and body alias the batch; only
// a header list, names and the id are allocated, where there are any.
func (r Raw) Record() Record {
	rec := Record{KeyHash: r.KeyHash(), HasKey: r.HasKey()}
	at := 9
	if rec.HasKey {
		rec.Key, at, _ = field(r.b, at)
	}
	if r.HasID() {
		var id []byte
		id, at, _ = field(r.b, at)
		rec.ID = string(id)
	}
	n, k := binary.Uvarint(r.b[at:])
	at += k
	if n > 0 {
		rec.Headers = make([]Header, n)
		for i := range rec.Headers {
			var name []byte
			name, at, _ = field(r.b, at)
			rec.Headers[i].Name = string(name)
			rec.Headers[i].Value, at, _ = field(r.b, at)
		}
	}
	rec.Body = r.b[at:]
	return rec
}

func (r Raw) headersAt() int {
	at := 9
	if r.HasKey() {
		_, at, _ = field(r.b, at)
	}
	if r.HasID() {
		_, at, _ = field(r.b, at)
	}
	return at
}

// Fields is where the fields of a record lie. They alias the batch.
type Fields struct {
	HasKey  bool   // tells an empty key from none
	Key     []byte // nil: none
	ID      []byte // nil: none
	Headers HeaderList
	Body    []byte
}

// Bytes counts what the publisher gave: key, id, header names and values, body.
func (f *Fields) Bytes() int { return len(f.Key) + len(f.ID) + f.Headers.bytes + len(f.Body) }

// HeaderList is the headers of a record, not yet decoded.
type HeaderList struct {
	b     []byte
	left  int
	bytes int // of names and values
}

// Len is how many headers are left.
func (h HeaderList) Len() int { return h.left }

// Next takes the next header off the list; false behind the last one.
func (h *HeaderList) Next() (name, value []byte, ok bool) {
	if h.left == 0 {
		return nil, nil, false
	}
	at := 0
	name, at, _ = field(h.b, at)
	value, at, _ = field(h.b, at)
	h.b, h.left = h.b[at:], h.left-1
	return name, value, true
}

// Fields finds all fields in one go.
func (r Raw) Fields() Fields {
	var f Fields
	_ = r.read(&f) // the batch was parsed
	return f
}

// read proves what the accessors rely on and finds the fields.
func (r Raw) read(f *Fields) *Error {
	*f = Fields{}
	if r.b[0]&^(recKey|recID) != 0 {
		return &Error{Why: "unknown flags"}
	}
	at := 9
	var ok bool
	if r.HasKey() {
		f.HasKey = true
		if f.Key, at, ok = field(r.b, at); !ok {
			return &Error{Why: "its key does not fit the record"}
		}
		if len(f.Key) > MaxKey {
			return tooLarge("the key", len(f.Key), MaxKey, "bytes")
		}
	}
	if r.HasID() {
		if f.ID, at, ok = field(r.b, at); !ok {
			return &Error{Why: "its message id does not fit the record"}
		}
		if len(f.ID) == 0 {
			return &Error{Why: "an empty message id: leave it out instead"}
		}
		if len(f.ID) > MaxID {
			return tooLarge("the message id", len(f.ID), MaxID, "bytes")
		}
	}
	n, k := binary.Uvarint(r.b[at:])
	if k <= 0 || k != uvarintLen(n) {
		return &Error{Why: "its header count does not fit the record"}
	}
	if n > MaxHeaders {
		return &Error{Why: fmt.Sprintf("the header list has %d headers; at most %d are stored", n, MaxHeaders)}
	}
	at += k
	first, bytes := at, 0
	for range 2 * n {
		var x []byte
		if x, at, ok = field(r.b, at); !ok {
			return &Error{Why: "a header does not fit the record"}
		}
		bytes += len(x)
	}
	if bytes > MaxHeaderBytes {
		return tooLarge("the header list", bytes, MaxHeaderBytes, "bytes")
	}
	f.Headers = HeaderList{b: r.b[first:at], left: int(n), bytes: bytes}
	f.Body = r.b[at:]
	if body := len(f.Body); body > MaxBody {
		return tooLarge("the body", body, MaxBody, "bytes")
	}
	return nil
}

// field returns the bytes behind the length at b[at], and where the next field
// begins. Lengths have one spelling only (the shortest), so that equal records
// are equal bytes.
func field(b []byte, at int) (f []byte, next int, ok bool) {
	if at >= len(b) {
		return nil, at, false
	}
	n, k := uint64(b[at]), 1
	if n >= 0x80 {
		if n, k = binary.Uvarint(b[at:]); k <= 0 || k != uvarintLen(n) {
			return nil, at, false
		}
	}
	at += k
	if n > uint64(len(b)-at) {
		return nil, at, false
	}
	end := at + int(n)
	return b[at:end:end], end, true
}
