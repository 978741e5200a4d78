// Package placement decides which nodes hold which partitions.
//
// It owns one question: given a picture of the cluster, what should move? It
// promises that a plan never puts two replicas of a partition on one node; that
// it takes no replica away but for another, unless fewer are wanted; that it
// makes no group of two voters, which could wedge for good when one is lost;
// that it moves nothing of a partition whose majority is not there, since only a
// majority can change who belongs to it; that it moves no more than it must and
// no more at once than it may; and that a picture in which all is well gives an
// empty plan. It refuses to act: a plan is a wish. The metadata log writes it
// down, and the nodes carry it out: a new replica is fed until it has caught up,
// then it votes, then the old one leaves.
//
//	          ┌──────────── again, with the next picture ◄─────────┐
//	          ▼                                                    │
//	picture: nodes (zone, draining, silent for how long)           │
//	         partitions (replicas, wanted, moving)           carried out
//	          │                                                    │
//	          ▼                                                    │
//	Make:  repair ─► grow, shrink ─► zones ─► even load ─► leaders │
//	          │                                                    │
//	          └─► plan: at most so many moves ──► metadata log ────┘
//
// The steps come in the order of need, and each partition is moved once a plan
// at most. Every step lowers what comes first of: replicas where they must not
// stay, replicas of a partition in one zone, unevenness of replicas, unevenness
// of leaders; so the plans for a cluster that stays as it is come to an end.
//
// The parts: picture.go the values, plan.go the steps, choose.go which node is
// best, leaders.go who leads, initial.go a topic's first placement.
package placement

import "github.com/strandmq/strandmq/partition"

// Picture is the cluster at one moment. Make does not change it.
type Picture struct {
	Nodes      []Node      // that belong to the cluster; removed ones are left out
	Partitions []Partition // that may be moved, each once
}

// Node is a node of the cluster.
type Node struct {
	ID       partition.NodeID
	Zone     string           // nodes of one zone may fail together; empty is a zone like any other
	Draining bool             // what it has is to go elsewhere
	Silent   partition.Millis // not heard of for so long; 0: it is there
}

// Partition is a partition and where its replicas are wanted.
type Partition struct {
	ID    partition.PartitionID
	Topic uint64 // partitions of one topic are spread too; 0: none
	// Replicas are the nodes that are to hold it; the first is to lead it.
	Replicas []partition.NodeID
	// Leaving hold it yet and are to leave; they can be taken back.
	Leaving []partition.NodeID
	// Erasing have left and not erased it yet; they cannot hold it before.
	Erasing []partition.NodeID
	Want    int  // how many replicas there are to be
	Moving  bool // not yet as Replicas says
}

// Options bound a plan.
type Options struct {
	// DeadAfter is how long a node may be silent before what it has is made anew
	// elsewhere. Default 10 minutes. Shorter costs copies for what comes back by
	// itself, longer leaves partitions with a replica less.
	DeadAfter partition.Millis
	// Moves is how many partitions may be on the move at once, those included
	// that are already. Default 8. More is done sooner and loads the disks more.
	Moves int
	// Leads is how many leaders a plan may change at most. Default 32. Each is a
	// short pause of its partition.
	Leads int
}

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	if o.DeadAfter == 0 {
		o.DeadAfter = 10 * 60 * 1000
	}
	if o.Moves == 0 {
		o.Moves = 8
	}
	if o.Leads == 0 {
		o.Leads = 32
	}
	return o
}

// Why is what a move is for.
type Why string

// The reasons of moves.
const (
	Dead     Why = "a replica's node is dead"
	Drained  Why = "a replica's node is being drained"
	TooFew   Why = "more replicas are wanted"
	TooMany  Why = "fewer replicas are wanted"
	Zones    Why = "replicas share a zone and need not"
	Uneven   Why = "a node has more replicas than another"
	LeadAway Why = "the node that is to lead cannot"
	LeadEven Why = "a node leads more than another"
)

// Move is a partition that is wanted elsewhere, or led by another.
type Move struct {
	Partition partition.PartitionID
	From, To  []partition.NodeID // the wanted replicas before and after; the first is to lead
	Why       Why
}

// Stuck is a partition that should move and cannot.
type Stuck struct {
	Partition partition.PartitionID
	Why       Why    // what it should move for
	Needs     string // what has to happen first, in words
}

// Plan is what should be done.
type Plan struct {
	Moves []Move
	Stuck []Stuck
}

// DefaultReplicas is how many replicas a topic's partitions get that asks for
// none, where there are as many nodes.
const DefaultReplicas = 3

// Wanted is how many replicas a partition is to have: as many as its topic asks
// for, or, where it asks for none (0), three if there are so many active nodes
// and otherwise as many as it has. It never falls by itself.
func Wanted(asked, has, active int) int {
	switch {
	case asked > 0:
		return asked
	case active >= DefaultReplicas:
		return DefaultReplicas
	}
	return max(has, 1)
}

// MetadataVoters is how many replicas of the metadata log vote: up to five, an
// odd number, and no fewer than it has where there are less than three nodes.
func MetadataVoters(has, active int) int {
	switch {
	case active >= 5:
		return 5
	case active >= 3:
		return 3
	}
	return max(has, 1)
}
