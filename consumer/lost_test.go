package consumer

import (
	"context"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// losing is a partition of which one command is lost on its way, and whose leader's
// clock is set back by an hour then.
type losing struct {
	*testing.T
	w    *world
	p    *memPart
	lose command
	back partition.Millis // what the clock showed then; 0: it was not lost yet
}

// turns gives the leader the turns that it asks for until done says so, and tells how
// long that took since something was lost.
func (l *losing) turns(done func() bool) partition.Millis {
	l.Helper()
	for range 100 {
		cmds, wake := l.p.app.Drive(l.w.now, l.p)
		for _, c := range cmds {
			if l.back == 0 && command(c[1]) == l.lose {
				l.back = l.w.now - anHour
				l.w.now, wake = l.back, l.back // a clock that was set back gives everybody a turn
				continue
			}
			l.p.apply(c)
			wake = l.w.now
		}
		if done() {
			if l.back == 0 {
				l.Fatal("nothing was lost")
			}
			return l.w.now - l.back
		}
		if wake == 0 {
			l.Fatal("the hand asks for no turn")
		}
		l.w.now = max(wake, l.w.now)
	}
	l.Fatalf("not done %d ms after it was lost", l.w.now-l.back)
	return 0
}

// What was proposed and lost is proposed again in time where nothing is timed and the
// leader's clock was set back, so that the group's time stands.
func TestLostWhileTimeStands(t *testing.T) {
	t.Run("a plan", func(t *testing.T) {
		w, p := asked(t)
		y := newTally(t, 1)
		p.app.Event(demand{Group: 1, Member: "A", Session: 1, Shares: 1, Taker: y})
		l := losing{T: t, w: w, p: p, lose: cmdPlan}
		if took := l.turns(func() bool { return len(y.got) == 1 }); took > planPatience+10 {
			t.Fatalf("handed out %d ms after its plan was lost", took)
		}
	})
	t.Run("what comes back from disk", func(t *testing.T) {
		w := newWorldOf(1, bounds{messages: 2, ofKey: 1, row: 2})
		p := w.parts[1]
		policy := Default()
		policy.Mode = NoOrder
		p.apply(encodeCreate(w.now, GroupSpec{ID: 1, Name: "G", Policy: policy}))
		w.publishOnly(1, "-", "-", "-", "-", "-", "-", "-", "-")
		y := newTally(t, 8)
		p.app.Event(demand{Group: 1, Member: "A", Session: 1, Shares: 1, Taker: y})
		for range 5 {
			cmds, _ := p.app.Drive(w.now, p)
			for _, c := range cmds {
				p.apply(c)
			}
		}
		if len(y.got) != 8 {
			t.Fatalf("%d deliveries", len(y.got))
		}
		y.open = false
		p.apply(encodeSessions(cmdLeave, w.now, 1, "A", 2)) // they come back, more than memory has room for
		g := p.app.group(1)
		if g.onDisk() == 0 {
			t.Fatal("nothing is on disk")
		}
		all := newTally(t, 8)
		p.app.Event(demand{Group: 1, Member: "B", Session: 1, Shares: 1, Taker: all})
		l := losing{T: t, w: w, p: p, lose: cmdWake}
		acked := 0 // as they come, so that nothing is timed
		took := l.turns(func() bool {
			for ; acked < len(all.got); acked++ {
				h := all.got[acked]
				p.apply(encodeSettle(w.now, 1, []Settlement{{Token: Token{Epoch: h.Epoch, Offset: h.Offset, HandOut: h.Number, Ordinal: h.Ordinal}, Action: Ack}}))
			}
			return len(all.got) == 8
		})
		if took > lapsePatience+10 {
			t.Fatalf("handed out %d ms after the command was lost that was to bring it back", took)
		}
	})
}

// Who asked before the clock was set back is not held to ask for as long as that: where
// nobody does, it is told.
func TestNobodyAsksThoughTheClockWentBack(t *testing.T) {
	c := newClocked(t)
	c.settle(0, Ack)
	c.settle(1, Ack)
	c.w.advance(1000)
	c.step(-anHour)
	c.w.advance(noMemberAfter + 1)
	st, err := c.s.Stats(context.Background(), 1, 1)
	if err != nil || len(st.Stalls) == 0 || st.Stalls[0].Reason != "NO_MEMBER" {
		t.Fatalf("%+v, %v", st.Stalls, err)
	}
}
