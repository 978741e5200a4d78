package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/partition"
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
