package consumer

import (
	"context"
	"fmt"
	"runtime"
	"testing"
)

// heapInUse is what is in use.
func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // the first may only have queued what has finalizers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// idleLimit is what one idle group of a partition, or one waiting member, may
// take.
const idleLimit = 4 << 10

// Idle groups and waiting members take little memory, no turn of their leader and
// no timer.
func TestIdleCosts(t *testing.T) {
	const many, members = 10_000, 2_000
	ctx := context.Background()
	w := newWorld(1)
	p, s := w.parts[1], w.shell()
	before := heapInUse()
	for i := range many {
		if err := s.CreateGroup(ctx, 1, GroupSpec{ID: GroupID(i + 1), Name: fmt.Sprint("group-", i), Policy: Default()}); err != nil {
			t.Fatal(err)
		}
	}
	p.cmds = nil // the test's log
	if per := (heapInUse() - before) / many; per > idleLimit {
		t.Errorf("an idle group takes %d bytes", per)
	} else {
		t.Logf("an idle group takes %d bytes, with its rows in memory", per)
	}
	rest := func(what string, turns int) {
		t.Helper()
		if len(p.app.stirred) != turns || p.wake != 0 {
			t.Errorf("%s: %d groups have turns, want %d; the next is asked for at %d", what, len(p.app.stirred), turns, p.wake)
		}
	}
	rest("groups", 0)

	before = heapInUse()
	streams := make([]*Stream, members)
	for i := range streams {
		streams[i] = opened(t, s, StreamRequest{Group: 1, Member: fmt.Sprint("member-", i), Session: 1}, Share{Partition: 1})
		streams[i].AddCredit(100)
	}
	if per := (heapInUse() - before) / members; per > idleLimit {
		t.Errorf("a waiting member takes %d bytes", per)
	} else {
		t.Logf("a waiting member takes %d bytes", per)
	}
	rest("waiting members", 1) // a turn with the partition's own, and no timer
	// A member without credit is not looked at, whatever is published.
	for _, st := range streams {
		if err := st.Close(ctx, false); err != nil {
			t.Fatal(err)
		}
	}
	p.cmds = nil
	asleep := opened(t, s, StreamRequest{Group: 2, Member: "A", Session: 1}, Share{Partition: 1})
	w.publish(1, "a", "b")
	rest("a member without credit", 0)
	// A group that was busy is as idle as one that never was.
	keys := make([]string, 900)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	w.publish(1, keys...)
	asleep.AddCredit(902)
	n := 0
	for _, h := range streamed(t, asleep) {
		n += len(h.Deliveries)
	}
	if rs := settleRuns(asleep, SettleRun{First: 1, Last: uint64(n), Action: Ack}); n != 902 || len(rs) != 1 || rs[0].Err != nil {
		t.Fatalf("%d deliveries, settled %v", n, rs)
	}
	w.publish(1, "last") // there is no credit for it: the hand finds that out
	rest("after work", 0)
	h := p.app.group(2).hand
	if n := cap(h.timers.items) + len(h.reserved.slots) + cap(h.lanes[0].ready.items) + cap(h.out); n > 64 {
		t.Errorf("an idle hand keeps %d places", n)
	}
	if len(asleep.kept) != 0 || len(asleep.got) != 0 {
		t.Errorf("an idle stream keeps %d blocks", len(asleep.kept))
	}
}
