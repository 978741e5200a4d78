package logstore

import "context"

// What a simulator does at a time of its own that the store's goroutines otherwise do
// at theirs.

// ScrubNow reads everything once, at no rate, and returns when it has. The store has
// no scrub of its own then.
func (s *Store) ScrubNow() error {
	return (&scrubber{s: s, stop: make(chan struct{})}).pass()
}

// MergeNow writes all that is stored into new tables, in order, so that they no more
// depend on when the others were written.
func (s *Store) MergeNow() error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return s.db.Compact(context.Background(), []byte{keyFormat}, []byte{keyFormat + 1}, false)
}
