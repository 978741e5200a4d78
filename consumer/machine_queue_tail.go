package consumer

import (
	"github.com/strandmq/strandmq/partition"
)

// Behind a key that does not flow, each message is added to the last row of the
// key's queue. The last rows of the queues that grew lately stay in memory until
// the next checkpoint, so that a message more costs an append and not a row that
// is looked up, copied and put. What is in memory goes before what is in the rows,
// which have the beginning of the same row: its kind, key and first message, and
// that it is there. So only who reads the messages of a row must ask here.
//
// What stays is no state: with and without it, all that is read is the same.

// maxTails is how many rows stay; the one that grew least lately leaves.
const maxTails = 32

type tails struct {
	offsets []partition.Offset // by which rows are found
	rows    []tailRow
	hit     int // the one found last
	tick    uint64
}

type tailRow struct {
	row   []byte // as it is stored
	grown bool   // beyond what is in the rows
	used  uint64
}

// find returns the place of a row; none if it is not here.
func (t *tails) find(o partition.Offset) int {
	if t.hit < len(t.offsets) && t.offsets[t.hit] == o {
		return t.hit
	}
	for i := range t.offsets {
		if t.offsets[i] == o {
			t.hit = i
			return i
		}
	}
	return int(none)
}

// forget lets a row go that is replaced or deleted.
func (t *tails) forget(o partition.Offset) {
	if len(t.offsets) == 0 {
		return
	}
	if i := t.find(o); i >= 0 {
		last := len(t.offsets) - 1
		t.offsets[i], t.rows[i] = t.offsets[last], t.rows[last]
		t.rows[last] = tailRow{}
		t.offsets, t.rows = t.offsets[:last], t.rows[:last]
	}
}

// growTail returns the last row of a queue, to be added to; nil if it cannot be
// read.
func (g *group) growTail(o partition.Offset) *tailRow {
	t := &g.tails
	i := t.find(o)
	if i < 0 {
		k := g.rows.key(rowQueue, o)
		v, err := g.rows.Get(k)
		if err == nil && len(v) < queueHead {
			err = &ErrRow{Key: k, Why: "a row of a queue is missing"}
		}
		if err != nil {
			g.fault(err)
			return nil
		}
		if i = len(t.rows); i < maxTails {
			t.offsets, t.rows = append(t.offsets, o), append(t.rows, tailRow{})
		} else {
			i = 0
			for j := range t.rows {
				if t.rows[j].used < t.rows[i].used {
					i = j
				}
			}
			g.putTail(i)
		}
		t.offsets[i] = o
		t.rows[i].row = append(t.rows[i].row[:0], v...)
		t.hit = i
	}
	t.tick++
	r := &t.rows[i]
	r.used, r.grown = t.tick, true
	return r
}

// putTail brings what is in the rows up to a row that stays here.
func (g *group) putTail(i int) {
	if r := &g.tails.rows[i]; r.grown {
		r.grown = false
		g.rows.Put(g.rows.key(rowQueue, g.tails.offsets[i]), r.row)
	}
}

func (g *group) putTails() {
	for i := range g.tails.rows {
		g.putTail(i)
	}
}

// deleteQueueRow removes a row of a queue.
func (g *group) deleteQueueRow(o partition.Offset) {
	g.tails.forget(o)
	g.rows.del(rowQueue, o)
}
