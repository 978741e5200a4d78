package sim

import (
	"slices"
	"time"
)

// faults has them happen, one after another, each for a while.
func (s *Sim) faults() {
	var kinds []string
	for _, k := range slices.Concat(faultKinds, diskKinds, []string{"lose"}) {
		if s.plan.has(k) {
			kinds = append(kinds, k)
		}
	}
	if len(kinds) == 0 {
		return
	}
	r := s.rand.fault
	var next func()
	next = func() {
		if s.healed {
			return
		}
		s.strike(kinds[r.IntN(len(kinds))])
		s.after(s.between(r, time.Millisecond, 2*s.plan.every), "fault", next)
	}
	s.after(s.between(r, time.Second, 3*time.Second), "fault", next)
}

// strike is one fault.
func (s *Sim) strike(kind string) {
	r := s.rand.fault
	n := s.nodes[r.IntN(len(s.nodes))]
	if !n.up && kind != "cut" && kind != "loss" && kind != "member" {
		return
	}
	if kind == "flip" && !s.mayFlip(n) {
		return
	}
	s.count.faults[kind]++
	undo := func(d time.Duration, do func()) {
		s.after(d, "undo", func() {
			if !s.healed {
				do()
			}
		})
	}
	switch kind {
	case "power":
		// Some fall at once, or just when something is on its way to the disk.
		victims := []*node{n}
		if len(s.nodes) > 1 && r.IntN(4) == 0 {
			victims = s.nodes
		}
		for _, v := range victims {
			s.after(s.between(r, 0, 20*time.Millisecond), "power", func() {
				if !v.up {
					return
				}
				v.off("power cut", r.IntN(3))
				s.after(s.between(r, 10*time.Millisecond, 3*time.Second), "start", v.back)
			})
		}
	case "lose":
		if s.mayLose(n) && s.cluster != nil {
			n.lose()
			n.giveUp()
			s.cluster.steward.lost = append(s.cluster.steward.lost, n)
			s.count.placed["disk lost"]++
		} else if s.cluster == nil && s.mayLose(n) {
			n.lose()
			s.count.placed["disk lost"]++
			s.after(s.between(r, 10*time.Millisecond, 10*time.Second), "start", n.back)
		}
	case "stall":
		n.stalls = s.between(r, 20*time.Millisecond, 4*time.Second)
		s.say("%v: the disk is slow: %v", n.id, n.stalls)
		undo(s.between(r, 100*time.Millisecond, 10*time.Second), func() { n.stalls = 0 })
	case "fsync":
		s.say("%v: the next fsync fails", n.id)
		n.failing = true
	case "flip":
		s.flips(n)
	case "full":
		s.fills(n)
	case "jump":
		by := s.between(r, time.Millisecond, time.Hour)
		if r.IntN(2) == 0 {
			by = -by
		}
		s.say("%v: the clock jumps by %v", n.id, by)
		n.setClock(by, n.skew)
		n.kick()
	case "drift":
		n.setClock(0, (r.Float64()-0.5)*0.4)
		s.say("%v: the clock drifts by %.2f", n.id, n.skew)
	case "cut":
		s.net.sever(s, n)
		undo(s.between(r, 100*time.Millisecond, 10*time.Second), func() { clear(s.net.cuts); s.say("the network is whole") })
	case "loss":
		s.net.loss, s.net.twin, s.net.slow = r.Float64()*0.3, r.Float64()*0.2, s.between(r, time.Millisecond, 500*time.Millisecond)
		s.say("frames: %.2f lost, %.2f twice, up to %v", s.net.loss, s.net.twin, s.net.slow)
		undo(s.between(r, time.Second, 20*time.Second), s.net.fine)
	case "member":
		for _, i := range r.Perm(len(s.clients)) {
			if m, ok := s.clients[i].(*member); ok {
				m.crash(s.between(r, 0, 5*time.Second))
				break
			}
		}
	case "checkpoint":
		for _, p := range s.parts() {
			_ = n.core.CheckpointSoon(p)
		}
		n.kick()
	}
}
