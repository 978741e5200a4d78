package partition

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// The rows that a partition keeps beside its log, and their layout. Values are
// little endian; keys big endian, because they sort. The store seals every row,
// so what is decoded here is what was written, under this key; the checks that
// are left are of the layout.

// indexRow tells where one stored batch stands in the log. Key: the offset of
// its first stored message. A batch of which nothing was stored has no row.
//
//	index u64 │ at u32 │ size u32 │ records u16 │ stored u16 │ time i64 │ bytes u64 │ suppressed u16 …
type indexRow struct {
	base       Offset
	index      Index    // the entry
	at         uint32   // where the batch begins in the entry's payload
	size       uint32   // bytes of the batch
	records    uint16   // in the batch
	stored     uint16   // of those, with an offset
	time       Millis   // publish time, made to never go back
	bytes      uint64   // of all batches up to and with this one
	suppressed []uint16 // records without an offset, ascending
}

const indexRowLen = 8 + 4 + 4 + 2 + 2 + 8 + 8

func (r *indexRow) end() Offset { return r.base + Offset(r.stored) }

// before is the bytes of all batches before this one.
func (r *indexRow) before() uint64 { return r.bytes - uint64(r.size) }

func offsetKey(dst []byte, o Offset) []byte { return binary.BigEndian.AppendUint64(dst, uint64(o)) }

func (r *indexRow) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.index))
	dst = binary.LittleEndian.AppendUint32(dst, r.at)
	dst = binary.LittleEndian.AppendUint32(dst, r.size)
	dst = binary.LittleEndian.AppendUint16(dst, r.records)
	dst = binary.LittleEndian.AppendUint16(dst, r.stored)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.time))
	dst = binary.LittleEndian.AppendUint64(dst, r.bytes)
	for _, i := range r.suppressed {
		dst = binary.LittleEndian.AppendUint16(dst, i)
	}
	return dst
}

func decodeIndexRow(key, v []byte) (indexRow, error) {
	if len(key) != 8 || len(v) < indexRowLen {
		return indexRow{}, fmt.Errorf("a row of the offset index has a key of %d and a value of %d bytes, want 8 and at least %d", len(key), len(v), indexRowLen)
	}
	r := indexRow{
		base:    Offset(binary.BigEndian.Uint64(key)),
		index:   Index(binary.LittleEndian.Uint64(v)),
		at:      binary.LittleEndian.Uint32(v[8:]),
		size:    binary.LittleEndian.Uint32(v[12:]),
		records: binary.LittleEndian.Uint16(v[16:]),
		stored:  binary.LittleEndian.Uint16(v[18:]),
		time:    Millis(binary.LittleEndian.Uint64(v[20:])),
		bytes:   binary.LittleEndian.Uint64(v[28:]),
	}
	rest := v[indexRowLen:]
	if len(rest) != 2*int(r.records-r.stored) || r.stored == 0 || r.stored > r.records || uint64(r.size) > r.bytes {
		return indexRow{}, fmt.Errorf("a row of the offset index says %d of %d records and lists %d bytes of others", r.stored, r.records, len(rest))
	}
	for ; len(rest) > 0; rest = rest[2:] {
		r.suppressed = append(r.suppressed, binary.LittleEndian.Uint16(rest))
	}
	if !slices.IsSorted(r.suppressed) {
		return indexRow{}, fmt.Errorf("a row of the offset index lists records out of order")
	}
	return r, nil
}

// The rows that find duplicates are kept in buckets of consecutive offsets, so
// that those of messages that are gone go as ranges: see buckets. A row's key
// begins with its bucket.

func bucketKey(dst []byte, b Offset) []byte { return binary.BigEndian.AppendUint64(dst, uint64(b)) }

// idKey names a message id and key by their hashes. Two ids may share one: what
// the row says is a suspicion, and the message itself decides.
//
//	bucket u64 │ xxhash64(id) │ xxhash64(key, or of nothing for none)
type idKey [16]byte

func idRowKey(dst []byte, b Offset, k idKey) []byte { return append(bucketKey(dst, b), k[:]...) }

const idRowKeyLen = 8 + len(idKey{})

// idRef is a message that was stored under an id.
type idRef struct {
	offset Offset
	body   uint64 // hash of the body
}

func appendIDRow(dst []byte, refs []idRef) []byte {
	for _, r := range refs {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.offset))
		dst = binary.LittleEndian.AppendUint64(dst, r.body)
	}
	return dst
}

func decodeIDRow(v []byte) ([]idRef, error) {
	if len(v) == 0 || len(v)%16 != 0 {
		return nil, fmt.Errorf("a row of the message ids has %d bytes, want a multiple of 16", len(v))
	}
	refs := make([]idRef, 0, len(v)/16)
	for ; len(v) > 0; v = v[16:] {
		refs = append(refs, idRef{Offset(binary.LittleEndian.Uint64(v)), binary.LittleEndian.Uint64(v[8:])})
	}
	return refs, nil
}

// Producer rows are of two kinds, by the byte behind the bucket.
//
//	bucket u64 │ 'n' │ producer                     next sequence u64
//	bucket u64 │ 'r' │ n u8 │ producer │ ^first u64 base u64 │ count u16 │ { record u16 │ what u8 │ offset u64 } …
//
// A run is a batch's sequences and what became of them: those that are not
// listed were stored, at base and on. The first sequence is inverted in the
// key, so that seeking forward from a sequence finds the run that holds it. Of
// several next sequences that of the newest bucket counts.
const (
	rowNext byte = 'n'
	rowRun  byte = 'r'
)

func nextKey(dst []byte, b Offset, producer []byte) []byte {
	return append(append(bucketKey(dst, b), rowNext), producer...)
}

func runKey(dst []byte, b Offset, producer []byte, first uint64) []byte {
	dst = append(bucketKey(dst, b), rowRun, byte(len(producer)))
	dst = append(dst, producer...)
	return binary.BigEndian.AppendUint64(dst, ^first)
}

// run is what became of consecutive sequences of a producer.
type run struct {
	first uint64
	base  Offset
	count uint16
	odd   []verdict
	in    Offset // the bucket of its row; not part of it, and known only until it is committed
}

// verdict is what became of one record that was not stored as a new message.
type verdict struct {
	record uint16
	what   fate
	offset Offset // of the message that was there before
}

type fate byte

const (
	fateDuplicate      fate = 1 // the same message stands at offset
	fateIDReused       fate = 2 // another message with its id stands at offset
	fateGap            fate = 3 // its producer left some out; offset is the sequence that is next
	fateSequenceReused fate = 4 // another message of its sequence stands at offset
	fateExpired        fate = 5 // a repeat of what stood at offset and is no longer kept
	fateForgotten      fate = 6 // a repeat of what is no longer kept, nor where it stood
	fateBehind         fate = 7 // behind a refused one in a batch in order; in no row, since such a batch has no producer
)

const verdictLen = 2 + 1 + 8

func appendRunRow(dst []byte, r run) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.base))
	dst = binary.LittleEndian.AppendUint16(dst, r.count)
	for _, v := range r.odd {
		dst = binary.LittleEndian.AppendUint16(dst, v.record)
		dst = append(dst, byte(v.what))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(v.offset))
	}
	return dst
}

func decodeRunRow(key, v []byte) (run, error) {
	if len(key) < 18 || len(v) < 10 || (len(v)-10)%verdictLen != 0 {
		return run{}, fmt.Errorf("a row of the producers has a key of %d and a value of %d bytes", len(key), len(v))
	}
	r := run{
		first: ^binary.BigEndian.Uint64(key[len(key)-8:]),
		base:  Offset(binary.LittleEndian.Uint64(v)),
		count: binary.LittleEndian.Uint16(v[8:]),
	}
	for v = v[10:]; len(v) > 0; v = v[verdictLen:] {
		r.odd = append(r.odd, verdict{binary.LittleEndian.Uint16(v), fate(v[2]), Offset(binary.LittleEndian.Uint64(v[3:]))})
	}
	return r, nil
}

func appendNextRow(dst []byte, next uint64) []byte {
	return binary.LittleEndian.AppendUint64(dst, next)
}

func decodeNextRow(v []byte) (uint64, error) {
	if len(v) != 8 {
		return 0, fmt.Errorf("a row of the producers has %d bytes, want 8", len(v))
	}
	return binary.LittleEndian.Uint64(v), nil
}

// Meta rows of a partition, by name.
const (
	metaConf       byte = 'c' // the replicas, as raft encodes them
	metaApplied    byte = 'a' // what the rows of the log tier include
	metaCheckpoint byte = 'k' // what the App's rows include
	metaReplica    byte = 'i' // the replica's own id, if it is not the first one on its node
	metaCondemned  byte = 'd' // why the replica is not to be trusted any more, in words
	metaLed        byte = 'l' // who led in which term: see led.go
)

// appliedRow is the log tier's state: written in the batch of its effects.
//
//	index u64 │ start u64 │ end u64 │ bytes u64 │ before u64 │ duplicates u64 │ time i64 │ oldest i64 │ bucket u64 …
type appliedRow struct {
	index      Index
	start, end Offset
	bytes      uint64 // of all batches ever stored
	before     uint64 // of those whose messages are all gone
	duplicates uint64
	time       Millis  // publish time of the last message
	oldest     Millis  // of the first one kept; 0: there is none
	buckets    buckets // never changed in place: rows are copied
}

const appliedRowLen = 8 * 8

func (r *appliedRow) position() Position { return Position{Index: r.index, Start: r.start, End: r.end} }

func (r *appliedRow) append(dst []byte) []byte {
	for _, v := range [...]uint64{
		uint64(r.index), uint64(r.start), uint64(r.end), r.bytes, r.before, r.duplicates, uint64(r.time), uint64(r.oldest),
	} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	for _, b := range r.buckets {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(b))
	}
	return dst
}

func decodeAppliedRow(v []byte) (appliedRow, error) {
	if len(v) < appliedRowLen || len(v)%8 != 0 {
		return appliedRow{}, fmt.Errorf("the row of what is applied has %d bytes, want %d and 8 for each bucket", len(v), appliedRowLen)
	}
	u := func(i int) uint64 { return binary.LittleEndian.Uint64(v[8*i:]) }
	r := appliedRow{
		index: Index(u(0)), start: Offset(u(1)), end: Offset(u(2)), bytes: u(3), before: u(4), duplicates: u(5),
		time: Millis(u(6)), oldest: Millis(u(7)),
	}
	for i := appliedRowLen / 8; i < len(v)/8; i++ {
		r.buckets = append(r.buckets, Offset(u(i)))
	}
	if r.start > r.end || r.before > r.bytes || !slices.IsSorted(r.buckets) {
		return appliedRow{}, fmt.Errorf("the row of what is applied contradicts itself: %+v", r)
	}
	return r, nil
}

// The checkpoint is the position that the App's rows include: written in the
// batch of the rows.
//
//	index u64 │ start u64 │ end u64
func appendCheckpoint(dst []byte, p Position) []byte {
	for _, v := range [...]uint64{uint64(p.Index), uint64(p.Start), uint64(p.End)} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	return dst
}

func decodeCheckpoint(v []byte) (Position, error) {
	if len(v) != 3*8 {
		return Position{}, fmt.Errorf("the row of the checkpoint has %d bytes, want %d", len(v), 3*8)
	}
	u := func(i int) uint64 { return binary.LittleEndian.Uint64(v[8*i:]) }
	return Position{Index(u(0)), Offset(u(1)), Offset(u(2))}, nil
}
