//go:build unix

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// C1: a nack, a lapse or a dead consumer moves no message behind later ones of
// its key, and holds up no other key and no other group.
func nackOrLapse(t *testing.T, s *stage) {
	for _, how := range []string{"nack", "lapse", "killed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			backoff := 400 * time.Millisecond
			if how == "nack" {
				backoff = 5 * time.Second // all the others are handled within it, or within a longer one
			}
			for !nackOrLapseOnce(t, s, how, backoff) {
				backoff *= 4
			}
		})
	}
}

// nackOrLapseOnce plays C1 with a backoff. False: a backoff of less than a minute was
// over before the others were handled, and that may have been the machine.
func nackOrLapseOnce(t *testing.T, s *stage, how string, backoff time.Duration) bool {
	y := s.scene(t, fmt.Sprintf("c1-%s-%d", how, backoff.Milliseconds()), 1, &strandmqv1.GroupPolicy{
		BackoffMs: proto.Int64(backoff.Milliseconds()), AckDeadlineMs: proto.Int64(never),
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var members sync.WaitGroup
	defer members.Wait()
	defer cancel()
	var over time.Time           // when the first attempt of a1 was; read after failed
	failed := make(chan seen, 1) // attempt 1 of a1
	start := func(d *desk) {
		own, stop := context.WithCancel(ctx)
		members.Go(func() {
			defer d.vanish()
			defer stop()
			d.work(own, func(x seen) (strandmqv1.SettleAction, bool) {
				if x.String() == "a1/1" {
					if how == "killed" {
						stop() // it asks for nothing more
					}
					over = time.Now()
					failed <- x
					return nack, how == "nack"
				}
				return ack, true
			})
		})
	}
	for _, name := range []string{"m1", "m2"} {
		start(y.desk(y.g1, name))
	}
	g2 := y.desk(y.g2, "m")
	members.Go(func() { g2.work(ctx, ackAll) })
	y.publishNamed(append(numbered("a", 1, 5), numbered("b", 1, 5)...)...)
	x := <-failed
	if how != "nack" {
		// While a1 is out, all the others are handled. Then its deadline comes.
		until(t, "b is handled", func() bool { return y.g1.handled(numbered("b", 1, 5)...) })
		until(t, "g2 handles everything", func() bool {
			return y.g2.handled(append(numbered("a", 1, 5), numbered("b", 1, 5)...)...)
		})
		over = x.desk.lapse(x)
	}
	if how == "killed" {
		start(y.desk(y.g1, "m3"))
	}
	until(t, "g1 handles everything", func() bool { return y.counts("g1").GetLag() == 0 })
	until(t, "g2 handles everything", func() bool { return y.counts("g2").GetLag() == 0 })
	cancel()
	members.Wait()

	y.g1.want("a", "a1/1", "a1/2", "a2/1", "a3/1", "a4/1", "a5/1")
	y.g1.want("b", first(numbered("b", 1, 5)...)...)
	again := y.g1.of("a1")
	if len(again) < 2 {
		t.Fatal("a1 did not come again")
	}
	if wait := again[1].at.Sub(over); wait < backoff-millisecond {
		t.Errorf("a1 came again after %v, before its backoff of %v", wait, backoff)
	}
	all := append(numbered("a", 1, 5), numbered("b", 1, 5)...)
	for _, n := range all {
		y.g2.want(n, n+"/1")
	}
	y.wantDead("g1")
	late := append(y.g1.notBefore(again[1].at, numbered("b", 1, 5)...), y.g2.notBefore(again[1].at, all...)...)
	if len(late) > 0 && how == "nack" && backoff < time.Minute {
		return false
	}
	for _, x := range late {
		t.Error(x)
	}
	return true
}

// C8: only what was handed out is charged.
func innocentNeighbours(t *testing.T, s *stage) {
	t.Run("crash", func(t *testing.T) {
		t.Parallel()
		y := s.scene(t, "c8-crash", 1, &strandmqv1.GroupPolicy{
			MaxAttempts: proto.Uint32(3), BackoffMs: proto.Int64(100), AckDeadlineMs: proto.Int64(never),
		}, nil)
		y.publishNamed(append(numbered("a", 1, 10), numbered("b", 1, 10)...)...)
		d := y.desk(y.g1, "m")
		crashes := 0
		until(t, "a1 is dead and the rest is handled", func() bool {
			batch := d.receive(20, 50*time.Millisecond)
			if crashes > 0 {
				// It meets the neighbours first. Else a1 would take b1 with it as
				// often as their backoffs happen to end together.
				slices.Reverse(batch)
			}
			for _, x := range batch {
				if x.name == "a1" {
					// It dies where it stands, and is started again.
					crashes++
					d.vanish()
					if crashes == 3 {
						y.g1.died(x)
					}
					d = y.desk(y.g1, "m")
					break
				}
				d.done(x, ack, "")
			}
			c := y.counts("g1")
			return c.GetDead() > 0 && c.GetLag() == 0
		})
		if crashes != 3 {
			t.Errorf("a1 crashed its consumer %d times, want 3", crashes)
		}
		y.wantDead("g1", "a1")
		y.wantHistory("g1", "a1", "session-lost", "session-lost", "session-lost")
		for _, n := range slices.Concat(numbered("a", 2, 10), numbered("b", 1, 10)) {
			if got := y.g1.of(n); len(got) == 0 || got[0].GetAttempt() != 1 {
				t.Errorf("%s had been charged when it was first seen: %v", n, got)
			}
		}
		y.g1.want("a", append([]string{"a1/1", "a1/2", "a1/3"}, first(numbered("a", 2, 10)...)...)...)
		// b1 was in its hands at the first crash.
		y.g1.want("b", append([]string{"b1/1", "b1/2"}, first(numbered("b", 2, 10)...)...)...)
	})
	t.Run("sleep", func(t *testing.T) {
		t.Parallel()
		y := s.scene(t, "c8-sleep", 1,
			&strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(3), BackoffMs: proto.Int64(0), AckDeadlineMs: proto.Int64(never)},
			&strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(3), BackoffMs: proto.Int64(0), AckDeadlineMs: proto.Int64(never), MaxInFlightMember: proto.Uint32(1)})
		var names []string
		for i := range 20 {
			names = append(names, fmt.Sprintf("%c1", 'a'+i)) // each of a key of its own
		}
		y.publishNamed(names...)
		many, one := y.desk(y.g1, "m"), y.desk(y.g2, "m")
		all, only := many.receive(20, 0), one.receive(20, 0)
		if len(all) != 20 {
			t.Fatalf("%d deliveries for 20", len(all))
		}
		if len(only) != 1 {
			t.Fatalf("%d deliveries with a limit of 1", len(only))
		}
		// Asleep until all of it lapsed.
		for _, x := range append(all, only...) {
			x.desk.lapse(x)
		}
		until(t, "g1 is charged for 20", func() bool { return y.counts("g1").GetRetried() == 20 })
		until(t, "g2 is charged for 1", func() bool { return y.counts("g2").GetRetried() == 1 })
		for _, n := range names {
			if at := y.standing("g1", n); at.GetAttempts() != 1 {
				t.Errorf("g1: trace shows %d charges of %s, want 1", at.GetAttempts(), n)
			}
			want := uint32(0)
			if n == "a1" {
				want = 1
			}
			if at := y.standing("g2", n); at.GetAttempts() != want {
				t.Errorf("g2: trace shows %d charges of %s, want %d", at.GetAttempts(), n, want)
			}
		}
		for len(y.g1.of("t1")) < 2 {
			for _, x := range many.receive(20, time.Second) {
				many.done(x, ack, "")
			}
		}
		for range names {
			x := one.receive(20, 40*time.Second)
			if len(x) != 1 {
				t.Fatalf("%d deliveries with a limit of 1", len(x))
			}
			one.done(x[0], ack, "")
		}
		for _, n := range names {
			y.g1.want(n, n+"/1", n+"/2")
			if n == "a1" {
				y.g2.want(n, "a1/1", "a1/2")
			} else {
				y.g2.want(n, n+"/1")
			}
		}
	})
}

// C12: a replay reaches its own group only, in the key's order.
func replayInOrder(t *testing.T, s *stage) {
	policy := &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(2), BackoffMs: proto.Int64(20), AckDeadlineMs: proto.Int64(never)}
	y := s.scene(t, "c12", 1, policy, policy)
	d, other := y.desk(y.g1, "m"), y.desk(y.g2, "m")
	receipts := y.publishNamed(numbered("a", 1, 5)...)
	for _, n := range numbered("a", 1, 5) {
		d.die(n, 2)
	}
	other.handle(numbered("a", 1, 5)...)
	y.wantDead("g1", numbered("a", 1, 5)...)
	y.publishNamed(numbered("a", 6, 10)...)
	d.handle("a6")
	other.handle(numbered("a", 6, 10)...)
	calm := y.counts("g2")

	// a7 is out when the replay comes, so nothing else of the key may be.
	a7 := d.take("a7/1")
	y.replay("a", 5, 0)
	y.replay("a", 0, 5)
	d.nothing("a7 is out")
	s.crash(y.topic)
	y.replay("a", 0, 5)
	d.nothing("a7 is out")
	d.done(a7, ack, "")

	take := func(name string, attempt int) seen {
		x := d.take(fmt.Sprintf("%s/%dr", name, attempt))
		before := y.g1.of(name)[0]
		if x.GetOffset() != before.GetOffset() || !proto.Equal(x.GetMessage(), before.GetMessage()) {
			t.Errorf("the replay of %s changed it:\n%v\nwas %v", name, x.Delivery, before.Delivery)
		}
		if i := slices.Index(numbered("a", 1, 5), name); receipts[i].GetOffset() != x.GetOffset() {
			t.Errorf("%s was replayed with offset %d, stored at %d", name, x.GetOffset(), receipts[i].GetOffset())
		}
		d.nothing(name + " is out")
		return x
	}
	a1 := take("a1", 1)
	y.replay("a", 0, 5) // a1 is in hand
	d.done(a1, ack, "")
	y.replay("a", 0, 4)
	if r := d.done(take("a2", 1), nack, "again"); r.GetDeadLettered() {
		t.Error("a2 had no fresh attempts")
	}
	s.handOver(y.topic) // between the attempts of a replay
	y.replay("a", 0, 4)
	if r := d.done(take("a2", 2), nack, "for good"); !r.GetDeadLettered() {
		t.Error("a2 is not dead after its attempts")
	}
	for _, n := range numbered("a", 3, 5) {
		d.done(take(n, 1), ack, "")
	}
	d.handle(numbered("a", 8, 10)...)
	d.nothing("all is handled")

	y.wantDead("g1", "a2")
	y.wantHistory("g1", "a2", "nack", "nack", "nack", "nack")
	var reasons []string
	for _, a := range y.deadLetter("g1", "a2").GetHistory() {
		reasons = append(reasons, fmt.Sprintf("%d %s", a.GetAttempt(), a.GetReason()))
	}
	if want := []string{"1 broken a2/1", "2 broken a2/2", "1 again", "2 for good"}; !slices.Equal(reasons, want) {
		t.Errorf("a2's history is %q, want %q", reasons, want)
	}
	if c := y.counts("g1"); c.GetAcked() != 9 || c.GetDead() != 1 || c.GetLag() != 0 {
		t.Errorf("g1 ends with %v", c)
	}
	y.same("g2", "g1's replay", calm)
	other.nothing("all of it was acked in g2")
	s.crash(y.topic)
	y.same("g2", "the last crash", calm)
	y.wantHistory("g1", "a2", "nack", "nack", "nack", "nack")
	for _, n := range numbered("a", 1, 10) {
		y.g2.want(n, n+"/1")
	}
}

// C13: with the policy park a key waits behind its dead letter.
func parkAndLimit(t *testing.T, s *stage) {
	policy := &strandmqv1.GroupPolicy{
		MaxAttempts: proto.Uint32(2), BackoffMs: proto.Int64(20), AckDeadlineMs: proto.Int64(never),
		OnExhaustion: strandmqv1.OnExhaustion_ON_EXHAUSTION_PARK, MaxDeferredKey: proto.Uint32(100),
	}
	// Two scenes, so that one restart of a broker serves both: the operator
	// replays in one and discards in the other.
	replay, discard := s.scene(t, "c13-replay", 1, policy, policy), s.scene(t, "c13-discard", 1, policy, policy)
	hands := make(map[*scene]*desk)
	scenes := []*scene{replay, discard}
	for _, y := range scenes {
		d := y.desk(y.g1, "m")
		hands[y] = d
		y.publishNamed("a1")
		d.die("a1", 2)
		y.publishNamed(append(numbered("a", 2, 5), numbered("b", 1, 5)...)...)
		d.handle("b1", "b2")
	}
	s.crash(replay.topic, discard.topic)
	for _, y := range scenes {
		d := hands[y]
		d.handle(numbered("b", 3, 5)...)
		d.nothing("a1 is dead and parks its key")
		if c := y.counts("g1"); c.GetParked() != 4 || c.GetDead() != 1 || c.GetAcked() != 5 {
			t.Errorf("%s: %v, want 4 parked, 1 dead, 5 acked", y.topic, c)
		}
		for _, n := range numbered("a", 2, 5) {
			if at := y.standing("g1", n); at.GetState() != "parked" {
				t.Errorf("%s: %s is %s, want parked", y.topic, n, at.GetState())
			}
		}
		wantStall(y, "PARKED", 4)
		// Past the limit: 4 and 200 wait behind a1.
		var more []string
		for from := 6; from <= 205; from += 50 {
			y.publishNamed(numbered("a", from, from+49)...)
			more = append(more, numbered("a", from, from+49)...)
		}
		y.publishNamed("b6")
		d.handle("b6") // the key's limit is an alarm: others flow
		d.nothing("only the parked key is left")
		// The other group sees all of it. a1 is no dead letter there.
		g2 := y.desk(y.g2, "m")
		g2.handle(append(numbered("a", 1, 5), numbered("b", 1, 5)...)...)
		g2.handle(more[0])
	}
	s.handOver(replay.topic, discard.topic)
	for _, y := range scenes {
		c := y.counts("g1")
		if c.GetParked() != 204 || c.GetDead() != 1 || c.GetAcked() != 6 {
			t.Errorf("%s: %v, want 204 parked, 1 dead, 6 acked", y.topic, c)
		}
		wantStall(y, "DEFERRED_KEY_LIMIT", 204)
		hands[y].nothing("only the parked key is left")
		y.wantDead("g1", "a1")
	}

	// With the consumer mended, the whole strand comes in order.
	d := hands[replay]
	replay.replay("a", 1, 0)
	d.done(d.take("a1/1r"), ack, "")
	drainKeys(d, numbered("a", 2, 205))
	replay.wantDead("g1")
	replay.publishNamed("a206")
	d.handle("a206")
	replay.g1.want("a", append([]string{"a1/1", "a1/2", "a1/1r"}, first(numbered("a", 2, 206)...)...)...)
	replay.g1.want("b", first(numbered("b", 1, 6)...)...)

	d = hands[discard]
	discard.discard("a", 1)
	drainKeys(d, numbered("a", 2, 205))
	discard.publishNamed("a206")
	d.handle("a206")
	discard.g1.want("a", append([]string{"a1/1", "a1/2"}, first(numbered("a", 2, 206)...)...)...)
	discard.wantDead("g1")
	for _, y := range scenes {
		skipped := uint64(0)
		if y == discard {
			skipped = 1
		}
		if c := y.counts("g1"); c.GetLag() != 0 || c.GetAcked() != 212-skipped || c.GetSkipped() != skipped {
			t.Errorf("%s ends with %v", y.topic, c)
		}
	}
}

// wantStall says that g1 tells of a stall of key a, whose head is its first
// message.
func wantStall(y *scene, reason string, waiting uint64) {
	y.t.Helper()
	for _, p := range y.group("g1").GetPartitions() {
		for _, x := range p.GetStalls() {
			if x.GetReason() == reason && x.GetKey() == "a" && x.GetOffset() == 0 && x.GetWaiting() == waiting {
				return
			}
		}
		y.t.Errorf("%s: no stall %s of key a at offset 0 with %d waiting: %v", y.topic, reason, waiting, p.GetStalls())
	}
}

// drainKeys acks what comes until these messages did.
func drainKeys(d *desk, names []string) {
	d.y.t.Helper()
	left := make(map[string]bool)
	for _, n := range names {
		left[n] = true
	}
	until(d.y.t, "the rest comes", func() bool {
		for _, x := range d.receive(10, time.Second) {
			if !left[x.name] {
				d.y.t.Fatalf("%s came and should not", x)
			}
			delete(left, x.name)
			d.done(x, ack, "")
		}
		return len(left) == 0
	})
}
