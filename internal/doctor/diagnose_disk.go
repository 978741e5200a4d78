package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/internal/quantity"
)

// RoomEnough is what is room enough on a disk of any size, twice the reserve aside: a tenth
// of a large one is more. The alert rules go by the same.
const RoomEnough = 16 << 30

// room tells of a disk that is full, or nearly.
//
// A node whose disk has less free than its reserve takes no publishes. Among others it
// hands over what another can lead, follows, and stores what those publish.
func (d *diagnosis) room(n *Node, about, at string) {
	disk := &n.Disk
	free, reserve := quantity.RoughSize(disk.Free), quantity.RoughSize(disk.Reserve)
	switch filling := max(2*disk.Reserve, min(disk.Total/10, RoomEnough)); {
	case disk.Low:
		severity, then := Critical, "publishes are refused, consuming goes on"
		if len(d.facts.Nodes) > 1 {
			switch leads := d.facts.leads(n.ID); leads {
			case 0:
				severity, then = Warning, d.facts.leadsNothing()+", so no publish is refused for it; it stores what others publish, until nothing fits"
			default:
				then = fmt.Sprintf("publishes to %s that it leads, and no other node can, are refused; consuming goes on", quantity.Some(leads, "partition"))
			}
		}
		d.holders(d.add(severity, DiskFull, about, fmt.Sprintf("the disk of node %s has %s free, less than its reserve of %s: %s", nodeName(n.ID), free, reserve, then)), n, at)
	case disk.Total > 0 && disk.Free < filling:
		then := "publishes are refused"
		if len(d.facts.Nodes) > 1 {
			then = "it leads nothing that another node can lead, and publishes to the rest are refused"
		}
		d.holders(d.add(Warning, DiskFilling, about, fmt.Sprintf("the disk of node %s has %s free of %s; below %s %s", nodeName(n.ID), free, quantity.RoughSize(disk.Total), reserve, then)), n, at)
	}
}

func (f *Facts) leadsNothing() string {
	if f.Only != "" {
		return "it leads nothing of topic " + f.Only
	}
	return "it leads nothing"
}

// leads counts the partitions that a node leads, of those that were looked at.
func (f *Facts) leads(node uint64) (n int) {
	for _, t := range f.Topics {
		for _, p := range t.Partitions {
			if p.Leader == node {
				n++
			}
		}
	}
	return n
}

// holders says what fills a node's disk: topics by size, and groups for which more is kept
// than the topic's limits would; or that others do.
func (d *diagnosis) holders(f *Finding, n *Node, at string) {
	type share struct {
		topic, group string
		bytes        uint64
	}
	var topics, groups []share
	for _, t := range d.facts.Topics {
		of := share{topic: t.Name}
		held := share{topic: t.Name}
		for _, p := range t.Partitions {
			if len(d.facts.Nodes) > 1 && !slices.Contains(p.Nodes, n.ID) {
				continue
			}
			of.bytes += p.Bytes
			if p.HeldBy != "" {
				held.group = p.HeldBy
				held.bytes += p.HeldBytes
			}
		}
		if of.bytes > 0 {
			topics = append(topics, of)
		}
		if held.group != "" {
			groups = append(groups, held)
		}
	}
	heaviest := func(a, b share) int { return cmp.Compare(b.bytes, a.bytes) }
	slices.SortStableFunc(topics, heaviest)
	slices.SortStableFunc(groups, heaviest)
	for _, s := range groups[:min(most, len(groups))] {
		f.say("group %s of topic %s holds %s beyond the topic's limits", s.group, s.topic, quantity.RoughSize(s.bytes))
	}
	for _, s := range topics[:min(most, len(topics))] {
		f.say("topic %s takes %s", s.topic, quantity.RoughSize(s.bytes))
	}
	if used := n.Disk.Total - min(n.Disk.Free, n.Disk.Total); n.Disk.Store < used/10 {
		f.say("the node's store takes %s in all, and %s of the disk are used: others fill it", quantity.RoughSize(n.Disk.Store), quantity.RoughSize(used))
		f.next("df -h    # on its machine: make room outside of the data folder, or move that to a disk of its own")
		f.next("strandmq node%s", at)
		return
	}
	f.say("the node's store takes %s in all", quantity.RoughSize(n.Disk.Store))
	for _, s := range groups[:min(most, len(groups))] {
		f.next("strandmq group describe %s %s", s.topic, s.group)
	}
	if len(topics) > 0 {
		f.next("strandmq topic describe %s", topics[0].topic)
		f.next("strandmq topic alter %s --retention 1d    # keep less, if it may go", topics[0].topic)
	} else {
		f.next("strandmq node%s", at)
	}
}
