package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A group is looked at when its hot key is at work, however many looks fall between two
// hand-outs of the key; and one that stands so is not looked at for good.
func TestDoctorLooksWhenAHotKeyIsOut(t *testing.T) {
	t.Parallel()
	counts := &strandmqv1.GroupCounts{Lag: 10, Blocked: 9}
	between := &strandmqv1.GroupPartition{Counts: counts}
	out := &strandmqv1.GroupPartition{Counts: counts, Stalls: []*strandmqv1.Stall{{Reason: "IN_FLIGHT", Key: "hot", Waiting: 9, Attempts: 1}}}
	for _, c := range []struct {
		seen int32 // the glance that sees it
		says string
	}{{1, "HOT_KEY"}, {glances, "HOT_KEY"}, {glances + 1, "FALLING_BEHIND"}} {
		a := &asked{oldest: time.Now().Add(-time.Hour), group: func(n int32) *strandmqv1.GroupPartition {
			if n < c.seen {
				return between
			}
			return out
		}}
		printed, _ := a.run(t, "doctor", "--watch", "0")
		if !strings.Contains(printed, c.says+": ") || a.glanced.Load() != min(c.seen, glances) {
			t.Errorf("seen by glance %d, after %d:\n%s", c.seen, a.glanced.Load(), printed)
		}
	}
}

// What waits behind keys that are at work, back off, or are not let go is explained.
func TestBetweenHandOuts(t *testing.T) {
	t.Parallel()
	of := func(blocked uint64, stalls ...*strandmqv1.Stall) bool {
		return between(&strandmqv1.GroupPartition{Counts: &strandmqv1.GroupCounts{Lag: 100, Blocked: blocked}, Stalls: stalls})
	}
	many := make([]*strandmqv1.Stall, 20)
	for i := range many {
		many[i] = &strandmqv1.Stall{Reason: "IN_FLIGHT", Waiting: 1}
	}
	for what, got := range map[string]bool{
		"a hot key":             of(90),
		"one of two hot keys":   of(90, &strandmqv1.Stall{Reason: "IN_FLIGHT", Waiting: 40}),
		"not little":            !of(40),
		"not when it is out":    !of(90, &strandmqv1.Stall{Reason: "IN_FLIGHT", Waiting: 90}),
		"not when it backs off": !of(90, &strandmqv1.Stall{Reason: "BACKING_OFF", Waiting: 60}),
		"not when nothing goes": !of(90, &strandmqv1.Stall{Reason: "PAUSED", Waiting: 100}),
		"not of a cut list":     !of(90, many...),
	} {
		if !got {
			t.Error(what)
		}
	}
}

// A reason is what the handler gave: what a trace says besides was so when it was written.
func TestReasonsWithoutOldWaits(t *testing.T) {
	t.Parallel()
	got := attemptsOf(&strandmqv1.MessageTrace{Events: []*strandmqv1.TraceEvent{
		{Group: "g", What: "handed-out", Member: "m", Time: timestamppb.Now()},
		{Group: "g", What: "nacked", Reason: "db down", Detail: "db down; next attempt in 206 ms at the earliest", Time: timestamppb.Now()},
	}}, "g")
	if len(got) != 1 || got[0].Reason != "db down" {
		t.Errorf("%+v", got)
	}
}

// Where a node of an older version tells what became of messages, reasons are only in words
// and events have no terms: that is said once for a group, and of no other node.
func TestReasonsThatAnOlderNodeHas(t *testing.T) {
	t.Parallel()
	stalls := []*strandmqv1.Stall{{Reason: "BACKING_OFF", Key: "a", Attempts: 1}, {Reason: "BACKING_OFF", Key: "b", Offset: 1, Attempts: 1}}
	for term, want := range []int{1, 0} {
		now := timestamppb.Now()
		a := &asked{
			oldest: time.Now().Add(-time.Hour),
			group: func(int32) *strandmqv1.GroupPartition {
				return &strandmqv1.GroupPartition{Counts: &strandmqv1.GroupCounts{Lag: 2}, Stalls: stalls}
			},
			life: []*strandmqv1.TraceEvent{
				{What: "published", Time: now, Term: uint64(term)},
				{Group: "g", What: "handed-out", Time: now, Term: uint64(term)},
				{Group: "g", What: "nacked", Detail: "db down", Time: now, Term: uint64(term)},
			},
		}
		printed, _ := a.run(t, "doctor", "--watch", "0")
		if strings.Count(printed, "why deliveries of group g of topic t failed: a node of an older version tells it") != want {
			t.Errorf("term %d:\n%s", term, printed)
		}
	}
}

// By how much an ack was late is from its hand-out to the ack: an extend or a nack that was
// refused before it is not that ack, and what another hand-out's member did is not either.
func TestHowLateAnAckWas(t *testing.T) {
	t.Parallel()
	began := time.Now()
	at := func(s time.Duration) *timestamppb.Timestamp { return timestamppb.New(began.Add(s * time.Second)) }
	lapsed := []*strandmqv1.TraceEvent{
		{Group: "g", What: "handed-out", Member: "m", Attempt: 1, Time: at(0)},
		{Group: "g", What: "lapsed", Member: "m", Attempt: 1, Time: at(1)},
	}
	refused := func(member, detail string, s time.Duration) *strandmqv1.TraceEvent {
		return &strandmqv1.TraceEvent{Group: "g", What: "refused", Member: member, Attempt: 1, Detail: detail, Time: at(s)}
	}
	const why = ": its deadline passed and it lapsed"
	for what, c := range map[string]struct {
		then []*strandmqv1.TraceEvent
		want time.Duration
	}{
		"never":               {nil, 0},
		"an ack":              {[]*strandmqv1.TraceEvent{refused("m", "ack"+why, 4)}, 4 * time.Second},
		"an ack, and again":   {[]*strandmqv1.TraceEvent{refused("m", "ack"+why, 4), refused("m", "ack"+why, 9)}, 4 * time.Second},
		"an extend, then ack": {[]*strandmqv1.TraceEvent{refused("m", "extend"+why, 2), refused("m", "ack"+why, 4)}, 4 * time.Second},
		"an extend":           {[]*strandmqv1.TraceEvent{refused("m", "extend"+why, 2)}, 0},
		"a nack":              {[]*strandmqv1.TraceEvent{refused("m", "nack"+why, 2)}, 0},
		"of somebody else":    {[]*strandmqv1.TraceEvent{refused("other", "ack"+why, 4)}, 0},
	} {
		got := attemptsOf(&strandmqv1.MessageTrace{Events: append(slices.Clone(lapsed), c.then...)}, "g")
		if len(got) != 1 || got[0].Late != c.want {
			t.Errorf("%s: %+v, want %v late", what, got, c.want)
		}
	}
}
