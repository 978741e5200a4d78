package partition

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// crowd is a core whose partitions have long queues of small batches from streams.
type crowd struct {
	t     *testing.T
	core  *core
	pumps int
	most  int // batches that one pump took of all queues
}

func newCrowd(t *testing.T, partitions, streams, each int) *crowd {
	c := &crowd{t: t}
	store, err := logstore.Open(storeConfig(vfs.NewMem()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, r := range c.core.order {
			r.stop(&ErrStopped{}, &ErrStopped{})
		}
		_ = store.Close()
	})
	c.core = newCore(Config{Node: 1, Store: store, Seed: 1, NewApp: newCounter(nil)}.withDefaults())
	for p := range partitions + 1 {
		if err := c.core.create(PartitionID(p+1), 1, 1); err != nil {
			t.Fatal(err)
		}
	}
	for c.core.ready() {
		c.pump()
	}
	for p := range partitions {
		for range each {
			for s := range streams {
				c.publish(PartitionID(p+1), Source(s+1), 100)
			}
		}
	}
	c.pumps, c.most = 0, 0
	return c
}

func (c *crowd) publish(id PartitionID, s Source, size int) *proposal {
	b, _, err := record.Parse(record.Append(nil, record.Meta{}, []record.Record{{Body: []byte(strings.Repeat("x", size))}}))
	if err != nil {
		c.t.Fatal(err)
	}
	p := &proposal{kind: Batches, data: b.Bytes(), batch: b, source: s, stored: func([]Stored, error) {}}
	c.core.enqueue(id, c.core.replicas[id].shelf, p)
	return p
}

// pump moves the core a step and returns what it answered.
func (c *crowd) pump() []answer {
	before := c.waiting()
	w, answers, err := c.core.pump(1000)
	if err != nil {
		c.t.Fatal(err)
	}
	c.most = max(c.most, c.waiting()-before+len(answers))
	c.pumps++
	if w != nil {
		if w.pending != nil {
			if err := w.pending.Wait(); err != nil {
				c.t.Fatal(err)
			}
		}
		c.core.durable(w)
	}
	return answers
}

// waiting is how many batches were given to raft and are not answered.
func (c *crowd) waiting() (n int) {
	for _, r := range c.core.order {
		n += r.waiting.len()
	}
	return n
}

// until pumps until some proposals are answered, and returns how many others were
// answered by then.
func (c *crowd) until(ps ...*proposal) (others int) {
	for range 1000 {
		for _, a := range c.pump() {
			if i := slices.Index(ps, a.p); i < 0 {
				others++
			} else if ps = slices.Delete(ps, i, i+1); len(ps) == 0 {
				return others
			}
		}
	}
	c.t.Fatal("no answer in 1,000 turns")
	return 0
}

// Behind 60,000 batches that streams have queued, a batch for another partition, and
// one of a newcomer for one of theirs, are answered within a few writes of bounded size.
func TestNewcomerDoesNotWaitForTheCrowd(t *testing.T) {
	for _, partitions := range []int{1, 8, 64} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			const streams = 20
			c := newCrowd(t, partitions, streams, 60_000/streams/partitions)
			c.pump()
			c.pump()
			elsewhere := c.publish(PartitionID(partitions+1), 0, 100)
			among := c.publish(1, 0, 100)
			if n := c.until(elsewhere, among); n > 4*pumpWork/proposalWork || c.pumps > 6 {
				t.Errorf("%d were answered before them, in %d writes", n, c.pumps)
			}
			if c.most > pumpWork/proposalWork+partitions {
				t.Errorf("one write took %d batches", c.most)
			}
		})
	}
}

// Every queue comes to its end, in the order of each source.
func TestTurnsKeepTheOrderOfASource(t *testing.T) {
	c := newCrowd(t, 0, 0, 0)
	var want [5][]*proposal
	for i := range 500 {
		s := Source(i % 5)
		want[s] = append(want[s], c.publish(1, s, 10+int(s)*40_000))
	}
	var got [5][]*proposal
	for c.core.ready() {
		for _, a := range c.pump() {
			got[a.p.source] = append(got[a.p.source], a.p)
		}
	}
	for s := range want {
		if !slices.Equal(got[s], want[s]) {
			t.Errorf("source %d: %d of %d came, or in another order", s, len(got[s]), len(want[s]))
		}
	}
	if r := c.core.replicas[1]; len(r.lanes.of) != 0 || len(r.lanes.ring) != 0 || r.queued() {
		t.Errorf("the queue is not empty: %d lanes", len(r.lanes.ring))
	}
}

// Sources of small and of large batches get alike, counted in work.
func TestLanesShareByWork(t *testing.T) {
	var l lanes
	zeros := make([]byte, 1_000_000)
	sizes := map[Source]int{1: 100, 2: 10_000, 3: 1_000_000}
	for s, size := range sizes {
		for range 2 * (100 << 20) / (size + proposalWork) {
			l.push(&proposal{kind: Command, source: s, data: zeros[:size]})
		}
	}
	got := map[Source]int{}
	for sum := 0; sum < 100<<20; {
		p := l.pop()
		got[p.source] += p.work()
		sum += p.work()
	}
	for s := range sizes {
		if part := float64(got[s]) / (100 << 20); part < 0.30 || part > 0.37 {
			t.Errorf("source %d got %.2f of it: %v", s, part, got)
		}
	}
}
