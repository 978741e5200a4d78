package broker

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A member whose Receive breaks off, and of which nothing is heard then, does not keep
// its share for the session timeout, an hour here. What it holds it keeps, and a call
// brings it back.
func TestMissedMember(t *testing.T) {
	b := start(t, t.TempDir(), func(c *Config) { c.SessionTimeout = time.Hour })
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	policy := patient()
	a.group(t, "t", "g", policy)
	a.store(t, "t", msg("k", "1"))
	held := a.receive(t, "t", "g", "killed", 1)
	c, cancel := context.WithCancel(ctx(t))
	broke := make(chan struct{})
	go func() {
		defer close(broke)
		_, _ = a.consume.Receive(c, &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "killed", RequestId: "waits", WaitMs: 60_000})
	}()
	a.none(t, "t", "g", "other")
	owns := func(member string) int { return len(a.memberOf(t, "t", "g", member).GetAssignment()) }
	if owns("killed") != 1 || owns("other") != 1 {
		t.Fatalf("they own %d and %d partitions", owns("killed"), owns("other"))
	}
	// The call is waiting there by now: the other one could not join before it.
	eventually(t, "it waits", func() bool { return callsOf(b) > 0 })
	cancel()
	<-broke
	eventually(t, "the other has its share", func() bool { return owns("other") == 2 })
	if m := a.memberOf(t, "t", "g", "killed"); !m.GetAway() || m.GetInFlight() != 1 {
		t.Errorf("described as %v", m)
	}
	again := a.receive(t, "t", "g", "killed", 1)
	if len(again) != 1 || again[0].GetToken() != held[0].GetToken() || again[0].GetAttempt() != 1 {
		t.Errorf("it came back to %v, not to %v", again, held)
	}
	a.done(t, "t", "g", again[0], ack, "")
	eventually(t, "it has a share again", func() bool { return owns("killed") == 1 })
}

// A member that was suspended for longer than the session timeout, and wakes, is let in
// with its session, as it has no stream; but what it held and lost meanwhile it cannot
// settle.
func TestSuspendedMemberWakes(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir(), func(c *Config) { c.SessionTimeout = time.Second })
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", &strandmqv1.GroupPolicy{AckDeadlineMs: proto.Int64(1000), BackoffMs: proto.Int64(1)})
	a.store(t, "t", msg("k", "1"))
	res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "sleeper", WaitMs: 60_000})
	if err != nil || len(res.GetDeliveries()) != 1 {
		t.Fatalf("%v, %v", res, err)
	}
	if d := a.one(t, "t", "g", "other"); d.GetAttempt() < 2 {
		t.Fatalf("the other got %v", d)
	}
	if _, err := a.consume.Heartbeat(ctx(t), &strandmqv1.HeartbeatRequest{Topic: "t", Group: "g", Member: "sleeper", Session: res.GetSession()}); err != nil {
		t.Errorf("it is not let in again: %v", err)
	}
	late, err := a.consume.Settle(ctx(t), &strandmqv1.SettleRequest{
		Topic: "t", Group: "g", Member: "sleeper", Session: res.GetSession(),
		Settlements: []*strandmqv1.Settlement{{Token: res.GetDeliveries()[0].GetToken(), Action: ack}},
	})
	if err != nil || late.GetResults()[0].GetProblem().GetReason() != "STALE_DELIVERY" {
		t.Errorf("its late ack: %v, %v", late, err)
	}
}

// callsOf counts the Receives that wait.
func callsOf(b *Broker) (n int) {
	b.waiters.mu.Lock()
	defer b.waiters.mu.Unlock()
	for _, s := range b.waiters.of {
		n += s.calls
	}
	return n
}

// A call that comes after the one that broke off, or waits beside it, is a sign of life,
// and nothing is kept of sessions that nobody waits for.
func TestMissedOnlyInSilence(t *testing.T) {
	w := newWaiters()
	miss := func() { t.Error("missed") }
	for name, then := range map[string]func(){
		"another call":     func() { w.heard(1) },
		"another Receive":  func() { w.begin(1); w.end(1, false, 0, miss) },
		"it ended in time": func() { w.begin(1); w.begin(1); w.end(1, true, 0, miss); w.end(1, false, 0, miss) },
	} {
		w.begin(1)
		w.end(1, true, time.Hour, miss)
		then()
		if len(w.of) != 0 {
			t.Errorf("%s: %d are kept", name, len(w.of))
		}
	}
	missed := make(chan struct{})
	w.begin(2)
	w.end(2, true, 0, func() { close(missed) })
	<-missed
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.of) != 0 {
		t.Errorf("%d are kept", len(w.of))
	}
}
