package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Pebble's MANIFEST lists the tables and value files that are part of the
// store. Pebble takes a record that does not read for the end of the file, so
// what was written behind it is forgotten without a word. Therefore the
// MANIFEST is read here first. This file decodes its records, as far as the
// checks need them; the format is Pebble's version edit.
const (
	tagComparer       = 1
	tagLogNumber      = 2
	tagNextFile       = 3
	tagLastSeq        = 4
	tagCompactPointer = 5
	tagDeletedTable   = 6
	tagNewTable1      = 7
	tagPrevLog        = 9
	tagNewTable2      = 100
	tagNewTable3      = 102
	tagNewTable4      = 103
	tagNewTable5      = 104
	tagCreatedBacking = 105
	tagRemovedBacking = 106
	tagNewBlob        = 107
	tagDeletedBlob    = 108

	fieldEnd             = 1
	fieldVirtual         = 66
	fieldSyntheticPrefix = 67
	fieldSyntheticSuffix = 68
	fieldBlobReferences  = 69
	fieldMustKnow        = 1 << 6
)

// tableFile is a table as the MANIFEST lists it.
type tableFile struct {
	size        uint64
	first, last []byte // user keys
	lowSeq      uint64 // sequence numbers of its keys
	highSeq     uint64
	blobs       []uint64
	virtual     bool   // it has no file of its own but is a part of
	backing     uint64 // this one, which is listed apart
}

type tableKey struct{ level, num uint64 }

type blobKey struct{ id, file uint64 }

// manifestState is what a MANIFEST says once all its records are applied.
type manifestState struct {
	minLog   uint64 // log files below it are not needed
	nextFile uint64
	tables   map[tableKey]tableFile
	backings map[uint64]uint64 // file number to size
	blobs    map[blobKey]uint64
}

func newManifestState() *manifestState {
	return &manifestState{
		tables:   make(map[tableKey]tableFile),
		backings: make(map[uint64]uint64),
		blobs:    make(map[blobKey]uint64),
	}
}

var errShortEdit = errors.New("a record ends early")

// editReader reads the fields of one record.
type editReader struct {
	b   []byte
	err error
}

func (r *editReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(errShortEdit)
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *editReader) byte() byte {
	if len(r.b) == 0 {
		r.fail(errShortEdit)
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *editReader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail(errShortEdit)
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

// userKey reads a key and drops the eight bytes that Pebble adds to it.
func (r *editReader) userKey() []byte {
	k := r.bytes()
	if len(k) < 8 {
		r.fail(errShortEdit)
		return nil
	}
	return append([]byte(nil), k[:len(k)-8]...)
}

func (r *editReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

// apply adds one record.
func (m *manifestState) apply(edit []byte) error {
	r := &editReader{b: edit}
	// A table moved to another level is deleted and added in one record, in
	// either order, so deletions are done first.
	type added struct {
		k tableKey
		t tableFile
	}
	var news []added
	for len(r.b) > 0 && r.err == nil {
		switch tag := r.uvarint(); tag {
		case tagComparer:
			r.bytes()
		case tagLogNumber:
			m.minLog = r.uvarint()
		case tagNextFile:
			m.nextFile = r.uvarint()
		case tagLastSeq, tagPrevLog:
			r.uvarint()
		case tagCompactPointer:
			r.uvarint()
			r.bytes()
		case tagDeletedTable:
			k := tableKey{level: r.uvarint(), num: r.uvarint()}
			delete(m.tables, k)
		case tagNewTable1, tagNewTable2, tagNewTable3, tagNewTable4, tagNewTable5:
			k, t := r.table(tag)
			news = append(news, added{k, t})
		case tagCreatedBacking:
			num, size := r.uvarint(), r.uvarint()
			m.backings[num] = size
		case tagRemovedBacking:
			delete(m.backings, r.uvarint())
		case tagNewBlob:
			k := blobKey{id: r.uvarint(), file: r.uvarint()}
			size := r.uvarint()
			r.uvarint() // bytes of values
			r.uvarint() // time made
			m.blobs[k] = size
		case tagDeletedBlob:
			k := blobKey{id: r.uvarint(), file: r.uvarint()}
			delete(m.blobs, k)
		default:
			if r.err == nil {
				r.fail(fmt.Errorf("unknown field %d", tag))
			}
		}
	}
	if r.err != nil {
		return r.err
	}
	for _, n := range news {
		m.tables[n.k] = n.t
	}
	return nil
}

func (r *editReader) table(tag uint64) (k tableKey, t tableFile) {
	k.level, k.num = r.uvarint(), r.uvarint()
	if tag == tagNewTable3 {
		r.uvarint() // path
	}
	t.size = r.uvarint()
	if tag == tagNewTable5 {
		const pointKeys = 1
		if r.byte()&pointKeys != 0 {
			t.first, t.last = r.userKey(), r.userKey()
		}
		r.bytes() // first and last range key
		r.bytes()
	} else {
		t.first, t.last = r.userKey(), r.userKey()
	}
	if tag != tagNewTable1 {
		t.lowSeq, t.highSeq = r.uvarint(), r.uvarint()
	}
	if tag != tagNewTable4 && tag != tagNewTable5 {
		return k, t
	}
	for r.err == nil {
		switch f := r.uvarint(); f {
		case fieldEnd:
			return k, t
		case fieldVirtual:
			t.virtual = true
			t.backing = r.uvarint()
		case fieldSyntheticPrefix, fieldSyntheticSuffix:
			r.bytes()
		case fieldBlobReferences:
			r.uvarint() // depth
			n := r.uvarint()
			for ; n > 0 && r.err == nil; n-- {
				t.blobs = append(t.blobs, r.uvarint())
				r.uvarint() // bytes of values
			}
		default:
			if f&fieldMustKnow != 0 {
				r.fail(fmt.Errorf("unknown field %d of a table", f))
			}
			r.bytes()
		}
	}
	return k, t
}

// file is a file that must be there, with the size it must have.
type file struct {
	name string
	size uint64
}

// files lists what the store consists of, and what each file holds.
func (m *manifestState) files() map[file][]Range {
	out := make(map[file][]Range)
	byBlob, byBacking := make(map[uint64][]Range), make(map[uint64][]Range)
	for k, t := range m.tables {
		rs := rangesBetween(t.first, t.last)
		for _, id := range t.blobs {
			byBlob[id] = append(byBlob[id], onlyEntries(t.first, t.last)...)
		}
		if t.virtual {
			byBacking[t.backing] = append(byBacking[t.backing], rs...)
			continue
		}
		out[file{tableName(k.num), t.size}] = rs
	}
	for num, size := range m.backings {
		out[file{tableName(num), size}] = byBacking[num]
	}
	for k, size := range m.blobs {
		out[file{valuesName(k.file), size}] = byBlob[k.id]
	}
	return out
}

// onlyEntries is rangesBetween for a file that holds nothing but entries.
func onlyEntries(first, last []byte) []Range {
	if from := appendPrefix(nil, nsEntry, 0); bytes.Compare(first, from) < 0 {
		first = from
	}
	return rangesBetween(first, last)
}

func tableName(num uint64) string  { return fmt.Sprintf("%06d.sst", num) }
func valuesName(num uint64) string { return fmt.Sprintf("%06d.blob", num) }
