package broker

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
)

// probes serves three questions that are not the same. Is the process alive
// (restart it if not)? Has it started (wait longer if not)? Should it get calls
// now (send them elsewhere if not)? A node that is reading its log at start is
// alive; one that is stopping, whose disk failed, or that knows nobody who leads the
// cluster's metadata, is not ready. Who restarts one node after the other goes by that.
func (b *Broker) probes(mux *http.ServeMux) {
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) {
		probe(w, r, []check{{name: "process"}})
	})
	mux.HandleFunc("GET /startupz", func(w http.ResponseWriter, r *http.Request) {
		probe(w, r, []check{{name: "started", fault: b.notStarted()}})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		checks := []check{{name: "started", fault: b.notStarted()}, {name: "serving"}, {name: "store"}}
		if b.serving.Err() != nil {
			checks[1].fault = "the broker is stopping"
		}
		if err := b.failure(); err != nil {
			checks[2].fault = err.Error()
		} else if b.notStarted() == "" {
			if d := b.store.Stuck(); d > 0 {
				checks[2].fault = fmt.Sprintf("the disk has not come back from a write for %v", d.Round(time.Second))
			}
		}
		if b.notStarted() == "" && b.serving.Err() == nil {
			if b.agent != nil {
				checks = append(checks, check{name: "quorum", fault: b.leaderless()})
			}
			// A damaged partition is the operator's concern and the callers of
			// that partition's; it is shown, but the node serves the others.
			if w := b.disk.warning(); w != "" {
				checks = append(checks, check{name: "disk: " + w, warning: true})
			}
			for _, f := range slices.Concat(b.clockFaults(), b.partitionFaults(), b.damageFaults()) {
				checks = append(checks, check{name: f, warning: true})
			}
			checks = append(checks, check{name: b.scrubWords()})
		}
		probe(w, r, checks)
	})
}

// A check is one line of a probe's answer.
type check struct {
	name    string
	fault   string // empty: it passes
	warning bool   // it passes, and somebody should look
}

func probe(w http.ResponseWriter, r *http.Request, checks []check) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	failed := slices.ContainsFunc(checks, func(c check) bool { return c.fault != "" })
	if failed {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	if _, verbose := r.URL.Query()["verbose"]; verbose || failed {
		for _, c := range checks {
			switch {
			case c.fault != "":
				fmt.Fprintf(w, "[-] %s: %s\n", c.name, c.fault)
			case c.warning:
				fmt.Fprintf(w, "[!] %s\n", c.name)
			default:
				fmt.Fprintf(w, "[+] %s\n", c.name)
			}
		}
	}
	if failed {
		fmt.Fprintln(w, "failed")
	} else {
		fmt.Fprintln(w, "ok")
	}
}

// takesCalls is what readyz, the health service and the metrics go by.
func (b *Broker) takesCalls() bool {
	return b.ready() == nil && b.failure() == nil && b.leaderless() == ""
}

// leaderless is why this node knows nobody who leads the cluster's metadata; empty: it
// does. Without, it creates and changes nothing, and another node may do better. It also
// tells a node that was cut off from the others from one that is well: the liveness that
// missing goes by is this node's own.
func (b *Broker) leaderless() string {
	if b.agent == nil {
		return ""
	}
	if away := b.missing(partition.Metadata); len(away) > 0 {
		return fmt.Sprintf("too few of the nodes that vote on the cluster's metadata are there (NO_QUORUM): %s not there", nodesAre(away))
	}
	// A replica that stopped is told with the other damage: its map is old, and what the
	// node holds of other partitions is served.
	if info, err := b.host.Info(partition.Metadata); err == nil && info.Fault == "" && info.Leader == 0 {
		return "nobody is known who leads the cluster's metadata: one is being elected, or this node is cut off"
	}
	return ""
}

func (b *Broker) notStarted() string {
	if b.started.Load() {
		return ""
	}
	if a := b.waits.Load(); a != nil {
		return a.waitsFor(time.Now()).text
	}
	return "the broker is reading its log"
}

// stoppedPartition is a partition that met damage that it needs.
type stoppedPartition struct {
	topic  string // empty: the metadata log
	number int
	why    string
	reason string // by which calls for it are refused
}

// stopReason is the refusal of calls for a partition that stopped.
func stopReason(i partition.Info) string {
	if i.Damaged {
		return "PARTITION_DAMAGED"
	}
	return "NEWER_FORMAT"
}

func (b *Broker) stoppedPartitions() (out []stoppedPartition) {
	look := func(id partition.PartitionID, topic string, number int) {
		if info, err := b.host.Info(id); err == nil && info.Fault != "" {
			out = append(out, stoppedPartition{topic, number, info.Fault, stopReason(info)})
		}
	}
	look(partition.Metadata, "", 0)
	for t := range b.coord.View().Topics() {
		for i, p := range t.Partitions {
			look(p.ID, t.Name, i)
		}
	}
	return out
}

// partitionFaults names every partition that stopped, and why.
func (b *Broker) partitionFaults() []string {
	var out []string
	for _, s := range b.stoppedPartitions() {
		what := "metadata"
		if s.topic != "" {
			what = fmt.Sprintf("topic %s, partition %d", s.topic, s.number)
		}
		out = append(out, what+": "+s.why)
	}
	return out
}

// faults is everything that is wrong with the node, one line each.
func (b *Broker) faults() []string {
	if !b.started.Load() {
		return nil
	}
	var out []string
	if err := b.failure(); err != nil {
		out = append(out, err.Error())
	}
	if w := b.disk.warning(); w != "" {
		out = append(out, w)
	}
	if why := b.leaderless(); why != "" {
		out = append(out, why)
	}
	return slices.Concat(out, b.clockFaults(), b.partitionFaults(), b.damageFaults())
}

// maxSkew is how far the clocks of two nodes may be apart before it is told: what a
// poor synchronisation over a network comes to. Nothing breaks beyond it; messages
// are stamped, and retention and deadlines go, by the clock of whoever leads.
const maxSkew = 500 * time.Millisecond

// clockOff tells whether a node's clock is so far from this one's that it is told.
func clockOff(n peer.Status) bool { return n.To && n.Skew.Abs()-n.RoundTrip/2 > maxSkew }

// clockFaults names the nodes whose clocks are not this one's.
func (b *Broker) clockFaults() (out []string) {
	if b.agent == nil {
		return nil
	}
	for _, n := range b.agent.transport.Nodes() {
		if !clockOff(n) {
			continue
		}
		way := "ahead of"
		if n.Skew < 0 {
			way = "behind"
		}
		out = append(out, fmt.Sprintf("the clock of node %v is %v %s this one's: set both right, messages are stamped and retention goes by them",
			partition.NodeID(n.Node), n.Skew.Abs().Round(100*time.Millisecond), way))
	}
	return out
}

// maxDamageLines is how many places of damage are told; the metrics count all.
const maxDamageLines = 20

// damageFaults names what was found damaged on the disk, also where no partition
// had to stop for it.
func (b *Broker) damageFaults() []string {
	var out []string
	for i, d := range b.store.Damage() {
		if i == maxDamageLines {
			return append(out, "and more places on the disk are damaged: the log names them")
		}
		var at []string
		for _, r := range d.Ranges {
			where := b.partitionName(partition.PartitionID(r.Partition)) + ", " + r.Entries()
			if at = append(at, where); len(at) == maxDamageLines {
				break
			}
		}
		file := ""
		if d.File != "" {
			file = " in " + d.File
		}
		out = append(out, fmt.Sprintf("damaged%s: %s; concerned: %s; it is not served", file, d.What, strings.Join(at, "; ")))
	}
	return out
}

// scrubWords say how far the background reading of everything came.
func (b *Broker) scrubWords() string {
	st := b.store.Scrub()
	switch {
	case st.Disabled:
		return "scrub: turned off"
	case !st.Began.IsZero():
		return fmt.Sprintf("scrub: %s read since %s, %d passes before", size(st.Bytes), st.Began.UTC().Format(time.RFC3339), st.Passes)
	case st.Last.IsZero():
		return "scrub: not begun yet"
	}
	return fmt.Sprintf("scrub: %s read in pass %d, complete at %s", size(st.Bytes), st.Passes, st.Last.UTC().Format(time.RFC3339))
}
