package consumer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/strandmq/strandmq/partition"
)

const (
	// DefaultMaxBytes is how much a Receive answers when it does not say.
	DefaultMaxBytes = 4 << 20
	// drainPatience is how long a call that is over waits for hand-outs that
	// were proposed for it: they come with the next commit, or not at all.
	drainPatience = 10 * time.Second
	// fullPatience is how long a member that holds all that it may waits
	// before it looks again.
	fullPatience = 20 * time.Millisecond
)

// NothingLeft is why a member gets nothing where its partitions have nothing. Those
// of other members may have more, which is not looked at: there may be many.
const NothingLeft = "everything in the member's partitions was handed out and settled"

// ErrBadReceive refuses a request that cannot be meant.
type ErrBadReceive struct{ Field, Why string }

func (e *ErrBadReceive) Error() string { return e.Field + ": " + e.Why }

// Receive waits for deliveries. Without any it says why there are none. When
// the context ends first, what was handed out on the way stays with the session
// and is found by asking again.
func (s *Shell) Receive(ctx context.Context, req ReceiveRequest) ([]Delivery, string, error) {
	if err := req.check(); err != nil {
		return nil, "", err
	}
	if req.MaxBytes == 0 {
		req.MaxBytes = DefaultMaxBytes
	}
	tag, number := requestTag(req.RequestID), s.calls.Add(1)
	var late <-chan time.Time
	if req.Wait > 0 {
		timer := time.NewTimer(req.Wait)
		defer timer.Stop()
		late = timer.C
	}
	var held []handedOut
	var credit int
	for {
		var room int
		var err error
		if held, room, err = s.held(ctx, req, tag); err != nil {
			return nil, "", err
		}
		if len(held) > 0 && (tag != 0 || len(held) >= req.Max) {
			ds, err := s.fill(req, held)
			return ds, "", err
		}
		if credit = min(req.Max-len(held), room); credit > 0 {
			break
		}
		if len(held) > 0 {
			ds, err := s.fill(req, held)
			return ds, "", err
		}
		if late == nil {
			return nil, "the member holds as many deliveries as the group allows: settle some", nil
		}
		select {
		case <-ctx.Done():
			return nil, "", ctx.Err()
		case <-late:
			return nil, "the member holds as many deliveries as the group allows: settle some", nil
		case <-time.After(fullPatience):
		}
	}
	if len(held) > 0 {
		late = nil // there is an answer: add what is there now
	}
	c := newCall(credit, req.MaxBytes)
	for i := range held {
		c.bytes -= int(held[i].Size)
		c.some = true
	}
	if err := s.ask(ctx, c, req, tag, number, late); err != nil {
		return nil, "", err
	}
	ds, err := s.fill(req, append(held, c.got...))
	if err != nil || len(ds) > 0 {
		return ds, "", err
	}
	return nil, s.whyIdle(ctx, req), nil
}

func (r *ReceiveRequest) check() error {
	switch {
	case r.Member == "":
		return &ErrBadReceive{"member", "is empty: name the member"}
	case len(r.Member) > 1024:
		return &ErrBadReceive{"member", "is longer than 1024 bytes"}
	case r.Max < 1 || r.Max > 100_000:
		return &ErrBadReceive{"max_messages", "must be from 1 to 100000"}
	case r.MaxBytes < 0:
		return &ErrBadReceive{"max_bytes", "is negative"}
	case r.Wait < 0:
		return &ErrBadReceive{"wait_ms", "is negative"}
	case len(r.RequestID) > 1024:
		return &ErrBadReceive{"request_id", "is longer than 1024 bytes"}
	}
	return nil
}

// requestTag is what the log keeps of a request id. 0 stands for none.
func requestTag(id string) uint64 {
	if id == "" {
		return 0
	}
	return max(xxhash.Sum64String(id), 1)
}

// handedOut is a hand-out and where.
type handedOut struct {
	part partition.PartitionID
	handOut
}

// held asks every partition what the session holds, and how many more the
// member may hold over all of them.
func (s *Shell) held(ctx context.Context, req ReceiveRequest, tag uint64) (held []handedOut, room int, err error) {
	held, inFlight, limit, err := s.heldBy(ctx, req, tag)
	if limit == 0 {
		return held, 1 << 30, err // nobody knows one
	}
	return held, limit - inFlight, err
}

// heldBy asks every partition what the session holds, how much the member holds
// over all of them, and how much it may; 0: no partition told.
func (s *Shell) heldBy(ctx context.Context, req ReceiveRequest, tag uint64) (held []handedOut, inFlight, limit int, err error) {
	type answer struct {
		part partition.PartitionID
		holding
	}
	answers := make(chan answer, len(req.Shares)) // one place each: Done must not block
	asked := 0
	var failed error
	for _, sh := range req.Shares {
		q := query{
			Group: req.Group, Member: req.Member, Session: req.Session, Request: tag, Max: req.Max,
			Done: func(p partition.PartitionID, h holding) { answers <- answer{p, h} },
		}
		if err := s.host.Post(sh.Partition, q); err != nil {
			failed = err
			continue
		}
		asked++
	}
	heard := 0
	for range asked {
		select {
		case <-ctx.Done():
			return nil, 0, 0, ctx.Err()
		case a := <-answers:
			if a.Err != nil {
				// The other partitions go on.
				if !ofOnePartition(a.Err) {
					return nil, 0, 0, a.Err
				}
				failed = a.Err
				continue
			}
			heard++
			inFlight += int(a.InFlight)
			limit = max(limit, int(a.Limit))
			for _, h := range a.Held {
				held = append(held, handedOut{a.part, h})
			}
		}
	}
	if heard == 0 && failed != nil {
		return nil, 0, 0, failed
	}
	sortHandOuts(held)
	if len(held) > req.Max {
		held = held[:req.Max]
	}
	return held, inFlight, limit, nil
}

// ofOnePartition tells whether the member's other partitions may go on.
func ofOnePartition(err error) bool {
	return errors.As(err, new(*partition.ErrNotLeader)) || errors.As(err, new(*partition.ErrDamaged))
}

func sortHandOuts(hs []handedOut) {
	slices.SortFunc(hs, func(a, b handedOut) int {
		return cmp.Or(cmp.Compare(a.part, b.part), cmp.Compare(a.Offset, b.Offset), cmp.Compare(b.Number, a.Number))
	})
}

// newest sorts hand-outs and keeps one of each message. A message that was
// given back, or reset, while a call was under way may have been handed out to
// that very call again; the earlier token is stale then.
func newest(hs []handedOut) []handedOut {
	sortHandOuts(hs)
	return slices.CompactFunc(hs, func(a, b handedOut) bool { return a.part == b.part && a.Offset == b.Offset })
}

// ask puts the call's demand to every partition and waits: for a first
// hand-out, or until the time is up, or without a time until all was tried.
func (s *Shell) ask(ctx context.Context, c *call, req ReceiveRequest, tag, number uint64, late <-chan time.Time) error {
	failed := s.put(c, req, tag, number)
	for {
		over, err := c.over(late == nil)
		if err != nil {
			c.close()
			return err
		}
		if over {
			break
		}
		select {
		case <-c.wake:
			continue
		case <-late:
		case <-ctx.Done():
			c.close()
			return ctx.Err()
		}
		break
	}
	if c.close() {
		return s.drain(ctx, c)
	}
	if failed != nil && c.unheard() {
		return failed
	}
	return nil
}

// unheard tells that no partition has the call's demand.
func (c *call) unheard() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.posted == 0
}

// put puts the call's demand to every partition. An error is of one that did not
// take it.
func (s *Shell) put(c *call, req ReceiveRequest, tag, number uint64) (failed error) {
	for _, sh := range req.Shares {
		if sh.HeldOnly {
			continue
		}
		d := demand{
			Group: req.Group, Member: req.Member, Session: req.Session, Request: tag, Call: number,
			Share: sh.Share, Shares: sh.Shares, Taker: c, Tried: c.tried,
		}
		c.post()
		if err := s.host.Post(sh.Partition, d); err != nil {
			c.unpost()
			failed = err
		}
	}
	return failed
}

// drain waits for what was proposed for a call before it was over, so that
// nothing is handed out to nobody.
func (s *Shell) drain(ctx context.Context, c *call) error {
	timer := time.NewTimer(drainPatience)
	defer timer.Stop()
	for !c.drained() {
		select {
		case <-c.wake:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// call is the credit of one Receive over all its partitions: a taker. The lock
// is held for a few instructions only.
type call struct {
	wake chan struct{} // one place: something changed

	mu       sync.Mutex
	credit   int
	bytes    int
	some     bool // something was taken: only the first may be larger than bytes
	reserved int
	posted   int // partitions that have the demand
	untried  int
	closed   bool
	got      []handedOut
	err      error
}

func newCall(credit, bytes int) *call {
	return &call{wake: make(chan struct{}, 1), credit: credit, bytes: bytes}
}

func (c *call) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *call) post() {
	c.mu.Lock()
	c.posted++
	c.untried++
	c.mu.Unlock()
}

func (c *call) unpost() {
	c.mu.Lock()
	c.posted--
	c.untried--
	c.mu.Unlock()
}

func (c *call) tried() {
	c.mu.Lock()
	c.untried--
	c.mu.Unlock()
	c.signal()
}

// Room implements taker.
func (c *call) Room() (now, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && c.credit > 0 && (c.bytes > 0 || !c.some), !c.closed
}

// Reserve implements taker.
func (c *call) Reserve(size int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.credit <= 0 || c.some && size > c.bytes {
		return false
	}
	c.credit--
	c.bytes -= size
	c.reserved++
	c.some = true
	return true
}

// Return implements taker.
func (c *call) Return(n, bytes int) {
	c.mu.Lock()
	c.credit += n
	c.bytes += bytes
	c.reserved -= n
	if c.reserved == 0 && len(c.got) == 0 {
		c.some = false
	}
	c.mu.Unlock()
	c.signal()
}

// Handed implements taker.
func (c *call) Handed(p partition.PartitionID, hs []handOut) {
	c.mu.Lock()
	for _, h := range hs {
		c.got = append(c.got, handedOut{p, h})
	}
	c.reserved -= len(hs)
	c.mu.Unlock()
	c.signal()
}

// Ended implements taker.
func (c *call) Ended(_ partition.PartitionID, why error) {
	c.mu.Lock()
	c.posted--
	if c.err == nil && (c.posted == 0 || !ofOnePartition(why)) {
		c.err = why
	}
	c.mu.Unlock()
	c.signal()
}

// over tells whether there is an answer: something was handed out, or, for a
// call that does not wait, all was tried and came to nothing.
func (c *call) over(atOnce bool) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(c.got) > 0:
		return true, nil
	case c.err != nil && c.reserved == 0:
		return true, c.err
	}
	return atOnce && c.untried <= 0 && c.reserved == 0, nil
}

// close ends the credit. It tells whether anything is still on its way.
func (c *call) close() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.reserved > 0
}

func (c *call) drained() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reserved <= 0
}

// fill reads the messages of hand-outs and makes deliveries of them: of one
// partition in the order of offsets, at least one, and no more than MaxBytes.
// What does not fit stays with the session.
func (s *Shell) fill(req ReceiveRequest, hs []handedOut) ([]Delivery, error) {
	hs = newest(hs)
	holder, maxBytes := holderOf(req.Member), req.MaxBytes
	ds := make([]Delivery, 0, len(hs))
	var unread error // of a damaged partition: the others go on
	for len(hs) > 0 {
		n := 1
		for n < len(hs) && hs[n].part == hs[0].part {
			n++
		}
		offsets := make([]partition.Offset, n)
		for i := range offsets {
			offsets[i] = hs[i].Offset
		}
		msgs, bad, err := s.read(hs[0].part, req.Group, offsets)
		if len(bad) > 0 {
			of := make([]handOut, n)
			for i := range of {
				of[i] = hs[i].handOut
			}
			s.bury(hs[0].part, req.Group, of, bad)
		}
		var damaged *partition.ErrDamaged
		if errors.As(err, &damaged) {
			unread = err
			hs = hs[n:]
			continue
		}
		if err != nil {
			return nil, err
		}
		for i, m := range msgs {
			h := &hs[i]
			if m.Offset != h.Offset {
				continue // retention removed it: the hand-out lapses; or it is damaged
			}
			if maxBytes -= int(h.Size); maxBytes < 0 && len(ds) > 0 {
				return ds, nil
			}
			d := Delivery{
				Partition: h.part, Message: m, Attempt: h.Attempt,
				Deadline: h.Deadline, FirstSeen: h.FirstSeen, Fence: h.Number, Replayed: h.Replayed, Settled: h.Settled,
				Token: Token{
					Partition: h.part, Group: req.Group, Epoch: h.Epoch, Offset: h.Offset, HandOut: h.Number, Ordinal: h.Ordinal,
					Holder: holder,
				},
			}
			s.seal.seal(&d.Token)
			ds = append(ds, d)
		}
		hs = hs[n:]
	}
	if len(ds) == 0 && unread != nil {
		return nil, unread
	}
	return ds, nil
}
