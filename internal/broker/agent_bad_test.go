package broker

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// refusedStart wants a start that is refused for a reason, in words.
func refusedStart(t *testing.T, n *clusterNode, want StartReason, words string) {
	t.Helper()
	err := n.start()
	var start *StartError
	if !errors.As(err, &start) || start.Reason != want || !strings.Contains(start.Text, words) {
		t.Errorf("got %v; want %s with %q", err, want, words)
	}
}

// Who may not join, or come back, is told why and what to do, and the cluster goes
// on.
func TestClusterRefusesNodes(t *testing.T) {
	t.Parallel()
	first := newClusterNode(t, ClusterConfig{Listen: "127.0.0.1:0"})
	if err := first.start(); err != nil {
		t.Fatal(err)
	}
	c := &three{t: t, nodes: []*clusterNode{first}}
	at := first.b.agent.transport.Addr().String()
	join := func(token string) *clusterNode {
		return newClusterNode(t, ClusterConfig{Listen: "127.0.0.1:0", Join: at, Token: token})
	}

	used := c.token()
	second := join(used)
	if err := second.start(); err != nil {
		t.Fatal(err)
	}
	refusedStart(t, join(used), JoinRefused, "TOKEN_USED")
	refusedStart(t, join(used[:len(used)-2]), JoinRefused, "copy it as a whole")
	nobody := join(c.token())
	nobody.cfg.Cluster.Join = "127.0.0.1:1"
	refusedStart(t, nobody, JoinFailed, "--peer-listen")

	res, err := c.api(0).cluster.CreateJoinToken(ctx(t), &strandmqv1.CreateJoinTokenRequest{ValidMs: 1})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond) // the token's time
	refusedStart(t, join(res.GetToken()), JoinRefused, "TOKEN_EXPIRED")

	// Another cluster's token, for a new folder and for a node's own.
	other := newClusterNode(t, ClusterConfig{Listen: "127.0.0.1:0"})
	if err := other.start(); err != nil {
		t.Fatal(err)
	}
	foreign := (&three{t: t, nodes: []*clusterNode{other}}).token()
	refusedStart(t, join(foreign), WrongCluster, "not of the cluster that the join token is for")
	second.stop()
	second.cfg.Cluster.Token, second.cfg.Cluster.Join = foreign, at
	refusedStart(t, second, WrongCluster, "another cluster")
	second.cfg.Cluster.Token = used // the command line of its first start
	if err := second.start(); err != nil {
		t.Errorf("a node that is started again with its own token: %v", err)
	}

	// A folder with data joins nothing.
	alone := newClusterNode(t, ClusterConfig{})
	b, err := Start(ctx(t), Config{DataDir: alone.cfg.DataDir, Listen: "127.0.0.1:0", Logger: clusterLogger()})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	alone.cfg.Cluster = &ClusterConfig{Listen: "127.0.0.1:0", Join: at, Token: c.token()}
	refusedStart(t, alone, FolderHasData, "holds data already")

	// An identity without its store: an empty folder is not the node that it was.
	second.stop()
	robbed := newClusterNode(t, *second.cfg.Cluster)
	if err := robbed.startEmpty(); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(robbed.cfg.DataDir, identityFolder), os.DirFS(filepath.Join(second.cfg.DataDir, identityFolder))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(robbed.cfg.DataDir, identityFolder, "node.key"), 0o600); err != nil {
		t.Fatal(err)
	}
	refusedStart(t, robbed, NodeRefused, "is for another store")

	wild := newClusterNode(t, ClusterConfig{Listen: "0.0.0.0:0"})
	refusedStart(t, wild, BadConfig, "--peer-address")
	if err := second.start(); err != nil {
		t.Fatal(err)
	}
	c.api(0).topic(t, "orders", 1)
	c.publish(0, "orders", "a", 3)
}

// startEmpty makes the folder that of a store without anything.
func (n *clusterNode) startEmpty() error {
	b, err := Start(ctx(n.t), Config{DataDir: n.cfg.DataDir, Listen: "127.0.0.1:0", Logger: clusterLogger()})
	if err != nil {
		return err
	}
	return b.Close()
}

// A broker that was alone becomes the first node of a cluster, with its topics; they
// get replicas on the nodes that join.
func TestAloneBecomesCluster(t *testing.T) {
	t.Parallel()
	first := newClusterNode(t, ClusterConfig{Listen: "127.0.0.1:0"})
	b, err := Start(ctx(t), Config{DataDir: first.cfg.DataDir, Listen: "127.0.0.1:0", Logger: clusterLogger()})
	if err != nil {
		t.Fatal(err)
	}
	a := newAPI(t, b.URL())
	a.topic(t, "orders", 2)
	a.store(t, "orders", msg("k0", "a-0"), msg("k1", "a-1"), msg("k2", "a-2"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := first.start(); err != nil {
		t.Fatal(err)
	}
	c := &three{t: t, nodes: []*clusterNode{first}}
	for range 2 {
		n := newClusterNode(t, ClusterConfig{Listen: "127.0.0.1:0", Join: first.b.agent.transport.Addr().String(), Token: c.token()})
		if err := n.start(); err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, n)
	}
	topic, err := first.b.coord.View().Topic("orders")
	if err != nil {
		t.Fatal(err)
	}
	inTime(t, "three voters of each partition", func() bool {
		for _, p := range topic.Partitions {
			info, err := c.nodes[c.leaderOf(p.ID)].b.host.Info(p.ID)
			now, ok := c.nodes[2].b.coord.View().Partition(p.ID)
			if err != nil || !ok || len(info.Voters) != 3 || now.Moving() {
				return false
			}
		}
		return true
	})
	c.publish(2, "orders", "b", 5)
	first.crash()
	c.publish(1, "orders", "c", 5)
	// Messages without ids count once.
	got := 0
	for _, list := range c.consume(2, "orders", "g", 11) {
		got += len(list)
	}
	if got < 11 {
		t.Errorf("%d messages", got)
	}
}

// A node that is drained gives what it holds to another, erases it, and can be
// removed.
func TestClusterDrains(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	n := newClusterNode(t, ClusterConfig{Listen: "127.0.0.1:0", Join: c.nodes[1].b.agent.transport.Addr().String(), Token: c.token()})
	if err := n.start(); err != nil {
		t.Fatal(err)
	}
	c.nodes = append(c.nodes, n)
	c.api(3).topic(t, "orders", 4)
	c.publish(3, "orders", "a", 20)
	leaves := c.nodes[1].b.cfg.Node
	if _, err := c.api(0).cluster.DrainNode(ctx(t), &strandmqv1.DrainNodeRequest{Node: uint64(leaves)}); err != nil {
		t.Fatal(err)
	}
	inTime(t, "a node without replicas", func() bool {
		m := c.nodes[0].b.coord.View()
		return m.Held()[leaves].Replicas == 0 && m.Held()[leaves].Leaving == 0 && !m.Held()[leaves].Votes &&
			len(c.nodes[1].b.host.Partitions()) == 1
	})
	c.publish(1, "orders", "b", 5)
	c.consume(1, "orders", "g", 25)
	c.nodes[1].stop()
	inTime(t, "its removal", func() bool {
		_, err := c.api(0).cluster.RemoveNode(ctx(t), &strandmqv1.RemoveNodeRequest{Node: uint64(leaves), Confirm: leaves.String()})
		return err == nil
	})
	c.publish(2, "orders", "c", 5)
	refusedStart(t, c.nodes[1], NodeRefused, "removed")
}
