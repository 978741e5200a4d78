package consumer

import "github.com/strandmq/strandmq/partition"

// Lead tells that this replica began or ceased to lead its partition. Ceasing
// sends all waiters away and forgets what was planned.
func (a *App) Lead(leading bool) {
	a.leading = leading
	a.sendAway(&partition.ErrNotLeader{Partition: a.id})
	if leading {
		for _, g := range a.groups {
			g.lead(&a.writer)
			a.stir(g)
		}
	}
}

var _ partition.Breaker = (*App)(nil)

// Break tells whoever waits here why it is in vain.
func (a *App) Break(why *partition.ErrDamaged) { a.sendAway(why) }

func (a *App) sendAway(why error) {
	a.stirred = nil
	for _, g := range a.groups {
		if g.hand != nil {
			g.hand.end(why)
			g.hand = nil
		}
	}
}

// Event takes a demand, what becomes of one, or a query.
func (a *App) Event(ev any) {
	switch ev := ev.(type) {
	case awake:
		if g := a.group(ev.w.Group); g != nil && g.hand != nil {
			g.hand.awake(ev.w)
			a.stir(g)
		}
	case withdrawal:
		if g := a.group(ev.Group); g != nil && g.hand != nil {
			g.hand.withdraw(ev.Taker)
			a.stir(g)
		}
	case demand:
		g, err := a.session(ev.Group, ev.Member, ev.Session)
		if err != nil {
			ev.Taker.Ended(a.id, err)
			if ev.Tried != nil {
				ev.Tried()
			}
			return
		}
		g.hand.demand(ev)
		a.stir(g)
	case query:
		g, err := a.session(ev.Group, ev.Member, ev.Session)
		if err != nil {
			ev.Done(a.id, holding{Err: err})
			return
		}
		a.stir(g)
		if g.hand.coming(ev) {
			g.hand.queries = append(g.hand.queries, ev)
			return
		}
		ev.Done(a.id, g.holding(ev))
	case still:
		ev.Done(a.still(ev))
	}
}

// still tells of each hand-out whether it is out.
func (a *App) still(ev still) ([]bool, error) {
	if !a.leading {
		return nil, &partition.ErrNotLeader{Partition: a.id}
	}
	out := make([]bool, len(ev.HandOuts))
	if g := a.group(ev.Group); g != nil && g.epoch == ev.Epoch {
		for n, h := range ev.HandOuts {
			if i, ok := g.offsets.find(uint64(h.Offset)); ok {
				e := &g.entries[i]
				out[n] = e.at == inFlight && e.handOut == h.Number
			}
		}
	}
	return out, nil
}

// session finds a group for a member whose session is open, where it is led.
func (a *App) session(id GroupID, name string, session uint64) (*group, error) {
	if !a.leading {
		return nil, &partition.ErrNotLeader{Partition: a.id}
	}
	g := a.group(id)
	if g == nil {
		return nil, &ErrUnknownGroup{Partition: a.id, Group: id}
	}
	if m, ok := g.names[name]; ok && session < g.members[m].sessions {
		return nil, &ErrSessionEnded{Member: name, Session: session}
	}
	return g, nil
}

// Drive is the leader's turn: it brings applied hand-outs to those who wait,
// proposes lapses and plans new hand-outs. Groups that have nobody with room, and
// nothing that is timed or on its way, have no part in it until something
// happens to them: they cost nothing.
func (a *App) Drive(now partition.Millis, log partition.Log) (cmds [][]byte, wake partition.Millis) {
	turns := a.stirred
	a.stirred = turns[:0]
	for _, g := range turns {
		if g.hand == nil {
			continue
		}
		var at partition.Millis
		cmds, at = g.hand.drive(now, log, cmds)
		if at != 0 && (wake == 0 || at < wake) {
			wake = at
		}
		if g.hand.rests() {
			g.hand.stirred = false
		} else {
			a.stirred = append(a.stirred, g)
		}
	}
	clear(turns[len(a.stirred):])
	return cmds, wake
}

// query is the event that asks what a session holds (P8).
type query struct {
	Group   GroupID
	Member  string
	Session uint64
	Request uint64 // only what this request was given; 0: all
	Max     int
	Done    func(partition.PartitionID, holding)
}

// Unheard implements partition.Unheard.
func (q query) Unheard(err error) { q.Done(0, holding{Err: err}) }

// still is the event that asks which of some hand-outs are still out.
type still struct {
	Group    GroupID
	Epoch    uint64
	HandOuts []handOutOf
	Done     func(out []bool, err error)
}

type handOutOf struct {
	Offset partition.Offset
	Number uint64
}

// Unheard implements partition.Unheard.
func (q still) Unheard(err error) { q.Done(nil, err) }

// holding is what a session holds in a partition.
type holding struct {
	Err      error
	Held     []handOut // in the order of hand-outs, at most as many as asked for
	InFlight uint32    // of the member, whatever the session and request
	Limit    uint32    // the most that a member may hold
}

func (g *group) holding(q query) holding {
	res := holding{Limit: g.policy.MaxInFlightMember}
	m, ok := g.names[q.Member]
	if !ok {
		return res
	}
	res.InFlight = g.members[m].held
	for i := g.members[m].head; i != none && len(res.Held) < q.Max; i = g.entries[i].nextHeld {
		e := &g.entries[i]
		if e.session == q.Session && (q.Request == 0 || e.request == q.Request) {
			res.Held = append(res.Held, g.handOutOf(i))
		}
	}
	return res
}
