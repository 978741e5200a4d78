package logstore

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Data that nobody reads rots unseen until it is needed. So a goroutine reads
// all of it, over and over, entries with their chain and every row, and names
// what does not read. It keeps to a rate, pauses while the store falls behind
// with its writes, and rests between two passes. How far it came is a row of the
// store, so that a restart goes on where it was, by whole partitions.
//
// What is in a cache is not read from the disk: a block is looked at when it has
// left the cache. Log files are read at each start.

// ScrubState is how far the scrub came.
type ScrubState struct {
	Passes   uint64    // complete ones, over the store's life
	Last     time.Time // when the last one was complete; zero if none was
	Began    time.Time // of the pass under way; zero while it rests
	Bytes    uint64    // read in this pass, or in the last one while it rests
	Next     uint64    // the partition that it reads or reads next
	Paused   bool      // it waits for the store to catch up with its writes
	Disabled bool
}

// quietStart is how long a node has for its start before the scrub begins.
const quietStart = time.Minute

// scrubStep is about how many bytes are read at a time.
const scrubStep = 256 << 10

// Scrub tells how far the scrub came.
func (s *Store) Scrub() ScrubState {
	s.scrubMu.Lock()
	defer s.scrubMu.Unlock()
	st := s.scrubbed
	st.Disabled = s.cfg.ScrubBytesPerSecond < 0 || s.cfg.ReadOnly
	return st
}

func (s *Store) setScrub(change func(*ScrubState)) {
	s.scrubMu.Lock()
	change(&s.scrubbed)
	s.scrubMu.Unlock()
}

func scrubKey() []byte { return append(appendPrefix(nil, nsStore, 0), storeRowScrub) }

// The scrub's row: passes u64, last i64, began i64 (milliseconds, 0 for none),
// bytes u64, next u64; sealed.
const scrubLen = 40

func encodeScrub(key []byte, st ScrubState) []byte {
	ms := func(t time.Time) uint64 {
		if t.IsZero() {
			return 0
		}
		return uint64(t.UnixMilli())
	}
	v := make([]byte, 0, scrubLen+sealLen)
	for _, n := range []uint64{st.Passes, ms(st.Last), ms(st.Began), st.Bytes, st.Next} {
		v = binary.LittleEndian.AppendUint64(v, n)
	}
	return seal(key, v)
}

func decodeScrub(key, row []byte) (ScrubState, error) {
	v, err := unseal(key, row, scrubLen)
	if err != nil {
		return ScrubState{}, err
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(v[8*i:]) }
	t := func(i int) time.Time {
		if at(i) == 0 {
			return time.Time{}
		}
		return time.UnixMilli(int64(at(i)))
	}
	return ScrubState{Passes: at(0), Last: t(1), Began: t(2), Bytes: at(3), Next: at(4)}, nil
}

// loadScrub reads how far the scrub came. A row that does not read costs a pass.
func (s *Store) loadScrub() {
	row, err := s.get(scrubKey(), nil)
	if err != nil || row == nil {
		return
	}
	st, err := decodeScrub(scrubKey(), row)
	if err != nil {
		s.cfg.Logger.Warn("how far the scrub came does not read: it begins anew", "err", err)
		return
	}
	s.setScrub(func(now *ScrubState) { *now = st })
}

func (s *Store) saveScrub() {
	b := s.NewBatch()
	if b.err == nil {
		b.err = b.b.Set(scrubKey(), encodeScrub(scrubKey(), s.Scrub()), nil)
	}
	_ = s.CommitNoSync(b) // a lost one costs a partition's reading
}

// scrub runs until stop is closed.
func (s *Store) scrub(stop, stopped chan struct{}) {
	defer close(stopped)
	w := &scrubber{s: s, stop: stop}
	if !w.rest(min(s.cfg.ScrubEvery, quietStart)) {
		return
	}
	for {
		st := s.Scrub()
		if st.Began.IsZero() && !st.Last.IsZero() {
			if !w.rest(time.Until(st.Last.Add(s.cfg.ScrubEvery))) {
				return
			}
		}
		if err := w.pass(); err != nil {
			if !errors.Is(err, errScrubEnds) {
				s.cfg.Logger.Warn("the scrub ended", "err", err)
			}
			return
		}
	}
}

// endScrub ends it and waits. It comes before the store refuses calls.
func (s *Store) endScrub() {
	if s.scrubStop != nil {
		s.scrubOnce.Do(func() { close(s.scrubStop) })
		<-s.scrubDone
	}
}

var errScrubEnds = errors.New("the store ends")

// scrubber is the scrub at work.
type scrubber struct {
	s    *Store
	stop chan struct{}
	debt time.Duration // how much longer it should have taken
}

// sleep returns false when the store ends.
func (w *scrubber) sleep(d time.Duration) bool {
	if d <= 0 {
		select {
		case <-w.stop:
			return false
		case <-w.s.failedCh:
			return false
		default:
			return true
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-w.stop:
	case <-w.s.failedCh:
	}
	return false
}

// rest is sleep that ends when there is something to look at.
func (w *scrubber) rest(d time.Duration) bool {
	if d <= 0 {
		return w.sleep(d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-w.s.scrubNow:
		return true
	case <-w.stop:
	case <-w.s.failedCh:
	}
	return false
}

// scrubSoon has a pass begin if none is under way: a file is damaged, and what of it that
// concerns is not known. One that is under way may have passed by: another follows.
func (s *Store) scrubSoon() {
	select {
	case s.scrubNow <- struct{}{}:
	default:
	}
}

// pace accounts for what was read, and waits.
func (w *scrubber) pace(bytes int) error {
	s := w.s
	s.setScrub(func(st *ScrubState) { st.Bytes += uint64(bytes) })
	w.debt += time.Duration(float64(bytes) / float64(s.cfg.ScrubBytesPerSecond) * float64(time.Second))
	for s.behind() {
		s.setScrub(func(st *ScrubState) { st.Paused = true })
		if !w.sleep(scrubPause) {
			return errScrubEnds
		}
	}
	s.setScrub(func(st *ScrubState) { st.Paused = false })
	if w.debt < 2*time.Millisecond {
		return nil // timers are no finer
	}
	began := time.Now()
	if !w.sleep(w.debt) {
		return errScrubEnds
	}
	w.debt -= time.Since(began)
	return nil
}

// scrubPause is how long the scrub waits before it looks again whether the store
// has caught up.
const scrubPause = 200 * time.Millisecond

// pass reads everything once, or what is left of the pass that a stop cut short.
func (w *scrubber) pass() error {
	s := w.s
	from := uint64(0)
	s.setScrub(func(st *ScrubState) {
		if st.Began.IsZero() {
			st.Began, st.Bytes, st.Next = time.Now(), 0, 0
		}
		from = st.Next
	})
	ps, err := s.Partitions()
	var d *ErrDamaged
	if errors.As(err, &d) {
		s.reportDamage(d)
	} else if err != nil {
		return err
	}
	for _, p := range ps {
		if p < from {
			continue
		}
		if err := w.partition(p); err != nil {
			return err
		}
		s.setScrub(func(st *ScrubState) { st.Next = p + 1 })
		s.saveScrub()
	}
	var done ScrubState
	s.setScrub(func(st *ScrubState) {
		st.Passes++
		st.Last, st.Began, st.Next = time.Now(), time.Time{}, 0
		done = *st
	})
	s.saveScrub()
	s.cfg.Logger.Info("scrub: everything was read", "pass", done.Passes, "bytes", done.Bytes, "damaged", len(s.Damage()))
	return nil
}

// partition reads one partition's rows and entries.
func (w *scrubber) partition(p uint64) error {
	for _, ns := range perPartition() {
		if ns == nsEntry {
			continue
		}
		if err := w.rows(ns, p); err != nil {
			return err
		}
	}
	return w.entries(p)
}

// rows reads the rows of a namespace, a page at a time, so that no iterator
// keeps old files for long.
func (w *scrubber) rows(ns Namespace, p uint64) error {
	s := w.s
	from, end := appendPrefix(nil, ns, p), appendPrefixEnd(nil, ns, p)
	for from != nil {
		size := 0
		next, err := s.scrubRows(ns, p, from, end, &size)
		if err != nil {
			return err
		}
		from = next
		if err := w.pace(size); err != nil {
			return err
		}
	}
	return nil
}

// scrubRows reads a page of rows and returns where the next one begins; nil at
// the end. Behind a block that does not read it cannot go on.
func (s *Store) scrubRows(ns Namespace, p uint64, from, end []byte, size *int) (next []byte, err error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: end})
	if err != nil {
		_ = s.readError(err, Range{Partition: p, Low: 1})
		return nil, nil
	}
	defer func() { _ = it.Close() }()
	for ok := it.First(); ok; ok = it.Next() {
		if *size >= scrubStep {
			return append([]byte(nil), it.Key()...), nil
		}
		v, err := valueOf(it)
		if err == nil {
			_, err = unseal(it.Key(), v, -1)
			if err != nil {
				_ = s.badRow(ns, p, err)
			}
		} else {
			_ = s.readError(err, Range{Partition: p, Low: 1})
		}
		*size += len(it.Key()) + len(v)
	}
	if err := it.Error(); err != nil {
		_ = s.readError(err, Range{Partition: p, Low: 1}) // it reports
	}
	return nil, nil
}

// entries reads a partition's log from its first to its last entry.
func (w *scrubber) entries(p uint64) error {
	s := w.s
	next := uint64(1)
	for {
		first, err := s.FirstIndex(p)
		if err == nil {
			var last uint64
			if last, err = s.LastIndex(p); err == nil && max(next, first) > last {
				return nil
			}
			if err == nil {
				next, err = w.entriesFrom(p, max(next, first), last)
			}
		}
		var d *ErrDamaged
		switch {
		case err == nil, changedMeanwhile(err):
		case errors.As(err, &d):
			s.reportDamage(d)
			// Go on behind it. Where the log's ends do not read there is no
			// behind.
			skip := uint64(0)
			for _, r := range d.Ranges {
				if r.Partition == p && r.High != 0 {
					skip = max(skip, r.High+1)
				}
			}
			if skip <= next {
				return nil
			}
			next = skip
		default:
			return err
		}
		if err := w.pace(0); err != nil {
			return err
		}
	}
}

// changedMeanwhile tells whether a read failed since the log was cut between the look at its
// ends and the read: at its front, at its end, or whole, when its replica is made anew.
func changedMeanwhile(err error) bool {
	return errors.As(err, new(*ErrCompacted)) || errors.As(err, new(*ErrBadBatch)) || errors.As(err, new(*ErrUnavailable))
}

// entriesFrom reads about scrubStep bytes of entries, the last one of the page
// before among them so that the chain has no gap, and returns where to go on.
func (w *scrubber) entriesFrom(p, from, last uint64) (next uint64, err error) {
	size := 0
	next = from
	err = w.s.Scan(p, from, last+1, func(e Entry, _ uint32) bool {
		size += entryHeaderLen + len(e.Data)
		next = e.Index + 1
		return size < scrubStep
	})
	if err == nil && next <= last && next-from > 1 {
		next-- // its link is looked at with the next page
	}
	if perr := w.pace(size); err == nil {
		err = perr
	}
	return next, err
}
