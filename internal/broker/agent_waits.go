package broker

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/strandmq/strandmq/partition"
)

// loneAfter is how long a node that starts has heard of too few others before it says that
// they are not there: connections to those that are take a moment to make.
const loneAfter = 2 * time.Second

// waitsFor is why a node that has read its log takes no calls yet: it waits for its place
// in the map, which whoever leads the metadata log writes down. Where too few of the nodes
// that vote are there nobody leads it, and it names those that are not.
func (a *agent) waitsFor(now time.Time) *refusal {
	starts := &refusal{reason: "NOT_READY", text: fmt.Sprintf("node %v is starting: it waits for the cluster to take it in again", a.b.cfg.Node), retryAfter: 500 * time.Millisecond}
	info, err := a.b.host.Info(partition.Metadata)
	if err != nil || now.Sub(a.asks) < loneAfter {
		return starts
	}
	up, at := map[partition.NodeID]bool{a.b.cfg.Node: true}, map[partition.NodeID]string{}
	for _, n := range a.transport.Nodes() {
		up[partition.NodeID(n.Node)], at[partition.NodeID(n.Node)] = n.Up, n.Address
	}
	var away []string
	for _, r := range info.Voters {
		if n := r.Node(); !up[n] {
			away = append(away, strings.TrimSuffix(fmt.Sprintf("%v (%s)", n, at[n]), " ()"))
		}
	}
	if len(info.Voters)-len(away) > len(info.Voters)/2 || len(info.Voters) == 0 {
		return starts
	}
	slices.Sort(away)
	return &refusal{reason: "NO_QUORUM", retryAfter: time.Second, text: fmt.Sprintf(
		"node %v is starting and waits for a majority of the %d nodes that vote: it does not hear of %s; start them, with their own folders, it goes on when a majority is there",
		a.b.cfg.Node, len(info.Voters), strings.Join(away, ", "))}
}
