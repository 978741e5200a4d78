package broker

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/coordinator/placement"
	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// joinToken makes a token that one node can join with. The first one makes the
// authority that signs the nodes' certificates; of two at once one is kept.
func (b *Broker) joinToken(ctx context.Context, valid partition.Millis) (string, *coordinator.JoinToken, error) {
	m := b.coord.View()
	if !listens(m) {
		return "", nil, refuse("NO_PEERS", "", "no node of this cluster listens for other nodes, so none can join it")
	}
	own := m.Cluster.Authority
	if len(own.Certificate) == 0 {
		made, err := peer.NewAuthority(m.Cluster.ID)
		if err != nil {
			return "", nil, err
		}
		cert, key := made.PEM()
		if own, err = b.coord.SetAuthority(ctx, coordinator.Authority{Certificate: cert, Key: key}); err != nil {
			return "", nil, err
		}
	}
	token, err := peer.NewToken(own.Certificate)
	if err != nil {
		return "", nil, err
	}
	t, err := b.coord.CreateJoinToken(ctx, peer.Hash(token.Secret[:]), valid)
	if err != nil {
		return "", nil, err
	}
	return token.String(), t, nil
}

// listens tells whether another node could reach one of the cluster.
func listens(m *coordinator.Map) bool {
	for n := range m.Nodes() {
		if n.Peer != "" && (n.State == coordinator.Active || n.State == coordinator.Draining) {
			return true
		}
	}
	return false
}

// nodeNow is a node as it is now.
func (b *Broker) nodeNow(id partition.NodeID) (*strandmqv1.ClusterNode, error) {
	m := b.coord.View()
	n, ok := m.Node(id)
	if !ok {
		return nil, &coordinator.ErrNotFound{Kind: coordinator.KindNode, Name: id.String()}
	}
	return b.nodeProto(n, m.Held()[id]), nil
}

func (b *Broker) nodeProto(n *coordinator.Node, held coordinator.Held) *strandmqv1.ClusterNode {
	out := &strandmqv1.ClusterNode{
		Node: uint64(n.ID), State: strandmqv1.ClusterNodeState(n.State), PeerAddress: n.Peer, ApiAddress: n.API, Zone: n.Zone,
		Joined:   timestampOrNil(int64(n.Joined)),
		Replicas: uint32(held.Replicas), Leads: uint32(held.Leads), Leaving: uint32(held.Leaving), Votes: held.Votes,
	}
	if n.ID == b.cfg.Node && out.ApiAddress == "" {
		out.ApiAddress = b.URL()
	}
	// Nobody listens any more for one that is given up.
	if ms, known := b.coord.Silent(n.ID); known && n.State != coordinator.Lost {
		out.SilentMs = proto.Int64(int64(ms))
	}
	events, _ := b.coord.Events()
	if at, ok := events.Stopped(n.ID); ok && (out.SilentMs == nil || out.GetSilentMs() > 0) {
		out.Stopped = timestamp(int64(at))
	}
	return out
}

// placeOf names a partition as callers know it; the metadata log has no name.
func placeOf(m *coordinator.Map, id partition.PartitionID) (topic string, number uint32) {
	if at, ok := m.Place(id); ok {
		return at.Topic.Name, uint32(at.Number)
	}
	return "", 0
}

func nodeNumbers(nodes []partition.NodeID) []uint64 {
	out := make([]uint64, len(nodes))
	for i, n := range nodes {
		out[i] = uint64(n)
	}
	return out
}

func movesProto(m *coordinator.Map, moves []placement.Move) (out []*strandmqv1.PartitionMove) {
	for _, mv := range moves {
		out = append(out, moveProto(m, mv))
	}
	return out
}

func moveProto(m *coordinator.Map, mv placement.Move) *strandmqv1.PartitionMove {
	leaving := slices.DeleteFunc(slices.Clone(mv.From), func(n partition.NodeID) bool { return slices.Contains(mv.To, n) })
	out := &strandmqv1.PartitionMove{Leaving: nodeNumbers(leaving), Nodes: nodeNumbers(mv.To), Why: string(mv.Why)}
	out.Topic, out.Partition = placeOf(m, mv.Partition)
	return out
}

func stuckProto(m *coordinator.Map, stuck []placement.Stuck) (out []*strandmqv1.StuckPartition) {
	for _, s := range stuck {
		one := &strandmqv1.StuckPartition{Why: string(s.Why), Needs: s.Needs}
		one.Topic, one.Partition = placeOf(m, s.Partition)
		out = append(out, one)
	}
	return out
}

// movingProto lists what is not yet where it is wanted.
func movingProto(m *coordinator.Map) (out []*strandmqv1.PartitionMove) {
	for p := range m.Partitions() {
		again := p.Rebuild.ID.Node()
		if !p.Moving() && again == 0 {
			continue
		}
		one := &strandmqv1.PartitionMove{Nodes: nodeNumbers(p.Nodes()), Why: rebuildText(p)}
		if _, fed := p.Replica(again); again != 0 && !fed {
			one.Nodes = append(one.Nodes, uint64(again)) // when the damaged one is erased
		}
		one.Topic, one.Partition = placeOf(m, p.ID)
		for _, l := range p.Leaving {
			if !l.Out && l.ID != p.Rebuild.ID {
				one.Leaving = append(one.Leaving, uint64(l.ID.Node()))
			}
		}
		out = append(out, one)
	}
	return out
}
