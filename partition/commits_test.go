package partition

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/partition/logstore"
)

// A commit takes from the turn that gave the entry to Raft to the turn that found it on
// disk, whatever is in it; what nobody measures is not counted.
func TestCommitTimes(t *testing.T) {
	store, err := logstore.Open(storeConfig(vfs.NewMem()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	n, err := OpenNode(Config{Node: 1, Store: store, Seed: 1, NewApp: newCounter(nil)})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.CreateOn(1, 1); err != nil {
		t.Fatal(err)
	}
	step := func() *Write {
		t.Helper()
		w, err := n.Step(1)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	durable := func(w *Write) {
		t.Helper()
		if err := n.Durable(w); err != nil {
			t.Fatal(err)
		}
	}
	for _, leads := n.Leads(1); !leads; _, leads = n.Leads(1) {
		if w := step(); w != nil {
			durable(w)
		}
	}
	answers := 0
	give := func() {
		t.Helper()
		if err := n.PublishAsync(1, batch("a", "b"), func([]Stored, error) { answers++ }); err != nil {
			t.Fatal(err)
		}
		if err := n.PublishAsync(1, batch("c"), func([]Stored, error) { answers++ }); err != nil { // the same entry
			t.Fatal(err)
		}
		if err := n.ProposeAsync(1, []byte("x"), func(any, error) { answers++ }); err != nil { // another one
			t.Fatal(err)
		}
	}
	give()
	durable(step())
	step()
	if r := n.Commits(); r.Count != 0 || answers != 3 {
		t.Fatalf("%d answers, without a clock: %+v", answers, r)
	}
	n.core.clock = 1e9
	give()
	w := step()
	n.core.clock += 3_000_000
	durable(w)
	step()
	r := n.Commits()
	if r.Count != 2 || r.Sum != 6000 || answers != 6 {
		t.Fatalf("%d answers, after 3 ms: %+v", answers, r)
	}
	for i, bound := range r.Bounds {
		if want := map[bool]uint64{true: 2}[bound >= 3000]; r.UpTo[i] != want {
			t.Errorf("%d took %d µs at most", r.UpTo[i], bound)
		}
	}
}

// Each entry is counted where it was proposed, so nodes together have each of them once,
// whoever leads next.
func TestCommitsOverLeaders(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, Config{})
	c.create(1)
	for i, m := range c.nodes {
		c.leadBy(1, m)
		for n := range 5 {
			c.publish(1, fmt.Sprint(i, "-", n))
		}
	}
	dies := c.leader(1)
	counted := dies.Commits().Count
	dies.kill()
	for n := range 5 {
		c.publish(1, fmt.Sprint("then-", n))
	}
	last := uint64(0)
	for _, m := range c.nodes {
		if m.Host == nil {
			continue
		}
		counted += m.Commits().Count
		info, err := m.Info(1)
		if err != nil {
			t.Fatal(err)
		}
		last = max(last, uint64(info.LastIndex))
	}
	if counted < 20 || counted > last {
		t.Errorf("%d commits are counted, of %d entries", counted, last)
	}
}
