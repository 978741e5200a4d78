package doctor

import (
	"fmt"
	"slices"
)

// history says of findings since when, and how often, what they are about happened: a look
// at the present does not tell.
func (d *diagnosis) history() {
	for i := range d.found {
		f := &d.found[i]
		for _, kind := range kindsOf(f.Cause) {
			d.happened(f, kind)
		}
		if f.Cause == ConsumerCrashes {
			d.failovers(f)
		}
	}
}

// kindsOf are the events that tell of the beginning of a cause, for the same group or node.
func kindsOf(c Cause) []string {
	switch c {
	case CircuitOpen:
		return []string{"CIRCUIT_OPENED"}
	case NoMembers, ConsumerCrashes:
		return []string{"MEMBER_EXPIRED"}
	case MemberSilent:
		return []string{"MEMBER_AWAY"}
	case DeferredLimit:
		return []string{"DEFERRED_LIMIT"}
	case HoldLimit, PublishRefused:
		return []string{"HOLD_LIMIT"}
	case Parked:
		return []string{"KEY_PARKED"}
	case Expired:
		return []string{"EXPIRED_UNREAD"}
	case NodeDown:
		return []string{"NODE_STOPPED", "NODE_SILENT"}
	case NodeStuck, NodesCutOff:
		return []string{"NODE_SILENT"}
	case DiskFull:
		return []string{"DISK_LOW"}
	case DiskStuck, DiskSlow:
		return []string{"NODE_UNFIT"}
	case Damaged:
		return []string{"REPLICA_STOPPED", "REPLICA_KEPT"}
	}
	return nil
}

// slack is by how much two clocks of a cluster may differ, in milliseconds.
const slack = 5000

// happened adds what the events of a kind say of what a finding is about.
func (d *diagnosis) happened(f *Finding, kind string) {
	var all Event
	for _, e := range d.facts.Events {
		if e.Kind == kind && e.about() == f.About && (f.since == 0 || e.Last >= f.since-slack) {
			if f.since != 0 && e.First < f.since-slack {
				e.First, e.Count = e.Last, 1 // the others were of another time
			}
			all = all.and(e)
		}
	}
	if all.Count == 0 {
		return
	}
	times := "once"
	if all.Count > 1 {
		times = fmt.Sprintf("%d in all, the last", all.Count)
	}
	if first, last := rough(d.ago(all.First)), rough(d.ago(all.Last)); all.Count > 1 && first != last {
		times = fmt.Sprintf("%d since %s ago, the last", all.Count, first)
	}
	line := fmt.Sprintf("%s %s %s ago: strandmq events --kind %s", kind, times, rough(d.ago(all.Last)), kind)
	switch {
	case all.Group != "":
		line += " --topic " + all.Topic + " --group " + all.Group
	case all.Node != 0:
		line += " --node " + nodeName(all.Node)
	}
	f.say("%s", line)
}

// wentAway tells of an event that ends sessions: of members whose streams went through the
// node. Those need not have crashed.
func (e Event) wentAway() bool { return e.Kind == "NODE_SILENT" || e.Kind == "NODE_STOPPED" }

// with are the nodes that went when attempts ended, if all of them ended so.
func (d *diagnosis) with(attempts []Attempt) (nodes []uint64) {
	// A stream ends at once with its node, and before that is noticed; a session whose member
	// does not come back ends later.
	const before, after = 15_000, 60_000
	for _, a := range attempts {
		i := slices.IndexFunc(d.facts.Events, func(e Event) bool {
			near := func(t int64) bool { return a.Ended >= t-before && a.Ended <= t+after }
			return e.wentAway() && (near(e.First) || near(e.Last))
		})
		if i < 0 {
			return nil
		}
		if n := d.facts.Events[i].Node; !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// failovers says which nodes were not there lately: sessions that went through them ended
// with them.
func (d *diagnosis) failovers(f *Finding) {
	var nodes []uint64
	var last int64
	for _, e := range d.facts.Events {
		if e.wentAway() && d.ago(e.Last) < recently && !slices.Contains(nodes, e.Node) {
			nodes, last = append(nodes, e.Node), max(last, e.Last)
		}
	}
	if len(nodes) > 0 {
		slices.Sort(nodes)
		f.say("not heard of %s ago: %s; a member whose stream went through a node that stopped, or was cut off, lost its session, too, and need not have crashed", rough(d.ago(last)), nodeNames(nodes))
	}
}

// about is what a finding of the same is about.
func (e Event) about() string {
	switch {
	case e.Group != "":
		return fmt.Sprintf("group %s of topic %s", e.Group, e.Topic)
	case e.Node != 0:
		return "node " + nodeName(e.Node)
	}
	return ""
}

// and is two events of one kind, about the same, as one.
func (e Event) and(o Event) Event {
	if e.Count == 0 {
		return o
	}
	e.Count += o.Count
	e.First, e.Last = min(e.First, o.First), max(e.Last, o.Last)
	return e
}
