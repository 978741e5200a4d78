package consumer

import (
	"time"

	"github.com/strandmq/strandmq/partition"
)

// GroupSpec is a new group of a partition.
type GroupSpec struct {
	ID     GroupID
	Name   string
	Policy Policy
	Start  partition.Offset // where it starts; beyond the end means at the end
	Paused bool
}

// Share is a partition, or a share of its keys, that a member works on.
type Share struct {
	Partition partition.PartitionID
	Share     uint32 // which share
	Shares    uint32 // of how many; 0 and 1: all keys
	// HeldOnly asks for what the member still holds in a partition that went
	// to another one; it gets nothing new from there.
	HeldOnly bool
}

// ReceiveRequest asks for deliveries to one member.
type ReceiveRequest struct {
	Group    GroupID
	Member   string
	Session  uint64
	Shares   []Share
	Max      int           // most deliveries; at least 1
	MaxBytes int           // most bytes of keys, headers and bodies; the first always fits; 0: 4 MiB
	Wait     time.Duration // for a first delivery
	// RequestID marks a retry: the same id gets the same deliveries again, and
	// a new one only such as no earlier call was given. Empty: what the session
	// holds comes first, then new ones.
	RequestID string
}

// Delivery is one hand-out of one message to one member.
type Delivery struct {
	Partition partition.PartitionID
	Message   partition.Message
	Attempt   uint32 // from 1
	Token     Token
	Deadline  partition.Millis // when it lapses unless it is settled or extended
	FirstSeen partition.Millis // when the group first handed out the message
	Fence     uint64           // only grows for a group and partition
	Replayed  bool             // came out of the group's dead letters
	Settled   bool             // by being handed out: the group is at-most-once
}

// Action is what a member makes of a delivery.
type Action uint8

// The actions. Release gives a message back unstarted: not charged.
const (
	Ack     Action = 1
	Nack    Action = 2
	Reject  Action = 3
	Extend  Action = 4
	Release Action = 5
	// bury is the leader's reject of a message that cannot be read. It says
	// nothing of who was to handle it.
	bury Action = 6
)

// String prints the action as ack, nack, reject, extend, release.
func (a Action) String() string {
	switch a {
	case Ack:
		return "ack"
	case Nack:
		return "nack"
	case Reject:
		return "reject"
	case Extend:
		return "extend"
	case Release:
		return "release"
	case bury:
		return "bury"
	default:
		return "unknown"
	}
}

// Settlement settles one delivery.
type Settlement struct {
	Token  Token
	Action Action
	Delay  partition.Millis // nack: wait this long instead of the backoff; extend: from now; 0: the policy's
	Reason string           // nack and reject; at most MaxReason bytes
	Member string           // who settles: the one that was given the token; empty: whoever has it
	// Published is when the message was published, where that is known without a look:
	// for Shell.Acked. It decides nothing.
	Published partition.Millis
}

// Limits of a settlement.
const (
	MaxReason = 1024
	MaxDelay  = 7 * day
)

// SettleResult is what became of one settlement.
type SettleResult struct {
	Err      error            // *ErrStale, *ErrToken, *ErrHeldTooLong, *ErrBadSettlement, or what kept the call from its partition
	Deadline partition.Millis // extend: the new one
	Dead     bool             // nack, reject: the message is a dead letter now
	Again    bool             // it had taken effect before, and changed nothing now
}

// Counts splits a partition's log as one group sees it. Ready + Blocked +
// InFlight + BackingOff + Parked + Dead + Acked + Skipped + NotScanned is the
// end of the log less the group's start.
type Counts struct {
	Ready      uint64
	Blocked    uint64
	InFlight   uint64
	BackingOff uint64
	Parked     uint64
	Dead       uint64
	Acked      uint64
	Skipped    uint64 // passed over by a reset, a discard or retention
	NotScanned uint64

	Expired   uint64 // part of Skipped: removed by retention before they were settled
	Replaying uint64 // part of the above: dead letters that are delivered again
	HandedOut uint64
	Retried   uint64
	OnDisk    uint64 // part of the above: waits on disk, not in memory

	// How hand-outs ended, since the group was created: Nacked + Rejected + Lapsed +
	// Lost is Retried, but for what was so before these were counted.
	Nacked    uint64
	Rejected  uint64
	Lapsed    uint64
	Lost      uint64 // with their session
	HandledMs uint64 // from hand-out to ack, of all acks together

	// Settlements that were refused since this replica was opened.
	Stale  uint64 // their token was not current
	Late   uint64 // of those, acks of deliveries that had lapsed
	LateMs uint64 // from hand-out to ack of the late ones, at least
}

// Lag is how many messages are neither settled nor dead.
func (c Counts) Lag() uint64 {
	return c.Ready + c.Blocked + c.InFlight + c.BackingOff + c.Parked + c.NotScanned
}

// Stall is one thing that waits, and why.
type Stall struct {
	Reason   string // IN_FLIGHT, BACKING_OFF, PARKED, DEFERRED_LIMIT, DEFERRED_KEY_LIMIT, IN_FLIGHT_LIMIT, CIRCUIT_OPEN, PAUSED, NO_MEMBER, PARTITION_DAMAGED
	OfKey    bool   // one key stalls; else the whole group
	KeyHash  uint64
	HasKey   bool
	Key      []byte
	Offset   partition.Offset // head of the stall
	Until    partition.Millis // at the latest; 0: not known
	Waiting  uint64           // messages behind it
	Attempts uint32           // of the head, so far
	Member   string           // that holds the head, holds all that it may, or does not ask; may not be known
	Share    uint32           // NO_MEMBER, of one share: which, of how many; Shares is 0 for the whole partition
	Shares   uint32
	Text     string

	Unreadable *partition.ErrUnreadable // PARTITION_DAMAGED: what the group stands before
}

// MemberHold is how much a member holds in a partition.
type MemberHold struct {
	Member   string
	InFlight uint64
}

// GroupState is a group in one partition, at one position of its log.
type GroupState struct {
	Name     string
	Policy   Policy
	Paused   bool
	Position partition.Position
	Start    partition.Offset // where it started
	Floor    partition.Offset // first that is neither settled, nor dead, nor in a queue on disk
	Oldest   partition.Offset // first that is neither settled nor dead
	Scanned  partition.Offset // first that was not looked at yet
	Epoch    uint64           // how often it was reset
	Counts   Counts
	Stalls   []Stall // at most MaxStalls, the oldest first
	Members  []MemberHold
	Kept     Kept
	Circuit  Circuit
}

// Circuit is how a group's breaker stands in a partition.
type Circuit struct {
	Open   bool
	Opened uint64           // how often it opened since the group was created
	Until  partition.Millis // while it is open: no message is tried before; 0 while one is out
}

// Loss is messages that retention took from a group before it had settled them:
// Count of those from First to Last.
type Loss struct {
	First, Last partition.Offset
	Count       uint64
	Cause       string           // age, size: the topic's limits; hold-limit: the group's
	From, Until partition.Millis // when the first and the last of them was lost
}

// Kept is what retention left of a group in a partition.
type Kept struct {
	Needs     partition.Offset // first message that the group has not settled
	Losses    []Loss           // the oldest first, at most 100
	Copies    uint64           // dead letters whose message the log no longer keeps
	CopyBytes uint64
	Expired   uint64
	Holds     bool   // the policy says so
	HoldBytes uint64 // and how much at most; 0: any number
	HoldAge   partition.Millis
}

// Attempt is one hand-out and how it ended.
type Attempt struct {
	Attempt   uint32
	Member    string
	HandedOut partition.Millis
	Ended     partition.Millis
	Outcome   string // nack, reject, lapse, session-lost
	Reason    string
}

// DeadLetter is a message that a group gave up.
type DeadLetter struct {
	Partition partition.PartitionID
	Offset    partition.Offset
	KeyHash   uint64
	Message   partition.Message
	Attempts  uint32 // made in all
	FirstSeen partition.Millis
	DeadSince partition.Millis
	Reason    string    // of the last failure
	History   []Attempt // the oldest first; the last 32
	Replaying bool      // waits to be delivered again, or is being
}

// Selector picks dead letters of a group in a partition: all, those of a key,
// or those at given offsets.
type Selector struct {
	All     bool
	ByKey   bool
	KeyHash uint64
	HasKey  bool // with ByKey: false picks messages without a key and with this hash
	Key     []byte
	Offsets []partition.Offset
}

// MessageInGroup is where a message stands in one group.
type MessageInGroup struct {
	Group    GroupID
	Name     string
	State    string // not-scanned, ready, blocked, in-flight, backing-off, parked, dead, acked, skipped
	Attempts uint32 // since it was replayed or the group reset, if it was; of what is settled too
	Detail   string
}

// TraceEvent is one thing that happened to a message in a group.
type TraceEvent struct {
	Time    partition.Millis // of the group's clock, as are the other times
	Index   partition.Index
	Term    uint64           // of the entry
	Node    partition.NodeID // which led then, and so did it; 0: not known
	Group   GroupID
	What    string // handed-out, acked, nacked, rejected, extended, released, lapsed, session-lost, dead-lettered, replayed, discarded, reset, refused
	Member  string
	Attempt uint32
	Detail  string // in words, with what the following say

	Reason      string           // of a failure; of a dead letter that of its last one; why it was refused
	Until       partition.Millis // handed out or extended: the deadline then
	NextAttempt partition.Millis // a failure: not before then; 0: it is a dead letter
	Uncharged   bool             // a failure while the circuit was open
	Settled     bool             // the hand-out settled it: the group is at-most-once
	Again       bool             // a reset has it delivered again
}
