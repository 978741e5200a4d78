package consumer

import (
	"fmt"

	"github.com/strandmq/strandmq/partition"
)

// soundDisk checks what waits on disk: every queue is linked and in order, holds
// what is counted, stands behind what waits in memory, and nothing is left over.
func (g *group) soundDisk() (parking, replaying uint64, bad error) {
	var disk [standings]uint64
	rows := map[partition.Offset]bool{}
	whole := map[partition.Offset]bool{}
	g.eachQueued(func(row partition.Offset, _ []queuedMessage, e *entry) {
		rows[row] = true
		if e != nil {
			whole[row] = true
			if e.replayed {
				replaying++
			}
		}
	})
	listed := uint64(0) // messages in queues
	check := func(name string, ks *keyState) error {
		q := ks.queue
		if q.n == 0 {
			if q != (queue{}) {
				return fmt.Errorf("%s: an empty queue is %+v", name, q)
			}
			return nil
		}
		var got queue
		var last partition.Offset
		var tail uint32
		for o := q.first; ; {
			key, r := g.queueRow(o)
			if g.broken != nil {
				return g.broken
			}
			if !rows[o] {
				return fmt.Errorf("%s: row %d is in two queues", name, o)
			}
			delete(rows, o)
			ms := []queuedMessage{{offset: o}}
			failedToo := false
			tail = 0
			if r.kind == queueWhole {
				e, _ := g.entryOf(key, r)
				failedToo = e.at == failed
			} else {
				ms, _ = r.messages(key)
				tail = uint32(len(ms))
			}
			for _, m := range ms {
				if got.n > 0 && m.offset <= last {
					return fmt.Errorf("%s: %d behind %d", name, m.offset, last)
				}
				last = m.offset
				got.n++
				switch {
				case failedToo:
					got.failed++
				case ks.blocked(m.offset):
					got.parked++
				}
			}
			got.last = o
			if r.next == 0 {
				break
			}
			o = r.next
		}
		got.first, got.end, got.tail = q.first, last, tail
		if q.tail == 0 {
			got.tail = 0
		}
		if got != q {
			return fmt.Errorf("%s: the queue is %+v, noted %+v", name, got, q)
		}
		listed += q.n
		disk[failed] += q.failed
		disk[parked] += q.parked
		disk[deferred] += q.n - q.failed - q.parked
		return nil
	}
	for k := range g.keys {
		ks := &g.keys[k]
		if ks.head == none && len(ks.blockers) == 0 {
			if ks.queue.n > 0 {
				return 0, 0, fmt.Errorf("key %x has messages on disk and is not known", ks.hash)
			}
			continue
		}
		if ks.cold {
			return 0, 0, fmt.Errorf("key %x is in memory and on the shelf", ks.hash)
		}
		if ks.head == none && ks.queue.n > 0 {
			return 0, 0, fmt.Errorf("key %x has messages on disk only", ks.hash)
		}
		for i := ks.head; i != none; i = g.entries[i].next {
			if e := &g.entries[i]; ks.queue.n > 0 && e.at != inFlight && e.offset >= ks.queue.first {
				return 0, 0, fmt.Errorf("message %d of key %x waits in memory behind %d on disk", e.offset, ks.hash, ks.queue.first)
			}
		}
		if err := check(fmt.Sprintf("key %x", ks.hash), ks); err != nil {
			return 0, 0, err
		}
	}
	cold, wakes := uint64(0), uint64(0)
	if err := g.rows.Scan(g.rows.prefix(rowBlocked), nil, func(k, v []byte) bool {
		ks, err := decodeKey(k, v)
		if err != nil {
			bad = err
			return false
		}
		if !ks.cold {
			return true
		}
		cold++
		if !g.filter.may(ks.hash) {
			bad = fmt.Errorf("the filter does not know key %x", ks.hash)
			return false
		}
		if len(ks.blockers) > 0 {
			parking++
		}
		if _, ok := g.hashes.find(ks.hash); ok {
			bad = fmt.Errorf("key %x is on the shelf and in memory", ks.hash)
			return false
		}
		if bad = check(fmt.Sprintf("key %x on the shelf", ks.hash), &ks); bad != nil {
			return false
		}
		if ks.headReady {
			disk[ready]++
			disk[deferred]--
		}
		if ks.wants.timed != (ks.queue.n > 0 && !ks.blocked(ks.queue.first)) {
			bad = fmt.Errorf("key %x on the shelf: wants to come back %v", ks.hash, ks.wants)
			return false
		}
		if ks.wants.timed {
			wakes++
			if hash, keyed, ok := g.wakeRow(ks.wants.at, ks.queue.first); !ok || !keyed || hash != ks.hash {
				bad = fmt.Errorf("key %x on the shelf has no time to come back", ks.hash)
				return false
			}
		}
		return true
	}); err != nil {
		return 0, 0, err
	}
	if bad != nil {
		return 0, 0, bad
	}
	if err := check("what has no order", &keyState{queue: g.loose}); err != nil {
		return 0, 0, err
	}
	disk[deferred] -= g.loose.n
	disk[ready] += g.loose.n
	first := partition.Millis(-1)
	g.eachWake(0, func(at partition.Millis, o partition.Offset, _ uint64, keyed bool) bool {
		if first < 0 {
			first = at
		}
		if keyed {
			return true
		}
		wakes++
		delete(rows, o)
		if e, ok := g.unsettledOnDisk(o); !ok {
			bad = fmt.Errorf("message %d is to come back and is not there", o)
		} else if e.at == failed {
			disk[failed]++
		} else {
			disk[ready]++
		}
		listed++
		return bad == nil
	})
	next, _ := g.nextWake()
	switch {
	case bad != nil:
		return 0, 0, bad
	case g.broken != nil:
		return 0, 0, g.broken
	case len(rows) > 0:
		return 0, 0, fmt.Errorf("rows of no queue: %v", rows)
	case disk != g.disk:
		return 0, 0, fmt.Errorf("on disk %v, noted %v", disk, g.disk)
	case cold != g.cold || wakes != g.wakes:
		return 0, 0, fmt.Errorf("%d keys on the shelf and %d wakes, noted %d and %d", cold, wakes, g.cold, g.wakes)
	case wakes > 0 && first != next:
		return 0, 0, fmt.Errorf("the first wants to come back at %d, noted %d", first, next)
	case listed != g.onDisk():
		return 0, 0, fmt.Errorf("%d messages on disk, noted %d", listed, g.onDisk())
	case g.cold+uint64(g.inMemory()) > 0 && g.inMemory() > 2*g.bounds.messages+int(g.count[inFlight])+g.bounds.messages+int(g.bounds.ofKey):
		return 0, 0, fmt.Errorf("%d messages wait in memory, at most %d may", g.inMemory(), 2*g.bounds.messages)
	}
	return parking, replaying, nil
}
