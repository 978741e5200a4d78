package router

import (
	"fmt"
	"math/bits"
	"slices"
	"sort"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
)

// Target is a partition and the hashes that it owns.
type Target struct {
	ID    uint64 // the partition's id in the cluster, for the Log
	Range keyspace.Range
}

// Table is a topic's routing table at one revision. It is immutable and safe
// for concurrent use.
type Table struct {
	revision uint64
	seed     uint64
	targets  []Target
}

// NewTable makes a table. The targets must cover the keyspace exactly and in
// order; a message's partition number is its target's place in the list.
func NewTable(revision, seed uint64, targets []Target) (*Table, error) {
	ranges := make([]keyspace.Range, len(targets))
	for i, t := range targets {
		ranges[i] = t.Range
	}
	if err := keyspace.Check(ranges); err != nil {
		return nil, fmt.Errorf("routing table at revision %d: %w", revision, err)
	}
	return &Table{revision: revision, seed: seed, targets: slices.Clone(targets)}, nil
}

// Revision tells older tables of a topic from newer ones.
func (t *Table) Revision() uint64 { return t.revision }

// Seed is the topic's hash seed.
func (t *Table) Seed() uint64 { return t.seed }

// Len is the number of partitions.
func (t *Table) Len() int { return len(t.targets) }

// Target is partition number i.
func (t *Table) Target(i int) Target { return t.targets[i] }

// Lookup finds the number of the partition that owns hash h.
func (t *Table) Lookup(h uint64) int {
	// Ranges as Ranges makes them need no search: the product's high word is
	// the partition, or by rounding the one before it.
	hi, _ := bits.Mul64(h, uint64(len(t.targets)))
	if i := int(hi); t.targets[i].Range.Contains(h) {
		return i
	} else if i+1 < len(t.targets) && t.targets[i+1].Range.Contains(h) {
		return i + 1
	}
	return t.search(h)
}

// search is Lookup for any ranges.
func (t *Table) search(h uint64) int {
	return sort.Search(len(t.targets), func(i int) bool { return t.targets[i].Range.Last >= h })
}

// Place gives a message with a key or an id its hash and finds the number of its
// partition. One with neither may go to any: see Loose.
func (t *Table) Place(r *record.Record) (number int, ok bool) {
	switch {
	case r.HasKey:
		r.KeyHash = keyspace.Hash(t.seed, r.Key)
	case r.ID != "":
		// The same id must meet its first copy again.
		r.KeyHash = keyspace.HashString(t.seed, r.ID)
	default:
		return 0, false
	}
	return t.Lookup(r.KeyHash), true
}

// Loose gives a hash of partition i to a message without key and id. Such
// messages promise no order, so each gets a hash of its own, by a number of its
// own: one hash for all would make a group take them one at a time.
func (t *Table) Loose(i int, number uint64) uint64 {
	return t.targets[i].Range.At(keyspace.Mix(number))
}
