package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/router"
)

// A topic is a topic of the map with what calls need of it worked out.
type topic struct {
	*coordinator.Topic
	table *router.Table
	place map[partition.PartitionID]uint32
}

func newTopic(t *coordinator.Topic, revision uint64) (*topic, error) {
	targets := make([]router.Target, len(t.Partitions))
	place := make(map[partition.PartitionID]uint32, len(t.Partitions))
	for i, p := range t.Partitions {
		targets[i] = router.Target{ID: uint64(p.ID), Range: p.Range}
		place[p.ID] = uint32(i)
	}
	table, err := router.NewTable(revision, t.Seed, targets)
	if err != nil {
		return nil, err
	}
	return &topic{Topic: t, table: table, place: place}, nil
}

func (t *topic) maxBody() int { return int(t.Config.MaxBody) }

// number checks a partition's number and gives its id.
func (t *topic) number(n uint32) (partition.PartitionID, error) {
	if int64(n) >= int64(len(t.Partitions)) {
		return 0, refuse("UNKNOWN_PARTITION", "partition", "topic %s has partitions 0 to %d, and no %d", t.Name, len(t.Partitions)-1, n)
	}
	return t.Partitions[n].ID, nil
}

// topics remembers the worked-out topics of the present map. A topic that has
// not changed between two maps is the same pointer in both.
type topics struct {
	mu   sync.Mutex
	of   map[*coordinator.Topic]*topic // guarded by mu
	from *coordinator.Map              // guarded by mu: the map that of was last swept for
}

func (s *topics) get(m *coordinator.Map, t *coordinator.Topic) (*topic, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if out, ok := s.of[t]; ok {
		return out, nil
	}
	if s.from != m {
		// Sweep what the newer map no longer has.
		live := make(map[*coordinator.Topic]*topic, len(s.of))
		for t := range m.Topics() {
			if out, ok := s.of[t]; ok {
				live[t] = out
			}
		}
		s.of, s.from = live, m
	}
	out, err := newTopic(t, m.Revision)
	if err != nil {
		return nil, err
	}
	s.of[t] = out
	return out, nil
}

// topic finds a topic in use.
func (b *Broker) topic(name string) (*topic, error) {
	if err := names.Topic(name); err != nil {
		return nil, inField(err, "topic")
	}
	m := b.coord.View()
	t, err := m.Topic(name)
	if err != nil {
		return nil, err
	}
	return b.topics.get(m, t)
}

// group finds a group in use, with its topic.
func (b *Broker) group(topicName, groupName string) (*topic, *coordinator.Group, error) {
	if err := names.Topic(topicName); err != nil {
		return nil, nil, inField(err, "topic")
	}
	if err := names.Group(groupName); err != nil {
		return nil, nil, inField(err, "group")
	}
	m := b.coord.View()
	t, g, err := m.Group(topicName, groupName)
	if err != nil {
		return nil, nil, err
	}
	out, err := b.topics.get(m, t)
	return out, g, err
}

// inField names the field of a name that was refused.
func inField(err error, field string) error {
	r := *explainer{partition: partition.PartitionID.String}.translate(err) // speaks of a name, not of partitions
	r.field = field
	return &r
}

// each runs fn for every partition of a topic, a few at a time: a commit serves
// many partitions at once, so waiting for them one by one would cost one fsync
// each. It gives the first error.
func each(ctx context.Context, t *coordinator.Topic, fn func(ctx context.Context, i int, id partition.PartitionID) error) error {
	calls, within := errgroup.WithContext(ctx)
	calls.SetLimit(64)
	for i, p := range t.Partitions {
		if within.Err() != nil {
			break
		}
		calls.Go(func() error { return fn(within, i, p.ID) })
	}
	if err := calls.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx) // it may have ended the loop
}

// finishing is the context of a change that was begun: it goes on when its
// caller does not wait any more, so that nobody finds it half done. What it is done
// for, of has.
func (b *Broker) finishing(of context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(withRequest(b.calls, requestOf(of)), time.Minute)
}

// readyTopic does the partitions' part of a topic that was begun.
func (b *Broker) readyTopic(ctx context.Context, t *coordinator.Topic) (*coordinator.Topic, error) {
	ctx, cancel := b.finishing(ctx)
	defer cancel()
	err := each(ctx, t, func(ctx context.Context, _ int, id partition.PartitionID) error {
		if b.far != nil {
			return b.far.peers.Created(ctx, id)
		}
		return b.host.Create(ctx, id)
	})
	if err != nil {
		return nil, err
	}
	b.namePartitions()
	return b.coord.FinishTopic(ctx, t.ID)
}

// namePartitions tells the store what the partitions are called, for messages
// about damage where the metadata log cannot be asked.
func (b *Broker) namePartitions() {
	b.naming.Lock() // from an older map nothing is told after a newer one
	defer b.naming.Unlock()
	all := map[uint64]string{uint64(partition.Metadata): b.partitionName(partition.Metadata)}
	for t := range b.coord.View().Topics() {
		for _, p := range t.Partitions {
			all[uint64(p.ID)] = b.partitionName(p.ID)
		}
	}
	if err := b.store.Name(all); err != nil && b.failure() == nil {
		b.log.Warn("the names of partitions are not written down: messages about damage have numbers instead", "err", err)
	}
}

// removeTopic does the partitions' part of a deletion that was begun.
func (b *Broker) removeTopic(ctx context.Context, t *coordinator.Topic) error {
	ctx, cancel := b.finishing(ctx)
	defer cancel()
	err := each(ctx, t, func(ctx context.Context, _ int, id partition.PartitionID) error {
		if b.far != nil {
			return b.far.peers.Dropped(ctx, id)
		}
		return b.host.Drop(ctx, id)
	})
	if err != nil {
		return err
	}
	if err := b.coord.RemoveTopic(ctx, t.ID); err != nil {
		return err
	}
	b.namePartitions()
	return nil
}

// readyGroup has every partition that works log a group as the map has it, new or
// changed. Each step changes nothing where it was done before. With a partition
// that stopped, the group is in use and remains unfinished: reconcile tells the
// partition when it is back.
func (b *Broker) readyGroup(ctx context.Context, t *coordinator.Topic, g *coordinator.Group) (*coordinator.Group, []*strandmqv1.LeftOut, error) {
	ctx, cancel := b.finishing(ctx)
	defer cancel()
	policy := policyOf(g.Policy)
	r := &leftOut{b: b}
	err := r.each(ctx, t, func(ctx context.Context, _ int, id partition.PartitionID) error {
		start, err := b.resolve(ctx, id, g.Start)
		if err != nil {
			return err
		}
		gid := consumer.GroupID(g.ID)
		return b.parts.LogGroup(ctx, id, consumer.GroupSpec{ID: gid, Name: g.Name, Policy: policy, Start: start, Paused: g.Paused}, g.Revision == 1)
	})
	if err != nil {
		return nil, nil, err
	}
	logged := g.Revision
	if len(r.out) > 0 {
		logged = coordinator.SomeLogged
	}
	g, err = b.coord.FinishGroup(ctx, g.ID, logged)
	return g, r.out, err
}

// removeGroup has every partition that works forget a group, and gives those that
// do not: reconcile has them forget it when they are back.
func (b *Broker) removeGroup(ctx context.Context, t *coordinator.Topic, g *coordinator.Group) ([]*strandmqv1.LeftOut, error) {
	ctx, cancel := b.finishing(ctx)
	defer cancel()
	r := &leftOut{b: b}
	err := r.each(ctx, t, func(ctx context.Context, _ int, id partition.PartitionID) error {
		return b.parts.DeleteGroup(ctx, id, consumer.GroupID(g.ID))
	})
	if err != nil {
		return nil, err
	}
	return r.out, b.coord.RemoveGroup(ctx, g.ID)
}

// forgetGroups has partitions forget groups that were deleted while they were
// stopped.
func (b *Broker) forgetGroups(ctx context.Context, m *coordinator.Map, t *coordinator.Topic) error {
	r := &leftOut{b: b}
	return r.each(ctx, t, func(ctx context.Context, _ int, id partition.PartitionID) error { return b.forgetGroupsIn(ctx, m, id) })
}

// forgetGroupsIn has one partition forget groups that were deleted while it could
// not be told. Whether a group was deleted, and is not merely unknown to a map that
// is older than it, the order of the numbers tells.
func (b *Broker) forgetGroupsIn(ctx context.Context, m *coordinator.Map, id partition.PartitionID) error {
	kept, err := b.parts.Groups(ctx, id)
	if err != nil {
		return err
	}
	for _, gid := range kept {
		if !m.GroupDeleted(coordinator.GroupID(gid)) {
			continue
		}
		b.log.Info("dropping a group that was deleted", "partition", b.partitionName(id), "group", gid)
		if err := b.parts.DeleteGroup(ctx, id, gid); err != nil {
			return err
		}
	}
	return nil
}

// leadPartition finishes, in a partition that begins to be led here, what its leader
// before may have left: it forgets groups that were deleted, and has the deliveries of
// sessions that ended lapse.
func (b *Broker) leadPartition(ctx context.Context, id partition.PartitionID) error {
	m := b.coord.View()
	at, ok := m.Place(id)
	if !ok || at.Topic.Phase != coordinator.Ready {
		return nil
	}
	if err := b.forgetGroupsIn(ctx, m, id); err != nil {
		return err
	}
	for g := range at.Topic.Groups() {
		if g.Phase != coordinator.Ready {
			continue
		}
		if err := b.findGroupHolders(ctx, at.Topic, g, func(p coordinator.Partition) bool { return p.ID == id }); err != nil {
			return err
		}
	}
	return nil
}

// undone tells of what reconcile could not do. That a leader is away passes, and whoever
// leads next does it: it is no fault of anybody's.
func (b *Broker) undone(what string, err error, args ...any) {
	args = append(args, "err", err)
	switch {
	case b.serving.Err() != nil, errors.Is(err, context.Canceled):
	case passing(err):
		b.log.Info(what+": it is done when the partition has a leader", args...)
	default:
		b.log.Error(what, args...)
	}
}

// passing tells whether a call failed for what passes by itself while nodes come and go.
func passing(err error) bool {
	switch reasonOf(err) {
	case "NOT_LEADER", "NO_QUORUM", "NOT_READY", "OUTCOME_UNKNOWN":
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// reconcile finishes whatever a stop left half done: topics and groups on their
// way in or out, partitions that belong to nothing, partitions that were not told
// of a group because they had stopped. Every step may have been
// done before. What fails is logged and tried again at the next start, or when
// somebody asks for the same thing again: one damaged partition must not keep
// the others from serving.
func (b *Broker) reconcile(ctx context.Context) error {
	m := b.coord.View()
	for _, id := range b.host.Partitions() {
		if _, ok := m.Place(id); id == partition.Metadata || ok || b.far != nil {
			continue // among others nothing goes because a map does not have it
		}
		b.log.Info("dropping a partition that belongs to no topic", "partition", id)
		if err := b.host.Drop(ctx, id); err != nil {
			b.log.Error("cannot drop a partition", "partition", id, "err", err)
		}
	}
	todo := m.Unfinished()
	for _, t := range todo.Topics {
		var err error
		if b.log.Info("finishing a topic", "topic", t.Name, "phase", t.Phase); t.Phase == coordinator.Deleting {
			err = b.removeTopic(ctx, t)
		} else {
			_, err = b.readyTopic(ctx, t)
		}
		if err != nil {
			b.undone("a topic is not finished yet", err, "topic", t.Name, "phase", t.Phase)
		}
	}
	for _, g := range todo.Groups {
		t, ok := m.TopicByID(g.Topic)
		if !ok {
			continue
		}
		var left []*strandmqv1.LeftOut
		var err error
		if b.log.Info("finishing a group", "topic", t.Name, "group", g.Name, "phase", g.Phase); g.Phase == coordinator.Deleting {
			left, err = b.removeGroup(ctx, t, g)
		} else {
			_, left, err = b.readyGroup(ctx, t, g)
		}
		if err != nil {
			b.undone("a group is not finished yet", err, "topic", t.Name, "group", g.Name, "phase", g.Phase)
		}
		for _, l := range left {
			b.log.Warn("a group was finished without a partition", "topic", t.Name, "group", g.Name, "partition", l.GetPartition(), "err", l.GetProblem().GetMessage())
		}
	}
	for t := range b.coord.View().Topics() {
		if t.Phase != coordinator.Ready {
			continue
		}
		if err := b.forgetGroups(ctx, b.coord.View(), t); err != nil {
			b.undone("groups that were deleted are not dropped everywhere yet", err, "topic", t.Name)
		}
	}
	held := map[partition.PartitionID]bool{}
	for _, id := range b.host.Partitions() {
		held[id] = true
	}
	for t := range b.coord.View().Topics() {
		for i, p := range t.Partitions {
			if b.far == nil && t.Phase == coordinator.Ready && !held[p.ID] {
				// A topic in use has all its partitions on disk; an empty one in
				// its place would take lost messages for none.
				return fmt.Errorf("topic %s: partition %d (%v) is in the metadata and not in the store: restore the data folder from a copy", t.Name, i, p.ID)
			}
		}
	}
	return ctx.Err()
}
