// Package duty decides what a node does to become what the map says of it.
//
// It owns two questions: what is to be done about the replica of a partition on this
// node (Replica), and what does a leader do next about the replicas of what it leads
// (Keeper.Lead). A replica that is damaged is one of them: see damage.go. It promises that nothing is erased because a map does not have it: a
// replica goes when the map names it as out, or its topic as going, or says that its
// partition was handed out once and is not there any more. It promises that a new
// replica is fed before it votes, that it votes before an old one loses its vote, and
// that an old one is named as out only when it has none.
//
//	map ──────────────┐
//	replicas here ────┼─► Replica ─► a task: make, join, erase, report, stop
//	                  │
//	what a leader ────┼─► Keeper.Lead ─► a step: change, transfer, settle
//	knows, who is up ─┘     (membership.go)
//
// It refuses to act, and to wait: whoever asks carries one thing out at a time for each
// partition, and asks again with what is then. Between two answers it remembers only
// how far the log went when a replica began to be fed.
package duty

import (
	"slices"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// A Task is what a node is to do about its replica of a partition.
type Task struct {
	Kind    TaskKind
	Replica partition.ReplicaID   // that is meant; 0, to erase: whichever is here
	Voters  []partition.ReplicaID // that a replica begins with
	Why     string                // of Report and Stop: what is wrong with it; of Leave: why a damaged one stays
}

// TaskKind is what a task is.
type TaskKind byte

// The kinds of tasks.
const (
	Leave  TaskKind = iota // as it is
	Create                 // make it as one of the voters that its partition begins with
	Join                   // make it, with nothing: its leader feeds it
	Drop                   // erase it: its topic goes or is gone
	Erase                  // erase it, and tell the metadata log that it is gone
	Report                 // tell the metadata log that it is damaged
	Stop                   // stop it for good: it is damaged, and that is known
)

// Replica is what is to be done on node self about its replica of a partition of the
// map; up tells which nodes count as up.
func Replica(m *coordinator.Map, p *coordinator.Partition, self partition.NodeID, own Own, up func(partition.NodeID) bool) Task {
	at, ok := m.Place(p.ID)
	if !ok {
		return Task{} // the metadata log: a node has it since it joined
	}
	if at.Topic.Phase == coordinator.Deleting {
		if !own.Here {
			return Task{}
		}
		return Task{Kind: Drop}
	}
	if l, ok := p.Left(self); ok && l.Out {
		// The partition's leader has said, and the metadata log knows, that no vote of
		// it counts.
		return Task{Kind: Erase, Replica: l.ID}
	}
	if own.Here {
		return damaged(p, at.Topic.Phase, self, own, up)
	}
	r, ok := p.Replica(self)
	if !ok {
		return Task{}
	}
	// While its topic is made, its voters are those that it begins with. Later a
	// majority of those was there, and whoever comes now is fed by the leader.
	if at.Topic.Phase == coordinator.Creating && r.Incarnation() == 0 {
		return Task{Kind: Create, Replica: r, Voters: p.Replicas}
	}
	return Task{Kind: Join, Replica: r}
}

// Others is what a node knows of the other nodes. It always has itself for up.
type Others struct {
	Up   func(partition.NodeID) bool // it counts as up
	Stay func(partition.NodeID) bool // it is up for so long that leaderships may go back to it
	// Fit tells whether a node, this one too, may lead where another can: its disk is
	// well and has room. Nil: all are.
	Fit func(partition.NodeID) bool
}

func (o Others) fit(n partition.NodeID) bool { return o.Fit == nil || o.Fit(n) }

// Keeper is what a node's decisions remember. One goroutine uses it.
type Keeper struct {
	targets map[fed]target
}

// fed is a replica that is being fed.
type fed struct {
	id partition.PartitionID
	r  partition.ReplicaID
}

// target is where a replica has caught up: how far the log of its leader went when
// that looked first.
type target struct {
	term uint64
	to   partition.Index
}

// Lead is the next step about the replicas of a partition that this node leads; damaged
// tells that some of what it has of it does not read.
func (k *Keeper) Lead(m *coordinator.Map, p *coordinator.Partition, info partition.Info, o Others, damaged bool) Step {
	w := k.membership(m, p, info, o)
	w.damaged = damaged && p.ID != partition.Metadata // of that one nothing is made anew
	w.mends = p.NoRebuild(info.Replica) == ""
	return w.Next()
}

func (k *Keeper) membership(m *coordinator.Map, p *coordinator.Partition, info partition.Info, o Others) *Membership {
	w := &Membership{
		self: info.Replica, voters: p.Replicas, moving: p.Moving(), hasVoters: info.Voters, hasLearners: info.Learners,
		up: o.Up, fit: o.fit,
		caught: func(r partition.ReplicaID) bool { return r == info.Replica || k.caught(p.ID, info, r) },
	}
	w.lead = func(to partition.ReplicaID) bool {
		n, ok := m.Node(to.Node())
		return o.Stay(to.Node()) && o.fit(to.Node()) && ok && n.State == coordinator.Active && w.caught(to)
	}
	for _, l := range p.Leaving {
		w.gone = append(w.gone, l.ID)
	}
	// A leader with an old map may have let in again who was out and forgotten since.
	for _, has := range [][]partition.ReplicaID{info.Voters, info.Learners} {
		for _, r := range has {
			if p.Past(r) {
				w.gone = append(w.gone, r)
			}
		}
	}
	if p.ID != partition.Metadata {
		return w
	}
	// Every node has a replica of the metadata log, so that it has the map.
	for n := range m.Nodes() {
		r := n.ID.Replica()
		switch {
		case n.State == coordinator.Lost || n.State == coordinator.Removed:
			w.gone = append(w.gone, r)
		case !slices.Contains(p.Replicas, r):
			w.listeners = append(w.listeners, r)
		}
	}
	return w
}

// caught tells whether a replica has what the leader had when it looked first. What
// another leadership saw says nothing: its log may have been another one.
func (k *Keeper) caught(id partition.PartitionID, info partition.Info, r partition.ReplicaID) bool {
	i := slices.IndexFunc(info.Followers, func(f partition.Follower) bool { return f.Replica == r })
	if i < 0 {
		return false
	}
	f, in := info.Followers[i], fed{id, r}
	t, known := k.targets[in]
	if !known || t.term != info.Term {
		t = target{info.Term, info.LastIndex}
		if k.targets == nil {
			k.targets = make(map[fed]target)
		}
		k.targets[in] = t
	}
	ok := f.Active && !f.Snapshot && f.Match >= t.to
	if ok {
		delete(k.targets, in)
	}
	return ok
}
