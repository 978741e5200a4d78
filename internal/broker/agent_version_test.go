package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/coordinator"
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

// Nodes are upgraded one after the other, to a version with newer rules for the metadata log,
// while the cluster works: until the last one is, the others can read what is written, also
// when one of the newer version leads, and each can go back. Then none can.
func TestUpgradeOneByOne(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.api(0).topic(t, "orders", 1)
	c.awaitVoters()
	const older, newer = coordinator.Rules, coordinator.Rules + 1
	made := 0
	again := func(i int, rules uint32) {
		t.Helper()
		c.nodes[i].stop()
		c.nodes[i].cfg.Cluster.rules = rules
		if err := c.nodes[i].start(); err != nil {
			t.Fatal(err)
		}
	}
	works := func(rules uint32) {
		t.Helper()
		made++
		for i := range c.nodes {
			c.api(i).topic(t, fmt.Sprintf("t%d-%d", made, i), 1)
		}
		for _, n := range c.nodes {
			inTime(t, "the same rules everywhere", func() bool { return n.b.coord.View().Rules() == rules })
			info, err := n.b.host.Info(partition.Metadata)
			if err != nil || info.Fault != "" {
				t.Fatalf("node %v: %v, %s", n.b.cfg.Node, err, info.Fault)
			}
		}
	}
	again(0, newer)
	again(2, newer)
	works(older)
	// One of the newer version leads.
	again(1, older)
	inTime(t, "another leader", func() bool { return c.leaderOf(partition.Metadata) != 1 })
	works(older)
	again(2, older)
	works(older)
	again(2, newer)
	again(1, newer)
	works(newer)
	c.nodes[1].stop()
	c.nodes[1].cfg.Cluster.rules = older
	var refused *StartError // by the others, or by what its own log has
	if err := c.nodes[1].start(); !errors.As(err, &refused) || refused.Reason != NodeRefused && refused.Reason != FolderNewer || !strings.Contains(refused.Text, "rules") {
		t.Fatal(err)
	}
	c.nodes[1].cfg.Cluster.rules = newer
	if err := c.nodes[1].start(); err != nil {
		t.Fatal(err)
	}
	works(newer)
}
