package keyspace

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The hash is part of the wire protocol. These are the answers of the xxhash
// reference implementation.
func TestHashIsXXHash64(t *testing.T) {
	for _, tt := range []struct {
		seed uint64
		key  string
		want uint64
	}{
		{0, "", 0xef46db3751d8e999},
		{0, "a", 0xd24ec4f1a98c6e5b},
		{0, "abc", 0x44bc2cf5ad770999},
	} {
		if got := Hash(tt.seed, []byte(tt.key)); got != tt.want {
			t.Errorf("Hash(%d, %q) = %#x, want %#x", tt.seed, tt.key, got, tt.want)
		}
	}
	if Hash(1, []byte("abc")) == Hash(0, []byte("abc")) {
		t.Error("the seed makes no difference")
	}
}

func TestHashStringIsHash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, key := rapid.Uint64().Draw(t, "seed"), rapid.String().Draw(t, "key")
		if HashString(seed, key) != Hash(seed, []byte(key)) {
			t.Fatalf("they differ for %d, %q", seed, key)
		}
	})
}

func TestHashDoesNotAllocate(t *testing.T) {
	key := []byte("a key of some length, longer than one lane of the hash")
	if n := testing.AllocsPerRun(100, func() { Hash(7, key) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The generator's first numbers from seed 0, as its authors' program prints them.
func TestMixIsSplitmix64(t *testing.T) {
	state := uint64(0)
	for i, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} {
		if got := Mix(state); got != want {
			t.Errorf("number %d is %016x, want %016x", i, got, want)
		}
		state += 0x9e3779b97f4a7c15
	}
}

func TestRangesCoverEvenly(t *testing.T) {
	for n := 1; n <= 1024; n++ {
		rs := Ranges(n)
		if len(rs) != n {
			t.Fatalf("Ranges(%d) has %d", n, len(rs))
		}
		if err := Check(rs); err != nil {
			t.Fatalf("Ranges(%d): %v", n, err)
		}
		least, most := uint64(math.MaxUint64), uint64(0)
		for _, r := range rs {
			least, most = min(least, r.Last-r.First), max(most, r.Last-r.First)
		}
		if most-least > 1 {
			t.Fatalf("Ranges(%d): widths from %d to %d", n, least, most)
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	const top = uint64(math.MaxUint64)
	for want, rs := range map[string][]Range{
		"no ranges":      nil,
		"hashes before":  {{1, top}},
		"hashes after":   {{0, top - 1}},
		"ends before":    {{0, 4}, {5, 3}},
		"overlap":        {{0, 5}, {5, top}},
		"between ranges": {{0, 5}, {7, top}},
		"1 overlap":      {{0, top}, {0, top}},
	} {
		err := Check(rs)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check(%v) = %v, want %q", rs, err, want)
		}
	}
}

func TestAtStaysInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b")
		r := Range{min(a, b), max(a, b)}
		if h := r.At(rapid.Uint64().Draw(t, "x")); !r.Contains(h) {
			t.Fatalf("%v.At gave %#x", r, h)
		}
		if r.At(0) != r.First || r.At(math.MaxUint64) != r.Last && r.Last-r.First < 1<<63 {
			t.Fatalf("%v does not reach from end to end: %#x, %#x", r, r.At(0), r.At(math.MaxUint64))
		}
	})
}
