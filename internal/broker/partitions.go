package broker

import (
	"context"
	"errors"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/router"
)

// partitions is what the API asks of partitions, one at a time, wherever each is
// led. A node alone has one implementation, own; every method may be called from
// any goroutine.
//
//	*_api.go, streams ──► partitions ──┬─► own: this node's host and groups
//	                                   └─► dispatch ──by leader──┬─► own
//	                                                             └─► remote, pipes: node.v1
type partitions interface {
	outlet
	// From is an outlet for one of many sources, which take turns; without it, all
	// are one.
	From(s partition.Source) outlet
	asked
}

// asked is all of it but publishing.
type asked interface {
	partitionReader
	groupKeeper
	deadKeeper
}

// An outlet takes batches: a partition's log, at once or with patience (see
// publishStream). What was taken is answered when it is on disk.
type outlet interface {
	router.Log
	// PublishBatch is PublishAsync for a batch that was parsed.
	PublishBatch(id uint64, b record.Batch, done func([]partition.Stored, error)) error
}

// partitionReader looks at a partition's log.
type partitionReader interface {
	Info(ctx context.Context, id partition.PartitionID) (partitionInfo, error)
	// Position is the part of its log that a partition keeps.
	Position(ctx context.Context, id partition.PartitionID) (partition.Position, error)
	OffsetAt(ctx context.Context, id partition.PartitionID, t partition.Millis) (partition.Offset, error)
	FindByMessageID(ctx context.Context, id partition.PartitionID, messageID string) ([]partition.Offset, error)
	// Read gives messages from an offset on, or from where what is kept begins. It
	// does not look for a leader that is not known.
	Read(ctx context.Context, id partition.PartitionID, from partition.Offset, most, maxBytes int) (stretch, error)
	// Life reads one message's life back.
	Life(ctx context.Context, id partition.PartitionID, o partition.Offset, show consumer.Window) (life, error)
}

// groupKeeper keeps a group in one partition's log: what it says is in the log
// when it returns, and can be said again.
type groupKeeper interface {
	// LogGroup has the partition log a group as it is: new, or changed.
	LogGroup(ctx context.Context, id partition.PartitionID, g consumer.GroupSpec, isNew bool) error
	DeleteGroup(ctx context.Context, id partition.PartitionID, g consumer.GroupID) error
	// Groups lists what groups the partition has.
	Groups(ctx context.Context, id partition.PartitionID) ([]consumer.GroupID, error)
	Reset(ctx context.Context, id partition.PartitionID, g consumer.GroupID, to partition.Offset) (partition.Offset, error)
	Stats(ctx context.Context, id partition.PartitionID, g consumer.GroupID) (groupState, error)
	// EndSession ends a member's sessions before a number: lost ones are charged
	// for what they hold, others give it back.
	EndSession(ctx context.Context, id partition.PartitionID, g consumer.GroupID, member string, before uint64, lost bool) error
}

// deadKeeper is a group's dead letters in one partition.
type deadKeeper interface {
	DeadLetters(ctx context.Context, id partition.PartitionID, g consumer.GroupID, from partition.Offset, most int) ([]consumer.DeadLetter, error)
	DeadLetter(ctx context.Context, id partition.PartitionID, g consumer.GroupID, o partition.Offset) (consumer.DeadLetter, error)
	// CopiesOf finds dead letters by message id whose message the log no longer keeps.
	CopiesOf(ctx context.Context, id partition.PartitionID, g consumer.GroupID, messageID string) ([]partition.Offset, error)
	Replay(ctx context.Context, id partition.PartitionID, g consumer.GroupID, which consumer.Selector) (replayed, already int, err error)
	Discard(ctx context.Context, id partition.PartitionID, g consumer.GroupID, which consumer.Selector) (int, error)
}

// partitionInfo is a partition as operators see it.
type partitionInfo struct {
	partition.Info
	heldBy    coordinator.GroupID // the group for which most is held beyond the topic's limits; 0: none
	heldBytes uint64
}

// groupState is a group in a partition, with what its leader alone knows: what
// retention holds for it. Stalls that follow from that are among the others.
type groupState struct {
	consumer.GroupState
	held     hold
	oldestAt partition.Millis // when the message at Oldest was published; 0: there is none, or it is not known
}

// stretch is messages of a partition that follow each other, and what it keeps.
type stretch struct {
	messages []partition.Message
	kept     partition.Position
}

// life is one message with all that happened to it.
type life struct {
	message   partition.Message
	publishes []consumer.TraceEvent // of no group: its publish, and repeats of it that stored nothing
	groups    consumer.Life
	cut       uint64 // so many of the publishes were left out
	truncated bool   // not all of the log was looked through for them
}

// own is the partitions of this node.
type own struct{ b *Broker }

var _ partitions = own{}

// PublishAsync implements router.Log.
func (l own) PublishAsync(id uint64, batch []byte, done func([]router.Stored, error)) error {
	return l.From(0).PublishAsync(id, batch, done)
}

// PublishBatch implements outlet.
func (l own) PublishBatch(id uint64, b record.Batch, done func([]partition.Stored, error)) error {
	return l.From(0).PublishBatch(id, b, done)
}

// From implements partitions.
func (l own) From(s partition.Source) outlet { return ownSource{l.b.host, s} }

// ownSource is one source's way to the partitions of this node.
type ownSource struct {
	host   *partition.Host
	source partition.Source
}

// PublishAsync implements router.Log.
func (l ownSource) PublishAsync(id uint64, batch []byte, done func([]router.Stored, error)) error {
	b, _, err := record.Parse(batch) // the router made it: nothing stands behind
	if err != nil {
		return err
	}
	return l.PublishBatch(id, b, func(stored []partition.Stored, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		done(routerStored(stored), nil)
	})
}

func routerStored(stored []partition.Stored) []router.Stored {
	out := make([]router.Stored, len(stored))
	for i, s := range stored {
		out[i] = router.Stored{Offset: uint64(s.Offset), Duplicate: s.Duplicate, Err: s.Err}
	}
	return out
}

// PublishBatch implements outlet.
func (l ownSource) PublishBatch(id uint64, b record.Batch, done func([]partition.Stored, error)) error {
	return l.host.PublishFrom(l.source, partition.PartitionID(id), b, done)
}

// Info implements partitionReader.
func (l own) Info(_ context.Context, id partition.PartitionID) (partitionInfo, error) {
	info, err := l.b.host.Info(id)
	out := partitionInfo{Info: info}
	if err == nil {
		out.heldBy, out.heldBytes = l.b.retention.holder(id)
	}
	return out, err
}

// Position implements partitionReader.
func (l own) Position(_ context.Context, id partition.PartitionID) (partition.Position, error) {
	return l.b.host.Position(id)
}

// OffsetAt implements partitionReader.
func (l own) OffsetAt(_ context.Context, id partition.PartitionID, t partition.Millis) (partition.Offset, error) {
	return l.b.host.OffsetAt(id, t)
}

// FindByMessageID implements partitionReader.
func (l own) FindByMessageID(ctx context.Context, id partition.PartitionID, messageID string) ([]partition.Offset, error) {
	return l.b.host.FindByMessageID(ctx, id, messageID)
}

// Read implements partitionReader.
func (l own) Read(ctx context.Context, id partition.PartitionID, from partition.Offset, most, maxBytes int) (stretch, error) {
	return readKept(ctx, l.b.host, id, from, most, maxBytes)
}

// logReader is what readKept asks of a host.
type logReader interface {
	Position(id partition.PartitionID) (partition.Position, error)
	Read(id partition.PartitionID, from partition.Offset, most, maxBytes int) ([]partition.Message, error)
}

func readKept(ctx context.Context, h logReader, id partition.PartitionID, from partition.Offset, most, maxBytes int) (out stretch, err error) {
	for { // what it keeps may become less meanwhile, and then there is less to read
		if out.kept, err = h.Position(id); err != nil {
			return stretch{}, err
		}
		out.messages, err = h.Read(id, max(from, out.kept.Start), most, maxBytes)
		if !errors.As(err, new(*partition.ErrExpired)) {
			return out, err
		}
		if err := ctx.Err(); err != nil {
			return stretch{}, err
		}
	}
}

// Life implements partitionReader.
func (l own) Life(ctx context.Context, id partition.PartitionID, o partition.Offset, show consumer.Window) (life, error) {
	list, err := l.b.host.ReadAt(id, []partition.Offset{o})
	if err != nil {
		return life{}, err
	}
	if len(list) != 1 {
		return life{}, errors.New("a message in the log's range cannot be read")
	}
	out := life{message: list[0]}
	if out.publishes, out.cut, out.truncated, err = l.b.publishes(ctx, id, list[0], show); err != nil {
		return life{}, err
	}
	out.groups, err = l.b.groups.Trace(ctx, id, o, show)
	return out, err
}

// LogGroup implements groupKeeper.
func (l own) LogGroup(ctx context.Context, id partition.PartitionID, g consumer.GroupSpec, isNew bool) error {
	if err := l.b.groups.CreateGroup(ctx, id, g); err != nil || isNew {
		return err
	}
	if err := l.b.groups.SetPolicy(ctx, id, g.ID, g.Policy); err != nil {
		return err
	}
	return l.b.groups.SetPaused(ctx, id, g.ID, g.Paused)
}

// DeleteGroup implements groupKeeper.
func (l own) DeleteGroup(ctx context.Context, id partition.PartitionID, g consumer.GroupID) error {
	return l.b.groups.DeleteGroup(ctx, id, g)
}

// Groups implements groupKeeper.
func (l own) Groups(ctx context.Context, id partition.PartitionID) ([]consumer.GroupID, error) {
	kept, err := l.b.groups.Kept(ctx, id)
	out := make([]consumer.GroupID, 0, len(kept))
	for g := range kept {
		out = append(out, g)
	}
	return out, err
}

// Reset implements groupKeeper.
func (l own) Reset(ctx context.Context, id partition.PartitionID, g consumer.GroupID, to partition.Offset) (partition.Offset, error) {
	return l.b.groups.Reset(ctx, id, g, to)
}

// Stats implements groupKeeper.
func (l own) Stats(ctx context.Context, id partition.PartitionID, g consumer.GroupID) (groupState, error) {
	s, err := l.b.groups.Stats(ctx, id, g)
	if err != nil {
		return groupState{}, err
	}
	s.Stalls = l.b.retention.stall(id, coordinator.GroupID(g), s)
	out := groupState{GroupState: s, held: l.b.retention.of(id, coordinator.GroupID(g))}
	if s.Oldest < s.Position.End {
		// What retention or a follower's place takes from under it has no time.
		out.oldestAt, _ = l.b.host.PublishTime(id, s.Oldest)
	}
	return out, nil
}

// EndSession implements groupKeeper.
func (l own) EndSession(ctx context.Context, id partition.PartitionID, g consumer.GroupID, member string, before uint64, lost bool) error {
	if lost {
		return l.b.groups.EndSession(ctx, id, g, member, before)
	}
	return l.b.groups.LeaveSession(ctx, id, g, member, before-1)
}

// DeadLetters implements deadKeeper.
func (l own) DeadLetters(ctx context.Context, id partition.PartitionID, g consumer.GroupID, from partition.Offset, most int) ([]consumer.DeadLetter, error) {
	return l.b.groups.DeadLetters(ctx, id, g, from, most)
}

// DeadLetter implements deadKeeper.
func (l own) DeadLetter(ctx context.Context, id partition.PartitionID, g consumer.GroupID, o partition.Offset) (consumer.DeadLetter, error) {
	return l.b.groups.DeadLetter(ctx, id, g, o)
}

// CopiesOf implements deadKeeper.
func (l own) CopiesOf(ctx context.Context, id partition.PartitionID, g consumer.GroupID, messageID string) ([]partition.Offset, error) {
	return l.b.groups.CopiesOf(ctx, id, g, messageID)
}

// Replay implements deadKeeper.
func (l own) Replay(ctx context.Context, id partition.PartitionID, g consumer.GroupID, which consumer.Selector) (replayed, already int, err error) {
	return l.b.groups.Replay(ctx, id, g, which)
}

// Discard implements deadKeeper.
func (l own) Discard(ctx context.Context, id partition.PartitionID, g consumer.GroupID, which consumer.Selector) (int, error) {
	return l.b.groups.Discard(ctx, id, g, which)
}
