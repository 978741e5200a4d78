package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// moving is a cluster that shows one state after the other, and the last one for good.
type moving struct {
	strandmqv1connect.UnimplementedClusterServiceHandler
	states []*strandmqv1.DescribeClusterResponse
	looks  atomic.Int32
}

func (m *moving) DescribeCluster(context.Context, *strandmqv1.DescribeClusterRequest) (*strandmqv1.DescribeClusterResponse, error) {
	return m.states[min(int(m.looks.Add(1)), len(m.states))-1], nil
}

func (m *moving) DrainNode(context.Context, *strandmqv1.DrainNodeRequest) (*strandmqv1.DrainNodeResponse, error) {
	return &strandmqv1.DrainNodeResponse{}, nil
}

func (m *moving) ReplaceNode(context.Context, *strandmqv1.ReplaceNodeRequest) (*strandmqv1.ReplaceNodeResponse, error) {
	return &strandmqv1.ReplaceNodeResponse{}, nil
}

func (m *moving) MovePartition(context.Context, *strandmqv1.MovePartitionRequest) (*strandmqv1.MovePartitionResponse, error) {
	return &strandmqv1.MovePartitionResponse{Move: &strandmqv1.PartitionMove{}}, nil
}

// A wait ends when nothing is left by the word of a cluster that is not behind, and not
// before; or with why it is in vain.
func TestWaitForTheCluster(t *testing.T) {
	t.Parallel()
	type state = strandmqv1.DescribeClusterResponse
	node := func(s strandmqv1.ClusterNodeState, replicas uint32, votes bool) []*strandmqv1.ClusterNode {
		return []*strandmqv1.ClusterNode{{Node: 1, State: strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_ACTIVE, Replicas: 9}, {Node: 3, State: s, Replicas: replicas, Votes: votes}}
	}
	const active, draining, lost = strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_ACTIVE, strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_DRAINING, strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_LOST
	leaves := []*strandmqv1.PartitionMove{{Topic: "orders", Partition: 4, Leaving: []uint64{3}}}
	stuck := []*strandmqv1.StuckPartition{{Topic: "orders", Partition: 1, Why: "it is drained", Needs: "add a node"}, {Topic: "orders", Partition: 2, Why: "it is drained", Needs: "add a node"}}
	none := &state{Nodes: node(draining, 0, false)}
	for name, test := range map[string]struct {
		args   string
		states []*state
		looks  int32
		says   string
		code   int
	}{
		"drained":    {"drain 3", []*state{{Nodes: node(draining, 1, true)}, {Nodes: node(draining, 0, true)}, {Nodes: node(draining, 0, false), Moving: leaves}, none}, 4, "node n3 holds nothing any more", exitDone},
		"behind":     {"drain 3", []*state{{Nodes: none.GetNodes(), Behind: "it may be behind"}, none}, 2, "it may be behind", exitDone},
		"stuck":      {"drain 3", []*state{{Nodes: node(draining, 2, false), Stuck: stuck}, {Nodes: node(draining, 2, false), Stuck: stuck}, none}, 3, "2 partitions cannot move (it is drained): add a node", exitDone},
		"undone":     {"drain 3", []*state{{Nodes: node(draining, 1, false)}, {Nodes: node(active, 1, false)}}, 2, "node n3 is active again", exitFailed},
		"not undone": {"drain 3", []*state{{Nodes: node(active, 1, false), Behind: "it may be behind"}, none}, 2, "node n3 holds nothing any more", exitDone},
		"gone":       {"drain 3", []*state{{Nodes: none.GetNodes()[:1]}}, 1, "node n3 holds nothing any more", exitDone},
		"replaced": {"replace 3 --confirm n3", []*state{{Nodes: node(lost, 1, false)}, {Nodes: node(lost, 0, false)}, {Nodes: none.GetNodes()[:1]}}, 3,
			"what node n3 held is made anew", exitDone},
		"moved": {"move orders 4 --to 1", []*state{{Moving: leaves}, {Moving: []*strandmqv1.PartitionMove{{Topic: "orders", Partition: 5}, {Topic: "other", Partition: 4}}}}, 2,
			"nothing of partition 4 of orders is on the move", exitDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &moving{states: test.states}
			mux := http.NewServeMux()
			mux.Handle(strandmqv1connect.NewClusterServiceHandler(m))
			s := httptest.NewServer(mux)
			defer s.Close()
			var out bytes.Buffer
			args := append(append([]string{"cluster"}, strings.Fields(test.args)...), "--wait", "--server", s.URL)
			code := run(&app{in: strings.NewReader(""), out: &out, err: &out}, args)
			if code != test.code || m.looks.Load() != test.looks || strings.Count(out.String(), test.says) != 1 {
				t.Errorf("exit code %d (want %d) after %d looks (want %d); it should say once %q:\n%s", code, test.code, m.looks.Load(), test.looks, test.says, &out)
			}
		})
	}
}
