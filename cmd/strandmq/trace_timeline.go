package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// timelineWidth is how many characters the picture of a timeline takes.
const timelineWidth = 48

// timelineLegend says what the letters of a timeline are.
const timelineLegend = "P published  = with a member  A acked  N nacked or rejected  L lapsed or session lost  r released  > still out  ? left out  D dead-lettered  R replayed  * more"

// marks are the letters of a timeline; what has none is a star.
var marks = map[string]byte{
	"published": 'P', "acked": 'A', "nacked": 'N', "rejected": 'N', "lapsed": 'L', "session-lost": 'L', "released": 'r',
	"dead-lettered": 'D', "replayed": 'R',
}

// A bar is one line of a timeline: a hand-out until it ended, or a moment.
type bar struct {
	group, member string
	attempt       uint32
	from, to      time.Duration // since the message was published
	begun         bool          // a hand-out, and not a moment
	mark          byte
	what          string
	node, ended   uint64        // which led when it was handed out, and when that ended; 0: not known
	until         time.Duration // its deadline; 0: not known
}

// bars makes lines of a message's life: what concerns all groups first, then group by group.
func bars(m *strandmqv1.MessageTrace) (out []bar, total time.Duration) {
	var start time.Time
	open := map[string]int{} // by group, its hand-out that has not ended
	order := map[string]int{"": 0}
	for i, e := range m.GetEvents() {
		if m.GetCut() > 0 && i == int(m.GetCutAt()) {
			for g, i := range open {
				out[i].to, out[i].mark, out[i].what = total, '?', "how that ended is left out"
				delete(open, g)
			}
		}
		at := e.GetTime().AsTime()
		if start.IsZero() {
			start = at
		}
		after := max(0, at.Sub(start)) // clocks of two leaders may differ
		total = max(total, after)
		g := e.GetGroup()
		if _, ok := order[g]; !ok {
			order[g] = len(order)
		}
		i, isOut := open[g]
		switch e.GetWhat() {
		case "handed-out":
			open[g] = len(out)
			out = append(out, bar{
				group: g, member: e.GetMember(), attempt: e.GetAttempt(), from: after, begun: true, mark: '>', what: e.GetWhat(),
				node: e.GetNode(), until: deadline(e, start),
			})
			if e.GetSettled() {
				delete(open, g)
				out[len(out)-1].to, out[len(out)-1].mark, out[len(out)-1].what = after, 'A', "handed out at most once"
			}
			continue
		case "extended":
			if isOut {
				out[i].until = deadline(e, start)
				continue // the bar is longer for it
			}
		case "acked", "nacked", "rejected", "lapsed", "session-lost", "released":
			if isOut {
				b := &out[i]
				b.to, b.mark, b.ended = max(after, b.from), marks[e.GetWhat()], e.GetNode()
				b.what = fmt.Sprintf("%s after %v", e.GetWhat(), b.to-b.from)
				if e.GetDetail() != "" {
					b.what += ": " + e.GetDetail()
				}
				delete(open, g)
				continue
			}
		}
		b := bar{group: g, member: e.GetMember(), attempt: e.GetAttempt(), from: after, to: after, mark: '*', what: e.GetWhat(), node: e.GetNode()}
		if mark, ok := marks[e.GetWhat()]; ok {
			b.mark = mark
		}
		// A dead letter has the reason of its last failure, which is the line before.
		if e.GetDetail() != "" && e.GetWhat() != "dead-lettered" {
			b.what += ": " + e.GetDetail()
		}
		out = append(out, b)
	}
	for _, i := range open {
		out[i].to = total
		if out[i].until > 0 {
			out[i].what += fmt.Sprintf(", until +%v", out[i].until)
		}
	}
	slices.SortStableFunc(out, func(x, y bar) int { return order[x.group] - order[y.group] })
	return out, total
}

// deadline is when a hand-out ends at the latest, since the message was published.
func deadline(e *strandmqv1.TraceEvent, start time.Time) time.Duration {
	if e.GetUntil() == nil {
		return 0
	}
	return max(0, e.GetUntil().AsTime().Sub(start))
}

// nodes are those that led while a line lasted.
func (b *bar) nodes() string {
	if b.ended != 0 && b.ended != b.node {
		return countOrDash(b.node) + ", " + countOrDash(b.ended)
	}
	return countOrDash(b.node)
}

// drawn is the picture of a line.
func (b *bar) drawn(total time.Duration) string {
	column := func(d time.Duration) int {
		if total <= 0 {
			return 0
		}
		return int(float64(d) / float64(total) * (timelineWidth - 1))
	}
	from, to := column(b.from), column(b.to)
	line := []byte(strings.Repeat(".", timelineWidth))
	for i := from; i < to && b.begun; i++ {
		line[i] = '='
	}
	line[to] = b.mark
	return string(line)
}

// printTimeline draws a message's life over time. The legend is told once, below all.
func (a *app) printTimeline(m *strandmqv1.MessageTrace) error {
	a.whole(m)
	fmt.Fprintln(a.out)
	list, total := bars(m)
	length := "+" + total.String()
	head := "0" + strings.Repeat(" ", max(1, timelineWidth-1-len(length))) + length
	t := table.Table{Head: []string{"GROUP", "AFTER", head, "NODE", "ATTEMPT", "MEMBER", "WHAT"}, Right: []int{1, 3, 4}}
	for _, b := range list {
		t.Add(orDash(b.group), "+"+b.from.String(), b.drawn(total), b.nodes(), countOrDash(b.attempt), orDash(b.member), b.what)
	}
	if err := a.printTable(&t, ""); err != nil {
		return err
	}
	a.cut(m)
	return a.stands(m)
}
