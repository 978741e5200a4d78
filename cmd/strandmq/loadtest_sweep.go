package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/internal/table"
	"github.com/strandmq/strandmq/loadtest"
)

// sweepFlags are those of a scaling experiment, beside those of a load.
type sweepFlags struct {
	load                       *loadFlags
	nodes, partitions, members numbersFlag
	plot                       string
}

func (a *app) sweepCommand() *cobra.Command {
	f := sweepFlags{load: newLoadFlags(), partitions: numbersFlag{8}, members: numbersFlag{1, 2, 4, 8}}
	f.load.duration.d = 5 * time.Second
	c := command(&cobra.Command{
		Use:   "sweep [--partitions N,...] [--members N,...] [--nodes N,...]",
		Short: "Run a load at every combination of sizes, and show how it scales",
		Long: `Runs the same load at every combination of --partitions, --members and --nodes, one
after the other, each with a new topic, and shows what each carries. SPEED-UP is
against the first point of its line: a line is what differs in the number of members
alone, if there are several; else of partitions; else of nodes. OF LINEAR is the
speed-up's share of what it would be if the rate grew as much. With --rate neither is
shown: the rate is then what was asked for, and the latencies tell how it went.

With --nodes clusters of that many nodes are started on this machine for it, as
'strandmq dev' does, in a folder that is removed at the end. Without, it is the
broker at --server.

With --work, and without --rate, the producers stay a little ahead of the members
(--ahead): the rate is what the handlers get done.

--plot writes the rates and latencies as a picture: .svg, or .html with the table.

Exit code 1 when a promise was broken at any point.`,
		Example: `  strandmq loadtest sweep --work 10ms
  strandmq loadtest sweep --work 10ms --partitions 1,8 --members 1,2,4,8,16,32 --plot scaling.html
  strandmq loadtest sweep --nodes 1,3 --members 4 --partitions 8,32 --groups 0
  strandmq loadtest sweep --duration 3s --output json`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error { return a.runSweep(cmd, &f) })
	fl := c.Flags()
	fl.Var(&f.partitions, "partitions", "numbers of partitions")
	fl.Var(&f.members, "members", "numbers of members of each group")
	fl.Var(&f.nodes, "nodes", fmt.Sprintf("numbers of nodes of clusters to start for it, 1 to %d each (default: none, it is the broker at --server)", mostDevNodes))
	fl.StringVar(&f.plot, "plot", "", "write a picture to this file: .svg or .html")
	f.load.common(c)
	return c
}

// numbersFlag is a list of numbers from 1, such as 1,2,4.
type numbersFlag []int

func (f *numbersFlag) Type() string { return "numbers" }

func (f *numbersFlag) String() string {
	var s []string
	for _, n := range *f {
		s = append(s, strconv.Itoa(n))
	}
	return strings.Join(s, ",")
}

func (f *numbersFlag) Set(s string) error {
	var list numbersFlag
	for x := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(x))
		if err != nil || n < 1 || n > 1<<20 {
			return usagef("whole numbers from 1, such as 1,2,4, are wanted")
		}
		list = append(list, n)
	}
	*f = list
	return nil
}

// sweepReport is the JSON of a sweep. It stays compatible.
type sweepReport struct {
	Axis   string             `json:"axis"`
	Load   loadtest.Load      `json:"load"` // of the last point
	Points []loadtest.Point   `json:"points"`
	Full   []*loadtest.Report `json:"reports"`
}

func (a *app) runSweep(cmd *cobra.Command, f *sweepFlags) error {
	ctx := cmd.Context()
	s := loadtest.Sweep{Nodes: f.nodes, Members: f.members}
	for _, n := range f.partitions {
		s.Partitions = append(s.Partitions, uint32(n))
	}
	if len(s.Nodes) == 0 {
		s.Nodes = []int{0}
	}
	for _, n := range f.nodes {
		if n > mostDevNodes {
			return usagef("--nodes %d: use 1 to %d", n, mostDevNodes)
		}
	}
	spots, err := s.Spots()
	if err != nil {
		return usagef("%v", err)
	}
	draw, err := pictureOf(f.plot)
	if err != nil {
		return err
	}
	f.load.c.Members = 1 // each point says its own
	c, err := f.load.config(cmd)
	if err != nil {
		return err
	}
	way, err := f.load.way(cmd)
	if err != nil {
		return err
	}
	for _, x := range spots {
		if err := x.At(c).Validate(); err != nil {
			return usagef("this load cannot be run:\n%v", err)
		}
	}
	out := sweepReport{Axis: s.Axis(), Points: []loadtest.Point{}}
	at := &sweepCluster{a: a}
	defer at.stop()
	for i, x := range spots {
		servers, err := at.of(ctx, x.Nodes)
		if err != nil {
			return err
		}
		rep, err := a.sweepSpot(ctx, x.At(c), servers, way, fmt.Sprintf("%d of %d: %s", i+1, len(spots), spotText(x)))
		if rep != nil {
			out.Points = append(out.Points, x.Point(rep))
			out.Full = append(out.Full, rep)
			out.Load = rep.Load
		}
		if err != nil || ctx.Err() != nil {
			_ = a.showSweep(s, out, nil)
			return errors.Join(err, ctx.Err())
		}
	}
	if err := a.showSweep(s, out, draw); err != nil {
		return err
	}
	for _, rep := range out.Full {
		if err := verdictError(rep); err != nil {
			return err
		}
	}
	return nil
}

// sweepSpot runs one point.
func (a *app) sweepSpot(ctx context.Context, c loadtest.Config, servers []string, way func(string, loadtest.Config) (loadtest.Broker, func()), title string) (*loadtest.Report, error) {
	show := a.newLoadProgress()
	show.title = title
	c.Tick, c.Tell = show.every, show.tell
	var ways []loadtest.Broker
	for _, server := range servers {
		b, done := way(server, c)
		defer done()
		ways = append(ways, b)
	}
	rep, err := loadtest.Run(ctx, c, loadtest.Spread(ways))
	show.board.settle()
	if err != nil {
		return rep, fmt.Errorf("%s: %w", title, cannotRun(err))
	}
	return rep, nil
}

func spotText(x loadtest.Spot) string {
	text := fmt.Sprintf("partitions %d, members %d", x.Partitions, x.Members)
	if x.Nodes > 0 {
		text = fmt.Sprintf("nodes %d, ", x.Nodes) + text
	}
	return text
}

// showSweep prints the points, and draws them unless draw is nil.
func (a *app) showSweep(s loadtest.Sweep, r sweepReport, draw drawSweep) error {
	lines := s.Lines(r.Points)
	if r.Load.Rate > 0 {
		for _, l := range lines {
			for i := range l.Points {
				l.Points[i].SpeedUp, l.Points[i].Linear = 0, 0
			}
		}
	}
	r.Points = r.Points[:0]
	for _, l := range lines {
		r.Points = append(r.Points, l.Points...)
	}
	if a.json() {
		raw, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(a.out, string(raw)); err != nil {
			return err
		}
	} else if err := a.printTable(sweepTable(r.Points), "no point was measured"); err != nil {
		return err
	}
	if draw == nil || len(r.Points) == 0 {
		return nil
	}
	path, err := draw(sweepTitle(r.Load), s, lines)
	if err == nil {
		a.talk("The picture is in %s.", path)
	}
	return err
}

// fixedRate tells whether points have the rate that was asked for, which says nothing about
// how much more there could be: they have no speed-up.
func fixedRate(points []loadtest.Point) bool { return len(points) > 0 && points[0].Linear == 0 }

func sweepTable(points []loadtest.Point) *table.Table {
	fixed := fixedRate(points)
	t := &table.Table{
		Head:  []string{"NODES", "PARTITIONS", "MEMBERS", "PER SECOND", "SPEED-UP", "OF LINEAR", "P50", "P99", "VERDICT"},
		Right: []int{0, 1, 2, 3, 4, 5, 6, 7},
	}
	if fixed {
		t.Head, t.Right = slices.Delete(t.Head, 4, 6), []int{0, 1, 2, 3, 4, 5}
	}
	for _, p := range points {
		nodes := "-"
		if p.Nodes > 0 {
			nodes = strconv.Itoa(p.Nodes)
		}
		row := []any{
			nodes, quantity.Count(p.Partitions), quantity.Count(p.Members), rated(p.Rate), fmt.Sprintf("%.2f", p.SpeedUp),
			fmt.Sprintf("%.2f", p.SpeedUp/p.Linear), ms(p.P50), ms(p.P99), p.Outcome,
		}
		if fixed {
			row = slices.Delete(row, 4, 6)
		}
		t.Add(row...)
	}
	return t
}

// sweepTitle says what the points have in common.
func sweepTitle(l loadtest.Load) string {
	parts := []string{fmt.Sprintf("%s keys, %s", quantity.Count(l.Keys), quantity.FormatSize(int64(l.Size)))}
	if l.Work > 0 {
		parts = append(parts, fmt.Sprintf("handlers of %v ms, %d at once for each member", l.Work, l.Workers))
	}
	if l.Rate > 0 {
		parts = append(parts, quantity.Count(l.Rate)+" messages a second by schedule")
	}
	return strings.Join(parts, ", ")
}

// sweepCluster is the cluster that a sweep has running: one at a time.
type sweepCluster struct {
	a    *app
	size int
	urls []string
	end  func()
}

// of gives the nodes of a cluster of so many nodes; 0 is the broker at --server.
func (c *sweepCluster) of(ctx context.Context, nodes int) ([]string, error) {
	if nodes == 0 {
		server, err := c.a.server(ctx)
		return []string{server}, err
	}
	if nodes == c.size {
		return c.urls, nil
	}
	c.stop()
	folder, err := os.MkdirTemp("", "strandmq-sweep-")
	if err != nil {
		return nil, err
	}
	d := &dev{a: c.a, want: nodes, folder: folder}
	alive, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.end = sync.OnceFunc(func() {
		stop()
		d.wait()
		_ = os.RemoveAll(folder)
	})
	if err := d.start(ctx, alive); err != nil {
		c.stop()
		return nil, fmt.Errorf("starting %d nodes: %w", nodes, err)
	}
	c.size, c.urls = nodes, nil
	for _, n := range d.nodes {
		c.urls = append(c.urls, n.url())
	}
	return c.urls, nil
}

func (c *sweepCluster) stop() {
	if c.end != nil {
		c.end()
	}
	c.end, c.size = nil, 0
}
