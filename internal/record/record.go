// Package record is the record batch: what a publisher sends, what the log
// stores and what a reader gets are the same bytes.
//
// The package owns the layout, its checks and its limits. It promises that a
// batch that Parse accepted is whole (its CRC32C holds), well framed to the last
// byte and within every limit, so that nothing behind it has to check again; and
// that looking at a batch copies nothing. It refuses everything else with an
// *Error that says what is wrong and where. It knows nothing of topics,
// partitions or offsets: those are decided by the log that stores the batch.
//
//	┌────────────────────── header ──────────────────────┐┌──── records ─────┐
//	│magic│ver│flags│crc32c│length│count│time│producer│seq││ rec │ rec │ rec …│
//	└─────┴───┴─────┴──────┴──────┴─────┴────┴────────┴───┘└──────────────────┘
//	                  └─ covers everything to its right ───────────────────┘
//
// docs/format/record-batch.md draws every byte.
package record

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// Header is one header of a message. Names may repeat and keep their order.
type Header struct {
	Name  string
	Value []byte
}

// Record is one message as people handle it. Raw is the view that costs
// nothing.
type Record struct {
	KeyHash uint64 // hash of the key under the topic's seed; it decides the partition
	HasKey  bool   // tells an empty key from none
	Key     []byte
	ID      string // the publisher's id of the message; empty: none
	Headers []Header
	Body    []byte
}

// Meta is what the records of one batch have in common.
type Meta struct {
	ProducerID    string // empty: no producer sequence
	FirstSequence uint64 // sequence of the first record; the others follow
	PublishTime   int64  // ms since the Unix epoch; stamped by the broker on arrival
	// InOrder: nothing that stands behind a record that is refused is stored. Not
	// with a producer, whose sequence would have the numbers used up.
	InOrder bool
}

// The fixed part of the layout, little endian.
const (
	Magic   uint16 = 0x5342 // "BS" on disk
	Version byte   = 1

	offFlags    = 3
	offCRC      = 4
	offLength   = 8
	offCount    = 12
	offTime     = 16
	offProducer = 24

	fixedSize = offProducer + 1 + 8 // without the producer id's bytes

	flagIDs     byte = 1 << 0 // some record has a message id
	flagInOrder byte = 1 << 1 // Meta.InOrder
)

const (
	recKey byte = 1 << iota // the record has a key
	recID                   // the record has a message id
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Size returns how many bytes a batch of these records takes.
func Size(m Meta, recs []Record) int {
	n := fixedSize + len(m.ProducerID)
	for i := range recs {
		s := recs[i].size()
		n += uvarintLen(uint64(s)) + s
	}
	return n
}

// Append encodes a batch behind dst. It does not check limits (see
// Record.Check): Parse does, on arrival.
func Append(dst []byte, m Meta, recs []Record) []byte {
	at := len(dst)
	dst = appendHeader(dst, m, len(recs))
	flags := m.flags()
	for i := range recs {
		if recs[i].ID != "" {
			flags |= flagIDs
		}
		dst = recs[i].append(dst)
	}
	finish(dst[at:], flags, len(recs))
	return dst
}

func (m *Meta) flags() byte {
	if m.InOrder {
		return flagInOrder
	}
	return 0
}

// appendHeader begins a batch; what is known only at its end is left to finish.
func appendHeader(dst []byte, m Meta, count int) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, Magic)
	dst = append(dst, Version, 0)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0) // crc, length
	dst = binary.LittleEndian.AppendUint32(dst, uint32(count))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(m.PublishTime))
	dst = append(dst, byte(len(m.ProducerID)))
	dst = append(dst, m.ProducerID[:len(m.ProducerID)&0xff]...)
	return binary.LittleEndian.AppendUint64(dst, m.FirstSequence)
}

// finish ends the batch b, whose records stand.
func finish(b []byte, flags byte, count int) {
	b[offFlags] = flags
	binary.LittleEndian.PutUint32(b[offLength:], uint32(len(b)-offLength-4))
	binary.LittleEndian.PutUint32(b[offCount:], uint32(count))
	seal(b)
}

// seal writes the checksum of a batch whose other bytes stand.
func seal(b []byte) {
	binary.LittleEndian.PutUint32(b[offCRC:], crc32.Checksum(b[offLength:], castagnoli))
}

func (r *Record) size() int {
	n := 1 + 8
	if r.HasKey {
		n += uvarintLen(uint64(len(r.Key))) + len(r.Key)
	}
	if r.ID != "" {
		n += uvarintLen(uint64(len(r.ID))) + len(r.ID)
	}
	n += uvarintLen(uint64(len(r.Headers)))
	for _, h := range r.Headers {
		n += uvarintLen(uint64(len(h.Name))) + len(h.Name)
		n += uvarintLen(uint64(len(h.Value))) + len(h.Value)
	}
	return n + len(r.Body)
}

func (r *Record) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(r.size()))
	var flags byte
	if r.HasKey {
		flags |= recKey
	}
	if r.ID != "" {
		flags |= recID
	}
	dst = append(dst, flags)
	dst = binary.LittleEndian.AppendUint64(dst, r.KeyHash)
	if r.HasKey {
		dst = binary.AppendUvarint(dst, uint64(len(r.Key)))
		dst = append(dst, r.Key...)
	}
	if r.ID != "" {
		dst = binary.AppendUvarint(dst, uint64(len(r.ID)))
		dst = append(dst, r.ID...)
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Headers)))
	for _, h := range r.Headers {
		dst = binary.AppendUvarint(dst, uint64(len(h.Name)))
		dst = append(dst, h.Name...)
		dst = binary.AppendUvarint(dst, uint64(len(h.Value)))
		dst = append(dst, h.Value...)
	}
	return append(dst, r.Body...)
}

func uvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }
