//go:build unix

package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// C5: no restart of anybody resets an attempt count or shortens a wait.
func attemptsSurviveRestarts(t *testing.T, s *stage) {
	shortest := 150 * time.Millisecond
	if s.nodes() > 1 {
		shortest = time.Second // so that some waits last longer than an election
	}
	policy := &strandmqv1.GroupPolicy{
		MaxAttempts: proto.Uint32(5), BackoffMs: proto.Int64(shortest.Milliseconds()), BackoffMaxMs: proto.Int64(4 * shortest.Milliseconds()),
		AckDeadlineMs: proto.Int64(never),
	}
	wait := func(attempt int) time.Duration { return min(shortest<<(attempt-1), 4*shortest) }
	y := s.scene(t, "c5", 1, policy, policy)
	y.publishNamed("a1", "a2")
	d, other := y.desk(y.g1, "m"), y.desk(y.g2, "m")
	other.done(other.take("a1/1"), nack, "once")
	var failed time.Time
	for attempt := 1; attempt <= 5; attempt++ {
		x := d.take(fmt.Sprintf("a1/%d", attempt))
		if attempt > 1 {
			if got := x.at.Sub(failed); got < wait(attempt-1)-millisecond {
				t.Errorf("attempt %d came %v after the failure, before its backoff of %v", attempt, got, wait(attempt-1))
			}
		}
		if attempt == 2 {
			s.crash(y.topic) // with the delivery in hand
		}
		failed = time.Now()
		if r := d.done(x, nack, fmt.Sprintf("failure %d", attempt)); r.GetDeadLettered() != (attempt == 5) {
			t.Errorf("attempt %d: dead is %v", attempt, r.GetDeadLettered())
		}
		switch attempt {
		case 1:
			s.crash(y.topic) // in the backoff
		case 2:
			d.vanish()
			d = y.desk(y.g1, "m") // the consumer is started again
		case 3:
			s.handOver(y.topic)
		case 4:
			s.dark(y.topic)
		}
	}
	y.g1.want("a", "a1/1", "a1/2", "a1/3", "a1/4", "a1/5")
	y.wantDead("g1", "a1")
	y.wantHistory("g1", "a1", "nack", "nack", "nack", "nack", "nack")
	d.handle("a2")
	other.done(other.take("a1/2"), ack, "")
	other.handle("a2")
	y.wantDead("g2")
	if c := y.counts("g2"); c.GetRetried() != 1 || c.GetHandedOut() != 3 {
		t.Errorf("g2 counts %v, want 3 hand-outs and 1 failure", c)
	}
	s.crash(y.topic)
	y.wantHistory("g1", "a1", "nack", "nack", "nack", "nack", "nack")
}

// C6: whatever becomes of a consumer costs one attempt, and the last one kills.
func crashAndHangCount(t *testing.T, s *stage) {
	policy := func(deadline, hold int64) *strandmqv1.GroupPolicy {
		return &strandmqv1.GroupPolicy{
			MaxAttempts: proto.Uint32(3), BackoffMs: proto.Int64(50), BackoffMaxMs: proto.Int64(50),
			AckDeadlineMs: proto.Int64(deadline), MaxHoldMs: proto.Int64(hold),
		}
	}
	// ends says that a1 is dead after three attempts that ended like this, that
	// none ended late, and that the key goes on.
	ends := func(y *scene, outcome string) {
		t := y.t
		t.Helper()
		until(t, "a1 is dead", func() bool { return y.counts("g1").GetDead() == 1 })
		y.g1.want("a", "a1/1", "a1/2", "a1/3")
		y.wantHistory("g1", "a1", outcome, outcome, outcome)
		y.g1.died(y.g1.of("a1")[2])
		y.desk(y.g1, "m").handle("a2")
		if c := y.counts("g1"); c.GetHandedOut() != 4 || c.GetRetried() != 3 {
			t.Errorf("counts %v, want 4 hand-outs and 3 failures", c)
		}
	}
	// The broker is killed right after a delivery. First, since the rest share it.
	t.Run("broker_killed", func(t *testing.T) {
		y := s.scene(t, "c6-broker", 1, policy(never, never), nil)
		y.publishNamed("a1", "a2")
		d := y.desk(y.g1, "m")
		for i, change := range []func(){
			func() { s.crash(y.topic) }, func() { s.handOver(y.topic) }, func() { s.pause(y.topic, nil) },
		} {
			x := d.take(fmt.Sprintf("a1/%d", i+1))
			change()
			if again := d.held(); len(again) != 1 || !unchanged(again[0], x) {
				t.Errorf("%s is %v afterwards, was %v", x, again, x.Delivery)
			}
			d.lapse(x)
		}
		ends(y, "lapse")
	})
	t.Run("crash", func(t *testing.T) {
		t.Parallel()
		y := s.scene(t, "c6-crash", 1, policy(never, never), nil)
		y.publishNamed("a1", "a2")
		d := y.desk(y.g1, "m")
		for i := 1; i <= 3; i++ {
			d.take(fmt.Sprintf("a1/%d", i)) // long before the deadline of the one before
			d.vanish()
			d = y.desk(y.g1, "m") // the same consumer, started again
		}
		ends(y, "session-lost")
	})
	// And one of its deadlines passes while nobody leads.
	t.Run("hang", func(t *testing.T) {
		// Nobody brings the deadline near: it has to come by itself, and not before the
		// test has the delivery.
		y := s.scene(t, "c6-hang", 1, policy(2_500, 10_000), nil)
		y.publishNamed("a1", "a2")
		d := y.desk(y.g1, "m")
		var before seen
		for i := 1; i <= 3; i++ {
			x := d.take(fmt.Sprintf("a1/%d", i))
			if i > 1 && x.at.Before(before.GetDeadline().AsTime().Add(50*time.Millisecond-millisecond)) {
				t.Errorf("%s came at %v, before the deadline and the backoff of the one before, %v", x, x.at, before.GetDeadline().AsTime())
			}
			before = x
			if i == 2 {
				s.crash(y.topic)
			}
		}
		ends(y, "lapse")
	})
	t.Run("cut_off", func(t *testing.T) {
		t.Parallel()
		y := s.scene(t, "c6-cut", 1, policy(2_500, 2_500), nil)
		y.publishNamed("a1", "a2")
		var before seen
		for i := 1; i <= 3; i++ {
			// Each member's connection is cut and it is never heard of again. Its
			// session times out soon, and others get its partitions; but it may
			// only be slow, so the message is its own until the deadline.
			d := y.desk(y.g1, fmt.Sprintf("m%d", i))
			x := d.take(fmt.Sprintf("a1/%d", i))
			d.vanish()
			if i > 1 && x.at.Before(before.GetDeadline().AsTime()) {
				t.Errorf("%s came at %v, before the deadline of the one before, %v", x, x.at, before.GetDeadline().AsTime())
			}
			before = x
		}
		ends(y, "lapse")
	})
	t.Run("extended_for_ever", func(t *testing.T) {
		t.Parallel()
		const deadline, hold = 30 * time.Second, 31 * time.Second
		y := s.scene(t, "c6-extend", 1, policy(deadline.Milliseconds(), hold.Milliseconds()), nil)
		y.publishNamed("a1", "a2")
		d := y.desk(y.g1, "m")
		extended := 0
		for i := 1; i <= 3; i++ {
			x := d.take(fmt.Sprintf("a1/%d", i))
			most := x.GetDeadline().AsTime().Add(hold - deadline)
			until(t, "an extend is refused", func() bool {
				r := d.settled(x, extend, "", 0)
				switch reason := r.GetProblem().GetReason(); reason {
				case "":
					extended++
					if r.GetDeadline().AsTime().After(most) {
						t.Errorf("%s was extended to %v, beyond its max hold, %v", x, r.GetDeadline().AsTime(), most)
					}
					return false
				case "HELD_TOO_LONG":
					return true
				default:
					t.Fatalf("extend: %v", r.GetProblem())
					return true
				}
			})
			if held := time.Now(); held.Before(most.Add(-deadline)) {
				t.Errorf("%s could not be extended at %v, well before its max hold, %v", x, held, most)
			}
			d.lapse(x) // a deadline can be brought near, also then
		}
		if extended == 0 { // a second each time, in which a busy machine may do other things
			t.Error("no delivery was ever extended")
		}
		ends(y, "lapse")
	})
}

// C7: an old token changes nothing, whoever sends it and however often.
func staleTokens(t *testing.T, s *stage) {
	policy := &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(0), AckDeadlineMs: proto.Int64(never), MaxAttempts: proto.Uint32(5)}
	type play struct {
		y    *scene
		a, b *desk
		old  seen // attempt 1, lapsed
		now  seen // attempt 2
	}
	var plays []*play
	for _, who := range []string{"another", "same"} {
		y := s.scene(t, "c7-"+who, 1, policy, nil)
		p := &play{y: y, a: y.desk(y.g1, "a")}
		p.b = p.a
		y.publishNamed("a1", "a2")
		p.old = p.a.take("a1/1")
		if who == "another" {
			// The other one takes over the keys when the first, stalled and not
			// heard of, loses its session; it comes back later with its token.
			p.b = y.desk(y.g1, "b")
		}
		p.a.lapse(p.old)
		plays = append(plays, p)
	}
	for _, p := range plays {
		p.now = p.b.take("a1/2")
	}
	misuse := func(when string) {
		for _, p := range plays {
			before := p.y.counts("g1")
			for _, action := range []strandmqv1.SettleAction{ack, nack, extend, reject, release} {
				for range 2 {
					r := p.a.settled(p.old, action, "too late", 0)
					if r.GetProblem().GetReason() != "STALE_DELIVERY" || r.GetDeadLettered() || r.GetDeadline() != nil {
						t.Errorf("%s, %s: %s with the old token: %v", p.y.topic, when, action, r)
					}
				}
			}
			p.y.same("g1", "the misuse of an old token "+when, before)
		}
	}
	inHand := func(when string) {
		for _, p := range plays {
			p.y.g1.open["a"] = p.now // the refused acks changed nothing
			if at := p.y.standing("g1", "a2"); at.GetState() != "blocked" {
				t.Errorf("%s, %s: a2 is %s, want blocked", p.y.topic, when, at.GetState())
			}
			p.b.nothing("a1 is out")
			again := p.b.held()
			if len(again) != 1 || !unchanged(again[0], p.now) {
				t.Errorf("%s, %s: the delivery in hand is now %v, was %v", p.y.topic, when, again, p.now.Delivery)
			}
		}
	}
	misuse("at first")
	inHand("at first")
	var topics []string
	for _, p := range plays {
		topics = append(topics, p.y.topic)
	}
	s.crash(topics...)
	misuse("after a crash")
	inHand("after a crash")
	s.handOver(topics...)
	misuse("after an orderly change")
	inHand("after an orderly change")
	for _, p := range plays {
		p.b.done(p.now, ack, "")
		p.b.done(p.now, ack, "") // its answer might have been lost
	}
	misuse("after the ack")
	s.crash(topics...)
	for _, p := range plays {
		before := p.y.counts("g1")
		p.b.done(p.now, ack, "")
		p.y.same("g1", "a repeated ack", before)
	}
	misuse("after the ack and a crash")
	for _, p := range plays {
		p.b.handle("a2")
		p.y.g1.want("a", "a1/1", "a1/2", "a2/1")
	}
}

// C10: a dead letter keeps everything of its message.
func deadLettersWhole(t *testing.T, s *stage) {
	y := s.scene(t, "c10", 3, &strandmqv1.GroupPolicy{
		MaxAttempts: proto.Uint32(2), BackoffMs: proto.Int64(0), AckDeadlineMs: proto.Int64(never),
	}, nil)
	keys := [][]byte{[]byte("plain"), {0, 255, 1}, {0xff, 0xfe}, bytes.Repeat([]byte{7}, 4096), nil}
	value := func(v string) *strandmqv1.Header_Value { return &strandmqv1.Header_Value{Value: v} }
	var sent []*strandmqv1.Message
	for i := range 50 {
		m := &strandmqv1.Message{
			Id: fmt.Sprintf("m%d", i),
			Headers: []*strandmqv1.Header{
				{Name: "name", ValueKind: value(fmt.Sprintf("m%d", i))},
				{Name: "tag", ValueKind: value("second")},
				{Name: "traceparent", ValueKind: value(fmt.Sprintf("00-4bf92f3577b34da6a3ce929d0e0e47%02x-00f067aa0ba902b7-01", i))},
				{Name: "tag", ValueKind: value("first")},
				{Name: "TAG", ValueKind: &strandmqv1.Header_ValueBytes{ValueBytes: []byte{0, byte(i), 255}}},
				{Name: "tag", ValueKind: value("second")},
				{Name: "empty", ValueKind: value("")},
			},
			Body: &strandmqv1.Message_Bytes{Bytes: []byte{byte(i), 0, 255}},
		}
		if key := keys[i%5]; key != nil {
			m.KeyKind = &strandmqv1.Message_KeyBytes{KeyBytes: key}
		} else if i%2 == 0 {
			m.Id = ""
		}
		switch i {
		case 3, 4, 17:
			m.Body = nil
		case 20, 24:
			m.Body = &strandmqv1.Message_Text{}
		case 31:
			m.Body = &strandmqv1.Message_Bytes{Bytes: bytes.Repeat([]byte{0xab, 0, 10}, 1<<20/3)}
		case 32:
			m.Body = &strandmqv1.Message_Text{Text: "käse\n"}
		}
		sent = append(sent, m)
	}
	began := time.Now().Add(-millisecond)
	receipts := y.publish(sent...)
	d, other := y.desk(y.g1, "m"), y.desk(y.g2, "m")
	until(t, "all are dead in g1", func() bool {
		for _, x := range d.receive(10, 200*time.Millisecond) {
			d.done(x, nack, "cannot "+x.String())
		}
		return y.counts("g1").GetDead() == 50
	})
	until(t, "all are acked in g2", func() bool {
		for _, x := range other.receive(10, 200*time.Millisecond) {
			other.done(x, ack, "")
		}
		return y.counts("g2").GetAcked() == 50
	})
	finished := time.Now().Add(millisecond)

	before := y.deadLetters("g1")
	if len(before) != 50 {
		t.Fatalf("%d dead letters, want 50", len(before))
	}
	within := func(what string, at time.Time) {
		if at.Before(began) || at.After(finished) {
			t.Errorf("%s at %v is not between %v and %v", what, at, began, finished)
		}
	}
	if !slices.IsSortedFunc(before, func(a, b *strandmqv1.DeadLetter) int {
		return slices.Compare([]uint64{uint64(a.GetPartition()), a.GetOffset()}, []uint64{uint64(b.GetPartition()), b.GetOffset()})
	}) {
		t.Error("the list is not in the order of partitions and offsets")
	}
	listed := make(map[string]*strandmqv1.DeadLetter)
	for _, x := range before {
		listed[nameOf(x.GetMessage())] = x
	}
	whole := make(map[string]*strandmqv1.DeadLetter)
	get := func(r *strandmqv1.Receipt) *strandmqv1.DeadLetter {
		return looks(t, s.api.dead.GetDeadLetter, &strandmqv1.GetDeadLetterRequest{
			Topic: y.topic, Group: "g1", BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES,
			Which: &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Place{
				Place: &strandmqv1.MessagePlace{Partition: r.GetPartition(), Offset: r.GetOffset()},
			}},
		}).GetDeadLetter()
	}
	for i, m := range sent {
		name := fmt.Sprintf("m%d", i)
		got, full := listed[name], get(receipts[i])
		if got == nil {
			t.Errorf("%s is not listed", name)
			continue
		}
		whole[name] = full
		for how, x := range map[string]*strandmqv1.DeadLetter{"listed": got, "fetched": full} {
			sameMessage(t, name+" "+how, x.GetMessage(), m)
			if x.GetTopic() != y.topic || x.GetGroup() != "g1" || x.GetPartition() != receipts[i].GetPartition() || x.GetOffset() != receipts[i].GetOffset() {
				t.Errorf("%s %s: from %s %s %d/%d, stored at %v", name, how, x.GetTopic(), x.GetGroup(), x.GetPartition(), x.GetOffset(), receipts[i])
			}
			if x.GetAttempts() != 2 || x.GetReason() != fmt.Sprintf("cannot %s/2", name) || x.GetReplaying() {
				t.Errorf("%s %s: %d attempts, reason %q, replaying %v", name, how, x.GetAttempts(), x.GetReason(), x.GetReplaying())
			}
			within(name+" published", x.GetMessage().GetPublishTime().AsTime())
			within(name+" first seen", x.GetFirstSeen().AsTime())
			within(name+" dead", x.GetDeadSince().AsTime())
		}
		h := full.GetHistory()
		if len(h) != 2 {
			t.Errorf("%s: %d attempts in its history", name, len(h))
			continue
		}
		for n, a := range h {
			if int(a.GetAttempt()) != n+1 || a.GetMember() != "m" || a.GetOutcome() != "nack" || a.GetReason() != fmt.Sprintf("cannot %s/%d", name, n+1) {
				t.Errorf("%s: attempt %d is %v", name, n+1, a)
			}
		}
		times := []time.Time{
			full.GetMessage().GetPublishTime().AsTime(), full.GetFirstSeen().AsTime(), h[0].GetHandedOut().AsTime(), h[0].GetEnded().AsTime(),
			h[1].GetHandedOut().AsTime(), h[1].GetEnded().AsTime(), full.GetDeadSince().AsTime(),
		}
		if !slices.IsSortedFunc(times, time.Time.Compare) || !times[1].Equal(times[2]) || !times[5].Equal(times[6]) {
			t.Errorf("%s: its times do not fit: %v", name, times)
		}
	}
	y.wantDead("g2")
	if c := y.counts("g2"); c.GetAcked() != 50 || c.GetDead() != 0 || c.GetRetried() != 0 {
		t.Errorf("g2 counts %v", c)
	}
	for _, restart := range []func(...string){s.crash, s.handOver} {
		restart()
		after := y.deadLetters("g1")
		if !slices.EqualFunc(before, after, func(a, b *strandmqv1.DeadLetter) bool { return proto.Equal(a, b) }) {
			t.Error("the list is another one after a restart")
		}
		for i := range sent {
			name := fmt.Sprintf("m%d", i)
			if now := get(receipts[i]); !proto.Equal(now, whole[name]) {
				t.Errorf("%s is another one after a restart", name)
			}
		}
		y.wantDead("g2")
	}
}

// sameMessage says that a message is what was sent, byte for byte.
func sameMessage(t *testing.T, what string, got, want *strandmqv1.Message) {
	t.Helper()
	gotKey, gotKeyed := messageKey(got)
	wantKey, wantKeyed := messageKey(want)
	if gotKeyed != wantKeyed || !bytes.Equal(gotKey, wantKey) {
		t.Errorf("%s: key %q (%v), sent %q (%v)", what, gotKey, gotKeyed, wantKey, wantKeyed)
	}
	if got.GetId() != want.GetId() {
		t.Errorf("%s: id %q, sent %q", what, got.GetId(), want.GetId())
	}
	if !bytes.Equal(body(got), body(want)) {
		t.Errorf("%s: a body of %d bytes, sent %d, or others", what, len(body(got)), len(body(want)))
	}
	flat := func(m *strandmqv1.Message) string {
		var b strings.Builder
		for _, h := range m.GetHeaders() {
			v := []byte(h.GetValue())
			if raw, ok := h.GetValueKind().(*strandmqv1.Header_ValueBytes); ok {
				v = raw.ValueBytes
			}
			fmt.Fprintf(&b, "%s=%q\n", h.GetName(), v)
		}
		return b.String()
	}
	if flat(got) != flat(want) {
		t.Errorf("%s: headers\n%s, sent\n%s", what, flat(got), flat(want))
	}
}
