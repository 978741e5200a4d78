package placement

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// Make makes a plan for a picture. It is a pure function: the same picture gives
// the same plan.
func Make(pic Picture, opt Options) Plan {
	w := newWork(pic, opt)
	w.repair()
	w.resize()
	w.zones()
	w.even()
	w.leaders()
	return w.plan
}

// what a partition that is stuck needs.
const (
	needsMajority = "a majority of its replicas has to be there: bring their nodes back"
	needsNode     = "a node has to be there that is active and has no replica of it: add one, or end the draining of one"
)

// repair replaces replicas on nodes that are dead or being drained. Those with
// the fewest replicas left come first.
func (w *work) repair() {
	left := func(p *Partition) int {
		n := 0
		for _, r := range p.Replicas {
			if !w.dead(r) {
				n++
			}
		}
		return n
	}
	order := slices.Clone(w.parts)
	slices.SortStableFunc(order, func(a, b *Partition) int { return cmp.Compare(left(a), left(b)) })
	for _, p := range order {
		w.repairOne(p)
	}
}

func (w *work) repairOne(p *Partition) {
	dead := slices.ContainsFunc(p.Replicas, w.dead)
	drained := slices.ContainsFunc(p.Replicas, func(n partition.NodeID) bool { return w.node(n).Draining })
	why := Dead
	switch {
	case !dead && !drained, len(p.Replicas) > p.Want: // shrinking takes them first
		return
	case !dead && p.Moving: // the move under way comes first
		return
	case !dead:
		why = Drained
	}
	if !w.majority(holders(p)) {
		w.stuck(p, why, needsMajority)
		return
	}
	to := slices.Clone(p.Replicas)
	replace := func(bad func(partition.NodeID) bool) (all bool) {
		for _, n := range p.Replicas {
			if !bad(n) {
				continue
			}
			rest := slices.DeleteFunc(slices.Clone(to), func(x partition.NodeID) bool { return x == n })
			best, ok := w.pick(p, rest, p.Replicas...)
			if !ok {
				return false
			}
			to = append(rest, best)
		}
		return true
	}
	all := replace(w.dead)
	if all && !p.Moving {
		all = replace(func(n partition.NodeID) bool { return w.node(n).Draining && !w.dead(n) })
	}
	if !all {
		w.stuck(p, why, needsNode)
	}
	if slices.Equal(to, p.Replicas) || !p.Moving && !w.room() {
		return
	}
	if !p.Moving {
		w.busy++
	}
	w.add(p, w.led(p, to), why)
}

// led keeps the node that is to lead at the head; where it is gone, the one of
// the others takes its place that was there before and leads the least.
func (w *work) led(p *Partition, to []partition.NodeID) []partition.NodeID {
	if to[0] == p.Replicas[0] {
		return to
	}
	best := to[0]
	for _, n := range to[1:] {
		if w.betterLead(p, n, best) {
			best = n
		}
	}
	return first(to, best)
}

// resize gives partitions the number of replicas that is wanted.
func (w *work) resize() {
	for _, p := range w.parts {
		if p.Moving || w.moved[p.ID] {
			continue
		}
		switch has := len(p.Replicas); {
		case has < p.Want:
			w.grow(p)
		case has > p.Want && p.Want > 0:
			w.shrink(p)
		}
	}
}

func (w *work) grow(p *Partition) {
	if !w.majority(p.Replicas) {
		w.stuck(p, TooFew, needsMajority)
		return
	}
	to := slices.Clone(p.Replicas)
	for len(to) < p.Want {
		n, ok := w.pick(p, to)
		if !ok {
			w.stuck(p, TooFew, fmt.Sprintf("it is to have %d replicas, and the nodes that can hold one now are %d: add nodes, or alter the topic's replication", p.Want, len(to)))
			return
		}
		to = append(to, n)
	}
	if w.room() {
		w.busy++
		w.add(p, to, TooFew)
	}
}

// shrink takes replicas away: those on nodes that are dead, then drained, then
// those that share their zone with most, then those of nodes that have most.
func (w *work) shrink(p *Partition) {
	to := slices.Clone(p.Replicas)
	for len(to) > p.Want {
		worst := to[0]
		for _, n := range to[1:] {
			if w.worse(to, n, worst) {
				worst = n
			}
		}
		to = slices.DeleteFunc(to, func(n partition.NodeID) bool { return n == worst })
	}
	switch {
	case !w.majority(p.Replicas) || !w.majority(to):
		w.stuck(p, TooMany, needsMajority)
	case w.room():
		w.busy++
		w.add(p, w.led(p, to), TooMany)
	}
}

// worse tells whether a replica on a is to go before one on b. On a draw the
// node that is to lead, at the head, stays.
func (w *work) worse(set []partition.NodeID, a, b partition.NodeID) bool {
	is := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(is(w.dead(a)), is(w.dead(b))),
		cmp.Compare(is(!w.there(a)), is(!w.there(b))),
		cmp.Compare(is(w.node(a).Draining), is(w.node(b).Draining)),
		cmp.Compare(w.inZone(set, w.node(b).Zone), w.inZone(set, w.node(a).Zone)),
		cmp.Compare(is(a != set[0]), is(b != set[0])),
		cmp.Compare(w.load[b], w.load[a]),
		cmp.Compare(b, a),
	) < 0
}

// zones moves a replica out of a zone that has two more of the partition than
// another could have.
func (w *work) zones() {
	if !slices.ContainsFunc(w.nodes, func(n Node) bool { return n.Zone != w.nodes[0].Zone }) {
		return
	}
	for _, p := range w.parts {
		if !w.room() {
			return
		}
		// Most partitions are well: no zone has two of them.
		crowded := slices.ContainsFunc(p.Replicas, func(n partition.NodeID) bool { return w.inZone(p.Replicas, w.node(n).Zone) > 1 })
		if !crowded || !w.healthy(p) || !w.settledOnActive(p) {
			continue
		}
		// The last of the most crowded zone, and not the one that leads.
		from := p.Replicas[0]
		for _, n := range p.Replicas[1:] {
			if w.inZone(p.Replicas, w.node(n).Zone) >= w.inZone(p.Replicas, w.node(from).Zone) {
				from = n
			}
		}
		to, ok := w.pick(p, p.Replicas)
		if !ok || w.inZone(p.Replicas, w.node(from).Zone) < w.inZone(p.Replicas, w.node(to).Zone)+2 {
			continue
		}
		w.swap(p, from, to, Zones)
	}
}

// settledOnActive tells whether nothing has to leave a node for other reasons.
func (w *work) settledOnActive(p *Partition) bool {
	return !slices.ContainsFunc(p.Replicas, func(n partition.NodeID) bool { return !w.takes(n) })
}

// swap puts one node in another's place.
func (w *work) swap(p *Partition, from, to partition.NodeID, why Why) {
	next := slices.Clone(p.Replicas)
	next[slices.Index(next, from)] = to
	if p.Replicas[0] == from && len(next) > 1 {
		// Who is new is not to lead at once: it has to be fed first.
		next = w.led(p, append(next[1:], to))
	}
	w.busy++
	w.add(p, next, why)
}

// even moves replicas from nodes that have two more than another, as long as no
// zone gets more of a partition by it.
func (w *work) even() {
	for w.room() && w.evenOnce() {
	}
}

func (w *work) evenOnce() bool {
	var nodes []partition.NodeID
	for _, n := range w.nodes {
		if w.takes(n.ID) {
			nodes = append(nodes, n.ID)
		}
	}
	slices.SortStableFunc(nodes, func(a, b partition.NodeID) int { return cmp.Compare(w.load[b], w.load[a]) })
	for _, from := range nodes {
		for _, to := range slices.Backward(nodes) {
			if w.load[from] < w.load[to]+2 {
				break
			}
			if p := w.mover(from, to); p != nil {
				w.swap(p, from, to, Uneven)
				return true
			}
		}
	}
	return false
}

// mover finds the partition that is best moved: of the topic that has the most
// more on the one node than on the other, and not led from there.
func (w *work) mover(from, to partition.NodeID) *Partition {
	var best *Partition
	skew := func(p *Partition) int { return w.topicLoad[topicOn{p.Topic, to}] - w.topicLoad[topicOn{p.Topic, from}] }
	led := func(p *Partition) int {
		if p.Replicas[0] == from {
			return 1
		}
		return 0
	}
	for _, p := range w.parts {
		// What has one replica has no majority while it moves if either node is lost,
		// so it moves only when it must.
		if p.ID == partition.Metadata || len(p.Replicas) == 1 || !slices.Contains(p.Replicas, from) || !w.free(p, p.Replicas, to) || !w.healthy(p) || !w.settledOnActive(p) {
			continue
		}
		rest := slices.DeleteFunc(slices.Clone(p.Replicas), func(n partition.NodeID) bool { return n == from })
		if w.inZone(rest, w.node(to).Zone) > w.inZone(rest, w.node(from).Zone) {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(skew(p), skew(best)), cmp.Compare(led(p), led(best))) < 0 {
			best = p
		}
	}
	return best
}
