package duty

import (
	"testing"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// A damaged replica, from its damage to the one in its place: what its node does, what
// the metadata log says to it, and what the leader does meanwhile.
func TestDamagedReplica(t *testing.T) {
	c, topic := four(t)
	ctx := t.Context()
	id := topic.Partitions[0].ID
	p := func() *coordinator.Partition { p, _ := c.View().Partition(id); return p }
	all := p().Replicas
	self := all[2].Node()
	do := func(own Own, down ...partition.NodeID) Task {
		own.Here = own.Here || own.ID != 0 || own.Stopped
		return Replica(c.View(), p(), self, own, func(n partition.NodeID) bool {
			for _, d := range down {
				if n == d {
					return false
				}
			}
			return true
		})
	}
	want := func(when string, got Task, kind TaskKind, r partition.ReplicaID, stays bool) {
		t.Helper()
		if got.Kind != kind || got.Replica != r || (kind == Leave) && (got.Why != "") != stays {
			t.Errorf("%s: %+v", when, got)
		}
	}
	broken := Own{ID: all[2], Stopped: true, Damage: "a block"}
	want("its topic is being made", do(broken), Leave, 0, false)
	if _, err := c.FinishTopic(ctx, topic.ID); err != nil {
		t.Fatal(err)
	}
	want("it is well", do(Own{ID: all[2]}), Leave, 0, false)
	want("it stopped for a newer version's rows", do(Own{ID: all[2], Stopped: true}), Leave, 0, false)
	want("another one is here", do(Own{ID: partition.NewReplicaID(self, 7), Stopped: true, Damage: "a block"}), Leave, 0, false)
	want("one of the others is away", do(broken, all[0].Node()), Leave, 0, true)
	want("it has stopped", do(broken), Report, all[2], false)
	want("it has stopped, and does not know which it is", do(Own{Stopped: true, Damage: "a block"}), Report, all[2], false)
	rot := Own{ID: all[2], Damage: "a block"}
	want("it works", do(rot), Report, all[2], false)
	rot.Leading = true
	want("it leads", do(rot), Report, all[2], false)

	if _, err := c.Damaged(ctx, id, all[2], "a block"); err != nil {
		t.Fatal(err)
	}
	want("it leads, and is to hand over", do(rot), Leave, 0, false)
	rot.Leading = false
	want("it is known to be damaged", do(rot), Stop, all[2], false)
	want("also by the next start, which found nothing yet", do(Own{ID: all[2]}), Stop, all[2], false)
	want("it has stopped, and has its vote", do(broken), Leave, 0, false)
	other := func() Task {
		return Replica(c.View(), p(), all[1].Node(), Own{Here: true, ID: all[1], Stopped: true, Damage: "a block"}, everyone)
	}
	want("another one of the partition", other(), Leave, 0, true)

	if _, err := c.Settle(ctx, id, p().Placement); err != nil {
		t.Fatal(err)
	}
	want("its vote is taken", do(broken), Erase, all[2], false)
	want("another one, while there are two", other(), Leave, 0, true)
	if err := c.Left(ctx, id, all[2]); err != nil {
		t.Fatal(err)
	}
	anew := partition.NewReplicaID(self, 1)
	want("it is erased", do(Own{}), Join, anew, false)
	want("the new one is fed", do(Own{ID: anew}), Leave, 0, false)
	want("another one, meanwhile", other(), Leave, 0, true)
	want("the new one is damaged", do(Own{ID: anew, Stopped: true, Damage: "a block"}), Report, anew, false)
	if _, err := c.Settle(ctx, id, p().Placement); err != nil {
		t.Fatal(err)
	}
	if p().Rebuild != (coordinator.Rebuild{}) || len(p().Replicas) != 3 {
		t.Errorf("in the end it is %+v", *p())
	}
	want("then it is another one's turn", other(), Report, all[1], false)
}

// One replica, and the metadata log's, are not made anew.
func TestDamagedStays(t *testing.T) {
	c, _ := four(t)
	topic, _, err := c.CreateTopic(t.Context(), coordinator.TopicSpec{Name: "one", Partitions: 1, Config: replication(1)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.FinishTopic(t.Context(), topic.ID); err != nil {
		t.Fatal(err)
	}
	m := c.View()
	p, _ := m.Partition(topic.Partitions[0].ID)
	r := p.Replicas[0]
	own := Own{Here: true, ID: r, Stopped: true, Damage: "a block"}
	if got := Replica(m, p, r.Node(), own, everyone); got.Kind != Leave || got.Why == "" {
		t.Errorf("the only replica: %+v", got)
	}
	meta, _ := m.Partition(partition.Metadata)
	if got := Replica(m, meta, 1, Own{Here: true, ID: partition.NodeID(1).Replica(), Stopped: true, Damage: "a block"}, everyone); got.Kind != Leave {
		t.Errorf("the metadata log's: %+v", got)
	}
	var k Keeper
	others := Others{Up: everyone, Stay: everyone}
	three := []partition.ReplicaID{partition.NodeID(1).Replica(), partition.NodeID(2).Replica(), partition.NodeID(3).Replica()}
	if s := k.Lead(m, meta, partition.Info{Replica: three[0], Voters: three}, others, true); s.Kind == Transfer {
		t.Errorf("the metadata log's leader hands over to %v", s.To)
	}
}
