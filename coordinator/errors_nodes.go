package coordinator

import (
	"fmt"

	"github.com/strandmq/strandmq/partition"
)

// ErrReplication is more replicas than there are nodes for.
type ErrReplication struct {
	Want  int // replicas
	Nodes int // active nodes
	There int // of those, nodes that are heard of
	// Unheard are nodes that were not heard of for so short that they may be there: this
	// one has just come to lead. The same may go well in a moment.
	Unheard []partition.NodeID
}

// Error says what to do.
func (e *ErrReplication) Error() string {
	if e.Nodes >= e.Want {
		return fmt.Sprintf("a replication of %d needs a majority of the nodes to be there, and %d of %d active nodes are; bring the others back", e.Want, e.There, e.Nodes)
	}
	return fmt.Sprintf("a replication of %d needs %d active nodes, and there are %d; add nodes, end the draining of some, or ask for less", e.Want, e.Want, e.Nodes)
}

// ErrNodeActive is a node that another store claims to be.
type ErrNodeActive struct {
	Node  partition.NodeID
	Store string // the node's own
	Given string
}

// Error says what to do.
func (e *ErrNodeActive) Error() string {
	return fmt.Sprintf("node %v has store %s, and this data folder is store %s; it is that of another node, or new: give each node its own folder, and after the loss of a disk let a new node join and replace the old one", e.Node, short(e.Store), short(e.Given))
}

func short(store string) string { return store[:min(len(store), 8)] }

// ErrOldBoot is an earlier start of a node than the one that is known.
type ErrOldBoot struct {
	Node partition.NodeID
	Boot uint64
	Now  uint64
	Copy bool // the store does not know of start Now
}

// Error says what to do.
func (e *ErrOldBoot) Error() string {
	if e.Copy {
		return fmt.Sprintf("start number %d of node %v is one that this data folder does not know of; the folder is an earlier copy, and running it would lose what was acknowledged since: start the node on its own folder, or let a new node join and replace it", e.Now, e.Node)
	}
	return fmt.Sprintf("node %v was started %d times, and this is start %d of its store; the data folder is an older copy, and running it would lose what was acknowledged since: start the node on its own folder, or let a new node join and replace it", e.Node, e.Now, e.Boot)
}

// ErrOldRules is a node of an older version than the cluster writes for.
type ErrOldRules struct {
	Node    partition.NodeID
	Applies uint32 // the newest rules that it applies
	Rules   uint32 // of the cluster
}

// Error says what to do.
func (e *ErrOldRules) Error() string {
	return fmt.Sprintf("node %v runs a version of the broker that applies rules up to %d of the metadata log, and since all nodes were upgraded it has rules %d; run the version of the other nodes", e.Node, e.Applies, e.Rules)
}

// ErrLastNode is the last active node, which is neither drained nor given up.
type ErrLastNode struct{ Node partition.NodeID }

// Error says what to do.
func (e *ErrLastNode) Error() string {
	return fmt.Sprintf("node %v is the only active node, and what it holds could go nowhere; add a node first", e.Node)
}

// ErrNodeGone is a node that was removed, or whose disk was given up.
type ErrNodeGone struct {
	Node  partition.NodeID
	State NodeState
}

// Error says what to do.
func (e *ErrNodeGone) Error() string {
	return fmt.Sprintf("node %v is %v, and never comes back; start it on an empty data folder, as a new node that joins", e.Node, e.State)
}

// ErrNotActive is a node that is given no replicas.
type ErrNotActive struct {
	Node  partition.NodeID
	State NodeState
}

// Error says what to do.
func (e *ErrNotActive) Error() string {
	return fmt.Sprintf("node %v is %v and is given no replicas; choose an active node, or end its draining", e.Node, e.State)
}

// ErrNodeHolds is a node that holds what it would take with it.
type ErrNodeHolds struct {
	Node       partition.NodeID
	Partitions int
	Only       bool // they have no other replica
}

// Error says what to do.
func (e *ErrNodeHolds) Error() string {
	if e.Only {
		return fmt.Sprintf("node %v has the only replica of some partitions (%d), and their messages would be gone with it; bring the node back and drain it, or delete their topics", e.Node, e.Partitions)
	}
	return fmt.Sprintf("node %v has replicas of some partitions (%d); drain it and wait until it has none, or, if its disk is lost, replace it", e.Node, e.Partitions)
}

// TokenFault is what is wrong with a join token.
type TokenFault string

// The faults.
const (
	TokenUnknown TokenFault = "is not one of this cluster"
	TokenUsed    TokenFault = "was used by another node; each lets one node in"
	TokenExpired TokenFault = "is past its time"
)

// ErrToken is a join token that lets nobody in.
type ErrToken struct{ Fault TokenFault }

// Error says what to do.
func (e *ErrToken) Error() string {
	return fmt.Sprintf("the join token %s; have a node of the cluster make a new one", e.Fault)
}

// ErrPeerTaken is a node that joins with the address of another one.
type ErrPeerTaken struct {
	Node partition.NodeID // whose it is
	Peer string
}

// Error says what to do.
func (e *ErrPeerTaken) Error() string {
	return fmt.Sprintf("the other nodes reach node %v at %s, and each node has an address of its own; choose another one with --peer-listen or --peer-address, or, if the disk of %v is lost, replace it first: strandmq cluster replace %d", e.Node, e.Peer, e.Node, uint64(e.Node))
}

// ErrErasing is a replica that cannot be placed on a node yet, since the one that
// left it is not erased.
type ErrErasing struct {
	Partition partition.PartitionID
	Node      partition.NodeID
}

// Error says what to do.
func (e *ErrErasing) Error() string {
	return fmt.Sprintf("node %v has not erased its old replica of %v yet; try again shortly, or choose another node", e.Node, e.Partition)
}
