package broker

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// inMinutes is inTime for what takes many steps: three nodes and a scrub share the machine
// with other tests.
func inMinutes(t testing.TB, what string, cond func() bool) {
	t.Helper()
	limit := time.Now().Add(3 * time.Minute)
	for !cond() {
		if time.Now().After(limit) {
			t.Fatalf("%s: not within 3 minutes", what)
		}
		time.Sleep(20 * time.Millisecond) // nobody tells the test of a change
	}
}

// filler makes a message large enough for a value file.
var filler = strings.Repeat("all that is stored is checked when it is read; ", 400)

// bodies of one publisher begin so.
func bigBody(prefix string, k int) string { return fmt.Sprintf("[%s %05d]%s", prefix, k, filler) }

// publishBig stores n large messages, and gives the bodies of each key in order.
func (c *three) publishBig(i int, topic, prefix string, n int) map[string][]string {
	c.t.Helper()
	a, out := c.api(i), map[string][]string{}
	for k := range n {
		m := msg(fmt.Sprintf("k%d", k%16), bigBody(prefix, k))
		m.Id = fmt.Sprintf("%s-%d", prefix, k)
		inTime(c.t, "a publish", func() bool {
			res, err := a.publish.Publish(ctx(c.t), &strandmqv1.PublishRequest{Topic: topic, Messages: []*strandmqv1.Message{m}})
			return err == nil && res.GetResults()[0].GetProblem() == nil
		})
		out[m.GetKey()] = append(out[m.GetKey()], m.GetText())
	}
	return out
}

// flip changes a byte of every large message that a node has in its value files, as they
// are: a node that runs has them open.
func flip(t *testing.T, dir, prefix string) (hit int) { return flipBehind(t, dir, "["+prefix+" ") }

// flipBehind changes a byte a little behind each place of a text in the value files.
func flipBehind(t *testing.T, dir, text string) (hit int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "pebble", "*.blob"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // a compaction was faster
		}
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		mark := []byte(text)
		for at := 0; ; {
			i := bytes.Index(data[at:], mark)
			if i < 0 {
				break
			}
			at += i + len(mark)
			if _, err := f.WriteAt([]byte{data[at+20] ^ 4}, int64(at+20)); err != nil {
				t.Fatal(err)
			}
			hit++
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return hit
}

// awaitAnew waits until every partition of a topic has three sound replicas, that of a
// node a new one, and the same on every node.
func (c *three) awaitAnew(topic string, at int, which func(coordinator.Partition) bool) {
	c.t.Helper()
	node := c.nodes[at].b.cfg.Node
	for _, p := range c.partitionsOf(at, topic) {
		if !which(p) {
			continue
		}
		last := ""
		defer func() {
			if c.t.Failed() {
				c.t.Logf("%v: %s", p.ID, last)
			}
		}()
		inMinutes(c.t, fmt.Sprintf("%v made anew on node %v", p.ID, node), func() bool {
			now, _ := c.nodes[at].b.coord.View().Partition(p.ID)
			last = fmt.Sprintf("%+v", *now)
			r, ok := now.Replica(node)
			if !ok || r.Incarnation() == 0 || now.Moving() || now.Rebuild.ID != 0 || len(now.Leaving) > 0 || len(now.Replicas) != 3 {
				return false
			}
			var end partition.Offset
			for i, n := range c.nodes {
				info, err := n.b.host.Info(p.ID)
				last += fmt.Sprintf("\n%v: %+v", n.b.cfg.Node, info)
				if err != nil || info.Fault != "" || len(info.Voters) != 3 || i > 0 && info.Position.End != end || i == at && info.Replica != r {
					return false
				}
				end = info.Position.End
			}
			return true
		})
	}
}

// awaitSound waits until the scrub of a node has passed so often, nothing is known to be
// damaged there, and no replica of the topic is on its way.
func (c *three) awaitSound(topic string, at int, passes uint64) {
	c.t.Helper()
	why := ""
	defer func() {
		if c.t.Failed() {
			c.t.Log(why)
		}
	}()
	inMinutes(c.t, "nothing damaged", func() bool {
		s := c.nodes[at].b.store
		if n := s.Scrub().Passes; n < passes {
			why = fmt.Sprintf("%d passes", n)
			return false
		}
		for _, d := range s.Damage() {
			if !d.Bound {
				info, _ := c.nodes[at].b.host.Info(partition.PartitionID(d.Ranges[0].Partition))
				why = fmt.Sprintf("%+v, %+v", d, info)
				return false
			}
		}
		for _, p := range c.partitionsOf(at, topic) {
			if p.Moving() || p.Rebuild.ID != 0 {
				why = fmt.Sprintf("%+v", p)
				return false
			}
		}
		return true
	})
}

// stands checks that a node's own replicas of a topic have every message that was
// acknowledged, whole, in the order of its key.
func (c *three) stands(at int, topic string, want ...map[string][]string) {
	c.t.Helper()
	got := map[string][]string{}
	for _, p := range c.partitionsOf(at, topic) {
		for from := partition.Offset(0); ; {
			ms, err := c.nodes[at].b.host.Read(p.ID, from, 100, 1<<20)
			if err != nil {
				c.t.Fatalf("%v at %d: %v", p.ID, from, err)
			}
			if len(ms) == 0 {
				break
			}
			for _, m := range ms {
				k := string(m.Record.Key)
				got[k] = append(got[k], string(m.Record.Body))
				from = m.Offset + 1
			}
		}
	}
	all := map[string][]string{}
	for _, w := range want {
		for k, list := range w {
			all[k] = append(all[k], list...)
		}
	}
	for k, list := range all {
		if len(got[k]) != len(list) {
			c.t.Errorf("key %s has %d messages, and %d were acknowledged", k, len(got[k]), len(list))
			continue
		}
		for i := range list {
			if got[k][i] != list[i] {
				c.t.Errorf("key %s: message %d is %.20q, and %.20q was acknowledged", k, i, got[k][i], list[i])
			}
		}
	}
}

func everyPartition(coordinator.Partition) bool { return true }

func scrubs(every time.Duration) func(*Config) {
	return func(c *Config) { c.Store.ScrubEvery, c.Store.ScrubBytesPerSecond = every, 1<<40 }
}

// A node's disk gives back other bytes than were written, in every partition. After its
// next start every replica of it is made anew from the others, and nothing is lost.
func TestDamagedReplicasAreMadeAnew(t *testing.T) {
	t.Parallel()
	c := startThree(t, scrubs(time.Hour))
	c.awaitVoters()
	c.api(0).topic(t, "orders", 3)
	a := c.publishBig(0, "orders", "a", 120)
	const bad = 1
	c.nodes[bad].stop()
	b := c.publishBig(0, "orders", "b", 20)
	if hit := flip(t, c.nodes[bad].cfg.DataDir, "a"); hit < 60 {
		t.Fatalf("%d messages were damaged", hit)
	}
	// With one of the others it is one too few to make it anew.
	c.nodes[2].stop()
	scrubs(300 * time.Millisecond)(&c.nodes[bad].cfg)
	if err := c.nodes[bad].start(); err != nil {
		t.Fatal(err)
	}
	ofBad := func(e *strandmqv1.ClusterEvent) bool {
		return e.GetNode() == uint64(c.nodes[bad].b.cfg.Node) && e.GetTopic() == "orders"
	}
	if e := c.api(0).awaitEvent(t, coordinator.ReplicaKept, ofBad); !strings.Contains(e.GetText(), "too few of the others are there") || e.GetAdvice() != "strandmq doctor" {
		t.Errorf("%v", e)
	}
	if err := c.nodes[2].start(); err != nil {
		t.Fatal(err)
	}
	c.awaitAnew("orders", bad, everyPartition)
	for _, kind := range []coordinator.EventKind{coordinator.ReplicaDamaged, coordinator.ReplicaRemade} {
		c.api(0).awaitEvent(t, kind, ofBad)
	}
	d := c.publishBig(bad, "orders", "d", 20)
	c.awaitAnew("orders", bad, everyPartition)
	for i := range c.nodes {
		c.stands(i, "orders", a, b, d)
	}
	// The new replicas count: with them and one of the others all goes on.
	c.nodes[0].crash()
	c.publish(bad, "orders", "e", 10)
	if got := c.consume(bad, "orders", "g", 170); len(got) == 0 {
		t.Error("nothing is consumed")
	}
}

// The scrub of a node that works finds the damage, in what it leads too.
func TestScrubHasReplicasMadeAnew(t *testing.T) {
	t.Parallel()
	c := startThree(t, scrubs(300*time.Millisecond), func(c *Config) { c.Store.CacheBytes, c.Store.MemTableBytes = 1<<20, 1<<20 })
	c.awaitVoters()
	c.api(0).topic(t, "orders", 3)
	a := c.publishBig(0, "orders", "a", 240)
	ps := c.partitionsOf(0, "orders")
	bad := c.leaderOf(ps[0].ID)
	inMinutes(t, "value files", func() bool { return flip(t, c.nodes[bad].cfg.DataDir, "a") > 0 })
	var anew []partition.PartitionID
	inMinutes(t, "damage that is found", func() bool {
		anew = nil
		for _, p := range c.partitionsOf(bad, "orders") {
			if r, ok := p.Replica(c.nodes[bad].b.cfg.Node); p.Rebuild.ID != 0 || ok && r.Incarnation() > 0 {
				anew = append(anew, p.ID)
			}
		}
		return len(anew) > 0
	})
	b := c.publishBig(0, "orders", "b", 20)
	c.awaitAnew("orders", bad, func(p coordinator.Partition) bool {
		for _, id := range anew {
			if id == p.ID {
				return true
			}
		}
		return false
	})
	c.awaitSound("orders", bad, 0)
	for i := range c.nodes {
		c.stands(i, "orders", a, b)
	}
}

// What the scrub finds in the log of the metadata is of the past: the node lets go of it,
// and nothing damaged is left.
func TestScrubOfTheMetadataLog(t *testing.T) {
	t.Parallel()
	c := startThree(t, scrubs(time.Hour))
	c.awaitVoters()
	long := "orders-" + strings.Repeat("x", 193) // its entry is large enough for a value file
	c.api(0).topic(t, long, 1)
	for i := range 3 {
		c.api(0).topic(t, fmt.Sprintf("other-%d", i), 1)
	}
	a := c.publishBig(0, long, "a", 20)
	const bad = 1
	// What it reads from its disk is in no cache when it starts again.
	c.nodes[bad].stop()
	if hit := flipBehind(t, c.nodes[bad].cfg.DataDir, "orders-"); hit == 0 {
		t.Fatal("the entry is in no value file")
	}
	scrubs(300 * time.Millisecond)(&c.nodes[bad].cfg)
	if err := c.nodes[bad].start(); err != nil {
		t.Fatal(err)
	}
	inMinutes(t, "damage that is found, or gone already", func() bool {
		info, err := c.nodes[bad].b.host.Info(partition.Metadata)
		return c.nodes[bad].b.agent.rotten()[partition.Metadata] != "" || err == nil && info.FirstIndex > 2
	})
	c.awaitSound(long, bad, 1)
	c.api(0).awaitEvent(t, coordinator.EntriesLetGo, func(e *strandmqv1.ClusterEvent) bool { return e.GetNode() == uint64(c.nodes[bad].b.cfg.Node) })
	c.api(bad).topic(t, "later", 1)
	for i := range c.nodes {
		c.stands(i, long, a)
	}
}

// While a damaged replica is made anew, cluster status says so, and why. Its node is
// away when the metadata hears of it, so it is not done before the node is back.
func TestStatusShowsRebuild(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	c.api(0).topic(t, "orders", 1)
	a := c.publishBig(0, "orders", "a", 10)
	p := c.partitionsOf(0, "orders")[0]
	bad := 2
	r, ok := p.Replica(c.nodes[bad].b.cfg.Node)
	if !ok {
		t.Fatalf("no replica on %v: %v", c.nodes[bad].b.cfg.Node, p.Replicas)
	}
	c.nodes[bad].crash()
	inTime(t, "the metadata to know", func() bool {
		l := c.leaderOf(partition.Metadata)
		_, err := c.nodes[l].b.coord.Damaged(ctx(t), p.ID, r, "a block does not read")
		return err == nil
	})
	inTime(t, "its vote to be taken", func() bool {
		now, _ := c.nodes[0].b.coord.View().Partition(p.ID)
		left, ok := now.Left(r.Node())
		return ok && left.Out
	})
	inTime(t, "cluster status to say so", func() bool {
		res, err := c.api(0).cluster.DescribeCluster(ctx(t), &strandmqv1.DescribeClusterRequest{})
		if err != nil || len(res.GetMoving()) != 1 {
			return false
		}
		m := res.GetMoving()[0]
		return m.GetTopic() == "orders" && strings.Contains(m.GetWhy(), "a block does not read") && strings.Contains(m.GetWhy(), r.Node().String()) && len(m.GetNodes()) == 3
	})
	if err := c.nodes[bad].start(); err != nil {
		t.Fatal(err)
	}
	c.awaitAnew("orders", bad, everyPartition)
	c.stands(bad, "orders", a)
}

// A whole file of values is gone from a node's disk. What it held of which partition the
// scrub tells, and those are made anew from the others.
func TestLostFileIsMadeAnew(t *testing.T) {
	t.Parallel()
	c := startThree(t, scrubs(time.Hour))
	c.awaitVoters()
	c.api(0).topic(t, "orders", 3)
	a := c.publishBig(0, "orders", "a", 60)
	const bad = 2
	n := c.nodes[bad]
	n.stop()
	files, err := filepath.Glob(filepath.Join(n.cfg.DataDir, "pebble", "*.blob"))
	if err != nil {
		t.Fatal(err)
	}
	lost, size := "", int64(0)
	for _, f := range files {
		if info, err := os.Stat(f); err == nil && info.Size() > size {
			lost, size = f, info.Size()
		}
	}
	if size < 200_000 {
		t.Fatalf("the largest value file has %d bytes", size)
	}
	if err := os.Remove(lost); err != nil {
		t.Fatal(err)
	}
	scrubs(300 * time.Millisecond)(&n.cfg)
	if err := n.start(); err != nil {
		t.Fatal(err)
	}
	from := n.b.store.Scrub().Passes
	c.awaitSound("orders", bad, from+2) // one may have begun before
	anew := 0
	for _, p := range c.partitionsOf(bad, "orders") {
		if r, ok := p.Replica(n.b.cfg.Node); ok && r.Incarnation() > 0 {
			anew++
		}
	}
	if anew == 0 {
		t.Error("nothing was made anew")
	}
	c.stands(bad, "orders", a)
}

// Entries that are let go of are told once, when they are gone, whoever still waited.
func TestLetGoIsToldOnce(t *testing.T) {
	t.Parallel()
	a := &agent{b: &Broker{events: newHappenings()}, log: clusterLogger(), shedding: 7}
	for _, look := range []struct {
		first partition.Index
		told  int
	}{{1, 0}, {7, 0}, {8, 1}, {9, 1}} {
		a.tellShed(look.first)
		if told := a.b.events.waiting; len(told) != look.told || look.told > 0 && (told[0].kind != coordinator.EntriesLetGo || told[0].count != 1) {
			t.Errorf("its log begins at %d: %+v", look.first, told)
		}
	}
}
