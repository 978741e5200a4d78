package partition

import "sync/atomic"

// Bound is how far a partition's log may grow for now.
type Bound struct {
	From  Offset // counted from the batch that holds this message,
	Bytes uint64 // at so many bytes of batches, stored or on their way, publishes are refused
	Why   error  // with this error.
	// Near, if it is set, is called once, by who publishes first when all but
	// Spare bytes are used up. It must not block.
	Spare uint64
	Near  func()
}

// bound is a Bound, counted from the first byte ever stored.
type bound struct {
	bytes, near uint64
	why         error
	tell        func()
	told        atomic.Bool
}

// BoundTo makes PublishAsync refuse what would grow a partition's log further;
// nil lifts the bound. The last batch that goes in may lie across it. Commands go
// in: whoever bounds a log counts on them.
func (h *Host) BoundTo(id PartitionID, b *Bound) error {
	sh, err := h.shelf(id)
	if err != nil || b == nil {
		if sh != nil {
			sh.bound.Store(nil)
		}
		return err
	}
	r, pos, err := h.reader(id)
	if err != nil {
		return err
	}
	first, _, err := kept{r, pos}.Before(b.From)
	if err != nil {
		return h.expired(r, b.From, err)
	}
	if pos.Start == pos.End { // nothing is kept, and what was is counted all the same
		first, _ = sh.grown()
	}
	n := &bound{bytes: first + b.Bytes, why: b.Why, tell: b.Near}
	n.near = n.bytes - min(b.Spare, n.bytes)
	sh.bound.Store(n)
	return nil
}

// grown is how many bytes of batches were ever stored, and how many bytes wait to
// be.
func (s *shelf) grown() (stored, waiting uint64) {
	waiting = uint64(max(s.coming.Load(), 0))
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.info.before + s.info.Bytes, waiting
}

// admit tells whether a batch, which waits already, may go in.
func (s *shelf) admit(size int64) error {
	b := s.bound.Load()
	if b == nil {
		return nil
	}
	// What waits is read first: it may be counted twice, and not left out.
	stored, waiting := s.grown()
	all := stored + waiting - min(uint64(size), waiting)
	if all+uint64(size) >= b.near && b.tell != nil && !b.told.Swap(true) {
		b.tell()
	}
	if all >= b.bytes {
		return b.why
	}
	return nil
}
