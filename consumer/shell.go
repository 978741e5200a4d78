package consumer

import (
	"context"

	"github.com/strandmq/strandmq/partition"
)

// replicas is what the shell needs of a partition.Host.
type replicas interface {
	Propose(ctx context.Context, id partition.PartitionID, cmd []byte) (any, error)
	Post(id partition.PartitionID, ev any) error
	View(ctx context.Context, id partition.PartitionID, fn func(partition.App, partition.Position)) error
	ReadAt(id partition.PartitionID, offsets []partition.Offset) ([]partition.Message, error)
	Scan(ctx context.Context, id partition.PartitionID, from partition.Index, fn func(partition.LogEntry) bool) error
	IndexOf(id partition.PartitionID, o partition.Offset) (partition.Index, error)
}

// Shell lets any goroutine speak to the groups of a node's partitions.
type Shell struct {
	host replicas
	seal sealer
	// Now tells the time that commands carry. Default: the wall clock; a group's
	// clock only moves forward whatever it says. Set before use.
	Now func() partition.Millis
}

// NewShell makes a shell over a host whose partitions' apps are of NewApp. The
// tag is the cluster's secret that delivery tokens are made with.
func NewShell(h *partition.Host, tag uint64) *Shell { return newShell(h, tag) }

func newShell(h replicas, tag uint64) *Shell {
	return &Shell{host: h, seal: newSealer(tag)}
}

// CreateGroup makes a group in a partition. Making it again is success and
// changes nothing.
func (s *Shell) CreateGroup(ctx context.Context, pid partition.PartitionID, spec GroupSpec) error {
	return nil
}

// SetPolicy gives a group another policy. Deliveries that are out keep their
// deadlines.
func (s *Shell) SetPolicy(ctx context.Context, pid partition.PartitionID, id GroupID, p Policy) error {
	return nil
}

// SetPaused stops or resumes a group's hand-outs.
func (s *Shell) SetPaused(ctx context.Context, pid partition.PartitionID, id GroupID, paused bool) error {
	return nil
}

// DeleteGroup forgets a group with its dead letters. Deleting one that is not
// there is success.
func (s *Shell) DeleteGroup(ctx context.Context, pid partition.PartitionID, id GroupID) error {
	return nil
}

// Reset moves a group to an offset: what lies before and is not settled is
// skipped, what lies behind is delivered again. Deliveries that are out become
// stale. It returns the floor before.
func (s *Shell) Reset(ctx context.Context, pid partition.PartitionID, id GroupID, to partition.Offset) (partition.Offset, error) {
	return 0, nil
}

// EndSession tells that a member opened a new session: what older ones hold
// lapses at once, charged.
func (s *Shell) EndSession(ctx context.Context, pid partition.PartitionID, gid GroupID, member string, before uint64) error {
	return nil
}

// LeaveSession tells that a member left: what it holds is released, not charged.
func (s *Shell) LeaveSession(ctx context.Context, pid partition.PartitionID, gid GroupID, member string, session uint64) error {
	return nil
}

// Receive waits for deliveries. Without any it says why there are none.
func (s *Shell) Receive(ctx context.Context, req ReceiveRequest) ([]Delivery, string, error) {
	return nil, "", nil
}

// Settle settles deliveries of a group, each with a result of its own.
func (s *Shell) Settle(ctx context.Context, gid GroupID, settlements []Settlement) []SettleResult {
	return nil
}

// Stats gives a group's state in a partition, taken at one position of its log.
func (s *Shell) Stats(ctx context.Context, pid partition.PartitionID, gid GroupID) (GroupState, error) {
	return GroupState{}, nil
}

// DeadLetters lists a group's dead letters from an offset on, without history.
func (s *Shell) DeadLetters(ctx context.Context, pid partition.PartitionID, gid GroupID, from partition.Offset, max int) ([]DeadLetter, error) {
	return nil, nil
}

// DeadLetter gives one dead letter with its history, or *ErrNotDead.
func (s *Shell) DeadLetter(ctx context.Context, pid partition.PartitionID, gid GroupID, o partition.Offset) (DeadLetter, error) {
	return DeadLetter{}, nil
}

// Replay sets dead letters to be delivered to their group again. It returns how
// many were newly set, and how many already were.
func (s *Shell) Replay(ctx context.Context, pid partition.PartitionID, gid GroupID, which Selector) (replayed, already int, err error) {
	return 0, 0, nil
}

// Discard gives dead letters up; a parked key flows on. It returns how many.
func (s *Shell) Discard(ctx context.Context, pid partition.PartitionID, gid GroupID, which Selector) (int, error) {
	return 0, nil
}

// MessageState tells where a message stands in every group of its partition.
func (s *Shell) MessageState(ctx context.Context, pid partition.PartitionID, o partition.Offset) ([]MessageInGroup, error) {
	return nil, nil
}

// Trace tells what happened to a message in every group, read back from its
// partition's log, in order. It stops at max events and says so.
func (s *Shell) Trace(ctx context.Context, pid partition.PartitionID, o partition.Offset, max int) (events []TraceEvent, truncated bool, err error) {
	return nil, false, nil
}
