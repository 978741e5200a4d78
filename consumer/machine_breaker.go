package consumer

import (
	"encoding/binary"

	"github.com/strandmq/strandmq/partition"
)

// The circuit breaker keeps a group whose world is broken (its database is down,
// a bad release is out) from using up the attempts of all its messages. When at
// least so many per cent of the hand-outs that ended within a window failed, over
// at least so many keys, it opens: nothing is handed out but one probe at a time,
// with a wait between them that doubles, and what fails meanwhile is not charged,
// so that nothing dies of it; a reject is the consumer's word on one message and
// counts as ever. A probe that is acked closes it.
//
// It is part of the replicated state, by the group's clock, and of constant size:
// counts in ten buckets of the window, and the keys that failed last, as many as
// it takes.
type breaker struct {
	open   bool
	opened uint64             // how often it did, since the group was created
	failed uint32             // probes in a row
	until  partition.Millis   // no probe before
	probe  uint64             // hand-out that is out as one; 0: none
	last   partition.Offset   // of the last probe: the next one is another message, if there is one
	newest uint64             // bucket
	counts [buckets][2]uint64 // ended well, failed
	keys   []failedKey
}

type failedKey struct{ hash, bucket uint64 }

const (
	buckets                   = 10
	firstProbe, longestProbes = partition.Millis(1_000), minute
	// MaxBreakerKeys bounds what a breaker remembers.
	MaxBreakerKeys = 1_000
)

// bucket is the present one; those that fell out of the window are emptied.
func (g *group) bucket() uint64 {
	b := &g.breaker
	n := uint64(g.clock) / max(uint64(g.policy.BreakerWindow)/buckets, 1)
	if n > b.newest {
		for i := range min(n-b.newest, buckets) {
			b.counts[(n-i)%buckets] = [2]uint64{}
		}
		b.newest = n
	}
	return n
}

// breaks tells whether the policy has a breaker. What is settled as it is handed
// out cannot fail.
func (p *Policy) breaks() bool { return p.BreakerPercent > 0 && !p.AtMostOnce }

// forget closes the breaker: what was before is no evidence any more.
func (b *breaker) forget() { *b = breaker{opened: b.opened} }

// went notes that a hand-out was acked.
func (g *group) went(handOut uint64) {
	b := &g.breaker
	switch {
	case !g.policy.breaks():
	case b.open && handOut == b.probe:
		b.forget()
	case !b.open:
		b.counts[g.bucket()%buckets][0]++
	}
}

// broke notes that a hand-out failed, and tells whether it is the world's fault:
// then it is not charged.
func (g *group) broke(hash, handOut uint64) bool {
	b, p := &g.breaker, &g.policy
	switch {
	case !p.breaks():
		return false
	case b.open:
		if handOut == b.probe {
			b.probe = 0
			b.failed = min(b.failed+1, 30)
			g.nextProbe()
		}
		return true
	}
	n := g.bucket()
	b.counts[n%buckets][1]++
	oldest, place := uint64(1<<63), -1
	for i := range b.keys {
		if b.keys[i].hash == hash {
			place = i
			break
		}
		if len(b.keys) >= int(p.BreakerKeys) && b.keys[i].bucket < oldest {
			oldest, place = b.keys[i].bucket, i
		}
	}
	if place < 0 {
		b.keys, place = append(b.keys, failedKey{}), len(b.keys)
	}
	b.keys[place] = failedKey{hash, n}
	var ok, bad, keys uint64
	for _, c := range b.counts {
		ok, bad = ok+c[0], bad+c[1]
	}
	for _, k := range b.keys {
		if k.bucket+buckets > n {
			keys++
		}
	}
	if keys >= uint64(p.BreakerKeys) && bad*100 >= uint64(p.BreakerPercent)*(ok+bad) {
		*b = breaker{open: true, opened: b.opened + 1}
		g.nextProbe()
	}
	return false
}

func (g *group) nextProbe() {
	g.breaker.until = g.clock + min(firstProbe<<min(g.breaker.failed, 10), longestProbes)
}

// mayProbe tells whether the breaker lets a message be handed out at a time.
func (g *group) mayProbe(t partition.Millis) bool {
	b := &g.breaker
	return !b.open || b.probe == 0 && t >= b.until
}

// probing notes a hand-out while the breaker is open.
func (g *group) probing(o partition.Offset) {
	if b := &g.breaker; b.open {
		b.probe, b.last = g.handOuts, o
	}
}

// tryNow brings the next probe forward: somebody resumed the group, and so says
// that it is worth a try. A new session says nothing of the kind: consumers that
// crash come back again and again, and would leave no wait between the probes.
func (g *group) tryNow() {
	if b := &g.breaker; b.open {
		b.failed = 0
		if b.probe == 0 {
			b.until = min(b.until, g.clock)
		}
	}
}

// gaveBack notes that a hand-out ended and tells nothing: another probe may go.
func (g *group) gaveBack(handOut uint64) {
	if b := &g.breaker; b.open && b.probe == handOut {
		b.probe = 0
		g.nextProbe()
	}
}

func (g *group) appendBreaker(b []byte) []byte {
	k := &g.breaker
	b = appendBool(b, k.open)
	for _, v := range []uint64{k.opened, uint64(k.failed), uint64(k.until), k.probe, uint64(k.last), k.newest} {
		b = binary.AppendUvarint(b, v)
	}
	for _, c := range k.counts {
		b = binary.AppendUvarint(binary.AppendUvarint(b, c[0]), c[1])
	}
	b = binary.AppendUvarint(b, uint64(len(k.keys)))
	for _, f := range k.keys {
		b = binary.AppendUvarint(binary.LittleEndian.AppendUint64(b, f.hash), f.bucket)
	}
	return b
}

func (r *reader) breaker() (k breaker) {
	k.open, k.opened, k.failed, k.until, k.probe = r.bool(), r.uvarint(), r.uint32(), r.time(), r.uvarint()
	k.last, k.newest = partition.Offset(r.uvarint()), r.uvarint()
	for i := range k.counts {
		k.counts[i] = [2]uint64{r.uvarint(), r.uvarint()}
	}
	n := r.count(9)
	for range n {
		k.keys = append(k.keys, failedKey{r.fixed64(), r.uvarint()})
	}
	return k
}

// probe plans the message that is tried while the circuit is open: the first one
// behind the last that was, so that one bad message does not keep it open.
func (h *hand) probe(now partition.Millis, p *openPlan, budget *int) {
	last := h.g.breaker.last
	var best due
	var of *lane
	for i := range h.lanes {
		l := &h.lanes[i]
		for _, d := range l.ready.items {
			if l.dry || !h.goes(d, now) {
				continue
			}
			// Those up to the last one come when there is none behind it.
			if of == nil || (d.offset <= last) == (best.offset <= last) && d.offset < best.offset || d.offset > last && best.offset <= last {
				best, of = d, l
			}
		}
	}
	if of == nil || *budget < 1 {
		return
	}
	e := &h.g.entries[best.slot]
	if w := h.pick(of, p, e.size); w != none {
		e.planned = true // its place in the heap is passed over later
		p.again = append(p.again, e.offset)
		h.writer.redeliver(e.offset, int(w))
		*budget--
	}
}
