package partition

import (
	"context"
	"errors"
	"slices"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// reader returns a reader of a partition and what it may see.
func (h *Host) reader(id PartitionID) (reader, Position, error) {
	sh, err := h.shelf(id)
	if err != nil {
		return reader{}, Position{}, err
	}
	pos, err := sh.position()
	return reader{id: id, store: h.cfg.Store, shelf: sh}, pos, err
}

// Read returns stored messages from an offset on, in order: at most max, and at
// most about maxBytes (but at least one). At the end, and beyond it, it returns
// none. It may be called from any goroutine.
func (h *Host) Read(id PartitionID, from Offset, max, maxBytes int) ([]Message, error) {
	r, pos, err := h.reader(id)
	if err != nil {
		return nil, err
	}
	if from < pos.Start {
		return nil, &ErrExpired{Partition: id, Start: pos.Start}
	}
	if from >= pos.End || max <= 0 {
		return nil, nil
	}
	var out []Message
	bytes := 0
	err = r.visit(from, pos.End, func(b stored) bool {
		t := Millis(b.batch.PublishTime())
		if out == nil {
			out = make([]Message, 0, min(max, int(b.row.end()-from)))
		}
		more := true
		b.each(from, func(o Offset, raw record.Raw) bool {
			bytes += raw.Size()
			if len(out) > 0 && bytes > maxBytes {
				more = false
				return false
			}
			out = append(out, Message{Offset: o, PublishTime: t, Record: raw.Record()})
			more = len(out) < max && bytes < maxBytes
			return more
		})
		return more
	})
	if err != nil {
		return nil, h.expired(r, from, err)
	}
	return out, nil
}

// ReadAt returns the messages at the given offsets, which must be sorted. One
// that is not stored yet, or no longer, is an error.
func (h *Host) ReadAt(id PartitionID, offsets []Offset) ([]Message, error) {
	out := make([]Message, 0, len(offsets))
	err := h.readAt(id, offsets, func(o Offset, t Millis, raw record.Raw) {
		out = append(out, Message{Offset: o, PublishTime: t, Record: raw.Record()})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ReadRawAt is ReadAt for who copies records as they stand. It appends to out,
// also where it ends with an error: all before an offset that cannot be read.
func (h *Host) ReadRawAt(id PartitionID, offsets []Offset, out []RawMessage) ([]RawMessage, error) {
	err := h.readAt(id, offsets, func(o Offset, t Millis, raw record.Raw) {
		out = append(out, RawMessage{Offset: o, PublishTime: t, Record: raw})
	})
	return out, err
}

func (h *Host) readAt(id PartitionID, offsets []Offset, fn func(Offset, Millis, record.Raw)) error {
	r, pos, err := h.reader(id)
	if err != nil || len(offsets) == 0 {
		return err
	}
	if offsets[0] < pos.Start {
		return &ErrExpired{Partition: id, Start: pos.Start}
	}
	var beyond error
	if last := offsets[len(offsets)-1]; last >= pos.End {
		n, _ := slices.BinarySearch(offsets, pos.End)
		beyond = &ErrNotStored{Partition: id, Offset: offsets[n], End: pos.End}
		if offsets = offsets[:n]; n == 0 {
			return beyond
		}
	}
	told := 0
	each := func(o Offset, t Millis, raw record.Raw) { told++; fn(o, t, raw) }
	err = r.at(offsets, each)
	for err != nil && unreadable(err) {
		// What lies before it in the same read may be whole.
		next := told
		if err = r.at(offsets[next:next+1], each); err != nil && unreadable(err) {
			err = &ErrUnreadable{Partition: id, Offset: offsets[next], Err: err}
			break
		}
		if told == len(offsets) {
			break
		}
		if err == nil {
			err = r.at(offsets[told:], each)
		}
	}
	if err != nil {
		return h.expired(r, offsets[0], err)
	}
	return beyond
}

// unreadable tells whether an error is of a message that is damaged.
func unreadable(err error) bool {
	var d *ErrDamaged
	return errors.As(err, &d) && d.Newer == nil
}

// expired gives an error of a read from an offset on its cause: what was read
// may have been removed meanwhile.
func (h *Host) expired(r reader, from Offset, err error) error {
	if err == nil {
		return nil
	}
	if pos, bad := r.shelf.position(); bad == nil && from < pos.Start {
		return &ErrExpired{Partition: r.id, Start: pos.Start}
	}
	return err
}

// FindByMessageID returns where messages with this id are stored, whatever
// their key.
func (h *Host) FindByMessageID(ctx context.Context, id PartitionID, messageID string) ([]Offset, error) {
	r, pos, err := h.reader(id)
	if err != nil {
		return nil, err
	}
	k := keyOf([]byte(messageID), nil, false)
	var refs []idRef
	var bad error
	for _, b := range r.shelf.idBuckets() {
		prefix := append(bucketKey(nil, b), k[:8]...)
		err = h.cfg.Store.Iterate(logstore.IDs, uint64(id), prefix, prefixEnd(prefix), func(_, row []byte) bool {
			var more []idRef
			if more, bad = decodeIDRow(row); bad != nil {
				return false
			}
			refs = append(refs, more...)
			return ctx.Err() == nil
		})
		if err != nil || bad != nil {
			break
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && bad != nil {
		err = Damaged(id, bad)
	}
	if err != nil {
		return nil, err
	}
	var out []Offset
	for _, ref := range refs {
		raw, ok, err := r.message(ref.offset, pos)
		if gone := (*ErrExpired)(nil); errors.As(h.expired(r, ref.offset, err), &gone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if ok && string(raw.ID()) == messageID {
			out = append(out, ref.offset)
		}
	}
	slices.Sort(out)
	return out, nil
}

// OffsetAt returns the first message published at t or later; the end of the
// log when there is none. Publish times are made to never go back for this: a
// message counts with the latest time up to it.
func (h *Host) OffsetAt(id PartitionID, t Millis) (Offset, error) {
	return h.search(id, func(row *indexRow) bool { return row.time >= t })
}

// search is reader.search over what is kept now.
func (h *Host) search(id PartitionID, ok func(*indexRow) bool) (Offset, error) {
	for {
		r, pos, err := h.reader(id)
		if err != nil {
			return 0, err
		}
		o, err := r.search(pos, ok)
		if gone := (*ErrExpired)(nil); errors.As(h.expired(r, pos.Start, err), &gone) {
			continue // it began with what was removed meanwhile
		}
		return o, err
	}
}

// Position returns the place up to which a partition is applied and may be
// read.
func (h *Host) Position(id PartitionID) (Position, error) {
	_, pos, err := h.reader(id)
	return pos, err
}

// Info returns a partition's state, also of one that stopped.
func (h *Host) Info(id PartitionID) (Info, error) {
	sh, err := h.shelf(id)
	if err != nil {
		return Info{}, err
	}
	sh.mu.RLock()
	info := sh.info
	sh.mu.RUnlock()
	info.Queued = sh.queued.Load()
	return info, nil
}

// IndexOf returns the entry that holds a message.
func (h *Host) IndexOf(id PartitionID, o Offset) (Index, error) {
	row, err := h.rowOf(id, o)
	return row.index, err
}

// PublishTime returns when a message was published, by the clock of whoever led then. It
// reads no message.
func (h *Host) PublishTime(id PartitionID, o Offset) (Millis, error) {
	row, err := h.rowOf(id, o)
	return row.time, err
}

// PublishTimes is PublishTime, and the first offset behind the message's record batch,
// which was published at once.
func (h *Host) PublishTimes(id PartitionID, o Offset) (Millis, Offset, error) {
	row, err := h.rowOf(id, o)
	return row.time, row.end(), err
}

// rowOf reads the row of the offset index that a message is in.
func (h *Host) rowOf(id PartitionID, o Offset) (indexRow, error) {
	r, pos, err := h.reader(id)
	if err != nil {
		return indexRow{}, err
	}
	if o < pos.Start {
		return indexRow{}, &ErrExpired{Partition: id, Start: pos.Start}
	}
	if o >= pos.End {
		return indexRow{}, &ErrNotStored{Partition: id, Offset: o, End: pos.End}
	}
	row, err := r.row(o)
	return row, h.expired(r, o, err)
}

// Scan calls fn with what stands in a partition's log from an index on, as far
// as it is applied, until fn returns false. The data of what it shows is gone when fn
// returns.
func (h *Host) Scan(ctx context.Context, id PartitionID, from Index, fn func(LogEntry) bool) error {
	return h.scanAgain(ctx, id, from, false, fn)
}

// Commands is Scan for the commands alone, and cheaper: it looks for no messages.
func (h *Host) Commands(ctx context.Context, id PartitionID, from Index, fn func(LogEntry) bool) error {
	return h.scanAgain(ctx, id, from, true, fn)
}

func (h *Host) scanAgain(ctx context.Context, id PartitionID, from Index, commands bool, fn func(LogEntry) bool) error {
	for {
		err := h.scan(ctx, id, from, commands, fn)
		// What is removed before the first entry is read, no one has seen: the
		// log just begins later.
		if gone := (*logstore.ErrCompacted)(nil); !errors.As(err, &gone) {
			return err
		}
	}
}

func (h *Host) scan(ctx context.Context, id PartitionID, from Index, commands bool, fn func(LogEntry) bool) error {
	r, pos, err := h.reader(id)
	if err != nil {
		return err
	}
	first, err := h.cfg.Store.FirstIndex(uint64(id))
	if err != nil {
		return storeError(id, err)
	}
	from = max(from, Index(first))
	if from > pos.Index {
		return nil
	}
	c := course{r: r, pos: pos, commands: commands}
	if !commands {
		if c.next, err = r.search(pos, func(row *indexRow) bool { return row.index >= from }); err != nil {
			return h.expired(r, pos.Start, err)
		}
	}
	var bad error
	err = h.cfg.Store.Scan(uint64(id), uint64(from), uint64(pos.Index)+1, func(e logstore.Entry, _ uint32) bool {
		if bad = ctx.Err(); bad != nil {
			return false
		}
		if e.Type != 0 {
			return true // raft's own
		}
		var more bool
		more, bad = c.show(e, fn)
		return more && bad == nil
	})
	if err == nil {
		err = bad
	}
	return h.expired(r, pos.Start, storeError(id, err))
}
