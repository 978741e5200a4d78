package broker

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/consumer"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// What became of planted messages is counted once, however often it is settled again: by
// action, by hand-outs, and by the time since the publish.
func TestGroupMetrics(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	policy := &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(2), BackoffMs: proto.Int64(1), BackoffMaxMs: proto.Int64(1), AckDeadlineMs: proto.Int64(600_000), BreakerFailedPercent: proto.Uint32(0)}
	a.group(t, "t", "g", policy)
	a.group(t, "t", "other", policy)
	next := func(key string) *strandmqv1.Delivery {
		t.Helper()
		d := a.one(t, "t", "g", "m")
		if got := string(d.GetMessage().GetKey()); got != key {
			t.Fatalf("%s is delivered, and %s is next", got, key)
		}
		return d
	}
	twice := func(d *strandmqv1.Delivery, action strandmqv1.SettleAction) {
		t.Helper()
		for range 2 {
			a.done(t, "t", "g", d, action, "planted")
		}
	}

	a.store(t, "t", msg("late", "x"))
	wait := &strandmqv1.Settlement{Token: next("late").GetToken(), Action: nack, DelayMs: 700}
	for range 2 {
		res, err := a.consume.Settle(ctx(t), &strandmqv1.SettleRequest{Topic: "t", Group: "g", Settlements: []*strandmqv1.Settlement{wait}})
		if err != nil || res.GetResults()[0].GetProblem() != nil {
			t.Fatal(res, err)
		}
	}
	twice(next("late"), ack)
	a.store(t, "t", msg("lapsed", "x"))
	for _, failed := range []uint64{2, 3} { // the nack is one
		a.lapse(t, "t", "g", next("lapsed"))
		inTime(t, "a lapse", func() bool { return a.describe(t, "t", "g").GetCounts().GetRetried() == failed })
	}
	a.store(t, "t", msg("acked", "x"))
	twice(next("acked"), ack)
	a.store(t, "t", msg("rejected", "x"))
	twice(next("rejected"), strandmqv1.SettleAction_SETTLE_ACTION_REJECT)
	a.store(t, "t", msg("nacked", "x"))
	twice(next("nacked"), nack)
	twice(next("nacked"), nack) // its last attempt
	a.store(t, "t", msg("released", "x"))
	for range 3 {
		twice(next("released"), release)
	}
	twice(next("released"), ack)

	of := func(more string) string { return `{group="g",topic="t"` + more + `}` }
	for name, want := range map[string]float64{
		"messages_acked_total" + of(""): 3, "messages_nacked_total" + of(""): 3, "messages_rejected_total" + of(""): 1, "messages_released_total" + of(""): 3, "messages_extended_total" + of(""): 2,
		"messages_dead_lettered_by_members_total" + of(""): 2,
		"message_hand_outs_bucket" + of(`,le="1"`):         2, "message_hand_outs_bucket" + of(`,le="2"`): 5, "message_hand_outs_bucket" + of(`,le="3"`): 5,
		"message_hand_outs_bucket" + of(`,le="5"`): 6, "message_hand_outs_bucket" + of(`,le="+Inf"`): 6,
		"message_hand_outs_count" + of(""): 6, "message_hand_outs_sum" + of(""): 2 + 2 + 1 + 1 + 2 + 4,
		"ack_latency_seconds_count" + of(""): 3, "delivery_latency_seconds_count" + of(""): 9, // a released message's attempt is its first again
	} {
		if got := metric(t, b, "strandmq_"+name); got != want {
			t.Errorf("%s is %v, and %v is right", name, got, want)
		}
	}
	// The one that was nacked took what it was to wait, or more; of the others nobody knows.
	if quick := metric(t, b, "strandmq_ack_latency_seconds_bucket"+of(`,le="0.5"`)); quick > 2 {
		t.Errorf("%v acks came within half a second", quick)
	}
	if sum := metric(t, b, "strandmq_ack_latency_seconds_sum"+of("")); sum < 0.7 {
		t.Errorf("all acks took %v s together", sum)
	}
	if n := metric(t, b, `strandmq_messages_acked_total{group="other",topic="t"}`); n != 0 {
		t.Errorf("%v acks of a group that has none", n)
	}
	if n := metric(t, b, "strandmq_commit_duration_seconds_count"); n < 10 {
		t.Errorf("%v commits", n)
	}

	// A group of the same name is another one.
	if _, err := a.groups.DeleteGroup(ctx(t), &strandmqv1.DeleteGroupRequest{Topic: "t", Group: "g", Confirm: "g"}); err != nil {
		t.Fatal(err)
	}
	a.group(t, "t", "g", policy)
	twice(next("late"), ack)
	for name, want := range map[string]float64{"messages_acked_total": 1, "messages_nacked_total": 0, "message_hand_outs_count": 1, "ack_latency_seconds_count": 1} {
		if got := metric(t, b, "strandmq_"+name+of("")); got != want {
			t.Errorf("anew, %s is %v, and %v is right", name, got, want)
		}
	}
}

// Groups beyond those that have names of their own are told under one.
func TestGroupMetricsAreBounded(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	for g := range 3 {
		a.group(t, "t", fmt.Sprint("g", g), nil)
		a.store(t, "t", msg("k", "x"))
	}
	b.metrics.label("t", "g0")
	for i := 0; ; i++ {
		if topic, _ := b.metrics.label("t", fmt.Sprint("taken", i)); topic == otherLabel {
			break
		}
	}
	for g := range 3 {
		for range 3 {
			name := fmt.Sprint("g", g)
			a.done(t, "t", name, a.one(t, "t", name, "m"), ack, "")
		}
	}
	for of, want := range map[string]float64{`{group="g0",topic="t"}`: 3, `{group="(other)",topic="(other)"}`: 6} {
		for _, name := range []string{"messages_acked_total", "ack_latency_seconds_count", "message_hand_outs_sum", "messages_delivered_total", "delivery_latency_seconds_count"} {
			if got := metric(t, b, "strandmq_"+name+of); got != want {
				t.Errorf("%s%s is %v, and %v is right", name, of, got, want)
			}
		}
	}
}

// The time of a publish goes with a settlement to the node that leads.
func TestSettlementsTakeTheirTime(t *testing.T) {
	want := consumer.Settlement{Action: consumer.Nack, Delay: 5, Reason: "why", Member: "m", Published: 1_764_000_000_000, Token: consumer.Token{Partition: 1, Group: 2, Offset: 3, HandOut: 4, Ordinal: 1}}
	if got := settlementsFrom(settlementsTo([]consumer.Settlement{want})); len(got) != 1 || got[0] != want {
		t.Errorf("%+v came as %+v", want, got)
	}
}
