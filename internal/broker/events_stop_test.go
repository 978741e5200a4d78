package broker

import (
	"slices"
	"testing"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// node is what an answer says of a node.
func (c *three) node(asked, of int) *strandmqv1.ClusterNode {
	c.t.Helper()
	res, err := c.api(asked).cluster.DescribeCluster(ctx(c.t), &strandmqv1.DescribeClusterRequest{})
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(res.GetNodes(), func(n *strandmqv1.ClusterNode) bool { return n.GetNode() == uint64(c.nodes[of].b.cfg.Node) })
	if i < 0 {
		return nil
	}
	return res.GetNodes()[i]
}

// A node that is told to stop says so, also the one that leads the metadata log, and until
// it is back the others know. Of one that dies nothing is said.
func TestStopIsTold(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	for _, which := range []string{"who leads the metadata", "another one"} {
		lead := c.leaderOf(partition.Metadata)
		of := lead
		if which == "another one" {
			of = (lead + 1) % 3
		}
		asked := (of + 1) % 3
		// It is tried once, and not while nobody leads: on a busy machine that can be just then.
		told := false
		for try := 0; try < 10 && !told; try++ {
			inTime(t, "a cluster that is well", func() bool {
				return c.nodes[of].b.leaderless() == "" && c.node(asked, of) != nil && c.node(asked, of).GetStopped() == nil
			})
			c.nodes[of].stop()
			for limit := time.Now().Add(20 * time.Second); time.Now().Before(limit) && !told; {
				n := c.node(asked, of)
				told = n.GetStopped() != nil && n.GetSilentMs() > 0
				time.Sleep(10 * time.Millisecond) // nobody tells the test of a change
			}
			if !told {
				if err := c.nodes[of].start(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !told {
			t.Fatalf("%s: it is not told that it was stopped", which)
		}
		id := uint64(c.nodes[of].b.cfg.Node)
		ofIt := func(e *strandmqv1.ClusterEvent) bool { return e.GetNode() == id }
		c.api(asked).awaitEvent(t, coordinator.NodeStopped, ofIt)
		if err := c.nodes[of].start(); err != nil {
			t.Fatal(err)
		}
		c.api(asked).awaitEvent(t, coordinator.NodeStarted, ofIt)
		inTime(t, "it is back", func() bool {
			n := c.node(asked, of)
			return n != nil && n.SilentMs != nil && n.GetSilentMs() == 0 && n.GetStopped() == nil
		})
		c.nodes[of].crash()
		inTime(t, "it is silent", func() bool { return c.node(asked, of).GetSilentMs() > 0 })
		if n := c.node(asked, of); n == nil || n.GetStopped() != nil {
			t.Errorf("%s died, and is said to have been stopped: %v", which, n)
		}
		if err := c.nodes[of].start(); err != nil {
			t.Fatal(err)
		}
		c.awaitVoters()
	}
}
