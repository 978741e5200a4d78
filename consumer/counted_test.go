package consumer

import (
	"context"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// told is what Shell.Acked, App.Settled and App.Finished said.
type told struct {
	*testing.T
	w    *world
	s    *Shell
	p    *memPart
	by   map[toldOf]int
	at   map[partition.Millis]int // acks by when their messages were published
	done map[uint32]int           // messages by hand-outs
}

type toldOf struct {
	action Action
	dead   bool
}

func newTold(t *testing.T, policy Policy) *told {
	c := &told{T: t, w: newWorld(1), by: map[toldOf]int{}, at: map[partition.Millis]int{}, done: map[uint32]int{}}
	c.s, c.p = c.w.shell(), c.w.parts[1]
	c.s.Acked = func(gid GroupID, published partition.Millis, n int) {
		if gid != 1 || n < 1 {
			t.Errorf("group %v, %d acks", gid, n)
		}
		c.at[published] += n
	}
	c.s.Published = func(_ partition.PartitionID, o partition.Offset) (partition.Millis, partition.Offset, error) {
		return c.p.msgs[o].PublishTime, o + 1, nil
	}
	c.listen()
	if err := c.s.CreateGroup(context.Background(), 1, GroupSpec{ID: 1, Name: "G", Policy: policy}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *told) listen() {
	c.p.app.Settled = func(gid GroupID, a Action, dead bool, n int) {
		if gid != 1 || n < 1 {
			c.Errorf("group %v, %d settlements", gid, n)
		}
		c.by[toldOf{a, dead}] += n
	}
	c.p.app.Finished = func(gid GroupID, handOuts uint32, n int) {
		if gid != 1 || n < 1 {
			c.Errorf("group %v, %d messages", gid, n)
		}
		c.done[handOuts] += n
	}
}

// receive gives what is handed out now, by key.
func (c *told) receive() map[string]Token {
	c.Helper()
	ds, _, err := c.s.Receive(context.Background(), ReceiveRequest{Group: 1, Member: "A", Session: 1, Max: 100, Shares: []Share{{Partition: 1}}})
	if err != nil {
		c.Fatal(err)
	}
	out := map[string]Token{}
	for _, d := range ds {
		out[string(d.Message.Record.Key)] = d.Token
	}
	return out
}

// settle settles twice: the second time changes nothing.
func (c *told) settle(t Token, a Action) {
	c.Helper()
	for range 2 {
		if r := c.s.Settle(context.Background(), 1, []Settlement{{Token: t, Action: a}})[0]; r.Err != nil {
			c.Fatalf("%v: %v", a, r.Err)
		}
	}
}

func (c *told) want(by map[toldOf]int, at map[partition.Millis]int, done map[uint32]int) {
	c.Helper()
	if !maps.Equal(c.at, at) {
		c.Errorf("acked, by time: %v\nand right is: %v", c.at, at)
	}
	if !maps.Equal(c.by, by) {
		c.Errorf("settled: %v\nand right is: %v", c.by, by)
	}
	if !maps.Equal(c.done, done) {
		c.Errorf("by hand-outs: %v\nand right is: %v", c.done, done)
	}
}

// Whatever a message goes through, each settlement is told once, with the time of its
// publish, and the message's end with its hand-outs; neither a repeat nor a restart tells
// it again.
func TestSettledIsToldOnce(t *testing.T) {
	policy := Default()
	policy.MaxAttempts, policy.AckDeadline, policy.Backoff, policy.BackoffMax = 3, 1000, 10, 10
	c := newTold(t, policy)
	first := c.w.now
	c.w.publish(1, "acked", "nacked", "rejected", "released", "lapsed")
	c.w.advance(7)
	then := c.w.now
	c.w.publish(1, "later", "too")
	out := c.receive()
	c.settle(out["acked"], Ack)
	c.settle(out["later"], Ack)
	c.settle(out["too"], Ack)
	c.settle(out["nacked"], Nack)
	c.settle(out["rejected"], Reject)
	c.settle(out["released"], Release)
	c.w.advance(20)
	again := c.receive() // those that are out, too
	c.settle(again["nacked"], Ack)
	c.settle(again["released"], Ack)
	by := map[toldOf]int{{Ack, false}: 5, {Nack, false}: 1, {Reject, true}: 1, {Release, false}: 1}
	at := map[partition.Millis]int{first: 3, then: 2}
	c.want(by, at, map[uint32]int{1: 4, 2: 2})

	for range 3 { // until it is dead
		c.w.advance(1100)
		c.receive()
	}
	c.want(by, at, map[uint32]int{1: 4, 2: 2, 3: 1})

	if n, _, err := c.s.Replay(context.Background(), 1, 1, Selector{Offsets: []partition.Offset{out["rejected"].Offset}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	c.settle(c.receive()["rejected"], Ack)
	by[toldOf{Ack, false}]++
	at[first]++
	done := map[uint32]int{1: 4, 2: 3, 3: 1}
	c.want(by, at, done)

	c.p.restart()
	c.listen()
	for _, k := range []string{"acked", "later", "too"} {
		c.settle(out[k], Ack)
	}
	c.want(by, at, done)
}

// Where nobody leads, or another does, nothing is told.
func TestSettledIsToldByWhoLeads(t *testing.T) {
	c := newTold(t, Default())
	c.w.publish(1, "a", "b", "c")
	out := c.receive()
	ack := func(k string) []byte { return encodeSettle(c.w.now, 1, []Settlement{{Token: out[k], Action: Ack}}) }
	c.p.app.Lead(false)
	c.p.apply(ack("a")) // another one's
	c.p.app.Lead(true)
	c.p.apply(ack("a"))
	c.p.apply(ack("b"))
	c.settle(out["a"], Ack)
	c.settle(out["b"], Ack)
	c.want(map[toldOf]int{{Ack, false}: 1}, nil, map[uint32]int{1: 1}) // b, of which the caller did not hear
	c.settle(out["c"], Ack)
	c.want(map[toldOf]int{{Ack, false}: 2}, map[partition.Millis]int{c.p.msgs[0].PublishTime: 1}, map[uint32]int{1: 2})
}

// A stream knows when its deliveries were published, also those that lie far apart, and
// neighbours are told at once.
func TestSettledOfAStream(t *testing.T) {
	policy := Default()
	policy.Backoff, policy.BackoffMax = 10, 10
	c := newTold(t, policy)
	c.s.Published = func(partition.PartitionID, partition.Offset) (partition.Millis, partition.Offset, error) {
		t.Error("somebody asks when a message was published")
		return 0, 0, nil
	}
	calls := 0
	counted := c.s.Acked
	c.s.Acked = func(gid GroupID, published partition.Millis, n int) { calls++; counted(gid, published, n) }
	old, late := c.w.now, c.w.now+3*anHour
	c.w.publish(1, "a", "b", "c", "d")
	c.w.now = late
	c.w.publish(1, "e", "f")
	st := opened(t, c.s, StreamRequest{Group: 1, Member: "A", Session: 1}, Share{Partition: 1})
	st.AddCredit(100)
	if n := len(offsetsOf(streamed(t, st))); n != 6 {
		t.Fatalf("%d deliveries", n)
	}
	settleRuns(st, SettleRun{First: 1, Last: 3, Action: Ack}, SettleRun{First: 4, Action: Nack}, SettleRun{First: 5, Last: 6, Action: Ack})
	settleRuns(st, SettleRun{First: 1, Last: 6, Action: Ack}) // stale, all of it
	by, at := map[toldOf]int{{Ack, false}: 5, {Nack, false}: 1}, map[partition.Millis]int{old: 3, late: 2}
	c.want(by, at, map[uint32]int{1: 5})
	if calls != 2 {
		t.Errorf("%d calls", calls)
	}
	c.w.advance(20)
	if n := len(offsetsOf(streamed(t, st))); n != 1 {
		t.Fatalf("%d deliveries", n)
	}
	settleRuns(st, SettleRun{First: 7, Action: Ack})
	by[toldOf{Ack, false}]++
	at[old]++
	c.want(by, at, map[uint32]int{1: 5, 2: 1})
}

// At most once, being handed out is the end.
func TestFinishedAtMostOnce(t *testing.T) {
	policy := Default()
	policy.AtMostOnce = true
	c := newTold(t, policy)
	c.w.publish(1, "a", "b", "c")
	if n := len(c.receive()); n != 3 {
		t.Fatalf("%d deliveries", n)
	}
	c.want(nil, nil, map[uint32]int{1: 3})
}

// What another node leads is settled there with the time that came with the delivery, and
// counted there and not here.
func TestSettledElsewhere(t *testing.T) {
	c := newTold(t, Default())
	var sent []partition.Millis
	st := opened(t, c.s, StreamRequest{
		Group: 1, Member: "A", Session: 1,
		Elsewhere: func(_ partition.PartitionID, list []Settlement, done func([]SettleResult)) bool {
			for i := range list {
				sent = append(sent, list[i].Published)
			}
			done(make([]SettleResult, len(list)))
			return true
		},
	})
	h := Handed{Partition: 7}
	times := []partition.Millis{c.w.now, c.w.now - 90*24*anHour, c.w.now - 1, c.w.now + 90*24*anHour}
	for i, at := range times {
		m := rawMessage(partition.Message{Offset: partition.Offset(i), PublishTime: at})
		h.Deliveries = append(h.Deliveries, StreamDelivery{Message: m, Fence: uint64(i + 1), Ordinal: 1, Attempt: 1, Deadline: c.w.now + anHour})
	}
	st.Take(h)
	settleRuns(st, SettleRun{First: 1, Last: 4, Action: Ack})
	times[1], times[3] = c.w.now+math.MinInt32, c.w.now+math.MaxInt32 // as far as a stream remembers
	if !slices.Equal(sent, times) {
		t.Errorf("published %v, sent %v", times, sent)
	}
	c.want(nil, nil, nil)

	// There it comes by tokens.
	c.w.publish(1, "a", "b")
	out := c.receive()
	c.s.Published = nil
	done := make(chan []SettleResult, 1)
	for range 2 {
		c.s.SettleAsync(1, 1, []Settlement{{Token: out["a"], Action: Ack, Published: times[2]}, {Token: out["b"], Action: Ack}}, func(res []SettleResult) { done <- res })
		for _, r := range <-done {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	c.want(map[toldOf]int{{Ack, false}: 2}, map[partition.Millis]int{times[2]: 1}, map[uint32]int{1: 2})
}
