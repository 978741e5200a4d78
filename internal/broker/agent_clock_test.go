package broker

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A node whose clock is far off is told so: by a minute, as a fault of both; by years,
// beyond the life of the certificates, it does not start.
func TestClockFarOff(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	third := c.nodes[2]
	by := func(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(d) } }
	third.stop()
	third.cfg.Cluster.clock = by(time.Minute)
	if err := third.start(); err != nil {
		t.Fatal(err)
	}
	for i, words := range map[int]string{0: "the clock of node n3 is 1m0", 2: "behind this one's"} {
		inTime(t, "the clock is told", func() bool {
			res, err := c.api(i).node.NodeInfo(ctx(t), &strandmqv1.NodeInfoRequest{})
			// The other two are of one mind; the third finds both wrong.
			off := map[uint64]bool{}
			for _, p := range res.GetPeers() {
				off[p.GetNode()] = p.GetClockOff() && (p.GetSkewMs() > 50_000 || p.GetSkewMs() < -50_000)
			}
			told := off[3] && !off[2]
			if i == 2 {
				told = off[1] && off[2]
			}
			return err == nil && told && slices.ContainsFunc(res.GetFaults(), func(f string) bool { return strings.Contains(f, words) })
		})
	}
	third.stop()
	for d, words := range map[time.Duration]string{3 * 365 * 24 * time.Hour: "CERTIFICATE_EXPIRED", -3 * 365 * 24 * time.Hour: "CLOCK_SKEW"} {
		third.cfg.Cluster.clock = by(d)
		refusedStart(t, third, NodeRefused, words)
	}
	third.cfg.Cluster.clock = nil
	if err := third.start(); err != nil {
		t.Fatal(err)
	}
	if n := c.leaderOf(partition.Metadata); n < 0 {
		t.Error("nobody leads")
	}
}

// The last nodes are not taken away, and nothing has more replicas than there are
// nodes.
func TestLastNodeStays(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	a := c.api(0)
	drain := func(n uint64) string {
		_, err := a.cluster.DrainNode(ctx(t), &strandmqv1.DrainNodeRequest{Node: n})
		return problemOf(err).GetReason()
	}
	if r := drain(2); r != "" {
		t.Fatal(r)
	}
	if r := drain(3); r != "" {
		t.Fatal(r)
	}
	for what, got := range map[string]string{
		"draining the last node":  drain(1),
		"draining a stranger":     drain(9),
		"removing one that holds": problemReason(a.cluster.RemoveNode(ctx(t), &strandmqv1.RemoveNodeRequest{Node: 1, Confirm: "n1"})),
	} {
		want := map[string]string{"draining the last node": "LAST_NODE", "draining a stranger": "UNKNOWN_NODE", "removing one that holds": "LAST_NODE"}[what]
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	three := uint32(3)
	_, err := a.topics.CreateTopic(ctx(t), &strandmqv1.CreateTopicRequest{Topic: "orders", Config: &strandmqv1.TopicConfig{Replication: &three}})
	if r := problemOf(err).GetReason(); r != "REPLICATION" {
		t.Errorf("three replicas on one active node: %s", r)
	}
	for _, n := range []uint64{2, 3} {
		if _, err := a.cluster.DrainNode(ctx(t), &strandmqv1.DrainNodeRequest{Node: n, Undo: true}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.topics.CreateTopic(ctx(t), &strandmqv1.CreateTopicRequest{Topic: "orders", Config: &strandmqv1.TopicConfig{Replication: &three}}); err != nil {
		t.Error(err)
	}
}

func problemReason[T any](_ T, err error) string { return problemOf(err).GetReason() }
