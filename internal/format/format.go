// Package format has the one error for stored data that a newer version wrote.
//
// Everything that is stored begins with, or belongs to something that begins
// with, the version of its layout. Who decodes it calls Check with the version
// that it found. A version above the known ones is no damage, and nothing is to
// be restored or repaired: the bytes are whole, and a newer program reads them.
// So it has an error of its own, which every layer passes on, and which says the
// same wherever it is met. A version below the known ones that is not supported
// any more, or that never was, is the decoder's to refuse.
package format

import "fmt"

// ErrNewer tells that a newer version wrote something. Nothing was changed.
type ErrNewer struct {
	What  string // such as: log entry
	Found uint64
	Known uint64 // the newest that this version reads
}

func (e *ErrNewer) Error() string {
	return fmt.Sprintf("%s of format %d, where this version reads up to %d: this data was written by a newer version; run that version or newer", e.What, e.Found, e.Known)
}

// Check gives an *ErrNewer for a version above the known ones.
func Check(what string, found, known uint64) error {
	if found > known {
		return &ErrNewer{What: what, Found: found, Known: known}
	}
	return nil
}
