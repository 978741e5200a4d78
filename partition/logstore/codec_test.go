package logstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/record"
	"pgregory.net/rapid"
)

// What decodes must encode to the very same bytes: then there is one form of
// each value, and nothing in it that nobody looks at.

func FuzzDecodeEntry(f *testing.F) {
	e := Entry{Term: 3, Index: 7, Type: 1, Data: []byte("data")}
	key := appendEntryKey(nil, 5, e.Index)
	v := make([]byte, entryHeaderLen+len(e.Data))
	encodeEntry(v, key, &e, 99)
	f.Add(key, v)
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, key, v []byte) {
		e, crc, prev, err := decodeEntry(key, v)
		if err != nil {
			return
		}
		again := make([]byte, entryHeaderLen+len(e.Data))
		if got := encodeEntry(again, key, &e, prev); got != crc || !bytes.Equal(again, v) {
			t.Fatalf("%x encodes to %x", v, again)
		}
	})
}

func FuzzDecodeRows(f *testing.F) {
	key := appendPrefix(nil, nsHardState, 5)
	f.Add(key, encodeHardState(key, HardState{1, 2, 3}))
	f.Add(key, encodeBase(key, link{1, 2, 3}))
	f.Add(key, encodeIdentity(key, identity{version: 1, cluster: "c"}))
	c := make([]byte, counterLen)
	encodeCounter(c, key, 8)
	f.Add(key, c)
	f.Fuzz(func(t *testing.T, key, row []byte) {
		if hs, err := decodeHardState(key, row); err == nil && !bytes.Equal(encodeHardState(key, hs), row) {
			t.Fatal("hard state")
		}
		if st, err := decodeScrub(key, row); err == nil {
			if again, err := decodeScrub(key, encodeScrub(key, st)); err != nil || again != st {
				t.Fatal("scrub")
			}
		}
		if b, err := decodeBase(key, row); err == nil && !bytes.Equal(encodeBase(key, b), row) {
			t.Fatal("base")
		}
		if id, err := decodeIdentity(key, row); err == nil && !bytes.Equal(encodeIdentity(key, id), row) {
			t.Fatal("identity")
		}
		if n, err := decodeCounter(key, row); err == nil {
			again := make([]byte, counterLen)
			if encodeCounter(again, key, n); !bytes.Equal(again, row) {
				t.Fatal("counter")
			}
		}
	})
}

// A table's ends may be those of deleted ranges, which are no rows' keys.
func TestRangesBetween(t *testing.T) {
	entry := func(p, i uint64) []byte { return appendEntryKey(nil, p, i) }
	for _, c := range []struct {
		what        string
		first, last []byte
		want        string
	}{
		{"entries of one log", entry(2, 5), entry(2, 9), "[p2 [5..9]]"},
		{"a whole log", appendPrefix(nil, nsEntry, 2), appendPrefixEnd(nil, nsEntry, 2), "[p2 [1..]]"},
		{"a log's rest", entry(2, 5), appendPrefixEnd(nil, nsEntry, 2), "[p2 [5..]]"},
		{"of two partitions", entry(2, 5), entry(4, 3), "[p2 [5..] p3 [1..] p4 [1..3]]"},
		{"rows and a deleted log", appendKey(nil, IDs, 1, []byte("k")), appendPrefixEnd(nil, nsEntry, 3), "[p1 [1..] p2 [1..] p3 [1..]]"},
		{"the store's rows and a log", counterKey(), appendPrefixEnd(nil, nsEntry, 3), "[p0 [1..] p1 [1..] p2 [1..] p3 [1..]]"},
		{"an end that is no key", entry(2, 5), []byte{keyFormat, byte(nsEntry) + 1}, "[p2 [5..]]"},
		{"the store's rows alone", identityKey(), counterKey(), "[]"},
		{"no keys", nil, []byte("x"), "[]"},
	} {
		if got := fmt.Sprint(rangesBetween(c.first, c.last)); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

func FuzzDecodeKey(f *testing.F) {
	f.Add(appendEntryKey(nil, 1, 2))
	f.Add(appendKey(nil, IDs, 1, []byte("id")))
	f.Add(counterKey())
	f.Add(appendPrefix(nil, nsEntry, 7))
	f.Fuzz(func(t *testing.T, k []byte) {
		_ = rangesBetween(k, k)
		d, ok := decodeKey(k)
		if !ok {
			return
		}
		if again := appendKey(nil, d.ns, d.partition, d.rest); !bytes.Equal(again, k) {
			t.Fatalf("%x encodes to %x", k, again)
		}
	})
}

func FuzzDecodeWitness(f *testing.F) {
	one := encodeSlot(testimony{version: 1, state: stateOpen, sequence: 4, boot: 2, counter: 77})
	two := encodeSlot(testimony{version: 1, state: stateOpen, sequence: 5, boot: 2, counter: 78})
	f.Add(one, two)
	f.Add(one, []byte{})
	f.Add(one[:100], two)
	f.Fuzz(func(t *testing.T, one, two []byte) {
		b := one
		if len(two) > 0 {
			b = make([]byte, slotStride, slotStride+len(two))
			copy(b, one)
			b = append(b, two...)
		}
		got, _, err := decodeWitness(b)
		if err != nil {
			return
		}
		if d, err := decodeSlot(encodeSlot(got)); err != nil || d != got {
			t.Fatalf("%v encodes to %v, %v", got, d, err)
		}
	})
}

// FuzzManifest must neither panic nor take memory beyond its input.
func FuzzManifest(f *testing.F) {
	f.Add([]byte{tagLogNumber, 4, tagNextFile, 9, tagLastSeq, 100})
	f.Add([]byte{tagNewBlob, 1, 1, 10, 9, 0, tagDeletedBlob, 1, 1})
	table := []byte{tagNewTable4, 6, 12, 100, 10}
	table = append(table, "a123456789"...)
	table = append(table, 10)
	table = append(table, "b123456789"...)
	table = append(table, 1, 2, fieldBlobReferences, 1, 1, 5, 9, fieldEnd)
	f.Add(table)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := newManifestState()
		if m.apply(b) == nil {
			_ = m.files()
		}
	})
}

// FuzzScanRecords compares the scan with Pebble's own reader: it must see the
// same records, and never call clean what Pebble does not.
func FuzzScanRecords(f *testing.F) {
	plain := func(sizes ...int) []byte {
		var buf bytes.Buffer
		w := record.NewWriter(&buf)
		for _, n := range sizes {
			_, _ = w.WriteRecord(bytes.Repeat([]byte{byte(n)}, n))
		}
		_ = w.Close()
		return buf.Bytes()
	}
	f.Add(plain(0, 10, 30, 3), uint32(0), false)
	f.Add(plain(0, 10, 30, 3)[:40], uint32(0), false)
	f.Add(syncLog(4, 10, 50, 3), uint32(4), false)
	f.Add(syncLog(4, 10, 50, 3), uint32(4), true)
	f.Add(bytes.Repeat([]byte{0}, 20), uint32(4), true)
	// A block filled up to where the input begins, so that records cross into
	// the next one. Inputs stay small: the engine's reader tries every bit of
	// a chunk that does not match its checksum.
	full := syncLog(4, blockLen-syncHeaderLen-60)
	f.Fuzz(func(t *testing.T, data []byte, num uint32, cross bool) {
		if len(data) > 600 {
			t.Skip()
		}
		if cross {
			num, data = 4, append(bytes.Clone(full), data...)
		}
		var mine [][]byte
		end, at, err := scanRecords(data, num, func(rec []byte) error {
			mine = append(mine, bytes.Clone(rec))
			return nil
		})
		if err != nil || at < 0 || at > len(data) {
			t.Fatalf("end at %d, %v", at, err)
		}
		theirs, clean := pebbleRecords(data, num)
		if len(mine) > len(theirs) {
			t.Fatalf("%d records, Pebble reads %d", len(mine), len(theirs))
		}
		for i := range mine {
			if !bytes.Equal(mine[i], theirs[i]) {
				t.Fatalf("record %d differs from Pebble's", i)
			}
		}
		if end == endClean && (!clean || len(mine) != len(theirs)) {
			t.Fatalf("clean at %d after %d records; Pebble: clean %v, %d records", at, len(mine), clean, len(theirs))
		}
	})
}

// syncLog writes a log file as the engine does, with sync offsets, all synced.
func syncLog(num uint32, sizes ...int) []byte {
	var out []byte
	for _, size := range sizes {
		rec := bytes.Repeat([]byte{byte(size)}, size)
		synced := uint64(len(out))
		for first := true; ; first = false {
			left := blockLen - len(out)%blockLen
			if left < syncHeaderLen {
				out = append(out, make([]byte, left)...)
				continue
			}
			n := min(len(rec), left-syncHeaderLen)
			kind := byte(11)
			switch last := n == len(rec); {
			case first && last:
				kind = 9
			case first:
				kind = 10
			case last:
				kind = 12
			}
			out = appendChunk(out, num, kind, synced, rec[:n])
			if rec = rec[n:]; len(rec) == 0 {
				break
			}
		}
	}
	return out
}

func appendChunk(out []byte, num uint32, kind byte, synced uint64, body []byte) []byte {
	at := len(out)
	out = append(out, 0, 0, 0, 0)
	out = binary.LittleEndian.AppendUint16(out, uint16(len(body)))
	out = append(out, kind)
	out = binary.LittleEndian.AppendUint32(out, num)
	out = binary.LittleEndian.AppendUint64(out, synced)
	out = append(out, body...)
	binary.LittleEndian.PutUint32(out[at:], maskedCRC(out[at+6:]))
	return out
}

// TestScanFindsDamage flips every byte of a log whose records were synced one
// after the other: each flip but one in the last record, which has no witness
// in the file, must be seen as damage.
func TestScanFindsDamage(t *testing.T) {
	whole := syncLog(4, 100, 200, 300, 40_000, 50)
	last := len(whole) - syncHeaderLen - 50
	for i := 0; i < last; i++ {
		if i > 1000 && i%97 != 0 {
			continue // the inside of the large record is all alike
		}
		data := bytes.Clone(whole)
		data[i] ^= 0x10
		if end, at, _ := scanRecords(data, 4, func([]byte) error { return nil }); end != endDamage {
			t.Fatalf("flip at %d: end %v at %d", i, end, at)
		}
	}
	data := bytes.Clone(whole)
	data[last+30] ^= 0x10
	if end, at, _ := scanRecords(data, 4, func([]byte) error { return nil }); end != endTorn || at != last {
		t.Fatalf("flip in the last record: end %v at %d", end, at)
	}
	// What an earlier life of a recycled file left behind is no proof.
	data = append(syncLog(5, 100), syncLog(4, 300, 400)...)
	if end, _, _ := scanRecords(data, 5, func([]byte) error { return nil }); end != endTorn {
		t.Fatalf("recycled file: end %v", end)
	}
}

func TestKeysSortAsDrawn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, q := rapid.Uint64().Draw(t, "p"), rapid.Uint64().Draw(t, "q")
		i, j := rapid.Uint64().Draw(t, "i"), rapid.Uint64().Draw(t, "j")
		a, b := appendEntryKey(nil, p, i), appendEntryKey(nil, q, j)
		want := 0
		switch {
		case p < q || (p == q && i < j):
			want = -1
		case p != q || i != j:
			want = 1
		}
		if got := bytes.Compare(a, b); got != want {
			t.Fatalf("compare %d, want %d", got, want)
		}
		for _, ns := range perPartition() {
			k := appendKey(nil, ns, p, []byte{0xff, 0xff})
			if bytes.Compare(k, appendPrefixEnd(nil, ns, p)) >= 0 || bytes.Compare(k, appendPrefix(nil, ns, p)) < 0 {
				t.Fatalf("%v: key outside its partition", ns)
			}
		}
	})
}

// pebbleRecords reads a file as the engine does.
func pebbleRecords(data []byte, num uint32) (recs [][]byte, clean bool) {
	r := openRecords(record.NewReader, data, num)
	for {
		rr, err := r.Next()
		if err != nil {
			return recs, err == io.EOF
		}
		rec, err := io.ReadAll(rr)
		if err != nil {
			return recs, false
		}
		recs = append(recs, rec)
	}
}

// openRecords names the type of a file number, which Pebble keeps to itself.
func openRecords[T ~uint64](open func(io.Reader, T) *record.Reader, data []byte, num uint32) *record.Reader {
	return open(bytes.NewReader(data), T(num))
}
