package placement

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// ErrTooFew is fewer nodes than replicas are to be placed on.
type ErrTooFew struct {
	Want   int // replicas of each partition
	Active int // nodes that are active
	There  int // of those, nodes that are there
}

// Error says what to do.
func (e *ErrTooFew) Error() string {
	if e.Active >= e.Want {
		return fmt.Sprintf("%d replicas need a majority of their nodes to be there, and %d of %d active nodes are: bring the others back", e.Want, e.There, e.Active)
	}
	return fmt.Sprintf("%d replicas need %d active nodes, and there are %d: add nodes, or ask for fewer replicas", e.Want, e.Want, e.Active)
}

// Initial places a new topic's partitions: so many replicas each, beside what
// the picture has. Nodes that are there come first; one that is silent for the
// moment gets replicas only where there are not enough others, and never so many
// that a partition begins without a majority.
func Initial(pic Picture, topic uint64, partitions, replicas int) ([][]partition.NodeID, error) {
	w := newWork(pic, Options{})
	bad := &ErrTooFew{Want: replicas}
	for _, n := range w.nodes {
		if n.Draining {
			continue
		}
		bad.Active++
		if n.Silent == 0 {
			bad.There++
		}
	}
	if bad.Active < replicas || 2*min(bad.There, replicas) <= replicas {
		return nil, bad
	}
	out := make([][]partition.NodeID, partitions)
	for i := range out {
		p := &Partition{ID: partition.Metadata + 1, Topic: topic} // the id is not known yet
		for len(p.Replicas) < replicas {
			n, ok := w.pick(p, p.Replicas)
			if !ok {
				n = w.silent(p)
			}
			p.Replicas = append(p.Replicas, n)
		}
		best := p.Replicas[0]
		for _, n := range p.Replicas[1:] {
			if w.betterLead(p, n, best) {
				best = n
			}
		}
		p.Replicas = first(p.Replicas, best)
		w.count(p, 1)
		out[i] = p.Replicas
	}
	return out, nil
}

// silent finds the node among those that are not there that has the least.
func (w *work) silent(p *Partition) partition.NodeID {
	var left []partition.NodeID
	for _, n := range w.nodes {
		if !n.Draining && n.Silent > 0 && !slices.Contains(p.Replicas, n.ID) {
			left = append(left, n.ID)
		}
	}
	return slices.MinFunc(left, func(a, b partition.NodeID) int {
		return cmp.Or(cmp.Compare(w.load[a], w.load[b]), cmp.Compare(a, b))
	})
}
