package broker

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// copyFolder copies a data folder as an operator does, with cp, as it was at one moment: it
// is copied again where files came, grew or went meanwhile, since a node works in it.
func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	inTime(t, "a copy of a folder at rest", func() bool {
		before := filesIn(from)
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
		if !maps.Equal(before, filesIn(from)) {
			return false
		}
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return true
	})
}

// filesIn are the files below a folder with their sizes.
func filesIn(folder string) map[string]int64 {
	sizes := map[string]int64{}
	_ = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it went meanwhile, and another look says so
		}
		if info, err := d.Info(); err == nil {
			sizes[path] = info.Size()
		}
		return nil
	})
	return sizes
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
