package partition

import (
	"fmt"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// reader finds stored batches: on the shelf, else in the store. It is a value;
// any goroutine may use it.
type reader struct {
	id    PartitionID
	store *logstore.Store
	shelf *shelf
}

// visit calls fn with the batches that hold the offsets from on and below end,
// in order, until fn returns false. Every offset below end must be stored.
func (r reader) visit(from, end Offset, fn func(stored) bool) error {
	for from < end {
		if b, ok := r.shelf.find(from); ok {
			if !fn(b) {
				return nil
			}
			from = b.row.end()
			continue
		}
		next, more, err := r.visitStore(from, end, fn)
		if err != nil || !more {
			return err
		}
		from = next
	}
	return nil
}

// visitStore visits a page of batches from disk.
func (r reader) visitStore(from, end Offset, fn func(stored) bool) (next Offset, more bool, err error) {
	if o, ok := r.shelf.first(); ok && o > from {
		end = min(end, o)
	}
	rows, err := r.rows(from, end)
	if err != nil {
		return 0, false, err
	}
	next = from
	for len(rows) > 0 {
		// Batches that came in one entry are read in one go.
		n := 1
		for n < len(rows) && rows[n].index == rows[0].index {
			n++
		}
		batches, err := r.batches(rows[:n])
		if err != nil {
			return 0, false, err
		}
		for _, b := range batches {
			if !fn(b) {
				return 0, false, nil
			}
			next = b.row.end()
		}
		rows = rows[n:]
	}
	return next, true, nil
}

// pageRows is how many rows of the offset index are read ahead.
const pageRows = 16

// rows returns the index rows of the batches from the one that holds from on.
func (r reader) rows(from, end Offset) ([]indexRow, error) {
	var first [8]byte
	found := false
	var bad error
	err := r.store.IterateReverse(logstore.Offsets, uint64(r.id), nil, offsetKey(nil, from+1), func(k, v []byte) bool {
		row, err := decodeIndexRow(k, v)
		if err != nil {
			bad = err
		} else if row.end() > from {
			copy(first[:], k)
			found = true
		}
		return false
	})
	if err != nil || bad != nil {
		return nil, r.damaged(err, bad)
	}
	if !found {
		return nil, r.damaged(nil, fmt.Errorf("the offset index does not know offset %d", from))
	}
	var rows []indexRow
	err = r.store.Iterate(logstore.Offsets, uint64(r.id), first[:], offsetKey(nil, end), func(k, v []byte) bool {
		row, err := decodeIndexRow(k, v)
		if err != nil {
			bad = err
			return false
		}
		if n := len(rows); n > 0 && rows[n-1].end() != row.base {
			bad = fmt.Errorf("the offset index jumps from %d to %d", rows[n-1].end(), row.base)
			return false
		}
		rows = append(rows, row)
		return len(rows) < pageRows
	})
	if err != nil || bad != nil {
		return nil, r.damaged(err, bad)
	}
	return rows, nil
}

// batches reads the batches of one entry. What they alias is their own.
func (r reader) batches(rows []indexRow) ([]stored, error) {
	out := make([]stored, 0, len(rows))
	index := rows[0].index
	var bad error
	err := r.store.Scan(uint64(r.id), uint64(index), uint64(index)+1, func(e logstore.Entry, _ uint32) bool {
		for _, row := range rows {
			it, err := itemAt(e.Data, int(row.at))
			if err != nil {
				bad = err
				return false
			}
			b, _, err := record.Parse(append(make([]byte, 0, len(it.data)), it.data...))
			if err == nil && b.Len() != int(row.records) {
				err = fmt.Errorf("a batch of %d records where the index says %d", b.Len(), row.records)
			}
			if err != nil {
				bad = err
				return false
			}
			out = append(out, stored{row: row, batch: b})
		}
		return true
	})
	if err == nil && bad == nil && len(out) != len(rows) {
		bad = fmt.Errorf("no entry was read")
	}
	if err != nil || bad != nil {
		if bad != nil {
			return nil, &ErrDamaged{Partition: r.id, From: index, To: index, Why: bad.Error()}
		}
		return nil, r.damaged(err, nil)
	}
	return out, nil
}

func (r reader) damaged(err, bad error) error {
	if err == nil {
		return &ErrDamaged{Partition: r.id, Why: bad.Error()}
	}
	return storeError(r.id, err)
}

// each walks the stored messages of a batch from an offset on.
func (b *stored) each(from Offset, fn func(o Offset, r record.Raw) bool) {
	o := b.row.base
	odd := b.row.suppressed
	c := b.batch.Cursor()
	for i := 0; ; i++ {
		r, ok := c.Next()
		if !ok {
			return
		}
		if len(odd) > 0 && int(odd[0]) == i {
			odd = odd[1:]
			continue
		}
		if o >= from && !fn(o, r) {
			return
		}
		o++
	}
}

// at returns the message at an offset that the batch holds.
func (b *stored) at(o Offset) (r record.Raw, ok bool) {
	b.each(o, func(_ Offset, x record.Raw) bool { r, ok = x, true; return false })
	return r, ok
}
