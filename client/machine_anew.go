package client

import (
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/router"
)

// A topic that was deleted and made anew has another table, with another seed. The broker
// refuses what was made by the old one (STALE_ROUTE), stores nothing of it, and tells the
// new one. A publisher publishes to whatever topic has the name, so it goes on:
//
//	STALE_ROUTE ─► nothing more is sent ─► each batch on its way has its answer ─► turn ─► stream
//	                                          └── or the stream broke ──────────────┘
//
// What the old topic stored and acknowledged stays acknowledged. Waiting for the answers
// keeps messages from being stored a second time in the new topic, of which a keyless batch
// may have been taken: it has no hash that would tell whose it is.

// look notes the table that comes with an answer, if it is another one.
func (o *outbox) look(a *strandmqv1.PublishBatchResult) error {
	if a.GetRoute() == nil {
		return nil
	}
	t, err := tableOf(a.GetRoute())
	if err != nil {
		return err
	}
	if o.anew != nil || !sameTable(t, o.table) {
		o.anew, o.anewBody = t, int(a.GetRoute().GetMaxBodyBytes())
	}
	return nil
}

func sameTable(x, y *router.Table) bool {
	if x.Seed() != y.Seed() || x.Len() != y.Len() {
		return false
	}
	for i := range x.Len() {
		if x.Target(i) != y.Target(i) {
			return false
		}
	}
	return true
}

// turn goes over to the other table: what has no answer is sorted by it, in the order in
// which it came, and numbered anew. What its topic does not take comes back, refused.
func (o *outbox) turn() (out []answered) {
	queue, heaps := o.queue, o.heaps
	o.queue, o.next, o.heaps, o.gather = nil, 0, nil, 0
	o.route(o.anew, o.anewBody)
	o.anew = nil
	for i := range o.parts {
		o.parts[i].begin()
	}
	again := func(wait []waiting) func(record.Raw) {
		i := 0
		return func(raw record.Raw) {
			r := raw.Record()
			if err := o.put(&r, wait[i]); err != nil {
				out = append(out, answered{wait: wait[i : i+1], err: err})
			}
			i++
		}
	}
	for _, b := range queue {
		if b.answered || o.keeps(b) {
			continue
		}
		records, _, err := record.View(b.bytes)
		if err != nil {
			continue // we made it
		}
		each := again(b.wait)
		records.Each(func(_ int, r record.Raw) bool { each(r); return true })
	}
	for _, h := range heaps {
		for _, p := range h.piles {
			p.recs.Each(again(p.wait))
		}
	}
	return out
}

// keeps leaves a batch as it is, under its sequence, if the new topic may have stored it
// without our hearing of it: one of keyless messages alone, whose hashes the new table gives
// to the same partition. The sequence keeps it from being stored twice.
func (o *outbox) keeps(b *batch) bool {
	if !b.tried || int64(b.partition) >= int64(o.table.Len()) {
		return false
	}
	owns := o.table.Target(int(b.partition)).Range
	records, _, err := record.View(b.bytes)
	keyless := err == nil
	if keyless {
		records.Each(func(_ int, raw record.Raw) bool {
			keyless = !raw.HasKey() && !raw.HasID() && owns.Contains(raw.KeyHash())
			return keyless
		})
	}
	if keyless {
		o.queue = append(o.queue, b)
	}
	return keyless
}
