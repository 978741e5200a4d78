package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// What the metadata log's map says is judged as it comes, and what nodes do about it
// against the newest map that anybody has.

// mapped judges the map of a node, if it is the newest.
func (j *judge) mapped(n *node) {
	c := j.s.cluster
	m := n.coord.View()
	old := c.newest
	if m.Cluster.ID == "" || old != nil && m.Revision <= old.Revision {
		return
	}
	c.newest = m
	if c.outs == nil {
		c.outs = make(map[partition.PartitionID]map[partition.ReplicaID]bool)
	}
	for p := range m.Partitions() {
		outs := c.outs[p.ID]
		if outs == nil {
			outs = make(map[partition.ReplicaID]bool)
			c.outs[p.ID] = outs
		}
		nodes := make(map[partition.NodeID]bool)
		for _, r := range p.Replicas {
			if outs[r] {
				j.s.fault("H7: replica %v of %v was out, and is wanted again", r, p.ID)
			}
			if nodes[r.Node()] {
				j.s.fault("placement: two replicas of %v are wanted on %v", p.ID, r.Node())
			}
			nodes[r.Node()] = true
		}
		for _, l := range p.Leaving {
			if l.Out {
				outs[l.ID] = true
			}
		}
	}
	if old == nil {
		return
	}
	for x := range old.Nodes() {
		y, ok := m.Node(x.ID)
		switch gone := x.State == coordinator.Lost || x.State == coordinator.Removed; {
		case !ok:
			j.s.fault("metadata: %v is not in the map any more", x.ID)
		case gone && (y.State == coordinator.Active || y.State == coordinator.Draining):
			j.s.fault("metadata: %v was %v and is %v", x.ID, x.State, y.State)
		}
	}
	if _, ok := m.TopicByID(c.topic); c.ready && !ok {
		j.s.fault("metadata: the topic is not in the map any more")
	}
	j.members(old, m)
}

// members: who has what of a group changes with its generation only, and nobody's
// session ends, nor its shares go, while its signs of life are confirmed.
func (j *judge) members(old, m *coordinator.Map) {
	c := j.s.cluster
	before, ok := old.GroupByID(c.group)
	now, still := m.GroupByID(c.group)
	if !ok || !still {
		return
	}
	text := func(g *coordinator.Group) (out string) {
		for _, x := range g.Members {
			out += fmt.Sprintf("%s/%d %v away %v; ", x.Name, x.Session, x.Shares, x.Away)
		}
		return out
	}
	if a, b := text(before), text(now); before.Generation == now.Generation && a != b {
		j.s.fault("metadata: in generation %d the members were %s and are %s", now.Generation, a, b)
	}
	if j.s.plan.has("jump") || j.s.plan.has("drift") {
		return // each step of a clock costs time
	}
	for _, a := range c.attendees {
		x, ok := now.Member(a.name)
		if a.session == 0 || j.s.now-a.heard > sessionTime*4/5-time.Second {
			continue
		}
		if !ok || x.Session == a.session && x.Away || x.Session < a.session {
			j.s.fault("metadata: the session %d of %s has ended, or has no shares, and a sign of life was confirmed %v ago: %s", a.session, a.name, j.s.now-a.heard, text(now))
		}
	}
}

// voting: of one node one replica votes, whatever came and went.
func (j *judge) voting(n *node, info partition.Info, p partition.PartitionID) {
	for i, r := range info.Voters {
		if slices.ContainsFunc(info.Voters[:i], func(x partition.ReplicaID) bool { return x.Node() == r.Node() }) {
			j.s.fault("I8: on %v the voters of %v are %v", n.id, p, info.Voters)
		}
	}
}

// erasing: a replica is erased when the metadata log has said that it is out, and not
// because a map does not have it; and no leader counts on it.
func (j *judge) erasing(n *node, p partition.PartitionID, r partition.ReplicaID) {
	c := j.s.cluster
	at, ok := c.newest.Partition(p)
	switch {
	case !ok:
		if !c.newest.Deleted(p) {
			j.s.fault("placement: %v erases replica %v of %v, which no map has yet", n.id, r, p)
		}
		return
	case slices.Contains(at.Replicas, r):
		j.s.fault("placement: %v erases replica %v of %v, which is wanted", n.id, r, p)
	case slices.Contains(at.Leaving, coordinator.Leaving{ID: r}):
		j.s.fault("placement: %v erases replica %v of %v, which may have its vote yet", n.id, r, p)
	case !c.outs[p][r]:
		j.s.fault("placement: %v erases replica %v of %v, and nobody said that it is out", n.id, r, p)
	}
	for _, o := range j.s.nodes {
		if !o.up || !j.newest(o, p) {
			continue
		}
		if info, err := o.core.Info(p); err == nil && slices.Contains(info.Voters, r) {
			j.s.fault("placement: %v erases replica %v of %v, which votes, says %v, who leads it", n.id, r, p, o.id)
		}
	}
}

// changed: whoever confirms a change of replicas has applied it (H12).
func (j *judge) changed(n *node, p partition.PartitionID, ch partition.Change) {
	info, err := n.core.Info(p)
	if err != nil {
		return
	}
	voter, learner := slices.Contains(info.Voters, ch.Replica), slices.Contains(info.Learners, ch.Replica)
	if voter != (ch.Kind == partition.Promote) || learner != (ch.Kind == partition.AddLearner || ch.Kind == partition.Demote) {
		j.s.fault("H12: %v of %v was confirmed by %v, where the voters are %v and the learners %v", ch, p, n.id, info.Voters, info.Learners)
	}
}
