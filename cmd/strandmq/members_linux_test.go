package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// BenchmarkMembers has 2,000 members in 200 groups of 20 topics, on one node and on
// three, and measures how long it takes until the assignment of each group is complete
// after all of them joined, one of each group left, and it came back; and what the
// nodes take when nothing happens. `make bench-members` prints the table.
func BenchmarkMembers(b *testing.B) {
	binary := buildMeasured(b)
	t := table.Table{
		Head:  []string{"NODES", "MEMBERS", "ALL JOINED", "ONE OF EACH LEFT", "AND CAME BACK", "CORES AT REST", "RESIDENT"},
		Right: []int{0, 1, 2, 3, 4, 5, 6},
	}
	for _, nodes := range []int{1, 3} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			for range b.N {
				c := newCrowds(b, binary, nodes)
				joined := c.timed(crowdSize, func(g *crowd) { g.join(0, crowdSize) })
				cores, resident := c.rest()
				left := c.timed(crowdSize-1, func(g *crowd) { g.leave(0) })
				back := c.timed(crowdSize, func(g *crowd) { g.join(0, 1) })
				c.end()
				t.Add(nodes, whole(crowds*crowdSize), seconds(joined), seconds(left), seconds(back), fmt.Sprintf("%.3f", cores), fmt.Sprintf("%.0f MiB", resident))
			}
		})
	}
	fmt.Println()
	if err := t.Write(os.Stdout, false); err != nil {
		b.Error(err)
	}
}

const (
	crowds          = 200 // groups
	crowdSize       = 10  // members of each
	crowdTopics     = 20
	crowdPartitions = 8
)

// gathering is many groups with many members.
type gathering struct {
	b     *testing.B
	fleet fleet
	c     *client.Client
	all   []*crowd
}

// crowd is a group, and its members that are here.
type crowd struct {
	of          *gathering
	topic, name string
	here        map[int]func() // by number: what ends it
}

func newCrowds(b *testing.B, binary string, nodes int) *gathering {
	g := &gathering{b: b, fleet: startFleet(b, binary, nodes)}
	var err error
	if g.c, err = client.New(g.fleet.urls()); err != nil {
		b.Fatal(err)
	}
	for i := range crowdTopics {
		_, err := g.c.Admin().CreateTopic(b.Context(), &strandmqv1.CreateTopicRequest{Topic: topicName(i), Partitions: crowdPartitions})
		if err != nil {
			b.Fatal(err)
		}
	}
	for i := range crowds {
		x := &crowd{of: g, topic: topicName(i % crowdTopics), name: fmt.Sprint("g", i), here: map[int]func(){}}
		g.all = append(g.all, x)
		if _, err := g.c.Admin().CreateGroup(b.Context(), &strandmqv1.CreateGroupRequest{Topic: x.topic, Group: x.name}); err != nil {
			b.Fatal(err)
		}
	}
	return g
}

func topicName(i int) string { return fmt.Sprint("t", i) }

// join has members join that run until they leave.
func (x *crowd) join(from, to int) {
	for n := from; n < to; n++ {
		m, err := x.of.c.Consumer(x.topic, x.name, client.WithMember(fmt.Sprint("m", n)))
		if err != nil {
			x.of.b.Fatal(err)
		}
		ctx, stop := context.WithCancel(x.of.b.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx, func(context.Context, *client.Delivery) error { return nil }) }()
		x.here[n] = func() {
			stop()
			if err := <-ended; err != nil {
				x.of.b.Errorf("member %d of %s: %v", n, x.name, err)
			}
		}
	}
}

func (x *crowd) leave(n int) {
	x.here[n]()
	delete(x.here, n)
}

// timed changes every group, and tells how long it took until all of them were
// assigned to so many members, completely.
func (g *gathering) timed(members int, change func(*crowd)) time.Duration {
	began := time.Now()
	var changing sync.WaitGroup
	for _, x := range g.all {
		changing.Go(func() { change(x) })
	}
	changing.Wait()
	var waiting sync.WaitGroup
	turn := make(chan struct{}, 8) // looks at a time
	for _, x := range g.all {
		waiting.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			for !x.settled(members) {
				time.Sleep(20 * time.Millisecond) // between two looks
			}
		})
	}
	waiting.Wait()
	return time.Since(began)
}

// settled tells whether each of so many members has something, and all together have
// everything once.
func (x *crowd) settled(members int) bool {
	d, err := x.of.c.Admin().DescribeGroup(x.of.b.Context(), x.topic, x.name)
	if err != nil {
		x.of.b.Error(err)
		return true
	}
	busy, given := 0, map[uint32]float64{}
	for _, m := range d.GetMembers() {
		if len(m.GetAssignment()) > 0 {
			busy++
		}
		for _, s := range m.GetAssignment() {
			given[s.GetPartition()] += 1 / float64(s.GetShares())
		}
	}
	whole := busy == members && len(given) == crowdPartitions
	for _, part := range given {
		whole = whole && part > 0.999 && part < 1.001
	}
	return whole
}

// rest is the processor time that the busiest node takes while nothing happens, in
// cores, and what all of them together have in memory.
func (g *gathering) rest() (cores, resident float64) {
	time.Sleep(3 * time.Second) // what joining left to do
	const look = 20 * time.Second
	before := make([]float64, len(g.fleet))
	for i, p := range g.fleet {
		before[i] = p.count(g.b).server
	}
	time.Sleep(look) // what is measured
	for i, p := range g.fleet {
		cores = max(cores, (p.count(g.b).server-before[i])/look.Seconds())
		resident += p.watch(g.b).memory(g.b).now
	}
	return cores, resident
}

func (g *gathering) end() {
	var leaving sync.WaitGroup
	for _, x := range g.all {
		leaving.Go(func() {
			for n := range x.here {
				x.leave(n)
			}
		})
	}
	leaving.Wait()
	_ = g.c.Close()
	g.fleet.stop()
}
