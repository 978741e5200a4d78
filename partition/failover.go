package partition

import (
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// How partitions keep and find their leaders. Two things tell that one is alive:
// heartbeats of each partition (raft's, dear) and word of each node (the
// transport's, cheap). With word of the nodes, a partition that has nothing to
// say sleeps: nobody ticks it, and it is as if it were not there.
//
//	awake ──(all matched, committed, applied for sleepAfter ticks)──► asleep
//	asleep ─(a proposal, a message, a node of it comes or goes)─────► awake
//
// When a node is down, every replica that it led on another node forgets it and
// campaigns: at once on one node, a little later on the next, so that they do not
// split the votes. Until a node is heard of at all, nothing counts on that:
// partitions with a replica there do not sleep, and find a dead leader by the
// silence of raft's heartbeats alone.
const (
	electionTicks  = 50 // a follower that hears nothing for 50 to 99 ticks asks for votes
	heartbeatTicks = 5
	sleepAfter     = 20 // ticks without anything to say
	patience       = 10 // ticks without a leader until a replica tries to be it
	maxPatience    = 80 // it doubles with every try
	rankTicks      = 5  // so much later for each voter that goes before
	// maxCampaigns is how many campaigns a node begins in a tick: when a node that
	// led a thousand partitions dies, the disks of the others would else be
	// busy with votes and nothing else.
	maxCampaigns = 128
)

// peer is another node as the transport knows it.
type peer struct {
	up    bool
	stuck uint64 // its disk hangs, until that tick
	unfit uint64 // it should lead nothing that another can, until that tick
}

// heard tells whether anything is known of a node, and whether it is up.
func (c *core) heard(n NodeID) (known, up bool) {
	p := c.peers[n]
	if p == nil {
		return false, false
	}
	return true, p.up && c.ticks >= p.stuck
}

func (c *core) peer(n NodeID) *peer {
	p := c.peers[n]
	if p == nil {
		p = &peer{}
		c.peers[n] = p
	}
	return p
}

// up tells that a node is there.
func (c *core) up(n NodeID) {
	if _, up := c.heard(n); up || n == c.cfg.Node {
		return
	}
	p := c.peer(n)
	p.up, p.stuck = true, 0
	c.rouseOn(n)
}

// rouseOn wakes what has a replica on a node that is back.
func (c *core) rouseOn(n NodeID) {
	for _, r := range c.order {
		if r.fault != nil || !r.isOn(n) {
			continue
		}
		// It may lag, or have forgotten who leads.
		r.rouse()
		if r.leader == 0 && r.votes && !r.isLead {
			r.attempts = 0
			at := c.ticks + 1 + rankTicks*uint64(c.rank(r))
			if r.campaignAt == 0 || at < r.campaignAt {
				r.campaignAt = at
			}
		}
	}
}

// down tells that a node is not there any more.
func (c *core) down(n NodeID) {
	c.peer(n).up = false
	c.bereave(n, func(*replica) bool { return true })
}

// bereave has others lead what a node led, where that may be.
func (c *core) bereave(n NodeID, may func(*replica) bool) {
	for _, r := range c.order {
		if r.fault != nil || !r.isOn(n) || !may(r) {
			continue
		}
		leader, _ := r.heard()
		switch {
		case leader.Node() == n:
			c.forget(r)
		case r.isLead:
			r.rouse() // without it there may be no majority
			c.unreachable(r, n)
			if r.fault == nil && r.transfer != nil && r.transfer.to.Node() == n {
				r.keepLead("its node went down")
			}
		}
	}
	c.runCampaigns()
}

// unreachable has a leader feed a node's replica no more than one message a
// heartbeat, until it answers: what was on its way there may be lost.
func (c *core) unreachable(r *replica, n NodeID) {
	for _, id := range r.members {
		if id.Node() != n || id == r.self {
			continue
		}
		if err := c.guard(r, func() error { r.rn.ReportUnreachable(uint64(id)); return nil }); err != nil {
			c.fail(r, err)
			return
		}
		c.touch(r)
	}
}

// heard is who leads in which term as raft has it. A replica takes note of that in its
// next turn: between the two a leader of a moment may go, and it is raft that waits for it.
func (r *replica) heard() (leader ReplicaID, term uint64) {
	if r.taking != nil {
		return r.leader, r.term
	}
	st := r.rn.BasicStatus()
	return ReplicaID(st.Lead), st.GetTerm()
}

// forget makes a replica one without a leader, which votes for another at once
// and campaigns when it is its turn.
func (c *core) forget(r *replica) {
	r.rouse()
	leader, _ := r.heard()
	if leader == r.self {
		return
	}
	if err := c.guard(r, r.rn.ForgetLeader); err != nil {
		c.fail(r, err)
		return
	}
	r.attempts, r.lost = 0, leader
	r.campaignAt = c.ticks + rankTicks*uint64(c.rank(r))
	if r.votes && r.campaignAt == c.ticks {
		c.lineUp(r)
	}
	c.touch(r)
}

// rank is how many voters go before a replica when the leader is gone: at first those
// whose nodes are fit to lead. Two nodes may differ in who that is, and come to the same
// rank, so from the second try on it does not count. The order is another one for each
// partition, so that a node's partitions come to be led by all others alike.
func (c *core) rank(r *replica) int {
	voters := r.rlog.conf.GetVoters()
	rank, from := 0, int(uint64(r.id)%uint64(max(len(voters), 1)))
	unfit := func(n NodeID) bool { return r.attempts == 0 && c.unfit(n) }
	mine, behind := unfit(c.cfg.Node), false // behind: it is behind this one in the order
	for i := range voters {
		v := ReplicaID(voters[(from+i)%len(voters)])
		if v == r.self {
			behind = true
			continue
		}
		known, up := c.heard(v.Node())
		if known && !up || v == r.lost {
			continue
		}
		if other := unfit(v.Node()); other == mine && !behind || mine && !other {
			rank++
		}
	}
	return rank
}

// campaign makes a replica try to lead.
func (c *core) campaign(id PartitionID) error {
	r, err := c.replica(id)
	if err != nil {
		return err
	}
	r.rouse()
	if err := c.guard(r, r.rn.Campaign); err != nil {
		c.fail(r, err)
		return r.fault
	}
	c.touch(r)
	return nil
}

// lineUp has a replica campaign when it is its turn. It stands in line once: with
// ten thousand without a leader, looking for each in the line would take the
// loop's time when it has to elect.
func (c *core) lineUp(r *replica) {
	if !r.inLine {
		r.inLine = true
		c.campaigners = append(c.campaigners, r)
	}
}

// runCampaigns begins those whose turn it is, as many as a tick may have.
func (c *core) runCampaigns() {
	for len(c.campaigners) > 0 && c.campaigns < maxCampaigns {
		r := c.campaigners[0]
		c.campaigners[0] = nil
		r.inLine = false
		if c.campaigners = c.campaigners[1:]; len(c.campaigners) == 0 {
			c.campaigners = nil
		}
		if r.gone || r.fault != nil || r.isLead || r.leader != 0 && r.rn.BasicStatus().Lead != raft.None {
			continue
		}
		r.attempts++
		r.campaignAt = c.ticks + min(patience<<min(r.attempts-1, 8), uint64(maxPatience)) + rankTicks*uint64(c.rank(r))
		c.campaigns++
		_ = c.campaign(r.id) // it has stopped then, and says so itself
	}
}

// tick is the raft clock of every replica that is awake and has someone to hear
// from.
func (c *core) tick() {
	c.ticks++
	c.campaigns = 0
	for n, p := range c.peers {
		if p.up && p.stuck == c.ticks {
			c.rouseOn(n) // and with equal ticks in no order that matters
		}
	}
	c.looksAtDisks()
	for _, r := range c.order {
		if r.asleep || r.single && r.isLead || r.fault != nil || r.taking != nil {
			continue
		}
		c.steps++
		if err := c.guard(r, func() error { r.rn.Tick(); return nil }); err != nil {
			c.fail(r, err)
			continue
		}
		r.transferTicked()
		switch {
		case r.isLead:
			c.drowse(r)
		case r.leader != 0 || !r.votes || c.hangs:
			r.campaignAt, r.attempts, r.lost = 0, 0, 0
		case r.campaignAt == 0:
			r.campaignAt = c.ticks + patience + rankTicks*uint64(c.rank(r))
		case r.campaignAt <= c.ticks:
			c.lineUp(r)
		}
		c.touch(r)
	}
	c.runCampaigns()
}

// drowse puts a leader and its followers to sleep when they have had nothing to
// say for a while.
func (c *core) drowse(r *replica) {
	if r.idleAt != r.rlog.last || !c.quiet(r) {
		r.idle, r.idleAt = 0, r.rlog.last
		return
	}
	if r.idle++; r.idle < sleepAfter || r.rn.HasReady() {
		return // a heartbeat behind the word to sleep would wake them
	}
	for _, to := range r.members {
		if _, up := c.heard(to.Node()); up && to != r.self {
			c.out = append(c.out, ourFrame(r.id, frameSleep, r.self, to, r.term, r.rlog.last))
		}
	}
	r.asleep = true
}

// quiet tells whether a leader has nothing to say: what it has, every follower
// has on disk, and knows to be committed. One on a node that is down does not
// count, if there is a majority without it: it is roused when that node is back.
func (c *core) quiet(r *replica) bool {
	if !r.leading || r.single || r.full || r.change != nil || r.transfer != nil ||
		r.queued() || r.waiting.len() > 0 {
		return false
	}
	last := r.rlog.last
	if uint64(r.log.Position().Index) != last || len(r.rlog.conf.GetVotersOutgoing()) > 0 {
		return false
	}
	voters, quiet := 0, true
	r.rn.WithProgress(func(id uint64, typ raft.ProgressType, p tracker.Progress) {
		to := ReplicaID(id)
		known, up := c.heard(to.Node())
		switch {
		case to == r.self:
			up = true
		case !known, up && (p.Match != last || p.State != tracker.StateReplicate):
			quiet = false
		}
		if up && typ == raft.ProgressTypePeer {
			voters++
		}
	})
	return quiet && voters > len(r.rlog.conf.GetVoters())/2
}

// sleepy takes a leader's word that there is nothing more to come. It holds what
// a heartbeat does. A follower that sees anything otherwise stays awake, and its
// clock goes on: it will ask who leads.
func (c *core) sleepy(r *replica, f Frame) {
	term, last := f.m.GetTerm(), f.m.GetIndex()
	_, up := c.heard(f.From.Node())
	if r.isLead || r.term != term || r.leader != 0 && r.leader != f.From || r.rlog.last != last || !up {
		r.rouse()
		return
	}
	from, to := uint64(f.From), uint64(r.self)
	c.step(r, &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: &from, To: &to, Term: &term, Commit: &last})
	r.asleep = r.fault == nil
}

// rouse wakes a replica.
func (r *replica) rouse() { r.asleep, r.idle = false, 0 }

// resign tells the others that this replica leads no more, in raft's stead: it
// has stopped, or is about to.
func (r *replica) resign() {
	if !r.isLead || r.single {
		return
	}
	for _, to := range r.members {
		if to != r.self {
			r.c.out = append(r.c.out, ourFrame(r.id, frameResign, r.self, to, r.term, 0))
		}
	}
}

// isOn tells whether a node has a replica of the partition.
func (r *replica) isOn(n NodeID) bool {
	return slices.ContainsFunc(r.members, func(id ReplicaID) bool { return id.Node() == n })
}

// reconfigured takes note of who the replicas are.
func (r *replica) reconfigured() {
	conf := r.rlog.conf
	r.single = soleVoter(conf, r.self)
	r.votes = slices.Contains(conf.GetVoters(), uint64(r.self))
	r.members = members(conf)
	r.voters, r.learners = replicas(conf.GetVoters()), replicas(conf.GetLearners())
	r.others, r.othersAt = nil, 0
	r.rouse()
}

// role is who leads a partition, as one node sees it.
type role struct {
	id      PartitionID
	leader  NodeID
	leading bool
	term    uint64
}

// tellRole has OnRole hear of a change.
func (r *replica) tellRole() {
	now := role{r.id, r.leader.Node(), r.leading, r.term}
	if r.fault != nil {
		now.leader = 0
	}
	if now == r.told || r.c.cfg.OnRole == nil {
		return
	}
	r.told = now
	r.c.roles = append(r.c.roles, now)
}

// takeRoles returns what OnRole is to hear.
func (c *core) takeRoles() []role {
	rs := c.roles
	c.roles = nil
	return rs
}

func replicas(ids []uint64) []ReplicaID {
	if len(ids) == 0 {
		return nil
	}
	out := make([]ReplicaID, len(ids))
	for i, id := range ids {
		out[i] = ReplicaID(id)
	}
	return out
}

// followers is what a leader knows of the others, looked up once in a tick at
// most.
func (r *replica) followers() []Follower {
	if !r.isLead || r.single || r.rn == nil {
		r.others, r.othersAt = nil, 0
		return nil
	}
	if r.others != nil && r.othersAt == r.c.ticks {
		return r.others
	}
	r.others, r.othersAt = nil, r.c.ticks
	r.rn.WithProgress(func(id uint64, typ raft.ProgressType, p tracker.Progress) {
		if to := ReplicaID(id); to != r.self {
			_, up := r.c.heard(to.Node())
			r.others = append(r.others, Follower{
				Replica: to, Voter: typ == raft.ProgressTypePeer, Match: Index(p.Match), Active: p.RecentActive || up && r.asleep,
				Snapshot: p.State == tracker.StateSnapshot,
			})
		}
	})
	slices.SortFunc(r.others, func(a, b Follower) int { return int(int64(a.Replica) - int64(b.Replica)) })
	return r.others
}
