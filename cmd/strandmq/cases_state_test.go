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

// C14: what is out, blocked, backing off, parked and dead is the same after whatever
// becomes of who leads: to the token, the attempt and the count. Then everything goes on,
// nothing is skipped, and nothing comes again that was not to.
func stateOverElections(t *testing.T, s *stage) {
	const keys = 120
	policy := &strandmqv1.GroupPolicy{
		MaxAttempts: proto.Uint32(5), BackoffMs: proto.Int64(0), AckDeadlineMs: proto.Int64(never), MaxHoldMs: proto.Int64(6 * never),
		OnExhaustion: strandmqv1.OnExhaustion_ON_EXHAUSTION_PARK, BreakerFailedPercent: proto.Uint32(0),
	}
	y := s.scene(t, "c14", 1, policy, policy)
	in := &inFlight{y: y, members: []*desk{y.desk(y.g1, "m1")}}

	// What is settled, dead, and far from its next attempt, each with more of its key behind.
	d := in.members[0]
	y.publishNamed("done1", "dead1", "dead2", "dead3", "slow1", "slow2")
	d.handle("done1")
	d.die("dead1", 5)
	if r := d.settled(d.take("slow1/1"), nack, "later", never*time.Millisecond); r.GetProblem() != nil {
		t.Fatal(r.GetProblem())
	}
	// What three members hold, with one more of each key behind.
	for _, name := range []string{"m2", "m3"} {
		in.members = append(in.members, y.desk(y.g1, name))
	}
	var names []string
	for i := range keys {
		names = append(names, fmt.Sprintf("k%c%c1", 'a'+i/20, 'a'+i%20), fmt.Sprintf("k%c%c2", 'a'+i/20, 'a'+i%20))
	}
	y.publishNamed(names...)
	until(t, "all keys are out", func() bool { in.receive(); return in.out() == keys })
	y.desk(y.g2, "m").handle("done1", "dead1", "dead2")

	settled := 0
	for i, change := range []func(){
		func() { s.crash(y.topic) },
		func() { s.handOver(y.topic) },
		func() {
			y.publishNamed("late1")
			s.alone(y.topic, in.whileAlone)
			in.late()
		},
		func() {
			s.pause(y.topic, in.whileStill)
			in.collect()
		},
		func() { s.handOver(y.topic) },
		// Who held something comes by other connections, as it does when its own broke.
		func() {
			for _, d := range in.members {
				d.vanish()
			}
			s.crash(y.topic)
		},
	} {
		in.note()
		change()
		t.Logf("change %d", i+1)
		in.same()
		// Their tokens are good, each for once; what it makes free comes, and nothing else.
		for _, d := range in.members {
			held := d.held()
			if len(held) < 4 {
				continue
			}
			d.done(held[0], ack, "")
			d.done(held[0], ack, "") // its answer might have been lost
			d.done(held[1], nack, "once more")
			if r := d.settled(held[1], ack, "", 0); r.GetProblem().GetReason() != "STALE_DELIVERY" {
				t.Errorf("an ack after the nack of %s: %v", held[1], r)
			}
			d.done(held[2], release, "")
			d.done(held[3], extend, "")
			settled++
		}
		until(t, "what is free is out", func() bool {
			in.receive()
			c := y.counts("g1")
			return c.GetReady() == 0 && c.GetBackingOff() == 1
		})
	}
	if settled < 12 {
		t.Errorf("tokens were used %d times only", settled)
	}

	// Everything goes on, each key in its order, and once.
	until(t, "all keys are handled", func() bool {
		for _, d := range in.members {
			d.doneAll(d.held())
			d.doneAll(d.receive(keys, 0))
		}
		return y.counts("g1").GetAcked() == 2+2*keys
	})
	c := y.counts("g1")
	if c.GetInFlight() != 0 || c.GetReady() != 0 || c.GetBackingOff() != 1 || c.GetBlocked() != 1 || c.GetParked() != 2 || c.GetDead() != 1 {
		t.Errorf("g1 ends with %v", c)
	}
	for _, n := range names {
		var attempts []uint32
		for _, x := range y.g1.of(n) {
			attempts = append(attempts, x.GetAttempt())
		}
		if len(attempts) == 0 || !slices.IsSorted(attempts) || attempts[0] != 1 {
			t.Errorf("%s came with the attempts %v", n, attempts)
		}
	}
	y.replay("dead", 1, 0)
	for _, want := range []string{"dead1/1r", "dead2/1", "dead3/1"} {
		var got []seen
		until(t, want+" comes", func() bool {
			for _, d := range in.members {
				got = append(got, d.receive(10, 0)...)
			}
			return len(got) > 0
		})
		if len(got) != 1 || got[0].String() != want {
			t.Fatalf("%v came, want %s", got, want)
		}
		got[0].desk.done(got[0], ack, "")
	}
	y.wantDead("g1")
}

// inFlight is what a group has, as it was noted.
type inFlight struct {
	y       *scene
	members []*desk

	held   map[string][]seen
	counts map[string]*strandmqv1.GroupCounts
	dead   []*strandmqv1.DeadLetter
	states map[string]*strandmqv1.TraceState
	slow   *strandmqv1.Stall // of the key that backs off

	answers chan settledLate // to whileStill; nil: it was not called
	asking  sync.WaitGroup
	now     seen // what came again meanwhile
}

// receive has every member take what there is for it.
func (in *inFlight) receive() {
	in.y.t.Helper()
	for _, d := range in.members {
		for len(d.receive(50, 0)) > 0 {
		}
	}
}

// out is how many the members hold, which has to be what the group tells of each.
func (in *inFlight) out() (n int) {
	in.y.t.Helper()
	told := map[string]uint64{}
	g := in.y.group("g1")
	for _, m := range g.GetMembers() {
		told[m.GetName()] = m.GetInFlight()
	}
	for _, d := range in.members {
		held := len(d.held())
		if uint64(held) != told[d.name] {
			in.y.t.Errorf("%s holds %d, and the group tells of %d", d.name, held, told[d.name])
		}
		n += held
	}
	if uint64(n) != g.GetCounts().GetInFlight() {
		in.y.t.Errorf("the members hold %d, and the group tells of %d", n, g.GetCounts().GetInFlight())
	}
	return n
}

// standers are messages of every kind.
var standers = []string{"done1", "dead1", "dead2", "dead3", "slow1", "slow2", "kaa2", "kbb2", "kft2"}

// look is what there is now.
func (in *inFlight) look() *inFlight {
	in.y.t.Helper()
	now := &inFlight{
		y: in.y, members: in.members, held: map[string][]seen{}, dead: append(in.y.deadLetters("g1"), in.y.deadLetter("g1", "dead1")),
		counts: map[string]*strandmqv1.GroupCounts{"g1": in.y.counts("g1"), "g2": in.y.counts("g2")}, states: map[string]*strandmqv1.TraceState{},
	}
	for _, d := range in.members {
		now.held[d.name] = d.held()
	}
	for _, n := range standers {
		now.states[n] = in.y.standing("g1", n)
		if st := now.states[n].GetState(); st == "backing-off" || st == "in-flight" {
			now.states[n].Detail = "" // for how many milliseconds; see slow, and held
		}
	}
	for _, st := range in.y.group("g1").GetPartitions()[0].GetStalls() {
		if st.GetKey() == "slow" {
			now.slow = st
		}
	}
	return now
}

// note notes what there is before a change.
func (in *inFlight) note() {
	in.y.t.Helper()
	in.out()
	now := in.look()
	in.held, in.counts, in.dead, in.states, in.slow = now.held, now.counts, now.dead, now.states, now.slow
}

// same says that everything is as it was noted, and that nothing else is to come.
func (in *inFlight) same() {
	t := in.y.t
	t.Helper()
	in.out()
	now := in.look()
	for _, d := range in.members {
		if !slices.EqualFunc(now.held[d.name], in.held[d.name], unchanged) {
			t.Errorf("%s holds\n%v, held\n%v", d.name, now.held[d.name], in.held[d.name])
		}
	}
	for group, c := range now.counts {
		if !proto.Equal(c, in.counts[group]) {
			t.Errorf("%s counts\n%v, counted\n%v", group, c, in.counts[group])
		}
	}
	now.same1(in.dead)
	for n, is := range now.states {
		if was := in.states[n]; !proto.Equal(is, was) {
			t.Errorf("%s is %v, was %v", n, is, was)
		}
	}
	if in.slow == nil || now.slow.GetUntil().AsTime().Before(in.slow.GetUntil().AsTime().Add(-millisecond)) || now.slow.GetAttempts() != in.slow.GetAttempts() {
		t.Errorf("what backs off is %v, was %v", now.slow, in.slow)
	}
	for _, d := range in.members {
		d.nothing("every key is out, parked or backing off")
	}
}

// same1 says that the dead letters are those noted.
func (in *inFlight) same1(was []*strandmqv1.DeadLetter) {
	in.y.t.Helper()
	if !slices.EqualFunc(in.dead, was, func(a, b *strandmqv1.DeadLetter) bool { return proto.Equal(a, b) }) {
		in.y.t.Errorf("the dead letters are\n%v, were\n%v", in.dead, was)
	}
}

// whileAlone asks who leads for deliveries that it cannot have others store: none is sent.
// One that came, since the others still stood, is known to them.
func (in *inFlight) whileAlone(leader *clients) {
	var asking sync.WaitGroup
	for _, d := range in.members {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(in.y.t.Context(), time.Second) // it never comes
			defer cancel()
			_, _ = d.at(leader).ask(ctx, 10, 500*time.Millisecond, true)
		})
	}
	asking.Wait()
}

// late has the message that was published before whileAlone come, once, and acks it.
func (in *inFlight) late() {
	y := in.y
	y.t.Helper()
	until(y.t, "late1 comes", func() bool {
		in.receive()
		for _, d := range in.members {
			d.held()
		}
		return len(y.g1.of("late1")) > 0
	})
	y.g1.want("late", "late1/1")
	x := y.g1.of("late1")[0]
	x.desk.done(x, ack, "")
	in.counts["g1"].HandedOut++
	in.counts["g1"].Acked++
	in.counts["g1"].HandledMs = y.counts("g1").GetHandledMs()
	in.counts["g2"] = y.counts("g2") // it has one more, too
}

// settledLate is what a settlement that was made while who led stood still came to.
type settledLate struct {
	by  *desk
	x   seen
	r   *strandmqv1.SettleResult
	err error
}

// whileStill has the deadline of a delivery pass at who leads now, and the message come
// again there. Before that it sends an ack and a receive to who stands still, which will see
// them before it hears that it does not lead any more.
func (in *inFlight) whileStill(still, other *clients) {
	y := in.y
	y.t.Helper()
	d := in.members[0]
	x := in.held[d.name][0]
	in.answers = make(chan settledLate, 1) // taken by collect
	go func() {
		by := d.at(still)
		r, err := by.settle(x, ack, "", 0)
		in.answers <- settledLate{by, x, r, err}
	}()
	asked := in.members[1].at(still)
	in.asking.Go(func() { _, _ = asked.ask(y.t.Context(), 10, 0, true) })

	d.at(other).lapse(x)
	in.held[d.name] = in.held[d.name][1:]
	until(y.t, x.name+" comes again", func() bool {
		for _, d := range in.members {
			for _, again := range d.at(other).receive(10, 0) {
				if again.name != x.name || again.GetAttempt() != x.GetAttempt()+1 {
					y.t.Errorf("%s came, want the next of %s", again, x)
				}
				list := append(in.held[d.name], again)
				slices.SortFunc(list, func(a, b seen) int { return int(a.GetOffset()) - int(b.GetOffset()) })
				in.held[d.name], in.now = list, again
			}
		}
		return in.now.Delivery != nil
	})
	in.counts["g1"].HandedOut++
	in.counts["g1"].Retried++
	in.counts["g1"].Lapsed++
}

// collect takes what was answered to whileStill, if it was called.
func (in *inFlight) collect() {
	if in.answers == nil {
		return
	}
	y := in.y
	y.t.Helper()
	in.asking.Wait()
	a := <-in.answers
	if a.err != nil || again(a.r.GetProblem()) {
		a.r = a.by.settled(a.x, ack, "", 0) // it did not wait until it knew
	}
	if a.r.GetProblem().GetReason() != "STALE_DELIVERY" {
		y.t.Errorf("who stood still and did not lead any more took the ack of %s, which was handed out anew: %v", a.x, a.r)
	}
	y.g1.mu.Lock()
	defer y.g1.mu.Unlock()
	y.g1.open[a.x.key] = in.now // the refused ack changed nothing
}
