package broker

import (
	"fmt"
	"slices"
	"testing"

	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A trace names the node that stored a message and the one that took its ack, when the
// partition was led by another one by then, whichever node is asked; and never one that
// did not lead in that term.
func TestTraceNamesNodes(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	c.api(0).topic(t, "orders", 1)
	c.api(0).group(t, "orders", "g", nil)
	p := c.partitionsOf(0, "orders")[0]
	led := map[uint64]partition.NodeID{} // as the leaders themselves say
	note := func() (node int) {
		node = c.leaderOf(p.ID)
		if info, err := c.nodes[node].b.host.Info(p.ID); err == nil && info.Leading {
			led[info.Term] = c.nodes[node].b.cfg.Node
		}
		return node
	}
	// life traces a message at a node: who stored it, and who took its ack.
	life := func(at int, id string) (stored, acked *strandmqv1.TraceEvent) {
		res, err := c.api(at).trace.Trace(ctx(t), &strandmqv1.TraceRequest{Topic: "orders", Which: &strandmqv1.TraceRequest_Id{Id: id}})
		if err != nil {
			return nil, nil
		}
		for _, e := range res.GetMessages()[0].GetEvents() {
			if want := led[e.GetTerm()]; e.GetTerm() == 0 || e.GetNode() != 0 && want != 0 && e.GetNode() != uint64(want) {
				t.Fatalf("node %v led in term %d, and it says %v", want, e.GetTerm(), e)
			}
			switch e.GetWhat() {
			case "published":
				stored = e
			case "acked":
				acked = e
			}
		}
		return stored, acked
	}
	round := 0
	inTime(t, "a message that one node stored is acked at another", func() bool {
		round++
		id := fmt.Sprintf("m-%d", round)
		m := msg(id, id)
		m.Id = id
		from := note()
		if _, err := c.api(0).publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{m}}); err != nil {
			return false
		}
		got, err := c.api(1).consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "orders", Group: "g", Member: "m", MaxMessages: 100, WaitMs: 1000})
		if err != nil || len(got.GetDeliveries()) == 0 {
			return false
		}
		to := slices.IndexFunc(p.Replicas, func(r partition.ReplicaID) bool { return r.Node() != c.nodes[from].b.cfg.Node })
		if err := c.nodes[from].b.host.Transfer(ctx(t), p.ID, p.Replicas[to]); err != nil {
			return false
		}
		note()
		var all []*strandmqv1.Settlement
		for _, d := range got.GetDeliveries() {
			all = append(all, &strandmqv1.Settlement{Token: d.GetToken(), Action: ack})
		}
		if _, err := c.api(2).consume.Settle(ctx(t), &strandmqv1.SettleRequest{Topic: "orders", Group: "g", Settlements: all}); err != nil {
			return false
		}
		note()
		for at := range c.nodes {
			stored, acked := life(at, id)
			if stored.GetNode() == 0 || acked.GetNode() == 0 || stored.GetNode() == acked.GetNode() || stored.GetTerm() >= acked.GetTerm() {
				return false
			}
		}
		return true
	})
}
