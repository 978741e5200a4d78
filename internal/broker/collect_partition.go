package broker

import (
	"strconv"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/coordinator/placement"
	"github.com/strandmq/strandmq/partition"
)

// maxPartitionLabels bounds the pairs of topic and partition, and the triples of topic,
// group and partition, that have series of their own in one scrape. A topic or a group has
// those of all its partitions or of none, so that a sum is never of some.
const maxPartitionLabels = 10_000

// partitionSeries tells of single partitions, where Config.MetricsPerPartition asks for it.
// The node that leads a partition tells of it, so no other does.
type partitionSeries struct {
	sampler
	b      *Broker
	now    time.Time
	active int // nodes
	taken  int
	left   bool // some had no room
}

func (b *Broker) eachPartition(to sampler, now time.Time) *partitionSeries {
	return &partitionSeries{b: b, sampler: to, now: now, active: activeNodes(b.coord.View())}
}

// room takes n of the labels, if they are wanted and there are so many.
func (s *partitionSeries) room(n int) bool {
	if !s.b.cfg.MetricsPerPartition {
		return false
	}
	if s.taken+n > maxPartitionLabels {
		s.left = true
		return false
	}
	s.taken += n
	return true
}

var (
	perPartition      = []string{"topic", "partition"}
	perGroupPartition = []string{"topic", "group", "partition"}
)

// partition tells of one that this node leads.
func (s *partitionSeries) partition(t *coordinator.Topic, i int, info partition.Info) {
	p := &t.Partitions[i]
	say := func(name, help string, v float64) {
		s.gauge("partition_"+name, help, perPartition, v, t.Name, strconv.Itoa(i))
	}
	say("log_start_offset", "The first offset that is kept.", float64(info.Position.Start))
	say("log_end_offset", "The offset that the next message will get.", float64(info.Position.End))
	say("leader", "Number of the node that leads the partition; that node tells it.", float64(info.Leader))
	// Raft's own word for who is active stands still while a partition rests.
	synced := s.b.replicasThere(info)
	for _, f := range info.Followers {
		if f.Voter && f.Snapshot && (s.b.agent == nil || s.b.agent.isUp(f.Replica.Node())) {
			synced--
		}
	}
	say("replicas_in_sync", "Replicas that vote, are there, and are not so far behind that they need a snapshot.", float64(synced))
	short := 0.0
	if s.b.needs(p, placement.Wanted(t.Config.Replication, len(p.Replicas), s.active)).replicas {
		short = 1
	}
	say("under_replicated", "1 while fewer replicas are there than wanted.", short)
}

// group tells of a group in each partition whose state is known.
func (s *partitionSeries) group(t *coordinator.Topic, g *coordinator.Group, states []groupState, known func(i int) bool) {
	for i := range states {
		if !known(i) {
			continue
		}
		say := func(name, help string, v float64) {
			s.gauge("group_partition_"+name, help, perGroupPartition, v, t.Name, g.Name, strconv.Itoa(i))
		}
		say("lag_messages", "Messages of the partition neither settled nor dead.", float64(states[i].Counts.Lag()))
		say("lag_seconds", "Age of the oldest of them; 0: there is none.", age(s.now, states[i].oldestAt))
	}
}
