package consumer

import (
	"context"
	"errors"
	"testing"
)

// How hand-outs ended is counted: over a restart too, but for what was refused, which
// changes nothing.
func TestOutcomes(t *testing.T) {
	c := newClocked(t) // a1 and b1 are out, and c1 was nacked
	counts := func() Counts {
		t.Helper()
		st, err := c.s.Stats(context.Background(), 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		return st.Counts
	}
	c.w.advance(700)
	c.settle(0, Ack)
	c.w.advance(5300) // beyond b1's deadline
	if n := counts(); n.Nacked != 1 || n.Lapsed != 1 || n.Lost+n.Rejected+n.Stale+n.Late != 0 || n.HandledMs != 700 {
		t.Fatalf("after an ack, a nack and a lapse: %+v", n)
	}
	c.w.advance(500)
	late := func() {
		t.Helper()
		res := c.s.Settle(context.Background(), 1, []Settlement{{Token: c.d[1].Token, Action: Ack}})[0]
		var stale *ErrStale
		if !errors.As(res.Err, &stale) {
			t.Fatalf("an ack that is late: %v", res.Err)
		}
	}
	late()
	if n := counts(); n.Stale != 1 || n.Late != 1 || n.LateMs != 6500 || n.HandledMs != 700 {
		t.Fatalf("after a late ack: %+v", n)
	}
	c.w.advance(1000)
	c.d = append(c.d[:2], c.receive()...)
	late()
	if n := counts(); n.Stale != 2 || n.Late != 2 || n.LateMs < 6500+5000 {
		t.Fatalf("after one more, of a message that is out again: %+v", n)
	}
	c.settle(2, Reject)
	before := counts()
	if before.Rejected != 1 || before.Retried != before.Nacked+before.Rejected+before.Lapsed+before.Lost {
		t.Fatalf("after a reject: %+v", before)
	}
	c.p.restart()
	after := counts()
	before.Stale, before.Late, before.LateMs = after.Stale, after.Late, after.LateMs
	if after != before {
		t.Errorf("after a restart:\n%+v, before:\n%+v", after, before)
	}
}
