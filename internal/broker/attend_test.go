package broker

import (
	"context"
	"errors"
	"testing"

	"github.com/strandmq/strandmq/consumer"
)

// A stream that ends while as many settlements as may are on their way lets go of
// the reader that waits to send one more: else neither side would hear of the end.
func TestSettlingEndsWithTheStream(t *testing.T) {
	b := start(t, t.TempDir())
	api := newAPI(t, b.URL())
	api.topic(t, "t", 1)
	api.group(t, "t", "g", nil)
	f := newTestFlow(t, b)
	c := context.WithValue(ctx(t), flowKey{}, f)
	a, err := b.newAttendant(c, memberOf{topic: "t", group: "g", member: "m"})
	if err != nil {
		t.Fatal(err)
	}
	a.settling = settlesInFlight
	// A caller that is there and sends nothing more: its context does not end.
	there, leave := context.WithCancel(context.Background())
	defer leave()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.settle(there, []consumer.SettleRun{{First: 1, Action: consumer.Ack}}, 1)
	}()
	a.send = func(*frame) error { return errors.New("nobody takes it") }
	if err := a.serve(c); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-c.Done():
		t.Fatal("the reader still waits after the end")
	}
}

// What is on its way is bounded by the deliveries that frames name, however few
// the frames.
func TestSettlingIsBounded(t *testing.T) {
	a := &attendant{wake: make(chan struct{}, 1), sent: make(chan struct{}, 1)}
	a.settling = settlesInFlight - 10
	passed, stop := context.WithCancel(ctx(t))
	stop()
	a.settle(passed, []consumer.SettleRun{{First: 1, Last: 11, Action: consumer.Ack}}, 11) // waits, until the context ends it
	if a.settling != settlesInFlight-10 {
		t.Fatalf("%d are on their way, of at most %d", a.settling, settlesInFlight)
	}
	runs := make([]consumer.SettleRun, 3)
	for i, r := range [][2]uint64{{8, 9}, {1, 0}, {2, 7}} {
		runs[i] = consumer.SettleRun{First: r[0], Last: r[1]}
	}
	if i, k := overlap(runs); i != k {
		t.Errorf("runs %d and %d have nothing in common", i, k)
	}
	for _, x := range [][2]uint64{{1, 0}, {7, 0}, {5, 6}, {9, 12}, {0, 100}} {
		if i, k := overlap(append(runs[:3:3], consumer.SettleRun{First: x[0], Last: x[1]})); k != 3 || i == k {
			t.Errorf("%v: runs %d and %d", x, i, k)
		}
	}
}

// A member is missed when it has sent signs of life, and then nothing for all beats of a
// session timeout. One that never sent any is not, nor is one whose frames wait to be
// read or are held back.
func TestStill(t *testing.T) {
	for _, c := range []struct {
		name         string
		signs, waits bool
		moves        bool // something comes at each beat
		missed       bool
	}{
		{"silent", true, true, false, true},
		{"without signs", false, true, false, false},
		{"not read", true, false, false, false},
		{"speaks", true, true, true, false},
	} {
		a := &attendant{flow: &flow{}}
		a.signs.Store(c.signs)
		a.waits.Store(c.waits)
		missed := 0
		for i := 1; i <= 3*beats && missed == 0; i++ {
			if c.moves && i%beats == 0 {
				a.flow.moved.Add(1)
			}
			if a.still() {
				missed = i
			}
		}
		if (missed > 0) != c.missed || c.missed && missed != beats+1 {
			t.Errorf("%s: missed at beat %d", c.name, missed)
		}
	}
}
