package consumer

import (
	"encoding/binary"

	"github.com/strandmq/strandmq/partition"
)

// The rows of a partition's groups; docs/format/delivery.md draws them.
//
//	'g' group                              the group: policy, position, counters
//	't' group                              a deleted group whose rows are being removed
//	'r' group 'e' offset                   an unsettled message
//	'r' group 'h' offset                   its failed attempts
//	'r' group 'd' offset                   a dead letter
//	'r' group 'k' key hash, offset         the same, found by its key
//	'r' group 'c' offset                   a copy of its message, which the log does not keep any more
//	'r' group 'i' id hash, offset          the same, found by its message id
//	'r' group 'l'                          what retention took, and how much is copied
//	'r' group 'b' key hash                 what parks a key, and its queue on disk
//	'r' group 'q' first offset             messages of a queue on disk
//	'r' group 'u' offset, index            a failure in that entry that was not charged: the circuit was open
//	'r' group 'w' time, first offset       a key, or a message of none, that wants to come back to memory
//	'r' group 'x' epoch, offset            acked, but not by its first hand-out
//	'r' group 's' last offset              a run of messages that were skipped
//	'r' group 'm' member                   sessions that ended
//	'r' group 'v' last offset, index       a run of messages with which that entry did nothing
//	'r' group 'p' index                    the policy from that entry on
//
// Numbers in keys are big endian, so that rows stand in order.
const (
	rowGroup byte = 'g'
	rowGone  byte = 't'
	rowOf    byte = 'r'

	rowEntry   byte = 'e'
	rowHistory byte = 'h'
	rowDead    byte = 'd'
	rowDeadKey byte = 'k'
	rowCopy    byte = 'c'
	rowCopyID  byte = 'i'
	rowKeeping byte = 'l'
	rowBlocked byte = 'b'
	rowQueue   byte = 'q'
	rowWake    byte = 'w'

	rowUncharged byte = 'u'
	rowSettled   byte = 'x'
	rowSkipped   byte = 's'
	rowMember    byte = 'm'
	rowVoid      byte = 'v'
	rowPolicy    byte = 'p'
)

const rowVersion = 1

// groupRowVersion is of the group's own row, and with it of all the group has. Of 1,
// nothing is known of how hand-outs ended.
const groupRowVersion = 2

// rowsOf is the rows of one group.
type rowsOf struct {
	partition.Rows
	group GroupID
}

func groupKey(kind byte, g GroupID) []byte {
	return binary.BigEndian.AppendUint64([]byte{kind}, uint64(g))
}

func (r rowsOf) prefix(kind byte) []byte {
	k := make([]byte, 0, 40)
	k = append(k, rowOf)
	k = binary.BigEndian.AppendUint64(k, uint64(r.group))
	return append(k, kind)
}

func (r rowsOf) key(kind byte, o partition.Offset) []byte {
	return binary.BigEndian.AppendUint64(r.prefix(kind), uint64(o))
}

func (r rowsOf) key2(kind byte, a uint64, o partition.Offset) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(r.prefix(kind), a), uint64(o))
}

func (r rowsOf) del(kind byte, o partition.Offset) { r.Delete(r.key(kind, o)) }

// lastOffset is the offset that a row's key ends with.
func lastOffset(key []byte) partition.Offset {
	return partition.Offset(binary.BigEndian.Uint64(key[len(key)-8:]))
}

// Acked, but not by the first hand-out.

func (r rowsOf) putException(epoch uint64, o partition.Offset, ordinal uint32) {
	r.Put(r.key2(rowSettled, epoch, o), binary.AppendUvarint(nil, uint64(ordinal)))
}

// ackedBy is which hand-out of a message an ack settled: the first, unless a
// row says another.
func (r rowsOf) ackedBy(epoch uint64, o partition.Offset) (ordinal uint32, err error) {
	key := r.key2(rowSettled, epoch, o)
	v, err := r.Get(key)
	if err != nil || v == nil {
		return 1, err
	}
	d := reader{b: v}
	ordinal = d.uint32()
	if why := d.finish(); why != "" {
		return 0, d.ofRow(key, why)
	}
	return ordinal, nil
}

// Skipped.

// cause is why messages were skipped.
type cause byte

const (
	byReset   cause = 1
	byDiscard cause = 2
	_         cause = 3 // by retention, once: such runs were never needed
)

// run is messages that were skipped, first to last. Its key is its last offset,
// so that the run that holds an offset is the first one from there on.
type run struct {
	first, last partition.Offset
	why         cause
}

func (r rowsOf) putRun(s run) {
	r.Put(r.key(rowSkipped, s.last), binary.AppendUvarint([]byte{byte(s.why)}, uint64(s.last-s.first)))
}

// runs lists the runs that hold an offset or a later one.
func (r rowsOf) runs(from partition.Offset, max int) (rs []run, err error) {
	var bad error
	err = r.Scan(r.prefix(rowSkipped), r.key(rowSkipped, from), func(k, v []byte) bool {
		d := reader{b: v}
		s := run{last: lastOffset(k), why: cause(d.byte())}
		n := d.uvarint()
		if n > uint64(s.last) {
			d.fail("a run from before the log")
		}
		s.first = s.last - partition.Offset(n)
		if why := d.finish(); why != "" {
			bad = d.ofRow(k, why)
			return false
		}
		rs = append(rs, s)
		return len(rs) < max
	})
	if err == nil {
		err = bad
	}
	return rs, err
}

// skippedAt tells whether and why a message was skipped.
func (r rowsOf) skippedAt(o partition.Offset) (why cause, ok bool, err error) {
	rs, err := r.runs(o, 1)
	if err != nil || len(rs) == 0 || rs[0].first > o {
		return 0, false, err
	}
	return rs[0].why, true, nil
}

// Members.

func (r rowsOf) memberKey(name string) []byte { return append(r.prefix(rowMember), name...) }

func (r rowsOf) putMember(m *member) {
	r.Put(r.memberKey(m.name), binary.AppendUvarint(nil, m.sessions))
}

func (r rowsOf) dropMember(name string) { r.Delete(r.memberKey(name)) }

// Attempts.

const maxHistory = 32

func appendAttempts(b []byte, as []Attempt) []byte {
	b = binary.AppendUvarint(b, uint64(len(as)))
	for _, a := range as {
		b = binary.AppendUvarint(b, uint64(a.Attempt))
		b = binary.AppendVarint(b, int64(a.HandedOut))
		b = binary.AppendVarint(b, int64(a.Ended-a.HandedOut))
		b = appendString(b, a.Member)
		b = appendString(b, a.Outcome)
		b = appendString(b, a.Reason)
	}
	return b
}

func (r *reader) attempts() []Attempt {
	n := r.count(6)
	as := make([]Attempt, 0, n)
	for range n {
		a := Attempt{Attempt: r.uint32(), HandedOut: partition.Millis(r.varint())}
		a.Ended = a.HandedOut + partition.Millis(r.varint())
		a.Member, a.Outcome, a.Reason = r.string(), r.string(), r.string()
		as = append(as, a)
	}
	return as
}

func lastAttempts(as []Attempt) []Attempt {
	if n := len(as); n > maxHistory {
		as = as[n-maxHistory:]
	}
	return as
}

func (r rowsOf) history(o partition.Offset) ([]Attempt, error) {
	key := r.key(rowHistory, o)
	v, err := r.Get(key)
	if err != nil || v == nil {
		return nil, err
	}
	d := reader{b: v}
	as := d.attempts()
	if why := d.finish(); why != "" {
		return nil, d.ofRow(key, why)
	}
	return as, nil
}

// Dead letters.

// deadRow is a dead letter as it is stored. The message itself stays where it
// is in the log, until retention passes it.
type deadRow struct {
	keyHash   uint64
	size      uint32
	attempts  uint32
	ordinal   uint32
	handOut   uint64
	firstSeen partition.Millis
	deadSince partition.Millis
	last      ending
	replaying bool
	history   []Attempt
}

const deadReplaying byte = 1

func (d *deadRow) encode() []byte {
	var flags byte
	if d.replaying {
		flags |= deadReplaying
	}
	b := append(make([]byte, 0, 64), rowVersion, flags)
	b = binary.LittleEndian.AppendUint64(b, d.keyHash)
	b = binary.AppendUvarint(b, uint64(d.size))
	b = binary.AppendUvarint(b, uint64(d.attempts))
	b = binary.AppendUvarint(b, uint64(d.ordinal))
	b = binary.AppendUvarint(b, d.handOut)
	b = binary.AppendVarint(b, int64(d.firstSeen))
	b = binary.AppendVarint(b, int64(d.deadSince))
	b = append(b, byte(d.last))
	return appendAttempts(b, d.history)
}

func decodeDead(key, v []byte) (deadRow, error) {
	r := reader{b: v}
	r.version("delivery row", rowVersion)
	flags := r.byte()
	if flags&^deadReplaying != 0 {
		r.fail("unknown flags")
	}
	d := deadRow{
		replaying: flags&deadReplaying != 0,
		keyHash:   r.fixed64(), size: r.uint32(), attempts: r.uint32(), ordinal: r.uint32(), handOut: r.uvarint(),
		firstSeen: partition.Millis(r.varint()), deadSince: partition.Millis(r.varint()), last: ending(r.byte()),
		history: r.attempts(),
	}
	if why := r.finish(); why != "" {
		return deadRow{}, r.ofRow(key, why)
	}
	return d, nil
}

func (r rowsOf) dead(o partition.Offset) (d deadRow, ok bool, err error) {
	key := r.key(rowDead, o)
	v, err := r.Get(key)
	if err != nil || v == nil {
		return deadRow{}, false, err
	}
	d, err = decodeDead(key, v)
	return d, err == nil, err
}

func (r rowsOf) putDead(o partition.Offset, d *deadRow) {
	r.Put(r.key(rowDead, o), d.encode())
	r.Put(r.key2(rowDeadKey, d.keyHash, o), []byte{rowVersion})
}

func (r rowsOf) dropDead(o partition.Offset, keyHash uint64) {
	r.del(rowDead, o)
	r.Delete(r.key2(rowDeadKey, keyHash, o))
}
