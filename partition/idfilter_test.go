package partition

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

func filterKey(i uint64) (k idKey) {
	binary.BigEndian.PutUint64(k[:8], keyspace.Mix(i))
	return k
}

// The filter never denies what was added, however full it is, and at 10 bits
// for each id it doubts about one in a hundred of the others.
func TestIDFilter(t *testing.T) {
	const n = 100_000
	for _, bitsEach := range []int64{1, 10} {
		f := idFilter{bytes: n * bitsEach / 8}
		if f.has(1, filterKey(0)) {
			t.Fatal("an empty filter knows an id")
		}
		for i := range uint64(n) {
			f.add(PartitionID(i%3), filterKey(i/3))
		}
		for i := range uint64(n) {
			if !f.has(PartitionID(i%3), filterKey(i/3)) {
				t.Fatalf("%d bits: id %d was added and is denied", bitsEach, i)
			}
		}
		doubts := 0
		for i := range uint64(n) {
			if f.has(3, filterKey(i)) {
				doubts++
			}
		}
		if bitsEach == 10 && (doubts < n/1000 || doubts > n/50) {
			t.Errorf("%d of %d new ids are doubted, want about 1 in 100", doubts, n)
		}
	}
}

// What a partition stored before a restart is known after it, both while its ids
// are still being read and when they are.
func TestIDsAreLearned(t *testing.T) {
	n := newNode(t, Config{})
	n.create(1, 2)
	send := func(p PartitionID) (dups int) {
		for b := range 5 {
			recs := make([]record.Record, 1000)
			for i := range recs {
				recs[i] = record.Record{ID: fmt.Sprintf("%d-%d", b, i)}
			}
			for _, s := range n.publish(p, record.Append(nil, record.Meta{}, recs)) {
				if s.Err != nil {
					t.Fatal(s.Err)
				}
				if s.Duplicate {
					dups++
				}
			}
		}
		return dups
	}
	if dups := send(1); dups != 0 {
		t.Fatalf("%d new ids were taken for repeats", dups)
	}
	if err := n.Host.Close(); err != nil {
		t.Fatal(err)
	}

	// As if nothing were read yet: no new host's learner has run.
	c := newCore(Config{Node: 1, Store: n.store}.withDefaults())
	if err := c.open(1); err != nil {
		t.Fatal(err)
	}
	if c.replicas[1].log.dup.covered {
		t.Fatal("a partition with ids needs no learning")
	}
	if err := n.store.Close(); err != nil {
		t.Fatal(err)
	}

	n.start()
	select {
	case <-n.learned:
	case <-time.After(soon):
		t.Fatal("the ids are not read")
	}
	if err := n.View(within(t), 1, func(App, Position) {
		for p, want := range map[PartitionID]bool{1: true, 2: true} {
			if n.core.replicas[p].log.dup.covered != want {
				t.Errorf("%v: covered is not %v", p, want)
			}
		}
		for b := range 5 {
			for i := range 1000 {
				k := keyOf(fmt.Appendf(nil, "%d-%d", b, i), nil, false)
				if !n.core.seen.has(1, k) {
					t.Fatalf("id %d-%d was not learned", b, i)
				}
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	for _, covered := range []bool{true, false} {
		if err := n.View(within(t), 1, func(App, Position) { n.core.replicas[1].log.dup.covered = covered }); err != nil {
			t.Fatal(err)
		}
		if dups := send(1); dups != 5000 {
			t.Errorf("covered %v: %d of 5000 repeats were found", covered, dups)
		}
	}
	if dups := send(2); dups != 0 {
		t.Errorf("%d ids of another partition were taken for repeats", dups)
	}
}

func BenchmarkIDFilter(b *testing.B) {
	f := idFilter{bytes: 32 << 20}
	for i := range uint64(1_000_000) {
		f.add(1, filterKey(i))
	}
	b.ResetTimer()
	for i := range b.N {
		if f.has(1, filterKey(uint64(i)+1_000_000_000)) {
			continue
		}
	}
}

// A damaged row of an id stops nobody but who asks for that id.
func TestDamagedIDIsNoReasonToStop(t *testing.T) {
	n := newNode(t, Config{})
	n.create(1)
	msg := func(id string) []byte { return record.Append(nil, record.Meta{}, []record.Record{{ID: id}}) }
	n.publish(1, msg("a"))
	wb := n.store.NewBatch()
	if err := wb.Set(logstore.IDs, 1, []byte{0}, []byte("no id has this key")); err != nil {
		t.Fatal(err)
	}
	if err := n.store.CommitNoSync(wb); err != nil {
		t.Fatal(err)
	}
	n.restart()
	<-n.learned
	if s := n.publish(1, msg("a"))[0]; s != (Stored{Offset: 0, Duplicate: true}) {
		t.Errorf("the repeat is %+v", s)
	}
	if s := n.publish(1, msg("b"))[0]; s != (Stored{Offset: 1}) {
		t.Errorf("a new id is %+v", s)
	}
}
