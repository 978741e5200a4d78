package broker

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// streamOf is a stream at a broker for a new session of a member, over a whole topic.
func streamOf(t *testing.T, b *Broker, topic, group, member string, mem *holding) *gather {
	t.Helper()
	j, err := b.join(ctx(t), b.members.JoinStream, topic, group, member)
	if err != nil {
		t.Fatal(err)
	}
	g, err := b.far.gather(ctx(t), consumer.StreamRequest{Group: consumer.GroupID(j.Group.ID), Member: member, Session: j.Member.Session}, mem)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.detach() })
	shares := make([]coordinator.Share, len(j.Topic.Partitions))
	for i := range shares {
		shares[i] = coordinator.Share{Partition: uint32(i), Shares: 1}
	}
	known, err := b.topic(topic)
	if err != nil {
		t.Fatal(err)
	}
	g.SetShares(sharesOf(known, shares))
	return g
}

// What another node hands out to a member that takes nothing is bounded by the memory
// of streams, and counts in it; what is given back counts no more.
func TestFarDeliveriesCount(t *testing.T) {
	t.Parallel()
	c := startCluster(t, nil, func(cfg *Config) { cfg.StreamMemory = 16 << 20 })
	a := newAPI(t, c.owner.URL())
	a.topic(t, "t", 2)
	a.group(t, "t", "g", patient())
	const n, size = 200, 20 << 10 // 4 MB
	body := strings.Repeat("x", size)
	for range 4 {
		ms := make([]*strandmqv1.Message, n/4)
		for j := range ms {
			ms[j] = msg("", body)
		}
		a.store(t, "t", ms...)
	}
	a.store(t, "t", msg("large", strings.Repeat("y", 900<<10)))
	eventually(t, "the edge knows the group", func() bool { _, _, err := c.edge.group("t", "g"); return err == nil })
	mem, err := c.edge.memory.open()
	if err != nil {
		t.Fatal(err)
	}
	defer mem.close()
	g := streamOf(t, c.edge, "t", "g", "m", mem)
	held := func() int64 {
		c.edge.memory.mu.Lock()
		defer c.edge.memory.mu.Unlock()
		return mem.held
	}
	far := func() *attachment {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.at[ownerNode]
	}
	g.AddCredit(n + 1)
	got, large := 0, 0
	take := func(most int) bool {
		hs, err := g.Poll(most)
		if err != nil {
			t.Fatal(err)
		}
		for i := range hs {
			got += len(hs[i].Deliveries)
			for _, d := range hs[i].Deliveries {
				if d.Message.Record.Size() > size+100 {
					large++
				}
			}
		}
		g.polled()
		return len(hs) > 0
	}
	for round := range 3 {
		eventually(t, "the owner has more than it may send", func() bool {
			a := far()
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.wants > 0 && g.Waiting() > 0
		})
		a := far()
		a.mu.Lock()
		waiting, lent := g.Waiting(), a.bytes
		a.mu.Unlock()
		if waiting+lent > frameBytes+size {
			t.Errorf("round %d: %d KiB came and %d more may, to a member that takes nothing", round, waiting>>10, lent>>10)
		}
		if h := held(); h < waiting*frameCopies {
			t.Errorf("round %d: %d KiB wait, and %d are counted", round, waiting>>10, h>>10)
		}
		take(frameBytes)
	}
	// With the memory all in use, what came is taken, and nothing more comes.
	other, err := c.edge.memory.open()
	if err != nil {
		t.Fatal(err)
	}
	other.add(c.edge.memory.max)
	eventually(t, "the owner waits for memory", func() bool {
		for take(leastFrame) {
		}
		a := far()
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.short != nil
	})
	other.close()
	eventually(t, "everything came", func() bool {
		for take(leastFrame) {
		}
		return got == n+1
	})
	if large != 1 {
		t.Errorf("%d large messages", large)
	}
	// A time without anything to do gives back what is more than the least.
	_ = g.WhyIdle(ctx(t))
	eventually(t, "an idle member holds the least", func() bool { return held() <= leastFrame*frameCopies })
}

// Members at a node that leads nothing, which read nothing, hold what is configured;
// one more works beside them, whose messages are large.
func TestCrowdOfFarStreams(t *testing.T) {
	t.Parallel()
	const most = 16 << 20
	c := startCluster(t, nil, func(cfg *Config) { cfg.StreamMemory = most })
	a := newAPI(t, c.owner.URL())
	a.topic(t, "t", 2)
	body := strings.Repeat("x", 14<<10)
	for range 4 {
		ms := make([]*strandmqv1.Message, 200)
		for j := range ms {
			ms[j] = msg("", body)
		}
		a.store(t, "t", ms...)
	}
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	narrow := &http.Transport{Protocols: &p, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 1 << 16, MaxReceiveBufferPerConnection: 1 << 17}}
	defer narrow.CloseIdleConnections()
	crowd := apiOver(&http.Client{Transport: narrow}, c.edge.URL())
	cut, leave := context.WithCancel(ctx(t))
	defer leave()
	var ends []func() error // the Connect client does not see that the context ends
	const streams = 40
	for i := range streams {
		group := fmt.Sprint("g", i)
		a.group(t, "t", group, patient())
		s := crowd.consumeStream(t, cut)
		what := opened("t", group, "m")
		what.RecordBatches = i%2 == 0
		if err := s.Send(&strandmqv1.ConsumeRequest{Open: what, Credits: 1_000_000}); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, s.(interface{ CloseResponse() error }).CloseResponse)
	}
	peak := int64(0)
	eventually(t, "the crowd holds half of it", func() bool {
		peak = max(peak, c.edge.memory.inUse())
		return peak > most/2
	})
	a.topic(t, "mine", 1)
	a.group(t, "mine", "g", patient())
	m := joins(t, opener(t, c.edge), opened("mine", "g", "m"), 100)
	for i := range 10 {
		a.store(t, "mine", msg(fmt.Sprint(i), body), msg("", strings.Repeat("y", 300<<10)))
		m.take(2)
		peak = max(peak, c.edge.memory.inUse())
	}
	if peak > most+(streams+1)*leastTaken {
		t.Errorf("the streams held %d KiB, where %d are to be held", peak>>10, most>>10)
	}
	leave()
	for _, end := range ends {
		_ = end()
	}
	m.cut()
}

// A stream ends while there is something to tell the other node, too.
func TestDetachEndsAttachments(t *testing.T) {
	t.Parallel()
	c := startCluster(t, nil)
	a := newAPI(t, c.owner.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", patient())
	eventually(t, "the edge knows the group", func() bool { _, _, err := c.edge.group("t", "g"); return err == nil })
	a.store(t, "t", msg("k", "x"))
	for i := range 20 {
		g := streamOf(t, c.edge, "t", "g", fmt.Sprint("m", i), nil)
		g.mu.Lock()
		far := g.at[ownerNode]
		g.mu.Unlock()
		eventually(t, "the owner has answered", far.hungers)
		far.mu.Lock()
		g.cancel()
		far.callIn = true
		nudge(far.wake)
		far.mu.Unlock()
		done := make(chan struct{})
		go func() { defer close(done); g.detach() }()
		select {
		case <-done:
		case <-ctx(t).Done():
			t.Fatal("the stream does not end")
		}
	}
}
