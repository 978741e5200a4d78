package check

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTally(t *testing.T) {
	at := Place{Partition: 1, Offset: 7}
	for _, c := range []struct {
		name    string
		do      func(y *Tally)
		drained bool
		want    Verdict
		again   uint64
	}{
		{"as it should be", func(y *Tally) {
			for n := uint64(1); n <= 3; n++ {
				if !y.Arrived(0, n, 1, at) {
					t.Errorf("number %d is not the first", n)
				}
				y.Settling(0)
				y.Settled(0, n)
			}
			y.Stored(0, 3)
		}, true, Verdict{}, 0},
		{"lost", func(y *Tally) { y.Stored(1, 2) }, true, Verdict{Lost: 2}, 0},
		{"left", func(y *Tally) { y.Stored(1, 2) }, false, Verdict{Left: 2}, 0},
		{"one passed over, and lost", func(y *Tally) {
			y.Arrived(0, 2, 1, at)
			y.Stored(0, 2)
		}, true, Verdict{Disordered: 1, Lost: 1}, 0},
		{"one passed over, and late", func(y *Tally) {
			y.Arrived(0, 2, 1, at)
			y.Settling(0)
			if !y.Arrived(0, 1, 1, at) {
				t.Error("a late one is not the first")
			}
		}, true, Verdict{Disordered: 1}, 0},
		{"one refused, and passed over", func(y *Tally) {
			y.Arrived(0, 2, 1, at)
			y.Refused()
		}, true, Verdict{}, 0},
		{"one without an answer, and late", func(y *Tally) {
			y.Arrived(0, 2, 1, at)
			y.Settling(0)
			y.Arrived(0, 1, 1, at)
			y.Refused()
		}, true, Verdict{Disordered: 1}, 0},
		{"one refused, another lost", func(y *Tally) {
			y.Arrived(0, 2, 1, at)
			y.Refused()
			y.Stored(1, 1)
		}, true, Verdict{Lost: 1}, 0},
		{"overlapping", func(y *Tally) {
			y.Arrived(0, 1, 1, at)
			y.Arrived(0, 2, 1, at)
		}, true, Verdict{Overlapping: 1}, 0},
		{"settled, and again", func(y *Tally) {
			y.Arrived(0, 1, 1, at)
			y.Settling(0)
			y.Settled(0, 1)
			y.Arrived(0, 1, 2, at)
		}, true, Verdict{Duplicated: 1}, 0},
		{"lapsed, and again", func(y *Tally) {
			y.Arrived(0, 1, 1, at)
			if y.Arrived(0, 1, 2, at) {
				t.Error("a second attempt is the first")
			}
		}, true, Verdict{}, 1},
		{"twice as attempt 1", func(y *Tally) {
			y.Arrived(0, 1, 1, at)
			y.Arrived(0, 1, 1, at)
		}, true, Verdict{Duplicated: 1}, 0},
		{"never sent", func(y *Tally) {
			y.Arrived(2, 1, 1, at)
			y.Arrived(0, 0, 1, at)
			y.Settling(2)
			y.Settled(2, 1)
		}, true, Verdict{Altered: 2}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			y := NewTally("g", 2)
			c.do(y)
			so := y.So()
			got := y.Finish(c.drained)
			if (got.Broken() > 0) != (len(got.Examples) > 0) || so.Broken() > got.Broken() {
				t.Errorf("%+v, before %+v", got, so)
			}
			got.Examples = nil
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			if y.Again() != c.again {
				t.Errorf("again: %d", y.Again())
			}
		})
	}
}

// The cost of a judgement, which a load at full speed pays for each message.
func BenchmarkTally(b *testing.B) {
	const keys = 100_000
	y := NewTally("g", keys)
	numbers := make([]uint64, keys)
	var key uint32
	b.ReportAllocs()
	for b.Loop() {
		key = (key + 7919) % keys
		numbers[key]++
		y.Arrived(key, numbers[key], 1, Place{})
		y.Settling(key)
		y.Settled(key, numbers[key])
	}
	if y.So().Broken() > 0 {
		b.Fatal("broken")
	}
}
