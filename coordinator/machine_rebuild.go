package coordinator

import (
	"slices"
	"strings"

	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// A replica whose node cannot trust what it has of it is made anew from the others, on
// the same node and under a new id. What it has goes only when its vote is taken, and
// its vote only when the others can do without it. No step is another than those of a
// move; the map remembers that the node is to have a replica again, and why.
//
//	DamagedReplica     SettleReplicas      LeftReplica            SettleReplicas
//	wanted: without    it has no vote:     erased. wanted: with   fed, and votes:
//	leaving: it    ──► leaving: out    ──► a new one of the   ──► nothing to remember
//	                                       node
//
// One of a partition at a time.

// Rebuild is a damaged replica that is being made anew.
type Rebuild struct {
	ID  partition.ReplicaID // the damaged one; among the leaving until it is erased
	Why string              // what is wrong with it, in words
}

// maxRebuildWhy bounds what is written down of why.
const maxRebuildWhy = 512

// NoRebuild is why a damaged replica cannot be made anew from the others now, as far as
// the map tells, in words; empty: it can.
func (p *Partition) NoRebuild(r partition.ReplicaID) string {
	others := len(p.Replicas) - 1
	switch {
	case p.ID == partition.Metadata:
		return "it is of the cluster's metadata: replace the node"
	case !slices.Contains(p.Replicas, r):
		return "it is none of those that are wanted"
	case others == 0:
		return "it is the only one"
	case p.comesAgain(p.Rebuild.ID.Node()):
		return "another one of its partition is being made anew"
	case !p.voted(r): // it is fed by those that vote
		return ""
	case p.Rebuild.ID != 0:
		return "another one of its partition is being made anew"
	case p.Moving():
		return "its partition is on the move"
	case others <= len(p.Replicas)/2:
		return "the others are no majority"
	}
	return ""
}

// Others is how many of the others of its partition have to be there before a damaged
// replica is given up.
func (p *Partition) Others(r partition.ReplicaID) int {
	if p.voted(r) {
		return len(p.Replicas)/2 + 1
	}
	return (len(p.Replicas)-1)/2 + 1
}

func (mc *machine) damagedReplica(c *storagev1.DamagedReplica) *result {
	p, err := mc.partitionFor(c.GetPartitionId())
	if err != nil {
		return refuse(err)
	}
	id := partition.ReplicaID(c.Replica)
	if p.Rebuild.ID == id && id != 0 {
		return &result{place: p, existed: true}
	}
	if p.NoRebuild(id) != "" {
		// Who says so has not heard of something, or the others are too few yet.
		return refuse(&ErrConflict{Kind: KindPartition, Name: p.ID.String()})
	}
	next := *p
	next.Replicas = slices.DeleteFunc(slices.Clone(p.Replicas), func(r partition.ReplicaID) bool { return r == id })
	next.Leaving = append(slices.Clone(p.Leaving), Leaving{ID: id})
	next.Placement = uint64(mc.at)
	next.Rebuild = Rebuild{ID: id, Why: strings.ToValidUTF8(c.Why[:min(len(c.Why), maxRebuildWhy)], "")}
	mc.record(mc.about(Happening{Kind: ReplicaDamaged, Node: id.Node(), Text: "it is made anew from the others: " + next.Rebuild.Why}, p.ID))
	return &result{place: mc.setPartition(next)}
}

// comesAgain tells whether a node is to have a replica again as soon as it has erased
// the damaged one. Only then, the metadata log aside, has a partition 2 or 4 wanted ones.
func (p *Partition) comesAgain(n partition.NodeID) bool {
	l, ok := p.Left(n)
	return ok && l.ID == p.Rebuild.ID
}

// replicas is how many replicas there are to be when a damaged one is made anew.
func (p *Partition) replicas() int {
	if p.Rebuild.ID != 0 && p.comesAgain(p.Rebuild.ID.Node()) {
		return len(p.Replicas) + 1
	}
	return len(p.Replicas)
}

// erased forgets a replica that has left. Where it was damaged, its node gets another
// one, whatever becomes of the node: what has to go elsewhere goes as always.
func (mc *machine) erased(p *Partition, id partition.ReplicaID) *Partition {
	next := *p
	next.forget(id)
	if p.Rebuild.ID == id {
		next.Replicas = append(slices.Clone(p.Replicas), partition.NewReplicaID(id.Node(), p.nextIncarnation))
		next.nextIncarnation++
		next.Placement = uint64(mc.at)
	}
	next.endRebuild()
	return mc.setPartition(next)
}

// endRebuild forgets a damaged replica whose place is taken by one that votes, or is not
// to be taken any more.
func (p *Partition) endRebuild() {
	if p.Rebuild.ID == 0 || p.comesAgain(p.Rebuild.ID.Node()) {
		return
	}
	if _, fed := p.Replica(p.Rebuild.ID.Node()); !fed || !p.Moving() {
		p.Rebuild = Rebuild{}
	}
}
