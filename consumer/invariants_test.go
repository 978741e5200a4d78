package consumer

import (
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// sound checks what must hold of an App between any two commands. After a
// change of mode what was out stays out, so that for a while more can be out of
// a key, as it is counted now, than one.
func sound(a *App, end partition.Offset, changed bool) error {
	for _, g := range a.groups {
		if err := g.sound(end, changed); err != nil {
			return fmt.Errorf("group %v: %w", g.id, err)
		}
	}
	return nil
}

func (g *group) sound(end partition.Offset, changed bool) error {
	var count [standings]uint64
	queued := make(map[int32]int32)
	held := make(map[int32]bool)
	parking, replaying := uint64(0), uint64(0)
	for k := range g.keys {
		ks := &g.keys[k]
		if ks.head == none && len(ks.blockers) == 0 {
			continue
		}
		if found, ok := g.hashes.find(ks.hash); !ok || found != int32(k) {
			return fmt.Errorf("key %x is not found", ks.hash)
		}
		if len(ks.blockers) > 0 {
			parking++
		}
		if !slices.IsSorted(ks.blockers) {
			return fmt.Errorf("blockers of key %x are out of order: %v", ks.hash, ks.blockers)
		}
		var n, out int32
		last := none
		for i := ks.head; i != none; i = g.entries[i].next {
			e := &g.entries[i]
			if last != none && g.entries[last].offset >= e.offset {
				return fmt.Errorf("queue of key %x is out of order at %d", ks.hash, e.offset)
			}
			if e.key != int32(k) {
				return fmt.Errorf("message %d is in the queue of another key", e.offset)
			}
			if _, twice := queued[i]; twice {
				return fmt.Errorf("message %d is queued twice", e.offset)
			}
			queued[i] = int32(k)
			if e.at == inFlight {
				out++
			}
			last = i
			n++
		}
		if last != ks.tail || n != ks.waiting || out != ks.inFlight {
			return fmt.Errorf("key %x: tail %d waiting %d in flight %d, counted %d %d %d", ks.hash, ks.tail, ks.waiting, ks.inFlight, last, n, out)
		}
		if out > 1 && !changed {
			return fmt.Errorf("P3: %d messages of key %x are in flight", out, ks.hash)
		}
		for i := ks.head; i != none; i = g.entries[i].next {
			e := &g.entries[i]
			want := e.at
			switch {
			case e.at == inFlight || e.at == failed:
				// P3: what is before an attempted message came back from the dead.
				for j := ks.head; j != i; j = g.entries[j].next {
					if !g.entries[j].replayed && !changed {
						return fmt.Errorf("P3: message %d was handed out before %d of its key", e.offset, g.entries[j].offset)
					}
				}
			case ks.blocked(e.offset):
				want = parked
			case i == ks.head && out == 0:
				want = ready
			default:
				want = deferred
			}
			if e.at != want {
				return fmt.Errorf("message %d stands %d, should stand %d", e.offset, e.at, want)
			}
		}
	}
	live := 0
	for i := range g.entries {
		e := &g.entries[i]
		if e.at == vacant {
			continue
		}
		live++
		count[e.at]++
		if e.replayed {
			replaying++
		}
		if found, ok := g.offsets.find(uint64(e.offset)); !ok || found != int32(i) {
			return fmt.Errorf("message %d is not found", e.offset)
		}
		if _, keyed := g.keyOf(e.keyHash); keyed {
			if _, ok := queued[int32(i)]; !ok {
				return fmt.Errorf("message %d is in no queue", e.offset)
			}
		} else if e.at == deferred || e.at == parked {
			return fmt.Errorf("message %d waits without a key", e.offset)
		}
		if e.offset >= g.scanned || e.offset < g.start {
			return fmt.Errorf("message %d is beyond what was scanned, %d..%d", e.offset, g.start, g.scanned)
		}
		if e.at == inFlight {
			held[int32(i)] = true
			if g.policy.MaxAttempts > 0 && e.attempts == 0 {
				return fmt.Errorf("message %d is out and not charged", e.offset)
			}
		}
		if e.handOut > g.handOuts || e.ordinal < e.attempts && !e.replayed {
			return fmt.Errorf("message %d: hand-out %d of %d, ordinal %d, attempts %d", e.offset, e.handOut, g.handOuts, e.ordinal, e.attempts)
		}
		// What a leader could not find again would wait for ever.
		if g.hand != nil && !e.planned {
			switch e.at {
			case ready:
				if !slices.ContainsFunc(g.hand.laneOf(e).ready.items, func(d due) bool { return d.offset == e.offset && d.slot == int32(i) }) {
					return fmt.Errorf("the leader does not know that message %d is ready", e.offset)
				}
			case inFlight:
				if !slices.ContainsFunc(g.hand.timers.items, func(d due) bool { return d.offset == e.offset && d.until == e.until }) {
					return fmt.Errorf("the leader does not watch the deadline of message %d", e.offset)
				}
			default:
			}
		}
	}
	if live != g.offsets.n {
		return fmt.Errorf("%d messages, %d in the table", live, g.offsets.n)
	}
	for s := inFlight; s < standings; s++ {
		if count[s] != g.count[s] {
			return fmt.Errorf("standing %d: %d counted, %d noted", s, count[s], g.count[s])
		}
	}
	coldParking, coldReplaying, err := g.soundDisk()
	if err != nil {
		return err
	}
	parking, replaying = parking+coldParking, replaying+coldReplaying
	if parking != g.parking || replaying != g.replaying-g.again {
		return fmt.Errorf("parking %d replaying %d, noted %d %d", parking, replaying, g.parking, g.replaying)
	}
	n := 0
	for m := range g.members {
		var last uint64
		k := uint32(0)
		for i := g.members[m].head; i != none; i = g.entries[i].nextHeld {
			e := &g.entries[i]
			if !held[i] || e.member != int32(m) || e.handOut <= last {
				return fmt.Errorf("message %d is in the wrong list", e.offset)
			}
			last = e.handOut
			k++
			n++
		}
		if k != g.members[m].held {
			return fmt.Errorf("member %q holds %d, noted %d", g.members[m].name, k, g.members[m].held)
		}
	}
	if n != len(held) {
		return fmt.Errorf("%d messages are out, %d of them in lists", len(held), n)
	}
	sum := g.dead + g.acked + g.skipped
	for s := inFlight; s < standings; s++ {
		sum += g.count[s] + g.disk[s]
	}
	if want := uint64(g.scanned-g.start) + g.ahead; sum != want {
		return fmt.Errorf("counts add up to %d, not %d", sum, want)
	}
	dead, waiting := uint64(0), uint64(0)
	if err := g.eachDead(0, func(o partition.Offset, d deadRow) bool {
		if d.replaying {
			waiting++
		} else {
			dead++
		}
		return true
	}); err != nil {
		return err
	}
	if dead != g.dead || waiting != g.replaying {
		return fmt.Errorf("%d dead and %d replaying rows, noted %d and %d", dead, waiting, g.dead, g.replaying)
	}
	skipped := uint64(0)
	runs, err := g.rows.runs(0, 1<<62)
	if err != nil {
		return err
	}
	for _, r := range runs {
		skipped += uint64(r.last - r.first + 1)
	}
	if g.kept <= g.start && skipped != g.skipped {
		return fmt.Errorf("%d skipped in rows, noted %d", skipped, g.skipped)
	}
	if g.scanned > end {
		return fmt.Errorf("scanned %d of %d", g.scanned, end)
	}
	return nil
}
