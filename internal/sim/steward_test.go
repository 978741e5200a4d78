package sim

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// metalog is a metadata log in memory.
type metalog struct {
	app *coordinator.App
	at  partition.Index
}

func (l *metalog) Propose(_ context.Context, _ partition.PartitionID, cmd []byte) (any, error) {
	l.at++
	return l.app.Apply(partition.Position{Index: l.at}, cmd)
}

func (l *metalog) Post(partition.PartitionID, any) error { return nil }

type table map[string][]byte

func (r table) Get(key []byte) ([]byte, error)                         { return r[string(key)], nil }
func (r table) Put(key, value []byte)                                  { r[string(key)] = bytes.Clone(value) }
func (r table) Delete(key []byte)                                      { delete(r, string(key)) }
func (r table) Scan(_, _ []byte, _ func(key, value []byte) bool) error { return nil }

// TestOutWithoutAnAnswer: nothing is demanded any more of a node that is out of the
// cluster, also when the call that had it go got no answer. It ends, as nobody lets it in.
func TestOutWithoutAnAnswer(t *testing.T) {
	app, err := coordinator.NewApp(table{}, coordinator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := coordinator.New(&metalog{app: app}, app)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.Bootstrap(t.Context(), ""))
	must(c.Found(t.Context(), coordinator.Address{Store: "s1"}))
	for i := 2; i <= 4; i++ {
		hash := coordinator.HashToken([]byte{byte(i)})
		must(c.CreateJoinToken(t.Context(), hash, 60_000))
		must(c.AddNode(t.Context(), hash, coordinator.Address{Store: fmt.Sprintf("s%d", i)}))
	}
	must(c.LoseNode(t.Context(), 4, "n4"))

	s := alone()
	s.hash = xxhash.New()
	s.nodes = []*node{{s: s, id: 1}, {s: s, id: 2}, {s: s, id: 3}, {s: s, id: 4}}
	s.cluster = &cluster{s: s, newest: c.View()}
	o := &steward{s: s, r: source(1, "steward"), busy: true} // another call is on its way
	o.loop()
	for _, n := range s.nodes {
		if out := n.id == 4; n.gone != out || n.excused != out {
			t.Errorf("%v: gone %v, excused %v", n.id, n.gone, n.excused)
		}
	}
	ends := 0
	for _, e := range s.heap {
		if e.what == "shut out" {
			ends++
		}
	}
	if o.loop(); ends != 1 {
		t.Errorf("%d nodes end", ends)
	}
}
