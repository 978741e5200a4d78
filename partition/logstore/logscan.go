package logstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Pebble's log files and its MANIFEST share a framing: blocks of 32 KiB with
// chunks that do not cross them; a record is one chunk or a first, middle and
// last one. The record package of Pebble reads it; this file reads it again to
// answer a question that the package does not: is a chunk that does not read
// the end of what was written, or damage to it?
//
// A log file's chunk carries how much of the file was synced when it was
// written. So a good chunk anywhere behind a bad one, with a sync offset beyond
// it, proves that the bad one was on disk once. Pebble looks for such proof
// from the next block on; here every byte behind the bad chunk is a candidate.
// The MANIFEST is synced after each record, so there the mere beginning of a
// later record is proof.
const (
	blockLen         = 32 << 10
	plainHeaderLen   = 7  // crc u32, length u16, type u8
	recycleHeaderLen = 11 // and log number u32
	syncHeaderLen    = 19 // and sync offset u64
)

// logEnd says how a file ends.
type logEnd int

const (
	endClean  logEnd = iota // at a record's end, or by the trailer of a closed log
	endTorn                 // with something that is not a record; no proof against it
	endDamage               // with something that was a record once
)

// chunk is one chunk's frame.
type chunk struct {
	header  int
	length  int
	first   bool // begins a record
	last    bool // ends one
	synced  uint64
	trailer bool
}

// frame reads the chunk at pos, which ends at or before limit.
func frame(data []byte, pos, limit int, num uint32) (c chunk, ok bool) {
	if limit-pos < plainHeaderLen {
		return c, false
	}
	sum := binary.LittleEndian.Uint32(data[pos:])
	c.length = int(binary.LittleEndian.Uint16(data[pos+4:]))
	kind := data[pos+6]
	switch {
	case kind >= 1 && kind <= 4:
		c.header = plainHeaderLen
	case kind >= 5 && kind <= 8:
		c.header, kind = recycleHeaderLen, kind-4
	case kind >= 9 && kind <= 12:
		c.header, kind = syncHeaderLen, kind-8
	default:
		return c, false
	}
	c.first, c.last = kind == 1 || kind == 2, kind == 1 || kind == 4
	if limit-pos < c.header {
		return c, false
	}
	if c.header > plainHeaderLen {
		if n := binary.LittleEndian.Uint32(data[pos+7:]); n != num {
			c.trailer = n == num+1
			return c, false
		}
	}
	if c.header == syncHeaderLen {
		c.synced = binary.LittleEndian.Uint64(data[pos+11:])
	}
	if pos+c.header+c.length > limit {
		return c, false
	}
	return c, sum == maskedCRC(data[pos+6:pos+c.header+c.length])
}

// maskedCRC is the engine's form of a CRC32C.
func maskedCRC(b []byte) uint32 {
	crc := crc32.Checksum(b, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}

// scanRecords calls fn with every record of a file, in order, and says how the
// file ends and where. num is the log file's number, 0 for a MANIFEST. A record
// is valid until fn returns.
func scanRecords(data []byte, num uint32, fn func(rec []byte) error) (end logEnd, at int, err error) {
	return scanFrom(data, num, 0, fn)
}

// scanFrom is scanRecords from the chunk at pos on.
func scanFrom(data []byte, num uint32, pos int, fn func(rec []byte) error) (end logEnd, at int, err error) {
	var rec []byte
	inside := false
	start := pos // of the record
	for {
		limit := min((pos/blockLen+1)*blockLen, len(data))
		full := limit%blockLen == 0 && limit > 0
		left := limit - pos
		if left < plainHeaderLen {
			if full && pos < limit {
				pos = limit
				continue
			}
			if left == 0 && !inside {
				return endClean, pos, nil
			}
			return proof(data, num, pos), pos, nil
		}
		// A rest of a block that is too short for a chunk is zero.
		if left < syncHeaderLen && zero(data[pos:limit]) {
			if pos = limit; full || !inside {
				continue
			}
			return proof(data, num, pos), pos, nil
		}
		c, ok := frame(data, pos, limit, num)
		if pos == 0 && !ok && newerLog(data, limit, num) {
			return endDamage, 0, nil // a file is never used again for an older log
		}
		if c.trailer && !inside {
			return endClean, pos, nil
		}
		if !ok || (c.first && inside) {
			return proof(data, num, pos), pos, nil
		}
		body := data[pos+c.header : pos+c.header+c.length]
		from := pos
		pos += c.header + c.length
		if !inside && !c.first {
			// The tail of a record whose head is gone: Pebble skips it. It is
			// never written that way.
			return endDamage, from, nil
		}
		if c.first {
			start, rec = from, rec[:0]
		}
		if c.first && c.last {
			if err := fn(body); err != nil {
				return endDamage, start, err
			}
			continue
		}
		rec = append(rec, body...)
		inside = !c.last
		if c.last {
			if err := fn(rec); err != nil {
				return endDamage, start, err
			}
		}
	}
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// proof looks behind a bad chunk for one that proves it was good once.
func proof(data []byte, num uint32, bad int) logEnd {
	for pos := bad + 1; pos+plainHeaderLen <= len(data); pos++ {
		kind := data[pos+6]
		if num == 0 {
			if kind != 1 && kind != 2 {
				continue
			}
		} else {
			// Most bytes are ruled out by the log number, before any checksum.
			if kind < 9 || kind > 12 || pos+syncHeaderLen > len(data) || binary.LittleEndian.Uint32(data[pos+7:]) != num {
				continue
			}
		}
		limit := min((pos/blockLen+1)*blockLen, len(data))
		c, ok := frame(data, pos, limit, num)
		if !ok || c.length == 0 {
			continue
		}
		if num == 0 || c.synced > uint64(bad) {
			return endDamage
		}
	}
	return endTorn
}

// batchCounter reads the counter from the front of a batch in a log file.
func batchCounter(rec, key []byte) (uint64, error) {
	const set = 1
	if len(rec) < counterAt+counterLen || rec[12] != set || int(rec[13]) != len(key) ||
		string(rec[14:14+len(key)]) != string(key) || rec[counterAt-1] != counterLen {
		return 0, fmt.Errorf("a batch of %d bytes that this program did not write", len(rec))
	}
	return decodeCounter(key, rec[counterAt:counterAt+counterLen])
}

// newerLog tells whether a file begins with a chunk of a later log than its own.
func newerLog(data []byte, limit int, num uint32) bool {
	if num == 0 || limit < recycleHeaderLen {
		return false
	}
	n := binary.LittleEndian.Uint32(data[7:])
	if n <= num {
		return false
	}
	c, ok := frame(data, 0, limit, n)
	return ok && c.length > 0
}

// nextRecord finds the next good beginning of a record from pos on; false if
// there is none.
func nextRecord(data []byte, num uint32, pos int) (int, bool) {
	for ; pos+syncHeaderLen <= len(data); pos++ {
		if kind := data[pos+6]; kind != 9 && kind != 10 || binary.LittleEndian.Uint32(data[pos+7:]) != num {
			continue
		}
		limit := min((pos/blockLen+1)*blockLen, len(data))
		if c, ok := frame(data, pos, limit, num); ok && c.first && c.length > 0 {
			return pos, true
		}
	}
	return 0, false
}
