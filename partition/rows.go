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

// overlay is an ordered map of keys in memory: a skip list (Pugh 1990). The
// heights come from a fixed sequence, so equal calls build equal lists.
type overlay struct {
	head  [overlayHeight]*overlayNode
	state uint64
	bytes int64
}

const overlayHeight = 14

type overlayNode struct {
	key   []byte
	value []byte // nil: the row is deleted
	next  []*overlayNode
}

// nodeBytes is about what a node costs beside its key and value.
const nodeBytes = 120

// seek returns the first node not below key.
func (o *overlay) seek(key []byte) *overlayNode {
	at := o.head[:]
	for h := overlayHeight - 1; h >= 0; h-- {
		for h < len(at) && at[h] != nil && bytes.Compare(at[h].key, key) < 0 {
			at = at[h].next
		}
	}
	return at[0]
}

func (o *overlay) find(key []byte) *overlayNode {
	if n := o.seek(key); n != nil && bytes.Equal(n.key, key) {
		return n
	}
	return nil
}

func (o *overlay) set(key, value []byte) {
	if n := o.find(key); n != nil {
		o.bytes += int64(len(value) - len(n.value))
		n.value = value
		return
	}
	o.state = o.state*6364136223846793005 + 1442695040888963407
	height := 1
	for r := o.state >> 32; height < overlayHeight && r&3 == 0; r >>= 2 {
		height++
	}
	n := &overlayNode{key: bytes.Clone(key), value: value, next: make([]*overlayNode, height)}
	if n.key == nil {
		n.key = []byte{}
	}
	at := o.head[:]
	for h := overlayHeight - 1; h >= 0; h-- {
		for at[h] != nil && bytes.Compare(at[h].key, key) < 0 {
			at = at[h].next
		}
		if h < height {
			n.next[h] = at[h]
			at[h] = n
		}
	}
	o.bytes += int64(len(key)+len(value)) + nodeBytes
}

func (o *overlay) clear() { *o = overlay{state: o.state} }
