package partition

import (
	"fmt"
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

// NodeID names a broker node for all time.
type NodeID uint64

// String prints the id as n1.
func (n NodeID) String() string { return "n" + strconv.FormatUint(uint64(n), 10) }

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
