package broker

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// The map of a cluster of three is shown, planned for and changed through the API,
// though here is one node only: what it says does not depend on who carries it out.
func TestClusterOnTheMap(t *testing.T) {
	b := start(t, t.TempDir())
	api := newAPI(t, b.URL())
	api.topic(t, "orders", 2)
	own, _ := b.coord.View().Node(1)
	at := own.Address
	at.Peer = "10.0.0.1:7172"
	if _, err := b.coord.UpdateNode(ctx(t), 1, at); err != nil {
		t.Fatal(err)
	}

	// Tokens: the first makes the authority, and each lets one node in.
	for i, store := range []string{"s2", "s3", "s4"} {
		res, err := api.cluster.CreateJoinToken(ctx(t), &strandmqv1.CreateJoinTokenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		token, err := peer.ParseToken(res.GetToken())
		if err != nil {
			t.Fatal(err)
		}
		n, err := b.coord.AddNode(ctx(t), peer.Hash(token.Secret[:]), coordinator.Address{Store: store, Zone: "z", Rules: coordinator.Rules})
		if err != nil || n.ID != partition.NodeID(i+2) {
			t.Fatalf("%+v, %v", n, err)
		}
	}
	if a := b.coord.View().Cluster.Authority; len(a.Certificate) == 0 || strings.Contains(string(a.Certificate), "PRIVATE KEY") {
		t.Error("no authority was made, or its key is where its certificate should be")
	}

	res, err := api.cluster.DescribeCluster(ctx(t), &strandmqv1.DescribeClusterRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.GetNodes()) != 4 || res.GetNodes()[0].GetReplicas() != 2 || !res.GetNodes()[0].GetVotes() || res.GetNodes()[3].GetZone() != "z" {
		t.Errorf("nodes %v", res.GetNodes())
	}

	// More or fewer nodes than there are to be replicas would be undone at once.
	_, err = api.cluster.MovePartition(ctx(t), &strandmqv1.MovePartitionRequest{Topic: "orders", Partition: 1, Nodes: []uint64{1}})
	if r := problemOf(err).GetReason(); r != "REPLICATION" {
		t.Errorf("to one node: %s, %v", r, err)
	}
	// A move, looked at and made. Nobody carries it out here.
	to := &strandmqv1.MovePartitionRequest{Topic: "orders", Partition: 1, Nodes: []uint64{1, 3, 4}, DryRun: true}
	for _, dry := range []bool{true, false} {
		to.DryRun = dry
		moved, err := api.cluster.MovePartition(ctx(t), to)
		if err != nil || moved.GetMove().GetTopic() != "orders" || moved.GetMove().GetPartition() != 1 {
			t.Fatalf("%v, %v", moved, err)
		}
		res, err := api.cluster.DescribeCluster(ctx(t), &strandmqv1.DescribeClusterRequest{})
		if err != nil || len(res.GetMoving()) != map[bool]int{true: 0, false: 1}[dry] {
			t.Fatalf("after a move (dry %v): %v, %v", dry, res.GetMoving(), err)
		}
	}
	described, err := api.topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	if p := described.GetPartitions(); p[0].GetMoving() || !p[1].GetMoving() || len(p[1].GetNodes()) != 3 || p[1].GetLeader() != 1 {
		t.Errorf("partitions %v", p)
	}

	// What is dangerous wants the name again, and says first what would come.
	drain, err := api.cluster.DrainNode(ctx(t), &strandmqv1.DrainNodeRequest{Node: 3})
	if err != nil || drain.GetNode().GetState() != strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_DRAINING {
		t.Fatalf("%v, %v", drain, err)
	}
	if undone, err := api.cluster.DrainNode(ctx(t), &strandmqv1.DrainNodeRequest{Node: 3, Undo: true}); err != nil || undone.GetNode().GetState() != strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_ACTIVE {
		t.Fatalf("%v, %v", undone, err)
	}
	for _, c := range []struct {
		what   string
		call   func() error
		reason string
	}{
		{"remove, not confirmed", func() error {
			_, err := api.cluster.RemoveNode(ctx(t), &strandmqv1.RemoveNodeRequest{Node: 2})
			return err
		}, "NOT_CONFIRMED"},
		{"remove what holds something", func() error {
			_, err := api.cluster.RemoveNode(ctx(t), &strandmqv1.RemoveNodeRequest{Node: 1, Confirm: "n1"})
			return err
		}, "NODE_HOLDS"},
		{"replace what is there", func() error {
			_, err := api.cluster.ReplaceNode(ctx(t), &strandmqv1.ReplaceNodeRequest{Node: 1, Confirm: "n1"})
			return err
		}, "NODE_HOLDS"},
		{"replace, not confirmed", func() error {
			_, err := api.cluster.ReplaceNode(ctx(t), &strandmqv1.ReplaceNodeRequest{Node: 4, Confirm: "4"})
			return err
		}, "NOT_CONFIRMED"},
		{"no node 0", func() error {
			_, err := api.cluster.DrainNode(ctx(t), &strandmqv1.DrainNodeRequest{})
			return err
		}, "BAD_VALUE"},
		{"no node 9", func() error {
			_, err := api.cluster.DrainNode(ctx(t), &strandmqv1.DrainNodeRequest{Node: 9, DryRun: true})
			return err
		}, "UNKNOWN_NODE"},
		{"a token for ever", func() error {
			_, err := api.cluster.CreateJoinToken(ctx(t), &strandmqv1.CreateJoinTokenRequest{ValidMs: 1 << 40})
			return err
		}, "BAD_VALUE"},
		{"a token of the past", func() error {
			_, err := api.cluster.CreateJoinToken(ctx(t), &strandmqv1.CreateJoinTokenRequest{ValidMs: -1})
			return err
		}, "BAD_VALUE"},
		{"five replicas of four nodes", func() error {
			_, err := api.topics.CreateTopic(ctx(t), &strandmqv1.CreateTopicRequest{Topic: "five", Config: &strandmqv1.TopicConfig{Replication: proto.Uint32(5)}})
			return err
		}, "REPLICATION"},
	} {
		t.Run(c.what, func(t *testing.T) { wantReason(t, c.call(), c.reason) })
	}
	dry, err := api.cluster.ReplaceNode(ctx(t), &strandmqv1.ReplaceNodeRequest{Node: 4, DryRun: true})
	if err != nil || dry.GetNode().GetState() != strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_ACTIVE {
		t.Fatalf("%v, %v", dry, err)
	}
	lost, err := api.cluster.ReplaceNode(ctx(t), &strandmqv1.ReplaceNodeRequest{Node: 4, Confirm: "n4"})
	if err != nil || lost.GetNode().GetState() != strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_LOST {
		t.Fatalf("%v, %v", lost, err)
	}
	gone, err := api.cluster.RemoveNode(ctx(t), &strandmqv1.RemoveNodeRequest{Node: 2, Confirm: "n2"})
	if err != nil || gone.GetNode().GetState() != strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_REMOVED {
		t.Fatalf("%v, %v", gone, err)
	}
}
