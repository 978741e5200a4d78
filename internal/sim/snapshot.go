package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
)

// noSnapshots tells the core that there is a way for snapshots: sendSnapshots is it.
func noSnapshots(context.Context, partition.NodeID, partition.PartitionID, io.Reader) error {
	return errors.New("the simulator sends them")
}

// sendSnapshots has the network carry what the core wants to be sent. A stream may get
// lost, break off and go on, be damaged, come twice, or be long on its way and come when
// nobody needs it any more. Who sent it hears what became of it, or nothing for so long
// that it is taken for lost.
func (n *node) sendSnapshots() {
	for _, need := range n.core.Snapshots() {
		n.s.count.snapshots++
		x, err := need.Open()
		if n.excuses(err) {
			n.core.SnapshotSent(need, false)
			continue
		}
		if err != nil {
			n.s.fault("%v: export of %v: %v", n.id, need.Partition, err)
			return
		}
		st := &streamed{n: n, boot: n.boot, need: need, x: x, to: n.s.node(need.To.Node())}
		n.later(10*time.Second, "snapshot lost", func() { st.tell(false) })
		data, err := x.From(0)
		if n.excuses(err) {
			st.tell(false)
			continue
		}
		if err != nil {
			n.s.fault("%v: export of %v: %v", n.id, need.Partition, err)
			return
		}
		n.s.say("%v sends %v a snapshot of %v, %d bytes", n.id, st.to.id, need.Partition, len(data))
		st.carry(data, 0)
		if n.s.rand.net.Float64() < n.s.net.twin {
			st.carry(data, n.s.between(n.s.rand.net, 0, 20*time.Second))
		}
	}
}

// streamed is a snapshot on its way.
type streamed struct {
	n    *node
	boot int
	need partition.SnapshotNeeded
	x    partition.SnapshotExport
	to   *node
	over bool
	went int // so often it went on
}

// tell tells who sent it what became of it.
func (st *streamed) tell(ok bool) {
	if !st.over && st.n.up && st.n.boot == st.boot {
		st.over = true
		st.x.Close()
		st.n.core.SnapshotSent(st.need, ok)
		st.n.kick()
	}
}

// carry has the network carry a stream, from wherever it goes on.
func (st *streamed) carry(data []byte, late time.Duration) {
	s, p := st.n.s, st.need.Partition
	r, way := s.rand.net, [2]partition.NodeID{st.n.id, st.to.id}
	if s.net.cuts[way] || r.Float64() < s.net.loss {
		return
	}
	damaged := false
	switch broken := s.net.loss > 0 || len(s.net.cuts) > 0; {
	case !broken:
	case r.IntN(3) == 0:
		data = data[:r.IntN(len(data))]
		s.count.faults["snapshot broken off"]++
	case r.IntN(8) == 0:
		data, damaged = bytes.Clone(data), true
		data[r.IntN(len(data))] ^= 1 << r.IntN(8)
		s.count.faults["snapshot damaged"]++
	}
	s.after(late+s.between(r, time.Millisecond, 20*s.net.slow), "snapshot", func() {
		if !st.to.up || s.net.cuts[way] {
			return
		}
		answer := func(err error) {
			s.say("%v on a snapshot of %v: %v", st.to.id, p, unstream(err))
			if s.net.cuts[[2]partition.NodeID{st.to.id, st.n.id}] {
				return
			}
			s.after(s.between(r, time.Millisecond, s.net.slow), "snapshot answered", func() { st.answered(err) })
		}
		err := st.to.core.TakeSnapshot(st.n.id, p, bytes.NewReader(data), answer)
		var gap *partition.ErrSnapshotGap
		var refused *partition.ErrSnapshotRefused
		var full *logstore.ErrDiskFull
		switch {
		case errors.As(err, &full) && st.to.room.free() < reserve:
			s.count.faults["snapshot refused"]++
			answer(err)
		case err == nil && damaged:
			s.fault("H16: %v took a snapshot of %v in which a bit was flipped", st.to.id, p)
		case errors.As(err, &gap), errors.As(err, &refused):
			answer(err)
		case err != nil:
			s.fault("%v: a snapshot from %v: %v", st.to.id, st.n.id, err)
		}
		st.to.kick()
	})
}

// unstream leaves out what is by chance.
func unstream(err error) any {
	var gap *partition.ErrSnapshotGap
	var refused *partition.ErrSnapshotRefused
	switch {
	case errors.As(err, &gap):
		return "it goes on elsewhere"
	case errors.As(err, &refused):
		return "refused"
	}
	return err
}

// answered goes on where the other side is, for a while.
func (st *streamed) answered(err error) {
	var gap *partition.ErrSnapshotGap
	if st.over || !st.n.up || st.n.boot != st.boot {
		return
	}
	if !errors.As(err, &gap) || st.went > 4 {
		st.tell(err == nil)
		return
	}
	st.went++
	next := gap.Next
	data, err := st.x.From(next)
	if st.n.excuses(err) {
		st.tell(false)
		return
	}
	if err != nil {
		st.n.s.fault("%v: export of %v from chunk %d on: %v", st.n.id, st.need.Partition, next, err)
		return
	}
	st.carry(data, 0)
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
