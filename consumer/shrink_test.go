package consumer

import (
	"fmt"
	"testing"
)

// A checkpoint finds a group in which nothing is out, with a plan on its way: what
// timed the messages of before must not outlive them, since it names their places.
func TestShrinkWithAnOpenPlan(t *testing.T) {
	w, p := asked(t)
	for i := range 4 * idleSlots {
		w.publishOnly(1, fmt.Sprintf("k%d", i))
	}
	// So many are out at once that the group has more places than an idle one keeps.
	y := newTally(t, 1000)
	p.app.Event(demand{Group: 1, Member: "A", Session: 1, Shares: 1, Taker: y})
	w.turn(p)
	var done []Settlement
	for _, h := range y.got {
		done = append(done, Settlement{Action: Ack, Token: Token{Offset: h.Offset, HandOut: h.Number, Ordinal: h.Ordinal, Epoch: h.Epoch}})
	}
	if len(done) <= idleSlots {
		t.Fatalf("%d were handed out", len(done))
	}
	for _, r := range p.apply(encodeSettle(w.now, 1, done)).([]SettleResult) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	w.publishOnly(1, "b")
	cmds, _ := p.app.Drive(w.now, p)
	if len(cmds) != 1 {
		t.Fatalf("%d commands", len(cmds))
	}
	p.save()
	for _, c := range cmds {
		p.apply(c)
	}
	y.open = false
	for range 40 {
		w.now += pulse
		w.turn(p)
	}
	if n := p.app.group(1).count[inFlight]; n != 0 {
		t.Fatalf("%d are out long after their deadline", n)
	}
}
