package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// clusterKinds are what the steward does.
var clusterKinds = []string{"grow", "drain", "replace", "move", "rot"}

// steward is who runs the cluster: it adds nodes, drains and removes them, replaces
// those whose disk is lost, gives up some that are well, and moves partitions. What
// becomes of replicas by that is the metadata's affair.
type steward struct {
	s     *Sim
	r     *rand.Rand
	lost  []*node // with their disks: to be given up, and replaced
	busy  bool
	quiet bool
}

func (o *steward) heal() { o.quiet = true }

func (o *steward) loop() {
	o.hear()
	if !o.busy {
		o.turn()
	}
	o.s.after(o.s.between(o.r, 200*time.Millisecond, 10*time.Second), "steward", o.loop)
}

// states are the nodes in a state that can be counted on.
func (o *steward) states(want coordinator.NodeState) (out []*node) {
	for x := range o.s.cluster.newest.Nodes() {
		if n := o.s.node(x.ID); n != nil && !n.broken && x.State == want {
			out = append(out, n)
		}
	}
	return out
}

// hear takes note of nodes that are out of the cluster though nobody was told so: the
// call that had them go got no answer. They may know it least of all, since no other
// node lets them in.
func (o *steward) hear() {
	for x := range o.s.cluster.newest.Nodes() {
		if n := o.s.node(x.ID); n != nil && !n.gone && (x.State == coordinator.Lost || x.State == coordinator.Removed) {
			o.s.say("%v is %v, as it turns out", n.id, x.State)
			o.out(n)
		}
	}
}

func (o *steward) turn() {
	active, draining := o.states(coordinator.Active), o.states(coordinator.Draining)
	switch {
	case len(o.lost) > 0:
		o.giveUp(o.lost[0])
	case !o.quiet:
		o.whim(active, draining)
	case len(active) < goal && len(draining) > 0:
		o.drain(draining[0], false)
	case len(active) < goal:
		o.join()
	case len(draining) > 0:
		o.remove(draining[0])
	}
}

func (o *steward) whim(active, draining []*node) {
	kind := clusterKinds[o.r.IntN(len(clusterKinds))]
	if !o.s.plan.has(kind) {
		return
	}
	any := func(ns []*node) *node { return ns[o.r.IntN(len(ns))] }
	switch kind {
	case "grow":
		if len(active)+len(draining) < o.s.plan.nodes+3 && len(o.s.nodes) < 12 {
			o.join()
		}
	case "drain":
		switch {
		case slices.ContainsFunc(o.s.nodes, func(n *node) bool { return len(n.flipped) > 0 }):
			// With fewer nodes it may be on the last one that has it.
		case len(draining) > 0 && o.r.IntN(3) == 0:
			o.drain(any(draining), false)
		case len(draining) > 0:
			o.remove(any(draining))
		case len(active) > goal || len(active) > 1 && o.r.IntN(4) == 0:
			o.drain(any(active), true)
		}
	case "replace":
		if n := any(append(slices.Clone(active), draining...)); len(active) > goal && o.s.mayLose(n) {
			o.s.say("%v is given up, and is well", n.id)
			o.giveUp(n)
		}
	case "move":
		o.move(active)
	case "rot":
		if n := any(active); o.s.mayLose(n) {
			o.rot(n)
		}
	}
}

// ask asks the metadata log something, once.
func (o *steward) ask(what string, do func(*node) error, then func()) {
	o.busy = true
	o.s.say("asked: %s", what)
	o.s.call(partition.Metadata, do, func(err error) {
		o.busy = false
		o.s.say("%s: %v", what, err)
		if err == nil {
			then()
		} else if !mayRefuse(err) {
			o.s.fault("%s: %v", what, err)
		}
	})
}

func (o *steward) join() {
	o.busy = true
	o.s.cluster.join(func(*node) { o.busy = false })
}

func (o *steward) drain(n *node, on bool) {
	o.ask(fmt.Sprintf("%v drains %v", n.id, on), func(l *node) error {
		_, err := l.coord.DrainNode(context.Background(), n.id, on)
		return err
	}, func() { o.s.count.placed["drain"]++ })
}

func (o *steward) remove(n *node) {
	o.ask(fmt.Sprintf("%v is removed", n.id), func(l *node) error {
		_, err := l.coord.RemoveNode(context.Background(), n.id, n.id.String())
		return err
	}, func() {
		o.s.count.placed["node removed"]++
		o.out(n)
	})
}

// giveUp has the cluster give up a node, and another one come for it.
func (o *steward) giveUp(n *node) {
	o.ask(fmt.Sprintf("%v is lost", n.id), func(l *node) error {
		_, err := l.coord.LoseNode(context.Background(), n.id, n.id.String())
		if errors.As(err, new(*coordinator.ErrNodeGone)) {
			return nil // it was removed before
		}
		return err
	}, func() {
		o.s.count.placed["node lost"]++
		o.lost = slices.DeleteFunc(o.lost, func(x *node) bool { return x == n })
		o.out(n)
		o.join()
	})
}

// out has a node that nobody lets in any more end.
func (o *steward) out(n *node) {
	n.giveUp()
	o.s.after(o.s.between(o.r, time.Second, 20*time.Second), "shut out", func() {
		if n.up {
			n.outcast()
		}
	})
}

// move has a partition be elsewhere.
func (o *steward) move(active []*node) {
	if len(active) < goal {
		return
	}
	ps := o.s.parts()
	p := ps[o.r.IntN(len(ps))]
	var nodes []partition.NodeID
	for _, i := range o.r.Perm(len(active))[:goal] {
		nodes = append(nodes, active[i].id)
	}
	o.ask(fmt.Sprintf("%v is to be on %v", p, nodes), func(l *node) error {
		_, err := l.coord.Place(context.Background(), p, nodes)
		return err
	}, func() { o.s.count.placed["move"]++ })
}

// rot has some of what a node has of a partition be damaged: the replica meets it and
// stops, or it is found while the replica works.
func (o *steward) rot(n *node) {
	ps := o.s.parts()
	p, met := ps[o.r.IntN(len(ps))], o.r.IntN(2) == 0
	if !n.up {
		return
	}
	info, err := n.core.Info(p)
	if err != nil || info.Fault != "" || !slices.Contains(info.Voters, info.Replica) {
		return
	}
	n.rot[p] = true
	o.s.say("%v: replica %v of %v is damaged, and stops: %v", n.id, info.Replica, p, met)
	if o.s.count.placed["rot"]++; !met {
		return
	}
	w, err := n.core.CondemnNow(p, info.Replica, "its disk gives back something else")
	if err != nil {
		n.broke(err)
		return
	}
	n.fly(w, nil)
	n.send()
	n.kick()
}

// undone says what the metadata wants and is not so.
func (o *steward) undone() string {
	m := o.s.cluster.newest
	if o.busy || len(o.lost) > 0 {
		return "the cluster's nodes are about to change"
	}
	if len(o.states(coordinator.Draining)) > 0 || len(o.states(coordinator.Active)) < goal {
		return fmt.Sprintf("the cluster has nodes that drain %v, or too few", o.states(coordinator.Draining))
	}
	if o.s.unsure {
		return "" // the metadata cannot know that one of its nodes is no good
	}
	for x := range m.Nodes() {
		if x.State == coordinator.Lost {
			return fmt.Sprintf("%v is lost and not removed", x.ID)
		}
	}
	for p := range m.Partitions() {
		l := o.s.leader(p.ID)
		if l == nil {
			return fmt.Sprintf("nobody leads %v", p.ID)
		}
		info, err := l.core.Info(p.ID)
		if err != nil {
			return err.Error()
		}
		if l.low {
			return fmt.Sprintf("%v leads %v, and its disk is full", l.id, p.ID)
		}
		for _, n := range o.s.nodes {
			if n.flipped[p.ID] && !n.broken {
				return fmt.Sprintf("%v has a replica of %v that is damaged and not made anew", n.id, p.ID)
			}
		}
		if why := o.misplaced(p, info); why != "" {
			return fmt.Sprintf("%v has voters %v and learners %v, and is wanted on %v, leaving %v: %s", p.ID, info.Voters, info.Learners, p.Replicas, p.Leaving, why)
		}
	}
	return ""
}

// misplaced says what is wrong with where a partition is.
func (o *steward) misplaced(p *coordinator.Partition, info partition.Info) string {
	sort := func(rs []partition.ReplicaID) []partition.ReplicaID {
		rs = slices.Clone(rs)
		slices.Sort(rs)
		return rs
	}
	for _, r := range p.Replicas {
		if n := o.s.node(r.Node()); n.broken && len(o.states(coordinator.Active)) >= len(p.Replicas) {
			return fmt.Sprintf("%v is no good", n.id)
		}
	}
	for _, l := range p.Leaving {
		if n := o.s.node(l.ID.Node()); !n.broken {
			return fmt.Sprintf("%v has yet to erase it", n.id)
		}
	}
	for _, n := range o.s.nodes {
		if pl := n.held[p.ID]; pl != nil && !n.broken && p.ID != partition.Metadata && !slices.Contains(p.Replicas, pl.id) {
			return fmt.Sprintf("%v has %v", n.id, pl.id)
		}
	}
	switch {
	case p.Moving():
		return "it moves"
	case !slices.Equal(sort(info.Voters), sort(p.Replicas)):
		return "they are others"
	case p.ID != partition.Metadata && len(p.Replicas) != goal:
		return "they are too few"
	case p.ID != partition.Metadata && len(info.Learners) > 0:
		return "there are learners"
	case p.ID == partition.Metadata && len(p.Replicas) < goal:
		return "they are too few"
	}
	return ""
}
