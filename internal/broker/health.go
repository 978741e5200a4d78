package broker

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/strandmq/strandmq/partition"
)

// probes serves three questions that are not the same. Is the process alive
// (restart it if not)? Has it started (wait longer if not)? Should it get calls
// now (send them elsewhere if not)? A node that is reading its log at start is
// alive; one that is stopping, or whose disk failed, is not ready.
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
			// A damaged partition is the operator's concern and the callers of
			// that partition's; it is shown, but the node serves the others.
			if w := b.disk.warning(); w != "" {
				checks = append(checks, check{name: "disk: " + w, warning: true})
			}
			for _, f := range b.partitionFaults() {
				checks = append(checks, check{name: f, warning: true})
			}
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

func (b *Broker) notStarted() string {
	if b.started.Load() {
		return ""
	}
	return "the broker is reading its log"
}

// partitionFaults names every partition that stopped, and why.
func (b *Broker) partitionFaults() []string {
	var out []string
	name := func(id partition.PartitionID, what string) {
		if info, err := b.host.Info(id); err == nil && info.Fault != "" {
			out = append(out, what+": "+info.Fault)
		}
	}
	name(partition.Metadata, "metadata")
	for t := range b.coord.View().Topics() {
		for i, p := range t.Partitions {
			name(p.ID, fmt.Sprintf("topic %s, partition %d", t.Name, i))
		}
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
	return append(out, b.partitionFaults()...)
}
