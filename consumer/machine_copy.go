package consumer

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
)

// A dead letter whose message retention passes is copied in the same log entry:
// a row with the record as it stood in the log, and one by which it is found by
// its message id. The copies live as long as the dead letter.

// uncopied lists the dead letters before an offset that still refer to the log,
// those that are being delivered again among them.
func (g *group) uncopied(to partition.Offset) (os []partition.Offset, err error) {
	err = g.eachDead(g.kept, func(o partition.Offset, _ deadRow) bool {
		if o < to {
			os = append(os, o)
		}
		return o < to
	})
	return os, err
}

// copyDead copies the dead letters before an offset.
func (g *group) copyDead(to partition.Offset, log partition.Kept) error {
	os, err := g.uncopied(to)
	if err != nil || len(os) == 0 {
		return err
	}
	ms, err := log.Read(os)
	if err != nil {
		return err
	}
	k := g.keeping()
	for _, m := range ms {
		n := g.rows.putCopy(m)
		k.copies++
		k.bytes += uint64(n)
	}
	g.rows.putKeeping(k)
	return nil
}

// putCopy stores a message, and tells its size.
func (r rowsOf) putCopy(m partition.RawMessage) int {
	var w record.Builder
	w.Reset(nil, record.Meta{PublishTime: int64(m.PublishTime)})
	w.Add(m.Record)
	b := w.Seal()
	r.Put(r.key(rowCopy, m.Offset), b)
	if m.Record.HasID() {
		r.Put(r.key2(rowCopyID, xxhash.Sum64(m.Record.ID()), m.Offset), []byte{rowVersion})
	}
	return len(b)
}

// copyAt reads the copy of a dead letter's message; false if there is none. It
// aliases nothing that changes.
func (r rowsOf) copyAt(o partition.Offset) (m partition.RawMessage, ok bool, err error) {
	key := r.key(rowCopy, o)
	v, err := r.Get(key)
	if err != nil || v == nil {
		return m, false, err
	}
	b, rest, err := record.Parse(bytes.Clone(v))
	if err == nil && (len(rest) > 0 || b.Len() != 1) {
		err = fmt.Errorf("%d records and %d bytes behind them, want one", b.Len(), len(rest))
	}
	if err != nil {
		return m, false, &ErrRow{Key: key, Why: "the copy of a message: " + err.Error(), Err: err}
	}
	c := b.Cursor()
	raw, _ := c.Next()
	return partition.RawMessage{Offset: o, PublishTime: partition.Millis(b.PublishTime()), Record: raw}, true, nil
}

// dropCopy removes the copy of a dead letter that is none any more, if there is
// one: there is only of what the log does not keep.
func (g *group) dropCopy(o partition.Offset) {
	if o >= g.kept {
		return
	}
	m, ok, err := g.rows.copyAt(o)
	g.fault(err)
	if !ok {
		return
	}
	v, err := g.rows.Get(g.rows.key(rowCopy, o))
	g.fault(err)
	k := g.keeping()
	k.copies--
	k.bytes -= uint64(len(v))
	g.rows.putKeeping(k)
	g.rows.del(rowCopy, o)
	if m.Record.HasID() {
		g.rows.Delete(g.rows.key2(rowCopyID, xxhash.Sum64(m.Record.ID()), o))
	}
}

// copiesOf lists the copies of messages with an id, in order.
func (r rowsOf) copiesOf(id string) (os []partition.Offset, err error) {
	prefix := binary.BigEndian.AppendUint64(r.prefix(rowCopyID), xxhash.Sum64String(id))
	var all []partition.Offset
	err = r.Scan(prefix, nil, func(k, _ []byte) bool {
		all = append(all, lastOffset(k))
		return true
	})
	for _, o := range all {
		m, ok, bad := r.copyAt(o)
		if bad != nil {
			return nil, bad
		}
		if ok && string(m.Record.ID()) == id {
			os = append(os, o)
		}
	}
	return os, err
}
