package broker

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/coordinator"
)

// A join that cannot be carried out takes nothing: neither the token, nor a number.
func TestFailedJoinTakesNothing(t *testing.T) {
	t.Parallel()
	first := newClusterNode(t, ClusterConfig{Listen: "127.0.0.1:0"})
	if err := first.start(); err != nil {
		t.Fatal(err)
	}
	c := &three{t: t, nodes: []*clusterNode{first}}
	at := first.b.agent.transport.Addr().String()
	members := func() (n int) {
		for range first.b.coord.View().Nodes() {
			n++
		}
		return n
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()

	token := c.token()
	n := newClusterNode(t, ClusterConfig{Listen: taken.Addr().String(), Join: at, Token: token})
	refusedStart(t, n, PortTaken, "another port with --peer-listen")
	n.cfg.Cluster.Listen, n.cfg.Cluster.Address = "127.0.0.1:0", at
	refusedStart(t, n, JoinRefused, "the other nodes reach node n1 at "+at)
	if got := members(); got != 1 {
		t.Fatalf("the cluster has %d nodes after joins that failed", got)
	}
	n.cfg.Cluster.Address, n.cfg.Cluster.Join = "", first.b.Addr()
	refusedStart(t, n, JoinFailed, "that looks like a port for clients")
	n.cfg.Cluster.Join = at
	if err := n.start(); err != nil {
		t.Fatalf("the token was used up: %v", err)
	}
	if got := members(); got != 2 {
		t.Errorf("the cluster has %d nodes", got)
	}

	// The first node of a cluster does not become one either.
	alone := newClusterNode(t, ClusterConfig{Listen: taken.Addr().String()})
	refusedStart(t, alone, PortTaken, "--peer-listen")
	if in, err := clustered(alone.cfg.DataDir); in || err != nil {
		t.Errorf("it is a cluster's: %v, %v", in, err)
	}

	// A copy of a folder that runs finds its own port taken.
	live := newClusterNode(t, ClusterConfig{})
	copyFolder(t, n.cfg.DataDir, live.cfg.DataDir)
	refusedStart(t, live, PortTaken, "node 2 listens there for other nodes: it may be running already")
	if second, ok := first.b.coord.View().Node(2); !ok || second.State != coordinator.Active {
		t.Errorf("node 2 is %+v", second)
	}
}

// A node that does not know who it is any more, or has nothing any more, becomes no other.
func TestLostFolders(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	c.api(0).topic(t, "orders", 3)
	c.publish(0, "orders", "a", 9)
	for _, n := range c.nodes {
		n.stop()
	}
	// Started as the folder would be by itself, and with the flags of a first node.
	refused := func(dir string, existing bool, want StartReason, words string) {
		t.Helper()
		for _, cluster := range []*ClusterConfig{nil, {Listen: "127.0.0.1:0"}} {
			b, err := Start(ctx(t), Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler), Cluster: cluster, Existing: existing})
			if err == nil {
				node := b.cfg.Node
				_ = b.Close()
				t.Fatalf("%s became node %v", dir, node)
			}
			var start *StartError
			if !errors.As(err, &start) || start.Reason != want || !strings.Contains(start.Text, words) || !strings.Contains(start.Text, "strandmq cluster replace") {
				t.Errorf("got %v; want %s with %q", err, want, words)
			}
		}
	}
	for i, n := range c.nodes {
		dir := n.cfg.DataDir
		identity, aside := identityDir(dir), filepath.Join(t.TempDir(), "aside")
		if err := os.Rename(identity, aside); err != nil {
			t.Fatal(err)
		}
		refused(dir, false, NoIdentity, "is missing or not whole")
		if i == 2 { // what cannot be read is not absent; also for who may read all
			_ = os.RemoveAll(identity)
			if err := os.Symlink(identityFolder, identity); err != nil {
				t.Fatal(err)
			}
			refused(dir, false, NoIdentity, "cannot be read")
		}
		_ = os.RemoveAll(identity)
		if err := os.Rename(aside, identity); err != nil {
			t.Fatal(err)
		}
	}
	// Each file that it cannot do without.
	last := c.nodes[2].cfg.DataDir
	for name, words := range map[string]string{certFile: "is missing or not whole", homeFile: "is missing beside the certificate"} {
		path := filepath.Join(identityDir(last), name)
		if err := os.Rename(path, path+".aside"); err != nil {
			t.Fatal(err)
		}
		refused(last, false, NoIdentity, words)
		if err := os.Rename(path+".aside", path); err != nil {
			t.Fatal(err)
		}
	}
	// A join that was cut off before it had its certificate.
	cut := newClusterNode(t, ClusterConfig{})
	if err := cut.startEmpty(); err != nil {
		t.Fatal(err)
	}
	if err := writeHome(cut.cfg.DataDir, home{Listen: "127.0.0.1:0", Nodes: []homeNode{{Node: 1, Address: "127.0.0.1:1"}}}); err != nil {
		t.Fatal(err)
	}
	refused(cut.cfg.DataDir, false, NoIdentity, "start it with --join and its token again")
	// The store gone, the identity left.
	robbed := t.TempDir()
	copyFolder(t, identityDir(last), filepath.Join(robbed, identityFolder))
	refused(robbed, false, NodeRefused, "holds the identity of node n3, and its store is gone")
	if left, err := os.ReadDir(robbed); err != nil || len(left) != 1 {
		t.Errorf("%v, %v: it was changed", left, err)
	}
	// Nothing at all, where there has to be something.
	refused(t.TempDir(), true, FolderEmpty, "with --existing it has to")
	missing := filepath.Join(t.TempDir(), "missing")
	refused(missing, true, FolderEmpty, "holds no node")
	if _, err := os.Lstat(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder was made: %v", err)
	}

	// With everything back in its place they are the nodes that they were.
	started := make(chan error, 3)
	for _, n := range c.nodes {
		n.cfg.Existing = true
		go func() { started <- n.start() }()
	}
	for range c.nodes {
		if err := <-started; err != nil {
			t.Fatal(err)
		}
	}
	c.consume(2, "orders", "g", 9)
}
