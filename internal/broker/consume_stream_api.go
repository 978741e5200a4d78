package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Subscribe sends deliveries as they come; they are settled with Settle.
func (a consumeAPI) Subscribe(ctx context.Context, req *strandmqv1.SubscribeRequest, stream *connect.ServerStream[strandmqv1.SubscribeResponse]) error {
	size := int(req.GetWindow())
	switch {
	case size > maxWindow:
		return refuse("BAD_VALUE", "window", "%d is too many: ask for 1 to %d", size, maxWindow)
	case size == 0:
		size = defaultWindow
	}
	m, err := a.b.newAttendant(ctx, memberOf{req.GetTopic(), req.GetGroup(), req.GetMember(), req.GetCreateGroup(), req.GetBodyFormat()})
	if err != nil {
		return err
	}
	m.flow.release() // all that the caller sends has come
	m.window = newWindow(func(n int) { _ = m.addCredit(n) })
	m.send = func(f *frame) error {
		settled := 0
		for i := range f.deliveries {
			settled += m.window.add(&f.deliveries[i])
		}
		m.stream.Forget() // they have tokens
		err := m.readable(f.deliveries, func(ds []*strandmqv1.Delivery) error {
			out := &strandmqv1.SubscribeResponse{Deliveries: ds, Assignment: f.assignment, IdleReason: f.idle}
			if f.first {
				out.Session, out.SessionTimeoutMs = sessionText(coordinator.GroupID(m.group), m.member, m.session), a.b.cfg.SessionTimeout.Milliseconds()
			}
			f.first, f.assignment = false, nil
			return stream.Send(out)
		})
		if err == nil && settled > 0 {
			err = m.addCredit(settled)
		}
		return err
	}
	if err := m.addCredit(size); err != nil {
		return err
	}
	return m.serve(ctx)
}

// Consume carries deliveries one way, credits and settlements the other.
func (a consumeAPI) Consume(ctx context.Context, stream *connect.BidiStream[strandmqv1.ConsumeRequest, strandmqv1.ConsumeResponse]) error {
	first, err := stream.Receive()
	if errors.Is(err, io.EOF) {
		return refuse("BAD_VALUE", "open", "the stream ended before it was opened: send open in the first frame")
	}
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return refuse("BAD_VALUE", "open", "the first frame of the stream must have open, with topic, group and member")
	}
	m, err := a.b.newAttendant(ctx, memberOf{open.GetTopic(), open.GetGroup(), open.GetMember(), open.GetCreateGroup(), open.GetBodyFormat()})
	if err != nil {
		return err
	}
	var pack packer
	m.send = func(f *frame) error {
		out := &strandmqv1.ConsumeResponse{Assignment: f.assignment, Settled: a.b.settledResults(ctx, f.settled), IdleReason: f.idle}
		if f.first {
			out.Session, out.SessionTimeoutMs = sessionText(coordinator.GroupID(m.group), m.member, m.session), a.b.cfg.SessionTimeout.Milliseconds()
		}
		if open.GetRecordBatches() {
			out.Batches = pack.pack(m, f.deliveries)
			defer pack.rest(m.flow.mem)
			return stream.Send(out)
		}
		return m.readable(f.deliveries, func(ds []*strandmqv1.Delivery) error {
			out.Deliveries = ds
			err := stream.Send(out)
			out = &strandmqv1.ConsumeResponse{}
			return err
		})
	}
	served := make(chan error, 1)
	first.Open = nil
	go func() {
		err := a.b.unharmed(ctx, "Consume", func() error { return m.serve(ctx) })
		m.flow.cut(a.b.explain(errors.Join(err, context.Canceled))) // the reader may wait for more
		served <- err
	}()
	m.end(m.read(ctx, first, stream.Receive))
	return <-served
}

// read takes a member's frames until there are no more, and says why.
func (a *attendant) read(ctx context.Context, req *strandmqv1.ConsumeRequest, receive func() (*strandmqv1.ConsumeRequest, error)) ending {
	for {
		if err := a.take(ctx, req); err != nil {
			return ending{err, true}
		}
		a.flow.release()
		if req.GetLeave() {
			return ending{nil, false}
		}
		var err error
		a.waits.Store(true)
		req, err = receive()
		a.waits.Store(false)
		if errors.Is(err, io.EOF) {
			return ending{nil, false}
		}
		if err != nil {
			return ending{err, true}
		}
		if isSign(req) {
			a.signs.Store(true)
		}
	}
}

// isSign tells a frame with nothing in it, which is a sign of life.
func isSign(req *strandmqv1.ConsumeRequest) bool {
	return req.GetOpen() == nil && req.GetCredits() == 0 && len(req.GetSettlements()) == 0 && !req.GetLeave()
}

// take does what one frame of a member asks.
func (a *attendant) take(ctx context.Context, req *strandmqv1.ConsumeRequest) error {
	if req.GetOpen() != nil {
		return refuse("BAD_VALUE", "open", "the stream is open: open another stream for another member or group")
	}
	if req.GetDrain() {
		a.drain(true)
	}
	n := len(req.GetSettlements())
	if n > maxSettleRuns {
		return refuse("BATCH_TOO_LARGE", "settlements", "the frame has %d settlements: send at most %d in one", n, maxSettleRuns)
	}
	runs := make([]consumer.SettleRun, n)
	deliveries := 0
	for i, s := range req.GetSettlements() {
		if last := s.GetLast(); s.GetFirst() > maxNumber || last != 0 && (last < s.GetFirst() || last-s.GetFirst() >= maxSettled) {
			return refuse("BAD_VALUE", fmt.Sprintf("settlements[%d].last", i), "%d to %d is no run of deliveries: a run ends where it begins or later, and has at most %d", s.GetFirst(), last, maxSettled)
		}
		runs[i] = consumer.SettleRun{
			First: s.GetFirst(), Last: s.GetLast(), Action: actionOf(s.GetAction()), Delay: partition.Millis(s.GetDelayMs()), Reason: s.GetReason(),
		}
		deliveries += runs[i].Len()
	}
	if deliveries > maxSettled {
		return refuse("BATCH_TOO_LARGE", "settlements", "the frame settles %d deliveries: send at most %d in one", deliveries, maxSettled)
	}
	if i, k := overlap(runs); i != k {
		return refuse("BAD_VALUE", fmt.Sprintf("settlements[%d].first", k), "settlements[%d] has deliveries of it too: name each delivery once in a frame", i)
	}
	if n > 0 {
		a.settle(ctx, runs, deliveries)
	}
	if c := req.GetCredits(); c > 0 {
		return a.addCredit(int(c))
	}
	return nil
}

// overlap finds two runs that have a delivery in common; the same place twice if
// there are none.
func overlap(runs []consumer.SettleRun) (one, other int) {
	inOrder := func(x, y int) int { return cmp.Compare(runs[x].First, runs[y].First) }
	at := make([]int, len(runs))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, inOrder)
	for k := 1; k < len(at); k++ {
		if x := &runs[at[k-1]]; runs[at[k]].First < x.First+uint64(x.Len()) {
			return min(at[k-1], at[k]), max(at[k-1], at[k])
		}
	}
	return 0, 0
}
