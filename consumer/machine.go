package consumer

import (
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// App is the groups of one partition: their replicated state and, where the
// partition is led, the hands that act for them. It is a partition.App.
type App struct {
	id      partition.PartitionID
	rows    partition.Rows
	groups  []*group  // by id
	deleted []GroupID // whose rows are still being removed
	leading bool

	holders []int32 // scratch: a plan's members
}

// Apply runs one committed command. Its result is an error for a refusal,
// []SettleResult for settlements, and otherwise what the shell's call returns.
func (a *App) Apply(at partition.Position, cmd []byte) (any, error) {
	r := reader{b: cmd}
	h := r.header()
	if r.bad != "" {
		return nil, &ErrCommand{Why: r.bad}
	}
	g := a.group(h.group)
	if g == nil && h.kind != cmdCreate {
		if h.kind == cmdDelete {
			return nil, nil
		}
		return &ErrUnknownGroup{Partition: a.id, Group: h.group}, nil
	}
	if g != nil {
		g.tick(h.now)
		g.kept = max(g.kept, at.Start)
	}
	var res any
	switch h.kind {
	case cmdCreate:
		res = a.create(at, h, &r)
	case cmdPolicy:
		p := r.policy()
		if r.finish() == "" {
			g.setPolicy(p)
		}
	case cmdPause:
		paused := r.bool()
		if r.finish() == "" {
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
		a.plan(at, g, &r)
	case cmdSettle:
		res = g.settleAll(&r)
	case cmdLapse:
		g.lapseAll(&r)
	case cmdReplay:
		os := r.offsets()
		if r.finish() == "" {
			res = g.replay(os)
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
		return nil, &ErrCommand{Why: why}
	}
	if g != nil && g.broken != nil {
		return nil, g.broken
	}
	return res, nil
}

func (a *App) find(id GroupID) (int, bool) {
	return slices.BinarySearchFunc(a.groups, id, func(g *group, id GroupID) int {
		switch {
		case g.id < id:
			return -1
		case g.id > id:
			return 1
		}
		return 0
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
	g := newGroup(h.group, a.id, a.rows)
	g.name, g.policy, g.paused = name, policy, paused
	g.start = min(max(start, at.Start), at.End)
	g.scanned, g.kept = g.start, at.Start
	g.tick(h.now)
	i, _ := a.find(h.group)
	a.groups = slices.Insert(a.groups, i, g)
	if a.leading {
		g.lead()
	}
	return nil
}

// remove forgets a group. Its rows go bit by bit at checkpoints: a group can
// have more of them than one turn should touch.
func (a *App) remove(g *group) {
	if g.hand != nil {
		g.hand.end(&ErrUnknownGroup{Partition: a.id, Group: g.id})
	}
	i, _ := a.find(g.id)
	a.groups = slices.Delete(a.groups, i, i+1)
	a.rows.Delete(groupKey(rowGroup, g.id))
	a.rows.Put(groupKey(rowGone, g.id), []byte{rowVersion})
	a.deleted = append(a.deleted, g.id)
}

func (g *group) setPolicy(p Policy) {
	before := g.policy
	g.policy = p
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

// floor is the first offset that is neither settled nor dead.
func (g *group) floor() partition.Offset {
	f := g.scanned
	for i := range g.entries {
		if e := &g.entries[i]; e.at != vacant && e.offset < f {
			f = e.offset
		}
	}
	return f
}

// reset moves the group and returns its floor before. Every message stays
// counted once: what is passed over and not settled is skipped; dead letters
// before the new position stay, those behind it are delivered again like
// everything there.
func (g *group) reset(at partition.Position, to partition.Offset) partition.Offset {
	from := g.floor()
	to = min(max(to, at.Start), at.End)
	var passed []partition.Offset // unsettled before to: skipped
	var behind uint64             // unsettled or dead from to on: not scanned again
	for i := range g.entries {
		e := &g.entries[i]
		if e.at == vacant {
			continue
		}
		if e.history {
			g.rows.del(rowHistory, e.offset)
		}
		if e.stored {
			g.gone = append(g.gone, e.offset)
		}
		switch {
		case e.offset >= to:
			behind++
			if e.replayed {
				g.rows.dropDead(e.offset, e.keyHash)
			}
		case e.replayed:
			// It was dead and is not handled: it is dead again.
			row, _, err := g.rows.dead(e.offset)
			g.fault(err)
			row.replaying = false
			g.rows.putDead(e.offset, &row)
			g.dead++
		default:
			passed = append(passed, e.offset)
		}
	}
	behind += g.dropDeadFrom(to)
	if to < g.scanned {
		// What is settled from there on leaves the counts.
		settled := uint64(g.scanned-max(to, g.start)) - behind
		skipped := g.unskipFrom(to)
		g.skipped -= skipped
		g.acked -= settled - skipped
	}
	g.skip(passed, to)
	g.start = min(g.start, to)
	g.scanned = to
	g.epoch++
	g.sweep = true
	g.forgetEntries()
	return from
}

// dropDeadFrom forgets the dead letters from an offset on, and counts them.
func (g *group) dropDeadFrom(to partition.Offset) uint64 {
	type dead struct {
		o    partition.Offset
		hash uint64
	}
	var drop []dead
	g.fault(g.eachDead(to, func(o partition.Offset, d deadRow) bool {
		drop = append(drop, dead{o, d.keyHash})
		return true
	}))
	for _, d := range drop {
		g.rows.dropDead(d.o, d.hash)
	}
	g.dead -= uint64(len(drop))
	return uint64(len(drop))
}

// skip notes what a reset passed over: the unsettled messages given, and those
// that were not scanned before to.
func (g *group) skip(passed []partition.Offset, to partition.Offset) {
	slices.Sort(passed)
	var r run
	open := false
	add := func(first, last partition.Offset) {
		g.skipped += uint64(last - first + 1)
		if open && r.last+1 == first {
			r.last = last
			return
		}
		if open {
			g.rows.putRun(r)
		}
		r, open = run{first, last, byReset}, true
	}
	for _, o := range passed {
		add(o, o)
	}
	if g.scanned < to {
		add(g.scanned, to-1)
	}
	if open {
		g.rows.putRun(r)
	}
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
