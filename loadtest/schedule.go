package loadtest

import (
	"math"
	"math/bits"
)

// Schedule says when the messages of one producer are due: message n of all is
// due n/rate seconds after the start, and producer p of P has every Pth from p
// on. It is arithmetic, so it does not drift, and it knows nothing of what was
// sent: whoever is late does not move it.
type Schedule struct {
	Rate      uint64 // messages a second of all producers
	Producers uint64
	Producer  uint64
}

const second = 1_000_000_000

// Due is when the producer's message i is due, in nanoseconds from the start.
func (s Schedule) Due(i uint64) int64 {
	hi, lo := bits.Mul64(i*s.Producers+s.Producer, second)
	if hi >= s.Rate {
		return math.MaxInt64
	}
	due, _ := bits.Div64(hi, lo, s.Rate)
	return int64(min(due, math.MaxInt64))
}

// DueBy counts the producer's messages that are due at t or before.
func (s Schedule) DueBy(t int64) uint64 {
	if t < 0 {
		return 0
	}
	// Message n is due by t when n*second/rate < t+1, that is when
	// n < (t+1)*rate/second, rounded up.
	hi, lo := bits.Mul64(uint64(t)+1, s.Rate)
	all, rest := bits.Div64(hi, lo, second) // fits: t and rate are far below 2^63 and 10^9
	if rest > 0 {
		all++
	}
	if all <= s.Producer {
		return 0
	}
	return (all - s.Producer + s.Producers - 1) / s.Producers
}
