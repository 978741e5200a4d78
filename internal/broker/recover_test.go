package broker

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Whatever was begun and not finished when the broker stopped is finished when
// it starts: each case stops at the worst moment of one change.
func TestReconcile(t *testing.T) {
	for _, c := range []struct {
		name  string
		begin func(t *testing.T, b *Broker) error // with topic t and group g there, 10 messages in t
		check func(t *testing.T, b *Broker, a api)
	}{
		{"topic created, no partition yet", func(t *testing.T, b *Broker) error {
			_, _, err := b.coord.CreateTopic(ctx(t), coordinator.TopicSpec{Name: "new", Partitions: 3})
			return err
		}, func(t *testing.T, b *Broker, a api) {
			a.store(t, "new", msg("a", "x"), msg("b", "x"), msg("c", "x"))
		}},
		{"topic created, some partitions", func(t *testing.T, b *Broker) error {
			topic, _, err := b.coord.CreateTopic(ctx(t), coordinator.TopicSpec{Name: "new", Partitions: 3})
			if err != nil {
				return err
			}
			return b.host.Create(ctx(t), topic.Partitions[1].ID)
		}, func(t *testing.T, b *Broker, a api) {
			a.store(t, "new", msg("a", "x"), msg("b", "x"), msg("c", "x"))
		}},
		{"topic deletion begun", func(t *testing.T, b *Broker) error {
			_, err := b.coord.DeleteTopic(ctx(t), "t", "t")
			return err
		}, gone},
		{"topic deletion half done", func(t *testing.T, b *Broker) error {
			topic, err := b.coord.DeleteTopic(ctx(t), "t", "t")
			if err != nil {
				return err
			}
			return b.host.Drop(ctx(t), topic.Partitions[0].ID)
		}, gone},
		{"a partition of nothing", func(t *testing.T, b *Broker) error {
			return b.host.Create(ctx(t), 1<<40)
		}, func(t *testing.T, b *Broker, _ api) {
			if n := len(b.host.Partitions()); n != 3 {
				t.Fatalf("%d partitions, want 3", n)
			}
		}},
		{"group created, in no partition", func(t *testing.T, b *Broker) error {
			_, _, err := b.coord.CreateGroup(ctx(t), coordinator.GroupSpec{Topic: "t", Name: "new", Policy: policyProto(consumer.Default())})
			return err
		}, func(t *testing.T, b *Broker, a api) {
			if lag := a.describe(t, "t", "new").GetCounts().GetLag(); lag != 10 {
				t.Fatalf("lag %d", lag)
			}
		}},
		{"group altered, in no partition", func(t *testing.T, b *Broker) error {
			_, err := b.coord.AlterGroup(ctx(t), "t", "g", func(p *strandmqv1.GroupPolicy) error { p.MaxAttempts = proto.Uint32(9); return nil })
			return err
		}, func(t *testing.T, b *Broker, _ api) {
			eachState(t, b, func(s consumer.GroupState) {
				if s.Policy.MaxAttempts != 9 {
					t.Fatalf("a partition has %+v", s.Policy)
				}
			})
		}},
		{"group paused, in one partition", func(t *testing.T, b *Broker) error {
			g, err := b.coord.SetPaused(ctx(t), "t", "g", true)
			if err != nil {
				return err
			}
			topic, err := b.topic("t")
			if err != nil {
				return err
			}
			return b.groups.SetPaused(ctx(t), topic.Partitions[1].ID, consumer.GroupID(g.ID), true)
		}, func(t *testing.T, b *Broker, _ api) {
			eachState(t, b, func(s consumer.GroupState) {
				if !s.Paused {
					t.Fatal("a partition is not paused")
				}
			})
		}},
		{"group deletion begun", func(t *testing.T, b *Broker) error {
			_, err := b.coord.DeleteGroup(ctx(t), "t", "g", "g")
			return err
		}, func(t *testing.T, b *Broker, a api) {
			_, err := a.groups.DescribeGroup(ctx(t), &strandmqv1.DescribeGroupRequest{Topic: "t", Group: "g"})
			wantReason(t, err, "UNKNOWN_GROUP")
			a.group(t, "t", "g", nil)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			b := start(t, dir)
			a := newAPI(t, b.URL())
			a.topic(t, "t", 2)
			a.group(t, "t", "g", nil)
			for i := range 10 {
				a.store(t, "t", msg(fmt.Sprint(i), "x"))
			}
			if err := c.begin(t, b); err != nil {
				t.Fatal(err)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			b = start(t, dir)
			if u := b.coord.View().Unfinished(); len(u.Topics)+len(u.Groups) != 0 {
				t.Fatalf("still unfinished: %+v", u)
			}
			c.check(t, b, newAPI(t, b.URL()))
		})
	}
}

func gone(t *testing.T, b *Broker, a api) {
	_, err := a.topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: "t"})
	wantReason(t, err, "UNKNOWN_TOPIC")
	if n := len(b.host.Partitions()); n != 1 {
		t.Fatalf("%d partitions are left", n)
	}
	a.topic(t, "t", 2)
	a.store(t, "t", msg("k", "x"))
}

// eachState gives the state of group g of topic t in every partition.
func eachState(t *testing.T, b *Broker, fn func(consumer.GroupState)) {
	t.Helper()
	topic, g, err := b.group("t", "g")
	if err != nil {
		t.Fatal(err)
	}
	states, _, err := b.statesOfRest(ctx(t), topic.Topic, g)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range states {
		fn(s.GroupState)
	}
}

// What a member held when its session ended without the partitions hearing of
// it lapses when the broker starts.
func TestStrangersLapseAtStart(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(1)})
	a.store(t, "t", msg("k", "x"))
	d := a.one(t, "t", "g", "m")
	_, g, err := b.group("t", "g")
	if err != nil {
		t.Fatal(err)
	}
	m, ok := g.Member("m")
	if !ok {
		t.Fatal("no member")
	}
	b.stopServing() // nobody watches any more
	if err := b.coord.Leave(ctx(t), g.ID, "m", m.Session); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = start(t, dir)
	a = newAPI(t, b.URL())
	again := a.one(t, "t", "g", "other")
	if again.GetOffset() != d.GetOffset() || again.GetAttempt() != 2 {
		t.Fatalf("got %v", again)
	}
	// The other one leaves, and the one that was ended can work again.
	_, g, err = b.group("t", "g")
	if err != nil {
		t.Fatal(err)
	}
	m, ok = g.Member("other")
	if !ok {
		t.Fatal("no member")
	}
	if _, err := a.consume.Leave(ctx(t), &strandmqv1.LeaveRequest{Topic: "t", Group: "g", Member: "other", Session: sessionText(g.ID, "other", m.Session)}); err != nil {
		t.Fatal(err)
	}
	if d := a.one(t, "t", "g", "m"); d.GetAttempt() != 2 {
		t.Fatalf("got %v", d)
	}
}

// A delivery stays with its holder when its partition goes to another member,
// and when the broker restarts: whoever polls again sees it again.
func TestHeldElsewhere(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	a.group(t, "t", "g", nil)
	for i := range 10 {
		a.store(t, "t", msg(fmt.Sprint(i), "x"))
	}
	poll := func() map[string]bool {
		t.Helper()
		out := map[string]bool{}
		res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m1", MaxMessages: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range res.GetDeliveries() {
			out[d.GetToken()] = true
		}
		return out
	}
	want := map[string]bool{}
	waitFor(t, func() bool { want = poll(); return len(want) == 10 })
	if _, err := a.consume.Join(ctx(t), &strandmqv1.JoinRequest{Topic: "t", Group: "g", Member: "m2"}); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		if got := poll(); !maps.Equal(got, want) {
			t.Fatalf("round %d: %d deliveries, want the same 10", round, len(got))
		}
		if round > 0 {
			continue
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = start(t, dir)
		a = newAPI(t, b.URL())
	}
}

// A broker that is killed while calls are in progress loses nothing that it
// confirmed. (Closing the store without a word is the nearest to a kill that
// one process can do to itself; the command's tests kill a real one.)
func TestConcurrentPublishersAndRestart(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 4)
	var mu sync.Mutex
	stored := map[string]*strandmqv1.Receipt{}
	var wg sync.WaitGroup
	for p := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				m := msg(fmt.Sprint("key-", p), fmt.Sprint(i))
				m.Id = fmt.Sprintf("%d-%d", p, i)
				res, err := a.publish.Publish(context.Background(), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{m}})
				if err != nil || res.GetResults()[0].GetReceipt() == nil {
					return
				}
				mu.Lock()
				stored[m.GetId()] = res.GetResults()[0].GetReceipt()
				mu.Unlock()
			}
		})
	}
	waitFor(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(stored) > 500 })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	b = start(t, dir)
	a = newAPI(t, b.URL())
	for id, r := range stored {
		var p, i int
		if _, err := fmt.Sscanf(id, "%d-%d", &p, &i); err != nil {
			t.Fatal(err)
		}
		topic, err := b.topic("t")
		if err != nil {
			t.Fatal(err)
		}
		list, err := b.host.ReadAt(topic.Partitions[r.GetPartition()].ID, []partition.Offset{partition.Offset(r.GetOffset())})
		if err != nil || len(list) != 1 || list[0].Record.ID != id || string(list[0].Record.Body) != fmt.Sprint(i) {
			t.Fatalf("%s at %v: %v, %v", id, r, list, err)
		}
	}
}

// When the queues are full the whole call is refused, with a wait.
func TestQueueFull(t *testing.T) {
	b := start(t, t.TempDir(), func(c *Config) {
		c.Host.QueueBytes, c.Host.PartitionQueueBytes = 1<<20, 1<<20
	})
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	big := strings.Repeat("x", 1<<20)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var refused []error
	stored := 0
	// Until there are some of both: who comes one after the other finds room.
	both := func() bool { mu.Lock(); defer mu.Unlock(); return len(refused) > 0 && stored > 0 }
	for range 16 {
		wg.Go(func() {
			for i := 0; i < 4 || !both() && i < 1000; i++ {
				res, err := a.publish.Publish(context.Background(), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("k", big)}})
				mu.Lock()
				if err != nil {
					refused = append(refused, err)
				} else if res.GetResults()[0].GetReceipt() != nil {
					stored++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(refused) == 0 || stored == 0 {
		t.Fatalf("%d refused and %d stored: want some of both", len(refused), stored)
	}
	for _, err := range refused {
		wantReason(t, err, "QUEUE_FULL")
		if connect.CodeOf(err) != connect.CodeResourceExhausted || problemOf(err).GetRetryAfterMs() == 0 {
			t.Fatalf("%v with %v", err, problemOf(err))
		}
	}
}

// Connections beyond the limit wait for their turn.
func TestConnectionLimit(t *testing.T) {
	b := start(t, t.TempDir(), func(c *Config) { c.Connections = 2 })
	var held []net.Conn
	for range 2 {
		c, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
		fmt.Fprintf(c, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if n, err := c.Read(make([]byte, 100)); n == 0 {
			t.Fatal(err)
		}
	}
	third, err := net.Dial("tcp", b.Addr()) // the kernel accepts it, the broker not yet
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	fmt.Fprintf(third, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
	_ = third.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := third.Read(make([]byte, 100)); n != 0 || err == nil {
		t.Fatalf("a third connection was served: %d, %v", n, err)
	}
	held[0].Close()
	_ = third.SetReadDeadline(time.Now().Add(soon))
	if n, err := third.Read(make([]byte, 100)); n == 0 {
		t.Fatalf("the third connection was not served after one closed: %v", err)
	}
	held[1].Close()
}

// While the broker reads its log it is alive, not ready, and says so to callers.
func TestWhileStarting(t *testing.T) {
	b := start(t, t.TempDir())
	b.started.Store(false)
	defer b.started.Store(true)
	for path, want := range map[string]int{"/livez": 200, "/startupz": 503, "/readyz": 503} {
		if code, body := get(t, b.URL()+path); code != want {
			t.Errorf("%s: %d %q, want %d", path, code, body, want)
		}
	}
	_, err := newAPI(t, b.URL()).topics.ListTopics(ctx(t), &strandmqv1.ListTopicsRequest{})
	wantReason(t, err, "NOT_READY")
	if problemOf(err).GetRetryAfterMs() == 0 {
		t.Error("no time to wait")
	}
}
