package broker

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
	"github.com/strandmq/strandmq/proto/node/v1/nodev1connect"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// part cuts a node off from the other: its connections break, and it cannot be
// reached. rejoin gives it another address.
func (c *cluster) part(n partition.NodeID) {
	c.mu.Lock()
	stop := c.stops[n]
	c.mu.Unlock()
	stop()
}

func (c *cluster) rejoin(n partition.NodeID) { c.serve(n, c.at(n).nodeHandler()) }

// Publishers with message ids, behind an edge whose connection to
// the owner breaks again and again: every call is answered, nothing is lost or
// stored twice, and every key is in order. The calls need not try again: what is
// harmless twice the edge repeats.
func TestEdgePublishesThroughCuts(t *testing.T) {
	t.Parallel()
	c := startCluster(t, nil)
	a := newAPI(t, c.edge.URL())
	a.topic(t, "t", 4)
	const keys, per = 6, 60
	var publishers sync.WaitGroup
	var stored atomic.Int64
	done, cut := make(chan struct{}), make(chan struct{})
	for k := range keys {
		publishers.Go(func() {
			key := fmt.Sprint("key-", k)
			for i := range per {
				if i == per/2 {
					<-cut // there was one
				}
				m := msg(key, fmt.Sprintf("%d/%d", k, i))
				m.Id = fmt.Sprintf("%d-%d", k, i)
				for {
					res, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{m}})
					if err == nil && res.GetResults()[0].GetReceipt() != nil {
						stored.Add(1)
						break
					}
					if p := problemIn(err, res); p != "OUTCOME_UNKNOWN" && p != "NOT_LEADER" {
						t.Errorf("%s: %v, %v", m.GetId(), res, err)
						return
					}
				}
			}
		})
	}
	go func() {
		publishers.Wait()
		close(done)
	}()
	once := sync.OnceFunc(func() { close(cut) })
	for was, over := int64(0), false; !over; {
		select {
		case <-done:
			over = true
		case <-time.After(10 * time.Millisecond): // between looks at whether some got through since the last cut
			if n := stored.Load(); n >= was+keys {
				was = n
				c.part(ownerNode)
				c.rejoin(ownerNode)
				once()
			}
		}
	}
	next, n := map[int]int{}, 0
	a.group(t, "t", "reader", &strandmqv1.GroupPolicy{Mode: strandmqv1.GroupMode_GROUP_MODE_NONE})
	for n < keys*per {
		ds := a.receive(t, "t", "reader", "m", 100)
		if len(ds) == 0 {
			t.Fatalf("%d of %d came", n, keys*per)
		}
		slices.SortStableFunc(ds, func(x, y *strandmqv1.Delivery) int { return int(x.GetOffset()) - int(y.GetOffset()) })
		for _, d := range ds {
			var k, i int
			if _, err := fmt.Sscanf(d.GetMessage().GetText(), "%d/%d", &k, &i); err != nil || next[k] != i {
				t.Fatalf("key %d: %d, want %d", k, i, next[k])
			}
			next[k]++
			n++
			a.done(t, "t", "reader", d, ack, "")
		}
	}
	a.none(t, "t", "reader", "m")
}

func problemIn(err error, res *strandmqv1.PublishResponse) string {
	if err != nil {
		var own *connect.Error
		if errors.As(err, &own) {
			for _, d := range own.Details() {
				if v, bad := d.Value(); bad == nil {
					if p, ok := v.(*strandmqv1.Problem); ok {
						return p.GetReason()
					}
				}
			}
		}
		return err.Error()
	}
	return res.GetResults()[0].GetProblem().GetReason()
}

// An owner that is gone: what is not idempotent and was on its way is unknown or
// not stored, and what comes later is refused in time, as having no leader. Reads
// of the map go on.
func TestEdgeWithoutOwner(t *testing.T) {
	t.Parallel() // it waits for patience to end
	c := startCluster(t, nil)
	a := newAPI(t, c.edge.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", nil)
	a.store(t, "t", msg("k", "one"))
	c.part(ownerNode)
	send := func() string {
		res, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "two")}})
		return problemIn(err, res)
	}
	// The edge may hear of the cut only by what it sends: of that it cannot know.
	for {
		p := send()
		if p == "NOT_LEADER" {
			break
		}
		if p != "OUTCOME_UNKNOWN" {
			t.Fatal(p)
		}
	}
	_, err := a.topics.CreateTopic(ctx(t), &strandmqv1.CreateTopicRequest{Topic: "u"})
	wantReason(t, err, "NOT_LEADER")
	if res, err := a.topics.ListTopics(ctx(t), &strandmqv1.ListTopicsRequest{}); err != nil || len(res.GetTopics()) != 1 {
		t.Fatalf("%v, %v", res, err)
	}
	c.rejoin(ownerNode)
	if r := a.store(t, "t", msg("k", "two")); r[0].GetOffset() != 1 {
		t.Fatalf("%v: what was refused is stored", r)
	}
}

// What a leader handed out and could not tell is in the answer all the same, beside what
// others gave: the next request would not get it.
func TestReceiveAfterALostAnswer(t *testing.T) {
	c := startCluster(t, func(p partition.PartitionID) partition.NodeID { return 1 + partition.NodeID(p%2) })
	a := newAPI(t, c.edge.URL())
	a.topic(t, "t", 4)
	a.group(t, "t", "g", patient())
	const n = 40
	a.fill(t, "t", n, n)
	var lost atomic.Int64
	real := c.owner.nodeHandler()
	c.part(ownerNode)
	c.serve(ownerNode, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != nodev1connect.PartitionServiceReceiveProcedure || lost.Load() > 0 {
			real.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		real.ServeHTTP(rec, r)
		var res nodev1.ReceiveResponse
		if err := proto.Unmarshal(rec.Body.Bytes(), &res); err == nil && len(res.GetHanded()) > 0 && lost.CompareAndSwap(0, int64(len(res.GetHanded()))) {
			panic(http.ErrAbortHandler) // it is done, and nobody hears of it
		}
		maps.Copy(w.Header(), rec.Header())
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	}))
	res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", MaxMessages: n, WaitMs: 60_000, RequestId: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	if lost.Load() == 0 || len(res.GetDeliveries()) != n {
		t.Fatalf("%d of %d came; %d were handed out in an answer that was lost", len(res.GetDeliveries()), n, lost.Load())
	}
	for _, d := range res.GetDeliveries() {
		if d.GetAttempt() != 1 {
			t.Errorf("attempt %d", d.GetAttempt())
		}
	}
	// Asked again while that leader is away, the answer is whole once it is back.
	c.part(ownerNode)
	back := make(chan struct{})
	go func() {
		defer close(back)
		time.Sleep(100 * time.Millisecond) // so that the call most likely finds it away
		c.rejoin(ownerNode)
	}()
	again, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", MaxMessages: n, WaitMs: 60_000, RequestId: "r1"})
	if err != nil || len(again.GetDeliveries()) != n {
		t.Errorf("%v, %d of %d came again", err, len(again.GetDeliveries()), n)
	}
	<-back
}

// A member's stream at the edge outlives the connection to the owner: what was
// handed out and did not come, comes, once and with the same attempt, what was
// settled stays settled, and no more comes than there are credits.
func TestEdgeStreamsThroughCuts(t *testing.T) {
	t.Parallel()
	c := startCluster(t, func(p partition.PartitionID) partition.NodeID { return 1 + partition.NodeID(p%2) })
	a := newAPI(t, c.edge.URL())
	a.topic(t, "t", 4)
	a.group(t, "t", "g", patient())
	const n = 200
	a.fill(t, "t", n, n)
	m := joins(t, opener(t, c.edge), opened("t", "g", "m"), 0)
	seen := map[string]int{}
	for came := 0; came < n; {
		if came%40 == 20 {
			c.part(ownerNode)
			c.rejoin(ownerNode)
		}
		m.send(&strandmqv1.ConsumeRequest{Credits: 10})
		for _, d := range m.take(10) {
			if seen[d.body]++; seen[d.body] > 1 {
				t.Fatalf("%s came twice", d.body)
			}
			if d.attempt != 1 {
				t.Fatalf("%s came as attempt %d", d.body, d.attempt)
			}
			came++
			m.settle(ack, d.number, d.number)
			for _, r := range m.results(1) {
				if r.GetProblem() != nil {
					t.Fatalf("%s: %v", d.body, r)
				}
			}
		}
	}
	if got := a.describe(t, "t", "g").GetCounts(); got.GetAcked() != n || got.GetHandedOut() != n {
		t.Fatalf("%v", got)
	}
}

// What a leader of the metadata log left half done, the next one finishes.
func TestLeadMetadata(t *testing.T) {
	t.Parallel()
	c := startCluster(t, func(p partition.PartitionID) partition.NodeID { return 1 + partition.NodeID(p%2) })
	a := newAPI(t, c.edge.URL())
	if _, _, err := c.owner.coord.CreateTopic(ctx(t), coordinator.TopicSpec{Name: "t", Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	_, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "x")}})
	wantReason(t, err, "IN_PROGRESS")
	if err := c.owner.LeadMetadata(ctx(t)); err != nil {
		t.Fatal(err)
	}
	a.store(t, "t", msg("k", "x"))
	a.group(t, "t", "g", nil)
	if d := a.one(t, "t", "g", "m"); d.GetMessage().GetText() != "x" {
		t.Fatalf("%v", d)
	}
	if err := c.owner.LeadMetadata(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if got := a.describe(t, "t", "g").GetCounts().GetInFlight(); got != 1 {
		t.Fatalf("%d in flight: a member with a session keeps what it holds", got)
	}
}

// A node that does not answer is not told as a partition without a leader.
func TestWhyIdleNamesTheNode(t *testing.T) {
	t.Parallel()
	c := startCluster(t, nil)
	newAPI(t, c.edge.URL()).topic(t, "t", 1)
	newAPI(t, c.edge.URL()).group(t, "t", "g", nil)
	top, err := c.edge.topic("t")
	if err != nil {
		t.Fatal(err)
	}
	c.part(ownerNode)
	share := consumer.Share{Partition: top.Partitions[0].ID}
	if got, want := c.edge.far.whyIdle(ctx(t), 1, []consumer.Share{share}), "node n1, which leads partitions of the topic, was not asked in time"; got != want {
		t.Errorf("it says %q and not %q", got, want)
	}
}
