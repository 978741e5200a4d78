package consumer

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/strandmq/strandmq/partition"
)

// StreamRequest says for whom a stream is.
type StreamRequest struct {
	Group   GroupID
	Member  string
	Session uint64
	// MaxBytes is the most that one Next reads, of keys, headers and bodies; one
	// delivery always fits. 0: 4 MiB.
	MaxBytes int
	// Elsewhere, if set, settles for partitions that other nodes lead: it takes
	// the settlements of one partition, or tells that this node leads it. done is
	// called once, with a result for each. Batches of a partition are applied in
	// the order of the calls.
	Elsewhere func(p partition.PartitionID, list []Settlement, done func([]SettleResult)) bool
	// Again, if set, has settlements that a partition did not take here made again where
	// it is led by now. It calls done once, with these results or better ones, and must
	// not block.
	Again func(list []Settlement, results []SettleResult, done func([]SettleResult))
	// Told, if set, is called when Hungry or Ends may have something. It must not
	// block.
	Told func()
}

// Stream is one session's lasting demand for work over its partitions. It gets
// what its credit allows, and numbers what it gives out, from 1. Until there is
// credit, or something to hand out, nothing of it runs. Its methods may be
// called from any goroutine; Next from one at a time.
//
//	AddCredit ──► hand of each partition ──plan──► log ──► got ──Next──► member
//	                                                        │              │
//	                                                      kept ◄──Settle───┘
type Stream struct {
	s    *Shell
	req  StreamRequest
	wake chan struct{} // one place: there may be something for Next

	mu     sync.Mutex
	credit int
	shares map[partition.PartitionID]*streamShare
	had    map[partition.PartitionID]bool // partitions that may hold deliveries of it
	got    []gotRun                       // handed out and not taken by Next
	next   uint64                         // number of the next delivery
	kept   []*keptBlock                   // what can be settled, by number
	empty  int                            // blocks of those of which nothing is left
	err    error
	closed bool
	given  []Handed                         // came from elsewhere and not taken by Next
	waits  int64                            // bytes of those
	seen   map[partition.PartitionID]uint64 // the last hand-outs that came, if some may be elsewhere
	ends   []ShareEnd                       // for Ends
	adopts map[partition.PartitionID]bool   // Adopt was called, and its answer not given out
	took   map[adopted]bool                 // hand-outs that were given out and may come again

	givenTurn bool // the turn of what came from elsewhere, if both are there

	offsets []partition.Offset // scratch of Next
	raws    []partition.RawMessage
}

// streamShare is what a stream asks of one partition: a taker.
type streamShare struct {
	st     *Stream
	share  Share
	open   bool
	asleep *waiter // waits in the hand until there is credit
}

// gotRun is what one plan handed out.
type gotRun struct {
	part  partition.PartitionID
	hs    []handOut
	again bool // adopted: no credit was taken for it
}

// Open opens a stream. It asks for nothing yet: SetShares says of whom, AddCredit
// how much. Close ends it.
func (s *Shell) Open(req StreamRequest) (*Stream, error) {
	if req.MaxBytes == 0 {
		req.MaxBytes = DefaultMaxBytes
	}
	check := ReceiveRequest{Member: req.Member, Max: 1, MaxBytes: req.MaxBytes}
	if err := check.check(); err != nil {
		return nil, err
	}
	return &Stream{
		s: s, req: req, wake: make(chan struct{}, 1), next: 1,
		shares: make(map[partition.PartitionID]*streamShare), had: make(map[partition.PartitionID]bool),
	}, nil
}

// SetShares tells the stream's present share of the partitions. What is new is
// asked for, and what is no longer among them is not asked any more; what it
// handed out stays with the session. Telling the same again is cheap, and asks
// those partitions anew that had sent the stream away since they stopped or
// were led elsewhere.
func (st *Stream) SetShares(shares []Share) {
	type told struct {
		part partition.PartitionID
		ev   any
	}
	var tell []told
	st.mu.Lock()
	if st.closed || st.err != nil && len(shares) > 0 {
		st.mu.Unlock()
		return
	}
	want := make(map[partition.PartitionID]bool, len(shares))
	for _, sh := range shares {
		if sh.HeldOnly {
			continue
		}
		want[sh.Partition] = true
		old := st.shares[sh.Partition]
		if old != nil && old.open {
			if old.share == sh {
				continue
			}
			old.open, old.asleep = false, nil
			tell = append(tell, told{sh.Partition, withdrawal{st.req.Group, old}})
		}
		y := &streamShare{st: st, share: sh, open: true}
		st.shares[sh.Partition], st.had[sh.Partition] = y, true
		tell = append(tell, told{sh.Partition, demand{
			Group: st.req.Group, Member: st.req.Member, Session: st.req.Session,
			Share: sh.Share, Shares: sh.Shares, Taker: y, Sleeper: y,
		}})
	}
	// In the order of partitions, here and below: the same calls do the same.
	for _, p := range slices.Sorted(maps.Keys(st.shares)) {
		if want[p] {
			continue
		}
		y := st.shares[p]
		delete(st.shares, p)
		if y.open {
			y.open, y.asleep = false, nil
			tell = append(tell, told{p, withdrawal{st.req.Group, y}})
		}
	}
	st.mu.Unlock()
	for _, t := range tell {
		if err := st.s.host.Tell(t.part, t.ev); err != nil {
			if d, ok := t.ev.(demand); ok {
				d.Taker.Ended(t.part, err)
			}
		}
	}
}

// AddCredit lets the stream be handed out so many more deliveries.
func (st *Stream) AddCredit(n int) {
	st.mu.Lock()
	st.credit += n
	st.rouse()
}

// rouse wakes the shares that wait for credit, and unlocks.
func (st *Stream) rouse() {
	var room [16]*waiter
	sleepers := room[:0]
	if st.credit > 0 && !st.closed {
		for _, y := range st.shares {
			if y.asleep != nil {
				sleepers = append(sleepers, y.asleep)
				y.asleep = nil
			}
		}
	}
	st.mu.Unlock()
	if len(sleepers) > 1 {
		slices.SortFunc(sleepers, func(a, b *waiter) int {
			return cmp.Compare(a.Taker.(*streamShare).share.Partition, b.Taker.(*streamShare).share.Partition)
		})
	}
	for _, w := range sleepers {
		y := w.Taker.(*streamShare)
		if err := st.s.host.Tell(y.share.Partition, awake{w}); err != nil {
			y.Ended(y.share.Partition, err)
		}
	}
}

func (st *Stream) signal() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// WhyIdle says why nothing is handed out.
func (st *Stream) WhyIdle(ctx context.Context) string {
	st.mu.Lock()
	credit, shares := st.credit, make([]Share, 0, len(st.shares))
	for _, y := range st.shares {
		shares = append(shares, y.share)
	}
	st.mu.Unlock()
	if credit <= 0 {
		return "the member gave no credit"
	}
	return st.s.whyIdle(ctx, ReceiveRequest{Group: st.req.Group, Shares: shares})
}

// Close ends the stream, and its session where it had partitions: what it holds
// lapses at once, charged, if it was lost, and is given back otherwise. Where a
// partition does not answer before ctx ends, it lapses at its deadline.
func (st *Stream) Close(ctx context.Context, lost bool) error {
	st.SetShares(nil)
	st.mu.Lock()
	st.closed = true
	had := st.had
	st.had, st.got, st.given, st.waits, st.kept, st.empty = nil, nil, nil, 0, nil, 0
	st.mu.Unlock()
	st.signal()
	kind := cmdLeave
	if lost {
		kind = cmdSessions
	}
	errs := make(chan error, len(had))
	for _, p := range slices.Sorted(maps.Keys(had)) {
		cmd := encodeSessions(kind, st.s.stamp(ctx, p, st.req.Group), st.req.Group, st.req.Member, st.req.Session+1)
		err := st.s.host.ProposeAsync(p, cmd, func(res any, err error) {
			if refused, ok := res.(error); ok && err == nil {
				err = refused
			}
			errs <- err
		})
		if err != nil {
			errs <- err
		}
	}
	var all []error
	for range had {
		select {
		case err := <-errs:
			var gone *ErrUnknownGroup
			if err != nil && !errors.As(err, &gone) {
				all = append(all, err)
			}
		case <-ctx.Done():
			return errors.Join(append(all, ctx.Err())...)
		}
	}
	return errors.Join(all...)
}

// Room implements taker.
func (y *streamShare) Room() (now, open bool) {
	y.st.mu.Lock()
	defer y.st.mu.Unlock()
	return y.open && y.st.credit > 0, y.open
}

// Reserve implements taker. Bytes do not count: what waits for Next is a few
// words for each delivery, and Next reads no more than it should.
func (y *streamShare) Reserve(int) bool {
	y.st.mu.Lock()
	defer y.st.mu.Unlock()
	if !y.open || y.st.credit <= 0 {
		return false
	}
	y.st.credit--
	return true
}

// Return implements taker. The credit may be what other partitions wait for.
func (y *streamShare) Return(n, _ int) {
	y.st.mu.Lock()
	y.st.credit += n
	y.st.rouse()
}

// Handed implements taker.
func (y *streamShare) Handed(p partition.PartitionID, hs []handOut) {
	y.st.mu.Lock()
	if !y.st.closed {
		y.st.got = append(y.st.got, gotRun{part: p, hs: hs})
	}
	y.st.mu.Unlock()
	y.st.signal()
}

// Ended implements taker. What ends the session or the group ends the stream;
// otherwise the share is asked for again with the next SetShares.
func (y *streamShare) Ended(_ partition.PartitionID, why error) {
	var session *ErrSessionEnded
	var group *ErrUnknownGroup
	st := y.st
	st.mu.Lock()
	was := y.open
	y.open, y.asleep = false, nil
	if was && st.err == nil && (errors.As(why, &session) || errors.As(why, &group)) {
		st.err = why
	}
	told := st.req.Told
	if was && told != nil {
		st.ends = append(st.ends, ShareEnd{y.share.Partition, why})
	}
	st.mu.Unlock()
	st.signal()
	if was && told != nil {
		told()
	}
}

// Sleep implements sleeper.
func (y *streamShare) Sleep(w *waiter) bool {
	y.st.mu.Lock()
	defer y.st.mu.Unlock()
	if !y.open || y.st.credit > 0 {
		return false
	}
	y.asleep = w
	if y.st.req.Told != nil {
		y.st.req.Told()
	}
	return true
}
