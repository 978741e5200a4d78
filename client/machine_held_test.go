package client

import (
	"testing"

	"pgregory.net/rapid"
)

// held finds what a map finds.
func TestHeld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, twin, next := newHeld(), map[uint64]*task{}, uint64(1)
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			p := place{uint32(rapid.IntRange(0, 2).Draw(t, "partition")), uint64(rapid.IntRange(0, 60).Draw(t, "offset"))}
			var want *task
			for _, x := range twin {
				if x.place() == p {
					want = x
				}
			}
			if got := h.place(p); got != want {
				t.Fatalf("at %v: %v, want %v", p, got, want)
			}
			switch {
			case want != nil && rapid.Bool().Draw(t, "drop"):
				h.drop(want)
				delete(twin, want.number)
			case want == nil:
				next += uint64(rapid.IntRange(1, 100).Draw(t, "gap"))
				x := &task{Delivery: Delivery{Partition: p.partition, Offset: p.offset}, number: next}
				h.put(x)
				twin[next] = x
			}
			if n := uint64(rapid.IntRange(0, int(next)).Draw(t, "number")); h.number(n) != twin[n] {
				t.Fatalf("number %d: %v, want %v", n, h.number(n), twin[n])
			}
			if all := h.all(); len(all) != len(twin) || h.n != len(twin) {
				t.Fatalf("%d are there, and %d counted, of %d", len(all), h.n, len(twin))
			}
		}
	})
}
