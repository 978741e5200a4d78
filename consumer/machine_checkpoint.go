package consumer

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// sweepRows is how many rows that nobody needs one checkpoint removes.
const sweepRows = 10_000

// NewApp restores the groups of a partition from its rows.
func NewApp(id partition.PartitionID, rows partition.Rows) (*App, error) {
	return newApp(id, rows, bounds{messages: memoryMessages, ofKey: memoryOfKey, row: rowMessages})
}

func newApp(id partition.PartitionID, rows partition.Rows, most bounds) (*App, error) {
	a := &App{id: id, rows: rows, bounds: most}
	var bad error
	err := rows.Scan([]byte{rowGroup}, nil, func(k, v []byte) bool {
		g := newGroup(GroupID(lastOffset(k)), id, rows, most)
		if bad = g.decode(k, v); bad != nil {
			return false
		}
		a.groups = append(a.groups, g)
		return true
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return nil, err
	}
	err = rows.Scan([]byte{rowGone}, nil, func(k, _ []byte) bool {
		a.deleted = append(a.deleted, GroupID(lastOffset(k)))
		return true
	})
	if err != nil {
		return nil, err
	}
	for _, g := range a.groups {
		if err := g.restore(); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Checkpoint writes what changed since the last one to the rows. What came and
// went in between was never written: a message that is acked in time costs no
// row at all.
func (a *App) Checkpoint() error {
	for _, g := range a.groups {
		if err := g.checkpoint(); err != nil {
			return err
		}
	}
	for len(a.deleted) > 0 {
		id := a.deleted[0]
		all, err := sweep(a.rows, binary.BigEndian.AppendUint64([]byte{rowOf}, uint64(id)), nil)
		if err != nil {
			return err
		}
		if !all {
			break
		}
		a.rows.Delete(groupKey(rowGone, id))
		a.deleted = a.deleted[1:]
	}
	return nil
}

// sweep removes rows of a prefix below an end (nil: all of them), and tells
// whether it came to the end.
func sweep(rows partition.Rows, prefix, end []byte) (all bool, err error) {
	var keys [][]byte
	all = true
	err = rows.Scan(prefix, nil, func(k, _ []byte) bool {
		if end != nil && bytes.Compare(k, end) >= 0 {
			return false
		}
		if len(keys) == sweepRows {
			all = false
			return false
		}
		keys = append(keys, bytes.Clone(k))
		return true
	})
	if err != nil {
		return false, err
	}
	for _, k := range keys {
		rows.Delete(k)
	}
	return all, nil
}

func (g *group) checkpoint() error {
	if g.sweep {
		all, err := sweep(g.rows, g.rows.prefix(rowSettled), g.rows.key2(rowSettled, g.epoch, 0))
		if err != nil {
			return err
		}
		g.sweep = !all
	}
	if g.kept > g.start {
		// Nobody can settle what retention removed, or ask what became of it; but
		// an answer may have been lost on its way.
		_, err := sweep(g.rows, g.rows.key(rowSettled, partition.Offset(g.epoch)), g.rows.key2(rowSettled, g.epoch, g.answers()))
		if err == nil {
			_, err = sweep(g.rows, g.rows.prefix(rowSkipped), g.rows.key(rowSkipped, g.answers()))
		}
		if err == nil {
			_, err = sweep(g.rows, g.rows.prefix(rowVoid), g.rows.key(rowVoid, g.kept))
		}
		if err == nil {
			_, err = sweep(g.rows, g.rows.prefix(rowUncharged), g.rows.key(rowUncharged, g.kept))
		}
		if err != nil {
			return err
		}
	}
	g.putTails()
	g.tails = tails{}
	for _, o := range g.gone {
		g.rows.del(rowEntry, o)
	}
	g.gone = g.gone[:0]
	for _, i := range g.touched {
		g.touching[i] = false
		if e := &g.entries[i]; e.at != vacant {
			g.rows.Put(g.rows.key(rowEntry, e.offset), g.encodeEntry(e))
			e.stored = true
		}
	}
	g.touched = g.touched[:0]
	for _, hash := range g.soiled {
		if k, ok := g.hashes.find(hash); ok && g.keys[k].soiled {
			g.keys[k].soiled = false
			g.putKey(&g.keys[k])
		}
	}
	g.soiled = g.soiled[:0]
	g.rows.Put(groupKey(rowGroup, g.id), g.encode())
	g.shrink()
	return nil
}

func (g *group) encode() []byte {
	b := append(make([]byte, 0, 192), groupRowVersion)
	b = appendString(b, g.name)
	b = appendPolicy(b, g.policy)
	b = appendBool(b, g.paused)
	b = appendBool(b, g.sweep)
	for _, v := range []uint64{
		uint64(g.start), uint64(g.scanned), uint64(g.kept), g.epoch, g.handOuts, uint64(g.clock),
		g.dead, g.acked, g.skipped, g.expired, g.handedOut, g.retried, g.ahead, g.again, g.replaying,
		uint64(g.leapt), g.wakes, g.timed, g.disk[failed], g.disk[ready], g.disk[deferred], g.disk[parked],
	} {
		b = binary.AppendUvarint(b, v)
	}
	return g.outcomes.append(g.appendBreaker(appendQueue(b, &g.loose)))
}

func (g *group) decode(key, v []byte) error {
	r := reader{b: v}
	version := r.versions("delivery row", rowVersion, groupRowVersion)
	g.name, g.policy, g.paused, g.sweep = r.string(), r.policy(), r.bool(), r.bool()
	g.start, g.scanned, g.kept = partition.Offset(r.uvarint()), partition.Offset(r.uvarint()), partition.Offset(r.uvarint())
	g.epoch, g.handOuts, g.clock = r.uvarint(), r.uvarint(), partition.Millis(r.uvarint())
	g.dead, g.acked, g.skipped, g.expired = r.uvarint(), r.uvarint(), r.uvarint(), r.uvarint()
	g.handedOut, g.retried, g.ahead, g.again = r.uvarint(), r.uvarint(), r.uvarint(), r.uvarint()
	g.replaying = r.uvarint()
	g.leapt, g.wakes, g.timed = r.time(), r.uvarint(), r.uvarint()
	g.disk[failed], g.disk[ready], g.disk[deferred], g.disk[parked] = r.uvarint(), r.uvarint(), r.uvarint(), r.uvarint()
	g.loose = r.queue()
	g.breaker = r.breaker()
	if version >= 2 {
		g.outcomes = r.outcomes()
	}
	if why := r.finish(); why != "" {
		return r.ofRow(key, why)
	}
	return nil
}

const (
	entryReplayed byte = 1 << iota
	entryHistory
	entryHeld   // in flight
	entryFailed // waits for its next attempt
)

func (g *group) encodeEntry(e *entry) []byte {
	var flags byte
	if e.replayed {
		flags |= entryReplayed
	}
	if e.history {
		flags |= entryHistory
	}
	switch e.at {
	case inFlight:
		flags |= entryHeld
	case failed:
		flags |= entryFailed
	default:
	}
	b := append(make([]byte, 0, 64), rowVersion, flags, byte(e.last))
	b = binary.LittleEndian.AppendUint64(b, e.keyHash)
	b = binary.AppendUvarint(b, uint64(e.size))
	b = binary.AppendUvarint(b, e.handOut)
	if e.handOut == 0 {
		return b
	}
	b = binary.AppendUvarint(b, uint64(e.attempts))
	b = binary.AppendUvarint(b, uint64(e.ordinal))
	b = binary.AppendUvarint(b, e.session)
	b = binary.LittleEndian.AppendUint64(b, e.request)
	b = binary.AppendVarint(b, int64(e.handedAt))
	b = binary.AppendVarint(b, int64(e.until))
	b = binary.AppendVarint(b, int64(e.firstSeen))
	if e.at == inFlight {
		b = appendString(b, g.members[e.member].name)
	}
	return b
}

// decodeEntry reads an entry; at is inFlight, failed or deferred, and the
// holder's name is given where there is one.
func decodeEntry(key, v []byte) (e entry, holder string, err error) {
	r := reader{b: v}
	r.version("delivery row", rowVersion)
	flags := r.byte()
	e = entry{
		offset: lastOffset(key), last: ending(r.byte()), keyHash: r.fixed64(), size: r.uint32(), handOut: r.uvarint(),
		key: none, next: none, member: none, prevHeld: none, nextHeld: none, at: deferred,
		replayed: flags&entryReplayed != 0, history: flags&entryHistory != 0, stored: true,
	}
	if e.handOut > 0 {
		e.attempts, e.ordinal, e.session, e.request = r.uint32(), r.uint32(), r.uvarint(), r.fixed64()
		e.handedAt, e.until, e.firstSeen = partition.Millis(r.varint()), partition.Millis(r.varint()), partition.Millis(r.varint())
	}
	switch flags & (entryHeld | entryFailed) {
	case 0:
	case entryHeld:
		e.at, holder = inFlight, r.string()
		if e.handOut == 0 || e.attempts == 0 {
			r.fail("held, and never handed out")
		}
	case entryFailed:
		e.at = failed
	default:
		r.fail("held and failed")
	}
	if flags >= entryFailed<<1 || e.last > byRelease {
		r.fail("unknown flags")
	}
	if why := r.finish(); why != "" {
		return entry{}, "", r.ofRow(key, why)
	}
	return e, holder, nil
}

// restore reads what a group has besides its own row.
func (g *group) restore() error {
	var bad error
	scan := func(kind byte, fn func(k []byte, r *reader)) error {
		if bad != nil {
			return bad
		}
		err := g.rows.Scan(g.rows.prefix(kind), nil, func(k, v []byte) bool {
			r := reader{b: v}
			fn(k, &r)
			if why := r.finish(); why != "" && bad == nil {
				bad = r.ofRow(k, why)
			}
			return bad == nil
		})
		if err != nil {
			return err
		}
		return bad
	}
	at := len(g.rows.prefix(rowMember))
	err := scan(rowMember, func(k []byte, r *reader) {
		m := g.memberOf(string(k[at:]))
		g.members[m].sessions = r.uvarint()
		g.ended++
	})
	if err != nil {
		return err
	}
	err = scan(rowBlocked, func(k []byte, r *reader) {
		ks, err := decodeKey(k, r.b)
		r.b = nil
		if err != nil {
			bad = err
			return
		}
		if len(ks.blockers) > 0 {
			g.parking++
		}
		if ks.cold {
			g.cold++
			g.filter.add(ks.hash)
			return
		}
		n := g.newKey(ks.hash)
		g.keys[n] = ks
	})
	if err != nil {
		return err
	}
	var held []int32
	err = scan(rowEntry, func(k []byte, r *reader) {
		e, holder, err := decodeEntry(k, r.b)
		r.b = nil
		if err != nil {
			bad = err
			return
		}
		i := g.enter(e.offset, e.keyHash, e.size)
		at := e.at
		e.at = deferred
		g.entries[i] = e
		g.stand(i, at)
		if at == inFlight {
			g.entries[i].member = g.memberOf(holder)
			held = append(held, i)
		}
	})
	if err != nil {
		return err
	}
	slices.SortFunc(held, func(a, b int32) int {
		if g.entries[a].handOut < g.entries[b].handOut {
			return -1
		}
		return 1
	})
	for _, i := range held {
		g.hold(i, g.entries[i].member)
		if hash, keyed := g.keyOf(g.entries[i].keyHash); keyed {
			g.keys[g.openKey(hash)].inFlight++
		}
	}
	for i := range g.entries {
		g.enqueue(int32(i))
	}
	g.firstWake, g.wakeGone = 0, true
	if g.broken != nil {
		return g.broken
	}
	for _, i := range g.touched {
		g.touching[i] = false
	}
	g.touched = g.touched[:0]
	return nil
}
