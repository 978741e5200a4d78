package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// add has one more node join, by the newest one that runs.
func (c *three) add(change ...func(*Config)) *clusterNode {
	c.t.Helper()
	at := len(c.nodes) - 1
	for c.nodes[at].stopped {
		at--
	}
	res, err := c.api(at).cluster.CreateJoinToken(ctx(c.t), &strandmqv1.CreateJoinTokenRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	n := newClusterNode(c.t, ClusterConfig{Listen: "127.0.0.1:0", Join: c.nodes[at].b.agent.transport.Addr().String(), Token: res.GetToken()}, change...)
	if err := n.start(); err != nil {
		c.t.Fatal(err)
	}
	c.nodes = append(c.nodes, n)
	return n
}

// partitionsOf are a topic's partitions as a node knows them.
func (c *three) partitionsOf(i int, topic string) []coordinator.Partition {
	c.t.Helper()
	t, err := c.nodes[i].b.coord.View().Topic(topic)
	if err != nil {
		c.t.Fatal(err)
	}
	return t.Partitions
}

// awaitOff waits until a node holds nothing of a topic any more, and every partition
// has three voters that are not on it.
func (c *three) awaitOff(topic string, gone partition.NodeID) {
	c.t.Helper()
	for _, p := range c.partitionsOf(c.leaderOf(partition.Metadata), topic) {
		inTime(c.t, fmt.Sprintf("three voters of %v without node %v", p.ID, gone), func() bool {
			info, err := c.nodes[c.leaderOf(p.ID)].b.host.Info(p.ID)
			now, ok := c.nodes[c.leaderOf(partition.Metadata)].b.coord.View().Partition(p.ID)
			return err == nil && ok && !now.Moving() && len(info.Voters) == 3 && len(now.Replicas) == 3 &&
				!slices.ContainsFunc(info.Voters, func(r partition.ReplicaID) bool { return r.Node() == gone })
		})
	}
}

// A node's disk is lost. It is given up, a new one joins and takes its place, the
// old one is removed, and every message is there.
func TestReplaceLostDisk(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	c.api(0).topic(t, "orders", 3)
	c.publish(0, "orders", "a", 20)
	lost := c.nodes[2].b.cfg.Node
	replace := func(dry bool) (*strandmqv1.ReplaceNodeResponse, error) {
		return c.api(0).cluster.ReplaceNode(ctx(t), &strandmqv1.ReplaceNodeRequest{Node: uint64(lost), Confirm: lost.String(), DryRun: dry})
	}
	if _, err := replace(false); problemOf(err).GetReason() != "NODE_HOLDS" {
		t.Errorf("a node that is there was given up: %v", err)
	}
	c.nodes[2].crash()
	if err := os.RemoveAll(c.nodes[2].cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	inTime(t, "the node's silence", func() bool {
		res, err := replace(true)
		return err == nil && res.GetNode().GetState() == strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_ACTIVE
	})
	res, err := replace(false)
	if err != nil || res.GetNode().GetState() != strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_LOST {
		t.Fatalf("%v, %v", res, err)
	}
	c.publish(0, "orders", "b", 10)
	c.add()
	c.awaitOff("orders", lost)
	inTime(t, "the removal", func() bool {
		n, ok := c.nodes[0].b.coord.View().Node(lost)
		return ok && n.State == coordinator.Removed
	})
	for _, kind := range []coordinator.EventKind{coordinator.NodeGivenUp, coordinator.NodeRemoved} {
		c.api(3).awaitEvent(t, kind, func(e *strandmqv1.ClusterEvent) bool { return e.GetNode() == uint64(lost) && e.GetCount() == 1 })
	}
	// The new node counts: with it and one of the others all goes on.
	c.nodes[1].crash()
	c.publish(3, "orders", "c", 10)
	c.consume(3, "orders", "g", 40)
}

// A node that runs is cut off, given up, and reached again: the map that says so does not
// come to it any more, but the others do not know it. It ends, and says why.
func TestRemovedWhileCutOff(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	gone := c.nodes[2]
	id := gone.b.cfg.Node
	for _, n := range c.nodes[:2] {
		// They take nothing from it and send it nothing, until their maps are others.
		left := map[uint64]peer.Member{}
		for m := range n.b.coord.View().Nodes() {
			if m.ID != id {
				left[uint64(m.ID)] = peer.Member{Address: m.Peer, Store: storeID(m.Store), Boot: m.Boot, Life: m.Life}
			}
		}
		n.b.agent.transport.SetNodes(left)
	}
	inTime(t, "the node given up", func() bool {
		res, err := c.api(0).cluster.ReplaceNode(ctx(t), &strandmqv1.ReplaceNodeRequest{Node: uint64(id), Confirm: id.String()})
		return err == nil && res.GetNode().GetState() == strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_LOST
	})
	select {
	case err := <-gone.b.Failed():
		var e *StartError
		var why *peer.ErrRefused
		if !errors.As(err, &e) || e.Reason != NodeRefused || !errors.As(err, &why) || why.Reason != peer.NotMember {
			t.Fatal(err)
		}
	case <-ctx(t).Done():
		t.Fatal("it goes on")
	}
}

// A node that is dead for longer than the delay is given up by itself: a fourth one
// gets its replicas.
func TestDeadNodeIsMadeAnewElsewhere(t *testing.T) {
	t.Parallel()
	soon := func(cfg *Config) { cfg.Balance.DeadAfter = 3_000 }
	c := startThree(t, soon)
	c.add(soon)
	inTime(t, "voters", func() bool {
		info, err := c.nodes[c.leaderOf(partition.Metadata)].b.host.Info(partition.Metadata)
		return err == nil && len(info.Voters) == 3
	})
	c.api(0).topic(t, "orders", 4)
	c.publish(0, "orders", "a", 20)
	dead := c.nodes[1].b.cfg.Node
	c.nodes[1].crash()
	c.publish(0, "orders", "b", 10)
	c.awaitOff("orders", dead)
	c.publish(0, "orders", "c", 10)
	c.consume(2, "orders", "g", 40)
	// It is no node that was given up: it comes back, erases what is not its own any
	// more, and is there for what is new.
	if err := c.nodes[1].start(); err != nil {
		t.Fatal(err)
	}
	inTime(t, "what it had is erased", func() bool {
		h := c.nodes[0].b.coord.View().Held()[dead]
		return h.Leaving == 0
	})
}

// logBuffer is a log to look at.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), text)
}

// A node was away for so long that the log that it would need is gone: it gets a
// snapshot, and then leads with what it got.
func TestAwayTooLongForTheLog(t *testing.T) {
	t.Parallel()
	small := func(cfg *Config) {
		cfg.Host.FollowerBytes, cfg.Host.CheckpointBytes, cfg.RetentionEvery = 256<<10, 256<<10, 50*time.Millisecond
	}
	c := startThree(t, small)
	c.awaitVoters()
	a := c.api(0)
	if _, err := a.topics.CreateTopic(ctx(t), &strandmqv1.CreateTopicRequest{
		Topic: "orders", Partitions: 1, Config: &strandmqv1.TopicConfig{RetentionBytes: proto.Int64(256 << 10)},
	}); err != nil {
		t.Fatal(err)
	}
	c.publish(0, "orders", "a", 3)
	id := c.partitionsOf(0, "orders")[0].ID
	away := c.nodes[2]
	held, err := away.b.host.Info(id)
	if err != nil {
		t.Fatal(err)
	}
	away.stop()
	body := strings.Repeat("x", 64<<10)
	inTime(t, "the log is cut", func() bool {
		m := msg("k", body)
		_, err := c.api(0).publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{m, m}})
		info, ierr := c.nodes[c.leaderOf(id)].b.host.Info(id)
		return err == nil && ierr == nil && info.FirstIndex > held.LastIndex+1
	})
	c.publish(0, "orders", "b", 3)
	talk := &logBuffer{}
	away.cfg.Logger = slog.New(slog.NewTextHandler(talk, nil))
	if err := away.start(); err != nil {
		t.Fatal(err)
	}
	inTime(t, "a snapshot", func() bool { return talk.has("a snapshot was taken in") })
	inTime(t, "it has caught up", func() bool {
		there, err := c.nodes[c.leaderOf(id)].b.host.Info(id)
		here, herr := away.b.host.Info(id)
		return err == nil && herr == nil && here.Position.End == there.Position.End && here.Position.Start == there.Position.Start
	})
	c.nodes[c.leaderOf(id)].crash()
	c.publish(2, "orders", "c", 3)
}

// Each node is stopped and started in turn, as for a new version. What it leads is
// led by others before it stops: publishing through the others sees no error.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	c.api(0).topic(t, "orders", 6)
	c.publish(0, "orders", "a", 6)
	sent := 6
	for i, n := range c.nodes {
		through := newAPI(t, c.nodes[(i+1)%3].b.URL())
		stop := make(chan struct{})
		var publishing sync.WaitGroup
		var stored atomic.Int64
		for k := range 4 {
			publishing.Go(func() {
				for j := 0; ; j++ {
					select {
					case <-stop:
						return
					default:
					}
					m := msg(fmt.Sprintf("k%d.%d", k, j%20), fmt.Sprintf("r%d-%d-%d", i, k, j))
					m.Id = m.GetText()
					res, err := through.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{m}})
					switch {
					case err != nil:
						t.Errorf("node %d stops: %v", i+1, err)
						return
					case res.GetResults()[0].GetProblem() != nil:
						t.Errorf("node %d stops: %v", i+1, res.GetResults()[0].GetProblem())
						return
					}
					stored.Add(1)
				}
			})
		}
		inTime(t, "publishing", func() bool { return stored.Load() > 20 })
		n.stop()
		at := stored.Load()
		inTime(t, "publishing without it", func() bool { return stored.Load() > at+20 })
		if err := n.start(); err != nil {
			t.Fatal(err)
		}
		at = stored.Load()
		inTime(t, "publishing with it", func() bool { return stored.Load() > at+20 })
		close(stop)
		publishing.Wait()
		sent += int(stored.Load())
		c.awaitVoters()
	}
	c.consume(0, "orders", "g", sent)
}

// A certificate is made anew when half of its life is over, and taken into use while
// everything goes on.
func TestCertificateIsMadeAnew(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	c.api(0).topic(t, "orders", 1)
	n := c.nodes[1]
	was := n.b.agent.identity.Expires()
	n.b.agent.renew(time.Now())
	if again, err := peer.Load(identityDir(n.cfg.DataDir)); err != nil || !again.Expires().Equal(was) {
		t.Fatalf("a certificate that is new was made anew: %v", err)
	}
	var again *peer.Identity
	inTime(t, "another certificate", func() (made bool) { // they count in seconds
		n.b.agent.renew(was.Add(-time.Hour))
		var err error
		again, err = peer.Load(identityDir(n.cfg.DataDir))
		return err == nil && again.Expires().After(was) && again.Node() == uint64(n.b.cfg.Node)
	})
	inTime(t, "the new one is in use", func() bool { return n.b.agent.identity.Expires().Equal(again.Expires()) })
	c.publish(1, "orders", "a", 10)
	n.stop()
	if err := n.start(); err != nil {
		t.Fatal(err)
	}
	c.publish(1, "orders", "b", 10)
	c.consume(1, "orders", "g", 20)
}

// A node is drained while messages are published and consumed through it: nothing is
// lost, no key's order is broken, and what is new goes on.
func TestDrainUnderLoad(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.add()
	c.api(0).topic(t, "orders", 6)
	leaves := c.nodes[1].b.cfg.Node
	var working sync.WaitGroup
	const each = 150
	for k := range 4 {
		a := c.api(k)
		working.Go(func() {
			for j := range each {
				m := msg(fmt.Sprintf("k%d.%d", k, j%10), fmt.Sprintf("%d", j/10))
				m.Id = fmt.Sprintf("%d-%d", k, j)
				for {
					res, err := a.publish.Publish(context.WithoutCancel(t.Context()), &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{m}})
					if err == nil && res.GetResults()[0].GetProblem() == nil || t.Context().Err() != nil {
						break
					}
				}
			}
		})
	}
	res, err := c.api(1).cluster.DrainNode(ctx(t), &strandmqv1.DrainNodeRequest{Node: uint64(leaves)})
	if err != nil || len(res.GetStuck()) > 0 {
		t.Fatalf("%v, %v", res, err)
	}
	got := c.consume(1, "orders", "g", 4*each)
	working.Wait()
	for k, list := range got {
		for i, body := range list {
			if body != fmt.Sprint(i) {
				t.Fatalf("key %s: %s is number %d", k, body, i)
			}
		}
	}
	c.awaitOff("orders", leaves)
	inTime(t, "a node without anything", func() bool {
		h := c.nodes[0].b.coord.View().Held()[leaves]
		return h.Replicas == 0 && h.Leaving == 0 && !h.Votes && len(c.nodes[1].b.host.Partitions()) == 1
	})
}
