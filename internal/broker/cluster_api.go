package broker

import (
	"context"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/coordinator/placement"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// clusterAPI is strandmq.v1.ClusterService. All of it is written down in the
// metadata; who carries it out are the nodes.
type clusterAPI struct{ b *Broker }

// DescribeCluster gives the nodes and what is on the move.
func (a clusterAPI) DescribeCluster(context.Context, *strandmqv1.DescribeClusterRequest) (*strandmqv1.DescribeClusterResponse, error) {
	m := a.b.coord.View()
	if len(a.b.missing(partition.Metadata)) > 0 {
		return a.b.clusterHere(m), nil
	}
	res := &strandmqv1.DescribeClusterResponse{Cluster: m.Cluster.ID, Moving: movingProto(m), Stuck: stuckProto(m, a.b.coord.Plan().Stuck)}
	held := m.Held()
	for n := range m.Nodes() {
		if n.State != coordinator.Removed {
			res.Nodes = append(res.Nodes, a.b.nodeProto(n, held[n.ID]))
		}
	}
	return res, nil
}

// clusterHere is the cluster as this node knows it, while nobody leads the metadata
// log.
func (b *Broker) clusterHere(m *coordinator.Map) *strandmqv1.DescribeClusterResponse {
	_, h := maybeBehind(context.Background())
	h.note(partition.Metadata)
	res := &strandmqv1.DescribeClusterResponse{Cluster: m.Cluster.ID, Moving: movingProto(m), Behind: h.words(b)}
	held := m.Held()
	for n := range m.Nodes() {
		if n.State != coordinator.Removed {
			out := b.nodeProto(n, held[n.ID])
			b.seen(out)
			res.Nodes = append(res.Nodes, out)
		}
	}
	return res
}

// tokenTime is how long a join token can be used unless the caller says.
const tokenTime = partition.Millis(time.Hour / time.Millisecond)

// CreateJoinToken makes a token, and the cluster's authority with the first.
func (a clusterAPI) CreateJoinToken(ctx context.Context, req *strandmqv1.CreateJoinTokenRequest) (*strandmqv1.CreateJoinTokenResponse, error) {
	valid := partition.Millis(req.GetValidMs())
	if valid == 0 {
		valid = tokenTime
	}
	text, t, err := a.b.joinToken(ctx, valid)
	if err != nil {
		return nil, err
	}
	return &strandmqv1.CreateJoinTokenResponse{Token: text, Expires: timestamp(int64(t.Expires))}, nil
}

// nodeID checks a node's number.
func nodeID(n uint64) (partition.NodeID, error) {
	if n == 0 || n > 1<<32-1 {
		return 0, refuse("BAD_VALUE", "node", "node %d: use 1 to 4,294,967,295", n)
	}
	return partition.NodeID(n), nil
}

// DrainNode has what a node holds go elsewhere, or ends that.
func (a clusterAPI) DrainNode(ctx context.Context, req *strandmqv1.DrainNodeRequest) (*strandmqv1.DrainNodeResponse, error) {
	id, err := nodeID(req.GetNode())
	if err != nil {
		return nil, err
	}
	res := &strandmqv1.DrainNodeResponse{}
	if !req.GetUndo() {
		if err := a.b.coord.CheckDrain(id); err != nil {
			return nil, err
		}
		plan, err := a.b.coord.PlanWithout(id, false)
		if err != nil {
			return nil, err
		}
		m := a.b.coord.View()
		res.Moves, res.Stuck = movesProto(m, plan.Moves), stuckProto(m, plan.Stuck)
	}
	if !req.GetDryRun() {
		if _, err := a.b.coord.DrainNode(ctx, id, !req.GetUndo()); err != nil {
			return nil, err
		}
	}
	res.Node, err = a.b.nodeNow(id)
	return res, err
}

// ReplaceNode gives up what a node holds.
func (a clusterAPI) ReplaceNode(ctx context.Context, req *strandmqv1.ReplaceNodeRequest) (*strandmqv1.ReplaceNodeResponse, error) {
	id, err := nodeID(req.GetNode())
	if err != nil {
		return nil, err
	}
	if err := a.b.coord.CheckLose(id); err != nil {
		return nil, err
	}
	if ms, known := a.b.coord.Silent(id); known && ms == 0 {
		return nil, refuse("NODE_HOLDS", "node", "node %v is there, and nothing of it needs to be given up: drain it, or stop it first if its disk is lost", id)
	}
	plan, err := a.b.coord.PlanWithout(id, true)
	if err != nil {
		return nil, err
	}
	m := a.b.coord.View()
	res := &strandmqv1.ReplaceNodeResponse{Moves: movesProto(m, plan.Moves), Stuck: stuckProto(m, plan.Stuck)}
	if !req.GetDryRun() {
		if _, err := a.b.coord.LoseNode(ctx, id, req.GetConfirm()); err != nil {
			return nil, err
		}
	}
	res.Node, err = a.b.nodeNow(id)
	return res, err
}

// RemoveNode takes a node out of the cluster.
func (a clusterAPI) RemoveNode(ctx context.Context, req *strandmqv1.RemoveNodeRequest) (*strandmqv1.RemoveNodeResponse, error) {
	id, err := nodeID(req.GetNode())
	if err != nil {
		return nil, err
	}
	if err := a.b.coord.CheckRemove(id); err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		if _, err := a.b.coord.RemoveNode(ctx, id, req.GetConfirm()); err != nil {
			return nil, err
		}
	}
	res := &strandmqv1.RemoveNodeResponse{}
	res.Node, err = a.b.nodeNow(id)
	return res, err
}

// MovePartition says where a partition is to be.
func (a clusterAPI) MovePartition(ctx context.Context, req *strandmqv1.MovePartitionRequest) (*strandmqv1.MovePartitionResponse, error) {
	if err := names.Topic(req.GetTopic()); err != nil {
		return nil, inField(err, "topic")
	}
	t, err := a.b.topic(req.GetTopic())
	if err != nil {
		return nil, err
	}
	id, err := t.number(req.GetPartition())
	if err != nil {
		return nil, err
	}
	nodes := make([]partition.NodeID, len(req.GetNodes()))
	for i, n := range req.GetNodes() {
		if nodes[i], err = nodeID(n); err != nil {
			return nil, err
		}
	}
	if err := a.b.coord.CheckPlace(id, nodes); err != nil {
		return nil, err
	}
	// Otherwise the cluster would undo it at once, or take copies that nobody meant.
	if want, err := a.b.coord.Wanted(id); err == nil && want != len(nodes) {
		return nil, refuse("REPLICATION", "nodes", "topic %s has a replication of %d, and the nodes that are named are %d: name as many, or change it with 'topic alter %s --replication %d'",
			t.Name, want, len(nodes), t.Name, len(nodes))
	}
	before := t.Partitions[req.GetPartition()].Nodes()
	if !req.GetDryRun() {
		if _, err := a.b.coord.Place(ctx, id, nodes); err != nil {
			return nil, err
		}
	}
	move := placement.Move{Partition: id, From: before, To: nodes}
	return &strandmqv1.MovePartitionResponse{Move: moveProto(a.b.coord.View(), move)}, nil
}
