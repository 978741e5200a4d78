package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/strandmq/strandmq/internal/check"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// streamSession is a member's session on a Consume stream. A goroutine of its
// own reads; it ends with the stream, and Leave and Drop wait for it.
type streamSession struct {
	b *streams
	s *stream

	reader  sync.WaitGroup
	mu      sync.Mutex
	moved   sync.Cond
	queue   []Delivery                             // guarded by mu: came, and nobody asked yet
	settled map[uint64]*strandmqv1.SettleRunResult // guarded by mu: answers that somebody waits for
	wanted  map[uint64]bool                        // guarded by mu: settlements without an answer
	end     error                                  // guarded by mu: why the stream ended
}

// Join implements Broker.
func (b *streams) Join(ctx context.Context, topic, group, member string) (Session, error) {
	open := &strandmqv1.ConsumeRequest{
		Open: &strandmqv1.ConsumeOpen{
			Topic: topic, Group: group, Member: member, RecordBatches: true, BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES,
		},
		Credits: uint32(b.c.Take),
	}
	return again(ctx, b.c.RetryFor, func() (Session, error) {
		once, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		s, err := openStreamAt(once, b.doors, b.server, consumeStream)
		if err != nil {
			return nil, explainStream(err, b.server)
		}
		defer context.AfterFunc(once, func() { _ = s.Close() })()
		x := &streamSession{b: b, s: s, settled: map[uint64]*strandmqv1.SettleRunResult{}, wanted: map[uint64]bool{}}
		x.moved.L = &x.mu
		first := &strandmqv1.ConsumeResponse{}
		if err = s.Send(open); errors.Is(err, errCut) || err == nil {
			err = s.Receive(first)
		}
		if err == nil {
			err = x.take(first)
		}
		if err != nil {
			_ = s.Close()
			if errors.Is(err, io.EOF) {
				err = &Refusal{Text: "the broker ended the stream", Passing: true}
			}
			return nil, explainStream(err, b.server)
		}
		x.reader.Go(x.read)
		return x, nil
	})
}

// read takes what comes until the stream ends.
func (x *streamSession) read() {
	for {
		m := &strandmqv1.ConsumeResponse{} // a new one: what is in it stays in the queue
		err := x.s.Receive(m)
		if err == nil {
			err = x.take(m)
		}
		if err != nil {
			x.mu.Lock()
			x.end = err
			x.mu.Unlock()
			x.moved.Broadcast()
			_ = x.s.Close()
			return
		}
	}
}

// take takes one frame.
func (x *streamSession) take(m *strandmqv1.ConsumeResponse) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, d := range m.GetBatches() {
		bt, rest, err := record.Parse(d.GetRecords())
		if err != nil || len(rest) > 0 {
			return errors.Join(err, errFrame)
		}
		offset := d.GetFirstOffset()
		bt.Each(func(i int, r record.Raw) bool {
			if i > 0 {
				offset += uint64(numberOf(d.GetOffsetSteps(), i-1, 1))
			}
			x.queue = append(x.queue, Delivery{
				Key: string(r.Key()), Body: r.Body(), Place: check.Place{Partition: d.GetPartition(), Offset: offset},
				Attempt: numberOf(d.GetAttempts(), i, 1), Number: d.GetFirstNumber() + uint64(i), Deadline: d.GetDeadlineMs(), Pushed: true,
				Replayed: slices.Contains(d.GetReplayed(), uint32(i)),
			})
			return true
		})
	}
	for _, r := range m.GetSettled() {
		first, last, err := settledRun(r)
		if err != nil {
			return err
		}
		for n := first; n <= last; n++ {
			if !x.wanted[n] {
				return fmt.Errorf("%w: it settles delivery %d, which nobody settled", errFrame, n)
			}
			delete(x.wanted, n)
			x.settled[n] = r
		}
	}
	x.moved.Broadcast()
	return nil
}

// Receive implements Session. What it gives is credited anew.
func (x *streamSession) Receive(ctx context.Context, most int, wait time.Duration) ([]Delivery, error) {
	limit, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	x.mu.Lock()
	err := waitFor(limit, &x.moved, func() bool { return len(x.queue) > 0 || x.end != nil })
	n := min(most, len(x.queue))
	got := slices.Clone(x.queue[:n])
	clear(x.queue[:n])
	x.queue = x.queue[n:]
	end := x.end
	x.mu.Unlock()
	switch {
	case n > 0:
		// When the stream is gone the next call says so.
		_ = x.s.Send(&strandmqv1.ConsumeRequest{Credits: uint32(n)})
		return got, nil
	case end != nil:
		return nil, ended(end, x.b.server)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, nil // the wait ran out
	}
	return nil, nil
}

// Settle implements Session. What was refused for now is settled again: its number is
// good until it is settled, or stale.
func (x *streamSession) Settle(ctx context.Context, list []Settlement) ([]check.Outcome, error) {
	out := make([]check.Outcome, len(list))
	for i := range out {
		out[i] = check.Unknown
	}
	pending := list
	places := make([]int, len(list)) // of pending in list
	for i := range places {
		places[i] = i
	}
	_, err := again(ctx, x.b.c.RetryFor, func() (struct{}, error) {
		answers, err := x.settle(ctx, pending)
		var later []Settlement
		var where []int
		var why *Refusal
		for i, r := range answers {
			switch reason := r.GetProblem().GetReason(); {
			case r == nil: // the error says why
			case reason == "" && r.GetDeadLettered():
				out[places[i]] = check.Buried
			case reason == "" && pending[i].Nack:
				out[places[i]] = check.Failed
			case reason == "":
				out[places[i]] = check.Acked
			case reason == "STALE_DELIVERY" || reason == "SESSION_ENDED" || reason == "UNKNOWN_MESSAGE":
				out[places[i]] = check.Stale
			default:
				n := &Refusal{}
				refuse(n, r.GetProblem())
				n.Passing = n.Passing || reason == "OUTCOME_UNKNOWN"
				if why == nil || why.Passing && (!n.Passing || n.RetryAfter > why.RetryAfter) {
					why = n
				}
				later, where = append(later, pending[i]), append(where, places[i])
			}
		}
		if err == nil && why != nil {
			err = why
		}
		pending, places = later, where
		return struct{}{}, err
	})
	return out, err
}

// settle settles once, and gives the answers in their places; nil where none came.
func (x *streamSession) settle(ctx context.Context, list []Settlement) ([]*strandmqv1.SettleRunResult, error) {
	limit, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	x.mu.Lock()
	for _, s := range list {
		x.wanted[s.Number] = true
	}
	x.mu.Unlock()
	for from := 0; from < len(list); {
		req := &strandmqv1.ConsumeRequest{}
		for from < len(list) && len(req.GetSettlements()) < 1000 {
			to := from + 1
			for to < len(list) && list[to].Number == list[to-1].Number+1 && list[to].Nack == list[from].Nack {
				to++
			}
			run := &strandmqv1.SettleRun{First: list[from].Number, Last: list[to-1].Number, Action: strandmqv1.SettleAction_SETTLE_ACTION_ACK}
			if list[from].Nack {
				run.Action, run.Reason = strandmqv1.SettleAction_SETTLE_ACTION_NACK, "the load test's failure mix"
			}
			req.Settlements = append(req.Settlements, run)
			from = to
		}
		if x.s.Send(req) != nil {
			break // the reader says why
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	missing := func() bool {
		for _, s := range list {
			if x.settled[s.Number] == nil {
				return true
			}
		}
		return false
	}
	late := waitFor(limit, &x.moved, func() bool { return x.end != nil || !missing() })
	lacks := missing()
	answers := make([]*strandmqv1.SettleRunResult, len(list))
	for i, s := range list {
		answers[i] = x.settled[s.Number]
		delete(x.settled, s.Number)
	}
	switch {
	case !lacks:
		return answers, nil
	case x.end != nil:
		return answers, ended(x.end, x.b.server)
	case ctx.Err() != nil:
		return answers, ctx.Err()
	case late != nil:
		return answers, &Refusal{Text: fmt.Sprintf("the broker at %s has not answered settlements for %v", x.b.server, callTime)}
	}
	return answers, nil
}

// Drop implements Session.
func (x *streamSession) Drop() {
	_ = x.s.Close()
	x.reader.Wait()
}

// Leave implements Session.
func (x *streamSession) Leave(ctx context.Context) error {
	err := x.s.Send(&strandmqv1.ConsumeRequest{Leave: true})
	if err == nil {
		err = x.s.CloseSend()
	}
	x.mu.Lock()
	late := waitFor(ctx, &x.moved, func() bool { return x.end != nil })
	end := x.end
	x.mu.Unlock()
	x.Drop()
	switch {
	case errors.Is(end, io.EOF):
		return nil
	case late != nil:
		return late
	}
	return ended(errors.Join(end, err), x.b.server)
}
