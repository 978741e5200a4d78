package loadtest

import (
	"encoding/binary"
	"hash/crc32"
	"strconv"

	"github.com/strandmq/strandmq/internal/check"
)

// A body, little endian:
//
//	 0  run       u64   tells messages of this run from others
//	 8  key       u32
//	12  producer  u32
//	16  number    u64   of the producer's messages of the key, from 1
//	24  due       i64   nanoseconds from the start of the run
//	32  checksum  u32   CRC32C of all the rest
//	36  filling         random bytes, which nothing compresses
const (
	checksumAt = 32
	// MinSize is the smallest body that can be judged.
	MinSize = 36
)

// stampBody writes what a body says; its filling is there already.
func stampBody(b []byte, run uint64, m check.Sent, due int64) {
	binary.LittleEndian.PutUint64(b, run)
	binary.LittleEndian.PutUint32(b[8:], m.Key)
	binary.LittleEndian.PutUint32(b[12:], m.Producer)
	binary.LittleEndian.PutUint64(b[16:], m.Number)
	binary.LittleEndian.PutUint64(b[24:], uint64(due))
	binary.LittleEndian.PutUint32(b[checksumAt:], checksum(b))
}

func checksum(b []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Update(0, table, b[:checksumAt]), table, b[MinSize:])
}

// readBody tells whose a body is. ours: it is of this run; whole: it is as it
// was sent, under the key that it was sent with.
func readBody(b []byte, key string, run uint64, size int) (m check.Sent, due int64, ours, whole bool) {
	m, due, ours, whole = readLabel(b, run, size)
	return m, due, ours, whole && key == keyName(m.Key)
}

// readLabel is readBody for those who compare the key themselves.
func readLabel(b []byte, run uint64, size int) (m check.Sent, due int64, ours, whole bool) {
	if len(b) < MinSize || binary.LittleEndian.Uint64(b) != run {
		return m, 0, false, false
	}
	m = check.Sent{
		Key:      binary.LittleEndian.Uint32(b[8:]),
		Producer: binary.LittleEndian.Uint32(b[12:]),
		Number:   binary.LittleEndian.Uint64(b[16:]),
	}
	due = int64(binary.LittleEndian.Uint64(b[24:]))
	whole = len(b) == size && binary.LittleEndian.Uint32(b[checksumAt:]) == checksum(b)
	return m, due, true, whole
}

func keyName(key uint32) string { return string(appendKeyName(nil, key)) }

func appendKeyName(b []byte, key uint32) []byte {
	return strconv.AppendUint(append(b, "key-"...), uint64(key), 10)
}

// messageID is unique among all runs, since run is.
func messageID(run uint64, m check.Sent) string {
	b := make([]byte, 0, 40)
	b = strconv.AppendUint(b, run, 36)
	b = append(b, '-')
	b = strconv.AppendUint(b, uint64(m.Producer), 36)
	b = append(b, '-')
	b = strconv.AppendUint(b, m.Number, 36)
	return string(b)
}
