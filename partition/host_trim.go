package partition

import (
	"context"
	"errors"

	"github.com/strandmq/strandmq/internal/record"
)

// Trim proposes from where on a partition's log is kept, and returns from where
// it is. Where the App lets nothing go, nothing is proposed. If ctx ends first,
// the error is *ErrOutcomeUnknown.
//
// What the App would take of the messages is read here first. The log is kept
// from the first one that does not read, and the error is *ErrUnreadable.
func (h *Host) Trim(ctx context.Context, id PartitionID, t TrimTo) (Offset, error) {
	if _, err := h.shelf(id); err != nil {
		return 0, err
	}
	// A caller that left reads none of it: the channel has a place.
	would := make(chan plannedTrim, 1)
	err := h.call(ctx, id, func(reply func(error)) {
		w, err := h.core.wouldTrim(id, t)
		would <- w
		reply(err)
	})
	if err != nil {
		return 0, err
	}
	w := <-would
	left := h.readAt(id, w.takes, func(Offset, Millis, record.Raw) {})
	if left != nil {
		var bad *ErrUnreadable
		if !errors.As(left, &bad) {
			return w.start, left
		}
		// The App must not go beyond it now, nor because it has more done by then.
		w.to = min(w.to, bad.Offset)
		t.To, t.Done = min(t.To, w.to), false
	}
	if w.to <= w.start {
		return w.start, left
	}
	res, err := h.propose(ctx, id, Trim, t.encode())
	if o, ok := res.(Offset); ok {
		w.start = o
	}
	if err == nil {
		err = left
	}
	return w.start, err
}

// TrimPoint finds what a limit of age and one of size make of a log: the first
// message published at t or later, and the first one without whose batch less
// than so many bytes would be kept (0: any number), so that of a log larger than
// the limit at least the limit stays; of the two the later one, and which it was.
// It looks at a few rows, whatever the log's length.
func (h *Host) TrimPoint(id PartitionID, t Millis, bytes uint64) (Offset, TrimReason, error) {
	_, pos, err := h.reader(id)
	if err != nil {
		return 0, 0, err
	}
	to, why := pos.Start, TrimReason(0)
	byAge, err := h.search(id, func(row *indexRow) bool { return row.time >= t })
	if err != nil {
		return 0, 0, err
	}
	if byAge > to {
		to, why = byAge, ByAge
	}
	info, err := h.Info(id)
	if err != nil || bytes == 0 || info.Bytes <= bytes {
		return to, why, err
	}
	all := info.before + info.Bytes
	bySize, err := h.search(id, func(row *indexRow) bool { return all-min(row.bytes, all) < bytes })
	if err != nil {
		return 0, 0, err
	}
	if bySize > to {
		to, why = bySize, BySize
	}
	return to, why, nil
}

// Between is how many bytes the batches have that hold the messages from an
// offset to before another, and when the first of them was published. What is
// gone counts nothing.
func (h *Host) Between(id PartitionID, from, to Offset) (bytes uint64, published Millis, err error) {
	r, pos, err := h.reader(id)
	if err != nil {
		return 0, 0, err
	}
	if from, to = max(from, pos.Start), min(to, pos.End); from >= to {
		return 0, 0, nil
	}
	k := kept{r, pos}
	first, published, err := k.Before(from)
	if err != nil {
		return 0, 0, h.expired(r, from, err)
	}
	last, _, err := k.Before(to)
	return last - first, published, h.expired(r, from, err)
}
