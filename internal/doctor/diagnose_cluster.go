package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/strandmq/strandmq/internal/quantity"
)

// cluster looks at what is said of all nodes together.
func (d *diagnosis) cluster() {
	c := &d.facts.Cluster
	var without []string
	why := c.Behind
	for i := range d.facts.Topics {
		t := &d.facts.Topics[i]
		n := 0
		for _, p := range t.Partitions {
			if p.FaultReason == "NO_QUORUM" {
				n++
				why = cmp.Or(why, p.Fault)
			}
		}
		if n > 0 {
			without = append(without, fmt.Sprintf("%d of the %d partitions of topic %s", n, len(t.Partitions), t.Name))
		}
	}
	if why != "" || len(without) > 0 {
		text := "too few nodes are there to decide anything"
		if c.Behind == "" {
			text = "too few replicas of some partitions are there: nothing is published to or consumed from them"
		}
		if away := d.away(); len(away) > 0 {
			text += ": " + isAway(away)
		}
		f := d.add(Critical, NoQuorum, "cluster", text)
		if why != "" {
			f.say("%s", why)
		}
		for _, w := range without[:min(most, len(without))] {
			f.say("no leader: %s", w)
		}
		f.next("strandmq cluster status")
		f.next("%s    # on each node that is away: it goes on when a majority is back", startAgain(""))
	}
	if len(c.Stuck) == 0 {
		return
	}
	s := c.Stuck[0]
	f := d.add(Warning, UnderReplicated, "cluster", fmt.Sprintf("%s cannot be put where %s: %s", quantity.Some(len(c.Stuck), "partition"), number(uint64(len(c.Stuck)), "it is wanted", "they are wanted"), s.Needs))
	f.say("%v: %s; it needs: %s", s.Place, s.Why, s.Needs)
	f.next("strandmq cluster status")
	f.next("strandmq cluster token    # a new node joins with it")
}

// away are the nodes that nobody hears of.
func (d *diagnosis) away() (out []uint64) {
	for _, n := range d.facts.Nodes {
		if n.Known && n.Silent > 0 && !n.Answered {
			out = append(out, n.ID)
		}
	}
	return out
}

func isAway(nodes []uint64) string {
	if len(nodes) == 1 {
		return nodeName(nodes[0]) + " is away"
	}
	return nodeNames(nodes) + " are away"
}

// node looks at one.
func (d *diagnosis) node(n *Node) {
	about := "node " + nodeName(n.ID)
	switch {
	case n.Hangs && n.Known:
		text := fmt.Sprintf("node %s takes connections and does not answer: its process or its disk stands still", nodeName(n.ID))
		if n.Silent > 0 {
			text += fmt.Sprintf(", and the other nodes have not heard of it for %s", rough(n.Silent))
		}
		short, whole := d.short(n.ID)
		d.add(Critical, NodeStuck, about, text).began(d.outage(n)).say("short of their replica on it: %d of %s", short, quantity.Some(whole, "partition")).
			next("strandmq cluster status").next("strandmq node --server %s", n.API)
		return
	case n.Known && n.Silent > 0 && n.Foreign && n.State != "lost":
		// As it does that was started on an empty folder, with its usual command.
		f := d.add(Critical, NodeDown, about, fmt.Sprintf("node %s is away, and another cluster answers at its address: its disk is lost, or it was started on another folder", nodeName(n.ID)))
		f.weigh(uint64(n.Replicas)).began(d.outage(n))
		short, whole := d.short(n.ID)
		f.say("nobody has heard of it for %s; short of their replica on it: %d of %s", rough(n.Silent), short, quantity.Some(whole, "partition"))
		f.next("strandmq node --server %s    # who is there", n.API)
		f.next("%s    # on its machine, in place of that one, if it has its folder", startAgain(n.API))
		d.decide(f, "strandmq cluster replace %d --dry-run    # if its disk is lost", n.ID)
		return
	case n.Known && n.Silent > 0 && !n.Answered:
		f := d.add(Critical, NodeDown, about, fmt.Sprintf("node %s is away: nobody has heard of it for %s, since %s, and it did not say that it stops",
			nodeName(n.ID), rough(n.Silent), clock(d.facts.Now-n.Silent.Milliseconds())))
		switch {
		case n.Left != 0:
			f.Text = fmt.Sprintf("node %s is away: it was stopped cleanly at %s, %s ago: start it again or, if it is not to come back, remove it",
				nodeName(n.ID), clock(n.Left), rough(d.ago(n.Left)))
		case d.forgotten(n):
			f.Text = fmt.Sprintf("node %s is away: nobody has heard of it for %s, since %s; whether it said that it stops is not among the events any more",
				nodeName(n.ID), rough(n.Silent), clock(d.facts.Now-n.Silent.Milliseconds()))
		}
		f.weigh(uint64(n.Replicas)).began(d.outage(n))
		if n.State == "lost" {
			f.Severity, f.Cause, f.Text = Warning, UnderReplicated, fmt.Sprintf("node %s was given up, and what it held is being made anew elsewhere", nodeName(n.ID))
		}
		short, whole := d.short(n.ID)
		f.say("short of their replica on it: %d of %s", short, quantity.Some(whole, "partition"))
		f.next("strandmq cluster status")
		if n.Left != 0 {
			f.next("%s    # on its machine", startAgain(n.API))
			d.decide(f, "strandmq cluster drain %d --dry-run    # if it is not to come back; then cluster remove", n.ID)
			return
		}
		f.next("%s    # on its machine, if it stopped", startAgain(n.API))
		d.decide(f, "strandmq cluster replace %d --dry-run    # if its disk is lost", n.ID)
		return
	case n.Known && n.Silent > 0:
		f := d.add(Critical, NodesCutOff, about, fmt.Sprintf("node %s answers, and the other nodes have not heard of it for %s: the network between them is cut, or its --peer-listen cannot be reached", nodeName(n.ID), rough(n.Silent)))
		f.began(d.outage(n)).next("strandmq node --server %s", n.API)
		return
	case !n.Answered:
		return
	}
	disk := &n.Disk
	at := " --server " + n.API
	if len(d.facts.Nodes) == 1 {
		at = ""
	}
	if disk.Stuck > 0 {
		f := d.add(Critical, DiskStuck, about, fmt.Sprintf("the disk of node %s has not come back from a write for %s: nothing is published there", nodeName(n.ID), rough(disk.Stuck)))
		if n.SlowWrites > 0 {
			f.say("%s took a second or more before", quantity.Some(n.SlowWrites, "write"))
		}
		f.next("strandmq node%s", at)
	}
	d.room(n, about, at)
	if disk.Stuck == 0 && (n.SlowWrites > 0 || n.Stalls > 0) && d.facts.Apart > 0 {
		d.add(Warning, DiskSlow, about, fmt.Sprintf("the disk of node %s is slow: publishes wait for it", nodeName(n.ID))).
			say("within %s, %s took a second or more, and all writes waited %s", rough(d.facts.Apart), quantity.Some(n.SlowWrites, "write"), quantity.Some(n.Stalls, "time")).
			next("strandmq node%s", at)
	}
	d.stopped(n, about, at)
	if deaf := slices.DeleteFunc(slices.Clone(n.Deaf), d.unheard); len(deaf) > 0 {
		d.add(Warning, NodesCutOff, about, fmt.Sprintf("node %s does not hear of %s, which others do hear of: the network between them is cut", nodeName(n.ID), nodeNames(deaf))).
			began(d.outage(n)).next("strandmq node%s", at)
	}
}

// decide adds a command that the metadata log has to take, if enough nodes are there for it.
func (d *diagnosis) decide(f *Finding, format string, args ...any) {
	if d.facts.Cluster.Behind == "" {
		f.next(format, args...)
	}
}

// startAgain starts a node that has been one, where clients find it. On a folder that is
// empty, as its disk is not mounted, it would else be a new broker, alone.
func startAgain(api string) string {
	at := cmp.Or(strings.TrimPrefix(api, "http://"), "ADDRESS")
	return "strandmq serve --existing --data FOLDER --listen " + at
}

// outage is when a node went: nobody has heard of it since, or it had said that it stops.
// Of one that is heard of none is known, and no earlier one is meant.
func (d *diagnosis) outage(n *Node) int64 {
	start := d.facts.Now - n.Silent.Milliseconds()
	if n.Left != 0 {
		start = min(start, n.Left)
	}
	return start
}

// forgotten tells whether more happened since a node went than the cluster keeps to tell:
// then a word of the node that it stops is not kept either.
func (d *diagnosis) forgotten(n *Node) bool {
	kept := len(d.facts.Events) > 0
	for _, e := range d.facts.Events {
		kept = kept && e.Last > d.outage(n)+slack && (e.Node != n.ID || e.Kind != "NODE_SILENT")
	}
	return kept
}

// unheard tells whether nobody hears of a node, which is told of that node.
func (d *diagnosis) unheard(id uint64) bool {
	return slices.ContainsFunc(d.facts.Nodes, func(n Node) bool { return n.ID == id && n.Known && n.Silent > 0 })
}

// stopped tells of what a node does not serve: damaged, or written by a newer version.
func (d *diagnosis) stopped(n *Node, about, at string) {
	var damaged, newer []Stopped
	for _, s := range n.Stopped {
		if s.Newer {
			newer = append(newer, s)
		} else {
			damaged = append(damaged, s)
		}
	}
	if len(newer) > 0 {
		f := d.add(Critical, NewerFormat, about, fmt.Sprintf("node %s does not read what a newer version of the broker wrote, and waits for it: nothing is damaged", nodeName(n.ID)))
		f.weigh(uint64(len(newer)))
		for _, s := range newer[:min(most, len(newer))] {
			f.say("%v: %s", s.Place, s.Why)
		}
		f.next("strandmq version --of-server%s    # then run that of the other nodes, or a newer one, on its folder", at)
	}
	if len(n.Damage)+len(damaged) == 0 {
		return
	}
	f := d.add(Critical, Damaged, about, fmt.Sprintf("stored data of node %s is damaged: it is not served, and everything else is", nodeName(n.ID)))
	f.weigh(uint64(len(damaged)))
	for _, s := range damaged[:min(most, len(damaged))] {
		f.say("%v has stopped: %s", s.Place, s.Why)
	}
	for _, w := range n.Damage[:min(most, len(n.Damage))] {
		f.say("%s", w)
	}
	f.next("strandmq node%s", at)
	if len(d.facts.Nodes) > 1 {
		f.next("strandmq cluster status    # replicas of other nodes are copied back by themselves")
	}
}

// short counts the partitions that want a replica on a node, and all.
func (d *diagnosis) short(node uint64) (n, all int) {
	for _, t := range d.facts.Topics {
		for _, p := range t.Partitions {
			all++
			if slices.Contains(p.Nodes, node) {
				n++
			}
		}
	}
	return n, all
}

// clocks finds whose clock is off: of two that differ nobody can say, of three the one
// that differs from both.
func (d *diagnosis) clocks() {
	named := map[uint64]int{}
	var say []string
	by := time.Duration(0)
	for _, n := range d.facts.Nodes {
		for _, s := range n.ClocksOff {
			by = max(by, s.Ahead.Abs())
			named[n.ID]++
			named[s.Node]++
			way := "ahead of"
			if s.Ahead < 0 {
				way = "behind"
			}
			say = append(say, fmt.Sprintf("the clock of %s is %s %s that of %s", nodeName(s.Node), rough(s.Ahead.Abs()), way, nodeName(n.ID)))
		}
	}
	if len(say) == 0 {
		return
	}
	top := 0
	var who []uint64
	for _, n := range d.facts.Nodes {
		switch c := named[n.ID]; {
		case c > top:
			top, who = c, []uint64{n.ID}
		case c == top && c > 0:
			who = append(who, n.ID)
		}
	}
	about, text := "cluster", fmt.Sprintf("the clocks of %s differ by %s", nodeNames(who), rough(by))
	if len(who) == 1 {
		about, text = "node "+nodeName(who[0]), fmt.Sprintf("the clock of node %s is off by %s", nodeName(who[0]), rough(by))
	}
	f := d.add(Warning, ClockOff, about, text+": messages are stamped, and retention goes, by the clock of whoever leads")
	f.Evidence = say
	f.next("timedatectl    # on the machine of each node: set it right, and keep it so with NTP")
}

// partitions looks at what is wrong with single ones and was not said yet.
func (d *diagnosis) partitions() {
	for i := range d.facts.Topics {
		t := &d.facts.Topics[i]
		for _, p := range t.Partitions {
			about := fmt.Sprintf("topic %s", t.Name)
			switch p.FaultReason {
			case "NEWER_FORMAT":
				if !slices.ContainsFunc(d.found, func(f Finding) bool { return f.Cause == NewerFormat }) {
					d.add(Critical, NewerFormat, about, fmt.Sprintf("partition %d of topic %s was written by a newer version of the broker, and waits for it", p.Number, t.Name)).
						say("%s", p.Fault).next("strandmq version --of-server    # of each node, with --server: which one is older")
				}
			case "PARTITION_DAMAGED":
				if !slices.ContainsFunc(d.found, func(f Finding) bool { return f.Cause == Damaged }) {
					d.add(Critical, Damaged, about, fmt.Sprintf("partition %d of topic %s is damaged and not served", p.Number, t.Name)).
						say("%s", p.Fault).next("strandmq topic describe %s", t.Name)
				}
			}
		}
	}
}

// mayExpire tells how long a group has until retention takes what it has not settled.
func (d *diagnosis) mayExpire(g *Group) (left time.Duration, soon bool) {
	for i := range d.facts.Topics {
		t := &d.facts.Topics[i]
		if t.Name != g.Topic || t.Retention == 0 || g.Oldest == 0 || g.Holds {
			continue
		}
		age := d.ago(g.Oldest)
		return max(0, t.Retention-age), age >= d.behind && age > t.Retention/5*4
	}
	return 0, false
}
