package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/strandmq/strandmq/partition"
)

// receive begins a call, whose number is op's, so that it is the same in a run
// without the other groups.
func (w *twinWorld) receive(g *twinGroup, op twinOp) {
	member := twinMembers[op.a%len(twinMembers)]
	shares := []uint32{1, 1, 1, 2, 3}[op.b/8%5]
	req := ReceiveRequest{
		Group: g.id, Member: member, Session: g.session(member),
		Shares:   []Share{{Partition: twinPart, Share: uint32(op.b/64) % shares, Shares: shares, HeldOnly: op.b%32 == 31}},
		Max:      []int{1, 2, 5, 100}[op.c%4],
		MaxBytes: []int{0, 0, 0, 30}[op.c/4%4],
		Wait:     []time.Duration{0, time.Hour, time.Hour, 500 * time.Millisecond}[op.c/16%4],
	}
	if w.patient && req.Wait > 0 {
		req.Wait = time.Hour
	}
	if op.a%32 == 31 {
		req.Session-- // one that has ended, or never was
	}
	if op.c/64%2 == 1 {
		g.lastRequest++
		req.RequestID = fmt.Sprintf("r%d", g.lastRequest)
	}
	w.call(g, req)
}

// receiveAgain repeats an earlier call of the group's, as a client does that
// lost the reply.
func (w *twinWorld) receiveAgain(g *twinGroup, op twinOp) {
	var mine []*twinCall
	for _, c := range w.calls {
		if c.g == g {
			mine = append(mine, c)
		}
	}
	if len(mine) == 0 {
		return
	}
	c := mine[len(mine)-1-op.a%min(len(mine), 6)]
	if c.req.Session < g.session(c.req.Member) {
		return
	}
	for _, o := range mine {
		// The same request asked again sends the earlier one away.
		o.dropped = o.dropped || !w.isDone(o) && c.req.RequestID != "" && o.requestKey() == c.requestKey()
	}
	req := c.req
	if op.b%4 == 0 {
		req.Wait = 0
	}
	w.call(g, req)
}

func (w *twinWorld) call(g *twinGroup, req ReceiveRequest) {
	ctx, cancel := context.WithCancel(context.Background())
	g.nCalls++
	c := &twinCall{n: g.nCalls, g: g, req: req, begun: g.tw.last, step: g.tw.step, cancel: cancel}
	c.coming = c.begun
	if a := w.app.group(g.id); a != nil && a.hand != nil {
		c.coming += uint64(a.hand.planned)
	}
	w.mu.Lock()
	w.calls = append(w.calls, c)
	w.mu.Unlock()
	leading := w.leading
	go func() {
		out, idle, err := w.shell.Receive(ctx, req)
		w.mu.Lock()
		defer w.mu.Unlock()
		c.out, c.idle, c.err, c.done = out, idle, err, true
	}()
	if !leading {
		c.dropped = true
	}
	w.settleDown()
}

// token picks a token: most often a current one, else an old one or one that
// was never handed out.
func (w *twinWorld) token(g *twinGroup, n int) (Token, bool) {
	if len(g.tokens) == 0 {
		return Token{}, false
	}
	var current []Token
	for _, m := range g.tw.msgs {
		if o := m.current(); o != nil && o.given {
			t := Token{Partition: twinPart, Group: g.id, Epoch: o.epoch, Offset: m.off, HandOut: o.num, Ordinal: o.ordinal}
			w.shell.seal.seal(&t)
			current = append(current, t)
		}
	}
	if n%4 != 0 && len(current) > 0 {
		return current[n/4%len(current)], true
	}
	t := g.tokens[n/4%len(g.tokens)]
	if n%16 == 0 {
		// Sealed all the same: as if an old leader had made it, whose hand-out
		// was never applied.
		k := uint32(1 + n/16%3)
		t.HandOut = g.tw.last + uint64(k)
		t.Ordinal = uint32(len(g.tw.msgs[t.Offset].outs)) + k
		w.shell.seal.seal(&t)
	}
	return t, true
}

func (w *twinWorld) settleSome(g *twinGroup, op twinOp) {
	var ss []Settlement
	var forged []int
	n, seed := 1+op.a%3, op.b*256+op.c
	for i := range n {
		t, ok := w.token(g, seed/(1+i*7))
		if !ok {
			return
		}
		s := Settlement{Token: t, Action: []Action{Ack, Nack, Reject, Nack, Extend, Release, Reject, Ack}[(op.a/4+i*3)%8]}
		if w.deadly && s.Action != Extend && (op.a+i)%3 > 0 {
			s.Action = Reject
		}
		switch s.Action {
		case Nack:
			s.Delay = []partition.Millis{0, 0, 700, 1}[op.b%4]
			s.Reason = []string{"", "broken"}[op.c%2]
		case Extend:
			s.Delay = []partition.Millis{0, 300, 2000, 900}[op.b%4]
		}
		switch {
		case seed%37 == 36 && i == 0:
			s.Token.Tag++ // forged
			forged = append(forged, i)
		case seed%41 == 40 && i == 0:
			s.Token.Group++ // another group's
			w.shell.seal.seal(&s.Token)
			forged = append(forged, i)
		}
		ss = append(ss, s)
	}
	before := ""
	if op.c%5 == 0 {
		w.late = false // nothing else may come between
		w.flush()
		before = w.stateHash(g)
	}
	res := w.shell.Settle(context.Background(), g.id, ss)
	if len(res) != len(ss) {
		w.fail("%d settlements got %d results", len(ss), len(res))
		return
	}
	w.tick(g)
	changed := false
	for i, s := range ss {
		if slices.Contains(forged, i) {
			var bad *ErrToken
			if !errors.As(res[i].Err, &bad) {
				w.fail("a forged or foreign token: %v", res[i].Err)
			}
			g.note("forged")
			continue
		}
		changed = w.judgeSettle(g, s, res[i]) || changed
	}
	w.observe("shell")
	if before != "" && !changed && w.fault == nil {
		if after := w.stateHash(g); after != before {
			w.fail("I23: %v: refused and repeated settlements %v changed the state:\n%s", g.id, ss, firstDifference(before, after))
		}
	}
}

// judgeSettle holds one result against the twin's. It tells whether the
// settlement changed anything.
func (w *twinWorld) judgeSettle(g *twinGroup, s Settlement, r SettleResult) (changed bool) {
	v := g.tw.settle(s.Token, s.Action, s.Delay)
	var m *twinMsg
	if int(s.Token.Offset) < len(g.tw.msgs) {
		m = g.tw.msgs[s.Token.Offset]
	}
	var staleErr *ErrStale
	var heldErr *ErrHeldTooLong
	name := fmt.Sprintf("%v: %v of %d, hand-out %d", g.id, s.Action, s.Token.Offset, s.Token.HandOut)
	g.note("settle %v %d/%d: err %v deadline %d dead %v", s.Action, s.Token.Offset, s.Token.HandOut, r.Err, r.Deadline, r.Dead)
	switch {
	case v.either:
		if r.Err != nil && !errors.As(r.Err, &staleErr) {
			w.fail("%s: %v, the twin says success or stale", name, r.Err)
		}
	case v.held:
		if !errors.As(r.Err, &heldErr) {
			w.fail("%s: %v, the twin says held too long", name, r.Err)
		}
	case v.ok:
		if r.Err != nil || r.Dead != v.dead || r.Deadline > v.deadline || r.Deadline < v.deadline-w.back {
			w.fail("%s: %+v, the twin says %+v", name, r, v)
		}
	default:
		if !errors.As(r.Err, &staleErr) {
			w.fail("P6: %s: %+v, the twin says stale", name, r)
		}
	}
	_ = m
	return v.changed
}

// stateHash is all of the machine's replicated state, as its rows would hold
// it, save the clock.
func (w *twinWorld) stateHash(g *twinGroup) string {
	// The clock may move with any command: it is brought up first, by a
	// settlement of nothing. Other groups' clocks are no matter of this one.
	t := Token{Partition: twinPart, Group: g.id, Offset: 1 << 40, HandOut: 1 << 40, Ordinal: 1}
	w.shell.seal.seal(&t)
	w.shell.Settle(context.Background(), g.id, []Settlement{{Token: t, Action: Ack}})
	w.tick(g)
	rows := &twinRows{disk: map[string]string{}, live: maps.Clone(w.rows.disk)}
	app, err := newApp(twinPart, rows, w.bounds)
	if err != nil {
		w.fail("restore: %v", err)
		return ""
	}
	for _, e := range w.log[w.saved:] {
		if _, err := app.Apply(e.at, e.cmd); err != nil {
			w.fail("apply again: %v", err)
		}
	}
	if err := app.Checkpoint(); err != nil {
		w.fail("checkpoint: %v", err)
	}
	return rows.dump()
}

func (w *twinWorld) advanceToDue(g *twinGroup, op twinOp) {
	var times []partition.Millis
	for _, m := range g.tw.msgs {
		if o := m.current(); o != nil {
			times = append(times, o.deadline)
		}
		if m.phase == tBackoff {
			times = append(times, m.notBefore)
		}
	}
	var d partition.Millis
	if len(times) > 0 {
		slices.Sort(times)
		d = max(0, times[op.a%len(times)]-partition.Millis(op.b%3)+1-w.time(g))
	}
	w.dues = append(w.dues, d)
	w.advance(d)
}

func (w *twinWorld) reset(g *twinGroup, op twinOp) {
	to := partition.Offset(op.a % (len(w.msgs) + 2))
	from, err := w.shell.Reset(context.Background(), twinPart, g.id, to)
	if err != nil {
		w.fail("reset: %v", err)
	}
	w.tick(g)
	if floor := g.tw.reset(to); floor != from && from != min(floor, from) {
		w.fail("reset: the floor was %d, the twin says %d", from, floor)
	}
	g.note("reset to %d", to)
	w.observe("shell")
}

// bury replays or discards dead letters.
func (w *twinWorld) bury(g *twinGroup, op twinOp) {
	var sel Selector
	switch op.a % 4 {
	case 0:
		sel.All = true
	case 1:
		hash, name := twinKey(op.b % 5)
		sel.ByKey, sel.KeyHash, sel.HasKey, sel.Key = true, hash, true, []byte(name)
	default:
		var dead []partition.Offset
		for _, m := range g.tw.msgs {
			if m.phase == tDead || m.replaying {
				dead = append(dead, m.off)
			}
		}
		if len(dead) == 0 {
			return
		}
		sel.Offsets = []partition.Offset{dead[op.b%len(dead)]}
		if o := dead[op.c%len(dead)]; o > sel.Offsets[0] {
			sel.Offsets = append(sel.Offsets, o)
		}
	}
	if op.do == "discard" {
		n, err := w.shell.Discard(context.Background(), twinPart, g.id, sel)
		w.tick(g)
		busy := g.tw.replayingOf(sel)
		want := g.tw.discard(sel)
		var replaying *ErrReplaying
		if err != nil && !(errors.As(err, &replaying) && busy > 0) {
			w.fail("discard: %v", err)
		}
		if n != want {
			w.fail("discard: %d, the twin says %d (%v)", n, want, err)
		}
		g.note("discard %d", n)
		w.observe("shell")
		return
	}
	n, already, err := w.shell.Replay(context.Background(), twinPart, g.id, sel)
	w.tick(g)
	want, wantAlready, limited := g.tw.replay(sel)
	var limit *ErrReplayLimit
	if errors.As(err, &limit) != limited || err != nil && !limited {
		w.fail("replay: %v, the twin says limited %v", err, limited)
	}
	if n != want || !limited && already != wantAlready {
		w.fail("replay: %d and %d already, the twin says %d and %d (%v)", n, already, want, wantAlready, err)
	}
	g.note("replay %d %d", n, already)
	w.observe("shell")
}
