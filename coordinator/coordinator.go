// Package coordinator keeps the cluster's metadata and decides who gets which
// partitions.
//
// It owns the map (nodes, topics and their partitions, where replicas are wanted,
// groups and their policy, members, sessions and assignment), which is the state
// of one replicated log, partition.Metadata, and the numbers that are never used
// twice: ids of nodes, topics, partitions, replicas and groups, and sessions. It promises that a map, once seen, never
// changes; that what was answered is in every later map; that the assignment of
// a group covers every partition exactly once, is balanced, and moves as little
// as it can; and that no session ends by time unless the leader listened for a
// full timeout and heard nothing. It refuses to touch messages or deliveries:
// a wrong or stale assignment can cost balance, never order, since safety lives
// in the partitions.
//
//	callers ──► Coordinator ──propose──► metadata log ──apply──► machine
//	  (any goroutine) │ ▲                                  (pure; one goroutine)
//	        heartbeat │ └────────── Map (immutable) ◄────────────────┘
//	                  ▼                                              ▲
//	              expiry: who was heard of when ──expire──► log ─────┘
//	              (leader only, volatile)
//
// Creating or deleting what partitions must know too takes two entries, begin
// and finish, with the partitions' part in between. Who creates does that part;
// after a crash whoever starts the node does it again: see Map.Unfinished.
//
// Where replicas are is the same: the map says where they are wanted, and the
// partitions carry it out (see Partition). What the map does not say is never
// erased.
//
// The parts: assign.go is the pure assignment and placement/ where replicas should
// be, duty/ what nodes do about that, machine*.go the pure state machine, rows*.go its table, expiry.go and
// balance.go the leader's notes of which sessions and nodes were heard of, app.go
// the object that the host drives, and this file and cluster.go the shell for
// callers.
package coordinator

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Host is what the coordinator needs of the partition host. Both methods are
// safe for concurrent use.
type Host interface {
	// Propose returns the result of App.Apply once the command is committed and
	// applied.
	Propose(ctx context.Context, id partition.PartitionID, cmd []byte) (any, error)
	// Post hands an event to App.Event. It does not wait.
	Post(id partition.PartitionID, ev any) error
}

var _ Host = (*partition.Host)(nil)

// Coordinator is the shell: it validates, proposes, and reads maps.
// It has no goroutine and is safe for concurrent use.
//
// Methods that change something return when the change is committed and in the
// map that View returns. Beside the errors they name, they return those of
// Host.Propose; after a *partition.ErrOutcomeUnknown they can be called again: all but
// Join change nothing the second time, and a second Join only ends the session
// of the first.
type Coordinator struct {
	host       Host
	app        *App
	heartbeats *heartbeats
	joins      chan struct{} // full while a node is let in
}

// New makes the shell over a host whose metadata log drives app.
func New(h Host, app *App) *Coordinator {
	return &Coordinator{host: h, app: app, heartbeats: newHeartbeats(app.cfg.SessionTimeout), joins: make(chan struct{}, 1)}
}

// View is the present map.
func (c *Coordinator) View() *Map { return c.app.shown.get().m }

// Watch is the present map, and a channel that is closed when there is a newer.
func (c *Coordinator) Watch() (m *Map, changed <-chan struct{}) {
	v := c.app.shown.get()
	return v.m, v.changed
}

// Bootstrap names the cluster if it has no name yet: id, or a random one where
// id is empty. It returns the cluster as the log has it.
func (c *Coordinator) Bootstrap(ctx context.Context, id string) (Cluster, error) {
	if cl := c.View().Cluster; cl.ID != "" {
		return cl, nil
	}
	var seed [24]byte
	if _, err := io.ReadFull(c.app.cfg.Rand, seed[:]); err != nil {
		return Cluster{}, fmt.Errorf("no randomness for the cluster's id: %w", err)
	}
	if id == "" {
		id = hex.EncodeToString(seed[8:])
	}
	_, err := c.propose(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Bootstrap{Bootstrap: &storagev1.Bootstrap{
		ClusterId: id, TokenSecret: binary.LittleEndian.Uint64(seed[:8]),
	}}})
	if err != nil {
		return Cluster{}, err
	}
	return c.View().Cluster, nil
}

// TopicSpec is a topic to create.
type TopicSpec struct {
	Name       string
	Partitions int // 0: DefaultPartitions, or as many as the topic has that exists
	Config     *strandmqv1.TopicConfig
}

// CreateTopic begins a topic, or finds the one that has the name and the same
// settings. A topic in phase Creating, new or found, needs its partitions
// created and then FinishTopic. Errors: *names.Error, *ErrInvalid, *ErrExists,
// *ErrBusy, *ErrLimit, *ErrReplication, *ErrConflict.
func (c *Coordinator) CreateTopic(ctx context.Context, spec TopicSpec) (t *Topic, existed bool, err error) {
	if err := names.Topic(spec.Name); err != nil {
		return nil, false, err
	}
	if spec.Partitions == 0 {
		spec.Partitions = DefaultPartitions
		if t, ok := c.View().FindTopic(spec.Name); ok {
			spec.Partitions = len(t.Partitions)
		}
	}
	var bad ErrInvalid
	if most := theLimits.topicPartitions; spec.Partitions < 1 || spec.Partitions > most {
		bad.Faults = append(bad.Faults, Fault{"partitions", fmt.Sprintf("use 1 to %d, or 0 for %d", most, DefaultPartitions)})
	}
	cfg, err := DefaultTopicConfig().With(spec.Config)
	if more := (*ErrInvalid)(nil); errors.As(err, &more) {
		bad.Faults = append(bad.Faults, more.Faults...)
	}
	if len(bad.Faults) > 0 {
		return nil, false, &bad
	}
	var seed [8]byte
	if _, err := io.ReadFull(c.app.cfg.Rand, seed[:]); err != nil {
		return nil, false, fmt.Errorf("no randomness for the topic's hash seed: %w", err)
	}
	create := &storagev1.CreateTopic{
		Name: spec.Name, Partitions: uint32(spec.Partitions), Seed: binary.LittleEndian.Uint64(seed[:]), Config: cfg.Proto(),
	}
	r, err := c.createPlaced(ctx, create, cfg.Replication)
	if err != nil {
		return nil, false, err
	}
	return r.topic, r.existed, nil
}

// FinishTopic says that every partition of the topic exists. Errors:
// *ErrNotFound, *ErrBusy when it is being deleted.
func (c *Coordinator) FinishTopic(ctx context.Context, id TopicID) (*Topic, error) {
	return c.topic(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishTopic{FinishTopic: &storagev1.FinishTopic{TopicId: uint64(id)}}})
}

// AlterTopic changes the settings that are set in change. Errors: *ErrNotFound,
// *ErrBusy, *ErrInvalid, *ErrReplication.
func (c *Coordinator) AlterTopic(ctx context.Context, name string, change *strandmqv1.TopicConfig) (*Topic, error) {
	t, err := c.View().Topic(name)
	if err != nil {
		return nil, err
	}
	if _, err := t.Config.With(change); err != nil {
		return nil, err
	}
	return c.topic(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_AlterTopic{AlterTopic: &storagev1.AlterTopic{
		TopicId: uint64(t.ID), Config: change,
	}}})
}

// DeleteTopic begins to delete a topic; confirm is its name again. From then on
// its groups have no members, and every partition must be dropped before
// RemoveTopic. Errors: *ErrNotFound, *ErrConfirm.
func (c *Coordinator) DeleteTopic(ctx context.Context, name, confirm string) (*Topic, error) {
	t, ok := c.View().FindTopic(name)
	if !ok {
		return nil, &ErrNotFound{Kind: KindTopic, Name: name}
	}
	if confirm != name {
		return nil, &ErrConfirm{Kind: KindTopic, Name: name, Given: confirm}
	}
	return c.topic(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_DeleteTopic{DeleteTopic: &storagev1.DeleteTopic{TopicId: uint64(t.ID)}}})
}

// RemoveTopic says that every partition of a topic in phase Deleting is gone.
// Removing what is not there succeeds.
func (c *Coordinator) RemoveTopic(ctx context.Context, id TopicID) error {
	_, err := c.propose(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_RemoveTopic{RemoveTopic: &storagev1.RemoveTopic{TopicId: uint64(id)}}})
	return err
}

// GroupSpec is a group to create.
type GroupSpec struct {
	Topic  string
	Name   string
	Policy *strandmqv1.GroupPolicy   // all filled in and valid: see consumer.Policy
	Start  *strandmqv1.StartPosition // nil: the earliest
}

// CreateGroup begins a group, or finds the one that has the name and the same
// policy. A group in phase Creating, new or found, must be logged by every
// partition and then FinishGroup called with its Revision. Errors: *names.Error,
// *ErrNotFound, *ErrExists, *ErrBusy, *ErrLimit.
func (c *Coordinator) CreateGroup(ctx context.Context, spec GroupSpec) (g *Group, existed bool, err error) {
	if err := names.Group(spec.Name); err != nil {
		return nil, false, err
	}
	t, err := c.View().Topic(spec.Topic)
	if err != nil {
		return nil, false, err
	}
	r, err := c.propose(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_CreateGroup{CreateGroup: &storagev1.CreateGroup{
		TopicId: uint64(t.ID), Name: spec.Name, Policy: spec.Policy, Start: spec.Start,
	}}})
	if err != nil {
		return nil, false, err
	}
	return r.group, r.existed, nil
}

// alterTries is how often AlterGroup, or the placing of a topic, starts over when
// others overtake it.
const alterTries = 10

// AlterGroup changes a group's policy: edit gets a copy of the present policy
// to change, may be called several times, and its error ends the matter. When
// nothing changed, neither does the revision. Otherwise every partition must
// log the new policy, and then FinishGroup be called with the group's Revision.
// Errors: *ErrNotFound, *ErrBusy, *ErrConflict.
func (c *Coordinator) AlterGroup(ctx context.Context, topic, name string, edit func(policy *strandmqv1.GroupPolicy) error) (*Group, error) {
	for range alterTries {
		_, g, err := c.View().Group(topic, name)
		if err != nil {
			return nil, err
		}
		policy := proto.CloneOf(g.Policy)
		if err := edit(policy); err != nil {
			return nil, err
		}
		g, err = c.group(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_AlterGroup{AlterGroup: &storagev1.AlterGroup{
			GroupId: uint64(g.ID), Revision: g.Revision, Policy: policy,
		}}})
		if conflict := (*ErrConflict)(nil); errors.As(err, &conflict) {
			continue
		}
		return g, err
	}
	return nil, &ErrConflict{Kind: KindGroup, Name: name}
}

// SetPaused pauses or resumes a group. Unless it was so already, every
// partition must log it, and then FinishGroup be called with the group's
// Revision. Errors: *ErrNotFound, *ErrBusy.
func (c *Coordinator) SetPaused(ctx context.Context, topic, name string, paused bool) (*Group, error) {
	_, g, err := c.View().Group(topic, name)
	if err != nil {
		return nil, err
	}
	return c.group(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_PauseGroup{PauseGroup: &storagev1.PauseGroup{
		GroupId: uint64(g.ID), Paused: paused,
	}}})
}

// SomeLogged is the revision of FinishGroup when there are partitions that could
// not be told: the group is in use, and what it changed is still to be logged.
const SomeLogged = 0

// FinishGroup says that every partition has logged this revision of the group.
// Errors: *ErrNotFound, *ErrBusy when it is being deleted.
func (c *Coordinator) FinishGroup(ctx context.Context, id GroupID, revision uint64) (*Group, error) {
	return c.group(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishGroup{FinishGroup: &storagev1.FinishGroup{
		GroupId: uint64(id), Revision: revision,
	}}})
}

// DeleteGroup begins to delete a group; confirm is its name again. From then on
// it has no members, and every partition must forget it before RemoveGroup.
// Errors: *ErrNotFound, *ErrBusy when its topic is being deleted, *ErrConfirm.
func (c *Coordinator) DeleteGroup(ctx context.Context, topic, name, confirm string) (*Group, error) {
	t, err := c.View().Topic(topic)
	if err != nil {
		return nil, err
	}
	g, ok := t.FindGroup(name)
	if !ok {
		return nil, &ErrNotFound{Kind: KindGroup, Name: name, Topic: topic}
	}
	if confirm != name {
		return nil, &ErrConfirm{Kind: KindGroup, Name: name, Given: confirm}
	}
	return c.group(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_DeleteGroup{DeleteGroup: &storagev1.DeleteGroup{GroupId: uint64(g.ID)}}})
}

// RemoveGroup says that every partition has forgotten a group in phase
// Deleting. Removing what is not there succeeds.
func (c *Coordinator) RemoveGroup(ctx context.Context, id GroupID) error {
	_, err := c.propose(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_RemoveGroup{RemoveGroup: &storagev1.RemoveGroup{GroupId: uint64(id)}}})
	return err
}

func (c *Coordinator) topic(ctx context.Context, cmd *storagev1.MetadataCommand) (*Topic, error) {
	r, err := c.propose(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return r.topic, nil
}

func (c *Coordinator) group(ctx context.Context, cmd *storagev1.MetadataCommand) (*Group, error) {
	r, err := c.propose(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return r.group, nil
}

// propose sends a command through the log and returns what apply made of it, or
// apply's refusal.
func (c *Coordinator) propose(ctx context.Context, cmd *storagev1.MetadataCommand) (*result, error) {
	b, err := c.app.encode(cmd, c.app.cfg.Now())
	if err != nil {
		return nil, err
	}
	res, err := c.host.Propose(ctx, partition.Metadata, b)
	if err != nil {
		return nil, err
	}
	r, ok := res.(*result)
	if !ok {
		return nil, fmt.Errorf("the metadata log answered a %T", res)
	}
	return r, r.err
}
