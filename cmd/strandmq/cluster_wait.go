package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/quantity"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

const (
	clusterEvery    = 500 * time.Millisecond // between two looks at what is left
	clusterPatience = 10 * time.Minute       // how long a cluster that does not answer is asked again
)

// waitFlag adds --wait to a command that has --dry-run.
func waitFlag(c *cobra.Command, wait *bool, until string) {
	c.Flags().BoolVar(wait, "wait", false, "wait until "+until+"; Ctrl-C ends the wait and nothing else")
}

// waitsFor refuses a wait beside a flag with which there is nothing to wait for.
func waitsFor(wait bool, flag string, set bool) error {
	if wait && set {
		return usagef("--wait with %s: there is nothing to wait for", flag)
	}
	return nil
}

// left counts what is left of what a command set going, or says why that came to nothing.
type left func(*strandmqv1.DescribeClusterResponse) (int, error)

// await waits until nothing is left, and says how much is, and what it lacks. unit is what
// is counted.
func (a *app) await(ctx context.Context, title, unit string, left left) error {
	waiting := func(err error, d time.Duration) { a.talk("waiting %v: %v", d.Round(time.Millisecond), err) }
	api := a.dial().cluster
	tick := time.NewTicker(clusterEvery)
	defer tick.Stop()
	m := a.newMeter(title, 0)
	defer m.end()
	lacked := ""
	for {
		res, err := patiently(ctx, clusterPatience, waiting, api.DescribeCluster, &strandmqv1.DescribeClusterRequest{})
		if err != nil {
			return err
		}
		n, err := left(res)
		if behind := res.GetBehind() != ""; !behind && (err != nil || n == 0) {
			return err // of a map that is behind neither is certain
		}
		m.total = max(m.total, int64(n))
		if now := lacks(res); now != lacked {
			m.end()
			if lacked = now; now != "" {
				a.talk("%s", now)
			}
		}
		m.at(m.total-int64(n), fmt.Sprintf("%d %s to go", n, unit))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// lacks is what has to happen first, for what should move and cannot.
func lacks(res *strandmqv1.DescribeClusterResponse) string {
	var lines []string
	if b := res.GetBehind(); b != "" {
		lines = append(lines, b)
	}
	type reason struct{ why, needs string }
	count := map[reason]int{}
	for _, s := range res.GetStuck() {
		count[reason{s.GetWhy(), s.GetNeeds()}]++
	}
	for r, n := range count {
		lines = append(lines, fmt.Sprintf("%s cannot move (%s): %s", quantity.Some(n, "partition"), r.why, r.needs))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// drained counts what a node that is drained still has.
func drained(node uint64) left {
	return func(res *strandmqv1.DescribeClusterResponse) (int, error) {
		n := clusterNode(res, node)
		if n.GetState() == strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_ACTIVE {
			return 0, fmt.Errorf("node n%d is active again: somebody ended the draining", node)
		}
		has := int(n.GetReplicas())
		if n.GetVotes() {
			has++ // the metadata log
		}
		for _, m := range res.GetMoving() {
			if slices.Contains(m.GetLeaving(), node) {
				has++
			}
		}
		return has, nil
	}
}

// replaced counts what is to be made anew of a node that is given up, and the node itself.
func replaced(node uint64) left {
	return func(res *strandmqv1.DescribeClusterResponse) (int, error) {
		n := clusterNode(res, node)
		if n == nil {
			return 0, nil
		}
		return int(n.GetReplicas()) + 1, nil
	}
}

// moved counts a partition that is not where it is wanted.
func moved(topic string, number uint32) left {
	return func(res *strandmqv1.DescribeClusterResponse) (int, error) {
		if slices.ContainsFunc(res.GetMoving(), func(m *strandmqv1.PartitionMove) bool {
			return m.GetTopic() == topic && m.GetPartition() == number
		}) {
			return 1, nil
		}
		return 0, nil
	}
}

// clusterNode is a node of the cluster; nil: it is not there any more.
func clusterNode(res *strandmqv1.DescribeClusterResponse, node uint64) *strandmqv1.ClusterNode {
	for _, n := range res.GetNodes() {
		if n.GetNode() == node {
			return n
		}
	}
	return nil
}
