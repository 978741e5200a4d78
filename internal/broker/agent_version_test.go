package broker

import (
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// A node of a version that no other speaks is refused with what to do, as it starts, and
// stays itself: with a version in common it is back. Meanwhile the others go on.
func TestVersionsApart(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.api(0).topic(t, "orders", 1)
	c.awaitVoters()
	third := c.nodes[2]
	c.publish(2, "orders", "a", 10)
	third.stop()
	third.cfg.Cluster.versions = [2]uint16{70, 71}
	for _, words := range []string{"UNKNOWN_VERSION", "versions 70 to 71", "run versions of the broker that are closer to each other"} {
		refusedStart(t, third, NodeRefused, words)
	}
	c.publish(0, "orders", "b", 10)
	third.cfg.Cluster.versions = [2]uint16{1, 71}
	if err := third.start(); err != nil {
		t.Fatal(err)
	}
	if n := c.leaderOf(partition.Metadata); n < 0 {
		t.Error("nobody leads")
	}
	c.publish(2, "orders", "c", 10)
	c.consume(2, "orders", "g", 30)
}
