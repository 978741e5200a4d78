package consumer

import (
	"context"
	"fmt"
	"slices"
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
	life, err := s.Trace(context.Background(), 1, o, Window{Last: 1000})
	if err != nil || life.Cut > 0 {
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

// However often a message was handed out, its first events and its latest are told, and
// so is how many were between them; where it stands is judged by all.
func TestTraceWindow(t *testing.T) {
	w, p := newTraced()
	s := w.shell()
	policy := Default()
	policy.MaxAttempts, policy.Backoff, policy.BackoffMax = 0, 1, 1
	if err := s.SetPolicy(context.Background(), 1, 1, policy); err != nil {
		t.Fatal(err)
	}
	// A group that is deleted: what is told of it is taken back where plans were void.
	p.apply(encodeCreate(w.now, GroupSpec{ID: 2, Name: "H", Policy: policy}))
	w.publish(1, "a")
	for i := range 40 {
		w.now += 1000
		ds := receive(t, s, 1)
		if len(ds) != 1 {
			t.Fatalf("attempt %d: %d deliveries", i, len(ds))
		}
		var plan planWriter // of the same message, which is out: void, and told at first
		plan.reset(0)
		plan.table = []planMember{{"x", 1, 0}}
		plan.redeliver(0, 0)
		p.apply(plan.encode(w.now, 2, 0, uint64(i), 1, 0))
		s.Settle(context.Background(), 1, []Settlement{{Token: ds[0].Token, Action: Nack, Delay: 1}})
	}
	if err := s.DeleteGroup(context.Background(), 1, 2); err != nil {
		t.Fatal(err)
	}
	trace := func(show Window) Life {
		t.Helper()
		life, err := s.Trace(context.Background(), 1, 0, show)
		if err != nil {
			t.Fatal(err)
		}
		if len(life.States) != 1 || life.States[0].Attempts != 40 {
			t.Fatalf("it stands at %+v", life.States)
		}
		return life
	}
	all := trace(Window{Last: 10_000})
	if all.Cut > 0 || len(all.Events) < 80 {
		t.Fatalf("of all: %d events", len(all.Events))
	}
	for first := range 4 {
		for last := 1; last < 100; last += 7 {
			for _, until := range []int{len(all.Events), 50, 1} {
				want := all.Events[:until]
				show := Window{First: first, Last: last}
				if until < len(all.Events) {
					show.Before = all.Events[until].Index
					for len(want) > 0 && want[len(want)-1].Index >= show.Before {
						want = want[:len(want)-1]
					}
				}
				cut := max(0, len(want)-first-last)
				want = append(append([]TraceEvent{}, want[:min(first, len(want))]...), want[min(len(want), first+cut):]...)
				got := trace(show)
				if !slices.Equal(want, got.Events) || got.Cut != uint64(cut) {
					t.Fatalf("%+v: %d are cut, and not %d; told\n%v, and not\n%v", show, got.Cut, cut, got.Events, want)
				}
			}
		}
	}
}

// Each event has the term of its entry, and the node that is known to have led then; none
// is made up for a term of which nothing is known.
func TestTraceTermsAndNodes(t *testing.T) {
	w, p := newTraced()
	s := w.shell()
	ctx := context.Background()
	p.led = partition.Led{{First: 3, Last: 4, Node: 2}, {First: 6, Last: 6, Node: 1}}
	p.term = 3
	w.publish(1, "a")
	first := receive(t, s, 10)
	p.term = 5
	s.Settle(ctx, 1, []Settlement{{Token: first[0].Token, Action: Nack, Delay: 1, Reason: "no"}})
	p.term = 6
	w.now += 10
	second := receive(t, s, 10)
	s.Settle(ctx, 1, []Settlement{{Token: second[0].Token, Action: Ack}})
	life, err := s.Trace(ctx, 1, 0, Window{Last: 10})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range life.Events {
		got = append(got, fmt.Sprint(e.What, " ", e.Term, " ", uint32(e.Node)))
	}
	if want := "handed-out 3 2, nacked 5 0, handed-out 6 1, acked 6 1"; strings.Join(got, ", ") != want {
		t.Fatalf("traced: %q, and not %q", got, want)
	}
	if e := life.Events[0]; e.Until != e.Time+Default().AckDeadline {
		t.Errorf("handed out until %v: %+v", e.Until, e)
	}
	if e := life.Events[1]; e.Reason != "no" || e.NextAttempt != e.Time+1 || e.Uncharged {
		t.Errorf("nacked: %+v", e)
	}
}

// A settlement that came too late is told, with whose it was and why it was refused; one
// that repeats what took effect is not.
func TestTraceRefused(t *testing.T) {
	w, _ := newTraced()
	s := w.shell()
	ctx := context.Background()
	w.publish(1, "a")
	settle := func(d Delivery, a Action) {
		t.Helper()
		s.Settle(ctx, 1, []Settlement{{Token: d.Token, Action: a}})
	}
	first := receive(t, s, 10)[0]
	w.advance(Default().AckDeadline + 1)
	settle(first, Ack)
	w.advance(Default().BackoffMax)
	second := receive(t, s, 10)[0]
	settle(first, Nack)
	settle(second, Ack)
	settle(second, Ack) // again
	settle(first, Ack)
	life, err := s.Trace(ctx, 1, 0, Window{Last: 100})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range life.Events {
		if e.What == "refused" {
			got = append(got, fmt.Sprint(e.Member, " ", e.Attempt, " ", e.Detail))
			if !strings.HasSuffix(e.Detail, e.Reason) || e.Reason == "" {
				t.Errorf("why: %q of %q", e.Reason, e.Detail)
			}
		} else {
			got = append(got, e.What)
		}
	}
	want := []string{
		"handed-out", "lapsed", "m 1 ack: its deadline passed and it lapsed",
		"handed-out", "m 1 nack: the message was handed out again since", "acked", "m 1 ack: another hand-out of the message was acked",
	}
	if !slices.Equal(got, want) {
		t.Fatalf("traced\n%q, and not\n%q", got, want)
	}
}
