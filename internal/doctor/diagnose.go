package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/strandmq/strandmq/internal/quantity"
)

// Options are what counts as too much.
type Options struct {
	// Behind is how old the oldest message may be that a group has not settled, before it
	// is asked why. Default 30 s: below it a group is at work. What stands still (a pause,
	// no member, an open circuit) is told whatever its age.
	Behind time.Duration
}

// DefaultBehind is Options.Behind unless told otherwise.
const DefaultBehind = 30 * time.Second

// tried is from how many attempts on a message counts as one that keeps failing: one or
// two happen to the best.
const tried = 3

// recently is how long ago an attempt may have failed to tell of the present.
const recently = 10 * time.Minute

// Diagnose names the causes that facts show, the heaviest first.
func Diagnose(f *Facts, o Options) []Finding {
	if o.Behind <= 0 {
		o.Behind = DefaultBehind
	}
	d := &diagnosis{facts: f, behind: o.Behind}
	d.cluster()
	for i := range f.Nodes {
		d.node(&f.Nodes[i])
	}
	d.clocks()
	d.partitions()
	for i := range f.Groups {
		d.group(&f.Groups[i])
	}
	for i := range f.Messages {
		d.message(&f.Messages[i])
	}
	d.history()
	sortFindings(d.found)
	return d.found
}

// diagnosis is the findings so far.
type diagnosis struct {
	facts  *Facts
	behind time.Duration
	found  []Finding
}

func (d *diagnosis) add(s Severity, c Cause, about, text string) *Finding {
	d.found = append(d.found, Finding{Severity: s, Cause: c, About: about, Text: text})
	return &d.found[len(d.found)-1]
}

// say adds a figure.
func (f *Finding) say(format string, args ...any) *Finding {
	f.Evidence = append(f.Evidence, fmt.Sprintf(format, args...))
	return f
}

// next adds a command.
func (f *Finding) next(format string, args ...any) *Finding {
	f.Next = append(f.Next, fmt.Sprintf(format, args...))
	return f
}

// weigh says which of two findings of one cause is the heavier.
func (f *Finding) weigh(n uint64) *Finding { f.size = n; return f }

// began says since when it is so.
func (f *Finding) began(at int64) *Finding { f.since = at; return f }

// ago is how long ago something was, by the clock of who asks; 0: it is to come.
func (d *diagnosis) ago(t int64) time.Duration {
	return max(0, time.Duration(d.facts.Now-t)*time.Millisecond)
}

// clock prints a time in milliseconds since 1970.
func clock(t int64) string { return quantity.FormatTime(t) }

// rough prints a span for a glance: 3d, 2h10m, 45s, 120ms.
func rough(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d >= time.Hour:
		d = d.Round(time.Minute)
	case d >= time.Second:
		d = d.Round(time.Second)
	default:
		d = d.Round(time.Millisecond)
	}
	return quantity.FormatSpan(d)
}

// number is one of two forms, as it takes.
func number(n uint64, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}

// names are "n1", "n1 and n2", "n1, n2 and n3".
func names(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	last := len(list) - 1
	return strings.Join(list[:last], ", ") + " and " + list[last]
}

func nodeNames(nodes []uint64) string {
	out := make([]string, len(nodes))
	for i, n := range nodes {
		out[i] = nodeName(n)
	}
	return names(out)
}

func nodeName(n uint64) string { return fmt.Sprintf("n%d", n) }

// most is how much of one kind is listed as evidence.
const most = 3

// String names a partition.
func (p Place) String() string {
	if p.Topic == "" {
		return "the cluster's metadata"
	}
	return fmt.Sprintf("topic %s, partition %d", p.Topic, p.Number)
}
