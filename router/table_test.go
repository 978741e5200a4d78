package router

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/internal/keyspace"
)

// targets draws a keyspace cut at random places, as splits and merges leave it.
func targets(t *rapid.T) []Target {
	n := rapid.IntRange(1, 40).Draw(t, "n")
	var ranges []keyspace.Range
	if rapid.Bool().Draw(t, "even") {
		ranges = keyspace.Ranges(n)
	} else {
		cuts := rapid.SliceOfNDistinct(rapid.Uint64Range(1, math.MaxUint64), n-1, n-1, rapid.ID).Draw(t, "cuts")
		slices.Sort(cuts)
		first := uint64(0)
		for _, c := range cuts {
			ranges = append(ranges, keyspace.Range{First: first, Last: c - 1})
			first = c
		}
		ranges = append(ranges, keyspace.Range{First: first, Last: math.MaxUint64})
	}
	out := make([]Target, len(ranges))
	for i, r := range ranges {
		out[i] = Target{ID: uint64(100 + i), Range: r}
	}
	return out
}

// The quick look-up and the naive walk must agree, at the edges above all.
func TestLookupAgainstWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ts := targets(t)
		table, err := NewTable(1, 7, ts)
		if err != nil {
			t.Fatal(err)
		}
		hashes := rapid.SliceOf(rapid.Uint64()).Draw(t, "hashes")
		for _, x := range ts {
			hashes = append(hashes, x.Range.First, x.Range.Last)
		}
		for _, h := range hashes {
			want := slices.IndexFunc(ts, func(x Target) bool { return x.Range.Contains(h) })
			if got := table.Lookup(h); got != want {
				t.Fatalf("Lookup(%#x) = %d, want %d", h, got, want)
			}
		}
	})
}

func TestTableRefusesHoles(t *testing.T) {
	ts := []Target{{1, keyspace.Range{First: 0, Last: 10}}, {2, keyspace.Range{First: 12, Last: math.MaxUint64}}}
	if _, err := NewTable(3, 0, ts); err == nil {
		t.Fatal("a hash without an owner was accepted")
	}
}

func TestTableIsItsOwn(t *testing.T) {
	ts := []Target{{1, keyspace.Range{First: 0, Last: math.MaxUint64}}}
	table, err := NewTable(3, 9, ts)
	if err != nil {
		t.Fatal(err)
	}
	ts[0].ID = 99
	if got := table.Target(0).ID; got != 1 {
		t.Fatalf("changing the caller's slice changed the table: %d", got)
	}
	if table.Revision() != 3 || table.Seed() != 9 || table.Len() != 1 {
		t.Fatalf("revision %d, seed %d, length %d", table.Revision(), table.Seed(), table.Len())
	}
}
