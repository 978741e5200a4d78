package sim

import (
	"time"

	"github.com/strandmq/strandmq/partition"
)

// net carries frames between nodes.
type net struct {
	s    *Sim
	cuts map[[2]partition.NodeID]bool // from, to: nothing comes through
	loss float64
	twin float64       // comes twice
	slow time.Duration // the most that a frame takes
}

func (t *net) carry(from *node, dest partition.NodeID, b []byte) {
	to := t.s.node(dest)
	if to == nil {
		return
	}
	times := 1
	if t.s.rand.net.Float64() < t.twin {
		times = 2
	}
	for range times {
		if t.cuts[[2]partition.NodeID{from.id, dest}] || t.s.rand.net.Float64() < t.loss {
			t.s.count.lost++
			continue
		}
		t.s.after(t.s.between(t.s.rand.net, 100*time.Microsecond, t.slow), "frame", func() {
			if !to.up || !to.admits(from) || t.cuts[[2]partition.NodeID{from.id, dest}] {
				return
			}
			fs, err := partition.ParseFrames(b)
			if err != nil {
				t.s.fault("%v: %v", to.id, err)
			}
			to.core.Receive(from.id, fs)
			to.kick()
		})
	}
}

// sever cuts a node off: wholly, one way, or from one other.
func (t *net) sever(s *Sim, n *node) {
	r := s.rand.fault
	how := r.IntN(4)
	for _, o := range s.nodes {
		if o == n || how == 3 && int(o.id) != 1+int(n.id)%len(s.nodes) {
			continue
		}
		if how != 1 {
			t.cuts[[2]partition.NodeID{n.id, o.id}] = true
		}
		if how != 2 {
			t.cuts[[2]partition.NodeID{o.id, n.id}] = true
		}
	}
	s.say("%v is cut off: %s", n.id, []string{"wholly", "it hears nothing", "it is not heard", "from one"}[how])
}

func (t *net) fine() { t.loss, t.twin, t.slow = 0, 0, 2*time.Millisecond }
