package histogram

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A value on a bound belongs to it, and whatever is above all of them is in the count.
func TestBuckets(t *testing.T) {
	h := New(1, 2, 5)
	for v, n := range map[int64]int{0: 1, 1: 2, 2: 4, 3: 8, 5: 16, 6: 32, 1000: 64, 7: 0, 8: -3} {
		h.Add(v, n)
	}
	r := h.Read()
	if !slices.Equal(r.UpTo, []uint64{3, 7, 31}) || r.Count != 127 || r.Sum != 2+8+24+80+192+64_000 {
		t.Errorf("%+v", r)
	}
}

// Gathering changes nothing, whatever comes after what, from however many at once.
func TestRunIsAdd(t *testing.T) {
	bounds := []int64{0, 3, 6}
	one, other := New(bounds...), New(bounds...)
	var all sync.WaitGroup
	for seed := range uint64(4) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			var run Run
			for range 10_000 {
				v := rng.Int64N(10) / (1 + rng.Int64N(4))
				one.Add(v, 1)
				run.Add(other, v)
				if rng.IntN(100) == 0 {
					run.Flush(other)
				}
			}
			run.Flush(other)
			run.Flush(other)
		})
	}
	all.Wait()
	a, b := one.Read(), other.Read()
	if !slices.Equal(a.UpTo, b.UpTo) || a.Count != 40_000 || b.Count != a.Count || a.Sum != b.Sum {
		t.Errorf("%+v\n%+v", a, b)
	}
}

func BenchmarkRun(b *testing.B) {
	h := New(100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000)
	var run Run
	for i := range b.N {
		run.Add(h, int64(i/64%8)*1000)
	}
	run.Flush(h)
}
