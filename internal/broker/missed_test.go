package broker

import (
	"context"
	"testing"
	"time"

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
