package partition

import (
	"encoding/binary"
	"fmt"

	"github.com/strandmq/strandmq/internal/format"
)

// A log entry's payload: what one turn of the host gathered for a partition,
// of one kind.
//
//	┌──────┬─────┬───────── item ──────────┬─ item … ─┐
//	│ kind │ ver │ proposal id u64 │ n u32 │ n bytes  │
//	└──────┴─────┴─────────────────────────┴──────────┘
//
// The proposal id finds the caller that waits, on the node where it was
// proposed; elsewhere, and after a restart, nobody waits for it. An entry
// without payload is the one with which a leader begins its term.
// docs/format/log-entry.md draws it in full.
const (
	entryVersion    byte = 1
	entryHeaderLen       = 2
	itemHeaderLen        = 8 + 4
	maxEntryBytes        = 8 << 20
	maxCommandBytes      = 4 << 20
)

// beginEntry starts a payload in dst.
func beginEntry(dst []byte, kind EntryKind) []byte {
	return append(dst, byte(kind), entryVersion)
}

// appendItem adds one batch or command.
func appendItem(dst []byte, id uint64, payload []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, id)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(payload)))
	return append(dst, payload...)
}

// items walks an entry's payload.
type items struct {
	kind EntryKind
	data []byte
	at   int
}

// item is one batch or command of an entry.
type item struct {
	id   uint64
	at   int    // where data begins in the entry's payload
	data []byte // aliases the payload
}

// openEntry checks a payload's head. An empty payload has no items.
func openEntry(data []byte) (items, error) {
	if len(data) == 0 {
		return items{}, nil
	}
	if len(data) < entryHeaderLen {
		return items{}, fmt.Errorf("a payload of %d bytes is shorter than its head", len(data))
	}
	// The version comes first: a newer one may have other kinds.
	if err := format.Check("log entry", uint64(data[1]), uint64(entryVersion)); err != nil {
		return items{}, err
	}
	if data[1] != entryVersion {
		return items{}, fmt.Errorf("unknown format %d of entry", data[1])
	}
	k := EntryKind(data[0])
	if k != Batches && k != Command && k != Trim {
		return items{}, fmt.Errorf("unknown kind %d of entry", data[0])
	}
	return items{kind: k, data: data, at: entryHeaderLen}, nil
}

// next returns the next item; false at the end.
func (it *items) next() (item, bool, error) {
	if it.at >= len(it.data) {
		return item{}, false, nil
	}
	x, err := itemAt(it.data, it.at+itemHeaderLen)
	if err != nil {
		return item{}, false, err
	}
	it.at = x.at + len(x.data)
	return x, true, nil
}

// itemAt returns the item whose data begins at a place in a payload.
func itemAt(data []byte, at int) (item, error) {
	if at < entryHeaderLen+itemHeaderLen || at > len(data) {
		return item{}, fmt.Errorf("no item at byte %d of a payload of %d", at, len(data))
	}
	id := binary.LittleEndian.Uint64(data[at-itemHeaderLen:])
	n := binary.LittleEndian.Uint32(data[at-4:])
	if uint64(n) > uint64(len(data)-at) {
		return item{}, fmt.Errorf("an item of %d bytes at byte %d of a payload of %d", n, at, len(data))
	}
	return item{id: id, at: at, data: data[at : at+int(n) : at+int(n)]}, nil
}
