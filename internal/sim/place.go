package sim

import (
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// place is a partition's replica on a node, as the cluster's metadata would know it:
// what the node was told to have. Its id is used once for all time.
type place struct {
	id      partition.ReplicaID
	made    bool            // it is on the node's disk
	added   bool            // a leader has it among its replicas
	addedAt partition.Index // and had applied so much by then
	out     bool            // a leader applied that it is none any more: the node erases it
}

// replicas brings the node to have what it was told to.
func (n *node) replicas() error {
	for _, p := range n.s.parts() {
		pl := n.held[p]
		if pl == nil {
			continue
		}
		_, err := n.core.Info(p)
		switch {
		case err == nil || pl.out:
		case pl.made:
			n.s.fault("I9: %v: replica %v of %v was on disk and is not there after a restart: %v", n.id, pl.id, p, err)
		}
		if pl.out {
			if err != nil {
				delete(n.held, p) // erasing it was durable
			}
			continue
		}
		if err := n.make(p, pl); err != nil {
			return err
		}
		if info, err := n.core.Info(p); err != nil || info.Fault != "" {
			return fmt.Errorf("%v: partition %v came back stopped: %s %w", n.id, p, info.Fault, err)
		}
	}
	return nil
}

// make makes a replica, if it is not there.
func (n *node) make(p partition.PartitionID, pl *place) error {
	if pl.id.Incarnation() == 0 {
		pl.made = pl.made || n.s.judge.durable[p][pl.id] > 1
		return n.core.CreateOn(p, n.s.voters()...)
	}
	w, err := n.core.JoinAs(p, pl.id)
	if err != nil {
		return err
	}
	n.fly(w, func() { pl.made = true })
	return nil
}

// erase removes a replica that is none any more.
func (n *node) erase(p partition.PartitionID) {
	pl := n.held[p]
	if pl == nil || !pl.out || !n.up {
		return
	}
	gone := func() {
		if n.held[p] == pl {
			delete(n.held, p)
		}
	}
	w, err := n.core.DropNow(p)
	if err != nil {
		n.broke(err)
		return
	}
	n.s.say("%v erases replica %v of %v", n.id, pl.id, p)
	delete(n.apps, p)
	n.s.count.placed["erase"]++
	n.fly(w, gone)
	n.send()
}

// lose is a disk that is gone with all that it held. The node comes back with an empty
// one, and what it had is replaced under other ids.
func (n *node) lose() {
	n.off("disk lost", 0)
	n.s.say("%v has lost its disk", n.id)
	n.lostDisk()
}

// lostDisk is what follows.
func (n *node) lostDisk() {
	n.disk = newEmptyDisk()
	if !n.s.planted.is("reused-id", 1) {
		clear(n.held)
		clear(n.rot)
		clear(n.flipped)
		n.spoiled = false
	}
}

// mayLose tells whether a node's disk is one that a cluster can do without: every
// partition has a leader that sees three voters, nobody of them has lost its disk and
// is counted on still, and none is about to be one no more.
func (s *Sim) mayLose(n *node) bool {
	for _, c := range s.clients {
		if o, ok := c.(*placer); ok && o.busy > 0 {
			return false
		}
	}
	if s.cluster != nil && s.moves() {
		return false
	}
	for _, p := range s.logs() {
		l := s.leader(p)
		if l == nil {
			return false
		}
		info, err := l.core.Info(p)
		if err != nil || len(info.Voters) < 3 {
			return false
		}
		voters := 0
		for _, id := range info.Voters {
			if m := s.node(id.Node()); s.holdsOf(p, id) == nil {
				return false
			} else if m != n && m.up {
				// Who has not heard of the last change counts by the one before.
				if x, err := m.core.Info(p); err == nil && slices.Equal(x.Voters, info.Voters) {
					voters++
				}
			}
		}
		if voters <= len(info.Voters)/2 {
			return false
		}
	}
	return true
}

// moves tells whether nodes of a cluster go, or any partition is not yet where it is
// wanted.
func (s *Sim) moves() bool {
	if o := s.cluster.steward; o.busy || len(o.lost) > 0 {
		return true
	}
	for x := range s.cluster.newest.Nodes() {
		if x.State == coordinator.Lost {
			return true
		}
	}
	for p := range s.cluster.newest.Partitions() {
		if p.Moving() || len(p.Leaving) > 0 {
			return true
		}
	}
	for _, n := range s.nodes {
		if n.up && len(n.deputy.busy) > 0 || !n.broken && len(n.rot)+len(n.flipped) > 0 {
			return true
		}
	}
	return false
}

// holdsOf is where a replica is that can still be counted on.
func (s *Sim) holdsOf(p partition.PartitionID, id partition.ReplicaID) *place {
	n := s.node(id.Node())
	if n == nil || n.broken {
		return nil
	}
	if pl := n.held[p]; pl != nil && pl.id == id {
		return pl
	}
	return nil
}
