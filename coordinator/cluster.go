package coordinator

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/strandmq/strandmq/coordinator/placement"
	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// Reached tells the leader of the metadata log that a node came or went, as this
// node sees it. Who begins to lead that log is told of every node once.
func (c *Coordinator) Reached(n partition.NodeID, up bool) error {
	return c.host.Post(partition.Metadata, reached{node: n, up: up})
}

// Silent is how long the leader of the metadata log, if that is this node, has not
// heard of a node: 0 while it is there. ok is false where it is not known.
func (c *Coordinator) Silent(n partition.NodeID) (ms partition.Millis, ok bool) {
	since := c.app.silent.Load()
	if since == nil {
		return 0, false
	}
	return silentFor(*since, c.app.cfg.Now())(n), true
}

// picture is the cluster as it is now. Where this node does not know who is there,
// all are taken to be.
func (c *Coordinator) picture(m *Map) placement.Picture { return picture(m, c.silences()) }

// silences is how long each node was not heard of.
func (c *Coordinator) silences() func(partition.NodeID) partition.Millis {
	var since map[partition.NodeID]partition.Millis
	if p := c.app.silent.Load(); p != nil {
		since = *p
	}
	return silentFor(since, c.app.cfg.Now())
}

// Plan is what would be placed anew now, and what cannot be.
func (c *Coordinator) Plan() placement.Plan {
	return placement.Make(c.picture(c.View()), c.app.cfg.Balance)
}

// PlanWithout is what would be moved off a node, in the end and not at once, if it
// were drained or, as lost, its disk were gone; and what could not be. Error:
// *ErrNotFound.
func (c *Coordinator) PlanWithout(n partition.NodeID, lost bool) (placement.Plan, error) {
	m := c.View()
	if _, ok := m.Node(n); !ok {
		return placement.Plan{}, &ErrNotFound{Kind: KindNode, Name: n.String()}
	}
	pic := c.picture(m)
	for i := range pic.Nodes {
		if pic.Nodes[i].ID == n {
			pic.Nodes[i].Draining = true
		}
	}
	if lost {
		pic.Nodes = slices.DeleteFunc(pic.Nodes, func(x placement.Node) bool { return x.ID == n })
	}
	opt := c.app.cfg.Balance
	opt.Moves, opt.Leads = max(len(pic.Partitions), 1), max(len(pic.Partitions), 1)
	plan := placement.Make(pic, opt)
	// Whatever else there is to do is not what was asked for.
	elsewhere := func(id partition.PartitionID) bool {
		p, _ := m.Partition(id)
		_, on := p.Replica(n)
		return !on
	}
	plan.Moves = slices.DeleteFunc(plan.Moves, func(mv placement.Move) bool { return elsewhere(mv.Partition) })
	plan.Stuck = slices.DeleteFunc(plan.Stuck, func(s placement.Stuck) bool { return elsewhere(s.Partition) })
	return plan, nil
}

// createPlaced proposes a topic with its replicas placed, and again when a node
// that was chosen goes meanwhile.
func (c *Coordinator) createPlaced(ctx context.Context, create *storagev1.CreateTopic, replication int) (*result, error) {
	for range alterTries {
		create.Placements = nil
		m := c.View()
		_, exists := m.FindTopic(create.Name)
		if len(m.nodes) > 0 && !exists {
			want := placement.Wanted(replication, 0, m.active())
			silent := c.silences()
			placed, err := placement.Initial(picture(m, silent), uint64(m.nextPartition), int(create.Partitions), want)
			if few := (*placement.ErrTooFew)(nil); errors.As(err, &few) {
				not := &ErrReplication{Want: few.Want, Nodes: few.Active, There: few.There}
				if few.Active >= few.Want { // else it would not help to hear of them
					not.Unheard = unheard(m, silent)
				}
				return nil, not
			}
			if err != nil {
				return nil, err
			}
			for _, nodes := range placed {
				list := &storagev1.NodeList{}
				for _, n := range nodes {
					list.Nodes = append(list.Nodes, uint64(n))
				}
				create.Placements = append(create.Placements, list)
			}
		}
		r, err := c.propose(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_CreateTopic{CreateTopic: create}})
		if conflict := (*ErrConflict)(nil); errors.As(err, &conflict) {
			continue
		}
		return r, err
	}
	return nil, &ErrConflict{Kind: KindTopic, Name: create.Name}
}

// SetAuthority gives the cluster its authority if it has none, and answers the one
// that it has. Error: *ErrInvalid.
func (c *Coordinator) SetAuthority(ctx context.Context, a Authority) (Authority, error) {
	_, err := c.propose(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_SetAuthority{SetAuthority: &storagev1.SetAuthority{
		Certificate: a.Certificate, Key: a.Key,
	}}})
	return c.View().Cluster.Authority, err
}

// Found writes down this node as the one that the cluster began with, if it has
// none yet, and otherwise says where it is, as UpdateNode does. A node that others
// cannot reach says nothing new but what it applies. Errors: *ErrInvalid,
// *ErrNodeActive, *ErrOldBoot, *ErrOldRules, *ErrNodeGone, *ErrNotFound.
func (c *Coordinator) Found(ctx context.Context, at Address, earlier ...Start) (*Node, error) {
	id := c.app.cfg.Node
	m := c.View()
	if len(m.nodes) == 0 {
		return c.node(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_AddNode{AddNode: &storagev1.AddNode{Node: uint64(id), Address: at.proto(), Earlier: startsProto(earlier)}}})
	}
	if n, ok := m.Node(id); ok && at.Peer == "" && n.Peer == "" && n.Store == at.Store && n.Rules == at.Rules && n.State != Lost && n.State != Removed {
		return n, nil
	}
	return c.UpdateNode(ctx, id, at, earlier...)
}

func startsProto(list []Start) (out []*storagev1.NodeStart) {
	for _, s := range list {
		out = append(out, &storagev1.NodeStart{Boot: s.Boot, Life: s.Life})
	}
	return out
}

// AddNode lets a node in by a join token. The same store again is the same node.
// Errors: *ErrInvalid, *ErrToken, *ErrNodeGone, *ErrOldBoot, *ErrOldRules, *ErrLimit,
// *ErrPeerTaken.
func (c *Coordinator) AddNode(ctx context.Context, token TokenHash, at Address, earlier ...Start) (*Node, error) {
	// Here and not by the machine: it needs no new rules, and of the address nothing
	// depends but that the others find the node. One after the other, so that of two
	// with one address the second sees the first.
	select {
	case c.joins <- struct{}{}:
		defer func() { <-c.joins }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := c.View().peerTaken(at); err != nil {
		return nil, err
	}
	return c.node(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_AddNode{AddNode: &storagev1.AddNode{TokenHash: token[:], Address: at.proto(), Earlier: startsProto(earlier)}}})
}

// UpdateNode says where a node is, at its start. earlier are the starts of its store
// before this one, as far as it knows them; without the last that is known here it
// is a copy. Errors: *ErrInvalid, *ErrNotFound, *ErrNodeGone, *ErrNodeActive,
// *ErrOldBoot, *ErrOldRules.
func (c *Coordinator) UpdateNode(ctx context.Context, id partition.NodeID, at Address, earlier ...Start) (*Node, error) {
	if n, ok := c.View().Node(id); ok && n.Address == at {
		return n, nil
	}
	return c.node(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_UpdateNode{UpdateNode: &storagev1.UpdateNode{Node: uint64(id), Address: at.proto(), Earlier: startsProto(earlier)}}})
}

// DrainNode has what a node holds go elsewhere, or ends that. Errors:
// *ErrNotFound, *ErrNodeGone, *ErrLastNode.
func (c *Coordinator) DrainNode(ctx context.Context, id partition.NodeID, draining bool) (*Node, error) {
	return c.node(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_DrainNode{DrainNode: &storagev1.DrainNode{Node: uint64(id), Draining: draining}}})
}

// LoseNode gives up what a node holds, for good: its disk is lost. Its replicas
// are made anew at once, and then it is removed. confirm is its name again.
// Errors: *ErrNotFound, *ErrConfirm, *ErrLastNode, *ErrNodeGone, *ErrNodeHolds.
func (c *Coordinator) LoseNode(ctx context.Context, id partition.NodeID, confirm string) (*Node, error) {
	if err := c.confirmNode(id, confirm); err != nil {
		return nil, err
	}
	return c.node(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_LoseNode{LoseNode: &storagev1.LoseNode{Node: uint64(id)}}})
}

// RemoveNode takes a node that holds nothing out of the cluster. confirm is its
// name again. Errors: *ErrNotFound, *ErrConfirm, *ErrLastNode, *ErrNodeHolds.
func (c *Coordinator) RemoveNode(ctx context.Context, id partition.NodeID, confirm string) (*Node, error) {
	if err := c.confirmNode(id, confirm); err != nil {
		return nil, err
	}
	return c.node(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_RemoveNode{RemoveNode: &storagev1.RemoveNode{Node: uint64(id)}}})
}

func (c *Coordinator) confirmNode(id partition.NodeID, confirm string) error {
	if _, ok := c.View().Node(id); !ok {
		return &ErrNotFound{Kind: KindNode, Name: id.String()}
	}
	if confirm != id.String() {
		return &ErrConfirm{Kind: KindNode, Name: id.String(), Given: confirm}
	}
	return nil
}

// CheckLose tells what LoseNode would say, and changes nothing.
func (c *Coordinator) CheckLose(id partition.NodeID) error {
	return c.dry(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_LoseNode{LoseNode: &storagev1.LoseNode{Node: uint64(id)}}})
}

// CheckRemove tells what RemoveNode would say, and changes nothing.
func (c *Coordinator) CheckRemove(id partition.NodeID) error {
	return c.dry(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_RemoveNode{RemoveNode: &storagev1.RemoveNode{Node: uint64(id)}}})
}

// CheckDrain tells what DrainNode would say, and changes nothing.
func (c *Coordinator) CheckDrain(id partition.NodeID) error {
	return c.dry(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_DrainNode{DrainNode: &storagev1.DrainNode{Node: uint64(id), Draining: true}}})
}

// CheckPlace tells what Place would say, and changes nothing.
func (c *Coordinator) CheckPlace(id partition.PartitionID, nodes []partition.NodeID) error {
	cmd, err := c.placing(id, nodes)
	if err != nil {
		return err
	}
	return c.dry(cmd)
}

// dry applies a command to a machine that is thrown away. Maps are immutable, so
// it may begin with the one that readers have.
func (c *Coordinator) dry(cmd *storagev1.MetadataCommand) error {
	now := c.app.cfg.Now()
	b, err := c.app.encode(cmd, now)
	if err != nil {
		return err
	}
	mc := newMachine()
	mc.m, mc.newest = c.View(), c.app.cfg.Rules
	r, err := mc.apply(partition.Index(mc.m.Revision+1), b)
	if err != nil {
		return err
	}
	return r.err
}

// CreateJoinToken remembers a token that one node can join with, for so long, by
// the hash of its secret. Errors: *ErrInvalid, *ErrLimit.
func (c *Coordinator) CreateJoinToken(ctx context.Context, hash TokenHash, valid partition.Millis) (*JoinToken, error) {
	if valid <= 0 || valid > maxTokenLife {
		return nil, &ErrInvalid{Faults: []Fault{{"valid_ms", validTime}}}
	}
	// The log's clock may be ahead of this node's: another one's was.
	now := max(c.app.cfg.Now(), partition.Millis(c.app.clock.Load()))
	r, err := c.propose(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_CreateJoinToken{CreateJoinToken: &storagev1.CreateJoinToken{
		Hash: hash[:], ExpiresMs: int64(now + valid),
	}}})
	if err != nil {
		return nil, err
	}
	return r.token, nil
}

// Place says where replicas of a partition are wanted: 1, 3 or 5 nodes, the first
// to lead. Errors: *ErrInvalid, *ErrNotFound, *ErrNotActive, *ErrErasing, *ErrBusy,
// *ErrConflict.
func (c *Coordinator) Place(ctx context.Context, id partition.PartitionID, nodes []partition.NodeID) (*Partition, error) {
	cmd, err := c.placing(id, nodes)
	if err != nil {
		return nil, err
	}
	return c.place(ctx, cmd)
}

// Wanted is how many replicas a partition of a topic is to have. Error: *ErrNotFound.
func (c *Coordinator) Wanted(id partition.PartitionID) (int, error) {
	m := c.View()
	p, ok := m.Partition(id)
	at, known := m.Place(id)
	if !ok || !known {
		return 0, &ErrNotFound{Kind: KindPartition, Name: id.String()}
	}
	return placement.Wanted(at.Topic.Config.Replication, p.replicas(), m.active()), nil
}

func (c *Coordinator) placing(id partition.PartitionID, nodes []partition.NodeID) (*storagev1.MetadataCommand, error) {
	p, ok := c.View().Partition(id)
	if !ok {
		return nil, &ErrNotFound{Kind: KindPartition, Name: id.String()}
	}
	return &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_PlaceReplicas{PlaceReplicas: &storagev1.PlaceReplicas{
		Placements: []*storagev1.Placement{placementOf(p, nodes)},
	}}}, nil
}

// Settle says that the voters of a partition are those that a placement of it
// wanted, and that those it took the vote from have none. The partition's leader
// says so. Errors: *ErrNotFound, *ErrConflict when it was placed anew meanwhile.
func (c *Coordinator) Settle(ctx context.Context, id partition.PartitionID, placement uint64) (*Partition, error) {
	return c.place(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_SettleReplicas{SettleReplicas: &storagev1.SettleReplicas{
		Settled: []*storagev1.Settled{{PartitionId: uint64(id), Placement: placement}},
	}}})
}

// Left says that a replica that is Out is erased from its node's disk. The node
// says so. Saying it again succeeds. Error: *ErrInvalid for one that is not out.
func (c *Coordinator) Left(ctx context.Context, id partition.PartitionID, r partition.ReplicaID) error {
	_, err := c.propose(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_LeftReplica{LeftReplica: &storagev1.LeftReplica{
		PartitionId: uint64(id), Replica: uint64(r),
	}}})
	return err
}

// Damaged says that a replica on a node cannot be trusted any more: it leaves, is
// erased when its vote is taken, and another one takes its place on that node. The node
// says so. Saying it again succeeds. Errors: *ErrNotFound, *ErrBusy, *ErrConflict where it
// cannot be made anew now (Partition.NoRebuild).
func (c *Coordinator) Damaged(ctx context.Context, id partition.PartitionID, r partition.ReplicaID, why string) (*Partition, error) {
	return c.place(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_DamagedReplica{DamagedReplica: &storagev1.DamagedReplica{
		PartitionId: uint64(id), Replica: uint64(r), Why: strings.ToValidUTF8(why, "?"),
	}}})
}

func (c *Coordinator) node(ctx context.Context, cmd *storagev1.MetadataCommand) (*Node, error) {
	r, err := c.propose(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return r.node, nil
}

func (c *Coordinator) place(ctx context.Context, cmd *storagev1.MetadataCommand) (*Partition, error) {
	r, err := c.propose(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return r.place, nil
}
