package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/strandmq/strandmq/partition"
)

// patience is how long it may take after everything is healed until all is done: as
// long as a clock that was set back by an hour makes what is out last, and a few
// rounds of that for dead letters.
const patience = 10 * time.Minute

// How long a partition may be without a leader that can be reached: at first, and
// when a node is lost (I29).
const (
	firstLeader = 10 * time.Second
	nextLeader  = 3 * time.Second
	// hangAfter is how long a node's disk has to hang until it says so, and tellsHang
	// how long it may take until the word comes.
	hangAfter = time.Second
	tellsHang = 2 * time.Second
)

// heal ends all faults, and demands that all gets done. With several nodes one of them
// may break a little later, for good: the others have to do.
func (s *Sim) heal() {
	s.healed, s.healedAt = true, s.now
	s.say("everything is healed")
	clear(s.net.cuts)
	s.net.fine()
	s.plan.lossy, s.plan.twice = 0, 0
	for _, n := range s.nodes {
		n.stalls = 0
		n.setClock(0, 0)
		n.failing = false
		n.hasRoom()
		n.back()
	}
	for _, c := range s.clients {
		c.heal()
	}
	healed, waits := s.now, false
	if s.several() && s.rand.fault.IntN(3) > 0 {
		waits = true
		s.after(s.between(s.rand.fault, 0, 20*time.Second), "break", func() { s.breakOne(s.now, func() { waits = false }) })
	}
	s.watch(make(map[partition.PartitionID]time.Duration))
	var look func()
	look = func() {
		why := "a node is to break"
		if !waits {
			why = s.undone()
		}
		if why == "" {
			s.final()
			s.over("all is done")
			return
		}
		if s.now-healed > patience {
			s.describe()
			s.fault("liveness: %v after everything was healed: %s", s.now-healed, why)
			return
		}
		s.after(time.Second, "done?", look)
	}
	s.after(time.Second, "done?", look)
}

// describe writes down where everybody stands.
func (s *Sim) describe() {
	for _, p := range s.logs() {
		for _, n := range s.nodes {
			if !n.up {
				continue
			}
			if info, err := n.core.Info(p); err == nil {
				s.say("%v of %v on %v (broken %v): term %d, leading %v, voters %v, learners %v, applied %v, log up to %d, fault %q",
					info.Replica, p, n.id, n.broken, info.Term, info.Leading, info.Voters, info.Learners, info.Position.Index, info.LastIndex, info.Fault)
			}
		}
	}
	for _, c := range s.clients {
		m, ok := c.(*member)
		if !ok {
			continue
		}
		for _, l := range m.links {
			s.say("%s of %v, session %d, on %v of %v, alive %v: a stream %v, asks %v, asking %v until %v; %v leads",
				m.name, m.group, l.session, l.node.name(), l.parts, l.alive(), l.st != nil, m.asks, l.ask != nil, l.until, s.leader(l.parts[0]).name())
		}
	}
}

// breakages are what breaks a node for good.
var breakages = []string{"dead", "disk", "cut off", "deaf", "mute", "hangs", "from one", "flaps"}

// breakOne breaks a node that the others can do without, when there is one.
func (s *Sim) breakOne(since time.Duration, over func()) {
	r := s.rand.fault
	n := s.nodes[r.IntN(len(s.nodes))]
	how := breakages[r.IntN(len(breakages))]
	if s.cluster != nil && s.plan.has("full") && r.IntN(3) == 0 {
		how = "full" // others hand over by what the metadata's duties are
	}
	stalls := slices.ContainsFunc(s.nodes, func(x *node) bool { return len(x.writes) > 0 && x.writes[0].begun < s.healedAt })
	if !n.up || n.gone || stalls || !s.mayLose(n) {
		if s.now-since > 30*time.Second {
			over()
			return
		}
		s.after(time.Second, "break", func() { s.breakOne(since, over) })
		return
	}
	over()
	led := 0
	for _, p := range s.logs() {
		if s.leader(p) == n {
			led++
		}
	}
	s.say("%v breaks for good: %s; it leads %d", n.id, how, led)
	s.count.faults["broken: "+how]++
	n.broken = how != "from one" && how != "flaps" && how != "full"
	n.excused = true
	s.unsure = how == "hangs" || how == "from one" || how == "flaps"
	sever := func(hears, heard bool, others ...*node) {
		for _, o := range others {
			s.net.cuts[[2]partition.NodeID{n.id, o.id}] = !heard
			s.net.cuts[[2]partition.NodeID{o.id, n.id}] = !hears
		}
	}
	switch how {
	case "dead":
		n.off("dead", 2)
	case "disk":
		n.lose()
	case "cut off":
		sever(false, false, s.nodes...)
	case "deaf":
		sever(false, true, s.nodes...)
	case "mute":
		sever(true, false, s.nodes...)
	case "full":
		n.room.set(true, false, 0)
	case "hangs":
		n.stalls, s.hangs = 24*time.Hour, n
	case "from one":
		o := s.nodes[int(n.id)%len(s.nodes)]
		o.excused = true
		sever(false, false, o)
	case "flaps":
		on := true
		var flap func()
		flap = func() {
			on = !on
			sever(on, on, s.nodes...)
			s.after(s.between(r, 100*time.Millisecond, 5*time.Second), "flap", flap)
		}
		flap()
	}
}

// watch demands that every partition has a leader, but for a moment.
func (s *Sim) watch(without map[partition.PartitionID]time.Duration) {
	for _, p := range s.logs() {
		n := s.leader(p)
		since, lacks := without[p]
		switch {
		case n != nil && !n.broken && s.judge.newest(n, p):
			if lacks && since > 0 {
				s.count.outage = max(s.count.outage, s.now-since)
			}
			delete(without, p)
			s.had[p] = true
		case !lacks, s.hangs != nil && s.hangs.up && len(s.hangs.writes) == 0:
			without[p] = s.now // a disk that nobody writes to hangs unseen
		default:
			most := nextLeader
			if s.hangs != nil {
				most += tellsHang
			}
			if !s.had[p] {
				most = firstLeader
			}
			if s.now-since > most {
				s.describe()
				s.fault("I29: %v has no leader for %v", p, s.now-since)
				return
			}
		}
	}
	s.after(100*time.Millisecond, "led?", func() { s.watch(without) })
}

// hanging has a node whose disk has not come back from a write for a second say so, and
// end after twenty, as the host and the broker do.
func (n *node) hanging() {
	var since time.Duration
	if len(n.writes) > 0 && n.writes[0].w.Synced() {
		since = n.s.now - n.writes[0].begun
	}
	if since > 20*time.Second {
		n.s.say("%v ends: its disk hangs", n.id)
		n.off("hangs", 2)
		if !n.broken {
			n.s.after(time.Second, "start", n.back)
		}
		return
	}
	n.core.Hangs(since > hangAfter)
	if since > hangAfter && n.s.now-n.told > time.Second && !n.s.planted.is("never-down", 1) {
		n.told = n.s.now
		n.tell(n.core.StuckFrames())
	}
}

// tell gives the network what a node says of itself.
func (n *node) tell(fs []partition.Frame) {
	for _, f := range fs {
		n.s.net.carry(n, f.To.Node(), partition.AppendFrames(nil, []partition.Frame{f}))
	}
}

// final compares all nodes when nothing moves any more.
func (s *Sim) final() {
	for _, p := range s.logs() {
		for _, n := range s.nodes {
			if n.up && !n.broken {
				s.judge.state(n, s.judge.logs[p])
			}
		}
	}
}

// undone asks everybody what there is still to do.
func (s *Sim) undone() (why string) {
	for _, c := range s.clients {
		if w := c.undone(); w != "" && why == "" {
			why = w
		}
	}
	if why != "" {
		return why
	}
	for _, p := range s.logs() {
		var end partition.Index
		for _, n := range s.nodes {
			if n.broken || n.excused || n.held[p] == nil {
				continue
			}
			at, err := n.core.Position(p)
			if err != nil || end > 0 && at.Index != end {
				return fmt.Sprintf("%v has applied %d of %v, and another node %d", n.id, at.Index, p, end)
			}
			end = at.Index
		}
	}
	return ""
}
