package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/histogram"
	"github.com/strandmq/strandmq/partition"
)

// groupMeter counts what becomes of a group's messages in the partitions that this node
// leads, as it is applied. So a sum over nodes has nothing twice: no answer that was asked
// for again, and nothing that a leader before had counted. What is applied between two
// leaders is in none.
type groupMeter struct {
	settled  [consumer.Release + 1]atomic.Uint64
	dead     atomic.Uint64 // of the nacks and rejects
	acks     *histogram.Histogram
	handOuts *histogram.Histogram
}

func newGroupMeter() *groupMeter {
	return &groupMeter{acks: histogram.New(micros(ackLatency())...), handOuts: histogram.New(1, 2, 3, 5, 10, 20, 50, 100)}
}

// groupMeters are those of the groups that something was counted of. What counts knows
// their numbers only, and they may be younger than this node's map; so they get their
// names when they are read, and go when their group is gone.
type groupMeters struct{ of sync.Map } // consumer.GroupID → *groupMeter

func (m *groupMeters) get(id consumer.GroupID) *groupMeter {
	if one, ok := m.of.Load(id); ok {
		return one.(*groupMeter)
	}
	one, _ := m.of.LoadOrStore(id, newGroupMeter())
	return one.(*groupMeter)
}

// settledHere is consumer.App.Settled.
func (b *Broker) settledHere(id consumer.GroupID, a consumer.Action, dead bool, n int) {
	m := b.metrics.groups.get(id)
	if int(a) < len(m.settled) {
		m.settled[a].Add(uint64(n))
	}
	if dead {
		m.dead.Add(uint64(n))
	}
}

// finishedHere is consumer.App.Finished.
func (b *Broker) finishedHere(id consumer.GroupID, handOuts uint32, n int) {
	b.metrics.groups.get(id).handOuts.Add(int64(handOuts), n)
}

// ackedHere is consumer.Shell.Acked.
func (b *Broker) ackedHere(id consumer.GroupID, published partition.Millis, n int) {
	b.metrics.groups.get(id).acks.Add(1000*max(0, time.Now().UnixMilli()-int64(published)), n)
}

// groupCounts is what is told under one name: of one group, or of all that have none.
type groupCounts struct {
	settled        [consumer.Release + 1]uint64
	dead           uint64
	acks, handOuts histogram.Reading
}

func (c *groupCounts) add(m *groupMeter) {
	for a := range m.settled {
		c.settled[a] += m.settled[a].Load()
	}
	c.dead += m.dead.Load()
	c.acks.Add(m.acks.Read())
	c.handOuts.Add(m.handOuts.Read())
}

// named gives what is counted by the names of topic and group, and forgets groups that are
// gone. Their numbers grow, so one that is above all that the map knows is younger.
func (m *groupMeters) named(known *coordinator.Map, label func(topic, group string) (string, string)) map[[2]string]*groupCounts {
	newest := consumer.GroupID(0)
	for g := range known.Groups() {
		newest = max(newest, consumer.GroupID(g.ID))
	}
	out := map[[2]string]*groupCounts{}
	m.of.Range(func(key, value any) bool {
		id := key.(consumer.GroupID)
		g, ok := known.GroupByID(coordinator.GroupID(id))
		if !ok {
			if id < newest {
				m.of.Delete(id)
			}
			return true
		}
		t, ok := known.TopicByID(g.Topic)
		if !ok || g.Phase == coordinator.Deleting || t.Phase == coordinator.Deleting {
			return true
		}
		topic, group := label(t.Name, g.Name)
		at := [2]string{topic, group}
		if out[at] == nil {
			out[at] = &groupCounts{}
		}
		out[at].add(value.(*groupMeter))
		return true
	})
	return out
}

// collectGroups gives what was counted of groups in the partitions that this node led.
func (b *Broker) collectGroups(to sampler) {
	labels := []string{"topic", "group"}
	for at, c := range b.metrics.groups.named(b.coord.View(), b.metrics.label) {
		for _, s := range []struct {
			action     consumer.Action
			name, what string
		}{
			{consumer.Ack, "acked", "Acks"}, {consumer.Nack, "nacked", "Nacks"}, {consumer.Reject, "rejected", "Rejects"},
			{consumer.Extend, "extended", "Extends"}, {consumer.Release, "released", "Releases"},
		} {
			to.counter("messages_"+s.name+"_total", s.what+" that took effect since the broker started, in partitions that it led. A repeat, which succeeds too, is none.", labels, float64(c.settled[s.action]), at[0], at[1])
		}
		to.counter("messages_dead_lettered_by_members_total", "Of the nacks and rejects, those that made a dead letter; strandmq_group_dead_messages has those of lapses too.", labels, float64(c.dead), at[0], at[1])
		to.ch <- shown(to.get("ack_latency_seconds", "From a message's publish to its ack, by the acks that took effect in partitions that this node led.", labels), c.acks, 1e6, at[0], at[1])
		to.ch <- shown(to.get("message_hand_outs", "Hand-outs that messages took until they were acked or dead, those included that were released, in partitions that this node led. A dead letter that is replayed counts again, with all of them.", labels), c.handOuts, 1, at[0], at[1])
	}
}
