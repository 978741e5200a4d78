package partition

import "context"

// Trim proposes from where on a partition's log is kept, and returns from where
// it is. Proposing what is gone already is success. If ctx ends first, the error
// is *ErrOutcomeUnknown.
func (h *Host) Trim(ctx context.Context, id PartitionID, t TrimTo) (Offset, error) {
	res, err := h.propose(ctx, id, Trim, t.encode())
	start, _ := res.(Offset)
	return start, err
}

// TrimPoint finds what a limit of age and one of size make of a log: the first
// message published at t or later, and the first one from which on at most so
// many bytes are kept (0: any number); of the two the later one, and which it
// was. It looks at a few rows, whatever the log's length.
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
	bySize, err := h.search(id, func(row *indexRow) bool { return all-min(row.before(), all) <= bytes })
	if err != nil {
		return 0, 0, err
	}
	if bySize > to {
		to, why = bySize, BySize
	}
	return to, why, nil
}
