package consumer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strandmq/strandmq/partition"
)

// Replicas is what a Shell needs of a partition.Host. A simulator has its own, in
// which Propose and View come back when the simulated node has answered. The
// methods may be called from any goroutine from which the Shell is; those that end
// in Async, Post and Tell do not block.
type Replicas interface {
	Propose(ctx context.Context, id partition.PartitionID, cmd []byte) (any, error)
	ProposeAsync(id partition.PartitionID, cmd []byte, done func(any, error)) error
	Post(id partition.PartitionID, ev any) error
	Tell(id partition.PartitionID, ev any) error
	View(ctx context.Context, id partition.PartitionID, fn func(partition.App, partition.Position)) error
	ReadAt(id partition.PartitionID, offsets []partition.Offset) ([]partition.Message, error)
	ReadRawAt(id partition.PartitionID, offsets []partition.Offset, out []partition.RawMessage) ([]partition.RawMessage, error)
	Commands(ctx context.Context, id partition.PartitionID, from partition.Index, fn func(partition.LogEntry) bool) error
	Led(id partition.PartitionID) (partition.Led, error)
	IndexOf(id partition.PartitionID, o partition.Offset) (partition.Index, error)
}

// Shell lets any goroutine speak to the groups of a node's partitions. It has
// no goroutine of its own.
type Shell struct {
	host Replicas
	seal sealer
	// Now tells the time as this node's hosts know it. Default: the wall clock; a
	// group's clock only moves forward whatever it says. Set before use.
	Now func() partition.Millis
	// Explain says in words, and with names, before what a group stands and how
	// it goes on. It must not block. Set before use.
	Explain func(GroupID, *partition.ErrUnreadable) string
	// Lost hears of a message that an at-most-once group was handed and that cannot
	// be read: it comes to nobody again. It must not block. Set before use.
	Lost func(GroupID, *partition.ErrUnreadable)
	// Acked hears of n acks that took effect in a partition that this node led, and when
	// their messages were published, where that is known. It must not block. Set before
	// use. Nil: nobody asks.
	Acked func(gid GroupID, published partition.Millis, n int)
	// Published tells when a message was published, and the first offset behind it with
	// another time. It may read from disk. Set before use. Nil: nobody knows.
	Published func(partition.PartitionID, partition.Offset) (partition.Millis, partition.Offset, error)

	clocks sync.Map // groupIn → *sharedClock
	calls  atomic.Uint64
}

// NewShell makes a shell over a host whose partitions' apps are of NewApp. The
// tag is the cluster's secret that delivery tokens are made with.
func NewShell(h *partition.Host, tag uint64) *Shell { return NewShellOver(h, tag) }

// NewShellOver is NewShell over anything that does what a host does.
func NewShellOver(h Replicas, tag uint64) *Shell {
	return &Shell{host: h, seal: newSealer(tag), Explain: unreadText, Lost: func(GroupID, *partition.ErrUnreadable) {}, Now: func() partition.Millis {
		return partition.Millis(time.Now().UnixMilli())
	}}
}

// propose proposes a command and turns a refusal into the error that it is.
func (s *Shell) propose(ctx context.Context, pid partition.PartitionID, cmd []byte) (any, error) {
	res, err := s.host.Propose(ctx, pid, cmd)
	if err != nil {
		return nil, err
	}
	if refused, ok := res.(error); ok {
		return nil, refused
	}
	return res, nil
}

// view looks at a group. The function runs where nothing else does until it
// returns.
func (s *Shell) view(ctx context.Context, pid partition.PartitionID, gid GroupID, fn func(*group, partition.Position) error) error {
	var bad error
	err := s.host.View(ctx, pid, func(app partition.App, at partition.Position) {
		a, ok := app.(*App)
		if !ok {
			bad = &ErrUnknownGroup{Partition: pid, Group: gid}
			return
		}
		g := a.group(gid)
		if g == nil {
			bad = &ErrUnknownGroup{Partition: pid, Group: gid}
			return
		}
		bad = fn(g, at)
	})
	if err != nil {
		return err
	}
	return stored(pid, bad)
}

// stored gives what does not decode the partition's type: it is the partition
// that cannot go on, not the caller who asked wrongly.
func stored(pid partition.PartitionID, err error) error {
	if errors.As(err, new(*ErrRow)) || errors.As(err, new(*ErrCommand)) {
		return partition.Damaged(pid, err)
	}
	return err
}

// CreateGroup makes a group in a partition. Making it again is success and
// changes nothing.
func (s *Shell) CreateGroup(ctx context.Context, pid partition.PartitionID, spec GroupSpec) error {
	if err := spec.Policy.Validate(); err != nil {
		return err
	}
	_, err := s.propose(ctx, pid, encodeCreate(s.Now(), spec))
	return err
}

// SetPolicy gives a group another policy. Deliveries that are out keep their
// deadlines.
func (s *Shell) SetPolicy(ctx context.Context, pid partition.PartitionID, id GroupID, p Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	_, err := s.propose(ctx, pid, encodePolicy(s.stamp(ctx, pid, id), id, p))
	return err
}

// SetPaused stops or resumes a group's hand-outs.
func (s *Shell) SetPaused(ctx context.Context, pid partition.PartitionID, id GroupID, paused bool) error {
	_, err := s.propose(ctx, pid, encodePause(s.stamp(ctx, pid, id), id, paused))
	return err
}

// DeleteGroup forgets a group with its dead letters. Deleting one that is not
// there is success.
func (s *Shell) DeleteGroup(ctx context.Context, pid partition.PartitionID, id GroupID) error {
	_, err := s.propose(ctx, pid, encodeDelete(s.stamp(ctx, pid, id), id))
	return err
}

// Reset moves a group to an offset: what lies before and is not settled is
// skipped, what lies behind is delivered again, save dead letters, which stay what
// they are. Deliveries that are out become
// stale. It returns the floor before.
func (s *Shell) Reset(ctx context.Context, pid partition.PartitionID, id GroupID, to partition.Offset) (partition.Offset, error) {
	res, err := s.propose(ctx, pid, encodeReset(s.stamp(ctx, pid, id), id, to))
	from, _ := res.(partition.Offset)
	return from, err
}

// EndSession tells that a member opened a new session, or was lost: what its
// sessions below a number hold failed, charged, and lapses at once.
func (s *Shell) EndSession(ctx context.Context, pid partition.PartitionID, gid GroupID, member string, before uint64) error {
	_, err := s.propose(ctx, pid, encodeSessions(cmdSessions, s.stamp(ctx, pid, gid), gid, member, before))
	return err
}

// LeaveSession tells that a member left: what it holds by a session, or by any
// earlier one, is given back, not charged.
func (s *Shell) LeaveSession(ctx context.Context, pid partition.PartitionID, gid GroupID, member string, session uint64) error {
	_, err := s.propose(ctx, pid, encodeSessions(cmdLeave, s.stamp(ctx, pid, gid), gid, member, session+1))
	return err
}
