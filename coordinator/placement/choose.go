package placement

import (
	"cmp"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// work is a picture on its way to a plan.
type work struct {
	opt   Options
	nodes []Node // by id
	parts []*Partition
	tally

	busy  int // partitions on the move, those of this plan included
	leads int // leaders that this plan changes
	moved map[partition.PartitionID]bool
	plan  Plan
}

// tally counts what nodes are to have. The metadata log is not in it: every node
// has it anyhow.
type tally struct {
	load      map[partition.NodeID]int // replicas
	lead      map[partition.NodeID]int // partitions that it is to lead
	topicLoad map[topicOn]int
	topicLead map[topicOn]int
}

// topicOn is a topic on a node.
type topicOn struct {
	topic uint64
	node  partition.NodeID
}

func newTally() tally {
	return tally{
		load: map[partition.NodeID]int{}, lead: map[partition.NodeID]int{},
		topicLoad: map[topicOn]int{}, topicLead: map[topicOn]int{},
	}
}

// count adds a partition's wanted replicas, or takes them away (by -1).
func (t *tally) count(p *Partition, by int) {
	if p.ID == partition.Metadata {
		return
	}
	for i, n := range p.Replicas {
		t.load[n] += by
		t.topicLoad[topicOn{p.Topic, n}] += by
		if i == 0 {
			t.lead[n] += by
			t.topicLead[topicOn{p.Topic, n}] += by
		}
	}
}

func newWork(pic Picture, opt Options) *work {
	w := &work{opt: opt.WithDefaults(), nodes: slices.Clone(pic.Nodes), tally: newTally(), moved: map[partition.PartitionID]bool{}}
	slices.SortFunc(w.nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	for _, p := range pic.Partitions {
		p.Replicas = slices.Clone(p.Replicas)
		w.parts = append(w.parts, &p)
		w.count(&p, 1)
		if p.Moving {
			w.busy++
		}
	}
	slices.SortFunc(w.parts, func(a, b *Partition) int { return cmp.Compare(a.ID, b.ID) })
	return w
}

// node finds a node; one that does not belong to the cluster is dead for good.
func (w *work) node(id partition.NodeID) Node {
	for i := range w.nodes { // a few, so that a search would cost more
		if w.nodes[i].ID == id {
			return w.nodes[i]
		}
	}
	return Node{ID: id, Draining: true, Silent: w.opt.DeadAfter + 1}
}

func (w *work) there(id partition.NodeID) bool { return w.node(id).Silent == 0 }
func (w *work) dead(id partition.NodeID) bool  { return w.node(id).Silent > w.opt.DeadAfter }

// takes tells whether a node is given replicas.
func (w *work) takes(id partition.NodeID) bool { return w.there(id) && !w.node(id).Draining }

// mayLead tells whether a node may be the one that is to lead. One that is silent
// for a moment stays it.
func (w *work) mayLead(id partition.NodeID) bool { return !w.dead(id) && !w.node(id).Draining }

// healthy tells whether a partition may be moved for the sake of order: it is
// where it should be, and all of it is there.
func (w *work) healthy(p *Partition) bool {
	return !p.Moving && !w.moved[p.ID] && len(p.Leaving) == 0 && !slices.ContainsFunc(p.Replicas, func(n partition.NodeID) bool { return !w.there(n) })
}

// majority tells whether more than half of the nodes are there.
func (w *work) majority(nodes []partition.NodeID) bool {
	there := 0
	for _, n := range nodes {
		if w.there(n) {
			there++
		}
	}
	return 2*there > len(nodes)
}

// holders are all nodes that may have a vote in a partition.
func holders(p *Partition) []partition.NodeID {
	all := slices.Clone(p.Replicas)
	for _, n := range p.Leaving {
		if !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	return all
}

// inZone counts the nodes that are in a zone.
func (w *work) inZone(nodes []partition.NodeID, zone string) int {
	count := 0
	for _, n := range nodes {
		if w.node(n).Zone == zone {
			count++
		}
	}
	return count
}

// free tells whether a node can take a replica of p beside those in set.
func (w *work) free(p *Partition, set []partition.NodeID, n partition.NodeID) bool {
	return w.takes(n) && !slices.Contains(set, n) && !slices.Contains(p.Erasing, n)
}

// pick finds the best node for one more replica of p beside those in set, and
// not on one of those in but: where the zone has the fewest of them, then one
// that has the data yet, then where the topic and all topics have the fewest
// replicas.
func (w *work) pick(p *Partition, set []partition.NodeID, but ...partition.NodeID) (partition.NodeID, bool) {
	var best partition.NodeID
	found := false
	for _, n := range w.nodes {
		if w.free(p, set, n.ID) && !slices.Contains(but, n.ID) && (!found || w.better(p, set, n.ID, best)) {
			best, found = n.ID, true
		}
	}
	return best, found
}

func (w *work) better(p *Partition, set []partition.NodeID, a, b partition.NodeID) bool {
	has := func(n partition.NodeID) int {
		if slices.Contains(p.Leaving, n) {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(w.inZone(set, w.node(a).Zone), w.inZone(set, w.node(b).Zone)),
		cmp.Compare(has(a), has(b)),
		cmp.Compare(w.topicLoad[topicOn{p.Topic, a}], w.topicLoad[topicOn{p.Topic, b}]),
		cmp.Compare(w.load[a], w.load[b]),
		cmp.Compare(a, b),
	) < 0
}

// add writes a move down and counts on as if it were done.
func (w *work) add(p *Partition, to []partition.NodeID, why Why) {
	w.plan.Moves = append(w.plan.Moves, Move{Partition: p.ID, From: slices.Clone(p.Replicas), To: slices.Clone(to), Why: why})
	w.moved[p.ID] = true
	w.count(p, -1)
	p.Replicas = to
	w.count(p, 1)
}

// room tells whether one more partition may be on the move.
func (w *work) room() bool { return w.busy < w.opt.Moves }

func (w *work) stuck(p *Partition, why Why, needs string) {
	w.plan.Stuck = append(w.plan.Stuck, Stuck{Partition: p.ID, Why: why, Needs: needs})
}
