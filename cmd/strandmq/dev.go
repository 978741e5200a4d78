package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/broker"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// mostDevNodes is more than anybody wants on one machine.
const mostDevNodes = 9

func (a *app) devCommand() *cobra.Command {
	d := &dev{a: a}
	var port string
	var exit bool
	again := spanFlag{d: 5 * time.Second}
	c := command(&cobra.Command{
		Use:   "dev",
		Short: "Run a cluster of several nodes on this machine, to play with",
		Long: `Starts several brokers as processes of their own, on loopback, and joins them to one
cluster. It prints where each is, and its process: kill one and see the others go on.
A node that ends is started again after a while (--restart-after; 0: it is not).
Ctrl-C ends all of them, and so does the end of this process.

Running it again in the same folder brings the same cluster back, with all that it
holds, on the same ports. Each node's log is in the folder: n1.log and so on, in JSON.

Environment: STRANDMQ_DATA and STRANDMQ_DEV_PORT stand in for --data and --port.`,
		Example: `  strandmq dev
  strandmq dev --nodes 5 --data /tmp/cluster
  strandmq dev --nodes 3 --port 0 --exit`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		if d.want < 1 || d.want > mostDevNodes {
			return usagef("--nodes %d: use 1 to %d", d.want, mostDevNodes)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n > 65_000 {
			return usagef("--port %s: use 1 to 65000, or 0 for free ones", plain.Quote(port))
		}
		d.port = int(n)
		if _, err := a.logger(d.level, "json"); err != nil {
			return err
		}
		d.again = again.d
		return d.run(cmd.Context(), exit)
	})
	c.Flags().IntVar(&d.want, "nodes", 3, "how many nodes; a folder that has some keeps them, and gets those that are missing")
	c.Flags().StringVar(&d.folder, "data", env("STRANDMQ_DATA", "strandmq-dev"), "the folder for all of them; made if it does not exist")
	c.Flags().StringVar(&port, "port", env("STRANDMQ_DEV_PORT", "7171"), "the first node's port for clients; the others follow, and a hundred above are those for nodes; 0 takes free ones")
	c.Flags().Var(&again, "restart-after", "how long after its end a node is started again; 0: not at all")
	c.Flags().BoolVar(&d.detailed, metricsPerPartition, false, "nodes tell of single partitions in /metrics, too (see serve)")
	c.Flags().StringVar(&d.level, "log-level", "info", "what the nodes' logs tell: debug, info, warn or error")
	must(c.RegisterFlagCompletionFunc("log-level", words("debug", "info", "warn", "error")))
	c.Flags().BoolVar(&exit, "exit", false, "stop when the cluster is up")
	return c
}

// dev is a cluster of processes.
type dev struct {
	a      *app
	want   int
	port   int
	folder string
	again  time.Duration
	binary string

	level    string // of the nodes' logs
	detailed bool   // metrics have series of single partitions

	plan    devPlan
	nodes   []*devNode
	release func()         // lets another dev have the folder; nil: it is not had
	group   sync.WaitGroup // a goroutine for each node, which waits for its process
}

// start starts the cluster's nodes and waits until it is whole, or ctx ends. The nodes
// run until alive ends; d.group tells that they have ended.
func (d *dev) start(ctx, alive context.Context) error {
	var err error
	if d.binary, err = os.Executable(); err != nil {
		return err
	}
	if err := devFolder(d.folder); err != nil {
		return err
	}
	if d.release, err = lockDev(filepath.Join(d.folder, devLockFile)); err != nil {
		return err
	}
	if d.plan, err = planDev(d.folder, d.want, d.port); err != nil {
		return err
	}
	if err := d.plan.awaitPorts(ctx, d.a); err != nil {
		return err
	}
	for i, at := range d.plan.Nodes {
		d.nodes = append(d.nodes, &devNode{d: d, number: i + 1, at: at})
	}
	return d.bringUp(ctx, alive)
}

// run starts the cluster and keeps it until ctx ends.
func (d *dev) run(ctx context.Context, exit bool) error {
	// Whoever ends the terminal ends the cluster, and not this process alone.
	ctx, untie := untilHangUp(ctx)
	defer untie()
	alive, stop := context.WithCancel(ctx)
	defer d.wait()
	defer stop()
	if err := d.start(alive, alive); err != nil {
		return err
	}
	if err := d.show(); err != nil || exit {
		return err
	}
	d.a.talk("\nAll of it is in %s. Ctrl-C stops the cluster. In another terminal, try:\n", d.folder)
	d.a.talk("  strandmq%s topic create orders", d.server())
	d.a.talk("  strandmq%s cluster status", d.server())
	d.a.talk("  kill -9 %d", d.nodes[len(d.nodes)-1].pid())
	<-ctx.Done()
	d.a.talk("stopping")
	return nil
}

// wait waits for the nodes, which have been told to end, and lets another dev have the
// folder.
func (d *dev) wait() {
	d.group.Wait()
	if d.release != nil {
		d.release()
	}
}

// server is the flag that other commands need to find the first node.
func (d *dev) server() string {
	if url := d.nodes[0].url(); url != "http://"+broker.DefaultListen {
		return " --server " + url
	}
	return ""
}

// bringUp starts the nodes that were in the cluster, which need each other, and then
// has the others join one by one.
func (d *dev) bringUp(ctx, alive context.Context) error {
	var fresh, known []*devNode
	for _, n := range d.nodes {
		if n.joined() || n.number == 1 {
			known = append(known, n)
		} else {
			fresh = append(fresh, n)
		}
	}
	for _, n := range known {
		if err := n.start(alive, ""); err != nil {
			return err
		}
	}
	for _, n := range known {
		if err := n.serves(ctx); err != nil {
			return err
		}
	}
	for _, n := range fresh {
		res, err := ask(ctx, dial(d.nodes[0].url()).cluster.CreateJoinToken, &strandmqv1.CreateJoinTokenRequest{})
		if err != nil {
			return err
		}
		if err := n.start(alive, res.GetToken()); err != nil {
			return err
		}
		if err := n.serves(ctx); err != nil {
			return err
		}
	}
	return d.settled(ctx)
}

// settled waits until every node is there, and as many vote in the metadata log as
// are to: from then on the cluster outlives any one of them.
func (d *dev) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, devPatience)
	defer cancel()
	votes := 1
	if len(d.nodes) >= 5 {
		votes = 5
	} else if len(d.nodes) >= 3 {
		votes = 3
	}
	for {
		res, err := ask(ctx, dial(d.nodes[0].url()).cluster.DescribeCluster, &strandmqv1.DescribeClusterRequest{})
		there, voting := 0, 0
		for _, n := range res.GetNodes() {
			if n.SilentMs != nil && n.GetSilentMs() == 0 {
				there++
			}
			if n.GetVotes() {
				voting++
			}
		}
		if err == nil && there >= len(d.nodes) && voting >= votes && len(res.GetMoving()) == 0 {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond): // between two looks
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the nodes run, and are no whole cluster after %v: %d of %d are there and %d of %d vote: look at their logs in %s", devPatience, there, len(d.nodes), voting, votes, d.folder), err)
		}
	}
}

// devPatience is how long a cluster may take to be whole.
const devPatience = time.Minute

// devRow is one node for people and programs.
type devRow struct {
	Node int    `json:"node"`
	URL  string `json:"url"`
	PID  int    `json:"pid"`
	Data string `json:"data"`
	Log  string `json:"log"`
}

// show prints the nodes.
func (d *dev) show() error {
	var rows []devRow
	for _, n := range d.nodes {
		rows = append(rows, devRow{n.number, n.url(), n.pid(), n.data(), n.log()})
	}
	if d.a.json() {
		raw, err := json.Marshal(map[string]any{"nodes": rows})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(d.a.out, "%s\n", raw)
		return err
	}
	t := table.Table{Head: []string{"NODE", "URL", "PID", "DATA"}, Right: []int{2}}
	for _, r := range rows {
		t.Add(fmt.Sprintf("n%d", r.Node), r.URL, r.PID, r.Data)
	}
	return d.a.printTable(&t, "")
}

// joined tells whether the node's folder is that of a node of a cluster.
func (n *devNode) joined() bool {
	_, err := os.Stat(filepath.Join(n.data(), "identity", "node.crt"))
	return err == nil
}
