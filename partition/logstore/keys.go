package logstore

import "encoding/binary"

// FormatVersion is the version of everything this package writes: the key
// layout, the values, the witness. A store of a newer version is refused.
const FormatVersion = 1

// keyFormat is the first byte of every key. A later layout takes another byte,
// so that old and new rows can live side by side while they are rewritten.
const keyFormat byte = 0x01

// Namespace is the kind of row, the second byte of a key. Entries come last on
// purpose: everything before them is small and read often, and keeps its
// values in the tables; entries are large and have theirs set apart.
type Namespace byte

// Namespaces of rows that the caller lays out.
const (
	Offsets   Namespace = 0x20 // offset index: what is applied of the message log
	IDs       Namespace = 0x21 // message ids, for duplicates
	Producers Namespace = 0x22 // producer sequences, for duplicates
	AppRows   Namespace = 0x23 // rows of the state attached to the log
)

// Namespaces of rows that this package lays out.
const (
	nsStore     Namespace = 0x01 // of the whole store; partition 0
	nsBase      Namespace = 0x10 // where a log begins
	nsHardState Namespace = 0x11
	nsMeta      Namespace = 0x12 // one byte of name
	nsEntry     Namespace = 0x40 // index, 8 bytes
)

// String prints a namespace's name.
func (ns Namespace) String() string {
	switch ns {
	case Offsets:
		return "offset index"
	case IDs:
		return "message ids"
	case Producers:
		return "producers"
	case AppRows:
		return "app rows"
	case nsStore:
		return "store"
	case nsBase:
		return "base"
	case nsHardState:
		return "hard state"
	case nsMeta:
		return "meta"
	case nsEntry:
		return "entries"
	}
	return "unknown namespace"
}

// rows tells whether the namespace is the caller's to lay out.
func (ns Namespace) rows() bool { return ns >= Offsets && ns <= AppRows }

// perPartition lists the namespaces that hold a partition's rows.
func perPartition() [8]Namespace {
	return [8]Namespace{nsBase, nsHardState, nsMeta, Offsets, IDs, Producers, AppRows, nsEntry}
}

const (
	prefixLen   = 1 + 1 + 8
	entryKeyLen = prefixLen + 8
)

// Rows of the store itself, by the byte behind the prefix.
const (
	storeRowIdentity byte = 1
	storeRowCounter  byte = 2
	storeRowScrub    byte = 3
)

// appendPrefix appends the part that all keys of a partition's namespace share.
func appendPrefix(dst []byte, ns Namespace, p uint64) []byte {
	dst = append(dst, keyFormat, byte(ns))
	return binary.BigEndian.AppendUint64(dst, p)
}

func appendKey(dst []byte, ns Namespace, p uint64, key []byte) []byte {
	return append(appendPrefix(dst, ns, p), key...)
}

func appendEntryKey(dst []byte, p, index uint64) []byte {
	return binary.BigEndian.AppendUint64(appendPrefix(dst, nsEntry, p), index)
}

// appendPrefixEnd appends the first key behind a partition's namespace.
func appendPrefixEnd(dst []byte, ns Namespace, p uint64) []byte {
	if p+1 == 0 {
		return append(dst, keyFormat, byte(ns)+1)
	}
	return appendPrefix(dst, ns, p+1)
}

// counterKey is the key of the batch counter. It is the first row of every
// batch, at a fixed place, so that a log can be read back without decoding
// whole batches.
func counterKey() []byte { return append(appendPrefix(nil, nsStore, 0), storeRowCounter) }

func identityKey() []byte { return append(appendPrefix(nil, nsStore, 0), storeRowIdentity) }

// decodedKey is a key taken apart as far as it can be.
type decodedKey struct {
	ns        Namespace
	partition uint64
	rest      []byte
	index     uint64 // of an entry
}

// decodeKey takes a key apart. It reports false for a key that no row has.
func decodeKey(k []byte) (decodedKey, bool) {
	if len(k) < prefixLen || k[0] != keyFormat {
		return decodedKey{}, false
	}
	d := decodedKey{ns: Namespace(k[1]), partition: binary.BigEndian.Uint64(k[2:]), rest: k[prefixLen:]}
	switch {
	case d.ns == nsEntry:
		if len(d.rest) != 8 {
			return decodedKey{}, false
		}
		d.index = binary.BigEndian.Uint64(d.rest)
	case d.ns == nsStore, d.ns == nsMeta:
		if len(d.rest) != 1 {
			return decodedKey{}, false
		}
	case d.ns == nsBase, d.ns == nsHardState:
		if len(d.rest) != 0 {
			return decodedKey{}, false
		}
	case !d.ns.rows():
		return decodedKey{}, false
	}
	return d, true
}
