package partition

import (
	"fmt"
	"math"
	"strconv"
)

// PartitionID names one log of the cluster for all time: ids are handed out by
// the metadata log and never used again, so an id also tells a topic's
// partition from that of an earlier topic of the same name.
type PartitionID uint64

// Metadata is the log of the cluster's own metadata. Every other id is a
// topic's partition.
const Metadata PartitionID = 0

// String prints the id as p0, p17.
func (p PartitionID) String() string { return "p" + strconv.FormatUint(uint64(p), 10) }

// NodeID names a broker node for all time: from 1 to MaxNode.
type NodeID uint64

// MaxNode is the highest id of a node.
const MaxNode = NodeID(math.MaxUint32)

// String prints the id as n1.
func (n NodeID) String() string { return "n" + strconv.FormatUint(uint64(n), 10) }

// Replica is the id of a partition's first replica on a node.
func (n NodeID) Replica() ReplicaID { return NewReplicaID(n, 0) }

// ReplicaID names one replica of a partition for all time: the node that it is
// on, and how many replicas the partition was given before it. A node that
// loses a replica and gets the partition again has another replica then, so that
// an old vote or a lost log cannot be taken for those of the new one. The ids of
// Raft are these.
//
//	┌──────────────────┬──────────────┐
//	│ incarnation (32) │ node id (32) │   incarnation 0: the plain node id
//	└──────────────────┴──────────────┘
type ReplicaID uint64

// NewReplicaID puts an id together. The node's id has 32 bits.
func NewReplicaID(n NodeID, incarnation uint32) ReplicaID {
	return ReplicaID(uint64(incarnation)<<32 | uint64(n)&math.MaxUint32)
}

// Node is the node that the replica is on.
func (r ReplicaID) Node() NodeID { return NodeID(r & math.MaxUint32) }

// Incarnation tells the replicas of one partition on one node apart.
func (r ReplicaID) Incarnation() uint32 { return uint32(r >> 32) }

// Valid tells whether the id names a replica at all.
func (r ReplicaID) Valid() bool { return r.Node() != 0 }

// String prints the id as n3, or n3.2 for incarnation 2.
func (r ReplicaID) String() string {
	if r.Incarnation() == 0 {
		return r.Node().String()
	}
	return r.Node().String() + "." + strconv.FormatUint(uint64(r.Incarnation()), 10)
}

// Offset is a message's place in its partition: dense, from 0.
type Offset uint64

// Index is an entry's place in a partition's log: messages and commands alike,
// from 1.
type Index uint64

// Millis is a time or a span in milliseconds. Times count from the Unix epoch.
type Millis int64

// Position is the place in a log that something was read at.
type Position struct {
	Index Index  // last applied entry
	Start Offset // first offset kept
	End   Offset // offset of the next message
}

// String prints a position as index/start..end.
func (p Position) String() string { return fmt.Sprintf("%d/%d..%d", p.Index, p.Start, p.End) }
