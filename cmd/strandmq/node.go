package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func (a *app) nodeCommand() *cobra.Command {
	return command(&cobra.Command{
		Use:   "node",
		Short: "Show the broker: its disk, stalls, scrub and damage",
		Long: `Shows what runs at --server, the room on its disk, how often writes waited for
it, how far the reading of everything stored came (the scrub), and what was found
damaged. What is damaged is not served; everything else is.`,
		Example: `  strandmq node
  strandmq node --output json
  strandmq node --server http://127.0.0.1:7171`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		res, err := ask(cmd.Context(), a.dial().node.NodeInfo, &strandmqv1.NodeInfoRequest{})
		if err != nil {
			return err
		}
		return a.show(res, func() error { return a.printNode(res) })
	})
}

func (a *app) printNode(n *strandmqv1.NodeInfoResponse) error {
	d := n.GetDisk()
	pairs := []string{
		"node", strconv.FormatUint(n.GetNode(), 10), "version", n.GetVersion(), "cluster", n.GetCluster(), "started", stamp(n.GetStarted()),
		"disk", diskWords(d), "stalls", stallWords(d), "scrub", scrubWords(n.GetScrub()),
		"damage", countOrNone(len(n.GetDamage()), "place", "places"), "stopped", countOrNone(len(n.GetStopped()), "partition", "partitions"),
	}
	a.facts(pairs...)
	for _, f := range n.GetFaults() {
		a.facts("fault", f)
	}
	damage := table.Table{Head: []string{"FILE", "TOPIC", "PARTITION", "ENTRIES", "FOUND", "WHAT"}, Right: []int{2}}
	for _, d := range n.GetDamage() {
		if len(d.GetRanges()) == 0 {
			damage.Add(orDash(d.GetFile()), "-", "-", "-", stamp(d.GetFound()), d.GetWhat())
		}
		for _, r := range d.GetRanges() {
			topic, number := placeOf(r)
			damage.Add(orDash(d.GetFile()), topic, number, entries(r), stamp(d.GetFound()), d.GetWhat())
		}
	}
	stopped := table.Table{Head: []string{"TOPIC", "PARTITION", "STOPPED BY"}, Right: []int{1}}
	for _, s := range n.GetStopped() {
		topic, number := "(metadata)", "-"
		if s.GetTopic() != "" {
			topic, number = s.GetTopic(), strconv.FormatUint(uint64(s.GetPartition()), 10)
		}
		stopped.Add(topic, number, s.GetWhy())
	}
	for _, t := range []*table.Table{&damage, &stopped} {
		if len(t.Rows) == 0 {
			continue
		}
		fmt.Fprintln(a.out)
		if err := a.printTable(t, ""); err != nil {
			return err
		}
	}
	return nil
}

func placeOf(r *strandmqv1.DamagedRange) (topic, number string) {
	switch {
	case r.GetMetadata():
		return "(metadata)", "-"
	case r.GetTopic() == "":
		return "(deleted)", "-"
	}
	return r.GetTopic(), strconv.FormatUint(uint64(r.GetPartition()), 10)
}

func entries(r *strandmqv1.DamagedRange) string {
	if r.GetLastEntry() == 0 {
		return fmt.Sprintf("%d and up", r.GetFirstEntry())
	}
	if r.GetFirstEntry() == r.GetLastEntry() {
		return strconv.FormatUint(r.GetFirstEntry(), 10)
	}
	return fmt.Sprintf("%d to %d", r.GetFirstEntry(), r.GetLastEntry())
}

func diskWords(d *strandmqv1.NodeDisk) string {
	out := quantity.RoughSize(d.GetStoreBytes()) + " stored"
	if d.GetTotalBytes() > 0 {
		out += fmt.Sprintf(", %s free of %s", quantity.RoughSize(d.GetFreeBytes()), quantity.RoughSize(d.GetTotalBytes()))
	}
	if d.GetReserveBytes() > 0 {
		out += ", reserve " + quantity.RoughSize(d.GetReserveBytes())
	}
	if d.GetLow() {
		out += "; too little for publishes"
	}
	return out
}

func stallWords(d *strandmqv1.NodeDisk) string {
	out := []string{"none"}
	if d.GetWriteStalls() > 0 {
		out = []string{fmt.Sprintf("%d, %v together", d.GetWriteStalls(), span(d.GetWriteStallMs()))}
	}
	if d.GetSlowWrites() > 0 {
		out = append(out, fmt.Sprintf("%d slow writes", d.GetSlowWrites()))
	}
	if d.GetStuckMs() > 0 {
		out = append(out, fmt.Sprintf("the disk has not come back for %v", span(d.GetStuckMs())))
	}
	return strings.Join(out, ", ")
}

func scrubWords(s *strandmqv1.NodeScrub) string {
	if s.GetDisabled() {
		return "turned off"
	}
	out := countOrNone(int(s.GetPasses()), "pass", "passes")
	if s.GetLastPass() != nil {
		out += ", the last complete at " + stamp(s.GetLastPass())
	}
	if s.GetBegan() != nil {
		out += fmt.Sprintf(", one since %s with %s read", stamp(s.GetBegan()), quantity.RoughSize(s.GetBytes()))
	}
	if s.GetPaused() {
		out += ", paused while writes fall behind"
	}
	return out
}

func countOrNone(n int, one, more string) string {
	if n == 0 {
		return "none"
	}
	return quantity.Many(n, one, more)
}
