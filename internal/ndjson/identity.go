package ndjson

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
)

// Identity derives a message id from a line's content and place, so that
// publishing a file again, or the rest of it after a failure, adds nothing
// twice. The id is a hash of
//
//	the label │ the first line of the input │ the line's number │ the line
//
// The first line tells one file from another; the number tells equal lines of
// one file apart; the line itself makes a mended line another message, while
// the lines around it keep their ids. A label makes the same lines others on
// purpose.
type Identity struct {
	seed [sha256.Size]byte
	set  bool
	name string
}

// NewIdentity derives ids under a label, which may be empty.
func NewIdentity(label string) *Identity { return &Identity{name: label} }

// ID returns the line's id: 26 letters and digits. Lines must come in order,
// from the first of the input.
func (d *Identity) ID(l Line) string {
	if !d.set {
		h := sha256.New()
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(d.name)))
		h.Write(n[:])
		h.Write([]byte(d.name))
		h.Write(l.Text)
		h.Sum(d.seed[:0])
		d.set = true
	}
	h := sha256.New()
	h.Write(d.seed[:])
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(l.Number))
	h.Write(n[:])
	h.Write(l.Text)
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil)[:16])
}
