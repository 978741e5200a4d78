package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// TestReasonToWaitOnce: a reason to wait is told once, whatever its numbers become,
// and another one not before its time.
func TestReasonToWaitOnce(t *testing.T) {
	var errs bytes.Buffer
	a := testApp()
	a.err = &errs
	c := &consumption{a: a, m: &member{}, f: &consumeFlags{}}
	say := func(idle string) {
		c.m.idle = idle
		c.sayIdle()
	}
	later := func() { c.idleSaid = time.Now().Add(-time.Hour) }
	say("2 deliveries are out (with holder)")
	later()
	say("1 delivery is out (with holder)")
	c.idleSaid = time.Now().Add(time.Hour) // as if it had been told just now, on any machine
	say("2 messages back off")
	later()
	say("1 message backs off; 3 deliveries are out (with holder)")
	later()
	say("4 deliveries are out (with holder)")
	later()
	say("4 deliveries are out (with holder); the circuit is open")
	later()
	say("the circuit is open; 4 deliveries are out (with holder)") // in another order
	later()
	say(nothingLeft) // what a consumer waits in all day
	later()
	say("2 messages back off")
	c.f.untilEmpty = true
	later()
	say(nothingLeft)
	c.elsewhere = "7 messages are left in partitions of other members (far)"
	later()
	say(nothingLeft)
	c.took(1) // what is told next is news again
	later()
	say(nothingLeft)
	got := strings.TrimSpace(errs.String())
	want := strings.Join([]string{
		"waiting: 2 deliveries are out (with holder)",
		"waiting: 1 message backs off; 3 deliveries are out (with holder)",
		"waiting: 4 deliveries are out (with holder); the circuit is open",
		"waiting: 2 messages back off", // nothing was left meanwhile
		"waiting: " + nothingLeft,
		"waiting: 7 messages are left in partitions of other members (far)",
		"waiting: 7 messages are left in partitions of other members (far)",
	}, "\n")
	if got != want {
		t.Errorf("it was told:\n%s\nwant:\n%s", got, want)
	}
}

func TestLeftElsewhere(t *testing.T) {
	has := func(name string, partitions ...uint32) *strandmqv1.Member {
		m := &strandmqv1.Member{Name: name}
		for _, p := range partitions {
			m.Assignment = append(m.Assignment, &strandmqv1.PartitionShare{Partition: p, Shares: 1})
		}
		return m
	}
	left := func(lags ...uint64) (list []*strandmqv1.GroupPartition) {
		for p, n := range lags {
			list = append(list, &strandmqv1.GroupPartition{Partition: uint32(p), Counts: &strandmqv1.GroupCounts{Lag: n}})
		}
		return list
	}
	for _, c := range []struct {
		what    string
		members []*strandmqv1.Member
		left    []*strandmqv1.GroupPartition
		want    string // its beginning; empty: nothing is said
	}{
		{"everything is this member's", []*strandmqv1.Member{has("me", 0, 1)}, left(3, 4), ""},
		{"another has nothing left", []*strandmqv1.Member{has("me", 0), has("far", 1)}, left(3, 0), ""},
		{"another has", []*strandmqv1.Member{has("me", 0), has("far", 1)}, left(0, 4), "4 messages are left in partitions of other members (far): "},
		{"a partition is shared", []*strandmqv1.Member{has("me", 0), has("near", 0), has("far", 1)}, left(5, 0), ""},
		{"nobody has it yet", []*strandmqv1.Member{has("me", 0)}, left(0, 4), ""},
		{
			"many have", []*strandmqv1.Member{has("me", 0), has("e", 1, 2), has("d", 2), has("c", 3), has("b", 4), has("idle", 5)},
			left(9, 1, 2000, 1, 1, 0), "2,003 messages are left in partitions of other members (b, c, d and 1 more): ",
		},
	} {
		got := leftElsewhere(&strandmqv1.DescribeGroupResponse{Members: c.members, Partitions: c.left}, "me")
		if c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
