package partition

import (
	"slices"

	"go.etcd.io/raft/v3"

	"github.com/strandmq/strandmq/internal/record"
)

// A node that is there may be a bad leader all the same: its disk hangs, or is full.
// It says so to the others, and those go by it:
//
//	its disk     it says   the others                              until
//	hangs        stuck     take it for down: they lead what it led  it has been silent about it for stuckTicks
//	hung lately            hand nothing to it, and go before it     frailTicks have passed
//	is full      unfit     the same                                 it has been silent about it for stuckTicks
//
// It is unfit, which is less than down: it follows, it votes, and it leads where
// nobody else can. A disk that hangs for a second now and then would else get and lose
// its leaderships each time.
const (
	stuckTicks = 30  // so long is a node that said that its disk hangs taken for down
	frailTicks = 300 // and so long it leads nothing that another can lead
)

// stuck tells that a node is there, and its disk is not: what it leads stands
// still. Where those whose disks are well are too few to elect another, it goes on
// leading: its disk may only be slow, as all may be, and it is all there is.
func (c *core) stuck(n NodeID) {
	p := c.peer(n)
	p.stuck, p.unfit = c.ticks+stuckTicks, c.ticks+frailTicks
	c.bereave(n, func(r *replica) bool { return c.canDoWithout(r, n) })
}

// saidUnfit tells that a node is there and should lead nothing for now.
func (c *core) saidUnfit(n NodeID) {
	p := c.peer(n)
	p.unfit = max(p.unfit, c.ticks+stuckTicks)
}

// unfit tells whether a node should lead nothing that another can.
func (c *core) unfit(n NodeID) bool {
	if n == c.cfg.Node {
		return c.full || c.ticks < c.frail
	}
	p := c.peers[n]
	return p != nil && c.ticks < p.unfit
}

// looksAtDisks is a tick's look at who is fit.
func (c *core) looksAtDisks() {
	if c.hangs {
		c.frail = c.ticks + frailTicks
		c.letGo()
	}
	if c.cfg.OnUnfit == nil {
		return
	}
	now := c.unfitNodes()
	if !slices.Equal(now, c.unfits) {
		c.unfits = now
		c.cfg.OnUnfit(now)
	}
}

// unfitNodes are the nodes that should lead nothing that another can, in order.
func (c *core) unfitNodes() (out []NodeID) {
	if c.unfit(c.cfg.Node) {
		out = append(out, c.cfg.Node)
	}
	for n := range c.peers {
		if n != c.cfg.Node && c.unfit(n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// letGo answers who waits for a disk that hangs, where others can lead meanwhile: it
// may hang for good. Where they cannot, since theirs hang, too, waiting is all there is
// to do. What was given to raft may be stored or not; what was not goes
// elsewhere. Nothing of a leader that others have left is applied before the disk is
// back, not even that it leads no more, so who does is told from what raft has heard.
func (c *core) letGo() {
	for _, r := range c.order {
		if r.fault != nil || r.taking != nil || len(r.voters) < 2 {
			continue
		}
		st := r.rn.BasicStatus()
		leader := ReplicaID(st.Lead)
		leads := st.RaftState == raft.StateLeader
		if leader != r.leader || leads != r.isLead {
			s := r.shelf
			s.mu.Lock()
			s.info.Leader, s.info.Leading = leader.Node(), s.info.Leading && leads
			s.mu.Unlock()
		}
		if !r.isLead || leads && !c.canDoWithout(r, c.cfg.Node) {
			continue
		}
		if leads {
			leader = 0
		}
		away := &ErrNotLeader{Partition: r.id, Leader: leader.Node()}
		for r.lanes.len() > 0 {
			r.batches.push(r.lanes.pop())
		}
		for r.batches.len() > 0 {
			r.answer(answer{p: r.batches.pop(), err: away})
		}
		for range r.commands.len() {
			// Those of the App stay: it counts on them as long as it is told to lead.
			if p := r.commands.pop(); p.own {
				r.commands.push(p)
			} else {
				r.answer(answer{p: p, err: away})
			}
		}
		for i := range r.waiting.len() {
			r.answer(answer{p: r.waiting.at(i).leave(), err: &ErrOutcomeUnknown{Partition: r.id, Why: "the disk of the node that led hangs"}})
		}
	}
}

// canDoWithout tells whether the voters of a partition that are there, with disks that
// are well, are enough to elect one of them without a node.
func (c *core) canDoWithout(r *replica, n NodeID) bool {
	sound := 0
	for _, v := range r.voters {
		_, up := c.heard(v.Node())
		if v == r.self {
			up = !c.hangs
		}
		if up && v.Node() != n {
			sound++
		}
	}
	return sound > len(r.voters)/2
}

// leave makes of a proposal two: one to be answered, and one that stays where it is,
// for which nobody waits any more, with bytes of its own, since those of the first go
// back to who published them.
func (p *proposal) leave() *proposal {
	if p.stored == nil && p.result == nil {
		return p
	}
	told := *p
	p.stored, p.result, p.size = nil, nil, 0
	p.data = slices.Clone(p.data)
	if p.kind == Batches {
		p.batch, _, _ = record.View(p.data) // it was read before
	}
	return &told
}
