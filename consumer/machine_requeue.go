package consumer

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// requeue builds all queues anew, after the mode or what parks a key changed. It
// holds some 30 bytes for each message on disk while it does.
func (g *group) requeue() {
	var live []int32
	for i := range g.entries {
		if g.entries[i].at != vacant {
			live = append(live, int32(i))
		}
	}
	slices.SortFunc(live, func(a, b int32) int {
		return cmp.Compare(g.entries[a].offset, g.entries[b].offset)
	})
	var onDisk []queuedMessage
	g.eachQueued(func(o partition.Offset, ms []queuedMessage, e *entry) {
		if e != nil {
			ms = []queuedMessage{{offset: o, size: hasState}}
		}
		onDisk = append(onDisk, ms...)
	})
	slices.SortFunc(onDisk, func(a, b queuedMessage) int { return cmp.Compare(a.offset, b.offset) })
	blockers := g.takeBlockers()
	g.clearDisk()
	g.keys, g.keyGap, g.parking = nil, nil, 0
	g.hashes.clear()
	if g.policy.OnExhaustion == Park && g.policy.Mode != NoOrder {
		for _, o := range blockers {
			row, ok, err := g.rows.dead(o)
			g.fault(err)
			if ok && !row.replaying {
				key, _ := g.keyOf(row.keyHash)
				g.block(key, o)
			}
		}
	}
	// First what is out, so that nothing before it takes its key for free.
	for _, i := range live {
		e := &g.entries[i]
		e.key, e.next = none, none
		if hash, keyed := g.keyOf(e.keyHash); keyed && e.at == inFlight {
			g.keys[g.openKey(hash)].inFlight++
		}
	}
	for len(live) > 0 || len(onDisk) > 0 {
		if len(live) == 0 || len(onDisk) > 0 && onDisk[0].offset < g.entries[live[0]].offset {
			g.placeAgain(onDisk[0])
			onDisk = onDisk[1:]
			continue
		}
		i := live[0]
		live = live[1:]
		switch g.entries[i].at {
		case ready, parked:
			g.stand(i, deferred)
		default:
		}
		g.enqueue(i)
		g.settleIn(i)
	}
	if g.hand != nil {
		g.hand.reserved.clear() // by the keys of the mode before
		g.hand.rebuild()
	}
}

// hasState is the size, while queues are built anew, of a message that has a row
// of its own.
const hasState = ^uint32(0)

// placeAgain puts a message that was on disk where it belongs now.
func (g *group) placeAgain(m queuedMessage) {
	if m.size != hasState {
		if !g.queued(m) {
			i := g.enter(m.offset, m.hash, m.size)
			g.enqueue(i)
			g.settleIn(i)
		}
		return
	}
	if e, ok := g.unsettledOnDisk(m.offset); ok {
		g.deleteQueueRow(m.offset)
		i := g.enterAgain(e)
		g.enqueue(i)
		g.settleIn(i)
	}
}

// takeBlockers lists the dead letters that park a key.
func (g *group) takeBlockers() (os []partition.Offset) {
	for i := range g.keys {
		os = append(os, g.keys[i].blockers...)
	}
	if g.cold > 0 {
		var bad error
		g.fault(g.rows.Scan(g.rows.prefix(rowBlocked), nil, func(k, v []byte) bool {
			var ks keyState
			if ks, bad = decodeKey(k, v); ks.cold {
				os = append(os, ks.blockers...)
			}
			return bad == nil
		}))
		g.fault(bad)
	}
	slices.Sort(os)
	return os
}

// forgetQueued removes all rows of messages on disk.
func (g *group) forgetQueued() {
	g.tails = tails{}
	var keys [][]byte
	g.fault(g.rows.Scan(g.rows.prefix(rowQueue), nil, func(k, _ []byte) bool {
		keys = append(keys, bytes.Clone(k))
		return true
	}))
	for _, k := range keys {
		g.rows.Delete(k)
	}
}

// clearDisk removes the rows of all keys, of all that waits on disk and of what
// wants to come back from there, but not those of messages with a state.
func (g *group) clearDisk() {
	g.tails = tails{}
	var keys [][]byte
	for _, kind := range []byte{rowBlocked, rowQueue, rowWake} {
		g.fault(g.rows.Scan(g.rows.prefix(kind), nil, func(k, v []byte) bool {
			if kind != rowQueue || v[0] != queueWhole {
				keys = append(keys, bytes.Clone(k))
			}
			return true
		}))
	}
	for _, k := range keys {
		g.rows.Delete(k)
	}
	g.disk = [standings]uint64{}
	g.loose, g.cold, g.wakes, g.timed, g.filter = queue{}, 0, 0, 0, keyFilter{}
	g.soiled = nil
}
