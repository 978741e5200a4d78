package broker

import (
	"os/exec"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// copyFolder copies a data folder as an operator does, with cp.
func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// An older copy of a node's data folder never becomes the node: not while that runs,
// not after it, not after all others were started again, and not by being started
// again and again. The node itself comes back.
func TestOldCopyIsRefused(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.api(0).topic(t, "orders", 2)
	c.awaitVoters()
	third := c.nodes[2]
	third.stop()
	old := newClusterNode(t, *third.cfg.Cluster)
	copyFolder(t, third.cfg.DataDir, old.cfg.DataDir)
	if err := third.start(); err != nil {
		t.Fatal(err)
	}
	c.publish(2, "orders", "a", 10)

	old.cfg.Cluster.Listen = "127.0.0.1:0" // the other's is taken
	refusedStart(t, old, NodeRefused, "earlier copy")
	// A copy of a folder that runs has all its starts, and waits for its turn.
	live := newClusterNode(t, *old.cfg.Cluster)
	copyFolder(t, third.cfg.DataDir, live.cfg.DataDir)
	refusedStart(t, live, NodeRefused, "runs already")
	c.publish(2, "orders", "b", 10)

	third.stop()
	for range 2 {
		refusedStart(t, old, NodeRefused, "earlier copy")
	}
	for _, n := range c.nodes[:2] {
		n.stop()
		if err := n.start(); err != nil { // with what it was in memory gone
			t.Fatal(err)
		}
	}
	for range 2 {
		refusedStart(t, old, NodeRefused, "earlier copy")
	}
	if err := third.start(); err != nil {
		t.Fatal(err)
	}
	c.publish(2, "orders", "c", 10)
	c.consume(2, "orders", "g", 30)
}

// awaitVoters waits until all nodes vote in the metadata log.
func (c *three) awaitVoters() {
	c.t.Helper()
	inTime(c.t, "all nodes vote in the metadata log", func() bool {
		info, err := c.nodes[c.leaderOf(partition.Metadata)].b.host.Info(partition.Metadata)
		return err == nil && len(info.Voters) == len(c.nodes)
	})
}
