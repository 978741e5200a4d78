package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/strandmq/strandmq/partition"
	"pgregory.net/rapid"
)

// twinOp is one step of a script. Its numbers pick among whatever there is to
// pick from, so every script means something and can be cut shorter at will;
// and a script without the steps of one group is still a script.
type twinOp struct {
	do      string
	g       int
	a, b, c int
}

func (o twinOp) String() string { return fmt.Sprintf("%s %d %d %d %d", o.do, o.g, o.a, o.b, o.c) }

func parseTwinScript(s string) (ops []twinOp) {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		var o twinOp
		if _, err := fmt.Sscan(line, &o.do, &o.g, &o.a, &o.b, &o.c); err != nil {
			panic(fmt.Sprintf("script line %q: %v", line, err))
		}
		ops = append(ops, o)
	}
	return ops
}

// steps of the whole partition; the others are of one group.
var twinShared = map[string]bool{
	"publish": true, "propose": true, "advance": true, "wait": true, "back": true, "drive": true, "apply": true, "drain": true,
	"keys": true, "checkpoint": true, "restart": true, "lead": true,
}

// twinWeights is how often a random script takes which step.
var twinWeights = []struct {
	do string
	n  int
}{
	{"publish", 8},
	{"propose", 8},
	{"receive", 14},
	{"again", 4},
	{"cancel", 2},
	{"settle", 20},
	{"stream", 5},
	{"credit", 6},
	{"next", 8},
	{"numbers", 8},
	{"due", 5},
	{"advance", 4},
	{"back", 1},
	{"drive", 4},
	{"apply", 4},
	{"drain", 16},
	{"session", 3},
	{"leave", 1},
	{"pause", 2},
	{"policy", 2},
	{"reset", 2},
	{"replay", 7},
	{"discard", 2},
	{"checkpoint", 2},
	{"restart", 2},
	{"lead", 2},
	{"lost", 1},
	{"rogue", 4},
	{"delete", 1},
}

// evenly draws a number below a power of two. Rapid prefers small ones, of which
// only the lowest bits differ; the factor spreads them over all bits.
func evenly(t *rapid.T, name string, below int) int {
	return rapid.IntRange(0, below-1).Draw(t, name) * 7919 % below
}

func drawTwinScript(t *rapid.T, groups, most int) []twinOp {
	var kinds []string
	for _, w := range twinWeights {
		for range w.n {
			kinds = append(kinds, w.do)
		}
	}
	ops := []twinOp{{do: "keys", a: rapid.SampledFrom([]int{5, 2, 1}).Draw(t, "keys"), b: rapid.IntRange(0, 1).Draw(t, "deadly"), c: evenly(t, "memory", 8)}}
	for g := range groups {
		ops = append(ops, twinOp{"create", g, evenly(t, "policy", 1<<20), rapid.IntRange(0, 3).Draw(t, "start"), 0})
	}
	step := rapid.Custom(func(t *rapid.T) twinOp {
		return twinOp{
			do: kinds[evenly(t, "do", 1<<16)%len(kinds)],
			g:  evenly(t, "g", 256) / 7 % groups,
			a:  evenly(t, "a", 256),
			b:  evenly(t, "b", 256),
			c:  evenly(t, "c", 256),
		}
	})
	n := rapid.SampledFrom([]int{most, most / 2, most / 4, 1}).Draw(t, "steps")
	return append(ops, rapid.SliceOfN(step, n, n+10).Draw(t, "ops")...)
}

// twinPolicy makes a policy of a number; 0 is the default one with short times.
func twinPolicy(n int) Policy {
	pick := func(of int) int {
		d := n % of
		n /= of
		return d
	}
	p := Default()
	p.Mode = []Mode{ByKey, ByPartition, NoOrder}[pick(3)]
	p.OnExhaustion = []Exhaustion{Skip, Park}[pick(2)]
	p.MaxAttempts = []uint32{3, 1, 2, 0}[pick(4)]
	p.Backoff = []partition.Millis{200, 0, 1000}[pick(3)]
	p.BackoffMax = []partition.Millis{1500, 1000}[pick(2)]
	p.AckDeadline = 1000
	p.MaxHold = []partition.Millis{2500, 1000}[pick(2)]
	p.MaxInFlightMember = []uint32{100, 1, 2}[pick(3)]
	p.MaxInFlightPartition = []uint32{100, 2, 3}[pick(3)]
	p.MaxDeferred = []uint32{100, 1, 3}[pick(3)]
	p.MaxDeferredKey = []uint32{100, 1, 2}[pick(3)]
	p.AtMostOnce = pick(8) == 7 && p.OnExhaustion == Skip
	b := pick(6)
	p.BreakerPercent = []uint32{0, 90, 0, 50, 100, 0}[b]
	p.BreakerKeys = []uint32{20, 1, 20, 2, 3, 20}[b]
	p.BreakerWindow = []partition.Millis{30_000, 30_000, 30_000, 1000, 500, 30_000}[b]
	return p
}

var twinMembers = []string{"m1", "m2", "m3"}

func (g *twinGroup) session(member string) uint64 {
	if g.sessions[member] == 0 {
		g.sessions[member] = 1
	}
	return g.sessions[member]
}

// run does a script and returns what it found wrong.
func (w *twinWorld) run(ops []twinOp) error {
	defer w.close()
	for n, op := range ops {
		w.do(op)
		w.settleDown()
		if w.fault != nil {
			return fmt.Errorf("step %d (%v): %w", n, op, w.fault)
		}
	}
	// In the end everything comes to rest, and both replicas agree.
	w.lead(true)
	w.drain()
	w.judgeAll()
	w.judgeTraces()
	for _, g := range w.groups {
		g.script = len(g.lines)
	}
	for len(w.streams) > 0 && w.fault == nil {
		w.take(w.streams[0])
		if len(w.streams) > 0 {
			w.closeStream(w.streams[0], len(w.streams)%2 == 0)
		}
	}
	w.finish()
	w.judgeAll()
	w.judgeTraces()
	w.compareReplicas()
	if w.fault != nil {
		return fmt.Errorf("at the end: %w", w.fault)
	}
	return nil
}

// finish lets one eager member handle what is left. Only what is dead, or
// stands behind what is dead, may be left then.
func (w *twinWorld) finish() {
	for range 3 + 3*len(w.msgs) {
		wait := partition.Millis(2000)
		for _, g := range w.groups {
			if c := &g.tw.circuit; c.open {
				wait = max(wait, c.until-w.time(g)+1)
			}
		}
		w.advance(wait)
		w.drain()
		left := false
		for _, g := range w.groups {
			if g.gone || w.fault != nil {
				continue
			}
			if g.tw.paused {
				w.do(twinOp{"pause", int(g.id) - 1, 1, 0, 0})
			}
			w.call(g, ReceiveRequest{Group: g.id, Member: "m9", Session: 1, Shares: []Share{{Partition: twinPart}}, Max: 100})
			w.drain()
			var ss []Settlement
			for _, m := range g.tw.msgs {
				if o := m.current(); o != nil && o.member == "m9" && o.given {
					t := Token{Partition: twinPart, Group: g.id, Epoch: o.epoch, Offset: m.off, HandOut: o.num, Ordinal: o.ordinal}
					w.shell.seal.seal(&t)
					ss = append(ss, Settlement{Token: t, Action: Ack})
				}
			}
			if len(ss) > 0 {
				res := w.shell.Settle(context.Background(), g.id, ss)
				w.tick(g)
				for i, s := range ss {
					w.judgeSettle(g, s, res[i])
				}
				w.observe("shell")
			}
			left = left || len(ss) > 0 || g.tw.unfinished() != nil
		}
		if !left || w.fault != nil {
			break
		}
	}
	for _, g := range w.groups {
		if m := g.tw.unfinished(); m != nil && !g.gone && w.fault == nil {
			w.fail("stuck: %v: a member that takes and acks everything leaves %d (%v, scanned %d)", g.id, m.off, m.phase, g.tw.scanned)
		}
	}
}

func (w *twinWorld) judgeAll() {
	for _, g := range w.groups {
		w.judgeCounts(g)
		w.judgeDead(g)
	}
}

func (w *twinWorld) do(op twinOp) {
	for _, g := range w.groups {
		g.tw.step++
	}
	g := w.groupOf(op.g)
	if !twinShared[op.do] {
		if op.do == "create" {
			w.create(op)
			return
		}
		if g == nil || g.gone {
			if op.do == "due" {
				w.dues = append(w.dues, 0)
			}
			return
		}
		if op.do != "receive" && op.do != "again" && op.do != "cancel" && op.do != "due" {
			if !w.leading {
				w.refused(g)
				return
			}
			w.flush()
		}
		w.late = op.c%3 == 1
		defer func() { w.late = false }()
	}
	switch op.do {
	case "keys":
		w.keys, w.deadly = max(1, op.a), op.b == 1
		w.remember(op.c)
	case "publish", "propose":
		// What is proposed is applied later. Then some of it turns out to have
		// been there before, whatever a plan had foreseen.
		e := twinEntry{}
		for i := range 1 + op.a%4 {
			m := twinPub{key: (op.b + i*op.c) % w.keys, size: op.c % 50}
			m.twice = op.do == "propose" && (op.b/8+i)%5 == 4
			e.msgs = append(e.msgs, m)
		}
		w.pending = append(w.pending, e)
		if op.do == "publish" && len(w.pending) == 1 {
			w.applyNext()
		}
	case "receive":
		w.receive(g, op)
		if op.a/32%2 == 1 {
			w.drain()
		}
	case "again":
		w.receiveAgain(g, op)
	case "cancel":
		if waiting := w.waiting(g); len(waiting) > 0 {
			c := waiting[op.a%len(waiting)]
			c.dropped = true
			c.cancel()
		}
	case "settle":
		w.settleSome(g, op)
	case "stream":
		w.stream(g, op)
	case "credit", "next", "numbers":
		open := w.streamsOf(g)
		if len(open) == 0 {
			return
		}
		s := open[op.a/8%len(open)]
		switch op.do {
		case "credit":
			w.credit(s, []int{1, 2, 5, 100}[op.b%4])
		case "next":
			w.drain()
			w.take(s)
		default:
			w.settleNumbers(s, op)
		}
	case "due":
		w.advanceToDue(g, op)
	case "advance":
		w.advance(partition.Millis(op.a * op.a / 10))
	case "wait":
		w.advance(partition.Millis(op.a))
	case "back":
		w.turnClock(-partition.Millis(op.a)) // a new leader's clock may be behind
		w.back += partition.Millis(op.a)
	case "drive":
		w.drive()
	case "apply":
		if len(w.pending) > 0 {
			w.applyNext()
		}
	case "drain":
		w.drain()
		w.judgeAll()
	case "session":
		member := twinMembers[op.a%len(twinMembers)]
		next := g.session(member) + 1
		g.sessions[member] = next
		if err := w.shell.EndSession(context.Background(), twinPart, g.id, member, next); err != nil {
			w.fail("end session: %v", err)
		}
		w.tick(g)
		g.tw.endSessions(member, next)
		w.observe("shell")
	case "leave":
		member := twinMembers[op.a%len(twinMembers)]
		session := g.session(member)
		if err := w.shell.LeaveSession(context.Background(), twinPart, g.id, member, session); err != nil {
			w.fail("leave: %v", err)
		}
		g.sessions[member] = session + 1
		w.tick(g)
		g.tw.leave(member, session)
		w.observe("shell")
	case "pause":
		paused := op.a%2 == 0
		if err := w.shell.SetPaused(context.Background(), twinPart, g.id, paused); err != nil {
			w.fail("pause: %v", err)
		}
		w.tick(g)
		if g.tw.paused && !paused {
			g.tw.circuit.tryNow(g.tw.clock)
		}
		g.tw.paused = paused
		w.observe("shell")
	case "policy":
		p := twinPolicy(op.a<<16 | op.b<<8 | op.c)
		if err := w.shell.SetPolicy(context.Background(), twinPart, g.id, p); err != nil {
			w.fail("policy: %v", err)
		}
		w.tick(g)
		g.tw.setPolicy(p)
		w.observe("shell")
	case "reset":
		w.reset(g, op)
	case "replay", "discard":
		w.bury(g, op)
	case "checkpoint":
		w.checkpoint()
	case "restart":
		w.crash(op)
	case "lead":
		w.changeLeader(op)
	case "lost":
		w.loseReply(g, op)
	case "rogue":
		w.rogue(g, op)
	case "delete":
		if op.a%4 != 0 {
			return
		}
		if err := w.shell.DeleteGroup(context.Background(), twinPart, g.id); err != nil {
			w.fail("delete: %v", err)
		}
		g.gone = true
		w.observe("shell")
	default:
		panic("no step " + op.do)
	}
}

func (w *twinWorld) groupOf(n int) *twinGroup {
	for _, g := range w.groups {
		if g.id == GroupID(n+1) {
			return g
		}
	}
	return nil
}

// tick takes the group's clock over after a command of the shell: it is the
// present time by then, unless it was ahead or nothing had to be proposed.
func (w *twinWorld) tick(g *twinGroup) {
	if a := w.app.group(g.id); a != nil {
		g.tw.tick(a.clock) // observe says whether it may be so
	}
}

// flush applies what was proposed: it stands before what the shell proposes.
func (w *twinWorld) flush() {
	for len(w.pending) > 0 && w.fault == nil {
		w.applyNext()
		w.settleDown()
	}
	w.drive()
	for len(w.pending) > 0 && w.fault == nil {
		w.applyNext()
		w.settleDown()
	}
}

// refused checks that a follower refuses and changes nothing.
func (w *twinWorld) refused(g *twinGroup) {
	err := w.shell.SetPaused(context.Background(), twinPart, g.id, true)
	var not *partition.ErrNotLeader
	if !errors.As(err, &not) {
		w.fail("a follower answers %v", err)
	}
	w.observe("refused")
}

func (w *twinWorld) create(op twinOp) {
	spec := GroupSpec{ID: GroupID(op.g + 1), Name: fmt.Sprintf("group-%d", op.g), Policy: twinPolicy(op.a), Start: partition.Offset(op.b)}
	if err := w.shell.CreateGroup(context.Background(), twinPart, spec); err != nil {
		w.fail("create: %v", err)
		return
	}
	tw := newTwin(spec, partition.Offset(len(w.msgs)), w.now)
	for _, m := range w.msgs {
		tw.publish(m.Record.KeyHash, string(m.Record.Key), len(m.Record.Key)+len(m.Record.Body))
	}
	w.groups = append(w.groups, &twinGroup{id: spec.ID, tw: tw, sessions: map[string]uint64{}, requests: map[string][]uint64{}})
	w.observe("shell")
}

func (w *twinWorld) waiting(g *twinGroup) (cs []*twinCall) {
	for _, c := range w.calls {
		if c.g == g && !w.isDone(c) && !c.dropped {
			cs = append(cs, c)
		}
	}
	return cs
}

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

// crash restarts the node: of what was proposed, a prefix is in the log.
func (w *twinWorld) crash(op twinOp) {
	w.cutPending(op.a)
	w.lead(false)
	w.restart()
	if w.fault != nil {
		return
	}
	w.leading = false
	w.applyOld()
	w.lead(true)
}

// changeLeader ends or begins leading. Of what was proposed, a prefix comes
// through; the rest is lost.
func (w *twinWorld) changeLeader(op twinOp) {
	if !w.leading {
		w.applyOld()
		w.lead(true)
		return
	}
	w.cutPending(op.a)
	w.lead(false)
	w.dropCalls()
	if op.b%4 != 0 {
		w.applyOld()
		w.lead(true)
	}
}

func (w *twinWorld) cutPending(n int) {
	w.pending = w.pending[:n%(len(w.pending)+1)]
}

// applyOld applies what an earlier leader proposed, before a new one begins.
func (w *twinWorld) applyOld() {
	for len(w.pending) > 0 && w.fault == nil {
		w.applyNext()
	}
}

// rogue applies what a leader would not propose unless much had changed on the
// way: hand-outs of anything to anybody, lapses of everything that is out, from
// this epoch or the last one. Apply has to void what does not hold.
func (w *twinWorld) rogue(g *twinGroup, op twinOp) {
	tw := g.tw
	tw.ruled = tw.step // a call under way may find what its share would not have given it
	epoch := tw.epoch
	if op.c%8 == 7 && epoch > 0 {
		epoch--
	}
	var lapses []lapse
	for _, m := range tw.msgs {
		if len(m.outs) > 0 && op.b%2 == 0 {
			lapses = append(lapses, lapse{m.off, m.outs[len(m.outs)-1-op.c%len(m.outs)].num})
		}
	}
	if len(lapses) > 0 {
		w.apply(twinEntry{cmd: encodeLapses(w.now, g.id, epoch, lapses), now: w.now, from: "drive"})
	}
	var p planWriter
	p.reset(max(tw.scanned, partition.Offset(op.b%3)) - partition.Offset(op.b%3))
	for _, name := range twinMembers {
		p.table = append(p.table, planMember{name: name, session: g.session(name) - uint64(op.c/8%2)})
	}
	for i, m := range tw.msgs {
		if (i+op.a)%3 != 0 {
			p.redeliver(m.off, (i*op.b+op.a)%len(p.table))
		}
	}
	for i, m := range tw.msgs[p.base:min(len(tw.msgs), int(p.base)+op.a%5)] {
		if (int(p.base)+i+op.a)%3 != 0 {
			w.twice[m.off] = true
		}
		p.pass(m.key, uint32(m.size), int32((int(m.off)+op.a)%(len(p.table)+1))-1)
	}
	w.apply(twinEntry{cmd: p.encode(w.now, g.id, epoch, 1<<40, 0, 0), now: w.now, from: "drive"})
}

// loseReply settles with a reply that is lost, and asks again: after that the
// outcome is the same as if it had been asked once.
func (w *twinWorld) loseReply(g *twinGroup, op twinOp) {
	t, ok := w.token(g, op.b*256+op.c)
	if !ok {
		return
	}
	s := Settlement{Token: t, Action: []Action{Ack, Nack}[op.a%2]}
	w.fate = []twinFate{fateUnknownApplied, fateUnknownLost}[op.a/2%2]
	applied := w.fate == fateUnknownApplied
	res := w.shell.Settle(context.Background(), g.id, []Settlement{s})
	w.fate = fateApplied
	var unknown *partition.ErrOutcomeUnknown
	if len(res) != 1 || !errors.As(res[0].Err, &unknown) {
		w.fail("a lost reply: %v", res)
		return
	}
	if applied {
		w.tick(g)
		g.tw.settle(s.Token, s.Action, s.Delay)
		w.observe("shell")
	}
	res = w.shell.Settle(context.Background(), g.id, []Settlement{s})
	w.tick(g)
	w.judgeSettle(g, s, res[0])
	w.observe("shell")
}
