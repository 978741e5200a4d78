package doctor

import (
	"fmt"
	"slices"
	"time"

	"github.com/strandmq/strandmq/internal/quantity"
)

// State is the outcome of a check, in the order and with the numbers that monitoring knows.
type State int

// The states.
const (
	OK State = iota
	Warned
	Failed
	Unknown
)

// String prints a state as monitoring does: OK, WARNING, CRITICAL, UNKNOWN.
func (s State) String() string {
	switch s {
	case OK:
		return "OK"
	case Warned:
		return "WARNING"
	case Failed:
		return "CRITICAL"
	default:
		return "UNKNOWN"
	}
}

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Limits are from where on a figure is too much; 0: never. The first is for a warning, the
// second for more.
type Limits struct {
	Lag  [2]uint64        // messages that a group has neither settled nor given up
	Age  [2]time.Duration // of the oldest of them
	Dead [2]uint64        // dead letters of a group
	Disk [2]uint64        // per cent of a disk that are free, or less
}

// Verdict is the outcome of a check.
type Verdict struct {
	State  State   `json:"state"`
	Text   string  `json:"text"`   // the worst in a few words
	Lines  []Line  `json:"lines"`  // what is not OK, the worst first
	Groups int     `json:"groups"` // that were looked at
	Nodes  int     `json:"nodes"`
	Lag    uint64  `json:"lag"` // of all groups together
	Oldest float64 `json:"oldestSeconds"`
	Dead   uint64  `json:"dead"`
}

// Line is one thing that is not OK.
type Line struct {
	State State  `json:"state"`
	Text  string `json:"text"`
}

// Check holds figures against limits. It takes one look and knows no causes: those are
// Diagnose's. Where something could not be asked and nothing else is wrong it is Unknown.
func Check(f *Facts, l Limits) Verdict {
	v := &Verdict{Nodes: len(f.Nodes), Groups: len(f.Groups)}
	v.nodes(f, l)
	for i := range f.Groups {
		v.group(f, &f.Groups[i], l)
	}
	for _, u := range f.Unreached {
		v.add(Unknown, "%s: %s", u.What, u.Why)
	}
	// The worst is what somebody has to get up for.
	rank := []State{Failed, Warned, Unknown}
	slices.SortStableFunc(v.Lines, func(a, b Line) int { return slices.Index(rank, a.State) - slices.Index(rank, b.State) })
	if len(v.Lines) == 0 {
		v.Text = fmt.Sprintf("%s, %s, lag %s", quantity.Some(v.Nodes, "node"), quantity.Some(v.Groups, "group"), quantity.Count(v.Lag))
		return *v
	}
	v.State, v.Text = v.Lines[0].State, v.Lines[0].Text
	if more := len(v.Lines) - 1; more > 0 {
		v.Text += fmt.Sprintf(" (and %d more)", more)
	}
	return *v
}

func (v *Verdict) add(s State, format string, args ...any) {
	v.Lines = append(v.Lines, Line{s, fmt.Sprintf(format, args...)})
}

func (v *Verdict) nodes(f *Facts, l Limits) {
	if f.Cluster.Behind != "" {
		v.add(Failed, "NO_QUORUM: %s", f.Cluster.Behind)
	}
	lost := map[string]bool{}
	for _, t := range f.Topics {
		for _, p := range t.Partitions {
			if p.FaultReason == "" || lost[t.Name] {
				continue
			}
			lost[t.Name] = true
			v.add(Failed, "topic %s, partition %d: %s", t.Name, p.Number, p.FaultReason)
		}
	}
	for _, n := range f.Nodes {
		name := nodeName(n.ID)
		if n.Known && n.Silent > 0 && n.Left != 0 {
			v.add(Failed, "node %s was stopped cleanly at %s and is not back", name, clock(n.Left))
		} else if n.Known && n.Silent > 0 {
			v.add(Failed, "node %s was not heard of for %s", name, rough(n.Silent))
		}
		if !n.Answered {
			continue
		}
		switch free := n.Disk.Free * 100 / max(n.Disk.Total, 1); {
		case n.Disk.Stuck > 0:
			v.add(Failed, "node %s: the disk has not come back from a write for %s", name, rough(n.Disk.Stuck))
		case n.Disk.Low && len(f.Nodes) > 1 && f.leads(n.ID) == 0:
			v.add(Failed, "node %s: the disk has %s free, less than the reserve: %s, and stores what others publish until nothing fits", name, quantity.RoughSize(n.Disk.Free), f.leadsNothing())
		case n.Disk.Low:
			v.add(Failed, "node %s: publishes are refused, the disk has %s free", name, quantity.RoughSize(n.Disk.Free))
		case n.Disk.Total == 0:
		case l.Disk[1] > 0 && free < l.Disk[1]:
			v.add(Failed, "node %s: the disk has %d%% free", name, free)
		case l.Disk[0] > 0 && free < l.Disk[0]:
			v.add(Warned, "node %s: the disk has %d%% free", name, free)
		}
		if k := len(n.Damage) + len(n.Stopped); k > 0 {
			v.add(Failed, "node %s: %s damaged or not served", name, quantity.Some(k, "place"))
		}
		if len(n.ClocksOff) > 0 {
			s := n.ClocksOff[0]
			v.add(Warned, "node %s: its clock and that of %s differ by %s", name, nodeName(s.Node), rough(s.Ahead.Abs()))
		}
	}
}

func (v *Verdict) group(f *Facts, g *Group, l Limits) {
	if !g.Counted {
		return // which is told as unreached
	}
	v.Lag += g.Now.Lag
	v.Dead += g.Now.Dead
	name := fmt.Sprintf("group %s of topic %s", g.Name, g.Topic)
	if s := judged(g.Now.Lag, l.Lag); s != OK {
		v.add(s, "%s has a lag of %s", name, quantity.Some(g.Now.Lag, "message"))
	}
	if g.Oldest != 0 && g.Now.Lag > 0 {
		age := max(0, time.Duration(f.Now-g.Oldest)*time.Millisecond)
		v.Oldest = max(v.Oldest, age.Seconds())
		if s := judged(age, l.Age); s != OK {
			v.add(s, "%s is %s behind", name, rough(age))
		}
	}
	if s := judged(g.Now.Dead, l.Dead); s != OK {
		v.add(s, "%s has %s", name, quantity.Some(g.Now.Dead, "dead letter"))
	}
}

func judged[N uint64 | time.Duration](n N, limits [2]N) State {
	switch {
	case limits[1] > 0 && n >= limits[1]:
		return Failed
	case limits[0] > 0 && n >= limits[0]:
		return Warned
	}
	return OK
}
