package consumer

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/partition"
)

// TestTails grows and shrinks more queues than last rows stay in memory, with
// checkpoints between: what is read is what was put, whether it is read through
// the group, in the order of all rows, or from the rows by who starts anew.
func TestTails(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := newMemRows()
		at := bounds{messages: 100, ofKey: 4, row: uint32(rapid.IntRange(2, 12).Draw(t, "row"))}
		g := newGroup(1, 1, rows, at)
		g.policy = Default()
		keys := rapid.IntRange(1, maxTails+8).Draw(t, "keys")
		queues := make([]queue, keys)
		want := make([][]queuedMessage, keys)
		next := partition.Offset(0)
		walk := func(g *group, k int) (ms []queuedMessage) {
			g.walk(&keyState{queue: queues[k]}, func(m queuedMessage, _ bool) bool { ms = append(ms, m); return true })
			return ms
		}
		check := func(g *group) {
			var all, got []queuedMessage
			for k := range keys {
				if ms := walk(g, k); !slices.Equal(ms, want[k]) {
					t.Fatalf("queue %d has %v, want %v", k, ms, want[k])
				}
				all = append(all, want[k]...)
			}
			g.eachQueued(func(_ partition.Offset, ms []queuedMessage, _ *entry) { got = append(got, ms...) })
			byOffset := func(a, b queuedMessage) int { return int(a.offset) - int(b.offset) }
			slices.SortFunc(all, byOffset)
			slices.SortFunc(got, byOffset)
			if !slices.Equal(all, got) {
				t.Fatalf("all rows have %v, want %v", got, all)
			}
			if g.broken != nil {
				t.Fatal(g.broken)
			}
		}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			k := rapid.IntRange(0, keys-1).Draw(t, "key")
			switch rapid.IntRange(0, 19).Draw(t, "what") {
			case 0:
				check(g)
			case 1:
				if err := g.checkpoint(); err != nil {
					t.Fatal(err)
				}
				check(newGroup(1, 1, rows, at))
			case 2, 3, 4, 5:
				if queues[k].n == 0 {
					continue
				}
				ms, _, _ := g.pull(&queues[k], rapid.IntRange(1, 12).Draw(t, "most"))
				if len(ms) == 0 || !slices.Equal(ms, want[k][:len(ms)]) {
					t.Fatalf("pulled %v off %v", ms, want[k])
				}
				want[k] = want[k][len(ms):]
			default:
				m := queuedMessage{offset: next, hash: uint64(k), size: uint32(next) % 300}
				next += partition.Offset(rapid.IntRange(1, 3).Draw(t, "gap"))
				g.push(&queues[k], uint64(k), m)
				want[k] = append(want[k], m)
			}
			if n := len(g.tails.rows); n > maxTails || n != len(g.tails.offsets) {
				t.Fatalf("%d rows stay", n)
			}
		}
		check(g)
	})
}

// A queue's row that is missing is told, and stops the partition.
func TestTailMissing(t *testing.T) {
	rows := newMemRows()
	g := newGroup(1, 1, rows, bounds{messages: 100, ofKey: 4, row: 8})
	g.policy = Default()
	q := queue{}
	g.push(&q, 7, queuedMessage{offset: 5, hash: 7})
	rows.Delete(g.rows.key(rowQueue, 5))
	g.push(&q, 7, queuedMessage{offset: 6, hash: 7})
	if g.broken == nil {
		t.Fatal("a message was added to a row that is not there")
	}
}
