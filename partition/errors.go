package partition

import (
	"errors"
	"fmt"
	"time"

	"github.com/strandmq/strandmq/internal/format"
	"github.com/strandmq/strandmq/partition/logstore"
)

// ErrUnknownPartition tells that this node has no such partition. The route
// that led here is stale, or the partition was never created or is dropped.
type ErrUnknownPartition struct{ Partition PartitionID }

func (e *ErrUnknownPartition) Error() string {
	return fmt.Sprintf("partition %v is not on this node: refresh the route and try again", e.Partition)
}

// ErrFull tells that a queue is at its bound, or that the store cannot keep up
// with its disk. Nothing was taken in; the same call may succeed after
// RetryAfter.
type ErrFull struct {
	Partition  PartitionID
	RetryAfter time.Duration
}

func (e *ErrFull) Error() string {
	return fmt.Sprintf("partition %v takes no more at the moment: try again in %v", e.Partition, e.RetryAfter)
}

// ErrDiskStuck tells that the node's disk has not come back from a write for a
// while. Nothing was taken in; the same call may succeed when it does.
type ErrDiskStuck struct {
	Partition PartitionID
	For       time.Duration
}

func (e *ErrDiskStuck) Error() string {
	return fmt.Sprintf("partition %v takes nothing in: the disk has not come back from a write for %v: try again when it does",
		e.Partition, e.For.Round(time.Millisecond))
}

// ErrNotLeader tells that this node does not lead the partition. Nothing was
// taken in.
type ErrNotLeader struct {
	Partition PartitionID
	Leader    NodeID // 0: not known at the moment
}

func (e *ErrNotLeader) Error() string {
	if e.Leader == 0 {
		return fmt.Sprintf("partition %v has no leader at the moment: try again shortly", e.Partition)
	}
	return fmt.Sprintf("partition %v is led by node %v: ask there", e.Partition, e.Leader)
}

// ErrOtherReplica tells that a node has a partition as another replica than the
// one that is to be made: what it knows, it knows under that name.
type ErrOtherReplica struct {
	Partition  PartitionID
	Have, Want ReplicaID
}

func (e *ErrOtherReplica) Error() string {
	return fmt.Sprintf("partition %v is on this node as replica %v, not as %v: drop it first", e.Partition, e.Have, e.Want)
}

// ErrChange tells that a change of a partition's replicas was refused. Nothing
// was changed.
type ErrChange struct {
	Partition PartitionID
	Change    Change
	Why       string
	Busy      bool // the same change may be taken in a moment
}

func (e *ErrChange) Error() string {
	again := ""
	if e.Busy {
		again = ": try again shortly"
	}
	return fmt.Sprintf("partition %v: %v refused: %s%s", e.Partition, e.Change, e.Why, again)
}

// ErrTransfer tells that a leadership was not handed over.
type ErrTransfer struct {
	Partition PartitionID
	To        ReplicaID
	Why       string
}

func (e *ErrTransfer) Error() string {
	return fmt.Sprintf("partition %v: its leadership stays away from %v: %s: try another replica, or again later", e.Partition, e.To, e.Why)
}

// ErrOutcomeUnknown tells that the outcome of a call is not known: it may have
// happened or may happen yet. Repeat it only if it carries an id, a producer
// sequence, or is harmless twice.
type ErrOutcomeUnknown struct {
	Partition PartitionID
	Why       string
}

func (e *ErrOutcomeUnknown) Error() string {
	return fmt.Sprintf("partition %v: outcome unknown (%s): repeat it only if it can be told from a second one", e.Partition, e.Why)
}

// ErrStopped tells that the host is closed, or closing. Nothing was taken in.
type ErrStopped struct{ Cause error } // nil: it was asked to

func (e *ErrStopped) Error() string {
	if e.Cause != nil {
		return "the node has stopped: " + e.Cause.Error()
	}
	return "the node is stopping: try again when it is up"
}

func (e *ErrStopped) Unwrap() error { return e.Cause }

// ErrNotStored tells that no message stands at an offset yet. End is the offset
// of the next one.
type ErrNotStored struct {
	Partition   PartitionID
	Offset, End Offset
}

func (e *ErrNotStored) Error() string {
	return fmt.Sprintf("partition %v has no offset %d yet: it ends at %d", e.Partition, e.Offset, e.End)
}

// ErrDamaged tells that a partition stopped because something that it stored,
// or what follows from it, cannot be trusted, or because a newer version wrote
// it. The other partitions of the node go on.
type ErrDamaged struct {
	Partition PartitionID
	From, To  Index // entries concerned; 0, 0: not known; a To below From: to an end that is not known
	Why       string
	Newer     *format.ErrNewer // nothing is damaged: a newer version reads it
}

// Damaged makes an *ErrDamaged of what an App, or a decoder, says of what is
// stored.
func Damaged(id PartitionID, err error) *ErrDamaged { return damagedAt(id, 0, err) }

// damagedAt is Damaged for something in an entry; 0: it is not known in which.
func damagedAt(id PartitionID, at Index, err error) *ErrDamaged {
	var d *ErrDamaged
	if errors.As(err, &d) {
		return d
	}
	d = &ErrDamaged{Partition: id, From: at, To: at, Why: err.Error()}
	if errors.As(err, &d.Newer) {
		d.Why = d.Newer.Error() // says all that there is to say
	}
	return d
}

// Unwrap gives the *format.ErrNewer where there is one.
func (e *ErrDamaged) Unwrap() error {
	if e.Newer == nil {
		return nil // and not an interface that holds nil
	}
	return e.Newer
}

// Entries says which entries are concerned; empty: that is not known.
func (e *ErrDamaged) Entries() string {
	if e.From == 0 && e.To == 0 {
		return ""
	}
	return logstore.Entries(uint64(e.From), uint64(e.To))
}

func (e *ErrDamaged) Error() string {
	if e.Newer != nil {
		return fmt.Sprintf("partition %v stopped: %s", e.Partition, e.Why)
	}
	if e.From == 0 && e.To == 0 {
		return fmt.Sprintf("partition %v stopped: %s: restore it from a backup or another replica", e.Partition, e.Why)
	}
	return fmt.Sprintf("partition %v stopped (%s of its log): %s: restore it from a backup or another replica",
		e.Partition, e.Entries(), e.Why)
}

// ErrUnreadable tells that one message, or several in a row, cannot be read.
// Nothing stopped: the messages in other blocks are served. Err is *ErrDamaged.
type ErrUnreadable struct {
	Partition PartitionID
	Offset    Offset
	Last      Offset // of several in a row; else 0
	Err       error
}

// End is the first offset behind what cannot be read.
func (e *ErrUnreadable) End() Offset { return max(e.Offset, e.Last) + 1 }

// What names the messages.
func (e *ErrUnreadable) What() string {
	if e.Last <= e.Offset {
		return fmt.Sprintf("the message at offset %d", e.Offset)
	}
	return fmt.Sprintf("the messages at offsets %d to %d", e.Offset, e.Last)
}

// Why is what is wrong with what is stored of it.
func (e *ErrUnreadable) Why() string {
	var d *ErrDamaged
	if errors.As(e.Err, &d) {
		return d.Why
	}
	return "it is damaged"
}

func (e *ErrUnreadable) Error() string {
	return fmt.Sprintf("%s of partition %v cannot be read: %s: restore it from a backup or another replica",
		e.What(), e.Partition, e.Why())
}

func (e *ErrUnreadable) Unwrap() error { return e.Err }

// ErrExpired tells that a message is no longer kept. Start is the first one
// that is.
type ErrExpired struct {
	Partition PartitionID
	Start     Offset
}

func (e *ErrExpired) Error() string {
	return fmt.Sprintf("partition %v keeps messages from offset %d on: ask for that one or a later one", e.Partition, e.Start)
}

// ErrIDReused tells that a message was not stored, because another one with the
// same id and key, but with another content, is stored at Offset.
type ErrIDReused struct {
	Partition PartitionID
	ID        string
	Offset    Offset
}

func (e *ErrIDReused) Error() string {
	return fmt.Sprintf("message id %q is taken: %v holds another message with this id and key at offset %d: use a new id",
		e.ID, e.Partition, e.Offset)
}

// ErrBehind tells that a message was not stored, because one before it in its
// batch, which is in order, was refused.
type ErrBehind struct{ Partition PartitionID }

func (e *ErrBehind) Error() string {
	return fmt.Sprintf("%v did not store it, since a message before it in its batch was refused: send both again, in order", e.Partition)
}

// ErrSequenceGap tells that a message was not stored, because its producer's
// sequence leaves some out. Expected is the one that would be next; 0 for a
// producer that is not known (any more).
type ErrSequenceGap struct {
	Partition PartitionID
	Producer  string
	Got       uint64
	Expected  uint64
}

func (e *ErrSequenceGap) Error() string {
	return fmt.Sprintf("producer %q sends sequence %d to %v where %d is next: send from there on, or begin with a new producer id",
		e.Producer, e.Got, e.Partition, e.Expected)
}

// ErrSequenceExpired tells that a message was not stored, because its producer
// used its sequence long before: where that message stood is known no more.
type ErrSequenceExpired struct {
	Partition PartitionID
	Producer  string
	Sequence  uint64
}

func (e *ErrSequenceExpired) Error() string {
	return fmt.Sprintf("producer %q used sequence %d before in %v: that message was stored, and retention has removed it: go on with the next one",
		e.Producer, e.Sequence, e.Partition)
}

// ErrSequenceReused tells that a message was not stored, because another one
// with the same producer sequence, but with another content, is stored at
// Offset.
type ErrSequenceReused struct {
	Partition PartitionID
	Producer  string
	Sequence  uint64
	Offset    Offset
}

func (e *ErrSequenceReused) Error() string {
	return fmt.Sprintf("producer %q used sequence %d before: %v holds another message of that sequence at offset %d: begin with a new producer id",
		e.Producer, e.Sequence, e.Partition, e.Offset)
}
