package broker

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/heldport"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// three are the nodes of one cluster, in one process.
type three struct {
	t     testing.TB
	nodes []*clusterNode
}

// clusterNode is one of them, over its restarts.
type clusterNode struct {
	t       testing.TB
	cfg     Config
	b       *Broker
	stopped bool
}

func clusterLogger() *slog.Logger {
	if os.Getenv("STRANDMQ_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

func newClusterNode(t testing.TB, c ClusterConfig, change ...func(*Config)) *clusterNode {
	if c.Listen == "127.0.0.1:0" {
		c.Listen = heldport.Address(t)
	}
	n := &clusterNode{t: t, cfg: Config{
		DataDir: t.TempDir(), Listen: "127.0.0.1:0", Logger: clusterLogger(), Version: "test", StopTime: 2 * time.Second, Cluster: &c,
	}}
	n.cfg.Store.MemTableBytes, n.cfg.Store.CacheBytes = 4<<20, 8<<20
	n.cfg.patient()
	for _, f := range change {
		f(&n.cfg)
	}
	return n
}

// start starts the node, until the test ends.
func (n *clusterNode) start() error {
	b, err := Start(context.Background(), n.cfg)
	if err != nil {
		return err
	}
	n.b, n.stopped = b, false
	n.cfg.Cluster.Listen = b.agent.transport.Addr().String() // the same one when it comes back
	n.t.Cleanup(func() { n.stop() })
	return nil
}

func (n *clusterNode) stop() {
	if n.stopped {
		return
	}
	n.stopped = true
	if err := n.b.Close(); err != nil {
		n.t.Errorf("node %v: Close: %v", n.b.cfg.Node, err)
	}
}

// crash ends a node as far as the others can tell: from one moment to the next
// nothing comes from it any more.
func (n *clusterNode) crash() {
	if err := n.b.agent.transport.Close(); err != nil {
		n.t.Error(err)
	}
	n.stop()
}

// startThree starts a cluster of three.
func startThree(t testing.TB, change ...func(*Config)) *three {
	t.Helper()
	c := &three{t: t}
	first := newClusterNode(t, ClusterConfig{Listen: "127.0.0.1:0"}, change...)
	if err := first.start(); err != nil {
		t.Fatal(err)
	}
	c.nodes = append(c.nodes, first)
	for range 2 {
		n := newClusterNode(t, ClusterConfig{Listen: "127.0.0.1:0", Join: first.b.agent.transport.Addr().String(), Token: c.token()}, change...)
		if err := n.start(); err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, n)
	}
	return c
}

// token makes a join token at the newest node.
func (c *three) token() string {
	c.t.Helper()
	res, err := c.api(len(c.nodes)-1).cluster.CreateJoinToken(ctx(c.t), &strandmqv1.CreateJoinTokenRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	return res.GetToken()
}

func (c *three) api(i int) api {
	return newAPI(c.t, c.nodes[i].b.URL(), connect.WithInterceptors(sentAgain))
}

// sentAgain sends again what was refused, and not done, since nobody led just then: on a
// busy machine leaders change at any time. What lasts longer than a minute is told.
var sentAgain = connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		for limit := time.Now().Add(time.Minute); ; {
			res, err := next(ctx, req)
			reason := problemOf(err).GetReason()
			if reason != "NOT_LEADER" && reason != "NO_QUORUM" || time.Now().After(limit) || ctx.Err() != nil {
				return res, err
			}
			time.Sleep(10 * time.Millisecond) // nobody tells the test of a change
		}
	}
})

// inTime waits until something is so.
func inTime(t testing.TB, what string, cond func() bool) {
	t.Helper()
	limit := time.Now().Add(soon)
	for !cond() {
		if time.Now().After(limit) {
			t.Fatalf("%s: not within %v", what, soon)
		}
		time.Sleep(10 * time.Millisecond) // nobody tells the test of a change
	}
}

// leaderOf finds the node that leads a partition.
func (c *three) leaderOf(id partition.PartitionID) int {
	i := -1
	inTime(c.t, "a leader", func() bool {
		i = slices.IndexFunc(c.nodes, func(n *clusterNode) bool {
			if n.stopped {
				return false
			}
			info, err := n.b.host.Info(id)
			return err == nil && info.Leading
		})
		return i >= 0
	})
	return i
}

// publish stores n messages with ids through a node, sending again what is not
// known to be stored.
func (c *three) publish(i int, topic, prefix string, n int) {
	c.t.Helper()
	a := c.api(i)
	for k := range n {
		m := msg(fmt.Sprintf("k%d", k%8), fmt.Sprintf("%s-%d", prefix, k))
		m.Id = fmt.Sprintf("%s-%d", prefix, k)
		inTime(c.t, "a publish", func() bool {
			res, err := a.publish.Publish(ctx(c.t), &strandmqv1.PublishRequest{Topic: topic, Messages: []*strandmqv1.Message{m}})
			return err == nil && res.GetResults()[0].GetProblem() == nil
		})
	}
}

// consume acks n messages of a group through a node, and gives their bodies by key.
func (c *three) consume(i int, topic, group string, n int) map[string][]string {
	c.t.Helper()
	a := c.api(i)
	out := map[string][]string{}
	seen := map[string]bool{}
	inTime(c.t, fmt.Sprintf("%d messages of %s", n, group), func() bool {
		res, err := a.consume.Receive(ctx(c.t), &strandmqv1.ReceiveRequest{Topic: topic, Group: group, Member: "m", MaxMessages: 100, WaitMs: 500, CreateGroup: true})
		if err != nil {
			return false
		}
		var list []*strandmqv1.Settlement
		for _, d := range res.GetDeliveries() {
			list = append(list, &strandmqv1.Settlement{Token: d.GetToken(), Action: strandmqv1.SettleAction_SETTLE_ACTION_ACK})
			if m := d.GetMessage(); !seen[m.GetId()] {
				seen[m.GetId()] = true
				out[m.GetKey()] = append(out[m.GetKey()], m.GetText())
			}
		}
		if len(list) > 0 {
			_, _ = a.consume.Settle(ctx(c.t), &strandmqv1.SettleRequest{Topic: topic, Group: group, Settlements: list})
		}
		return len(seen) >= n
	})
	return out
}

// Three nodes: the second and third join, a topic gets three replicas of each
// partition, every node takes publishes and serves groups; the leader's node dies,
// the others go on, and it catches up when it is back.
func TestClusterOfThree(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	inTime(t, "three voters of the metadata log", func() bool {
		info, err := c.nodes[c.leaderOf(partition.Metadata)].b.host.Info(partition.Metadata)
		return err == nil && len(info.Voters) == 3
	})
	c.api(2).topic(t, "orders", 4)
	topic, err := c.nodes[0].b.coord.View().Topic("orders")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range topic.Partitions {
		if len(p.Replicas) != 3 {
			t.Fatalf("partition %v has replicas %v", p.ID, p.Replicas)
		}
	}
	for i := range c.nodes {
		c.publish(i, "orders", fmt.Sprintf("a%d", i), 20)
	}
	for i := range c.nodes {
		c.consume(i, "orders", fmt.Sprintf("g%d", i), 60)
	}
	dead := c.leaderOf(topic.Partitions[0].ID)
	c.nodes[dead].crash()
	alive := (dead + 1) % 3
	began := time.Now()
	c.publish(alive, "orders", "b", 40)
	t.Logf("forty messages were stored %v after a node died", time.Since(began).Round(time.Millisecond))
	for i := range c.nodes {
		c.consume(alive, "orders", fmt.Sprintf("g%d", i), 40)
	}
	if err := c.nodes[dead].start(); err != nil {
		t.Fatal(err)
	}
	c.publish(dead, "orders", "c", 10)
	got := c.consume(dead, "orders", "all", 110)
	for k, list := range got {
		var last = map[byte]int{}
		for _, body := range list {
			var run, n int
			prefix := body[0]
			if prefix == 'a' {
				continue // three publishers
			}
			if _, err := fmt.Sscanf(body[1:], "-%d", &n); err != nil {
				t.Fatalf("%s: %v, %d", body, err, run)
			}
			if at, ok := last[prefix]; ok && n <= at {
				t.Errorf("key %s: %s after %d", k, body, at)
			}
			last[prefix] = n
		}
	}
	inTime(t, "the same everywhere", func() bool {
		for _, p := range topic.Partitions {
			var ends []partition.Offset
			for _, n := range c.nodes {
				info, err := n.b.host.Info(p.ID)
				if err != nil {
					return false
				}
				ends = append(ends, info.Position.End)
			}
			if slices.Min(ends) != slices.Max(ends) {
				return false
			}
		}
		return true
	})
}

// A cluster that was stopped as a whole comes back, whichever node is first.
func TestClusterRestarts(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.api(0).topic(t, "orders", 2)
	c.publish(1, "orders", "a", 10)
	inTime(t, "three voters of the metadata log", func() bool {
		info, err := c.nodes[c.leaderOf(partition.Metadata)].b.host.Info(partition.Metadata)
		return err == nil && len(info.Voters) == 3
	})
	for _, n := range c.nodes {
		n.stop()
	}
	var starting sync.WaitGroup
	for i := range c.nodes {
		n := c.nodes[2-i]
		n.cfg.Cluster = &ClusterConfig{} // the folder remembers
		starting.Go(func() {
			if err := n.start(); err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	c.publish(2, "orders", "b", 10)
	c.consume(1, "orders", "g", 20)
	for n := range c.nodes[0].b.coord.View().Nodes() {
		if n.State != coordinator.Active {
			t.Errorf("node %v is %v", n.ID, n.State)
		}
	}
}

// A node that comes to lead the metadata log while it looks for who does asks itself. In
// a cluster that starts, whose nodes wait until the log says where they are, it would
// else look until its patience is over.
func TestNodeAsksItself(t *testing.T) {
	c := startThree(t)
	b := c.nodes[c.leaderOf(partition.Metadata)].b
	res, err := atMetadata(ctx(t), b, true, func(r *remote) (*nodev1.RevisionResponse, error) {
		return r.sessions.Revision(ctx(t), &nodev1.RevisionRequest{})
	})
	if err != nil || res.GetRevision() == 0 {
		t.Errorf("it asks for the revision and gets %v, %v", res, err)
	}
	if err := b.agent.sayWhere(ctx(t), b.agent.address()); err != nil {
		t.Errorf("it says where it is: %v", err)
	}
	if n, _ := b.coord.View().Node(b.cfg.Node); n == nil || n.Address != b.agent.address() {
		t.Errorf("it is known at %+v, and is at %+v", n, b.agent.address())
	}
}
