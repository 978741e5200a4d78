package partition

import (
	"encoding/binary"
	"math/bits"

	"github.com/strandmq/strandmq/internal/keyspace"
)

// idFilter tells of most message ids that are new that they are, without a look
// into the store. It answers "not there" for certain and "there" with doubt,
// for all partitions of a node in a fixed number of bytes: a Bloom filter, all
// of whose bits for an id lie in one cache line (Putze, Sanders and Singler,
// "Cache-, hash- and space-efficient Bloom filters", 2007). With 10 bits for
// each id about 1 in 100 new ones is looked up in vain; the fuller it gets the
// more are, and nothing else changes.
//
// "Not there" is true only of a partition all of whose rows were added: see
// dedupe.covered. Rows that are gone stay in the filter until it is made anew:
// see full.
//
// It belongs to the loop. Its memory is taken with the first id.
type idFilter struct {
	bytes int64
	lines [][8]uint64
	added int64 // since it was made
	live  int64 // of those, what was read from rows and added meanwhile
	gone  bool  // rows were removed since
}

// filterBitsEach is with how many bits for each id the filter works well.
const filterBitsEach = 10

// full tells that the filter holds more than it is made for, and that making it
// anew is worth it: rows are gone, and since the last time at least as many ids
// came as had to be read then.
func (f *idFilter) full() bool {
	return f.gone && f.added*filterBitsEach > int64(len(f.lines))*filterLine*8 && f.added >= 2*f.live
}

// clear forgets every id.
func (f *idFilter) clear() {
	clear(f.lines)
	f.added, f.live, f.gone = 0, 0, false
}

const filterLine = 64 // bytes of a line

// filterBits is how many of a line's bits an id sets.
const filterBits = 6

func (f *idFilter) add(p PartitionID, k idKey) {
	if f.lines == nil {
		f.lines = make([][8]uint64, max(f.bytes/filterLine, 1))
	}
	f.added++
	line, mask := f.place(p, k)
	for i, m := range mask {
		line[i] |= m
	}
}

func (f *idFilter) has(p PartitionID, k idKey) bool {
	if f.lines == nil {
		return false
	}
	line, mask := f.place(p, k)
	for i, m := range mask {
		if line[i]&m != m {
			return false
		}
	}
	return true
}

// place returns the line of an id and its bits in there.
func (f *idFilter) place(p PartitionID, k idKey) (line *[8]uint64, mask [8]uint64) {
	h := keyspace.Mix(binary.BigEndian.Uint64(k[8:]) ^ keyspace.Mix(uint64(p)))
	h = keyspace.Mix(binary.BigEndian.Uint64(k[:8]) ^ h)
	at, _ := bits.Mul64(h, uint64(len(f.lines)))
	h = keyspace.Mix(h)
	for range filterBits {
		mask[h&7] |= 1 << (h >> 3 & 63)
		h >>= 9
	}
	return &f.lines[at], mask
}
