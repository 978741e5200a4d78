package duty

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// log is a metadata log in memory, for maps to look at.
type log struct {
	app *coordinator.App
	at  partition.Index
}

func (l *log) Propose(_ context.Context, _ partition.PartitionID, cmd []byte) (any, error) {
	l.at++
	return l.app.Apply(partition.Position{Index: l.at}, cmd)
}

func (l *log) Post(partition.PartitionID, any) error { return nil }

// rows is an empty table.
type rows map[string][]byte

func (r rows) Get(key []byte) ([]byte, error) { return r[string(key)], nil }
func (r rows) Put(key, value []byte)          { r[string(key)] = slices.Clone(value) }
func (r rows) Delete(key []byte)              { delete(r, string(key)) }

func (r rows) Scan(prefix, from []byte, fn func(key, value []byte) bool) error {
	for _, k := range slices.Sorted(maps.Keys(r)) {
		if bytes.HasPrefix([]byte(k), prefix) && k >= string(from) && !fn([]byte(k), r[k]) {
			break
		}
	}
	return nil
}

// four is a cluster of four nodes, with a topic of one partition on three of them
// that is being made.
func four(t *testing.T) (c *coordinator.Coordinator, topic *coordinator.Topic) {
	t.Helper()
	app, err := coordinator.NewApp(rows{}, coordinator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c = coordinator.New(&log{app: app}, app)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = c.Bootstrap(t.Context(), "")
	must(err)
	_, err = c.Found(t.Context(), coordinator.Address{Store: "s1"})
	must(err)
	for i := 2; i <= 4; i++ {
		hash := coordinator.HashToken([]byte{byte(i)})
		_, err = c.CreateJoinToken(t.Context(), hash, 60_000)
		must(err)
		_, err = c.AddNode(t.Context(), hash, coordinator.Address{Store: fmt.Sprintf("s%d", i)})
		must(err)
	}
	topic, _, err = c.CreateTopic(t.Context(), coordinator.TopicSpec{Name: "orders", Partitions: 1})
	must(err)
	return c, topic
}

// replication asks for so many replicas.
func replication(n uint32) *strandmqv1.TopicConfig { return &strandmqv1.TopicConfig{Replication: &n} }

func everyone(partition.NodeID) bool { return true }

// What a node does about its replica, while its partition is made, moves and goes.
func TestReplicaOfNode(t *testing.T) {
	c, topic := four(t)
	ctx := t.Context()
	id := topic.Partitions[0].ID
	all := []partition.NodeID{1, 2, 3, 4}
	check := func(when string, here []partition.NodeID, want map[partition.NodeID]TaskKind) {
		t.Helper()
		m := c.View()
		p, ok := m.Partition(id)
		if !ok {
			t.Fatalf("%s: the map does not have %v", when, id)
		}
		for _, n := range all {
			if got := Replica(m, p, n, Own{Here: slices.Contains(here, n)}, everyone); got.Kind != want[n] {
				t.Errorf("%s: %v is to do %d about %v, want %d", when, n, got.Kind, got.Replica, want[n])
			}
		}
	}
	first := topic.Partitions[0].Nodes()
	other := all[slices.IndexFunc(all, func(n partition.NodeID) bool { return !slices.Contains(first, n) })]
	goes := first[2]
	begin := map[partition.NodeID]TaskKind{}
	for _, n := range first {
		begin[n] = Create
	}
	check("it is made", nil, begin)
	check("it is there", first, nil)
	if _, err := c.FinishTopic(ctx, topic.ID); err != nil {
		t.Fatal(err)
	}
	check("a replica is not there, and others are", first[:2], map[partition.NodeID]TaskKind{goes: Join})

	p, err := c.Place(ctx, id, []partition.NodeID{first[0], first[1], other})
	if err != nil {
		t.Fatal(err)
	}
	check("it moves", first, map[partition.NodeID]TaskKind{other: Join})
	check("it is fed", all, nil) // the old one keeps its replica until the map says that it is out
	if _, err := c.Settle(ctx, id, p.Placement); err != nil {
		t.Fatal(err)
	}
	check("it has moved", all, map[partition.NodeID]TaskKind{goes: Erase})
	left, _ := func() (coordinator.Leaving, bool) { p, _ := c.View().Partition(id); return p.Left(goes) }()
	check("it is erased, and that is not known yet", []partition.NodeID{first[0], first[1], other}, map[partition.NodeID]TaskKind{goes: Erase})
	if err := c.Left(ctx, id, left.ID); err != nil {
		t.Fatal(err)
	}
	check("who has one that the map does not name keeps it", all, nil)

	if _, err := c.DeleteTopic(ctx, "orders", "orders"); err != nil {
		t.Fatal(err)
	}
	gone := map[partition.NodeID]TaskKind{}
	for _, n := range first[:2] {
		gone[n] = Drop
	}
	check("its topic goes", first[:2], gone)
}

// Every node has a replica of the metadata log: those that do not vote listen, and
// those that are gone are removed.
func TestMetadataListeners(t *testing.T) {
	c, _ := four(t)
	if _, err := c.LoseNode(t.Context(), 4, "n4"); err != nil {
		t.Fatal(err)
	}
	m := c.View()
	p, _ := m.Partition(partition.Metadata)
	others := Others{Up: func(partition.NodeID) bool { return true }, Stay: func(partition.NodeID) bool { return true }}
	r := func(n partition.NodeID) partition.ReplicaID { return n.Replica() }
	var k Keeper
	for _, x := range []struct {
		learners []partition.ReplicaID
		want     string
	}{
		{nil, "add n2"},
		{[]partition.ReplicaID{r(2)}, "add n3"},
		{[]partition.ReplicaID{r(2), r(3), r(4)}, "remove n4"},
	} {
		s := k.Lead(m, p, partition.Info{Replica: r(1), Voters: []partition.ReplicaID{r(1)}, Learners: x.learners}, others, false)
		if s.Kind != Change || s.Change.String() != x.want {
			t.Errorf("with learners %v it is %v; want %s", x.learners, s.Change, x.want)
		}
	}
}

// A replica votes when it has what its leader had when that looked first; what an
// earlier leadership saw does not count.
func TestCaughtUp(t *testing.T) {
	var k Keeper
	const id = partition.PartitionID(1)
	r := partition.NodeID(2).Replica()
	look := func(term uint64, last, match partition.Index) bool {
		return k.caught(id, partition.Info{Term: term, LastIndex: last, Followers: []partition.Follower{{Replica: r, Match: match, Active: true}}}, r)
	}
	for _, x := range []struct {
		term        uint64
		last, match partition.Index
		want        bool
	}{
		{1, 100, 50, false},
		{1, 900, 99, false},
		{2, 950, 120, false}, // another leadership
		{2, 990, 949, false},
		{2, 2000, 950, true},
		{2, 2000, 950, false}, // it was promoted, or not: looked at anew
	} {
		if got := look(x.term, x.last, x.match); got != x.want {
			t.Errorf("in term %d, with %d of %d: %v", x.term, x.match, x.last, got)
		}
	}
}

// A replica that was out and is forgotten is taken out again by whoever knows, if a
// leader with an older map let it in. One that this map is too old to know of stays.
func TestPastReplicaIsTakenOut(t *testing.T) {
	c, topic := four(t)
	ctx := t.Context()
	if _, err := c.FinishTopic(ctx, topic.ID); err != nil {
		t.Fatal(err)
	}
	id := topic.Partitions[0].ID
	p := func() *coordinator.Partition { p, _ := c.View().Partition(id); return p }
	first := p().Replicas
	lead := func(learner partition.ReplicaID) Step {
		var k Keeper
		all := p().Replicas
		info := partition.Info{Replica: all[0], Term: 3, LastIndex: 9, Voters: all, Learners: []partition.ReplicaID{learner}}
		return k.Lead(c.View(), p(), info, Others{Up: everyone, Stay: everyone}, false)
	}
	later := partition.NewReplicaID(4, 7)
	if s := lead(later); s.Kind == Change {
		t.Errorf("of one that it does not know yet: %v", s.Change)
	}
	old := first[len(first)-1]
	nodes := p().Nodes()
	nodes[len(nodes)-1] = 10 - nodes[0] - nodes[1] - nodes[2] // the fourth
	if _, err := c.Place(ctx, id, nodes); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Settle(ctx, id, p().Placement); err != nil {
		t.Fatal(err)
	}
	if err := c.Left(ctx, id, old); err != nil {
		t.Fatal(err)
	}
	if s := lead(old); s.Kind != Change || s.Change != (partition.Change{Kind: partition.Remove, Replica: old}) {
		t.Errorf("of one that is forgotten: %+v", s)
	}
}
