package broker

import (
	"math"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/coordinator/placement"
	"github.com/strandmq/strandmq/partition"
)

// collectCluster gives what this node sees of the others and of their replicas. All nodes
// tell who is there and what has no leader: the one that would know best may be the one
// that is away.
func (b *Broker) collectCluster(to sampler) {
	gauge := to.gauge
	m := b.coord.View()
	active := activeNodes(m)
	all, led, leaderless, short := 0, 0, 0, 0
	queued := int64(0)
	look := func(p *coordinator.Partition, wanted int) {
		all++
		if info, err := b.host.Info(p.ID); err == nil {
			queued += info.Queued
		}
		need := b.needs(p, wanted)
		if need.leader {
			leaderless++
		}
		if need.replicas {
			short++
		}
		if need.led {
			led++
		}
	}
	if p, ok := m.Partition(partition.Metadata); ok {
		look(p, placement.MetadataVoters(len(p.Replicas), active))
	}
	for t := range m.Topics() {
		if t.Phase != coordinator.Ready {
			continue
		}
		for i := range t.Partitions {
			p := &t.Partitions[i]
			look(p, placement.Wanted(t.Config.Replication, len(p.Replicas), active))
		}
	}
	gauge("partitions", "Partitions of the cluster, the metadata log among them, by this node's map.", nil, float64(all))
	gauge("partitions_led", "Those that this node leads.", nil, float64(led))
	gauge("queued_bytes", "Bytes of publishes and commands that wait to be written, of all partitions of this node.", nil, float64(queued))
	gauge("partitions_without_leader", "Partitions, the metadata log among them, that have no leader as far as this node knows.", nil, float64(leaderless))
	gauge("under_replicated_partitions", "Partitions, the metadata log among them, that this node leads with fewer replicas there than wanted.", nil, float64(short))
	if b.agent == nil {
		return
	}
	label := []string{"node"}
	for _, n := range b.agent.transport.Nodes() {
		name, up := partition.NodeID(n.Node).String(), 0.0
		if n.Up {
			up = 1
		}
		gauge("node_up", "1 while this node hears of the other one.", label, up, name)
		if n.To {
			// As clockOff has it: what the way may account for is no difference.
			off := max(0, n.Skew.Abs()-n.RoundTrip/2).Seconds()
			gauge("node_clock_skew_seconds", "How far the other node's clock is ahead of this one's at least; below 0: behind.", label, math.Copysign(off, n.Skew.Seconds()), name)
		}
	}
	if id := b.agent.identity; id != nil {
		gauge("certificate_expires_timestamp_seconds", "When the certificate ends by which the other nodes know this one; a new one is made when half of its time is over.", nil, float64(id.Expires().Unix()))
	}
}

// activeNodes counts the nodes that partitions are placed on.
func activeNodes(m *coordinator.Map) (active int) {
	for n := range m.Nodes() {
		if n.State == coordinator.Active {
			active++
		}
	}
	return active
}

// need is what a partition lacks, as far as this node knows, and whether this node leads it.
type need struct{ leader, replicas, led bool }

// needs says of a partition without a leader nothing more, and of its replicas only when
// this node leads it.
func (b *Broker) needs(p *coordinator.Partition, wanted int) need {
	info, err := b.host.Info(p.ID)
	here := err == nil && info.Fault == ""
	if len(b.missing(p.ID)) > 0 || here && info.Leader == 0 {
		return need{leader: true}
	}
	led := here && info.Leading
	return need{led: led, replicas: led && b.replicasThere(info) < wanted}
}

// replicasThere counts the replicas of a partition that count, and whose nodes are there.
func (b *Broker) replicasThere(info partition.Info) (n int) {
	for _, r := range info.Voters {
		if b.agent == nil || b.agent.isUp(r.Node()) {
			n++
		}
	}
	return n
}
