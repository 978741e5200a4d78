package main

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func (a *app) clusterCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "cluster",
		Short: "Show the nodes and change what they hold",
		Long: `Shows which nodes there are, what each holds, what is on the move and what cannot
move; drains, replaces and removes nodes, and moves partitions. What is changed is
written down at once and carried out by the nodes: 'strandmq cluster status' shows
how far they are.`,
		Example: `  strandmq cluster status
  strandmq cluster nodes --output json
  strandmq cluster drain 3 --dry-run`,
	}, a.clusterStatus(), a.clusterNodes(), a.clusterDrain(), a.clusterReplace(), a.clusterRemove(), a.clusterMove(), a.clusterToken())
}

func (a *app) clusterStatus() *cobra.Command {
	return command(&cobra.Command{
		Use:   "status",
		Short: "Show the nodes, what is on the move, and what is stuck",
		Long: `Shows the nodes, the partitions that are not yet where they are wanted, and those
that should move and cannot, with what has to happen first.`,
		Example: `  strandmq cluster status
  strandmq cluster status --output json | jq '.stuck'`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		res, err := ask(cmd.Context(), a.dial().cluster.DescribeCluster, &strandmqv1.DescribeClusterRequest{})
		if err != nil {
			return err
		}
		return a.show(res, func() error {
			a.facts("cluster", res.GetCluster(), "moving", countOrNone(len(res.GetMoving()), "partition", "partitions"),
				"stuck", countOrNone(len(res.GetStuck()), "partition", "partitions"))
			fmt.Fprintln(a.out)
			if err := a.printNodes(res.GetNodes()); err != nil {
				return err
			}
			if len(res.GetMoving()) > 0 {
				fmt.Fprintln(a.out)
			}
			if err := a.printMoves(res.GetMoving()); err != nil {
				return err
			}
			return a.printStuck(res.GetStuck())
		})
	})
}

func (a *app) clusterNodes() *cobra.Command {
	return command(&cobra.Command{
		Use:   "nodes",
		Short: "List the nodes",
		Long: `Lists the nodes: whether each is there, how many replicas it holds or is to hold,
how many of them it is to lead, how many are still to leave it, and whether it
votes in the log of the cluster's metadata.`,
		Example: `  strandmq cluster nodes
  strandmq cluster nodes --output json | jq '.nodes[].state'`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		res, err := ask(cmd.Context(), a.dial().cluster.DescribeCluster, &strandmqv1.DescribeClusterRequest{})
		if err != nil {
			return err
		}
		return a.show(res, func() error { return a.printNodes(res.GetNodes()) })
	})
}

// dryFlag adds --dry-run.
func dryFlag(c *cobra.Command, dry *bool) {
	c.Flags().BoolVar(dry, "dry-run", false, "only say what would happen")
}

func (a *app) clusterDrain() *cobra.Command {
	var undo, dry, wait bool
	c := command(&cobra.Command{
		Use:   "drain NODE",
		Short: "Have what a node holds go to other nodes",
		Long: `Has everything that a node holds go to other nodes, its leads first, so that it can
be removed. It ends at once, and the nodes carry it out; with --wait it ends when they have.
--undo makes the node active again: what has not left it stays.`,
		Example: `  strandmq cluster drain 3 --dry-run
  strandmq cluster drain 3 --wait && strandmq cluster remove 3 --confirm n3
  strandmq cluster drain 3 --undo`,
		Args: exact("NODE"),
	}, func(cmd *cobra.Command, args []string) error {
		if err := cmp.Or(waitsFor(wait, "--dry-run", dry), waitsFor(wait, "--undo", undo)); err != nil {
			return err
		}
		n, err := nodeNumber(args[0])
		if err != nil {
			return err
		}
		res, err := ask(cmd.Context(), a.dial().cluster.DrainNode, &strandmqv1.DrainNodeRequest{Node: n, Undo: undo, DryRun: dry})
		if err != nil {
			return err
		}
		switch {
		case dry && undo:
			a.talk("nothing was changed; node n%d would be active again", n)
		case dry && len(res.GetMoves()) == 0:
			a.talk("nothing was changed; nothing would move")
		case dry:
			a.talk("nothing was changed; this would move:")
		case undo:
			a.talk("node n%d is active again", n)
		default:
			a.talk("node n%d is being drained", n)
			if len(res.GetStuck()) > 0 {
				a.talk("not all of it can go as things are: see what it needs")
			}
		}
		err = a.show(res, func() error { return a.printPlan(res.GetMoves(), res.GetStuck()) })
		if err != nil || !wait {
			return err
		}
		if err := a.await(cmd.Context(), "draining n"+strconv.FormatUint(n, 10), "replicas", drained(n)); err != nil {
			return err
		}
		a.talk("node n%d holds nothing any more", n)
		return nil
	})
	c.Flags().BoolVar(&undo, "undo", false, "end the draining")
	dryFlag(c, &dry)
	waitFlag(c, &wait, "the node holds nothing")
	return c
}

func (a *app) clusterReplace() *cobra.Command {
	var confirm string
	var dry, wait bool
	c := command(&cobra.Command{
		Use:   "replace NODE",
		Short: "Give up a node whose disk is lost",
		Long: `Gives up what a node holds, since its disk is lost: its replicas are made anew on
other nodes at once, without waiting, and then the node is removed. It can never
come back; a new node takes its place by joining. A node that has the only replica
of a partition is not given up. The name has to be typed again: at a terminal by
hand, elsewhere with --confirm.`,
		Example: `  strandmq cluster replace 3 --dry-run
  strandmq cluster replace 3 --confirm n3 --wait`,
		Args: exact("NODE"),
	}, func(cmd *cobra.Command, args []string) error {
		n, err := nodeNumber(args[0])
		if err != nil {
			return err
		}
		if err := waitsFor(wait, "--dry-run", dry); err != nil {
			return err
		}
		name := "n" + strconv.FormatUint(n, 10)
		// The first call only looks: to type a name again for what is refused helps
		// nobody.
		req := &strandmqv1.ReplaceNodeRequest{Node: n, Confirm: name, DryRun: true}
		res, err := ask(cmd.Context(), a.dial().cluster.ReplaceNode, req)
		if err != nil {
			return err
		}
		if dry {
			a.talk("nothing was changed; this would be made anew:")
		} else {
			if err := a.confirmed(cmd.Context(), name, confirm, "Giving up what node "+name+" holds"); err != nil {
				return err
			}
			req.DryRun = false
			if res, err = ask(cmd.Context(), a.dial().cluster.ReplaceNode, req); err != nil {
				return err
			}
			a.talk("node %s is given up; it is removed when nothing is left to be made anew", name)
		}
		err = a.show(res, func() error { return a.printPlan(res.GetMoves(), res.GetStuck()) })
		if err != nil || !wait {
			return err
		}
		if err := a.await(cmd.Context(), "replacing "+name, "replicas", replaced(n)); err != nil {
			return err
		}
		a.talk("what node %s held is made anew, and it is removed", name)
		return nil
	})
	c.Flags().StringVar(&confirm, "confirm", "", "the node's name again, such as n3")
	dryFlag(c, &dry)
	waitFlag(c, &wait, "all is made anew and the node is removed")
	return c
}

func (a *app) clusterRemove() *cobra.Command {
	var confirm string
	var dry bool
	c := command(&cobra.Command{
		Use:   "remove NODE",
		Short: "Take a node that holds nothing out of the cluster",
		Long: `Takes a node out of the cluster, for good. It must hold nothing any more: drain it
first. The name has to be typed again: at a terminal by hand, elsewhere with
--confirm.`,
		Example: `  strandmq cluster remove 3 --dry-run
  strandmq cluster remove 3 --confirm n3`,
		Args: exact("NODE"),
	}, func(cmd *cobra.Command, args []string) error {
		n, err := nodeNumber(args[0])
		if err != nil {
			return err
		}
		name := "n" + strconv.FormatUint(n, 10)
		req := &strandmqv1.RemoveNodeRequest{Node: n, Confirm: name, DryRun: true}
		res, err := ask(cmd.Context(), a.dial().cluster.RemoveNode, req)
		if err != nil {
			return err
		}
		if dry {
			a.talk("nothing was changed; node %s holds nothing and could be removed", name)
		} else {
			if err := a.confirmed(cmd.Context(), name, confirm, "Removing node "+name); err != nil {
				return err
			}
			req.DryRun = false
			if res, err = ask(cmd.Context(), a.dial().cluster.RemoveNode, req); err != nil {
				return err
			}
			a.talk("node %s removed", name)
		}
		return a.show(res, func() error { return nil })
	})
	c.Flags().StringVar(&confirm, "confirm", "", "the node's name again, such as n3")
	dryFlag(c, &dry)
	return c
}

func (a *app) clusterMove() *cobra.Command {
	var to []string
	var dry, wait bool
	c := command(&cobra.Command{
		Use:   "move TOPIC PARTITION",
		Short: "Say which nodes are to hold a partition",
		Long: `Says which nodes are to hold a partition, one, three or five; the first is to lead
it. With the same nodes in another order only the lead moves. It ends at once, and the
nodes carry it out; with --wait it ends when nothing of it is on the move any more. The cluster goes on
evening out what its nodes hold, which may move the partition again.`,
		Example: `  strandmq cluster move orders 0 --to 1,2,4 --dry-run
  strandmq cluster move orders 0 --to 1,2,4 --wait`,
		Args: exact("TOPIC", "PARTITION"),
	}, func(cmd *cobra.Command, args []string) error {
		number, err := strconv.ParseUint(args[1], 10, 32)
		if err != nil {
			return usagef("%q is no partition: partitions are numbered from 0", args[1])
		}
		req := &strandmqv1.MovePartitionRequest{Topic: args[0], Partition: uint32(number), DryRun: dry}
		for _, word := range to {
			n, err := nodeNumber(word)
			if err != nil {
				return err
			}
			req.Nodes = append(req.Nodes, n)
		}
		if len(req.Nodes) == 0 {
			return usagef("say where to: --to 1,2,3")
		}
		if err := waitsFor(wait, "--dry-run", dry); err != nil {
			return err
		}
		res, err := ask(cmd.Context(), a.dial().cluster.MovePartition, req)
		if err != nil {
			return toFlag(err)
		}
		if dry {
			a.talk("nothing was changed; this would move:")
		} else {
			a.talk("partition %d of %s is to be on %s", number, args[0], nodeList(req.GetNodes()))
		}
		err = a.show(res, func() error { return a.printMoves([]*strandmqv1.PartitionMove{res.GetMove()}) })
		if err != nil || !wait {
			return err
		}
		if err := a.await(cmd.Context(), "moving", "partition", moved(args[0], req.GetPartition())); err != nil {
			return err
		}
		a.talk("nothing of partition %d of %s is on the move any more", number, args[0])
		return nil
	})
	c.Flags().StringSliceVar(&to, "to", nil, "the nodes, the one that is to lead first")
	dryFlag(c, &dry)
	waitFlag(c, &wait, "nothing of the partition is on the move")
	return c
}

// toFlag words a refusal of the nodes for who typed them.
func toFlag(err error) error {
	var usage *usageError
	if !errors.As(err, &usage) {
		return err
	}
	text, ok := strings.CutPrefix(usage.text, "nodes: ")
	if !ok {
		return err
	}
	return &usageError{text: "--to: " + text}
}

func (a *app) clusterToken() *cobra.Command {
	valid := spanFlag{d: time.Hour}
	c := command(&cobra.Command{
		Use:   "token",
		Short: "Make a token that one node can join with",
		Long: `Makes a token that lets one node into the cluster, once, until its time is over.
It is a secret: who has it can join. It is shown only here.`,
		Example: `  strandmq cluster token
  strandmq cluster token --valid 10m`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		ms, err := millis("valid", valid.d)
		if err != nil {
			return err
		}
		if *ms == 0 || valid.d > 7*24*time.Hour {
			return usagef("--valid %s: use 1s to 7d", &valid)
		}
		res, err := ask(cmd.Context(), a.dial().cluster.CreateJoinToken, &strandmqv1.CreateJoinTokenRequest{ValidMs: *ms})
		if err != nil {
			return inFlags(cmd, err)
		}
		return a.show(res, func() error {
			a.talk("one node can join with this until %s:", stamp(res.GetExpires()))
			_, err := fmt.Fprintln(a.out, res.GetToken())
			return err
		})
	})
	c.Flags().Var(&valid, "valid", "how long it can be used (7d is the most)")
	c.Flags().Lookup("valid").DefValue = "1h"
	return c
}

// nodeNumber takes a node as 3 or n3.
func nodeNumber(word string) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(word, "n"), 10, 32)
	if err != nil || n == 0 {
		return 0, usagef("%q is no node: give its number, such as 3 or n3", word)
	}
	return n, nil
}

func nodeList(nodes []uint64) string {
	words := make([]string, len(nodes))
	for i, n := range nodes {
		words[i] = "n" + strconv.FormatUint(n, 10)
	}
	return strings.Join(words, ", ")
}

func (a *app) printNodes(nodes []*strandmqv1.ClusterNode) error {
	t := table.Table{Head: []string{"NODE", "STATE", "THERE", "ZONE", "REPLICAS", "TO LEAD", "LEAVING", "VOTES", "ADDRESS"}, Right: []int{4, 5, 6}}
	for _, n := range nodes {
		there := "?"
		switch {
		case n.SilentMs != nil && n.GetSilentMs() == 0:
			there = "yes"
		case n.SilentMs != nil && n.GetStopped() != nil:
			there = "stopped at " + stamp(n.GetStopped())
		case n.SilentMs != nil:
			there = "silent for " + quantity.FormatSpan(max(span(n.GetSilentMs()).Round(time.Second), time.Second))
		}
		votes := "no"
		if n.GetVotes() {
			votes = "yes"
		}
		t.Add(nodeList([]uint64{n.GetNode()}), stateText(n.GetState()), there, orDash(n.GetZone()),
			n.GetReplicas(), n.GetLeads(), n.GetLeaving(), votes, orDash(n.GetApiAddress()))
	}
	return a.printTable(&t, "")
}

func stateText(s strandmqv1.ClusterNodeState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "CLUSTER_NODE_STATE_"))
}

// placeText names a partition; the metadata log has no topic.
func placeText(topic string, number uint32) (string, string) {
	if topic == "" {
		return "(metadata)", "-"
	}
	return topic, strconv.FormatUint(uint64(number), 10)
}

func (a *app) printMoves(moves []*strandmqv1.PartitionMove) error {
	if len(moves) == 0 {
		return nil
	}
	t := table.Table{Head: []string{"TOPIC", "PARTITION", "TO BE ON", "LEAVES", "WHY"}, Right: []int{1}}
	for _, m := range moves {
		topic, number := placeText(m.GetTopic(), m.GetPartition())
		t.Add(topic, number, nodeList(m.GetNodes()), orDash(nodeList(m.GetLeaving())), orDash(m.GetWhy()))
	}
	return a.printTable(&t, "")
}

func (a *app) printStuck(stuck []*strandmqv1.StuckPartition) error {
	if len(stuck) == 0 {
		return nil
	}
	fmt.Fprintln(a.out)
	t := table.Table{Head: []string{"TOPIC", "PARTITION", "STUCK", "NEEDS"}, Right: []int{1}}
	for _, s := range stuck {
		topic, number := placeText(s.GetTopic(), s.GetPartition())
		t.Add(topic, number, s.GetWhy(), s.GetNeeds())
	}
	return a.printTable(&t, "")
}

// printPlan prints what would move, and what could not.
func (a *app) printPlan(moves []*strandmqv1.PartitionMove, stuck []*strandmqv1.StuckPartition) error {
	if err := a.printMoves(moves); err != nil {
		return err
	}
	return a.printStuck(stuck)
}
