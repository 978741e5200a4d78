package partition

import (
	"bytes"

	"github.com/strandmq/strandmq/partition/logstore"
)

// appRows is the second tier: an App's table. Rows on disk are those of the
// checkpoint; what was written since lies over them in memory, in order, so
// that a scan merges the two.
type appRows struct {
	id    PartitionID
	store *logstore.Store
	over  overlay
}

// Get implements Rows.
func (r *appRows) Get(key []byte) ([]byte, error) {
	if n := r.over.find(key); n != nil {
		return n.value, nil
	}
	return r.store.Get(logstore.AppRows, uint64(r.id), key)
}

// Put implements Rows.
func (r *appRows) Put(key, value []byte) {
	r.over.set(key, append(make([]byte, 0, len(value)), value...))
}

// Delete implements Rows.
func (r *appRows) Delete(key []byte) { r.over.set(key, nil) }

// Scan implements Rows.
func (r *appRows) Scan(prefix, from []byte, fn func(key, value []byte) bool) error {
	start := prefix
	if bytes.Compare(from, start) > 0 {
		start = from
	}
	over := r.over.seek(start)
	within := func(n *overlayNode) bool { return n != nil && bytes.HasPrefix(n.key, prefix) }
	more := true
	give := func(key, value []byte) { more = fn(key, value) }
	err := r.store.Iterate(logstore.AppRows, uint64(r.id), start, prefixEnd(prefix), func(k, v []byte) bool {
		for within(over) && bytes.Compare(over.key, k) < 0 {
			if over.value != nil {
				if give(over.key, over.value); !more {
					return false
				}
			}
			over = over.next[0]
		}
		if within(over) && bytes.Equal(over.key, k) {
			if over.value != nil {
				give(over.key, over.value)
			}
			over = over.next[0]
			return more
		}
		give(k, v)
		return more
	})
	if err != nil {
		return err
	}
	for ; more && within(over); over = over.next[0] {
		if over.value != nil {
			give(over.key, over.value)
		}
	}
	return nil
}

// flush puts what was written since the last checkpoint into a store batch.
// The overlay stays until the batch is committed.
func (r *appRows) flush(wb *logstore.Batch) error {
	for n := r.over.seek(nil); n != nil; n = n.next[0] {
		var err error
		if n.value == nil {
			err = wb.Delete(logstore.AppRows, uint64(r.id), n.key)
		} else {
			err = wb.Set(logstore.AppRows, uint64(r.id), n.key, n.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prefixEnd returns the first key behind all those with a prefix; nil: there is
// none.
func prefixEnd(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
