package logstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Entry is one entry of a partition's log. Index counts from 1 without gaps;
// Type is the caller's.
type Entry struct {
	Term  uint64
	Index uint64
	Type  byte
	Data  []byte
}

// HardState is what a replica must not forget about a term: who it voted for
// and how far it knows the log to be committed.
type HardState struct {
	Term   uint64
	Vote   uint64
	Commit uint64
}

// MaxEntryBytes is the largest payload of an entry.
const MaxEntryBytes = 16 << 20

// An entry's value, little endian:
//
//	+0   crc    u32   CRC32C over the key and all that follows here
//	+4   prev   u32   crc of the entry before; 0 for the first one of a log
//	+8   term   u64
//	+16  type   u8
//	+17  data
//
// The checksum covers the key too, and so partition and index: a value that
// turns up elsewhere does not pass. With prev it covers, link by link,
// everything before it.
const entryHeaderLen = 4 + 4 + 8 + 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// link is an entry's place in the chain.
type link struct {
	index uint64
	term  uint64
	crc   uint32
}

// encodeEntry writes the value of an entry into dst, which must have room for
// exactly the header and the data, and returns its checksum.
func encodeEntry(dst, key []byte, e *Entry, prev uint32) uint32 {
	binary.LittleEndian.PutUint32(dst[4:], prev)
	binary.LittleEndian.PutUint64(dst[8:], e.Term)
	dst[16] = e.Type
	copy(dst[entryHeaderLen:], e.Data)
	crc := entryCRC(key, dst)
	binary.LittleEndian.PutUint32(dst, crc)
	return crc
}

func entryCRC(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value[4:])
}

// decodeEntry reads an entry's row. Data aliases value.
func decodeEntry(key, value []byte) (e Entry, crc, prev uint32, err error) {
	if len(key) != entryKeyLen {
		return Entry{}, 0, 0, fmt.Errorf("a key of %d bytes, want %d", len(key), entryKeyLen)
	}
	if len(value) < entryHeaderLen {
		return Entry{}, 0, 0, fmt.Errorf("an entry of %d bytes, shorter than its header", len(value))
	}
	crc = binary.LittleEndian.Uint32(value)
	if got := entryCRC(key, value); got != crc {
		return Entry{}, 0, 0, fmt.Errorf("checksum %08x, computed %08x", crc, got)
	}
	return Entry{
		Term:  binary.LittleEndian.Uint64(value[8:]),
		Index: binary.BigEndian.Uint64(key[prefixLen:]),
		Type:  value[16],
		Data:  value[entryHeaderLen:],
	}, crc, binary.LittleEndian.Uint32(value[4:]), nil
}

// Every row that is no entry is sealed: it ends in a CRC32C over its key and
// value, so that a row under a wrong key does not pass either.
func seal(key, value []byte) []byte {
	return binary.LittleEndian.AppendUint32(value, rowCRC(key, value))
}

const sealLen = 4

func rowCRC(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}

// unseal checks a sealed row and returns its value. want is the length the
// value must have; below 0 any.
func unseal(key, row []byte, want int) ([]byte, error) {
	if len(row) < sealLen {
		return nil, fmt.Errorf("a row of %d bytes, shorter than its checksum", len(row))
	}
	value := row[: len(row)-sealLen : len(row)-sealLen]
	crc := binary.LittleEndian.Uint32(row[len(value):])
	if got := rowCRC(key, value); got != crc {
		return nil, fmt.Errorf("checksum %08x, computed %08x", crc, got)
	}
	if want >= 0 && len(value) != want {
		return nil, fmt.Errorf("a row of %d bytes, want %d", len(value), want)
	}
	return value, nil
}

// A hard state's row: term u64, vote u64, commit u64, sealed.
const hardStateLen = 24

func encodeHardState(key []byte, hs HardState) []byte {
	v := make([]byte, 0, hardStateLen+sealLen)
	v = binary.LittleEndian.AppendUint64(v, hs.Term)
	v = binary.LittleEndian.AppendUint64(v, hs.Vote)
	v = binary.LittleEndian.AppendUint64(v, hs.Commit)
	return seal(key, v)
}

func decodeHardState(key, row []byte) (HardState, error) {
	v, err := unseal(key, row, hardStateLen)
	if err != nil {
		return HardState{}, err
	}
	return HardState{
		Term:   binary.LittleEndian.Uint64(v),
		Vote:   binary.LittleEndian.Uint64(v[8:]),
		Commit: binary.LittleEndian.Uint64(v[16:]),
	}, nil
}

// A base row: index u64, term u64 and crc u32 of the last entry that is no
// longer in the log, sealed.
const baseLen = 20

func encodeBase(key []byte, b link) []byte {
	v := make([]byte, 0, baseLen+sealLen)
	v = binary.LittleEndian.AppendUint64(v, b.index)
	v = binary.LittleEndian.AppendUint64(v, b.term)
	v = binary.LittleEndian.AppendUint32(v, b.crc)
	return seal(key, v)
}

func decodeBase(key, row []byte) (link, error) {
	v, err := unseal(key, row, baseLen)
	if err != nil {
		return link{}, err
	}
	return link{
		index: binary.LittleEndian.Uint64(v),
		term:  binary.LittleEndian.Uint64(v[8:]),
		crc:   binary.LittleEndian.Uint32(v[16:]),
	}, nil
}

// The counter's row: counter u64, sealed. It is patched into a batch at the
// last moment, so encodeCounter writes in place.
const counterLen = 12

func encodeCounter(dst, key []byte, n uint64) {
	binary.LittleEndian.PutUint64(dst, n)
	seal(key, dst[:8:counterLen])
}

func decodeCounter(key, row []byte) (uint64, error) {
	v, err := unseal(key, row, 8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(v), nil
}

// identity says whose store this is.
type identity struct {
	version uint32
	store   [16]byte
	cluster string
}

// The identity row: version u32, store id 16 bytes, cluster id, sealed.
func encodeIdentity(key []byte, id identity) []byte {
	v := binary.LittleEndian.AppendUint32(nil, id.version)
	v = append(v, id.store[:]...)
	v = append(v, id.cluster...)
	return seal(key, v)
}

func decodeIdentity(key, row []byte) (identity, error) {
	v, err := unseal(key, row, -1)
	if err != nil {
		return identity{}, err
	}
	if len(v) < 20 {
		return identity{}, fmt.Errorf("a row of %d bytes, too short", len(v))
	}
	id := identity{version: binary.LittleEndian.Uint32(v), cluster: string(v[20:])}
	copy(id.store[:], v[4:])
	return id, nil
}
