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

// check proves what the accessors rely on.
func (r Raw) check() *Error {
	if r.b[0]&^(recKey|recID) != 0 {
		return &Error{Why: "unknown flags"}
	}
	at := 9
	var ok bool
	var f []byte
	if r.HasKey() {
		if f, at, ok = field(r.b, at); !ok {
			return &Error{Why: "its key does not fit the record"}
		}
		if len(f) > MaxKey {
			return tooLarge("the key", len(f), MaxKey, "bytes")
		}
	}
	if r.HasID() {
		if f, at, ok = field(r.b, at); !ok {
			return &Error{Why: "its message id does not fit the record"}
		}
		if len(f) == 0 {
			return &Error{Why: "an empty message id: leave it out instead"}
		}
		if len(f) > MaxID {
			return tooLarge("the message id", len(f), MaxID, "bytes")
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
	bytes := 0
	for ; n > 0; n-- {
		for range 2 {
			if f, at, ok = field(r.b, at); !ok {
				return &Error{Why: "a header does not fit the record"}
			}
			bytes += len(f)
		}
	}
	if bytes > MaxHeaderBytes {
		return tooLarge("the header list", bytes, MaxHeaderBytes, "bytes")
	}
	if body := len(r.b) - at; body > MaxBody {
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
