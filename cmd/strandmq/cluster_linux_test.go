package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/table"
	"github.com/strandmq/strandmq/loadtest"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

var clusterKills = flag.Int("cluster.kills", 10, "BenchmarkCluster: how many leaders are killed")

// BenchmarkCluster is BenchmarkShapes against three nodes of a cluster, processes of
// the real binary on this machine, with w3 at a tenth of its rate; and w5, the time
// without acknowledgements after a leader was killed. `make bench-cluster` prints the
// tables.
func BenchmarkCluster(b *testing.B) {
	binary := buildMeasured(b)
	const nodes = 3
	shapes := slices.DeleteFunc(slices.Clone(loadtest.Shapes), func(s loadtest.Shape) bool { return s.Unary })
	for i := range shapes {
		shapes[i].Rate /= 10
	}
	benchShapes(b, binary, shapes, nodes)
	var all []*outage
	b.Run("w5", func(b *testing.B) {
		for range b.N {
			o := measureOutage(b, binary, nodes)
			all = append(all, o)
			b.ReportMetric(o.median().Seconds(), "median-s")
			b.ReportMetric(o.worst().Seconds(), "worst-s")
			b.ReportMetric(0, "ns/op")
		}
	})
	if len(all) == 0 {
		return
	}
	t := table.Table{Head: []string{"SHAPE", "NODES", "KILLS", "MEDIAN", "WORST", "MSG/S", "ACKNOWLEDGED", "LOST", "TWICE"}, Right: []int{1, 2, 3, 4, 5, 6, 7, 8}}
	for _, o := range all {
		t.Add("w5", fmt.Sprint(nodes), fmt.Sprint(len(o.spans)), seconds(o.median()), seconds(o.worst()), whole(o.rate), whole(float64(o.acked)), fmt.Sprint(o.lost), fmt.Sprint(o.twice))
	}
	fmt.Println()
	if err := t.Write(os.Stdout, false); err != nil {
		b.Error(err)
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// outage is what publishers see when leaders are killed.
type outage struct {
	spans []time.Duration // for each kill the longest time that any partition was without an acknowledgement
	rate  float64         // acknowledged a second, all in all
	acked int
	lost  int // acknowledged, and not delivered
	twice int // deliveries beyond the first of a message
}

func (o *outage) sorted() []time.Duration { return slices.Sorted(slices.Values(o.spans)) }

func (o *outage) median() time.Duration { return o.sorted()[(len(o.spans)-1)/2] }
func (o *outage) worst() time.Duration  { return slices.Max(o.spans) }

// gaps are the times between acknowledgements, by partition.
type gaps struct {
	mu      sync.Mutex
	last    []time.Time     // guarded by mu
	longest []time.Duration // guarded by mu: since they were looked at
}

func (g *gaps) acked(partition int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.longest[partition], g.last[partition] = max(g.longest[partition], now.Sub(g.last[partition])), now
}

// look tells the longest of any partition, the one that is not over included.
func (g *gaps) look() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	var longest time.Duration
	for i, d := range g.longest {
		longest = max(longest, d, time.Since(g.last[i]))
		g.longest[i] = 0
	}
	return longest
}

const (
	outagePublishers = 64
	outagePartitions = 8
	// How long a publisher waits for an answer before it asks another node.
	outagePatience = 500 * time.Millisecond
	// How long a killed node stays away, so that what is seen is the others taking over.
	outageAway = 4 * time.Second
)

// measureOutage has 64 publishers publish one message at a time, each until it is
// acknowledged by any node, while the leader of the first partition is killed again
// and again. Then everything is read back.
func measureOutage(b *testing.B, binary string, nodes int) *outage {
	f := startFleet(b, binary, nodes)
	defer func() { f.stop() }()
	l := newLoad(b, f[0].url)
	const topic = "w5"
	l.topic(topic, outagePartitions)
	l.group(topic, "readers")
	route, err := l.publish.Route(b.Context(), &strandmqv1.RouteRequest{Topic: topic})
	l.check(err)
	g := &gaps{last: make([]time.Time, outagePartitions), longest: make([]time.Duration, outagePartitions)}
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	var acked [outagePublishers]atomic.Int64
	began := time.Now()
	for i := range g.last {
		g.last[i] = began
	}
	urls := f.urls()
	for i := range outagePublishers {
		partition := i % outagePartitions
		key := keyOf(route, partition)
		running.Go(func() {
			publishUntilAcked(ctx, urls, i, topic, key, func() { acked[i].Add(1); g.acked(partition) })
		})
	}
	o := &outage{}
	for range *clusterKills {
		time.Sleep(time.Second) // the load between two kills
		victim := f.leader(b, topic)
		g.look()
		f[victim].stop()
		time.Sleep(outageAway) // the load without it
		o.spans = append(o.spans, g.look())
		f[victim] = f[victim].again(b, binary)
		f.await(b)
	}
	span := time.Since(began)
	stop()
	running.Wait()
	for i := range acked {
		o.acked += int(acked[i].Load())
	}
	o.rate = float64(o.acked) / span.Seconds()
	o.readBack(l, topic, &acked)
	return o
}

// publishUntilAcked publishes messages of a key with the numbers 1, 2, ... until ctx
// ends, each until a node acknowledges it.
func publishUntilAcked(ctx context.Context, urls []string, publisher int, topic, key string, acked func()) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	calls := make([]strandmqv1connect.PublishServiceClient, len(urls))
	for i, url := range urls {
		calls[i] = strandmqv1connect.NewPublishServiceClient(&http.Client{Transport: transport}, url)
	}
	at := publisher
	for n := uint64(1); ctx.Err() == nil; n++ {
		body := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(publisher)), n)
		body = append(body, make([]byte, 84)...)
		req := &strandmqv1.PublishRequest{Topic: topic, Messages: []*strandmqv1.Message{{
			KeyKind: &strandmqv1.Message_Key{Key: key}, Id: fmt.Sprintf("%d-%d", publisher, n), Body: &strandmqv1.Message_Bytes{Bytes: body},
		}}}
		for ctx.Err() == nil {
			once, cancel := context.WithTimeout(ctx, outagePatience)
			res, err := calls[at%len(calls)].Publish(once, req)
			cancel()
			if err == nil && len(res.GetResults()) == 1 && res.GetResults()[0].GetProblem() == nil {
				acked()
				break
			}
			at++
			select {
			case <-time.After(5 * time.Millisecond): // a node that is away refuses at once
			case <-ctx.Done():
			}
		}
	}
}

// keyOf finds a key of a partition.
func keyOf(route *strandmqv1.RouteResponse, partition int) string {
	p := route.GetPartitions()[partition]
	for n := 0; ; n++ {
		key := fmt.Sprint("key-", n)
		if h := keyspace.HashString(route.GetSeed(), key); p.GetHashFirst() <= h && h <= p.GetHashLast() {
			return key
		}
	}
}

// leader finds the node that leads the first partition of a topic.
func (f fleet) leader(b *testing.B, topic string) int {
	b.Helper()
	for deadline := time.Now().Add(devPatience); time.Now().Before(deadline); {
		res, err := f[0].dial().topics.DescribeTopic(b.Context(), &strandmqv1.DescribeTopicRequest{Topic: topic})
		if err == nil && len(res.GetPartitions()) > 0 {
			if n := res.GetPartitions()[0].GetLeader(); n >= 1 && n <= uint64(len(f)) {
				return int(n - 1)
			}
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
	b.Fatalf("nobody leads topic %s", topic)
	return 0
}

// readBack consumes everything and compares it with what was acknowledged. What was
// sent and not acknowledged may be there or not.
func (o *outage) readBack(l *load, topic string, acked *[outagePublishers]atomic.Int64) {
	var seen [outagePublishers]map[uint64]int
	for i := range seen {
		seen[i] = map[uint64]int{}
	}
	m := l.take(topic, "readers", 5000)
	// What was on its way to the log at the end comes in beside those that are counted.
	for left := l.counts(topic, "readers").GetLag(); left > 0; left = l.counts(topic, "readers").GetLag() {
		m.run(int(left), func(d *delivery) *strandmqv1.SettleRun {
			seen[binary.BigEndian.Uint64(d.body)][binary.BigEndian.Uint64(d.body[8:])]++
			return d.settle(strandmqv1.SettleAction_SETTLE_ACTION_ACK, 0)
		})
	}
	for i := range seen {
		for n := uint64(1); n <= uint64(acked[i].Load()); n++ {
			switch k := seen[i][n]; {
			case k == 0:
				o.lost++
			case k > 1:
				o.twice += k - 1
			}
		}
	}
	if o.lost > 0 {
		l.b.Errorf("%d of %d messages that were acknowledged are not there", o.lost, o.acked)
	}
}
