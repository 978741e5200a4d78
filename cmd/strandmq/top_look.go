package main

import (
	"fmt"
	"time"

	"github.com/strandmq/strandmq/internal/doctor"
	"github.com/strandmq/strandmq/internal/quantity"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// look takes one look, and rates by the one before.
func (t *top) look() topLook {
	q := t.q
	q.facts = doctor.Facts{}
	q.cluster()
	q.each(len(q.facts.Nodes), func(i int) { q.node(&q.facts.Nodes[i], true) })
	q.groups(false)
	now := time.Now()
	l := topLook{At: now, Groups: []topRow{}, Nodes: []topNode{}}
	clock := now.Add(q.ahead).UnixMilli()
	for _, g := range q.facts.Groups {
		if g.Counted {
			l.Groups = append(l.Groups, rowOf(g.Topic, g.Name, g.Now, clock, g.Oldest, g.Paused))
		}
	}
	if q.group != "" {
		l.Partitions = t.partitions(clock)
	}
	for _, n := range q.facts.Nodes {
		l.Nodes = append(l.Nodes, topNode{
			Node: nodeWord(n.ID), There: n.Answered || n.Known && n.Silent == 0, Replicas: n.Replicas,
			Free: n.Disk.Free, Total: n.Disk.Total, Words: nodeFault(&n),
		})
	}
	rates(l.Groups, t.before.Groups, now.Sub(t.before.At))
	rates(l.Partitions, t.before.Partitions, now.Sub(t.before.At))
	t.before = l
	// What is cut off stays known for the next look's rates.
	if l.Partitions != nil {
		l.Partitions, l.More = t.furthest(append([]topRow{}, l.Partitions...))
	} else {
		l.Groups, l.More = t.furthest(append([]topRow{}, l.Groups...))
	}
	q.silent()
	l.Unreached = orNone(q.facts.Unreached)
	return l
}

// partitions are those of the group that was asked for.
func (t *top) partitions(clock int64) []topRow {
	q := t.q
	out := []topRow{}
	res, err := one(q, q.asked.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: q.topic, Group: q.group})
	if err != nil {
		q.unreached("group "+q.group+" of topic "+q.topic, err)
		return out
	}
	for _, p := range res.GetPartitions() {
		if p.GetCounts() == nil {
			continue
		}
		r := rowOf(q.topic, q.group, countsOf(p.GetCounts()), clock, unixMillis(p.GetOldestPublished()), res.GetGroup().GetPaused())
		r.Partition = new(p.GetPartition())
		out = append(out, r)
	}
	return out
}

func rowOf(topic, group string, c doctor.Counts, clock, oldest int64, paused bool) topRow {
	r := topRow{Topic: topic, Group: group, Paused: paused, Lag: c.Lag, InFlight: c.InFlight, Dead: c.Dead, counts: c}
	if oldest != 0 && c.Lag > 0 {
		r.Oldest = max(0, float64(clock-oldest)/1000)
	}
	return r
}

// rates compares rows with those of the look before.
func rates(rows, before []topRow, apart time.Duration) {
	type name struct {
		topic, group string
		partition    int64
	}
	nameOf := func(r *topRow) name {
		n := name{r.Topic, r.Group, -1}
		if r.Partition != nil {
			n.partition = int64(*r.Partition)
		}
		return n
	}
	was := map[name]*topRow{}
	for i := range before {
		was[nameOf(&before[i])] = &before[i]
	}
	for i := range rows {
		r := &rows[i]
		old := was[nameOf(r)]
		// A partition that stopped, or a group made anew, counts from further back.
		if old == nil || apart <= 0 || old.counts.Acked > r.counts.Acked || old.counts.Failed() > r.counts.Failed() {
			continue
		}
		per := func(n float64) *float64 { return new(n / apart.Seconds()) }
		r.LagRate = per(float64(r.Lag) - float64(old.Lag))
		r.AckRate = per(float64(r.counts.Acked - old.counts.Acked))
		r.FailRate = per(float64(r.counts.Failed() - old.counts.Failed()))
	}
}

// nodeFault is the worst of a node in a few words.
func nodeFault(n *doctor.Node) string {
	switch {
	case n.Known && n.Silent > 0:
		return "silent for " + quantity.FormatSpan(n.Silent.Round(time.Second))
	case !n.Answered:
		return "does not answer"
	case n.Disk.Stuck > 0:
		return "its disk does not come back"
	case n.Disk.Low:
		return "publishes are refused: its disk is full"
	case len(n.Damage)+len(n.Stopped) > 0:
		return fmt.Sprintf("%s not served", quantity.Some(len(n.Damage)+len(n.Stopped), "place"))
	case len(n.ClocksOff) > 0:
		return "its clock differs"
	}
	return ""
}
