package broker

import (
	"context"
	"errors"
	"slices"
	"sync"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// An attachment is one node's part of a gather. Two goroutines are its own: run,
// which receives, and one that sends; both end with its stream.
type attachment struct {
	g    *gather
	node partition.NodeID
	wake chan struct{} // one place: there is something to send

	mu      sync.Mutex // after gather.mu
	shares  []consumer.Share
	changed bool   // the node does not know the shares
	loan    int    // credit that the node has
	grants  int    // of that, not sent
	lent    uint64 // all that was granted
	callIn  bool   // a recall is to be sent
	called  bool   // a recall has no answer
	hunger  bool
	over    bool
	bytes   int64           // that the node has: granted, neither come nor given back
	gives   int64           // of those, not sent
	window  int64           // how many it may have
	wants   int64           // what it has next is so large; 0: it said nothing
	shrinks bool            // bytes are to be called back
	short   <-chan struct{} // closed when there may be memory for what it wants; nil: not waited for
	number  uint64
	out     []*nodev1.SettleBatch
	waits   map[uint64]waitsSettled
}

// waitsSettled is a batch of settlements without an answer.
type waitsSettled struct {
	n    int
	part partition.PartitionID
	done func([]consumer.SettleResult)
}

func newAttachment(g *gather, n partition.NodeID) *attachment {
	return &attachment{g: g, node: n, wake: make(chan struct{}, 1), waits: map[uint64]waitsSettled{}}
}

func (a *attachment) setShares(shares []consumer.Share) {
	a.mu.Lock()
	if !slices.Equal(a.shares, shares) {
		a.shares, a.changed = shares, true
	}
	if len(shares) == 0 && a.loan > 0 && !a.called {
		a.callIn, a.called = true, true
	}
	a.mu.Unlock()
	nudge(a.wake)
}

func (a *attachment) asking() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.over && len(a.shares) > 0
}

// asks tells whether a partition is asked here.
func (a *attachment) asks(p partition.PartitionID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.shares, func(s consumer.Share) bool { return s.Partition == p })
}

func (a *attachment) hungers() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hunger
}

func (a *attachment) loaned() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.loan
}

// grant lends credit; false: the attachment is over, and what it had was given back.
func (a *attachment) grant(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return false
	}
	a.loan += n
	a.grants += n
	a.lent += uint64(n)
	a.hunger = false
	nudge(a.wake)
	return true
}

// recallIdle calls credit back that is on loan and not needed.
func (a *attachment) recallIdle() {
	a.mu.Lock()
	call := a.loan > 0 && !a.hunger && !a.called && !a.over
	if call {
		a.callIn, a.called = true, true
	}
	a.mu.Unlock()
	if call {
		nudge(a.wake)
	}
}

// settle sends settlements; false: the attachment is over.
func (a *attachment) settle(p partition.PartitionID, list []consumer.Settlement, done func([]consumer.SettleResult)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return false
	}
	a.number++
	a.waits[a.number] = waitsSettled{len(list), p, done}
	a.out = append(a.out, &nodev1.SettleBatch{Number: a.number, Partition: uint64(p), Settlements: settlementsTo(list)})
	nudge(a.wake)
	return true
}

// run serves the attachment to its end.
func (a *attachment) run() {
	ctx, stop := context.WithCancel(a.g.ctx)
	defer stop()
	a.end(a.serve(ctx, stop))
}

// end gives back what the attachment had, and answers what waits.
func (a *attachment) end(err error) {
	a.mu.Lock()
	a.over = true
	loan, bytes, waits, shares := a.loan, a.bytes, a.waits, a.shares
	a.loan, a.bytes, a.waits, a.out = 0, 0, nil, nil
	a.mu.Unlock()
	for _, s := range shares {
		a.g.d.learn(s.Partition, err)
	}
	a.g.gone(a, shares, loan, bytes)
	for _, w := range waits {
		w.done(settledAs(w.n, &partition.ErrOutcomeUnknown{Partition: w.part, Why: "the connection to node " + a.node.String() + " broke before its answer came"}))
	}
}

func (a *attachment) serve(ctx context.Context, stop context.CancelFunc) error {
	r, err := a.g.d.remote(a.node)
	if err != nil {
		return err
	}
	stream, err := r.parts.Attach(ctx)
	if err != nil {
		return err
	}
	sent := make(chan struct{})
	go func() { // ends with ctx
		defer close(sent)
		defer stop()
		a.send(ctx, stream)
	}()
	err = a.receive(stream)
	stop()
	<-sent
	_ = stream.CloseResponse()
	return r.failed(0, err)
}

func (a *attachment) send(ctx context.Context, stream *connect.BidiStreamForClientSimple[nodev1.AttachRequest, nodev1.AttachResponse]) {
	// Always, or the stream's end is not seen: a request that is being sent does not
	// look at its context.
	defer func() { _ = stream.CloseRequest() }()
	open := &nodev1.AttachOpen{Group: uint64(a.g.req.Group), Member: a.g.req.Member, Session: a.g.req.Session}
	for {
		frame, short := a.frame()
		if frame != nil {
			frame.Open, open = open, nil
			if stream.Send(frame) != nil {
				return
			}
			continue
		}
		select {
		case <-a.wake:
		case <-short:
		case <-ctx.Done():
			return
		}
	}
}

// frame is what there is to say; nil: nothing, until the channel is closed or wake
// tells.
func (a *attachment) frame() (*nodev1.AttachRequest, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lend()
	if !a.changed && a.grants == 0 && !a.callIn && a.gives == 0 && !a.shrinks && len(a.out) == 0 {
		return nil, a.short
	}
	f := &nodev1.AttachRequest{SetShares: a.changed, Grant: uint32(a.grants), Recall: a.callIn, GrantBytes: uint64(a.gives), RecallBytes: a.shrinks}
	if a.changed {
		f.Shares = sharesTo(a.shares, a.g.Seen)
	}
	n := min(len(a.out), frameMessages)
	f.Settle, a.out = a.out[:n:n], a.out[n:]
	a.changed, a.grants, a.callIn, a.gives, a.shrinks = false, 0, false, 0, false
	return f, nil
}

func (a *attachment) receive(stream *connect.BidiStreamForClientSimple[nodev1.AttachRequest, nodev1.AttachResponse]) error {
	for {
		f, err := stream.Receive()
		if err != nil {
			return err
		}
		if err := a.take(f); err != nil {
			return err
		}
	}
}

// take takes what the node tells.
func (a *attachment) take(f *nodev1.AttachResponse) error {
	hs, err := handedFrom(f.GetHanded())
	if err != nil {
		return err
	}
	used, came := 0, int64(f.GetReturnedBytes())
	for i := range hs {
		came += hs[i].Bytes()
		if !hs[i].Again {
			used += len(hs[i].Deliveries)
		}
	}
	var done []func()
	a.mu.Lock()
	a.loan = max(0, a.loan-used)
	back := min(int(f.GetReturned()), a.loan)
	a.loan -= back
	if f.GetRecalled() {
		a.called = false
	}
	hungry := f.GetHungry() && (f.Heard == nil || f.GetHeard() == a.lent)
	if hungry {
		a.hunger = true
	}
	a.bytes -= came
	if n := f.GetWantsBytes(); n > 0 {
		a.wants = int64(min(n, 1<<32))
	}
	for _, e := range f.GetEnded() {
		a.shares = slices.DeleteFunc(slices.Clone(a.shares), func(s consumer.Share) bool { return uint64(s.Partition) == e.GetPartition() })
	}
	for _, s := range f.GetSettled() {
		w, ok := a.waits[s.GetNumber()]
		if delete(a.waits, s.GetNumber()); !ok {
			continue
		}
		results := settledFrom(s.GetResults(), w.n)
		if results == nil {
			results = settledAs(w.n, &partition.ErrOutcomeUnknown{Partition: w.part, Why: "no results came back"})
		}
		done = append(done, func() { w.done(results) })
	}
	a.mu.Unlock()
	if len(hs) > 0 {
		a.g.came(a, hs)
	}
	a.repaid(came, f.GetWantsBytes() > 0)
	for _, d := range done {
		d()
	}
	for _, e := range f.GetEnded() {
		why := errorOf(e.GetFailure())
		if e.GetPartition() == 0 || errors.As(why, new(*consumer.ErrSessionEnded)) || errors.As(why, new(*consumer.ErrUnknownGroup)) {
			a.g.fail(why)
			continue
		}
		a.g.lost(partition.PartitionID(e.GetPartition()), why)
	}
	if back > 0 || f.GetRecalled() {
		a.g.back(back)
	}
	if hungry {
		a.g.hungry()
	}
	return nil
}
