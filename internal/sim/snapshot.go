package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"github.com/strandmq/strandmq/partition"
)

// noSnapshots tells the core that there is a way for snapshots: sendSnapshots is it.
func noSnapshots(context.Context, partition.NodeID, partition.PartitionID, io.Reader) error {
	return errors.New("the simulator sends them")
}

// sendSnapshots has the network carry what the core wants to be sent. One may get
// lost, or be long on its way, and come when nobody needs it any more. Who sent it hears what
// became of it, or nothing for so long that it is taken for lost.
func (n *node) sendSnapshots() {
	for _, need := range n.core.Snapshots() {
		told := false
		tell := func(ok bool) {
			if !told {
				told = true
				n.core.SnapshotSent(need, ok)
				n.kick()
			}
		}
		n.later(10*time.Second, "snapshot lost", func() { tell(false) })
		n.s.count.snapshots++
		r := n.s.rand.net
		to, way := n.s.node(need.To.Node()), [2]partition.NodeID{n.id, need.To.Node()}
		data, err := need.Read()
		if err != nil {
			n.s.fault("%v: export of %v: %v", n.id, need.Partition, err)
			return
		}
		n.s.say("%v sends %v a snapshot of %v, %d bytes", n.id, to.id, need.Partition, len(data))
		if n.s.net.cuts[way] || r.Float64() < n.s.net.loss {
			continue
		}
		boot := n.boot
		n.s.after(n.s.between(r, time.Millisecond, 20*n.s.net.slow), "snapshot", func() {
			if !to.up || n.s.net.cuts[way] {
				return
			}
			answer := func(err error) {
				n.s.say("%v on a snapshot of %v: %v", to.id, need.Partition, err)
				n.s.after(n.s.between(r, time.Millisecond, n.s.net.slow), "snapshot answered", func() {
					if n.up && n.boot == boot {
						tell(err == nil)
					}
				})
			}
			if err := to.core.TakeSnapshot(n.id, need.Partition, bytes.NewReader(data), answer); err != nil {
				n.s.fault("%v: a snapshot from %v: %v", to.id, n.id, err)
			}
			to.kick()
		})
	}
}

// misses has another node away while a leader stores more and cuts it off again, so
// that what the other one lacks is gone when it comes back.
func (s *Sim) misses(leader *node, p partition.PartitionID, r *rand.Rand) {
	v := s.nodes[(int(leader.id)+r.IntN(len(s.nodes)-1))%len(s.nodes)]
	if s.healed || !v.up || v == leader {
		return
	}
	s.count.faults["power"]++
	v.off("power cut", r.IntN(3))
	away := s.between(r, time.Second, 10*time.Second)
	s.after(away, "start", v.back)
	s.after(away*3/4, "trim", func() {
		n := s.leader(p)
		if s.healed || n == nil {
			return
		}
		pos, err := n.core.Position(p)
		if err != nil {
			return
		}
		t := partition.TrimTo{To: pos.End - min(pos.End, partition.Offset(r.IntN(3))), Why: partition.ByAge, Now: n.clock()}
		_ = n.core.TrimAsync(p, t, func(any, error) {}) // it may have ceased to lead, or be full
		n.kick()
	})
}
