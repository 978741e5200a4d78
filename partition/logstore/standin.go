package logstore

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
)

// standIn makes a block as large as one that does not read, with a row that is erased, or
// two; nil if none fits.
func standIn(o *pebble.Options, b place, f *blockFacts, covered []span) []byte {
	o.EnsureDefaults()
	schema, room := o.KeySchemas[o.KeySchema], b.len-blockTrailerLen
	// No other row may have its key: those of all levels meet in a compaction.
	own := binary.AppendUvarint(binary.AppendUvarint(nil, f.number), uint64(b.at))
	for _, in := range meet(covered, f.spans) {
		start := in.from
		if f.from != nil && bytes.Compare(start, f.from) <= 0 {
			start = append(slices.Clone(f.from), 0)
		}
		for zeros := range 10 { // an index begins with some
			key := append(append(slices.Clone(start), make([]byte, zeros)...), own...)
			if len(key) == entryKeyLen {
				key = append(key, 0)
			}
			second := append(slices.Clone(key), 0)
			// Nothing may be behind the table's last key, nor behind the index's.
			if !in.has(append(slices.Clone(second), 0)) || bytes.Compare(second, f.to) >= 0 {
				continue
			}
			for _, keys := range [][][]byte{{key}, {key, second}} {
				if out := filledBlock(schema, f.newest, keys, room); out != nil {
					out = append(out, notCompressed)
					return binary.LittleEndian.AppendUint32(out, maskedCRC(out))
				}
			}
		}
	}
	return nil
}

// filledBlock makes a block of so many bytes with some rows; nil if there is none. The
// first row's value takes what room there is. Not every size can be had so: lengths take
// a byte or more.
func filledBlock(schema *colblk.KeySchema, seq uint64, keys [][]byte, size int) []byte {
	for value, tries := 0, 0; tries < 4; tries++ {
		var enc colblk.DataBlockEncoder
		enc.Init(schema)
		for i, key := range keys {
			v := make([]byte, value)
			if i > 0 {
				v = nil
			}
			enc.Add(pebble.MakeInternalKey(key, pebble.SeqNum(seq), pebble.InternalKeyKindSet), v, block.InPlaceValuePrefix(false), enc.KeyWriter.ComparePrev(key), false)
		}
		left := size - enc.Size()
		if left == 0 {
			out, _ := enc.Finish(len(keys), size)
			return append(make([]byte, 0, size+blockTrailerLen), out...)
		}
		if value += left; value < 0 {
			return nil
		}
	}
	return nil
}
