package consumer

import (
	"cmp"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// App is the groups of one partition: their replicated state and, where the
// partition is led, the hands that act for them. It is a partition.App.
type App struct {
	// Notice hears what groups do by themselves. It is called as an entry is applied,
	// and must not block. Set before use. Nil: nobody asks.
	Notice func(Notice)
	// Settled hears, where the partition is led, of n settlements of one kind that took
	// effect, but for the leader's own; dead: they made dead letters. Finished hears of n
	// messages that are acked or dead, each after so many hand-outs. They are called as an
	// entry is applied, and must not block: machine_counted.go. Set before use. Nil: nobody
	// asks.
	Settled  func(of GroupID, a Action, dead bool, n int)
	Finished func(of GroupID, handOuts uint32, n int)

	id      partition.PartitionID
	rows    partition.Rows
	groups  []*group  // by id
	deleted []GroupID // whose rows are still being removed
	leading bool
	stirred []*group // have a turn in the next Drive: those that have nothing to wait for are not among them
	bounds  bounds

	holders []int32    // scratch: a plan's members
	writer  planWriter // scratch: of the plan that is being made
}

// Apply runs one committed command. Its result is an error for a refusal,
// []SettleResult for settlements, and otherwise what the shell's call returns.
func (a *App) Apply(at partition.Position, cmd []byte) (any, error) {
	r := reader{b: cmd}
	h := r.header()
	if r.bad != "" {
		return nil, r.ofCommand(r.bad)
	}
	g := a.group(h.group)
	if g == nil && h.kind != cmdCreate {
		if h.kind == cmdDelete {
			return nil, nil
		}
		return &ErrUnknownGroup{Partition: a.id, Group: h.group}, nil
	}
	if g != nil {
		if h.kind != cmdCreate { // which knows no clock but its node's
			g.tick(h.now)
		}
		g.kept = max(g.kept, at.Start)
		g.at = at.Index
		a.stir(g)
	}
	was := a.mark(g)
	var res any
	switch h.kind {
	case cmdCreate:
		res = a.create(at, h, &r)
	case cmdPolicy:
		p := r.policy()
		if r.finish() == "" {
			g.setPolicy(at, p)
		}
	case cmdPause:
		paused := r.bool()
		if r.finish() == "" {
			if g.paused && !paused {
				g.tryNow()
			}
			g.paused = paused
		}
	case cmdDelete:
		if r.finish() == "" {
			a.remove(g)
		}
	case cmdReset:
		to := partition.Offset(r.uvarint())
		if r.finish() == "" {
			res = g.reset(at, to)
		}
	case cmdSessions, cmdLeave:
		name, below := r.string(), r.uvarint()
		if r.finish() == "" {
			g.endMember(name, below, h.kind == cmdSessions)
		}
	case cmdPlan:
		a.plan(at, g, &r, foresight{at.End, at.End})
	case cmdForesee:
		a.plan(at, g, &r, r.foresight())
	case cmdSettle:
		res = g.settleAll(&r)
	case cmdLapse:
		g.lapseAll(at, &r)
	case cmdLeap:
		to := r.time()
		if r.finish() == "" {
			g.leap(to)
		}
	case cmdWake:
		g.wakeAll(&r)
	case cmdReplay:
		os := r.offsets()
		if r.finish() == "" {
			res = g.replay(at, os)
		}
	case cmdDiscard:
		os := r.offsets()
		if r.finish() == "" {
			res = g.discard(os)
		}
	default:
		r.fail("unknown kind")
	}
	if why := r.finish(); why != "" {
		return nil, r.ofCommand(why)
	}
	if g != nil && g.broken != nil {
		return nil, g.broken
	}
	a.tell(g, was, 0)
	a.tellCounted(g)
	return res, nil
}

func (a *App) find(id GroupID) (int, bool) {
	return slices.BinarySearchFunc(a.groups, id, func(g *group, id GroupID) int {
		return cmp.Compare(g.id, id)
	})
}

func (a *App) group(id GroupID) *group {
	if i, ok := a.find(id); ok {
		return a.groups[i]
	}
	return nil
}

func (a *App) create(at partition.Position, h header, r *reader) any {
	name, start, paused, policy := r.string(), partition.Offset(r.uvarint()), r.bool(), r.policy()
	if r.finish() != "" || a.group(h.group) != nil {
		return nil
	}
	g := newGroup(h.group, a.id, a.rows, a.bounds)
	g.name, g.policy, g.paused = name, policy, paused
	g.start = min(max(start, at.Start), at.End)
	g.scanned, g.kept = g.start, at.Start
	g.tick(h.now)
	g.rows.putPolicy(at.Index, policy)
	i, _ := a.find(h.group)
	a.groups = slices.Insert(a.groups, i, g)
	if a.leading {
		g.lead(&a.writer)
		a.stir(g)
	}
	return nil
}

// stir gives a group a turn in the next Drive.
func (a *App) stir(g *group) {
	if g.hand != nil && !g.hand.stirred {
		g.hand.stirred = true
		a.stirred = append(a.stirred, g)
	}
}

// remove forgets a group. Its rows go bit by bit at checkpoints: a group can
// have more of them than one turn should touch.
func (a *App) remove(g *group) {
	if g.hand != nil {
		g.hand.end(&ErrUnknownGroup{Partition: a.id, Group: g.id})
		g.hand = nil
	}
	i, _ := a.find(g.id)
	a.groups = slices.Delete(a.groups, i, i+1)
	a.rows.Delete(groupKey(rowGroup, g.id))
	a.rows.Put(groupKey(rowGone, g.id), []byte{rowVersion})
	a.deleted = append(a.deleted, g.id)
}

func (g *group) setPolicy(at partition.Position, p Policy) {
	before := g.policy
	if p != before {
		g.rows.putPolicy(at.Index, p)
	}
	g.policy = p
	if p.BreakerPercent != before.BreakerPercent || p.BreakerKeys != before.BreakerKeys || p.BreakerWindow != before.BreakerWindow || p.AtMostOnce != before.AtMostOnce {
		g.breaker.forget()
	}
	if p.Mode != before.Mode || p.OnExhaustion != before.OnExhaustion {
		g.requeue()
	}
}

// endMember ends a member's sessions below a number. What they hold failed, if
// the member was lost, or is given back, if it left.
func (g *group) endMember(name string, below uint64, charged bool) {
	g.forgetMembers()
	m := g.memberOf(name)
	for i := g.members[m].head; i != none; {
		next := g.entries[i].nextHeld
		if g.entries[i].session < below {
			if charged {
				g.fail(i, bySession, "", 0)
			} else {
				g.release(i)
			}
		}
		i = next
	}
	g.endSessions(m, below)
	if g.hand != nil {
		g.hand.endSessions(name, below)
	}
}

// floor is the first offset that is neither settled, nor dead, nor in a queue on
// disk.
func (g *group) floor() partition.Offset {
	f := g.scanned
	for i := range g.entries {
		if e := &g.entries[i]; e.at != vacant && e.offset < f {
			f = e.offset
		}
	}
	if f == g.scanned {
		for left := g.ahead; left > 0; left-- {
			if _, _, passed := g.known(f); !passed {
				break
			}
			f++
		}
	}
	return f
}

// oldest is the first offset that is neither settled nor dead.
func (g *group) oldest() partition.Offset {
	f := g.floor()
	if o, ok, err := g.oldestQueued(); ok {
		f = min(f, o)
	} else {
		g.fault(err)
	}
	return f
}

// reset moves the group and returns what was its oldest message. Every message stays
// counted once: what is passed over and not settled is skipped, what was settled
// behind the new position is not scanned again yet, and what is dead stays dead,
// wherever the group moves to.
func (g *group) reset(at partition.Position, to partition.Offset) partition.Offset {
	from := g.oldest()
	to = min(max(to, at.Start), at.End)
	var passed []partition.Offset // unsettled before to: skipped
	var behind uint64             // unsettled or dead from to on: not settled
	pass := func(o partition.Offset) {
		if o >= to {
			behind++
		} else {
			passed = append(passed, o)
		}
	}
	forget := func(e *entry) {
		if e.replayed {
			g.dieAgain(e)
			return
		}
		pass(e.offset)
		if e.history {
			g.rows.del(rowHistory, e.offset)
		}
	}
	for i := range g.entries {
		e := &g.entries[i]
		if e.at == vacant {
			continue
		}
		if e.stored {
			g.gone = append(g.gone, e.offset)
		}
		forget(e)
	}
	var whole []partition.Offset
	g.eachQueued(func(o partition.Offset, ms []queuedMessage, e *entry) {
		if e != nil {
			whole = append(whole, o)
		}
		for _, m := range ms {
			pass(m.offset)
		}
	})
	for _, o := range whole {
		if e, ok := g.unsettledOnDisk(o); ok {
			forget(&e)
		}
	}
	dead, ahead := g.deadAgain(to)
	behind += dead
	g.skipped -= g.unskipFrom(max(g.scanned, to)) // discarded ahead of the scan
	if to < g.scanned {
		// What is settled from there on leaves the counts.
		settled := uint64(g.scanned-max(to, g.start)) - behind
		skipped := g.unskipFrom(to)
		g.skipped -= skipped
		g.acked -= settled - skipped
	}
	slices.Sort(passed)
	runs := make([]run, 0, len(passed))
	for _, o := range passed {
		runs = append(runs, run{o, o, byReset})
	}
	g.skip(append(runs, g.gaps(g.scanned, to, byReset)...))
	g.start = min(g.start, to)
	g.scanned = to
	g.ahead, g.again = ahead, 0
	g.epoch++
	g.breaker.forget()
	g.sweep = true
	g.forgetEntries()
	return from
}

// dieAgain makes a replayed message that was not handled what it was, a dead
// letter, and keeps what the replay added to it.
func (g *group) dieAgain(e *entry) {
	row, _, err := g.rows.dead(e.offset)
	g.fault(err)
	row.attempts += e.attempts
	row.ordinal, row.handOut, row.last = e.ordinal, e.handOut, e.last
	if e.history {
		since, err := g.rows.history(e.offset)
		g.fault(err)
		row.history = lastAttempts(append(row.history, since...))
		g.rows.del(rowHistory, e.offset)
	}
	g.rows.putDead(e.offset, &row)
}

// deadAgain ends all replays, and parks their keys again where that is the
// policy. It counts the dead letters from an offset on: those that were scanned
// before, and all.
func (g *group) deadAgain(to partition.Offset) (scanned, all uint64) {
	var replayed []partition.Offset
	g.fault(g.eachDead(0, func(o partition.Offset, d deadRow) bool {
		if d.replaying {
			replayed = append(replayed, o)
		}
		if o >= to {
			all++
			if o < g.scanned {
				scanned++
			}
		}
		return true
	}))
	for _, o := range replayed {
		g.endReplay(o)
	}
	return scanned, all
}

// endReplay makes a dead letter that was to be delivered again one that is not,
// and parks its key again where that is the policy.
func (g *group) endReplay(o partition.Offset) {
	row, _, err := g.rows.dead(o)
	g.fault(err)
	row.replaying = false
	g.rows.putDead(o, &row)
	g.dead++
	if key, keyed := g.keyOf(row.keyHash); keyed && g.policy.OnExhaustion == Park {
		g.block(key, o)
	}
}

// gaps lists what is neither dead nor skipped from one offset to before another.
func (g *group) gaps(from, to partition.Offset, why cause) (rs []run) {
	if from >= to {
		return nil
	}
	var holes []run
	if g.ahead+g.again > 0 {
		g.fault(g.eachDead(from, func(o partition.Offset, _ deadRow) bool {
			if o < to {
				holes = append(holes, run{first: o, last: o})
			}
			return o < to
		}))
		skipped, err := g.rows.runs(from, 1<<62)
		g.fault(err)
		holes = append(holes, skipped...)
		slices.SortFunc(holes, func(a, b run) int { return cmp.Compare(a.first, b.first) })
	}
	for _, hole := range append(holes, run{first: to, last: to}) {
		if end := min(hole.first, to); from < end {
			rs = append(rs, run{from, end - 1, why})
		}
		from = max(from, hole.last+1)
	}
	return rs
}

// skip notes that messages were passed over. Neighbours become one run.
func (g *group) skip(rs []run) (n uint64) {
	for i := 0; i < len(rs); {
		r := rs[i]
		for i++; i < len(rs) && rs[i].first == r.last+1; i++ {
			r.last = rs[i].last
		}
		g.rows.putRun(r)
		n += uint64(r.last - r.first + 1)
	}
	g.skipped += n
	return n
}

// unskipFrom forgets what was skipped from an offset on, and counts it.
func (g *group) unskipFrom(to partition.Offset) (n uint64) {
	runs, err := g.rows.runs(to, 1<<62)
	g.fault(err)
	for _, r := range runs {
		g.rows.del(rowSkipped, r.last)
		n += uint64(r.last - max(r.first, to) + 1)
		if r.first < to {
			g.rows.putRun(run{r.first, to - 1, r.why})
		}
	}
	return n
}

// forgetEntries empties entries and queues, and builds the queues of what still
// parks a key.
func (g *group) forgetEntries() {
	g.forgetQueued()
	g.entries, g.vacancy = nil, none
	g.touched, g.touching = nil, nil
	g.offsets.clear()
	g.count = [standings]uint64{}
	g.replaying = 0
	for i := range g.members {
		ms := &g.members[i]
		ms.head, ms.tail, ms.held = none, none, 0
	}
	if g.hand != nil {
		g.hand.rewind()
	}
	g.requeue()
}
