package broker

import (
	"testing"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A member that sent a sign of life and stands still, with its connection open, loses its
// session and what it holds; one that never sent a sign keeps both. When it wakes it may
// open another stream.
func TestSilentMember(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir(), func(c *Config) { c.SessionTimeout = 2 * time.Second })
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "plain", patient())
	a.group(t, "t", "g", patient())
	a.fill(t, "t", 1, 1)
	open := opener(t, b)
	plain := joins(t, open, opened("t", "plain", "m"), 1)
	plain.take(1)
	still := joins(t, open, opened("t", "g", "m"), 1)
	still.send(&strandmqv1.ConsumeRequest{})
	held := still.take(1)[0]
	// Frames that it takes are no sign.
	for {
		_, err := still.frame()
		if err == nil {
			continue
		}
		wantReason(t, err, "SESSION_ENDED")
		if p := problemOf(err); p.GetRetryAfterMs() == 0 {
			t.Errorf("it is not told to try again: %v", p)
		}
		break
	}
	again := joins(t, open, opened("t", "g", "m"), 1)
	if d := again.take(1)[0]; d.offset != held.offset || d.attempt != 2 {
		t.Errorf("%+v came, want that of %+v again", d, held)
	}
	plain.settle(strandmqv1.SettleAction_SETTLE_ACTION_ACK, 1, 1)
	if r := plain.results(1)[0]; r.GetProblem() != nil {
		t.Errorf("the ack of one that never sent a sign: %v", r)
	}
	if c := a.describe(t, "t", "plain").GetCounts(); c.GetHandedOut() != 1 || c.GetAcked() != 1 {
		t.Errorf("one that never sent a sign has lost something: %v", c)
	}
}
