package coordinator

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

func partitionRow(p *Partition) *storagev1.PartitionRow {
	row := &storagev1.PartitionRow{
		Id: uint64(p.ID), HashFirst: p.Range.First, HashLast: p.Range.Last,
		Placement: p.Placement, Settled: p.Settled,
		NextIncarnation: p.nextIncarnation, SettledIncarnation: p.settledIncarnation,
	}
	for _, r := range p.Replicas {
		row.Replicas = append(row.Replicas, uint64(r))
	}
	for _, l := range p.Leaving {
		row.Leaving = append(row.Leaving, &storagev1.LeavingRow{Replica: uint64(l.ID), Out: l.Out})
	}
	if p.Rebuild.ID != 0 {
		row.Rebuild = &storagev1.RebuildRow{Replica: uint64(p.Rebuild.ID), Why: p.Rebuild.Why}
	}
	return row
}

// takePartition takes all but the hashes, which are checked together.
func takePartition(row *storagev1.PartitionRow) (Partition, error) {
	p := Partition{
		ID: partition.PartitionID(row.GetId()), Placement: row.GetPlacement(), Settled: row.GetSettled(),
		nextIncarnation: row.GetNextIncarnation(), settledIncarnation: row.GetSettledIncarnation(),
		Rebuild: Rebuild{ID: partition.ReplicaID(row.GetRebuild().GetReplica()), Why: row.GetRebuild().GetWhy()},
	}
	var nodes []partition.NodeID
	take := func(r uint64) (partition.ReplicaID, error) {
		id := partition.ReplicaID(r)
		if id.Node() == 0 || slices.Contains(nodes, id.Node()) {
			return 0, fmt.Errorf("replica %v of %v", id, p.ID)
		}
		nodes = append(nodes, id.Node())
		return id, nil
	}
	for _, r := range row.GetReplicas() {
		id, err := take(r)
		if err != nil {
			return p, err
		}
		p.Replicas = append(p.Replicas, id)
	}
	for _, l := range row.GetLeaving() {
		id, err := take(l.GetReplica())
		if err != nil {
			return p, err
		}
		p.Leaving = append(p.Leaving, Leaving{ID: id, Out: l.GetOut()})
	}
	return p, nil
}

func (mc *machine) takeAuthority(value []byte) error {
	var row storagev1.AuthorityRow
	if err := proto.Unmarshal(value, &row); err != nil {
		return err
	}
	mc.m.Cluster.Authority = Authority{Certificate: row.Certificate, Key: row.Key}
	return nil
}

func (mc *machine) takeNode(value []byte) error {
	var row storagev1.NodeRow
	if err := proto.Unmarshal(value, &row); err != nil {
		return err
	}
	at, err := addressOf(row.Address)
	if err != nil {
		return err
	}
	n := &Node{ID: partition.NodeID(row.Id), State: NodeState(row.State), Joined: partition.Millis(row.JoinedMs), Address: at}
	if n.ID == 0 || n.ID > math.MaxUint32 || n.State < Active || n.State > Removed {
		return fmt.Errorf("node %v in state %d", n.ID, row.State)
	}
	mc.m.nodes = with(mc.m.nodes, n, nodeID)
	return nil
}

func (mc *machine) takeToken(value []byte) error {
	var row storagev1.JoinTokenRow
	if err := proto.Unmarshal(value, &row); err != nil {
		return err
	}
	t := &JoinToken{Created: partition.Millis(row.CreatedMs), Expires: partition.Millis(row.ExpiresMs), Node: partition.NodeID(row.Node)}
	if len(row.Hash) != len(t.Hash) {
		return fmt.Errorf("a hash of %d bytes", len(row.Hash))
	}
	copy(t.Hash[:], row.Hash)
	mc.m.tokens = withToken(mc.m.tokens, t)
	return nil
}
