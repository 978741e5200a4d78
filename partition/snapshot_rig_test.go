package partition

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// runSnapshot has the commands of TestCore for snapshots:
//
//	needed n=N            those that N wants to be sent
//	lose n=N              they are lost, and N hears of it
//	stage n=N             they arrive, and raft there hears of them
//	failed n=N p=P to=M   N hears that M did not take one
//	switch n=N            those that raft on N took take the place of the partitions
//	again n=N p=P to=M    N sends M one that nobody asked for
//	exchange n=N to=M     M gets what N has for it, has its turns, and N gets the answers
//
// settle does all that is to be done of them.
func (r *rig) runSnapshot(cmd string, n *rigNode, p PartitionID, to *rigNode) {
	switch cmd {
	case "needed":
		r.needed(n)
	case "lose":
		for _, s := range append(r.snaps, n.core.takeNeeded()...) {
			n.core.snapshotSent(s, false)
		}
		r.snaps = nil
	case "stage":
		r.needed(n)
		for _, s := range r.snaps {
			r.stage(n, s)
		}
		r.snaps = nil
	case "failed":
		n.core.snapshotSent(r.unasked(n, p, to), false)
	case "switch":
		r.switches(n)
	case "again":
		r.stage(n, r.unasked(n, p, to))
	case "exchange":
		r.exchange(n, to)
	}
}

// noSnapshots says that there is a way for snapshots; the rig is it.
func noSnapshots(context.Context, NodeID, PartitionID, io.Reader) error {
	return errors.New("the rig sends them")
}

// unasked is a snapshot from one node to another.
func (r *rig) unasked(n *rigNode, p PartitionID, to *rigNode) neededSnapshot {
	rep := n.core.replicas[p]
	return neededSnapshot{p, rep.self, to.id.Replica(), rep.term}
}

// needed shows the snapshots that a node wants to be sent.
func (r *rig) needed(n *rigNode) {
	for _, s := range n.core.takeNeeded() {
		fmt.Fprintf(&r.buf, "%v needs a snapshot of %v\n", s.to, s.id)
		r.snaps = append(r.snaps, s)
	}
}

// stage sends a snapshot as a whole.
func (r *rig) stage(n *rigNode, s neededSnapshot) {
	to := r.nodes[s.to.Node()]
	if to.off {
		fmt.Fprintf(&r.buf, "a snapshot for %v is lost\n", s.to)
		n.core.snapshotSent(s, false)
		return
	}
	e, err := s.export(&n.core.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	defer e.Close()
	in, err := e.From(0)
	r.complain(err)
	im, err := to.store.NewImport(uint64(s.id))
	r.complain(err)
	if err := im.Read(in); err != nil {
		r.t.Fatal(err)
	}
	m, err := checkStaged(s.id, n.id, im)
	if err != nil {
		r.t.Fatal(err)
	}
	index := e.Head().Index
	fmt.Fprintf(&r.buf, "%v gets a snapshot to entry %d\n", s.to, index)
	to.core.take(s.id, m, im, func(err error) {
		if err != nil {
			fmt.Fprintf(&r.buf, "%v: %v\n", s.to, err)
		} else {
			fmt.Fprintf(&r.buf, "%v has entry %d\n", s.to, index)
		}
		n.core.snapshotSent(s, err == nil)
	})
}

func (r *rig) switches(n *rigNode) {
	for _, rep := range n.core.takeSwitches() {
		r.complain(n.core.switched(rep, rep.taking.change()))
	}
}

// settleSnapshots sends what a node has to send, and switches what it took. It is
// false if there was nothing.
func (r *rig) settleSnapshots(n *rigNode) bool {
	needed := slices.Concat(r.snaps, n.core.takeNeeded())
	r.snaps = nil
	for _, s := range needed {
		r.stage(n, s)
	}
	some := len(needed) > 0 || len(n.core.switches) > 0
	r.switches(n)
	return some
}

// exchange moves messages between two nodes, once, and syncs what they write.
func (r *rig) exchange(a, b *rigNode) {
	turns := func(n *rigNode) {
		for n.core.ready() {
			r.pump(n)
			for len(n.writes) > 0 {
				r.durable(n)
			}
		}
	}
	for _, way := range [][2]*rigNode{{a, b}, {b, a}} {
		turns(way[0])
		for _, f := range r.carried(way[0].core.takeFrames()) {
			if f.To.Node() == way[1].id {
				way[1].core.receive(f)
			}
		}
	}
	turns(a)
}
