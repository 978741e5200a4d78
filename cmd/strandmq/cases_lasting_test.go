//go:build unix

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// leave ends the member's session in good order.
func (d *desk) leave() error {
	_, err := d.consume.Leave(d.y.t.Context(), &strandmqv1.LeaveRequest{Topic: d.y.topic, Group: d.l.group, Member: d.name, Session: d.session})
	return err
}

// C3: a key that never flows holds up no other, while members come and go; it is
// named with its head, its attempts and what waits; and then it goes on in order.
func oneKeyAmongComers(t *testing.T, s *stage) {
	const n = 400
	y := s.scene(t, "c3", 2, &strandmqv1.GroupPolicy{
		MaxAttempts: proto.Uint32(0), AckDeadlineMs: proto.Int64(3_000), BackoffMs: proto.Int64(50), BackoffMaxMs: proto.Int64(100),
	}, nil)
	var cured atomic.Bool
	// The deadline of what a member hangs with comes at once; what went to one that left
	// without a word, and was not handled, comes again in three seconds.
	rule := func(x seen) (strandmqv1.SettleAction, bool) {
		if x.key == "hot" && !cured.Load() {
			return extend, true
		}
		return ack, true
	}
	ctx, cancel := context.WithCancel(t.Context())
	var members sync.WaitGroup
	defer members.Wait()
	defer cancel()
	members.Go(func() { y.desk(y.g1, "stays").work(ctx, rule) })
	// One comes, works for a while, and goes; every other one without a word.
	members.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			d := y.desk(y.g1, fmt.Sprintf("comer-%d", i))
			own, stop := context.WithCancel(ctx)
			timer := time.AfterFunc(300*time.Millisecond, stop) // a deadline would be sent to the broker, which answers first
			d.work(own, rule)
			timer.Stop()
			stop()
			if i%2 == 1 {
				d.vanish()
			} else if err := d.leave(); err != nil {
				t.Errorf("leave: %v", err)
			}
		}
	})
	var others []string
	var head *strandmqv1.Receipt
	counts := map[string]int{}
	for i := 1; i <= n; i += 50 {
		var names []string
		for j := i; j < i+50; j++ {
			key := fmt.Sprintf("k%c%c", 'a'+j%8, 'a'+j%5)
			counts[key]++
			other := fmt.Sprintf("%s%d", key, counts[key])
			others = append(others, other)
			names = append(names, fmt.Sprintf("hot%d", j), other)
		}
		if rs := y.publishNamed(names...); head == nil {
			head = rs[0]
		}
	}
	dwindles(t, "all other keys are handled", func() uint64 { return n - y.counts("g1").GetAcked() })
	var stall *strandmqv1.Stall
	until(t, "the key that stalls lapsed three times", func() bool {
		for _, st := range y.group("g1").GetPartitions()[head.GetPartition()].GetStalls() {
			if st.GetKey() == "hot" {
				stall = st
			}
		}
		return stall.GetAttempts() >= 3
	})
	if stall.GetOffset() != head.GetOffset() || stall.GetWaiting() != n-1 {
		t.Errorf("the stall is %v, its head is at offset %d and %d wait behind it", stall, head.GetOffset(), n-1)
	}
	until(t, "the members know of each of the others that it is handled", func() bool { return y.g1.handled(others...) })
	cured.Store(true)
	dwindles(t, "the key goes on", func() uint64 { return y.counts("g1").GetLag() })
	cancel()
	members.Wait()
	var order []string
	for _, x := range y.g1.of("hot") {
		order = append(order, x.name)
	}
	if order = slices.Compact(order); !slices.Equal(order, numbered("hot", 1, n)) {
		t.Errorf("the key came as %v", order)
	}
	y.wantDead("g1")
}

// C15: what was told to be stored is there once, byte for byte, and what was told to be
// acked does not come again, although who leads is killed at full rate, stopped, and, where
// it is one of several, cut off from all others with clients that it still hears.
func successIsKept(t *testing.T, s *stage) {
	y := s.scene(t, "c15", 2, &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(0), AckDeadlineMs: proto.Int64(never), BreakerFailedPercent: proto.Uint32(0)}, nil)
	var mu sync.Mutex
	told := map[string]*strandmqv1.Receipt{} // guarded by mu: what was told to be stored
	has := func() (int, int) {
		mu.Lock()
		defer mu.Unlock()
		y.g1.mu.Lock()
		defer y.g1.mu.Unlock()
		return len(told), len(y.g1.done)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	for p := range 4 {
		working.Go(func() {
			for i := 1; ctx.Err() == nil; i++ {
				if stored, acked := has(); stored > acked+500 {
					time.Sleep(time.Millisecond) // each key's come one by one, so a backlog takes long to read
					i--
					continue
				}
				m := named(fmt.Sprintf("p%c%c%d", 'a'+p, 'a'+i%20, i))
				for ctx.Err() == nil {
					// Once: who asks again by himself would not count the first answer.
					res, err := once(ctx, s.api.publish.Publish, &strandmqv1.PublishRequest{Topic: y.topic, Messages: []*strandmqv1.Message{m}})
					if err != nil || res.GetResults()[0].GetProblem() != nil {
						time.Sleep(5 * time.Millisecond) // the broker is away; asked again, under its id
						continue
					}
					mu.Lock()
					told[m.GetId()] = res.GetResults()[0].GetReceipt()
					mu.Unlock()
					break
				}
			}
		})
	}
	desks := []*desk{y.desk(y.g1, "m1"), y.desk(y.g1, "m2")}
	for _, d := range desks {
		working.Go(func() {
			for ctx.Err() == nil {
				// Not fresh: what an answer that was lost had is given again.
				got, err := d.ask(ctx, 10, 100*time.Millisecond, false)
				if err != nil {
					time.Sleep(5 * time.Millisecond) // the broker is away; the session goes on
					continue
				}
				for _, x := range got {
					// Until it is known: an ack without an answer may have been lost.
					for ctx.Err() == nil {
						if r, err := d.settle(x, ack, "", 0); err == nil && r.GetProblem() == nil {
							break
						}
						time.Sleep(5 * time.Millisecond) // the broker is away
					}
				}
			}
		})
	}
	hand := y.desk(y.g1, "m3") // has deliveries to ack when who leads is alone
	for i, change := range []func(){
		func() { s.crash(y.topic) },
		func() {
			held := hand.receive(8, 30*time.Second)
			s.alone(y.topic, func(leader *clients) {
				stored, acked := whileAlone(y, hand.at(leader), leader, held)
				mu.Lock()
				defer mu.Unlock()
				maps.Copy(told, stored)
				if s.nodes() > 1 && acked == len(held) && acked > 0 {
					t.Error("who was alone confirmed everything")
				}
			})
		},
		func() { s.pause(y.topic, nil) },
		func() { s.handOver(y.topic) },
	} {
		n, acked := has()
		until(t, "some are stored and some acked", func() bool { a, b := has(); return a >= n+50 && b >= acked+50 })
		t.Logf("change %d", i+1)
		change()
	}
	cancel()
	working.Wait()

	// The ledger of g1 says so if anything acked comes again.
	last := y.desk(y.g1, "m1")
	y.desk(y.g1, "m2")
	y.desk(y.g1, "m3")
	work := func(d *desk) {
		dwindles(t, "the rest comes", func() uint64 {
			d.doneAll(d.receive(500, 200*time.Millisecond))
			return y.counts(d.l.group).GetLag()
		})
	}
	work(last)
	work(y.desk(y.g2, "m"))
	seen := map[string]int{}
	for _, x := range y.g2.all {
		seen[x.name]++
		r, ok := told[x.name]
		if ok && (r.GetOffset() != x.GetOffset() || r.GetPartition() != x.GetPartition()) {
			t.Errorf("%s is at %d/%d, its receipt says %d/%d", x.name, x.GetPartition(), x.GetOffset(), r.GetPartition(), r.GetOffset())
		}
		if want := "body of " + x.name; string(x.GetMessage().GetBytes()) != want {
			t.Errorf("%s has the body %q", x.name, x.GetMessage().GetBytes())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(told)) {
		if seen[name] != 1 {
			t.Errorf("%s was stored, and is there %d times", name, seen[name])
		}
	}
	if c := y.counts("g1"); c.GetDead() != 0 || c.GetAcked() != uint64(len(seen)) {
		t.Errorf("g1: %v of %d", c, len(seen))
	}
}

// whileAlone publishes to one node and acks at it, which is alone, and gives what that told
// to be stored and how many it told to be acked. It goes on until one publish is not
// confirmed: it may take a while until the others stand still. One broker confirms all.
func whileAlone(y *scene, d *desk, leader *clients, held []seen) (stored map[string]*strandmqv1.Receipt, acked int) {
	stored = map[string]*strandmqv1.Receipt{}
	ctx, cancel := context.WithTimeout(y.t.Context(), patience)
	defer cancel()
	for i := 1; ; i++ {
		m := named(fmt.Sprintf("alone%d", i))
		call, cancel := context.WithTimeout(ctx, time.Second) // it never comes
		res, err := leader.publish.Publish(call, &strandmqv1.PublishRequest{Topic: y.topic, Messages: []*strandmqv1.Message{m}})
		cancel()
		confirmed := err == nil && res.GetResults()[0].GetProblem() == nil
		if confirmed {
			stored[m.GetId()] = res.GetResults()[0].GetReceipt()
		}
		if !confirmed || y.s.nodes() == 1 && i == 5 {
			break
		}
		if ctx.Err() != nil {
			y.t.Fatal("who is alone confirms what others cannot have")
		}
	}
	var acks sync.WaitGroup
	var mu sync.Mutex
	for _, x := range held {
		acks.Go(func() {
			call, cancel := context.WithTimeout(ctx, time.Second) // as above
			defer cancel()
			if r, err := d.settleIn(call, x, ack, "", 0); err == nil && r.GetProblem() == nil {
				mu.Lock()
				defer mu.Unlock()
				acked++
			}
		})
	}
	acks.Wait()
	return stored, acked
}

// C19: a group that lags when retention comes loses with a record, or holds.
func lagAndRetention(t *testing.T, s *stage) {
	const n = 12
	for _, how := range []string{"hold", "expire", "default"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			policy := &strandmqv1.GroupPolicy{AckDeadlineMs: proto.Int64(never), BackoffMs: proto.Int64(0)}
			switch how {
			case "hold":
				policy.Retention = strandmqv1.GroupRetention_GROUP_RETENTION_HOLD
				policy.HoldLimitBytes = proto.Uint64(16_000)
			case "expire":
				policy.Retention = strandmqv1.GroupRetention_GROUP_RETENTION_EXPIRE
			}
			y := s.scene(t, "c19-"+how, 1, policy, nil)
			var names []string
			for i := range n {
				names = append(names, fmt.Sprintf("k%c1", 'a'+i))
			}
			for _, name := range names {
				y.publishNamed(name)
			}
			// Holes and two in flight: one and three are acked, zero and two are out.
			g1 := y.desk(y.g1, "m")
			var out []seen
			for i := range 4 {
				x := g1.take(names[i] + "/1")
				if i%2 == 1 {
					g1.done(x, ack, "")
				} else {
					out = append(out, x)
				}
			}
			y.desk(y.g2, "m").handle(names...)
			given(ask(t.Context(), s.api.topics.AlterTopic, &strandmqv1.AlterTopicRequest{
				Topic: y.topic, Config: &strandmqv1.TopicConfig{RetentionMs: proto.Int64(1)},
			}))(t)
			part := func() *strandmqv1.GroupPartition { return y.group("g1").GetPartitions()[0] }
			start := func() uint64 {
				return given(ask(t.Context(), s.api.topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: y.topic}))(t).GetPartitions()[0].GetStartOffset()
			}
			if how == "hold" {
				until(t, "what is held is charged to g1", func() bool { return part().GetHeldBytes() > 0 })
				// As many more as come to nine tenths of the limit.
				more := numbered("more", 1, int(14_000/(part().GetHeldBytes()/n))-n)
				for _, name := range more {
					y.publishNamed(name)
				}
				until(t, "there is an alarm before the limit", func() bool {
					st := part().GetStalls()
					return len(st) > 0 && st[0].GetReason() == "HOLD_ALARM"
				})
				if start() != 0 || y.counts("g1").GetExpired() != 0 {
					t.Errorf("something that g1 needs is gone: the log begins at %d, %v", start(), y.counts("g1"))
				}
				for _, x := range out {
					g1.done(x, ack, "")
				}
				dwindles(t, "what was held comes", func() uint64 {
					for _, x := range g1.receive(10, 200*time.Millisecond) {
						g1.done(x, ack, "")
					}
					return y.counts("g1").GetLag()
				})
				if c := y.counts("g1"); c.GetAcked() != uint64(n+len(more)) {
					t.Errorf("g1 handled %v of %d", c, n+len(more))
				}
				return
			}
			until(t, "all of it is gone", func() bool { return start() == n })
			s := part()
			if l := s.GetLosses(); len(l) != 1 || l[0].GetCount() != n-2 || l[0].GetFirst() != 0 || l[0].GetLast() != n-1 || l[0].GetCause() != "age" {
				t.Errorf("losses: %v", l)
			}
			if c := y.counts("g1"); c.GetExpired() != n-2 || c.GetLag() != 0 {
				t.Errorf("counts: %v", c)
			}
			if c := y.counts("g2"); c.GetExpired() != 0 || c.GetAcked() != n {
				t.Errorf("g2, which kept up: %v", c)
			}
			for _, x := range out {
				r := given(g1.settle(x, ack, "", 0))(t)
				if p := r.GetProblem(); p.GetReason() != "STALE_DELIVERY" || !strings.Contains(p.GetMessage(), "expired") {
					t.Errorf("the ack of what is gone: %v", r)
				}
			}
			// It goes on at the first message that is kept.
			given(ask(t.Context(), y.s.api.topics.AlterTopic, &strandmqv1.AlterTopicRequest{
				Topic: y.topic, Config: &strandmqv1.TopicConfig{RetentionMs: proto.Int64(0)},
			}))(t)
			y.publishNamed("na1", "nb1", "nc1")
			for range 3 {
				x := g1.receive(1, time.Minute) // the most that a call waits
				if len(x) != 1 || x[0].GetAttempt() != 1 || x[0].GetOffset() < n {
					t.Fatalf("behind the loss came %v", x)
				}
				g1.done(x[0], ack, "")
			}
			if c := y.counts("g1"); c.GetAcked() != 5 || c.GetLag() != 0 {
				t.Errorf("in the end: %v", c)
			}
		})
	}
}
