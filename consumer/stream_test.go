package consumer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
)

// streamed is what a stream has by now.
func streamed(t *testing.T, st *Stream) (hs []Handed) {
	t.Helper()
	for {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		st.mu.Lock()
		some := len(st.got) > 0
		st.mu.Unlock()
		if !some {
			return hs
		}
		h, err := st.Next(ctx)
		if errors.Is(err, context.Canceled) {
			return hs // all of it had become void
		}
		if err != nil {
			t.Fatal(err)
		}
		hs = append(hs, h...)
	}
}

func opened(t *testing.T, s *Shell, req StreamRequest, shares ...Share) *Stream {
	t.Helper()
	st, err := s.Open(req)
	if err != nil {
		t.Fatal(err)
	}
	st.SetShares(shares)
	return st
}

func settleRuns(st *Stream, runs ...SettleRun) []SettleRunResult {
	ch := make(chan []SettleRunResult, 1)
	st.Settle(context.Background(), runs, func(rs []SettleRunResult) { ch <- rs })
	return <-ch
}

func offsetsOf(hs []Handed) (os []partition.Offset) {
	for _, h := range hs {
		for _, d := range h.Deliveries {
			os = append(os, d.Message.Offset)
		}
	}
	return os
}

// A stream gets what its credit allows, from all its partitions together, and
// is woken by more.
func TestStreamCredit(t *testing.T) {
	w := newWorld(2)
	s := w.shell()
	for _, p := range w.ids {
		if err := s.CreateGroup(context.Background(), p, GroupSpec{ID: 1, Name: "G", Policy: Default()}); err != nil {
			t.Fatal(err)
		}
	}
	st := opened(t, s, StreamRequest{Group: 1, Member: "A", Session: 1}, Share{Partition: 1}, Share{Partition: 2})
	w.publish(1, "a", "b", "c", "d")
	w.publish(2, "e", "f", "g", "h")
	if hs := streamed(t, st); len(hs) != 0 {
		t.Fatalf("without credit: %+v", hs)
	}
	if why := st.WhyIdle(context.Background()); why != "the member gave no credit" {
		t.Fatalf("idle because %q", why)
	}
	total := 0
	for i, n := range []int{1, 2, 3, 100} {
		st.AddCredit(n)
		got := len(offsetsOf(streamed(t, st)))
		total += got
		if want := min(n, 8-(total-got)); got != want {
			t.Fatalf("step %d: %d deliveries for a credit of %d, want %d", i, got, n, want)
		}
	}
	// What comes later is given out with the credit that is left.
	w.publish(2, "i")
	hs := streamed(t, st)
	if len(hs) != 1 || hs[0].First != 9 || hs[0].Deliveries[0].Attempt != 1 || string(hs[0].Deliveries[0].Message.Record.Key()) != "i" {
		t.Fatalf("the ninth: %+v", hs)
	}
	rs := settleRuns(st, SettleRun{First: 1, Last: 8, Action: Ack}, SettleRun{First: 9, Action: Nack, Delay: 1, Reason: "no"})
	if len(rs) != 2 || rs[0].Err != nil || rs[0].Last != 8 || rs[1].Err != nil {
		t.Fatalf("settled: %+v", rs)
	}
	w.advance(10)
	hs = streamed(t, st)
	if len(hs) != 1 || hs[0].Deliveries[0].Attempt != 2 || hs[0].First != 10 {
		t.Fatalf("after the nack: %+v", hs)
	}
	// Numbers that are settled, or never were given out, are stale: each part of
	// a run has its own result.
	rs = settleRuns(st, SettleRun{First: 8, Last: 12, Action: Ack})
	var stale *ErrStale
	if len(rs) != 3 || !errors.As(rs[0].Err, &stale) || rs[0].Last != 9 || rs[1].Err != nil || rs[1].First != 10 || !errors.As(rs[2].Err, &stale) || rs[2].Last != 12 {
		t.Fatalf("over the ends: %+v", rs)
	}
	if len(st.kept) != 0 {
		t.Fatalf("%d blocks are kept", len(st.kept))
	}
	for _, bad := range []SettleRun{{First: 2, Last: 1, Action: Ack}, {First: 1}, {First: 1, Action: Ack, Delay: 5}} {
		var refused *ErrBadSettlement
		if rs := settleRuns(st, bad); len(rs) != 1 || !errors.As(rs[0].Err, &refused) {
			t.Errorf("%+v: %+v", bad, rs)
		}
	}
}

// A share that went to another member is asked no more; what it gave stays.
func TestStreamShares(t *testing.T) {
	w := newWorld(2)
	s := w.shell()
	for _, p := range w.ids {
		if err := s.CreateGroup(context.Background(), p, GroupSpec{ID: 1, Name: "G", Policy: Default()}); err != nil {
			t.Fatal(err)
		}
	}
	a := opened(t, s, StreamRequest{Group: 1, Member: "A", Session: 1}, Share{Partition: 1}, Share{Partition: 2})
	a.AddCredit(100)
	w.publish(1, "a")
	w.publish(2, "b")
	if n := len(offsetsOf(streamed(t, a))); n != 2 {
		t.Fatalf("%d deliveries", n)
	}
	a.SetShares([]Share{{Partition: 1}})
	w.publish(2, "c")
	if n := len(offsetsOf(streamed(t, a))); n != 0 {
		t.Fatalf("%d deliveries of a share that is gone", n)
	}
	b := opened(t, s, StreamRequest{Group: 1, Member: "B", Session: 2}, Share{Partition: 2})
	b.AddCredit(100)
	if n := len(offsetsOf(streamed(t, b))); n != 1 {
		t.Fatalf("%d deliveries to the new owner", n)
	}
	if rs := settleRuns(a, SettleRun{First: 1, Last: 2, Action: Ack}); len(rs) != 1 || rs[0].Err != nil {
		t.Fatalf("the old owner settles what it holds: %+v", rs)
	}
	// Leaving gives back without a charge, being lost charges.
	w.publish(1, "d")
	if hs := streamed(t, a); len(offsetsOf(hs)) != 1 {
		t.Fatalf("%+v", hs)
	}
	if err := a.Close(context.Background(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Next(context.Background()); err == nil {
		t.Fatal("a closed stream gives")
	}
	if err := b.Close(context.Background(), true); err != nil {
		t.Fatal(err)
	}
	w.advance(1000)
	c := opened(t, s, StreamRequest{Group: 1, Member: "C", Session: 3}, Share{Partition: 1}, Share{Partition: 2})
	c.AddCredit(100)
	for _, h := range streamed(t, c) {
		if want := map[partition.PartitionID]uint32{1: 1, 2: 2}[h.Partition]; len(h.Deliveries) != 1 || h.Deliveries[0].Attempt != want {
			t.Errorf("partition %v: %+v, want attempt %d", h.Partition, h.Deliveries, want)
		}
	}
	// A session that ends elsewhere ends its stream.
	if err := s.EndSession(context.Background(), 1, 1, "C", 4); err != nil {
		t.Fatal(err)
	}
	var ended *ErrSessionEnded
	if _, err := c.Next(context.Background()); !errors.As(err, &ended) {
		t.Fatalf("after the session's end: %v", err)
	}
}

// What waits in the stream until it lapses is not given out, and its credit
// comes back; bytes are bounded by what one Next takes.
func TestStreamSlowReader(t *testing.T) {
	w := newWorld(1)
	s := w.shell()
	p := Default()
	p.AckDeadline, p.Backoff, p.MaxAttempts = 1000, 1, 0
	if err := s.CreateGroup(context.Background(), 1, GroupSpec{ID: 1, Name: "G", Policy: p}); err != nil {
		t.Fatal(err)
	}
	st := opened(t, s, StreamRequest{Group: 1, Member: "A", Session: 1, MaxBytes: 12}, Share{Partition: 1})
	st.AddCredit(4)
	w.publish(1, "a", "b", "c", "d", "e") // of 5 bytes each
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	hs, err := st.Next(ctx)
	if err != nil || len(offsetsOf(hs)) != 2 {
		t.Fatalf("%v, %v", hs, err)
	}
	w.advance(1500) // all four lapse, and are handed out again as credit allows: not at all
	got := len(offsetsOf(streamed(t, st)))
	// Two lapsed in the stream: their credit came back, and gave two others.
	if got != 2 {
		t.Fatalf("%d deliveries with the credit of what lapsed", got)
	}
}

// The bytes of a stream's messages are those that were published.
func TestStreamRecords(t *testing.T) {
	n := newNode(t, 2)
	n.group(1, Default())
	for i := range 50 {
		n.publish(partition.PartitionID(1+i%2), fmt.Sprint("k", i), fmt.Sprint("l", i))
	}
	st := opened(t, n.shell, StreamRequest{Group: 1, Member: "A", Session: 1}, n.shares()...)
	st.AddCredit(1000)
	seen := 0
	var b record.Builder
	for seen < 100 {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		hs, err := st.Next(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		for i := range hs {
			h := &hs[i]
			b.Reset(nil, record.Meta{PublishTime: int64(h.Deliveries[0].Message.PublishTime)})
			var ss []Settlement
			for j, d := range h.Deliveries {
				if string(d.Message.Record.Body()) != "body of "+string(d.Message.Record.Key()) {
					t.Fatalf("%q with %q", d.Message.Record.Key(), d.Message.Record.Body())
				}
				b.Add(d.Message.Record)
				ss = append(ss, Settlement{Token: st.Token(h, j), Action: Ack})
			}
			batch, rest, err := record.Parse(b.Seal())
			if err != nil || len(rest) > 0 || batch.Len() != len(h.Deliveries) {
				t.Fatalf("the batch of copies: %v", err)
			}
			for _, r := range n.shell.Settle(context.Background(), 1, ss) {
				if r.Err != nil {
					t.Fatal(r.Err)
				}
			}
			seen += len(h.Deliveries)
		}
	}
	got := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, err := st.Next(ctx); got <- err }()
	select {
	case err := <-got:
		t.Fatalf("there was more: %v", err)
	case <-time.After(20 * time.Millisecond): // nothing may come: there is nothing to wait for
	}
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := st.Close(context.Background(), false); err != nil {
		t.Fatal(err)
	}
}

// Numbers that were never given out are stale, however large they are, and those
// beside them are settled.
func TestStreamSettleFarNumbers(t *testing.T) {
	w := newWorld(1)
	s := w.shell()
	if err := s.CreateGroup(context.Background(), 1, GroupSpec{ID: 1, Name: "G", Policy: Default()}); err != nil {
		t.Fatal(err)
	}
	const most = math.MaxUint64
	st := opened(t, s, StreamRequest{Group: 1, Member: "A", Session: 1}, Share{Partition: 1})
	st.AddCredit(6)
	w.publish(1, "a", "b", "c", "d", "e", "f")
	if n := len(offsetsOf(streamed(t, st))); n != 6 {
		t.Fatalf("%d deliveries", n)
	}
	for _, run := range []SettleRun{{Action: Ack}, {Last: most, Action: Ack}} {
		if rs := settleRuns(st, run); len(rs) != 1 || !errors.As(rs[0].Err, new(*ErrBadSettlement)) {
			t.Fatalf("there is no number 0: %v", rs)
		}
	}
	for _, c := range []struct {
		run     SettleRun
		settled uint64 // the first that is not stale
		n       uint64 // how many are not
	}{
		{SettleRun{First: most}, 0, 0},
		{SettleRun{First: most - 1, Last: most}, 0, 0},
		{SettleRun{First: 1 << 63, Last: most}, 0, 0},
		{SettleRun{First: 7, Last: most}, 0, 0},
		{SettleRun{First: 6, Last: most}, 6, 1},
		{SettleRun{First: 4, Last: 1 << 63}, 4, 2},
		{SettleRun{First: 1, Last: most}, 1, 3},
		{SettleRun{First: 1, Last: most}, 0, 0},
	} {
		c.run.Action = Ack
		rs := settleRuns(st, c.run)
		at, settled := c.run.First, uint64(0)
		for _, r := range rs {
			if r.First != at || r.Last < r.First {
				t.Fatalf("%d to %d: %v", c.run.First, c.run.Last, rs)
			}
			at = r.Last + 1
			if r.Err != nil && !errors.As(r.Err, new(*ErrStale)) {
				t.Fatalf("%d to %d: %v", c.run.First, c.run.Last, r.Err)
			}
			if r.Err == nil {
				if settled += r.Last - r.First + 1; r.First != c.settled {
					t.Fatalf("%d to %d: %v", c.run.First, c.run.Last, rs)
				}
			}
		}
		if at != max(c.run.First, c.run.Last)+1 || settled != c.n {
			t.Fatalf("%d to %d: %v", c.run.First, c.run.Last, rs)
		}
	}
}

// moody is a host whose partitions take no settlements for a while.
type moody struct {
	Replicas
	err  error // nil: they take them
	late bool  // the refusal comes as the command's outcome
}

func (m *moody) ProposeAsync(id partition.PartitionID, cmd []byte, done func(any, error)) error {
	switch {
	case m.err == nil:
		return m.Replicas.ProposeAsync(id, cmd, done)
	case m.late:
		done(nil, m.err)
		return nil
	}
	return m.err
}

// What a partition did not take here is offered to whoever may know where it is led by now,
// with tokens that are good anywhere; what became of it there counts.
func TestStreamHasRefusedSettlementsMadeAgain(t *testing.T) {
	for _, late := range []bool{false, true} {
		w := newWorld(1)
		s := w.shell()
		if err := s.CreateGroup(context.Background(), 1, GroupSpec{ID: 1, Name: "G", Policy: Default()}); err != nil {
			t.Fatal(err)
		}
		host := &moody{Replicas: s.host, late: late}
		s.host = host
		offered := 0
		st := opened(t, s, StreamRequest{
			Group: 1, Member: "A", Session: 1,
			Elsewhere: func(partition.PartitionID, []Settlement, func([]SettleResult)) bool { return false },
			Again: func(list []Settlement, results []SettleResult, done func([]SettleResult)) {
				if !errors.Is(results[0].Err, host.err) {
					t.Errorf("offered with %v", results)
				}
				offered += len(list)
				host.err = nil
				done(s.Settle(context.Background(), 1, list))
			},
		}, Share{Partition: 1})
		st.AddCredit(10)
		w.publish(1, "a", "b")
		streamed(t, st)
		host.err = &partition.ErrNotLeader{Partition: 1}
		if rs := settleRuns(st, SettleRun{First: 1, Last: 2, Action: Ack}); len(rs) != 1 || rs[0].Err != nil || offered != 2 {
			t.Errorf("late %v: settled %+v, %d were offered", late, rs, offered)
		}
		if len(st.kept) != 0 {
			t.Errorf("%d blocks are kept", len(st.kept))
		}
	}
}
