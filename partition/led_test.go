package partition

import (
	"fmt"
	"slices"
	"testing"

	"github.com/strandmq/strandmq/partition/logstore"
)

// led prints who led in which terms, as each node's disk has it, also of a node that is
// off.
func (r *rig) led(p PartitionID) {
	for _, n := range r.sorted() {
		b, err := n.store.Meta(uint64(p), metaLed)
		r.complain(err)
		fmt.Fprintf(&r.buf, "n%d:", n.id)
		for _, s := range ledRow(b).stretches() {
			fmt.Fprintf(&r.buf, " %d-%d by n%d", s.First, s.Last, s.Node)
		}
		r.buf.WriteString("\n")
	}
}

// Who led is told for the terms that were noted, and for no other; it stays small.
func TestLedRow(t *testing.T) {
	var row ledRow
	truth := map[uint64]NodeID{}
	note := func(term uint64, node NodeID, more bool) {
		t.Helper()
		var got bool
		if row, got = row.with(term, node); got != more {
			t.Fatalf("term %d by %v is news: %v", term, node, got)
		}
		if more {
			truth[term] = node
		}
	}
	holds := func(from uint64) {
		t.Helper()
		for term := range uint64(2000) {
			want := truth[term]
			if term < from {
				want = 0
			}
			if got := Led(row.stretches()).By(term); got != want {
				t.Fatalf("term %d is by %v, and not %v: %+v", term, got, want, row.stretches())
			}
		}
	}
	holds(0)
	note(0, 1, false)
	note(2, 0, false)
	note(2, 1, true)
	note(2, 1, false)
	note(3, 1, true)
	note(4, 1, true)
	note(7, 1, true) // nothing was heard of 5 and 6
	note(6, 2, false)
	note(8, MaxNode, true)
	note(9, 1, true)
	holds(0)
	if got := row.stretches(); len(got) != 4 {
		t.Fatalf("kept as %+v", got)
	}

	// One that is cut off, or of another version, tells what it can.
	for n := range row {
		if got := ledRow(row[:n]).stretches(); len(got) > 4 || !slices.Equal(got, row.stretches()[:len(got)]) {
			t.Fatalf("%d bytes of %x tell %+v", n, row, got)
		}
	}
	newer := append(ledRow{ledVersion + 1}, row[1:]...)
	if got := newer.stretches(); len(got) > 0 {
		t.Fatalf("of another version: %+v", got)
	}
	if again, ok := newer.with(12, 3); !ok || Led(again.stretches()).By(12) != 3 {
		t.Fatalf("after another version: %x", again)
	}

	for term := uint64(10); term < 1000; term++ {
		note(term, NodeID(1+term%3), true)
	}
	holds(1000 - maxLed)
	if len(row) > 1+maxLed*4 {
		t.Fatalf("it has %d bytes", len(row))
	}
}

// What does not read of it stops nothing: the terms before are not known then.
func TestLedUnreadable(t *testing.T) {
	n := newNode(t, Config{})
	n.create(1)
	n.publish(1, batch("a"))
	was, err := n.Led(1)
	if err != nil || len(was) != 1 || was[0].Node != 1 {
		t.Fatalf("of one node: %+v, %v", was, err)
	}
	n.stop()
	store, err := logstore.Open(storeConfig(n.fs))
	if err != nil {
		t.Fatal(err)
	}
	wb := store.NewBatch()
	if err := wb.SetMeta(1, metaLed, []byte{ledVersion, 0xff}); err != nil {
		t.Fatal(err)
	}
	if err := store.CommitNoSync(wb); err != nil {
		t.Fatal(err)
	}
	store.Close()
	n.start()
	n.publish(1, batch("b"))
	var terms []uint64
	if err := n.Scan(within(t), 1, 0, func(e LogEntry) bool { terms = append(terms, e.Term); return true }); err != nil {
		t.Fatal(err)
	}
	now, err := n.Led(1)
	if err != nil || len(terms) != 2 || now.By(terms[0]) != 0 || now.By(terms[1]) != 1 {
		t.Fatalf("of the terms %d: %+v, %v", terms, now, err)
	}
}
