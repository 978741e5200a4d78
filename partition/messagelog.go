package partition

import (
	"errors"
	"fmt"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// messageLog is the first tier of a partition's applied state: which batch of
// which entry holds which offsets, and which messages were there before. Its
// rows are written, without a sync, in the batch that also tells up to which
// index they reach, so after a crash they are a prefix and nothing is applied
// to them twice.
//
//	entry ─► items ─► decide (dedupe) ─► offsets ─┬─► shelf: for readers, after the commit
//	                                              └─► staged rows ─► store batch, when the entry is done
type messageLog struct {
	id    PartitionID
	shelf *shelf
	tail  *tail
	read  reader
	plan  reader // read, for Keys: it keeps what it reads
	dup   dedupe

	state   appliedRow // may be ahead of flushed while an entry is applied
	flushed appliedRow // with the last entry that was applied completely
	rows    rowBuf
	broken  error // what Keys met beside damaged entries: the log cannot be trusted
	key     []byte
	value   []byte
}

func newMessageLog(id PartitionID, store *logstore.Store, sh *shelf, t *tail, seen *idFilter, least Offset, state appliedRow) *messageLog {
	r := reader{id: id, store: store, shelf: sh}
	plan := r
	plan.ahead = &t.pages
	return &messageLog{
		id: id, shelf: sh, tail: t, read: r, plan: plan, state: state, flushed: state,
		dup: dedupe{
			id: id, store: store, read: r, ids: make(map[idRowName][]idRef), producers: make(map[string]*producer), seen: seen, least: least,
		},
	}
}

// outcome is what became of a batch.
type outcome struct {
	base     Offset
	records  int
	odd      []verdict
	producer string
	first    uint64
}

// apply stores one batch of an entry. Nothing of it reaches the store before
// flush, so an entry that cannot be applied leaves no rows.
func (l *messageLog) apply(index Index, at int, b record.Batch) (outcome, error) {
	p := pending{batch: b, start: l.state.start, base: l.state.end, buckets: l.state.buckets}
	name, first := b.Producer()
	if len(name) > 0 || b.HasIDs() {
		if err := l.dup.decide(&p, &l.rows); err != nil {
			return outcome{}, err
		}
		l.state.buckets = p.buckets
	}
	out := outcome{base: p.base, records: b.Len(), odd: p.odd}
	s := stored{batch: b, row: indexRow{
		base: p.base, index: index, at: uint32(at), size: uint32(len(b.Bytes())), records: uint16(b.Len()), stored: uint16(b.Len() - len(p.odd)),
	}}
	for _, v := range p.odd {
		s.row.suppressed = append(s.row.suppressed, v.record)
		if v.what == fateDuplicate || v.what == fateExpired {
			l.state.duplicates++
		}
	}
	if len(p.odd) > 0 && len(name) > 0 {
		out.producer, out.first = string(name), first
	}
	if s.row.stored == 0 {
		return out, nil
	}
	l.state.time = max(l.state.time, Millis(b.PublishTime()))
	l.state.bytes += uint64(len(b.Bytes()))
	if l.state.start == l.state.end {
		l.state.oldest = l.state.time
	}
	l.state.end = s.row.end()
	s.row.time, s.row.bytes = l.state.time, l.state.bytes
	l.key = offsetKey(l.key[:0], s.row.base)
	l.rows.end(s.row.append(l.rows.begin(logstore.Offsets, l.key)))
	l.tail.add(l.shelf, s)
	return out, nil
}

// flush ends an entry: its rows go into the store batch.
func (l *messageLog) flush(index Index, wb *logstore.Batch) error {
	l.state.index = index
	for _, op := range l.rows.ops {
		if err := wb.Set(op.ns, uint64(l.id), l.rows.buf[op.key:op.value], l.rows.buf[op.value:op.end]); err != nil {
			return err
		}
	}
	l.rows.reset()
	l.flushed = l.state
	return nil
}

// save writes how far the rows reach.
func (l *messageLog) save(wb *logstore.Batch) error {
	l.value = l.state.append(l.value[:0])
	return wb.SetMeta(uint64(l.id), metaApplied, l.value)
}

// Position is the place up to which everything is applied.
func (l *messageLog) Position() Position { return l.state.position() }

// keys is what Log.Keys says, of what is applied. It takes what it read off left.
func (l *messageLog) keys(from Offset, left *int, fn func(o Offset, keyHash uint64, size int) bool) error {
	if from < l.state.start {
		return &ErrExpired{Partition: l.id, Start: l.state.start}
	}
	next, more := from, true
	each := func(b stored) bool {
		b.each(from, func(o Offset, r record.Raw) bool {
			more = fn(o, r.KeyHash(), r.Size())
			*left -= r.Size()
			return more
		})
		next = b.row.end()
		more = more && *left > 0
		return more
	}
	for more && next < l.state.end {
		err := l.plan.visit(next, l.state.end, each)
		if err == nil {
			return nil
		}
		// What was read in one go with it may be damaged, and no message.
		if err = l.plan.visit(next, next+1, each); err != nil {
			return l.unreadable(next, err)
		}
	}
	return nil
}

// damagedPages is how many pages of the index are searched for the end of what is
// damaged. There may be more of it behind.
const damagedPages = 16

// unreadable finds which messages cannot be read, from an offset on at which a
// read failed. Nothing that is applied hangs on what their entries say, so whoever
// reads them is told, and the partition goes on; not so if it is the index that is
// damaged, or a newer version wrote them.
func (l *messageLog) unreadable(from Offset, err error) error {
	var d *ErrDamaged
	if !errors.As(err, &d) || d.Newer != nil {
		l.broken = err
		return err
	}
	end := l.state.end
	if o, ok := l.shelf.next(from); ok && o > from {
		end = min(end, o)
	}
	bad := &ErrUnreadable{Partition: l.id, Offset: from, Last: from, Err: err}
	var entry Index
	for next, n := from, 0; next < end && n < damagedPages; n++ {
		rows, err := l.read.rows(next, end)
		if err != nil {
			l.broken = err
			return err
		}
		for i := range rows {
			if at := rows[i].index; entry == 0 {
				entry = at
			} else if at != entry {
				if l.read.batches(rows[i:i+1], func(stored) bool { return true }) == nil {
					return bad
				}
				entry = at
			}
			bad.Last, next = rows[i].end()-1, rows[i].end()
		}
	}
	return bad
}

// rowBuf holds the rows of one entry until the entry is done.
type rowBuf struct {
	buf []byte
	ops []rowOp
}

type rowOp struct {
	ns              logstore.Namespace
	key, value, end int // places in buf
}

// begin starts a row and returns the buffer to append its value to.
func (b *rowBuf) begin(ns logstore.Namespace, key []byte) []byte {
	at := len(b.buf)
	b.buf = append(b.buf, key...)
	b.ops = append(b.ops, rowOp{ns: ns, key: at, value: len(b.buf)})
	return b.buf
}

// end takes the buffer back, with the value.
func (b *rowBuf) end(buf []byte) {
	b.buf = buf
	b.ops[len(b.ops)-1].end = len(buf)
}

func (b *rowBuf) reset() {
	const keep = 1 << 20
	if cap(b.buf) > keep {
		b.buf = nil
	}
	b.buf, b.ops = b.buf[:0], b.ops[:0]
}

// stored expands an outcome into one answer per record.
func (o *outcome) stored(id PartitionID, b record.Batch) []Stored {
	out := make([]Stored, o.records)
	if len(o.odd) == 0 {
		for i := range out {
			out[i].Offset = o.base + Offset(i)
		}
		return out
	}
	next, odd := o.base, o.odd
	var c record.Cursor
	walked := -1
	for i := range out {
		if len(odd) == 0 || int(odd[0].record) != i {
			out[i].Offset = next
			next++
			continue
		}
		v := odd[0]
		odd = odd[1:]
		switch v.what {
		case fateDuplicate, fateExpired:
			// It was stored, whether it is still kept or not.
			out[i] = Stored{Offset: v.offset, Duplicate: true}
		case fateIDReused:
			if walked < 0 {
				c = b.Cursor()
			}
			var raw record.Raw
			for ; walked < i; walked++ {
				raw, _ = c.Next()
			}
			out[i].Err = &ErrIDReused{Partition: id, ID: string(raw.ID()), Offset: v.offset}
		case fateGap:
			out[i].Err = &ErrSequenceGap{Partition: id, Producer: o.producer, Got: o.first + uint64(i), Expected: uint64(v.offset)}
		case fateBehind:
			out[i].Err = &ErrBehind{Partition: id}
		case fateSequenceReused:
			out[i].Err = &ErrSequenceReused{Partition: id, Producer: o.producer, Sequence: o.first + uint64(i), Offset: v.offset}
		case fateForgotten:
			out[i].Err = &ErrSequenceExpired{Partition: id, Producer: o.producer, Sequence: o.first + uint64(i)}
		default:
			out[i].Err = fmt.Errorf("partition %v: unknown fate %d of a record", id, v.what)
		}
	}
	return out
}
