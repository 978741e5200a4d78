package partition

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/internal/record"
)

// checkPages holds what must always be of the pages of a node and its tail.
func checkPages(t rapid.TB, c *core) {
	sum := int64(0)
	for _, r := range c.replicas {
		var last Offset
		for i, p := range r.shelf.pages {
			if i > 0 && p.first() < last {
				t.Fatalf("page %d begins at %d, before the end %d of the one before", i, p.first(), last)
			}
			for _, b := range p.batches {
				if p.first() != b.row.base && b.row.base != last {
					t.Fatalf("in page %d, a batch at %d follows %d", i, b.row.base, last)
				}
				last = b.row.end()
			}
			sum += p.bytes
		}
	}
	if p := &c.tail.pages; sum != p.bytes || sum > p.limit {
		t.Fatalf("pages have %d bytes, counted %d, limit %d", sum, p.bytes, p.limit)
	}
}

// TestPages plans at random places of two partitions on disk: what planning sees
// and readers get is what was published, what was read for a plan is in memory for
// those who send it, the limit holds, and the newest batches stay where they are.
func TestPages(t *testing.T) {
	n := newNode(t, Config{TailCacheBytes: 10 << 20})
	n.create(1, 2)
	const batches, each = 250, 100
	body := make([]byte, 400)
	for i := range batches {
		for id := PartitionID(1); id <= 2; id++ {
			recs := make([]record.Record, each)
			for k := range recs {
				recs[k] = record.Record{HasKey: true, Key: fmt.Append(nil, i, k), KeyHash: uint64(i*each + k), Body: body}
			}
			n.publish(id, record.Append(nil, record.Meta{}, recs))
		}
	}
	end := Offset(batches * each)
	evicted := false
	rapid.Check(t, func(t *rapid.T) {
		id := PartitionID(rapid.IntRange(1, 2).Draw(t, "partition"))
		from := Offset(rapid.IntRange(0, int(end)-1).Draw(t, "from"))
		most := rapid.IntRange(1, 8000).Draw(t, "most")
		var os []Offset
		found := 0
		err := n.View(within(n.t), id, func(App, Position) {
			r := n.core.replicas[id]
			tail, first := n.core.tail.bytes, r.shelf.batches[r.shelf.head].row.base
			// A page that was there before may leave while the plan reads others.
			had := make(map[Offset]bool)
			for o := from; o < min(end, from+Offset(most)); o++ {
				_, had[o] = r.shelf.find(o)
			}
			err := foresight{r}.Keys(from, 4<<20, func(o Offset, hash uint64, size int) bool {
				if o != from+Offset(len(os)) || hash != uint64(o) || size < len(body) {
					t.Fatalf("message %d of %d bytes has the key %d", o, size, hash)
				}
				os = append(os, o)
				return len(os) < most
			})
			if err != nil {
				t.Fatal(err)
			}
			evicted = evicted || n.core.tail.pages.head > 0
			for _, o := range os {
				if _, ok := r.shelf.find(o); ok || had[o] {
					found++
				}
			}
			if n.core.tail.bytes != tail || r.shelf.batches[r.shelf.head].row.base != first {
				t.Fatal("the newest batches changed")
			}
			checkPages(t, n.core)
		})
		if err != nil {
			t.Fatal(err)
		}
		if bytes := len(os) * len(body); bytes < 1<<20 && found != len(os) {
			t.Fatalf("of %d that were planned %d are in memory, or were before", len(os), found)
		}
		ms, err := n.ReadAt(id, os)
		if err != nil || len(ms) != len(os) {
			t.Fatalf("%d messages of %d: %v", len(ms), len(os), err)
		}
		for i, m := range ms {
			if m.Offset != os[i] || m.Record.KeyHash != uint64(m.Offset) {
				t.Fatalf("at %d is %d with the key %d", os[i], m.Offset, m.Record.KeyHash)
			}
		}
	})
	if !evicted {
		t.Error("no page ever left: the log is too small for the test")
	}
	// What is gone gives its memory back, and is not served.
	if err := n.Drop(within(t), 1); err != nil {
		t.Fatal(err)
	}
	if err := n.View(within(t), 2, func(App, Position) { checkPages(t, n.core) }); err != nil {
		t.Fatal(err)
	}
	var unknown *ErrUnknownPartition
	if _, err := n.ReadAt(1, []Offset{0}); !errors.As(err, &unknown) {
		t.Fatalf("of a partition that is gone: %v", err)
	}
}

// TestPagesDamaged reads ahead over a batch that does not read: what is good
// before it is planned, and the damage is told to who goes on.
func TestPagesDamaged(t *testing.T) {
	n := newNode(t, Config{TailCacheBytes: 10 << 20})
	n.create(1)
	for range 20 {
		n.publish(1, batch("a", "b", "c"))
	}
	n.restart() // nothing is in memory
	err := n.View(within(t), 1, func(App, Position) {
		l := n.core.replicas[1].log
		rows, err := l.read.rows(0, 60)
		if err != nil || len(rows) != 20 {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		rows[10].records++
		var got []Offset
		err = l.read.batches(rows, func(b stored) bool { got = append(got, b.row.base); return true })
		var damaged *ErrDamaged
		if !errors.As(err, &damaged) || len(got) != 10 || !slices.IsSorted(got) {
			t.Errorf("got %v, then %v", got, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
