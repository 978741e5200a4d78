package check

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// What is found around a span are the calls that overlap it, and few others.
func TestAround(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		x := &takes{}
		for at := range 40 {
			c := &call{begin: at, end: at + 1 + r.IntN(8)}
			if r.IntN(30) == 0 {
				c.end = -1
			}
			x.calls = append(x.calls, c)
		}
		x.index()
		for range 20 {
			from := r.IntN(50) - 1
			to := from + 1 + r.IntN(10)
			if r.IntN(8) == 0 {
				to = -1
			}
			no := func(c *call) bool { return !c.overlaps(from, to) }
			want := slices.DeleteFunc(slices.Clone(x.calls), no)
			if got := slices.DeleteFunc(slices.Clone(x.around(from, to)), no); !slices.Equal(got, want) {
				t.Fatalf("around %d to %d: %d calls, want %d", from, to, len(got), len(want))
			}
		}
	}
}
