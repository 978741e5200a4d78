package consumer

import (
	"context"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// newTraced is a partition with a group and no message yet.
func newTraced() (*world, *memPart) {
	w := newWorld(1)
	p := w.parts[1]
	p.apply(encodeCreate(w.now, GroupSpec{ID: 1, Name: "G", Policy: Default()}))
	return w, p
}

// whats traces a message and lists what happened.
func whats(t *testing.T, s *Shell, o partition.Offset) string {
	t.Helper()
	life, err := s.Trace(context.Background(), 1, o, 1000)
	if err != nil || life.Truncated {
		t.Fatalf("trace of %d: %+v, %v", o, life, err)
	}
	var all []string
	for _, e := range life.Events {
		all = append(all, e.What)
	}
	return strings.Join(all, " ")
}

// A create that comes again changes nothing, whatever it says, and a trace says
// so: it used to take the group for paused and all that followed for void.
func TestTraceCreatedAgain(t *testing.T) {
	w, p := newTraced()
	s := w.shell()
	spec := GroupSpec{ID: 1, Name: "g", Policy: Default(), Paused: true}
	w.publish(1, "a")
	p.apply(encodeCreate(w.now, spec))
	ds := receive(t, s, 10)
	if len(ds) != 1 {
		t.Fatalf("%d deliveries", len(ds))
	}
	s.Settle(context.Background(), 1, []Settlement{{Token: ds[0].Token, Action: Ack}})
	if got := whats(t, s, 0); got != "handed-out acked" {
		t.Fatalf("traced: %q", got)
	}
}

// A plan that comes after a pause is void, and one that names what waits again
// later is not: the trace tells the second one alone.
func TestTraceVoidPlan(t *testing.T) {
	w, p := newTraced()
	s := w.shell()
	w.publish(1, "a", "b")
	var plan planWriter
	plan.reset(0)
	plan.table = []planMember{{"m", 1, 0}}
	for _, m := range p.msgs {
		plan.pass(m.Record.KeyHash, 1, 0)
	}
	p.apply(encodePause(w.now, 1, true))
	p.apply(plan.encode(w.now, 1, 0, 1<<40, 0, 0))
	if got := whats(t, s, 1); got != "" {
		t.Fatalf("traced of a void plan: %q", got)
	}
	p.apply(encodePause(w.now, 1, false))
	ds := receive(t, s, 10)
	if len(ds) != 2 {
		t.Fatalf("%d deliveries", len(ds))
	}
	for o := range ds {
		if got := whats(t, s, partition.Offset(o)); got != "handed-out" {
			t.Fatalf("traced: %q", got)
		}
	}
}

// A trace judges by the policy that held: what died of one attempt died, though
// three are allowed by now.
func TestTraceOldPolicy(t *testing.T) {
	w, _ := newTraced()
	s := w.shell()
	one := Default()
	one.MaxAttempts = 1
	if err := s.SetPolicy(context.Background(), 1, 1, one); err != nil {
		t.Fatal(err)
	}
	w.publish(1, "a")
	ds := receive(t, s, 1)
	s.Settle(context.Background(), 1, []Settlement{{Token: ds[0].Token, Action: Nack}})
	one.MaxAttempts = 3
	if err := s.SetPolicy(context.Background(), 1, 1, one); err != nil {
		t.Fatal(err)
	}
	if got := whats(t, s, 0); got != "handed-out nacked dead-lettered" {
		t.Fatalf("traced: %q", got)
	}
}

func receive(t *testing.T, s *Shell, n int) []Delivery {
	t.Helper()
	ds, _, err := s.Receive(context.Background(), ReceiveRequest{Group: 1, Member: "m", Session: 1, Shares: []Share{{Partition: 1}}, Max: n})
	if err != nil {
		t.Fatal(err)
	}
	return ds
}
