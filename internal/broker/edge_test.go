package broker

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/heldport"
	"github.com/strandmq/strandmq/partition"
)

// A cluster is two nodes in one process, joined over plain HTTP/2 on loopback: the
// owner, which leads the metadata log, and the edge, whose map follows it. Who
// leads the partitions is the test's choice; each has one replica.
type cluster struct {
	t           testing.TB
	owner, edge *Broker
	http        *http.Client

	mu    sync.Mutex
	leads func(partition.PartitionID) partition.NodeID // guarded by mu
	urls  map[partition.NodeID]string                  // guarded by mu
	stops map[partition.NodeID]func()                  // guarded by mu: ends its listener, and all connections
	nodes map[partition.NodeID]*Broker                 // guarded by mu
}

// clusters are those that run, by their edge, for helpers that only have that.
var clusters sync.Map //nolint:gochecknoglobals // of tests

const (
	ownerNode partition.NodeID = 1
	edgeNode  partition.NodeID = 2
)

// startCluster starts both. Without leads, the owner leads everything.
func startCluster(t testing.TB, leads func(partition.PartitionID) partition.NodeID, change ...func(*Config)) *cluster {
	t.Helper()
	if leads == nil {
		leads = func(partition.PartitionID) partition.NodeID { return ownerNode }
	}
	c := &cluster{
		t: t, leads: leads, http: httpClient(t, true), urls: map[partition.NodeID]string{}, stops: map[partition.NodeID]func(){},
		nodes: map[partition.NodeID]*Broker{},
	}
	c.owner = c.node(ownerNode, func(ctx context.Context, h *partition.Host, co *coordinator.Coordinator, _ *coordinator.App) error {
		if _, err := co.Bootstrap(ctx, ""); err != nil {
			return err
		}
		_, err := co.Found(ctx, coordinator.Address{Store: "5ea1", Boot: 1})
		return err
	}, change...)
	c.edge = c.node(edgeNode, c.follow, change...)
	clusters.Store(c.edge, c)
	t.Cleanup(func() { clusters.Delete(c.edge) })
	return c
}

// node starts one node and its listener for the other.
func (c *cluster) node(id partition.NodeID, meta func(context.Context, *partition.Host, *coordinator.Coordinator, *coordinator.App) error, change ...func(*Config)) *Broker {
	c.t.Helper()
	peers := &Peers{
		Client: func(n partition.NodeID) (*http.Client, string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.urls[n] == "" {
				return nil, ""
			}
			return c.http, c.urls[n]
		},
		Serve:    func(h http.Handler) { c.serve(id, h) },
		Replicas: func(p partition.PartitionID) []partition.NodeID { return []partition.NodeID{c.leader(p)} },
		Leader:   c.leader, Metadata: meta,
		Created: func(ctx context.Context, p partition.PartitionID) error { return c.at(c.leader(p)).host.Create(ctx, p) },
		Dropped: func(ctx context.Context, p partition.PartitionID) error {
			for _, n := range []partition.NodeID{ownerNode, edgeNode} {
				if b := c.at(n); b != nil {
					if err := b.host.Drop(ctx, p); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	b := startAlone(c.t, c.t.TempDir(), append(change, func(cfg *Config) { cfg.Node, cfg.Peers = id, peers })...)
	c.mu.Lock()
	c.nodes[id] = b
	c.mu.Unlock()
	return b
}

// serve lets the other node in, until the test ends or part cuts it.
func (c *cluster) serve(id partition.NodeID, h http.Handler) {
	// Held: when the node is cut off, nobody else is to be met at its address.
	l, err := net.Listen("tcp", heldport.Address(c.t))
	if err != nil {
		c.t.Fatal(err)
	}
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: h, Protocols: &p, ReadHeaderTimeout: time.Minute}
	// Close leaves connections of HTTP/2 without TLS alone.
	var mu sync.Mutex
	var conns []net.Conn
	s.ConnState = func(c net.Conn, st http.ConnState) {
		if st == http.StateNew {
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	stop := sync.OnceFunc(func() {
		_ = s.Close()
		<-done
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			_ = c.Close()
		}
	})
	c.t.Cleanup(stop)
	c.mu.Lock()
	c.urls[id] = "http://" + l.Addr().String()
	c.stops[id] = stop
	c.mu.Unlock()
}

func (c *cluster) leader(p partition.PartitionID) partition.NodeID {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p == partition.Metadata {
		return ownerNode
	}
	return c.leads(p)
}

func (c *cluster) at(n partition.NodeID) *Broker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[n]
}

// follow has the edge's map follow the owner's log.
func (c *cluster) follow(ctx context.Context, h *partition.Host, _ *coordinator.Coordinator, app *coordinator.App) error {
	from := partition.Index(1)
	step := func(ctx context.Context) error {
		var news []partition.LogEntry
		err := c.owner.host.Scan(ctx, partition.Metadata, from, func(e partition.LogEntry) bool {
			if e.Kind == partition.Command {
				e.Data = bytes.Clone(e.Data)
				news = append(news, e)
			}
			return true
		})
		if err != nil || len(news) == 0 {
			return err
		}
		var bad error
		err = h.View(ctx, partition.Metadata, func(partition.App, partition.Position) {
			app.Lead(false) // it is the owner that leads
			for _, e := range news {
				if _, bad = app.Apply(partition.Position{Index: e.Index}, e.Data); bad != nil {
					return
				}
				from = e.Index + 1
			}
		})
		if err == nil {
			err = bad
		}
		return err
	}
	if err := step(ctx); err != nil {
		return err
	}
	stop, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for stop.Err() == nil {
			_, changed := c.owner.coord.Watch()
			if err := step(stop); err != nil {
				return // a node stops
			}
			select {
			case <-changed:
			case <-time.After(50 * time.Millisecond): // what came between Watch and the look
			case <-stop.Done():
			}
		}
	}()
	c.t.Cleanup(func() {
		cancel()
		<-done
	})
	return nil
}

// throughEdge tells tests that run once more behind an edge, and who leads.
func throughEdge(t testing.TB) (leads func(partition.PartitionID) partition.NodeID, is bool) {
	name := t.Name()
	switch {
	case strings.HasPrefix(name, "TestThroughEdge/"):
		return nil, true
	case strings.HasPrefix(name, "TestOverBoth/"):
		return func(p partition.PartitionID) partition.NodeID { return 1 + partition.NodeID(p%2) }, true
	}
	return nil, false
}

// again are tests of the API that must come out the same behind a node which leads
// nothing, and behind one which leads half of the partitions.
func again() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"PublishReceiveSettle": TestPublishReceiveSettle, "PublishStream": TestPublishStream, "PublishStreamRefusesAlone": TestPublishStreamRefusesAlone,
		"Consume": TestConsume, "ConsumeCredits": TestConsumeCredits, "ConsumeEnds": TestConsumeEnds, "ConsumeSettles": TestConsumeSettles,
		"ConsumeOpens": TestConsumeOpens, "ConsumeAssignment": TestConsumeAssignment, "Subscribe": TestSubscribe,
		"ConsumeDrains": TestConsumeDrains, "ConsumeDrainsWhatIsOnItsWay": TestConsumeDrainsWhatIsOnItsWay, "DrainByCalls": TestDrainByCalls,
		"SubscribeDrains": TestSubscribeDrains, "MissedMember": TestMissedMember,
		"PlainPublish": TestPlainPublish, "PlainTopics": TestPlainTopics,
		"PlainPollAndSettle": TestPlainPollAndSettle, "PlainRead": TestPlainRead, "PlainEvents": TestPlainEvents,
	}
}

func TestThroughEdge(t *testing.T) {
	for name, test := range again() {
		t.Run(name, test)
	}
}

func TestOverBoth(t *testing.T) {
	for name, test := range again() {
		t.Run(name, test)
	}
}

// metricOfAll adds a metric up over the nodes that there are, of which one is given.
func metricOfAll(t *testing.T, b *Broker, name string) (sum float64) {
	t.Helper()
	c, ok := clusters.Load(b)
	if !ok {
		return metric(t, b, name)
	}
	for _, n := range []*Broker{c.(*cluster).owner, b} {
		sum += metric(t, n, name)
	}
	return sum
}
