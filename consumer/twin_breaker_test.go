package consumer

import (
	"fmt"

	"github.com/strandmq/strandmq/partition"
)

// twinCircuit is the circuit breaker's rule as its words say it: a list of all
// that ended since the circuit last closed, counted anew each time.
type twinCircuit struct {
	ends   []twinEnd
	open   bool
	opened uint64
	tries  int              // probes in a row that failed
	until  partition.Millis // while no probe is out: none goes before
	probe  *twinOut
}

// twinEnd is one hand-out that was acked or failed while the circuit was closed.
type twinEnd struct {
	at  partition.Millis
	key uint64
	ok  bool
}

func (p Policy) twinBreaks() bool { return p.BreakerPercent > 0 && !p.AtMostOnce }

// mayTry says why the circuit lets nothing be handed out, if so.
func (w *twin) mayTry() error {
	c := &w.circuit
	switch {
	case !c.open:
		return nil
	case c.probe != nil:
		return fmt.Errorf("the circuit is open, and hand-out %d is the probe", c.probe.num)
	case w.clock < c.until:
		return fmt.Errorf("the circuit is open until %d and it is %d", c.until, w.clock)
	}
	return nil
}

// succeeded hears of an ack.
func (w *twin) succeeded(m *twinMsg, o *twinOut) {
	c := &w.circuit
	switch {
	case !w.pol.twinBreaks():
	case !c.open:
		c.ends = append(c.ends, twinEnd{w.clock, m.key, true})
	case c.probe == o:
		w.circuit = twinCircuit{opened: c.opened}
	}
}

// broke hears of a failure, and tells whether it is charged.
func (w *twin) broke(m *twinMsg, o *twinOut) (charged bool) {
	c := &w.circuit
	if !w.pol.twinBreaks() {
		return true
	}
	if c.open {
		if c.probe == o {
			c.tries++
			w.probeLater()
		}
		return false
	}
	c.ends = append(c.ends, twinEnd{w.clock, m.key, false})
	tenth := w.pol.BreakerWindow / 10
	all, bad, keys := 0, 0, map[uint64]bool{}
	for _, e := range c.ends {
		if e.at/tenth+10 <= w.clock/tenth {
			continue
		}
		all++
		if !e.ok {
			bad++
			keys[e.key] = true
		}
	}
	if len(keys) >= int(w.pol.BreakerKeys) && 100*bad >= int(w.pol.BreakerPercent)*all {
		w.circuit = twinCircuit{open: true, opened: c.opened + 1}
		w.probeLater()
	}
	return true
}

// tryNow hears that the group was resumed.
func (c *twinCircuit) tryNow(now partition.Millis) {
	c.tries = 0
	if c.probe == nil {
		c.until = min(c.until, now)
	}
}

// gaveBack hears of a hand-out that ended and tells nothing.
func (w *twin) gaveBack(o *twinOut) {
	if w.circuit.open && w.circuit.probe == o {
		w.probeLater()
	}
}

// probeLater sets the time of the next probe: a second, doubled for each that
// failed, a minute at most.
func (w *twin) probeLater() {
	wait := partition.Millis(1000)
	for range w.circuit.tries {
		wait = min(2*wait, 60_000)
	}
	w.circuit.probe, w.circuit.until = nil, w.clock+wait
}

// lapse ends a hand-out whose deadline passed, as a command says.
func (w *twin) lapse(o partition.Offset, num uint64) {
	if int(o) >= len(w.msgs) {
		return
	}
	m := w.msgs[o]
	if out := m.current(); out != nil && out.num == num && out.deadline <= w.clock {
		w.fail(m, "lapse")
	}
}

// judgeCircuit holds the machine's breaker against the twin's.
func (w *twinWorld) judgeCircuit(tg *twinGroup, g *group) {
	b, c, clock := &g.breaker, &tg.tw.circuit, tg.tw.clock
	probe := uint64(0)
	if c.probe != nil {
		probe = c.probe.num
	}
	switch {
	case b.open != c.open || b.opened != c.opened:
		w.fail("%v: the circuit is open %v, and was opened %d times; the twin says %v and %d (%+v)", tg.id, b.open, b.opened, c.open, c.opened, c.ends)
	case c.open && b.probe != probe:
		w.fail("%v: hand-out %d is the probe, the twin says %d", tg.id, b.probe, probe)
	case c.open && probe == 0 && b.until != c.until && max(b.until, c.until) > clock:
		w.fail("%v: the next probe goes at %d, the twin says %d", tg.id, b.until, c.until)
	}
}

// judgeProbe looks that the leader asks for its turn by when the circuit lets
// somebody have something.
func (w *twinWorld) judgeProbe(tg *twinGroup, waiters []twinWaiter, ahead partition.Millis) {
	tw := tg.tw
	c := &tw.circuit
	if !c.open || c.probe != nil || c.until <= tw.clock || tw.paused || w.wake != 0 && w.wake <= c.until-ahead {
		return
	}
	now := tw.clock
	defer func() { tw.clock = now }()
	tw.clock = c.until
	if err := tw.stuck(waiters); err != nil {
		w.fail("stuck: %v: the circuit lets something go at %d, and the next turn is asked for at %d: %v", tg.id, c.until-ahead, w.wake, err)
	}
}
