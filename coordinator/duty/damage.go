package duty

import (
	"slices"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// A damaged replica is made anew from the others, if they can do without it: the
// metadata log is told, its vote is taken, it is erased, and another one of its node is
// fed. One that met the damage has stopped. One that works, and of which a read or the
// scrub found something that does not read, hands its leadership over, and stops when
// the metadata log knows of it: until then it counts, since what it does not find it
// does not serve, and without it there may be no majority.
//
//	damaged ──► Report ──► (leaving) ──► Stop ──► out ──► Erase ──► Join
//	   └──► Leave, with the reason, for as long as the others are too few

// Own is what a node knows of its own replica of a partition.
type Own struct {
	Here    bool                // there is one on its disk
	ID      partition.ReplicaID // 0: it stopped before it knew
	Leading bool
	Stopped bool
	Damage  string // what is wrong with what it has, in words; empty: nothing that is known
}

// damaged is what is to be done about a replica that is here and may be damaged.
func damaged(p *coordinator.Partition, phase coordinator.Phase, self partition.NodeID, own Own, up func(partition.NodeID) bool) Task {
	if l, ok := p.Left(self); ok {
		// Who leads hands over first: Keeper.Lead does it.
		if l.ID == p.Rebuild.ID && l.ID == own.ID && !own.Stopped && !own.Leading {
			return Task{Kind: Stop, Replica: l.ID, Why: p.Rebuild.Why}
		}
		return Task{}
	}
	r, ok := p.Replica(self)
	if !ok || own.Damage == "" || phase != coordinator.Ready || own.ID != 0 && own.ID != r {
		return Task{} // it is well, or the map is of another time
	}
	if why := p.NoRebuild(r); why != "" {
		return Task{Why: why}
	}
	there := 0
	for _, o := range p.Replicas {
		if o != r && up(o.Node()) {
			there++
		}
	}
	if there < p.Others(r) {
		return Task{Why: "too few of the others are there"}
	}
	return Task{Kind: Report, Replica: r, Why: own.Damage}
}

// aside is who leads in the stead of a leader of whose data some does not read: it
// cannot feed others with it. It must be leaving, or there be someone to feed, or a
// majority that makes it anew: else it would come to lead again.
func (m *Membership) aside() (to partition.ReplicaID, ok bool) {
	if !m.damaged {
		return 0, false
	}
	others := 0
	for _, r := range m.hasVoters {
		if r != m.self && m.up(r.Node()) {
			others++
		}
	}
	feeds := slices.ContainsFunc(m.voters, func(r partition.ReplicaID) bool { return !slices.Contains(m.hasVoters, r) })
	if !feeds && !slices.Contains(m.gone, m.self) && (!m.mends || others <= len(m.hasVoters)/2) {
		return 0, false
	}
	for _, r := range m.voters {
		if r != m.self && slices.Contains(m.hasVoters, r) && m.up(r.Node()) && m.fit(r.Node()) && m.caught(r) {
			return r, true
		}
	}
	return 0, false
}
