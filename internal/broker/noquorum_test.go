package broker

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/grpchealth"

	"github.com/strandmq/strandmq/internal/heldport"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// With two of three nodes gone, the third goes on to answer what only looks, from
// what it holds and saying so; everything else is refused as NO_QUORUM, in the time
// that a call looks for a leader. It all goes on when one is back.
func TestMajorityLost(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	c.api(0).topic(t, "orders", 3)
	c.publish(0, "orders", "a", 9)
	c.consume(0, "orders", "g", 9)
	a := newAPI(t, c.nodes[0].b.URL()) // which sends nothing again
	c.nodes[1].crash()
	c.nodes[2].crash()
	b := c.nodes[0].b
	inTime(t, "the loss is seen", func() bool {
		info, err := b.host.Info(partition.Metadata)
		return err == nil && !info.Leading && len(b.missing(partition.Metadata)) == 2
	})

	says := func(what, behind string) {
		t.Helper()
		if !strings.Contains(behind, "may be behind") || !strings.Contains(behind, "n2 and n3 are not there") {
			t.Errorf("%s does not say that it may be behind: %q", what, behind)
		}
	}
	cluster, err := a.cluster.DescribeCluster(ctx(t), &strandmqv1.DescribeClusterRequest{})
	if err != nil {
		t.Fatal(err)
	}
	says("the cluster", cluster.GetBehind())
	for _, n := range cluster.GetNodes() {
		if n.SilentMs == nil || (n.GetSilentMs() == 0) != (n.GetNode() == 1) {
			t.Errorf("node %d is silent for %v", n.GetNode(), n.SilentMs)
		}
	}
	topic, err := a.topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	says("the topic", topic.GetBehind())
	stored := uint64(0)
	for _, p := range topic.GetPartitions() {
		stored += p.GetEndOffset()
		if p.GetFaultReason() != "NO_QUORUM" || p.GetLeader() != 0 {
			t.Errorf("partition %d: %v", p.GetPartition(), p)
		}
	}
	if stored == 0 || stored > 9 {
		t.Errorf("%d messages are here", stored)
	}
	list, err := a.groups.ListGroups(ctx(t), &strandmqv1.ListGroupsRequest{})
	if err != nil || len(list.GetGroups()) != 1 || list.GetGroups()[0].GetCounts() == nil {
		t.Fatalf("%v, %v", list, err)
	}
	says("the list of groups", list.GetBehind())
	group, err := a.groups.DescribeGroup(ctx(t), &strandmqv1.DescribeGroupRequest{Topic: "orders", Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	says("the group", group.GetBehind())
	dead, err := a.dead.ListDeadLetters(ctx(t), &strandmqv1.ListDeadLettersRequest{Topic: "orders", Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	says("the dead letters", dead.GetBehind())
	trace, err := a.trace.Trace(ctx(t), &strandmqv1.TraceRequest{Topic: "orders", Which: &strandmqv1.TraceRequest_Id{Id: "a-0"}})
	if err != nil || len(trace.GetMessages()) != 1 {
		t.Fatalf("%v, %v", trace, err)
	}
	says("the trace", trace.GetBehind())
	topics, err := a.topics.ListTopics(ctx(t), &strandmqv1.ListTopicsRequest{})
	if err != nil || len(topics.GetTopics()) != 1 {
		t.Errorf("%v, %v", topics, err)
	}
	says("the list of topics", topics.GetBehind())
	for path, want := range map[string]int{"/livez": 200, "/startupz": 200, "/metrics": 200, "/readyz": 503} {
		code, body := get(t, b.URL()+path)
		if code != want {
			t.Errorf("%s: %d", path, code)
		}
		if path == "/readyz" && !strings.Contains(body, "[-] quorum: ") || path == "/metrics" && !strings.Contains(body, "\nstrandmq_ready 0\n") {
			t.Errorf("%s: %s", path, body)
		}
		if path == "/readyz" && !strings.Contains(body, "(NO_QUORUM): n2 and n3 are not there") {
			t.Errorf("%s: %s", path, body)
		}
	}
	if info, err := a.node.NodeInfo(ctx(t), &strandmqv1.NodeInfoRequest{}); err != nil || !strings.Contains(info.GetLeaderless(), "n2 and n3 are not there") {
		t.Errorf("the node: %v, %v", info, err)
	}
	if res, err := (healthCheck{b}).Check(ctx(t), &grpchealth.CheckRequest{}); err != nil || res.Status != grpchealth.StatusNotServing {
		t.Errorf("the health service: %v, %v", res, err)
	}

	calls := map[string]func(context.Context) error{
		"create a topic": func(ctx context.Context) error {
			_, err := a.topics.CreateTopic(ctx, &strandmqv1.CreateTopicRequest{Topic: "more"})
			return err
		},
		"delete a topic": func(ctx context.Context) error {
			_, err := a.topics.DeleteTopic(ctx, &strandmqv1.DeleteTopicRequest{Topic: "orders", Confirm: "orders"})
			return err
		},
		"create a group": func(ctx context.Context) error {
			_, err := a.groups.CreateGroup(ctx, &strandmqv1.CreateGroupRequest{Topic: "orders", Group: "h"})
			return err
		},
		"reset a group": func(ctx context.Context) error {
			_, err := a.groups.ResetGroup(ctx, &strandmqv1.ResetGroupRequest{Topic: "orders", Group: "g", To: &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Earliest{Earliest: true}}})
			return err
		},
		"publish": func(ctx context.Context) error {
			res, err := a.publish.Publish(ctx, &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{msg("k1", "x")}})
			if p := res.GetResults(); err == nil && p[0].GetProblem() != nil {
				return refuse(p[0].GetProblem().GetReason(), "", "%s", p[0].GetProblem().GetMessage())
			}
			return err
		},
		"receive": func(ctx context.Context) error {
			_, err := a.consume.Receive(ctx, &strandmqv1.ReceiveRequest{Topic: "orders", Group: "g", Member: "other", WaitMs: 100})
			return err
		},
		"drain": func(ctx context.Context) error {
			_, err := a.cluster.DrainNode(ctx, &strandmqv1.DrainNodeRequest{Node: 3})
			return err
		},
		"plan a drain": func(ctx context.Context) error {
			_, err := a.cluster.DrainNode(ctx, &strandmqv1.DrainNodeRequest{Node: 3, DryRun: true})
			return err
		},
		"replace": func(ctx context.Context) error {
			_, err := a.cluster.ReplaceNode(ctx, &strandmqv1.ReplaceNodeRequest{Node: 3, Confirm: "n3"})
			return err
		},
		"remove": func(ctx context.Context) error {
			_, err := a.cluster.RemoveNode(ctx, &strandmqv1.RemoveNodeRequest{Node: 3, Confirm: "n3"})
			return err
		},
		"move": func(ctx context.Context) error {
			_, err := a.cluster.MovePartition(ctx, &strandmqv1.MovePartitionRequest{Topic: "orders", Nodes: []uint64{1}})
			return err
		},
		"make a join token": func(ctx context.Context) error {
			_, err := a.cluster.CreateJoinToken(ctx, &strandmqv1.CreateJoinTokenRequest{})
			return err
		},
	}
	t.Run("refused", func(t *testing.T) {
		for name, call := range calls {
			t.Run(name, func(t *testing.T) {
				t.Parallel() // each takes as long as a call looks for a leader
				limit, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				reason := "OUTCOME_UNKNOWN" // as of one that was sent to a leader that was just dead
				var err error
				for reason == "OUTCOME_UNKNOWN" && limit.Err() == nil {
					err = call(limit)
					if r, ok := err.(*refusal); ok { //nolint:errorlint // of this test
						reason = r.reason
					} else {
						reason = problemOf(err).GetReason()
					}
				}
				if reason != "NO_QUORUM" || !strings.Contains(err.Error(), "n2 and n3 are not there") {
					t.Errorf("got %s: %v", reason, err)
				}
			})
		}
	})
	if err := c.nodes[1].start(); err != nil {
		t.Fatal(err)
	}
	c.publish(0, "orders", "b", 9)
	c.consume(1, "orders", "g", 9)
	inTime(t, "the cluster is not behind", func() bool {
		cluster, err = a.cluster.DescribeCluster(ctx(t), &strandmqv1.DescribeClusterRequest{})
		return err == nil && cluster.GetBehind() == ""
	})
	inTime(t, "both are ready", func() bool {
		one, words := get(t, b.URL()+"/readyz?verbose")
		two, _ := get(t, c.nodes[1].b.URL()+"/readyz")
		return one == 200 && two == 200 && strings.Contains(words, "[+] quorum\n")
	})
}

// A node that starts and finds too few others says for whom it waits, to whoever asks and
// in its probes, and goes on when they are there.
func TestStartWaitsForMajority(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	for _, n := range c.nodes {
		n.stop()
	}
	lone := c.nodes[0]
	lone.cfg.Listen = heldport.Address(t) // it is asked before Start returns
	started := make(chan error, 1)
	go func() { started <- lone.start() }()
	a := newAPI(t, "http://"+lone.cfg.Listen)
	others := []string{"n2 (" + c.nodes[1].cfg.Cluster.Listen + ")", "n3 (" + c.nodes[2].cfg.Cluster.Listen + ")"}
	calls := map[string]func() error{
		"publish": func() error {
			_, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{msg("k", "x")}})
			return err
		},
		"cluster": func() error {
			_, err := a.cluster.DescribeCluster(ctx(t), &strandmqv1.DescribeClusterRequest{})
			return err
		},
		"node": func() error {
			_, err := a.node.NodeInfo(ctx(t), &strandmqv1.NodeInfoRequest{})
			return err
		},
	}
	for name, call := range calls {
		var p *strandmqv1.Problem
		inTime(t, name+" is told for whom the node waits", func() bool {
			p = problemOf(call())
			return p.GetReason() == "NO_QUORUM"
		})
		for _, want := range append(others, "waits for a majority of the 3 nodes") {
			if !strings.Contains(p.GetMessage(), want) {
				t.Errorf("%s: %q does not say %q", name, p.GetMessage(), want)
			}
		}
		if p.GetRetryAfterMs() == 0 {
			t.Errorf("%s is not told that it passes", name)
		}
	}
	for path, want := range map[string]string{"/livez": "ok", "/readyz": "waits for a majority", "/startupz": "waits for a majority"} {
		res, err := http.Get("http://" + lone.cfg.Listen + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: %q, %v; want %q", path, body, err, want)
		}
	}
	if err := c.nodes[1].start(); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	c.api(0).topic(t, "orders", 1)
	c.publish(0, "orders", "a", 3)
}
