package broker

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// What a node has to tell is bounded, the same is one, and what found no room is told
// as a number.
func TestHappeningsAreBounded(t *testing.T) {
	h := newHappenings()
	storm := func(n, times int) {
		for i := range n {
			for range times {
				h.note(happening{kind: coordinator.KeyParked, of: spot{partition.PartitionID(i + 1), true}, group: consumer.GroupID(i), text: "a key"})
			}
		}
	}
	storm(happeningsKept+7, 3)
	if len(h.waiting) != happeningsKept || h.dropped != 21 {
		t.Fatalf("%d wait, %d dropped", len(h.waiting), h.dropped)
	}
	// Of an empty map all of them are alike: one row.
	batch, more := h.take(&coordinator.Map{}, 3)
	if more || len(batch) != 2 || batch[0].Count != 3*happeningsKept || batch[0].Kind != coordinator.KeyParked ||
		batch[1].Kind != coordinator.EventsDropped || batch[1].Count != 21 || batch[1].Node != 3 {
		t.Fatalf("%+v, more %v", batch, more)
	}
	if batch, more = h.take(&coordinator.Map{}, 3); more || len(batch) > 0 {
		t.Errorf("and then %+v", batch)
	}
	// Kinds are not alike: a batch has as many as it may, and the others wait.
	for i := range coordinator.MaxBatch + 50 {
		h.note(happening{kind: coordinator.EventKind(fmt.Sprint("K", i)), text: "x"})
	}
	if batch, more = h.take(&coordinator.Map{}, 3); !more || len(batch) != coordinator.MaxBatch-1 {
		t.Errorf("%d of them, more %v", len(batch), more)
	}
	if batch, more = h.take(&coordinator.Map{}, 3); more || len(batch) != 51 {
		t.Errorf("then %d, more %v", len(batch), more)
	}
}

// eventsOf are the events that a node tells of.
func (a api) eventsOf(t testing.TB, req *strandmqv1.ListEventsRequest) *strandmqv1.ListEventsResponse {
	t.Helper()
	res, err := a.cluster.ListEvents(ctx(t), req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// awaitEvent waits until a node tells of an event of a kind.
func (a api) awaitEvent(t testing.TB, kind coordinator.EventKind, is func(*strandmqv1.ClusterEvent) bool) *strandmqv1.ClusterEvent {
	t.Helper()
	var found *strandmqv1.ClusterEvent
	inTime(t, string(kind), func() bool {
		res, err := a.cluster.ListEvents(ctx(t), &strandmqv1.ListEventsRequest{Kind: string(kind)})
		for _, e := range res.GetEvents() {
			if err == nil && is(e) {
				found = e
			}
		}
		return found != nil
	})
	return found
}

func anyEvent(*strandmqv1.ClusterEvent) bool { return true }

// breakable makes a group whose circuit opens as soon as nearly everything fails.
func (a api) breakable(t testing.TB, topic, group string) {
	t.Helper()
	a.group(t, topic, group, &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(1), BreakerWindowMs: proto.Int64(3_600_000)})
}

// breakCircuit has nearly everything fail for a group.
func (a api) breakCircuit(t testing.TB, topic, group string) {
	t.Helper()
	const n = 25
	for i := range n {
		a.store(t, topic, msg(fmt.Sprint("key-", i), "x"))
	}
	inTime(t, "an open circuit", func() bool {
		res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: topic, Group: group, Member: "m", MaxMessages: n, WaitMs: 100})
		for _, d := range res.GetDeliveries() {
			// A refusal, where another node comes to lead just then, leaves it to its deadline.
			_, err = a.consume.Settle(ctx(t), &strandmqv1.SettleRequest{Topic: topic, Group: group, Member: "m", Settlements: []*strandmqv1.Settlement{{
				Token: d.GetToken(), Action: nack, Reason: "the database is down",
			}}})
		}
		if err != nil {
			return false
		}
		for _, p := range a.describe(t, topic, group).GetPartitions() {
			if p.GetCircuit().GetOpen() {
				return true
			}
		}
		return false
	})
}

// openCircuit has the circuit of a group open while one node leads: what befalls a group
// while another one comes to lead may not be told.
func (c *three) openCircuit(topic string) (group string) {
	c.t.Helper()
	id := c.partitionsOf(0, topic)[0].ID
	terms := func() (led, newest uint64) {
		lead := c.leaderOf(id)
		for i, n := range c.nodes {
			info, err := n.b.host.Info(id)
			if err != nil {
				continue // it is not made there yet
			}
			if i == lead && info.Leading {
				led = info.Term
			}
			newest = max(newest, info.Term)
		}
		return led, newest
	}
	for try := range 10 {
		group = fmt.Sprint("g-", try)
		c.api(1).breakable(c.t, topic, group)
		inTime(c.t, "every node to know the group, which is told by its name", func() bool {
			return !slices.ContainsFunc(c.nodes, func(n *clusterNode) bool {
				_, _, err := n.b.coord.View().Group(topic, group)
				return err != nil
			})
		})
		led, _ := terms()
		c.api(1).breakCircuit(c.t, topic, group)
		if still, newest := terms(); led != 0 && led == still && led == newest {
			return group
		}
	}
	c.t.Fatal("whenever a circuit opened, another node came to lead")
	return ""
}

// quiet has no member be away, however slow the test is.
func quiet(c *Config) { c.SessionTimeout = time.Hour }

// What groups do by themselves is told, with counts, by a broker that is alone: over
// its restart, to who waits for it, to those who ask for a part, and as a metric.
func TestEventsOfGroups(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := startAlone(t, dir, quiet)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.topic(t, "u", 1)
	a.breakable(t, "t", "g")
	a.breakCircuit(t, "t", "g")
	e := a.awaitEvent(t, coordinator.CircuitOpened, anyEvent)
	if e.GetTopic() != "t" || e.GetGroup() != "g" || e.GetPartition() != 0 || e.Partition == nil || e.GetCount() != 1 || e.GetNode() != 0 ||
		e.GetAdvice() != "strandmq group describe t g" || !strings.Contains(e.GetText(), "90 % of the deliveries") || e.GetFirst() == nil {
		t.Errorf("%v", e)
	}

	// It closes when one is handled.
	inTime(t, "a closed circuit", func() bool {
		for _, d := range a.receive(t, "t", "g", "m", 1) {
			a.done(t, "t", "g", d, ack, "")
		}
		return !a.describe(t, "t", "g").GetPartitions()[0].GetCircuit().GetOpen()
	})
	if e := a.awaitEvent(t, coordinator.CircuitClosed, anyEvent); e.GetGroup() != "g" || e.GetAdvice() != "" {
		t.Errorf("%v", e)
	}

	// So much waits behind one message that the group looks no further.
	a.topic(t, "d", 1)
	a.group(t, "d", "slow", &strandmqv1.GroupPolicy{MaxDeferred: proto.Uint32(1), MaxDeferredKey: proto.Uint32(1)})
	for range 5 {
		a.store(t, "d", msg("key", "x"))
	}
	a.receive(t, "d", "slow", "m", 1)
	a.awaitEvent(t, coordinator.DeferredLimit, func(e *strandmqv1.ClusterEvent) bool { return e.GetTopic() == "d" && e.GetGroup() == "slow" })

	// A parked key, behind a dead letter.
	a.group(t, "u", "parks", &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(1), OnExhaustion: strandmqv1.OnExhaustion_ON_EXHAUSTION_PARK, BreakerFailedPercent: proto.Uint32(0)})
	waiting := make(chan *strandmqv1.ListEventsResponse, 1)
	after := a.eventsOf(t, &strandmqv1.ListEventsRequest{}).GetNext()
	go func() {
		res, err := a.cluster.ListEvents(ctx(t), &strandmqv1.ListEventsRequest{After: after, WaitMs: 60_000, Topic: "u", Kind: "KEY_PARKED"})
		if err != nil {
			t.Error(err)
		}
		waiting <- res
	}()
	for i := range 3 {
		a.store(t, "u", msg(fmt.Sprint("key-", i), "x"))
	}
	for _, d := range a.receive(t, "u", "parks", "m", 3) {
		a.done(t, "u", "parks", d, nack, "no")
	}
	if res := <-waiting; len(res.GetEvents()) != 1 || res.GetEvents()[0].GetKind() != "KEY_PARKED" || res.GetNext() <= after || res.GetMissed() {
		t.Errorf("who waited was told %v", res)
	}
	inTime(t, "three parked keys, as one event or several", func() bool {
		n := uint64(0)
		for _, e := range a.eventsOf(t, &strandmqv1.ListEventsRequest{Kind: "KEY_PARKED"}).GetEvents() {
			if n += e.GetCount(); e.GetGroup() != "parks" || e.GetAdvice() != "strandmq dead list u parks" {
				t.Fatalf("%v", e)
			}
		}
		return n == 3
	})

	// Only a part, and a page at a time.
	if res := a.eventsOf(t, &strandmqv1.ListEventsRequest{Group: "nobody"}); len(res.GetEvents()) != 0 || res.GetNext() == 0 {
		t.Errorf("of a group without events: %v", res)
	}
	all := a.eventsOf(t, &strandmqv1.ListEventsRequest{}).GetEvents()
	var paged []*strandmqv1.ClusterEvent
	for next := uint64(0); ; {
		res := a.eventsOf(t, &strandmqv1.ListEventsRequest{After: next, Max: 1})
		if next = res.GetNext(); len(res.GetEvents()) == 0 {
			break
		}
		paged = append(paged, res.GetEvents()...)
	}
	if len(all) < 2 || len(paged) != len(all) || !proto.Equal(paged[0], all[0]) {
		t.Errorf("in pages %v, at once %v", paged, all)
	}
	for _, bad := range []*strandmqv1.ListEventsRequest{
		{WaitMs: -1}, {WaitMs: 60_001}, {Max: 1001}, {Kind: "circuit"}, {Topic: "a b"}, {Group: "a b"}, {Node: 1 << 32},
	} {
		if _, err := a.cluster.ListEvents(ctx(t), bad); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
	_, metrics := get(t, b.URL()+"/metrics")
	for _, want := range []string{`strandmq_events_total\{kind="CIRCUIT_OPENED"\} 1`, `strandmq_events_total\{kind="KEY_PARKED"\} 3`} {
		if !regexp.MustCompile("(?m)^" + want + "$").MatchString(metrics) {
			t.Errorf("no %s", want)
		}
	}

	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = startAlone(t, dir, quiet)
	a = newAPI(t, b.URL())
	if again := a.eventsOf(t, &strandmqv1.ListEventsRequest{Max: uint32(len(all))}).GetEvents(); len(again) != len(all) || !proto.Equal(again[0], all[0]) {
		t.Errorf("after a restart %v, before %v", again, all)
	}
}

// What retention takes from a group that had not settled it is an event, with how many.
func TestEventsOfLosses(t *testing.T) {
	t.Parallel()
	b := startAlone(t, t.TempDir(), often)
	a := newAPI(t, b.URL())
	if _, err := a.topics.CreateTopic(ctx(t), &strandmqv1.CreateTopicRequest{
		Topic: "t", Partitions: 1, Config: &strandmqv1.TopicConfig{RetentionBytes: proto.Int64(64 << 10)},
	}); err != nil {
		t.Fatal(err)
	}
	a.group(t, "t", "slow", nil)
	for i := range 32 {
		a.store(t, "t", msg(fmt.Sprint("k", i), strings.Repeat("x", 16<<10)))
	}
	inTime(t, "all that was lost, in events", func() bool {
		lost := a.describe(t, "t", "slow").GetCounts().GetExpired()
		told := uint64(0)
		for _, e := range a.eventsOf(t, &strandmqv1.ListEventsRequest{Kind: "EXPIRED_UNREAD", Topic: "t", Group: "slow"}).GetEvents() {
			told += e.GetCount()
		}
		return lost > 0 && told == lost
	})
}

// Three nodes: what befalls one is told by each, and when another leads.
func TestEventsOfNodes(t *testing.T) {
	t.Parallel()
	c := startThree(t, func(cfg *Config) { cfg.Balance.DeadAfter = 3_000 })
	c.awaitVoters()
	c.api(0).topic(t, "orders", 1)
	c.publish(0, "orders", "a", 10)
	group := c.openCircuit("orders")

	// A replica is damaged, stops, and is made anew. It meets the damage itself, so it has
	// stopped before the others hear of it: one that they hear of first may be out, and
	// erased, before its node comes to stop it.
	p := c.partitionsOf(0, "orders")[0]
	bad := c.nodes[(c.leaderOf(p.ID)+1)%3].b
	damaged := bad.cfg.Node
	inTime(t, "a replica that stops", func() bool {
		r, ok := p.Replica(damaged)
		return ok && bad.host.Condemn(ctx(t), p.ID, r, "a block does not read") == nil
	})
	ofDamaged := func(e *strandmqv1.ClusterEvent) bool {
		return e.GetNode() == uint64(damaged) && e.GetTopic() == "orders" && e.Partition != nil
	}
	for i := range c.nodes {
		a := c.api(i)
		a.awaitEvent(t, coordinator.CircuitOpened, func(e *strandmqv1.ClusterEvent) bool { return e.GetGroup() == group })
		if e := a.awaitEvent(t, coordinator.ReplicaDamaged, ofDamaged); !strings.Contains(e.GetText(), "a block does not read") {
			t.Errorf("%v", e)
		}
		a.awaitEvent(t, coordinator.ReplicaStopped, ofDamaged)
		a.awaitEvent(t, coordinator.ReplicaRemade, ofDamaged)
	}

	// Who leads the metadata log dies: another one tells of it, and of what was before.
	lead := c.leaderOf(partition.Metadata)
	dead := c.nodes[lead].b.cfg.Node
	before := c.api(lead).eventsOf(t, &strandmqv1.ListEventsRequest{}).GetEvents()
	c.nodes[lead].crash()
	ofDead := func(e *strandmqv1.ClusterEvent) bool { return e.GetNode() == uint64(dead) }
	for i, n := range c.nodes {
		if n.stopped {
			continue
		}
		a := c.api(i)
		a.awaitEvent(t, coordinator.NodeSilent, ofDead)
		a.awaitEvent(t, coordinator.NodeGivenUp, ofDead)
		n.b.events.ofNode(coordinator.EntriesLetGo, "after the failover")
		a.awaitEvent(t, coordinator.EntriesLetGo, func(e *strandmqv1.ClusterEvent) bool { return e.GetNode() == uint64(n.b.cfg.Node) })
		now := map[uint64]*strandmqv1.ClusterEvent{}
		for _, e := range a.eventsOf(t, &strandmqv1.ListEventsRequest{}).GetEvents() {
			now[e.GetNumber()] = e
		}
		for _, e := range before {
			if is := now[e.GetNumber()]; is.GetKind() != e.GetKind() || is.GetCount() < e.GetCount() {
				t.Errorf("node %v: %v was %v", n.b.cfg.Node, is, e)
			}
		}
	}
	if err := c.nodes[lead].start(); err != nil {
		t.Fatal(err)
	}
	for i := range c.nodes {
		a := c.api(i)
		a.awaitEvent(t, coordinator.NodeBack, ofDead)
		a.awaitEvent(t, coordinator.CircuitOpened, anyEvent)
	}
}

// A node whose disk is full hands over what it leads, and is told as unfit until there is
// room again.
func TestEventsOfFullDisk(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	c.api(0).topic(t, "orders", 3)
	c.publish(0, "orders", "a", 10)
	var full [3]atomic.Bool
	for i, n := range c.nodes {
		n.b.disk.mu.Lock()
		n.b.disk.room = func() (logstore.Room, error) {
			if full[i].Load() {
				return logstore.Room{Total: 1 << 40, Free: 1 << 20}, nil
			}
			return logstore.Room{Total: 1 << 40, Free: 1 << 39}, nil
		}
		n.b.disk.mu.Unlock()
	}
	unfit, planted := -1, time.Time{}
	inTime(t, "a lead that is given", func() bool {
		ps := c.partitionsOf(0, "orders")
		if unfit >= 0 {
			for _, e := range c.api(0).eventsOf(t, &strandmqv1.ListEventsRequest{Kind: string(coordinator.LeadGiven)}).GetEvents() {
				if e.GetNode() == uint64(c.nodes[unfit].b.cfg.Node) {
					return true
				}
			}
			if time.Since(planted) < 5*time.Second || slices.ContainsFunc(ps, func(p coordinator.Partition) bool { return c.leaderOf(p.ID) == unfit }) {
				return false
			}
			full[unfit].Store(false) // it had lost all leads before: another one
		}
		if unfit = c.leaderOf(ps[0].ID); unfit >= 0 {
			full[unfit].Store(true)
			planted = time.Now()
		}
		return false
	})
	n := c.nodes[unfit]
	ofNode := func(e *strandmqv1.ClusterEvent) bool { return e.GetNode() == uint64(n.b.cfg.Node) }
	for i := range c.nodes {
		a := c.api(i)
		a.awaitEvent(t, coordinator.DiskLow, ofNode)
		a.awaitEvent(t, coordinator.NodeUnfit, ofNode)
		if e := a.awaitEvent(t, coordinator.LeadGiven, ofNode); e.GetTopic() != "orders" && e.GetTopic() != "" || e.GetAdvice() != "strandmq cluster status" {
			t.Errorf("%v", e)
		}
	}
	c.publish(0, "orders", "b", 10)
	full[unfit].Store(false)
	for i := range c.nodes {
		a := c.api(i)
		a.awaitEvent(t, coordinator.DiskRoom, ofNode)
		a.awaitEvent(t, coordinator.NodeFit, ofNode)
	}
}
