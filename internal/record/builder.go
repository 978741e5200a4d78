package record

import "encoding/binary"

// Builder makes a batch of records that stand in other batches: their bytes are
// copied as they are, and the whole is sealed once. The zero value is ready.
type Builder struct {
	b     []byte
	at    int // where the batch begins in b
	count int
	flags byte
}

// Reset begins a batch behind dst.
func (w *Builder) Reset(dst []byte, m Meta) {
	w.at, w.count, w.flags = len(dst), 0, m.flags()
	w.b = appendHeader(dst, m, 0)
}

// Add copies a record.
func (w *Builder) Add(r Raw) {
	w.b = binary.AppendUvarint(w.b, uint64(len(r.b)))
	w.b = append(w.b, r.b...)
	if r.HasID() {
		w.flags |= flagIDs
	}
	w.count++
}

// Fits tells whether a batch may have one more record, of this size (see
// Raw.Size).
func (w *Builder) Fits(size int) bool {
	return w.count < MaxBatchRecords && len(w.b)-w.at+uvarintLen(uint64(size))+size <= MaxBatchBytes
}

// Len returns how many records were added.
func (w *Builder) Len() int { return w.count }

// Seal ends the batch, which must have a record, and returns dst with it.
func (w *Builder) Seal() []byte {
	finish(w.b[w.at:], w.flags, w.count)
	return w.b
}
