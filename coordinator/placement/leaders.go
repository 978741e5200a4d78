package placement

import (
	"cmp"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// betterLead tells whether a partition is better led by a than by b.
func (w *work) betterLead(p *Partition, a, b partition.NodeID) bool {
	not := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(not(w.mayLead(a)), not(w.mayLead(b))),
		cmp.Compare(not(w.there(a)), not(w.there(b))),
		cmp.Compare(not(slices.Contains(p.Replicas, a)), not(slices.Contains(p.Replicas, b))),
		cmp.Compare(w.topicLead[topicOn{p.Topic, a}], w.topicLead[topicOn{p.Topic, b}]),
		cmp.Compare(w.lead[a], w.lead[b]),
	) < 0
}

// first is nodes with n at the head and the others in their order.
func first(nodes []partition.NodeID, n partition.NodeID) []partition.NodeID {
	out := append(make([]partition.NodeID, 0, len(nodes)), n)
	for _, x := range nodes {
		if x != n {
			out = append(out, x)
		}
	}
	return out
}

// ordered tells whether who leads a partition may be changed in this plan. A
// partition on the move is left alone: its order would be another placement, and
// the move would begin anew.
func (w *work) ordered(p *Partition) bool {
	return p.ID != partition.Metadata && !p.Moving && !w.moved[p.ID] && w.leads < w.opt.Leads
}

func (w *work) lead1(p *Partition, n partition.NodeID, why Why) {
	w.leads++
	w.add(p, first(p.Replicas, n), why)
}

// leaders chooses others to lead where the one that is to cannot, and evens out
// how much each node is to lead.
func (w *work) leaders() {
	for _, p := range w.parts {
		if !w.ordered(p) || w.mayLead(p.Replicas[0]) {
			continue
		}
		best := p.Replicas[0]
		for _, n := range p.Replicas[1:] {
			if w.betterLead(p, n, best) {
				best = n
			}
		}
		if w.mayLead(best) {
			w.lead1(p, best, LeadAway)
		}
	}
	for w.evenLeads() {
	}
}

// evenLeads passes one lead from a node on to one that leads two fewer, through
// others where the two share no partition: along a shortest way, so that as few
// leaders change as can be.
func (w *work) evenLeads() bool {
	// next[a][b] is a partition that a is to lead and b could.
	next := map[partition.NodeID]map[partition.NodeID]*Partition{}
	for _, p := range w.parts {
		a := p.Replicas[0]
		if !w.ordered(p) || !w.healthy(p) || !w.mayLead(a) {
			continue
		}
		for _, b := range p.Replicas[1:] {
			if !w.mayLead(b) {
				continue
			}
			if next[a] == nil {
				next[a] = map[partition.NodeID]*Partition{}
			}
			if old := next[a][b]; old == nil || w.leadSkew(p, a, b) < w.leadSkew(old, a, b) {
				next[a][b] = p
			}
		}
	}
	var nodes []partition.NodeID
	for _, n := range w.nodes {
		nodes = append(nodes, n.ID)
	}
	slices.SortStableFunc(nodes, func(a, b partition.NodeID) int { return cmp.Compare(w.lead[b], w.lead[a]) })
	for _, a := range nodes {
		way := w.leadWay(a, nodes, next)
		if len(way) == 0 || w.leads+len(way)-1 > w.opt.Leads {
			continue
		}
		for i := range len(way) - 1 {
			w.lead1(next[way[i]][way[i+1]], way[i+1], LeadEven)
		}
		return true
	}
	return false
}

// leadSkew is how much more of a partition's topic b leads than a.
func (w *work) leadSkew(p *Partition, a, b partition.NodeID) int {
	return w.topicLead[topicOn{p.Topic, b}] - w.topicLead[topicOn{p.Topic, a}]
}

// leadWay is a shortest way from a to the node that leads the least, if it leads
// two fewer than a.
func (w *work) leadWay(a partition.NodeID, nodes []partition.NodeID, next map[partition.NodeID]map[partition.NodeID]*Partition) []partition.NodeID {
	from := map[partition.NodeID]partition.NodeID{a: a}
	best, found := a, false
	for queue := []partition.NodeID{a}; len(queue) > 0; queue = queue[1:] {
		n := queue[0]
		if w.lead[n]+2 <= w.lead[a] && (!found || w.lead[n] < w.lead[best]) {
			best, found = n, true
		}
		for _, b := range slices.Backward(nodes) {
			if _, seen := from[b]; !seen && next[n][b] != nil {
				from[b] = n
				queue = append(queue, b)
			}
		}
	}
	if !found {
		return nil
	}
	way := []partition.NodeID{best}
	for n := best; n != a; n = from[n] {
		way = append(way, from[n])
	}
	slices.Reverse(way)
	return way
}
