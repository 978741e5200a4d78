package coordinator

import (
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// begin places a partition for the first time. Its replicas are made with these
// voters, so there is nothing to reach.
func (p *Partition) begin(nodes []partition.NodeID, at uint64) {
	p.Replicas = make([]partition.ReplicaID, len(nodes))
	for i, n := range nodes {
		p.Replicas[i] = partition.NewReplicaID(n, 0)
	}
	p.Placement, p.nextIncarnation = at, 1
	p.settle()
}

// placements checks where a new topic's partitions are to be: nil before the
// cluster has a node. Nodes that are not active any more are an *ErrConflict: who
// chose them has not heard so yet.
func (mc *machine) placements(c *storagev1.CreateTopic, n, replication int) ([][]partition.NodeID, error) {
	active := mc.m.active()
	if replication > max(active, 1) {
		return nil, &ErrReplication{Want: replication, Nodes: active}
	}
	first, ok := mc.m.firstActive()
	if !ok {
		return nil, nil
	}
	out := make([][]partition.NodeID, n)
	if len(c.Placements) == 0 {
		for i := range out {
			out[i] = []partition.NodeID{first}
		}
		return out, nil
	}
	if len(c.Placements) != n {
		return nil, &ErrInvalid{Faults: []Fault{{"placements", fmt.Sprintf("there are %d for %d partitions", len(c.Placements), n)}}}
	}
	for i, list := range c.Placements {
		for _, id := range list.GetNodes() {
			out[i] = append(out[i], partition.NodeID(id))
		}
		if bad := badList(out[i]); bad != "" {
			return nil, &ErrInvalid{Faults: []Fault{{"placements", bad}}}
		}
		if replication > 0 && len(out[i]) != replication {
			return nil, &ErrInvalid{Faults: []Fault{{"placements", fmt.Sprintf("%d replicas where %d are wanted", len(out[i]), replication)}}}
		}
		for _, id := range out[i] {
			if x, ok := mc.m.Node(id); !ok || x.State != Active {
				return nil, &ErrConflict{Kind: KindTopic, Name: c.Name}
			}
		}
	}
	return out, nil
}

// badList says what is wrong with the nodes of a partition, whatever the nodes.
func badList(nodes []partition.NodeID) string {
	sorted := slices.Clone(nodes)
	sortNodes(sorted)
	switch {
	case len(nodes) != 1 && len(nodes) != 3 && len(nodes) != 5:
		return "a partition has 1, 3 or 5 replicas"
	case len(slices.Compact(sorted)) != len(nodes):
		return "a node has one replica of a partition at most"
	}
	return ""
}

// editMetadata is the metadata log's own placement, to be changed by this entry.
// Its row is the cluster's.
func (mc *machine) editMetadata() *Partition { return &mc.edit().metadata }

// setPartition puts a new value of a partition into the map and its row. The
// topic's revision, which routing goes by, is not touched: its ranges are what
// they were.
func (mc *machine) setPartition(p Partition) *Partition {
	mc.place()
	if p.ID == partition.Metadata {
		own := mc.editMetadata()
		*own = p
		return own
	}
	at, ok := mc.m.Place(p.ID)
	if !ok {
		panic(fmt.Sprintf("coordinator: %v has no place", p.ID))
	}
	next := *at.Topic
	next.Partitions = slices.Clone(next.Partitions)
	next.Partitions[at.Number] = p
	mc.setTopic(&next)
	mc.touch(rowKey{kind: rowTopic, id: uint64(next.ID)})
	return &next.Partitions[at.Number]
}

// partitionFor finds a partition that may be placed.
func (mc *machine) partitionFor(id uint64) (*Partition, error) {
	pid := partition.PartitionID(id)
	p, ok := mc.m.Partition(pid)
	if !ok {
		return nil, &ErrNotFound{Kind: KindPartition, Name: pid.String()}
	}
	if pid != partition.Metadata {
		if at, _ := mc.m.Place(pid); at.Topic.Phase != Ready {
			return nil, busy(KindTopic, at.Topic.Name, at.Topic.Phase)
		}
	}
	return p, nil
}

// placeReplicas places each partition by itself. A refusal of one is not told
// where there are several: who asks for several looks at the next map anyhow.
func (mc *machine) placeReplicas(c *storagev1.PlaceReplicas) *result {
	var r *result
	for _, pl := range c.GetPlacements() {
		r = mc.placeOne(pl)
	}
	switch {
	case r == nil:
		return refuse(&ErrInvalid{Faults: []Fault{{"placements", "there are none"}}})
	case len(c.Placements) > 1:
		return &result{existed: !mc.draft}
	}
	return r
}

func (mc *machine) placeOne(c *storagev1.Placement) *result {
	p, err := mc.partitionFor(c.GetPartitionId())
	if err != nil {
		return refuse(err)
	}
	nodes := make([]partition.NodeID, len(c.Nodes))
	for i, n := range c.Nodes {
		nodes[i] = partition.NodeID(n)
	}
	if bad := badList(nodes); bad != "" {
		return refuse(&ErrInvalid{Faults: []Fault{{"nodes", bad}}})
	}
	first := nodes[0]
	if nodes = slices.DeleteFunc(nodes, p.comesAgain); len(nodes) == 0 {
		return refuse(&ErrErasing{Partition: p.ID, Node: first})
	}
	if slices.Equal(p.Nodes(), nodes) {
		return &result{place: p, existed: true}
	}
	if p.Placement != c.Placement {
		return refuse(&ErrConflict{Kind: KindPartition, Name: p.ID.String()})
	}
	next := *p
	next.Replicas = make([]partition.ReplicaID, len(nodes))
	next.Leaving = slices.Clone(p.Leaving)
	same := len(nodes) == len(p.Replicas)
	for i, n := range nodes {
		if r, ok := p.Replica(n); ok {
			next.Replicas[i] = r
			continue
		}
		same = false
		r, err := mc.newReplica(&next, n)
		if err != nil {
			return refuse(err)
		}
		next.Replicas[i] = r
	}
	for _, r := range p.Replicas {
		// In the metadata log who does not vote listens, and nobody leaves.
		if _, kept := next.Replica(r.Node()); !kept && p.ID != partition.Metadata {
			next.Leaving = append(next.Leaving, Leaving{ID: r})
		}
	}
	reached := same && !p.Moving()
	if next.Placement = uint64(mc.at); reached {
		next.settle() // another is to lead; the voters are the same
	}
	if len(next.Replicas)%2 == 1 && p.comesAgain(p.Rebuild.ID.Node()) {
		next.Rebuild = Rebuild{} // its place is taken
	}
	next.endRebuild()
	return &result{place: mc.setPartition(next)}
}

// newReplica gives a node a replica. One that was to leave and has its vote yet is
// taken back.
func (mc *machine) newReplica(p *Partition, n partition.NodeID) (partition.ReplicaID, error) {
	x, ok := mc.m.Node(n)
	switch {
	case !ok:
		return 0, &ErrNotFound{Kind: KindNode, Name: n.String()}
	case x.State != Active:
		return 0, &ErrNotActive{Node: n, State: x.State}
	case p.ID == partition.Metadata:
		return partition.NewReplicaID(n, 0), nil // it has had it since it joined
	}
	if l, ok := p.Left(n); ok {
		if l.Out {
			return 0, &ErrErasing{Partition: p.ID, Node: n}
		}
		p.Leaving = slices.DeleteFunc(p.Leaving, func(x Leaving) bool { return x.ID == l.ID })
		return l.ID, nil
	}
	r := partition.NewReplicaID(n, p.nextIncarnation)
	p.nextIncarnation++
	return r, nil
}

// settleReplicas notes what was reached. As with several placements, only a
// single one hears of a refusal.
func (mc *machine) settleReplicas(c *storagev1.SettleReplicas) *result {
	var r *result
	for _, s := range c.GetSettled() {
		r = mc.settleOne(s)
	}
	switch {
	case r == nil:
		return refuse(&ErrInvalid{Faults: []Fault{{"settled", "there is none"}}})
	case len(c.Settled) > 1:
		return &result{existed: !mc.draft}
	}
	return r
}

func (mc *machine) settleOne(c *storagev1.Settled) *result {
	p, ok := mc.m.Partition(partition.PartitionID(c.GetPartitionId()))
	switch {
	case !ok:
		return refuse(&ErrNotFound{Kind: KindPartition, Name: partition.PartitionID(c.GetPartitionId()).String()})
	case p.Placement != c.Placement:
		return refuse(&ErrConflict{Kind: KindPartition, Name: p.ID.String()})
	case !p.Moving():
		return &result{place: p, existed: true}
	}
	next := *p
	next.settle()
	next.Leaving = slices.Clone(p.Leaving)
	for i := range next.Leaving {
		next.Leaving[i].Out = true
	}
	next.endRebuild()
	if n := p.Rebuild.ID.Node(); n != 0 && next.Rebuild.ID == 0 {
		if _, again := next.Replica(n); again {
			mc.record(mc.about(Happening{Kind: ReplicaRemade, Node: n, Text: "another replica of the node took the place of the damaged one, and votes"}, p.ID))
		}
	}
	return &result{place: mc.setPartition(next)}
}

func (mc *machine) leftReplica(c *storagev1.LeftReplica) *result {
	p, ok := mc.m.Partition(partition.PartitionID(c.GetPartitionId()))
	if !ok {
		return &result{existed: true} // its topic is gone, and it with it
	}
	id := partition.ReplicaID(c.Replica)
	for _, l := range p.Leaving {
		switch {
		case l.ID != id:
		case !l.Out:
			return refuse(&ErrInvalid{Faults: []Fault{{"replica", "it may have its vote yet, and is not to be erased"}}})
		default:
			return &result{place: mc.erased(p, id)}
		}
	}
	if slices.Contains(p.Replicas, id) {
		return refuse(&ErrInvalid{Faults: []Fault{{"replica", "it is wanted, and is not to be erased"}}})
	}
	return &result{place: p, existed: true}
}

// dropLeaving forgets a replica that has left.
func (mc *machine) dropLeaving(p partition.PartitionID, id partition.ReplicaID) *Partition {
	at, _ := mc.m.Partition(p)
	next := *at
	next.forget(id)
	next.endRebuild()
	return mc.setPartition(next)
}

// forget takes a replica off the list of those that leave.
func (p *Partition) forget(id partition.ReplicaID) {
	p.Leaving = slices.DeleteFunc(slices.Clone(p.Leaving), func(l Leaving) bool { return l.ID == id })
}
