package sim

import (
	"fmt"
	"slices"
	"strings"
)

// Command is the line that runs the same again.
func (o Options) Command() string {
	b := strings.Builder{}
	fmt.Fprintf(&b, "go test ./internal/sim -run TestSeed$ -seed %d", o.Seed)
	if o.Nodes != 0 {
		fmt.Fprintf(&b, " -nodes %d", o.Nodes)
	}
	if o.Cluster {
		b.WriteString(" -cluster")
	}
	if o.Live {
		b.WriteString(" -live")
	}
	if len(o.Without) > 0 {
		b.WriteString(" -without " + strings.Join(o.Without, ","))
	}
	if o.Events > 0 {
		fmt.Fprintf(&b, " -events %d", o.Events)
	}
	if o.Plant != "" {
		b.WriteString(" -plant " + o.Plant)
	}
	return b.String()
}

// Shrink makes a run that failed smaller as long as it fails: it leaves out kinds of
// faults, one after another, and keeps what fails soonest. A run ends at the event
// that fails, so there is nothing behind it to cut off.
func Shrink(res Result) Result {
	for again := true; again; {
		again = false
		for _, k := range Kinds() {
			if slices.Contains(res.Options.Without, k) {
				continue
			}
			o := res.Options
			o.Without = append(slices.Clone(o.Without), k)
			o.Events = 0
			if !o.Live {
				o.Events = 2 * res.Events // it must not fail much later instead
			}
			if r := Run(o); r.Err != nil && r.Events <= 2*res.Events {
				same := r.Plan == res.Plan
				res = r
				again = again || !same
			}
		}
	}
	res.Options.Events = 0
	return res
}
