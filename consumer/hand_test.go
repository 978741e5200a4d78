package consumer

import (
	"errors"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// asked is a partition whose commands wait until the test applies them, with one
// message of the key a.
func asked(t *testing.T) (*world, *memPart) {
	w := newWorld(1)
	p := w.parts[1]
	p.apply(encodeCreate(w.now, GroupSpec{ID: 1, Name: "G", Policy: Default()}))
	p.app.Drive(w.now, p)
	p.at++
	w.publishOnly(1, "a")
	return w, p
}

func newTally(t *testing.T, credit int) *tally { return &tally{t: t, credit: credit, open: true} }

// A question for what a session holds is answered after what is on its way to
// it: nobody would ask for that again.
func TestQueryAfterOpenPlans(t *testing.T) {
	const r1, r2 = 1, 2
	for _, c := range []struct {
		name string
		ask  query
		wait bool // for the plan
		held int
	}{
		{"all of the session", query{Member: "A", Session: 1}, true, 1},
		{"the request", query{Member: "A", Session: 1, Request: r1}, true, 1},
		{"another request", query{Member: "A", Session: 1, Request: r2}, false, 0},
		{"another session", query{Member: "A", Session: 2}, false, 0},
		{"another member", query{Member: "B", Session: 1}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, p := asked(t)
			y := newTally(t, 1)
			p.app.Event(demand{Group: 1, Member: "A", Session: 1, Request: r1, Shares: 1, Taker: y})
			cmds, _ := p.app.Drive(w.now, p)
			if len(cmds) != 1 {
				t.Fatalf("%d commands", len(cmds))
			}
			y.open = false // the call is cut short
			answered, held := 0, 0
			q := c.ask
			q.Group, q.Max = 1, 10
			q.Done = func(_ partition.PartitionID, h holding) { answered, held = answered+1, len(h.Held) }
			p.app.Event(q)
			p.app.Drive(w.now, p)
			if (answered == 0) != c.wait {
				t.Fatalf("answered %d times before the plan was applied", answered)
			}
			p.apply(cmds[0])
			p.app.Drive(w.now, p)
			if answered != 1 || held != c.held {
				t.Fatalf("answered %d times, with %d deliveries; want %d", answered, held, c.held)
			}
		})
	}
}

// A question that waits for a plan is answered when the plan is lost, too.
func TestQueryWhenPlansAreLost(t *testing.T) {
	for name, lose := range map[string]func(w *world, p *memPart){
		"the leader goes": func(w *world, p *memPart) { p.app.Lead(false) },
		"the plan is given up": func(w *world, p *memPart) {
			w.now += planPatience + 1
			p.app.Drive(w.now, p)
		},
		"the group goes": func(w *world, p *memPart) { p.apply(encodeDelete(w.now, 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			w, p := asked(t)
			y := newTally(t, 1)
			p.app.Event(demand{Group: 1, Member: "A", Session: 1, Shares: 1, Taker: y})
			p.app.Drive(w.now, p)
			y.open = false
			answered := 0
			p.app.Event(query{Group: 1, Member: "A", Session: 1, Max: 10, Done: func(partition.PartitionID, holding) { answered++ }})
			if answered != 0 {
				t.Fatal("answered while a plan was on its way")
			}
			lose(w, p)
			if answered != 1 {
				t.Fatalf("answered %d times", answered)
			}
		})
	}
}

// What a plan would have handed out again goes with the next one when the log lost that
// plan: a leader that hands its leadership over, and keeps it after all, loses some.
func TestLostPlanGivesBackWhatItWouldHandOutAgain(t *testing.T) {
	w, p := asked(t)
	w.publishOnly(1, "b")
	turn := func() (cmds [][]byte) { cmds, _ = p.app.Drive(w.now, p); return cmds }
	// Both are handed out and given back, so that they are known.
	y := newTally(t, 2)
	p.app.Event(demand{Group: 1, Member: "A", Session: 1, Shares: 1, Taker: y})
	for _, c := range turn() {
		p.apply(c)
	}
	turn()
	if len(y.got) != 2 {
		t.Fatalf("%d deliveries", len(y.got))
	}
	y.open = false
	for _, c := range [][]byte{encodeSessions(cmdLeave, w.now, 1, "A", 2)} {
		p.apply(c)
	}
	// The first plan is lost, the second one is not.
	one := newTally(t, 1)
	p.app.Event(demand{Group: 1, Member: "B", Session: 1, Shares: 1, Taker: one})
	if cmds := turn(); len(cmds) != 1 {
		t.Fatalf("%d commands", len(cmds))
	}
	two := newTally(t, 1)
	p.app.Event(demand{Group: 1, Member: "C", Session: 1, Shares: 1, Taker: two})
	cmds := turn()
	if len(cmds) != 1 {
		t.Fatalf("%d commands", len(cmds))
	}
	p.apply(cmds[0])
	for range 3 {
		for _, c := range turn() {
			p.apply(c)
		}
	}
	if len(one.got) != 1 || len(two.got) != 1 {
		t.Fatalf("%d deliveries to the first, %d to the second", len(one.got), len(two.got))
	}
}

// A leader looks after a plan that it waits for, if nothing else happens.
func TestOpenPlanIsLookedAfter(t *testing.T) {
	w, p := asked(t)
	p.app.Event(demand{Group: 1, Member: "A", Session: 1, Shares: 1, Taker: newTally(t, 1)})
	if _, wake := p.app.Drive(w.now, p); wake <= w.now || wake > w.now+planPatience+1 {
		t.Fatalf("it wants its turn at %d, now is %d", wake, w.now)
	}
}

// Calls that came and went leave nothing behind where there is nothing to hand out.
func TestCallsThatWentAreForgotten(t *testing.T) {
	w := newWorld(1)
	p := w.parts[1]
	p.apply(encodeCreate(w.now, GroupSpec{ID: 1, Name: "G", Policy: Default()}))
	for range 100 {
		y := newTally(t, 1)
		p.app.Event(demand{Group: 1, Member: "A", Session: 1, Shares: 1, Taker: y})
		p.app.Drive(w.now, p)
		y.open = false
	}
	h := p.app.group(1).hand
	if n := len(h.lanes[0].queue); n > 2 || len(h.waiters) > 2 {
		t.Fatalf("%d in the queue, %d waiters", n, len(h.waiters))
	}
}

// Of two calls of one request the one that was made later gets the deliveries,
// whichever asks the partition first.
func TestOlderCallDoesNotSupersedeItsRetry(t *testing.T) {
	for name, order := range map[string][]uint64{"in order": {1, 2}, "the older one slept": {2, 1}} {
		t.Run(name, func(t *testing.T) {
			w, p := asked(t)
			calls, tried := map[uint64]*tally{}, map[uint64]int{}
			for _, n := range order {
				calls[n] = newTally(t, 1)
				p.app.Event(demand{
					Group: 1, Member: "A", Session: 1, Request: 7, Call: n, Shares: 1, Taker: calls[n],
					Tried: func() { tried[n]++ },
				})
			}
			cmds, _ := p.app.Drive(w.now, p)
			for _, c := range cmds {
				p.apply(c)
			}
			p.app.Drive(w.now, p)
			var twice *ErrSuperseded
			if !errors.As(calls[1].ended, &twice) || len(calls[1].got) != 0 || tried[1] != 1 {
				t.Errorf("the older call: ended %v, %d deliveries, told %d times that all was tried", calls[1].ended, len(calls[1].got), tried[1])
			}
			if calls[2].ended != nil || len(calls[2].got) != 1 || tried[2] != 1 {
				t.Errorf("the retry: ended %v, %d deliveries, told %d times that all was tried", calls[2].ended, len(calls[2].got), tried[2])
			}
		})
	}
}
