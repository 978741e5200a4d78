package broker

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// subscribed is a Subscribe stream with its first frame taken.
func (a api) subscribe(t testing.TB, c context.Context, req *strandmqv1.SubscribeRequest) (*connect.ServerStreamForClient[strandmqv1.SubscribeResponse], string) { //nolint:revive // as all helpers here
	t.Helper()
	s, err := a.consume.Subscribe(c, req)
	if err != nil {
		t.Fatal(err)
	}
	if !s.Receive() {
		t.Fatal(s.Err())
	}
	first := s.Msg()
	if first.GetSession() == "" || first.GetAssignment() == nil || len(first.GetDeliveries()) > 0 {
		t.Fatalf("the first frame: %v", first)
	}
	return s, first.GetSession()
}

// Subscribe gives no more than its window, over HTTP/1.1 too, and more as what
// it gave is settled by calls beside it, or lapses.
func TestSubscribe(t *testing.T) {
	t.Parallel() // it waits for clocks
	// What lapses is seen six times in a session timeout, which a busy machine does not miss.
	b := start(t, t.TempDir(), func(c *Config) { c.SessionTimeout = 6 * time.Second })
	t.Run("protocols", func(t *testing.T) { testSubscribe(t, b) })
	t.Run("at-most-once", func(t *testing.T) { testSubscribeAtMostOnce(t, b) })
	a := newAPI(t, b.URL())
	for _, c := range []struct {
		req    *strandmqv1.SubscribeRequest
		reason string
	}{
		{&strandmqv1.SubscribeRequest{Topic: "nowhere", Group: "g", Member: "m"}, "UNKNOWN_TOPIC"},
		{&strandmqv1.SubscribeRequest{Topic: "t-connect", Group: "g", Member: "m", Window: 10_001}, "BAD_VALUE"},
		{&strandmqv1.SubscribeRequest{Topic: "t-connect", Group: "g", Member: "m/"}, "BAD_NAME"},
		{&strandmqv1.SubscribeRequest{Topic: "t-connect", Group: "g", Member: "m", BodyFormat: 9}, "BAD_VALUE"},
	} {
		s, err := a.consume.Subscribe(ctx(t), c.req)
		if err == nil {
			for s.Receive() {
			}
			err = s.Err()
		}
		wantReason(t, err, c.reason)
	}
}

// What an at-most-once group is sent is settled: the window is open again at once,
// and not when a deadline passes.
func testSubscribeAtMostOnce(t *testing.T, b *Broker) {
	a := newAPI(t, b.URL())
	a.topic(t, "at-most-once", 1)
	p := patient()
	p.AtMostOnce = new(true)
	a.group(t, "at-most-once", "g", p)
	a.fill(t, "at-most-once", 20, 20)
	c, cut := context.WithCancel(ctx(t))
	defer cut()
	s, _ := a.subscribe(t, c, &strandmqv1.SubscribeRequest{Topic: "at-most-once", Group: "g", Member: "m", Window: 5})
	for n := 0; n < 20; n += len(s.Msg().GetDeliveries()) {
		if !s.Receive() {
			t.Fatalf("after %d of 20: %v", n, s.Err())
		}
	}
}

func testSubscribe(t *testing.T, b *Broker) {
	for name, a := range map[string]api{
		"connect": newAPI(t, b.URL()), "connect-h2": streamAPI(t, b), "connect-json": newAPI(t, b.URL(), connect.WithProtoJSON()),
		"grpc-web": newAPI(t, b.URL(), connect.WithGRPCWeb()), "grpc": apiOver(httpClient(t, true), b.URL(), connect.WithGRPC()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits for clocks
			topic := "t-" + name
			a.topic(t, topic, 2)
			p := patient()
			p.AckDeadlineMs = new(int64(300_000)) // so that it can be extended
			a.group(t, topic, "g", p)
			a.fill(t, topic, 6, 6)
			c, cut := context.WithCancel(ctx(t))
			defer cut()
			s, session := a.subscribe(t, c, &strandmqv1.SubscribeRequest{Topic: topic, Group: "g", Member: "m", Window: 2})
			take := func(n int) (ds []*strandmqv1.Delivery) {
				t.Helper()
				for len(ds) < n {
					if !s.Receive() {
						t.Fatalf("after %d of %d: %v", len(ds), n, s.Err())
					}
					ds = append(ds, s.Msg().GetDeliveries()...)
				}
				if len(ds) > n {
					t.Fatalf("got %d, want %d", len(ds), n)
				}
				return ds
			}
			held := take(2)
			if n := a.describe(t, topic, "g").GetCounts().GetInFlight(); n != 2 {
				t.Fatalf("%d are in flight with a window of 2", n)
			}
			a.done(t, topic, "g", held[0], ack, "")
			a.done(t, topic, "g", held[1], extend, "")
			third := take(1)[0]
			a.done(t, topic, "g", held[1], nack, "")
			again := take(1)[0]
			if n := a.describe(t, topic, "g").GetCounts().GetInFlight(); n != 2 {
				t.Fatalf("%d are in flight with a window of 2", n)
			}
			// What lapses makes room too.
			a.lapse(t, topic, "g", third)
			a.lapse(t, topic, "g", again)
			take(2)
			if r := a.settle(t, topic, "g", third.GetToken(), ack, ""); r.GetProblem().GetReason() != "STALE_DELIVERY" {
				t.Fatalf("a delivery that lapsed: %v", r)
			}
			if _, err := a.consume.Leave(ctx(t), &strandmqv1.LeaveRequest{Topic: topic, Group: "g", Member: "m", Session: session}); err != nil {
				t.Fatal(err)
			}
			for s.Receive() {
			}
			if s.Err() != nil {
				t.Fatalf("after Leave: %v", s.Err())
			}
			if n := a.describe(t, topic, "g").GetCounts().GetInFlight(); n != 0 {
				t.Fatalf("%d are in flight after Leave", n)
			}
			// A stream that breaks is charged at once.
			s, _ = a.subscribe(t, c, &strandmqv1.SubscribeRequest{Topic: topic, Group: "g", Member: "m", Window: 1})
			d := take(1)[0]
			cut()
			next := a.receive(t, topic, "g", "n", 100)
			for i := 0; len(next) > 0 && i < 10; i++ {
				for _, x := range next {
					if x.GetOffset() == d.GetOffset() && x.GetPartition() == d.GetPartition() {
						if x.GetAttempt() != d.GetAttempt()+1 {
							t.Fatalf("attempt %d after %d", x.GetAttempt(), d.GetAttempt())
						}
						return
					}
					a.done(t, topic, "g", x, ack, "")
				}
				next = a.receive(t, topic, "g", "n", 100)
			}
			t.Fatal("what the broken stream held did not come again")
		})
	}
}

// A quiet stream says why, often enough for its session.
func TestSubscribeQuiet(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir(), func(c *Config) { c.SessionTimeout = 3 * time.Second })
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	s, session := a.subscribe(t, ctx(t), &strandmqv1.SubscribeRequest{Topic: "t", Group: "g", Member: "m", CreateGroup: true})
	for n := 0; n < 5; n++ { // more than a session timeout: there are three in one
		if !s.Receive() {
			t.Fatal(s.Err())
		}
		if s.Msg().GetIdleReason() == "" || len(s.Msg().GetDeliveries()) > 0 {
			t.Fatalf("a quiet frame: %v", s.Msg())
		}
	}
	if _, err := a.consume.Heartbeat(ctx(t), &strandmqv1.HeartbeatRequest{Topic: "t", Group: "g", Member: "m", Session: session}); err != nil {
		t.Fatal(err)
	}
	a.fill(t, "t", 1, 1)
	for s.Receive() {
		if len(s.Msg().GetDeliveries()) == 1 {
			return
		}
	}
	t.Fatal(s.Err())
}
