// Package keyspace is the arithmetic of the 64-bit key-hash space.
//
// It owns the hash of a key, how numbers are spread over the space, and the
// ranges that partitions own. It promises that Ranges covers the space exactly,
// in order, with widths that differ by one at most. It refuses lists of ranges
// that leave a hash without an owner or give it two. Whose partition a range is,
// and where that partition lives, is not its matter: router looks keys up,
// coordinator records who owns what.
//
//	0                                                        2^64-1
//	├────────────┬────────────┬────────────┬─────────────────┤
//	│  range 0   │  range 1   │  range 2   │     range 3     │
//	└────────────┴────────────┴────────────┴─────────────────┘
//	       ▲ xxhash64(topic seed, key)
//
// Ranges rather than remainders, so that one can be split in two, or two merged
// into one, without moving any other key.
package keyspace

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

// Hash is the xxhash64 of key with the topic's seed. It is part of the wire
// protocol: clients of other languages compute the same.
func Hash(seed uint64, key []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	_, _ = d.Write(key) // never fails
	return d.Sum64()
}

// HashString is Hash of a string's bytes.
func HashString(seed uint64, key string) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	_, _ = d.WriteString(key) // never fails
	return d.Sum64()
}

// Mix spreads the bits of a number over all of it, so that neighbours become
// unrelated hashes: one step of splitmix64 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", 2014). No two numbers give the
// same.
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Range is a run of key hashes, both ends included.
type Range struct{ First, Last uint64 }

// Contains tells whether the range owns hash h.
func (r Range) Contains(h uint64) bool { return r.First <= h && h <= r.Last }

// At gives a hash of the range for any x: evenly spread x give evenly spread
// hashes.
func (r Range) At(x uint64) uint64 {
	width := r.Last - r.First + 1 // 0 stands for the whole space
	if width == 0 {
		return x
	}
	hi, _ := bits.Mul64(x, width)
	return r.First + hi
}

// String prints the range in hexadecimal.
func (r Range) String() string { return fmt.Sprintf("%016x-%016x", r.First, r.Last) }

// Ranges divides the space into n contiguous ranges, in order. n must be at
// least 1.
func Ranges(n int) []Range {
	if n < 1 {
		panic(fmt.Sprintf("keyspace: %d ranges", n))
	}
	out := make([]Range, n)
	for i := range out {
		out[i] = Range{First: bound(i, n), Last: math.MaxUint64}
		if i > 0 {
			out[i-1].Last = out[i].First - 1
		}
	}
	return out
}

// bound is floor(i * 2^64 / n), for 0 <= i < n.
func bound(i, n int) uint64 {
	q, _ := bits.Div64(uint64(i), 0, uint64(n))
	return q
}

// Check tells what is wrong with a list of ranges that should cover the space
// exactly and in order.
func Check(ranges []Range) error {
	if len(ranges) == 0 {
		return fmt.Errorf("no ranges: no hash has an owner")
	}
	if ranges[0].First != 0 {
		return fmt.Errorf("range 0 begins at %016x: the hashes before it have no owner", ranges[0].First)
	}
	for i, r := range ranges {
		if r.First > r.Last {
			return fmt.Errorf("range %d ends before it begins: %v", i, r)
		}
		if i == len(ranges)-1 {
			break
		}
		switch next := ranges[i+1].First; {
		case r.Last == math.MaxUint64 || next <= r.Last:
			return fmt.Errorf("ranges %d and %d overlap: %v, %v", i, i+1, r, ranges[i+1])
		case next != r.Last+1:
			return fmt.Errorf("hashes between ranges %d and %d have no owner: %v, %v", i, i+1, r, ranges[i+1])
		}
	}
	if last := ranges[len(ranges)-1].Last; last != math.MaxUint64 {
		return fmt.Errorf("the last range ends at %016x: the hashes after it have no owner", last)
	}
	return nil
}
