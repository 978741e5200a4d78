package partition

import (
	"bytes"
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
	ahead *pages // where to keep what is read, and so read ahead; only the loop's have it
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
	if o, ok := r.shelf.next(from); ok && o > from {
		end = min(end, o)
	}
	rows, err := r.rows(from, end)
	if err != nil {
		return 0, false, err
	}
	next = from
	if r.ahead.worth() {
		batches := make([]stored, 0, len(rows))
		err = r.batches(rows, func(b stored) bool { batches = append(batches, b); return true })
		r.ahead.add(r.shelf, batches)
		for _, b := range batches {
			if !fn(b) {
				return 0, false, nil
			}
			next = b.row.end()
		}
		return next, err == nil, err
	}
	more = true
	err = r.batches(rows, func(b stored) bool {
		more = fn(b)
		next = b.row.end()
		return more
	})
	return next, more && err == nil, err
}

// What is read ahead: rows of the offset index, and where pages are kept the
// batches too. A page goes beyond pageBytes with its last batch only.
const (
	pageRows  = 64
	pageBytes = 512 << 10
	// Entries are read in one go when so few others, of commands, lie between.
	readThrough = 2
)

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
	size := 0
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
		size += int(row.size)
		return len(rows) < pageRows && size < pageBytes
	})
	if err == nil && bad == nil && (len(rows) == 0 || rows[0].base > from) {
		bad = fmt.Errorf("the offset index lost offset %d", from) // or retention removed it in between: the caller looks
	}
	if err != nil || bad != nil {
		return nil, r.damaged(err, bad)
	}
	return rows, nil
}

// batches calls fn with the batches of some rows until it returns false. What
// they alias is their own. Where damage ends it, fn had what is good before.
func (r reader) batches(rows []indexRow, fn func(stored) bool) error {
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].index-rows[n-1].index <= readThrough+1 {
			n++
		}
		more, err := r.run(rows[:n], fn)
		if err != nil || !more {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// run is batches for rows of entries that lie close together.
func (r reader) run(rows []indexRow, fn func(stored) bool) (more bool, err error) {
	more = true
	first, last := rows[0].index, rows[len(rows)-1].index
	var bad error
	err = r.store.Scan(uint64(r.id), uint64(first), uint64(last)+1, func(e logstore.Entry, _ uint32) bool {
		for len(rows) > 0 && rows[0].index == Index(e.Index) {
			var b record.Batch
			if b, bad = batchAt(e.Data, &rows[0]); bad != nil {
				return false
			}
			more = fn(stored{row: rows[0], batch: b})
			if rows = rows[1:]; !more {
				return false
			}
		}
		return true
	})
	if err == nil && bad == nil && more && len(rows) > 0 {
		bad = fmt.Errorf("no entry was read")
	}
	if bad != nil {
		return false, damagedAt(r.id, rows[0].index, bad)
	}
	if err != nil {
		return false, r.damaged(err, nil)
	}
	return more, nil
}

// batchAt copies the batch that a row names out of its entry, and checks it.
func batchAt(entry []byte, row *indexRow) (record.Batch, error) {
	it, err := itemAt(entry, int(row.at))
	if err != nil {
		return record.Batch{}, err
	}
	b, _, err := record.Parse(bytes.Clone(it.data))
	if err == nil && b.Len() != int(row.records) {
		err = fmt.Errorf("a batch of %d records where the index says %d", b.Len(), row.records)
	}
	return b, err
}

func (r reader) damaged(err, bad error) error {
	if err == nil {
		return Damaged(r.id, bad)
	}
	return storeError(r.id, err)
}

// message returns the message at an offset if it is kept and may be seen.
func (r reader) message(o Offset, pos Position) (raw record.Raw, ok bool, err error) {
	if o < pos.Start || o >= pos.End {
		return raw, false, nil
	}
	err = r.visit(o, o+1, func(b stored) bool {
		raw, ok = b.at(o)
		return false
	})
	return raw, ok, err
}

// readAhead is how far apart two offsets may be for the batches between them to
// be passed over, and not to be looked for anew.
const readAhead = 32

// at calls fn with the messages at sorted offsets, which must be stored.
func (r reader) at(offsets []Offset, fn func(Offset, Millis, record.Raw)) error {
	for len(offsets) > 0 {
		// One visit reads what lies close together, so that an entry of many
		// batches is read once.
		end := 1
		for end < len(offsets) && offsets[end]-offsets[end-1] < readAhead {
			end++
		}
		want := offsets[:end]
		offsets = offsets[end:]
		err := r.visit(want[0], want[end-1]+1, func(b stored) bool {
			if want[0] >= b.row.end() {
				return true
			}
			t := Millis(b.batch.PublishTime())
			b.each(want[0], func(at Offset, raw record.Raw) bool {
				for len(want) > 0 && want[0] == at {
					fn(at, t, raw)
					want = want[1:]
				}
				return len(want) > 0
			})
			return len(want) > 0
		})
		if err != nil {
			return err
		}
		if len(want) > 0 {
			return &ErrDamaged{Partition: r.id, Why: "the offset index names a batch without the message"}
		}
	}
	return nil
}

// ids returns message ids that rows on disk name, from a row's key on, at most
// max, and the key to go on from.
func (r reader) ids(from []byte, max int) (keys []idKey, next []byte, err error) {
	var bad error
	err = r.store.Iterate(logstore.IDs, uint64(r.id), from, nil, func(k, _ []byte) bool {
		if len(k) != idRowKeyLen {
			bad = fmt.Errorf("a key of the message ids has %d bytes, want %d", len(k), idRowKeyLen)
			return false
		}
		keys = append(keys, idKey(k[8:]))
		if len(keys) == max {
			next = append(append(next, k...), 0)
		}
		return len(keys) < max
	})
	if err != nil || bad != nil {
		return nil, nil, r.damaged(err, bad)
	}
	return keys, next, nil
}

// course goes along a log with the rows of the offset index beside it, which it reads a
// page at a time.
type course struct {
	r    reader
	pos  Position   // as far as it is to go
	next Offset     // of the next message
	rows []indexRow // from that one on, as far as they are read
	// With it, all but commands is passed over, and messages are not counted.
	commands bool
}

// row returns the row of the batch with the next message, which must be stored.
func (c *course) row() (indexRow, error) {
	if b, ok := c.r.shelf.find(c.next); ok {
		return b.row, nil
	}
	for len(c.rows) > 0 && c.rows[0].end() <= c.next {
		c.rows = c.rows[1:]
	}
	if len(c.rows) == 0 {
		var err error
		if c.rows, err = c.r.rows(c.next, c.pos.End); err != nil {
			return indexRow{}, err
		}
	}
	return c.rows[0], nil
}

// show calls fn with the items of one entry.
func (c *course) show(e logstore.Entry, fn func(LogEntry) bool) (bool, error) {
	damaged := func(err error) error {
		return damagedAt(c.r.id, Index(e.Index), err)
	}
	it, err := openEntry(e.Data)
	if err != nil {
		return false, damaged(err)
	}
	if c.commands && it.kind != Command {
		return true, nil
	}
	for {
		x, ok, err := it.next()
		if err != nil {
			return false, damaged(err)
		}
		if !ok {
			return true, nil
		}
		le := LogEntry{Index: Index(e.Index), Term: e.Term, Kind: it.kind, First: c.next, Data: x.data}
		if it.kind == Batches {
			// Its bytes were accepted when they were written, and the entry's checksum is right.
			b, _, err := record.View(le.Data)
			if err != nil {
				return false, damaged(err)
			}
			le.Time = Millis(b.PublishTime())
			if c.next < c.pos.End {
				row, err := c.row()
				if err != nil {
					return false, err
				}
				if row.index == le.Index && int(row.at) == x.at {
					le.First, le.Count = row.base, int(row.stored)
					c.next = row.end()
				}
			}
		}
		if !fn(le) {
			return false, nil
		}
	}
}

// row returns the index row of the batch that holds a stored offset.
func (r reader) row(o Offset) (indexRow, error) {
	if b, ok := r.shelf.find(o); ok {
		return b.row, nil
	}
	rows, err := r.rows(o, o+1)
	if err != nil {
		return indexRow{}, err
	}
	return rows[0], nil
}

// search returns the first offset of the first batch for which ok, which must
// hold for all batches behind one for which it holds; the end if there is none.
func (r reader) search(pos Position, ok func(*indexRow) bool) (Offset, error) {
	lo, hi := pos.Start, pos.End
	for lo < hi {
		row, err := r.row(lo + (hi-lo)/2)
		if err != nil {
			return 0, err
		}
		if ok(&row) {
			hi = row.base
		} else {
			lo = row.end()
		}
	}
	return max(lo, pos.Start), nil
}

// indexEnd is what replay needs of an index row.
type indexEnd struct {
	index Index
	end   Offset
}

// indexesFrom returns where the batches from an offset on end.
func (r reader) indexesFrom(from, end Offset) ([]indexEnd, error) {
	var out []indexEnd
	var bad error
	next := from
	err := r.store.Iterate(logstore.Offsets, uint64(r.id), offsetKey(nil, from), offsetKey(nil, end), func(k, v []byte) bool {
		row, err := decodeIndexRow(k, v)
		if err == nil && row.base != next {
			err = fmt.Errorf("the offset index jumps from %d to %d", next, row.base)
		}
		if err != nil {
			bad = err
			return false
		}
		next = row.end()
		out = append(out, indexEnd{row.index, next})
		return true
	})
	if err == nil && bad == nil && next != end {
		bad = fmt.Errorf("the offset index ends at %d, not at %d", next, end)
	}
	if err == nil {
		err = bad
	}
	return out, err
}
