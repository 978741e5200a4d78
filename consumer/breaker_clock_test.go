package consumer

import (
	"context"
	"testing"
)

// The wait for a breaker's probe ends in time where the leader's clock was set back,
// though nothing else is timed.
func TestProbeComesThoughTheClockWentBack(t *testing.T) {
	w := newWorld(1)
	s, p := w.shell(), w.parts[1]
	policy := Default()
	policy.BreakerPercent, policy.BreakerKeys, policy.BreakerWindow, policy.MaxAttempts = 50, 2, 10_000, 1
	if err := s.CreateGroup(context.Background(), 1, GroupSpec{ID: 1, Name: "G", Policy: policy}); err != nil {
		t.Fatal(err)
	}
	w.publish(1, "a", "b")
	ds, _, err := s.Receive(context.Background(), ReceiveRequest{Group: 1, Member: "A", Session: 1, Max: 10, Shares: []Share{{Partition: 1}}})
	if err != nil || len(ds) != 2 {
		t.Fatalf("%d deliveries, %v", len(ds), err)
	}
	for _, d := range ds {
		s.Settle(context.Background(), 1, []Settlement{{Token: d.Token, Action: Nack}})
	}
	if !p.app.group(1).breaker.open {
		t.Fatal("the breaker is not open")
	}
	w.publish(1, "c") // those before are dead
	y := newTally(t, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now -= anHour
	p.app.Event(demand{Group: 1, Member: "A", Session: 1, Shares: 1, Taker: y})
	for range 5 {
		w.turn(p)
		if len(y.got) > 0 {
			return
		}
		if p.wake == 0 {
			t.Fatal("the hand asks for no turn")
		}
		w.now = p.wake
	}
	t.Fatalf("nothing was tried until %d, %d ms after the clock was set", w.now, w.now-(1_000_000-anHour))
}
