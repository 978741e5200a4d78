package consumer

import (
	"fmt"

	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/partition"
)

// ErrStale refuses a token that is not the current one of its message. Nothing
// was changed.
type ErrStale struct{ Why string }

func (e *ErrStale) Error() string {
	return "stale delivery: " + e.Why + "; nothing was changed, drop the message and receive again"
}

// ErrToken refuses what is no delivery token of this group and cluster.
type ErrToken struct{ Why string }

func (e *ErrToken) Error() string {
	return "delivery token: " + e.Why + "; send it exactly as Receive gave it"
}

// ErrNotHolder refuses a settlement in the name of a member that the delivery
// was not given to. Nothing was changed.
type ErrNotHolder struct{ Member string }

func (e *ErrNotHolder) Error() string {
	return fmt.Sprintf("the delivery was not given to member %s; name the one that received it, or none", plain.Quote(e.Member))
}

// ErrUnknownGroup says that a partition's log knows no such group.
type ErrUnknownGroup struct {
	Partition partition.PartitionID
	Group     GroupID
}

func (e *ErrUnknownGroup) Error() string {
	return fmt.Sprintf("partition %v has no group %v: it was deleted, or is still being created", e.Partition, e.Group)
}

// ErrHeldTooLong refuses an extend beyond the group's max hold.
type ErrHeldTooLong struct {
	Until   partition.Millis // when the delivery lapses
	MaxHold partition.Millis
}

func (e *ErrHeldTooLong) Error() string {
	return fmt.Sprintf("held too long: a delivery is held for at most %s over all extends, and this one is at its limit; settle it, or raise the group's max_hold", quantity.FormatMillis(e.MaxHold))
}

// ErrSessionEnded refuses a member's session that ended: the member left, was
// not heard of, or joined again.
type ErrSessionEnded struct {
	Member  string
	Session uint64
}

func (e *ErrSessionEnded) Error() string {
	return fmt.Sprintf("session %d of member %q ended: join again", e.Session, e.Member)
}

// ErrBadSettlement refuses a settlement that cannot be meant.
type ErrBadSettlement struct {
	Field string // token, action, delay_ms, reason
	Why   string
}

func (e *ErrBadSettlement) Error() string { return e.Field + ": " + e.Why }

// ErrNotDead says that a group has no dead letter at an offset.
type ErrNotDead struct {
	Partition partition.PartitionID
	Offset    partition.Offset
}

func (e *ErrNotDead) Error() string {
	return fmt.Sprintf("no dead letter at offset %d of partition %v: it was replayed and handled, or discarded, or never died; list the dead letters to see what there is", e.Offset, e.Partition)
}

// ErrReplayLimit says that a replay stopped because as many messages wait to be
// delivered again as the group's max_deferred lets. What was counted stands.
type ErrReplayLimit struct {
	Partition partition.PartitionID
	Limit     uint32
}

func (e *ErrReplayLimit) Error() string {
	return fmt.Sprintf("replay stopped: %d replayed messages wait in partition %v already, the group's max_deferred; repeat the request when some were handled", e.Limit, e.Partition)
}

// ErrReplaying refuses to discard a dead letter that is on its way to a member.
type ErrReplaying struct {
	Partition partition.PartitionID
	Offset    partition.Offset
}

func (e *ErrReplaying) Error() string {
	return fmt.Sprintf("the dead letter at offset %d of partition %v was replayed and is being delivered: settle that delivery", e.Offset, e.Partition)
}

// ErrCommand says that a committed command does not decode. It is ours: the
// replica stops.
type ErrCommand struct {
	Why string
	Err error // *format.ErrNewer when a newer version wrote it
}

func (e *ErrCommand) Error() string { return "delivery command: " + e.Why }

func (e *ErrCommand) Unwrap() error { return e.Err }

// ErrRow says that a stored row does not decode. It is ours: the replica stops.
type ErrRow struct {
	Key []byte
	Why string
	Err error // *format.ErrNewer when a newer version wrote it
}

func (e *ErrRow) Error() string { return fmt.Sprintf("delivery row %x: %s", e.Key, e.Why) }

func (e *ErrRow) Unwrap() error { return e.Err }
