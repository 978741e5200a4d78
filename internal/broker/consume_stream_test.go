package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A consuming is a client's end of a Consume stream, over any library.
type consuming interface {
	Send(*strandmqv1.ConsumeRequest) error
	Receive() (*strandmqv1.ConsumeResponse, error)
	CloseRequest() error
}

type grpcConsuming struct{ grpc.ClientStream }

func (g grpcConsuming) Send(m *strandmqv1.ConsumeRequest) error { return g.SendMsg(m) }
func (g grpcConsuming) CloseRequest() error                     { return g.CloseSend() }
func (g grpcConsuming) Receive() (*strandmqv1.ConsumeResponse, error) {
	m := new(strandmqv1.ConsumeResponse)
	return m, g.RecvMsg(m)
}

func consumings(t *testing.T, b *Broker) map[string]func(context.Context) consuming {
	t.Helper()
	conn, err := grpc.NewClient(b.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	over := func(opts ...connect.ClientOption) func(context.Context) consuming {
		a := apiOver(httpClient(t, true), b.URL(), opts...)
		return func(c context.Context) consuming { return a.consumeStream(t, c) }
	}
	return map[string]func(context.Context) consuming{
		"connect":      over(),
		"connect-json": over(connect.WithProtoJSON()),
		"connect-gzip": over(connect.WithSendGzip()),
		"grpc":         over(connect.WithGRPC()),
		"grpc-go": func(c context.Context) consuming {
			s, err := conn.NewStream(c, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/strandmq.v1.ConsumeService/Consume")
			if err != nil {
				t.Fatal(err)
			}
			return grpcConsuming{s}
		},
	}
}

func (a api) consumeStream(t testing.TB, c context.Context) consuming { //nolint:revive // as all helpers here
	t.Helper()
	s, err := a.consume.Consume(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A member is a test's member of a group on a Consume stream.
type member struct {
	consuming
	t       testing.TB
	session string
	cut     context.CancelFunc
	settled []*strandmqv1.SettleRunResult
	assign  *strandmqv1.Assignment
	idle    string
}

// joins opens a stream and takes its first frame.
func joins(t testing.TB, open func(context.Context) consuming, what *strandmqv1.ConsumeOpen, credits uint32) *member {
	t.Helper()
	c, cut := context.WithCancel(ctx(t))
	t.Cleanup(cut)
	m := &member{consuming: open(c), t: t}
	m.cut = func() {
		cut()
		// The Connect client waits in its request's body and does not see that.
		if x, ok := m.consuming.(interface{ CloseResponse() error }); ok {
			_ = x.CloseResponse()
		}
	}
	m.send(&strandmqv1.ConsumeRequest{Open: what, Credits: credits})
	first, err := m.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if first.GetSession() == "" || first.GetSessionTimeoutMs() == 0 || first.GetAssignment() == nil || len(first.GetDeliveries())+len(first.GetBatches()) > 0 {
		t.Fatalf("the first frame: %v", first)
	}
	m.session, m.assign = first.GetSession(), first.GetAssignment()
	return m
}

func (m *member) send(req *strandmqv1.ConsumeRequest) {
	m.t.Helper()
	if err := m.Send(req); err != nil && !errors.Is(err, io.EOF) {
		m.t.Fatal(err)
	}
}

// got is a delivery, however it came.
type got struct {
	number, offset uint64
	partition      uint32
	attempt        uint32
	key, body      string
	token          string
	fence          uint64
}

// frame takes one frame.
func (m *member) frame() (out []got, err error) {
	res, err := m.Receive()
	if err != nil {
		return nil, err
	}
	m.settled = append(m.settled, res.GetSettled()...)
	if res.GetAssignment() != nil {
		m.assign = res.GetAssignment()
	}
	if res.GetIdleReason() != "" {
		m.idle = res.GetIdleReason()
	}
	for _, d := range res.GetDeliveries() {
		out = append(out, got{d.GetNumber(), d.GetOffset(), d.GetPartition(), d.GetAttempt(), d.GetMessage().GetKey(), d.GetMessage().GetText(), d.GetToken(), d.GetFence()})
	}
	for _, b := range res.GetBatches() {
		batch, rest, err := record.Parse(b.GetRecords())
		if err != nil || len(rest) > 0 {
			m.t.Fatalf("a record batch: %v, %d bytes behind it", err, len(rest))
		}
		if batch.Len() == 0 || b.GetDeadlineMs() <= b.GetHandedMs() || batch.PublishTime() == 0 {
			m.t.Fatalf("a batch: %v", b)
		}
		offset := b.GetFirstOffset()
		batch.Each(func(i int, r record.Raw) bool {
			if i > 0 {
				step := uint32(1)
				if len(b.GetOffsetSteps()) > 0 {
					step = b.GetOffsetSteps()[i-1]
				}
				offset += uint64(step)
			}
			x := got{number: b.GetFirstNumber() + uint64(i), offset: offset, partition: b.GetPartition(), attempt: 1, key: string(r.Key()), body: string(r.Body()), fence: b.GetFirstFence() + uint64(i)}
			if len(b.GetAttempts()) > 0 {
				x.attempt = b.GetAttempts()[i]
			}
			if len(b.GetFences()) > 0 {
				x.fence = b.GetFences()[i]
			}
			out = append(out, x)
			return true
		})
	}
	return out, nil
}

// take takes frames until there are n deliveries.
func (m *member) take(n int) (out []got) {
	m.t.Helper()
	for len(out) < n {
		more, err := m.frame()
		if err != nil {
			m.t.Fatalf("after %d of %d deliveries: %v", len(out), n, err)
		}
		out = append(out, more...)
	}
	if len(out) > n {
		m.t.Fatalf("got %d deliveries, want %d: %v", len(out), n, out)
	}
	return out
}

// results takes frames until n deliveries are answered for.
func (m *member) results(n uint64) []*strandmqv1.SettleRunResult {
	m.t.Helper()
	for {
		have := uint64(0)
		for _, r := range m.settled {
			have += r.GetLast() - r.GetFirst() + 1
		}
		if have >= n {
			out := m.settled
			m.settled = nil
			return out
		}
		if _, err := m.frame(); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *member) settle(action strandmqv1.SettleAction, first, last uint64) {
	m.t.Helper()
	m.send(&strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{{First: first, Last: last, Action: action}}})
}

// end takes what is left and wants the stream to end with a reason, or well.
func (m *member) end(reason string) {
	m.t.Helper()
	for {
		_, err := m.frame()
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF) && reason == "":
			return
		case reason == "":
			m.t.Fatal(err)
		}
		wantReason(m.t, err, reason)
		return
	}
}

// opener opens Consume streams over Connect.
func opener(t testing.TB, b *Broker) func(context.Context) consuming {
	a := streamAPI(t, b)
	return func(c context.Context) consuming { return a.consumeStream(t, c) }
}

func opened(topic, group, member string) *strandmqv1.ConsumeOpen {
	return &strandmqv1.ConsumeOpen{Topic: topic, Group: group, Member: member}
}

// fill publishes n messages of some keys.
func (a api) fill(t testing.TB, topic string, n, keys int) {
	t.Helper()
	ms := make([]*strandmqv1.Message, n)
	for i := range ms {
		ms[i] = msg(fmt.Sprint("k", i%keys), fmt.Sprint(i))
	}
	a.store(t, topic, ms...)
}

// patient is a policy whose deliveries do not lapse during a test.
func patient() *strandmqv1.GroupPolicy {
	return &strandmqv1.GroupPolicy{AckDeadlineMs: new(int64(600_000)), BackoffMs: new(int64(1)), BreakerFailedPercent: new(uint32(0))}
}

// Everything is delivered, in the order of each key, and settled by runs, with
// every client, readable and as record batches.
func TestConsume(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	for name, open := range consumings(t, b) {
		for _, raw := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/raw=%v", name, raw), func(t *testing.T) {
				topic := fmt.Sprintf("t-%s-%v", name, raw)
				a.topic(t, topic, 3)
				a.group(t, topic, "g", patient())
				const n = 120
				a.fill(t, topic, n, 12)
				what := opened(topic, "g", "m")
				what.RecordBatches = raw
				m := joins(t, open, what, 40)
				if len(m.assign.GetShares()) != 3 {
					t.Fatalf("assigned %v", m.assign)
				}
				at := map[string]int{}
				numbers := map[uint64]bool{}
				for done := 0; done < n; {
					ds, err := m.frame()
					if err != nil {
						t.Fatal(err)
					}
					if len(ds) == 0 {
						continue
					}
					for _, d := range ds {
						i := 0
						if _, err := fmt.Sscan(d.body, &i); err != nil || d.key != fmt.Sprint("k", i%12) || d.attempt != 1 || numbers[d.number] || d.fence == 0 {
							t.Fatalf("delivery %+v", d)
						}
						if was, ok := at[d.key]; ok && was >= i {
							t.Fatalf("key %s: %d after %d", d.key, i, was)
						}
						at[d.key], numbers[d.number] = i, true
						if (d.token == "") != raw {
							t.Fatalf("token %q", d.token)
						}
					}
					first, last := ds[0].number, ds[len(ds)-1].number
					if int(last-first)+1 != len(ds) {
						t.Fatalf("the numbers of a frame: %v", ds)
					}
					m.send(&strandmqv1.ConsumeRequest{Credits: uint32(len(ds)), Settlements: []*strandmqv1.SettleRun{{First: first, Last: last, Action: ack}}})
					done += len(ds)
				}
				for _, r := range m.results(n) {
					if r.GetProblem() != nil {
						t.Fatalf("settled: %v", r)
					}
				}
				m.send(&strandmqv1.ConsumeRequest{Leave: true})
				m.end("")
				if c := a.describe(t, topic, "g").GetCounts(); c.GetAcked() != n || c.GetLag() != 0 {
					t.Fatalf("counts %v", c)
				}
				labels := fmt.Sprintf(`{group="g",topic=%q}`, topic)
				for _, name := range []string{"strandmq_messages_delivered_total", "strandmq_messages_acked_total"} {
					if got := metric(t, b, name+labels); got != n {
						t.Errorf("%s is %v", name, got)
					}
				}
			})
		}
	}
}

// Nothing is handed out beyond the credit, and credits have bounds.
func TestConsumeCredits(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir(), func(c *Config) { c.SessionTimeout = time.Second })
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	a.group(t, "t", "g", patient())
	a.fill(t, "t", 40, 40)
	open := opener(t, b)
	m := joins(t, open, opened("t", "g", "m"), 0)
	for m.idle == "" {
		if ds, err := m.frame(); err != nil || len(ds) > 0 {
			t.Fatalf("without credit: %v, %v", ds, err)
		}
	}
	if !strings.Contains(m.idle, "credit") {
		t.Errorf("idle since %q", m.idle)
	}
	total := 0
	for _, n := range []int{1, 5, 7} {
		m.send(&strandmqv1.ConsumeRequest{Credits: uint32(n)})
		m.take(n)
		total += n
		if c := a.describe(t, "t", "g").GetCounts(); c.GetInFlight() != uint64(total) {
			t.Fatalf("%d are in flight after %d credits", c.GetInFlight(), total)
		}
	}
	m.send(&strandmqv1.ConsumeRequest{Credits: 1_000_000})
	m.take(27)
	m.send(&strandmqv1.ConsumeRequest{Credits: 28})
	m.end("BAD_VALUE")
	m = joins(t, open, opened("t", "g", "m"), 1_000_000)
	m.send(&strandmqv1.ConsumeRequest{Credits: 1<<32 - 1})
	m.end("BAD_VALUE")
}

// A stream that breaks is a member that crashed: charged, at once. One that ends
// in good order is not charged.
func TestConsumeEnds(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	p := patient()
	p.MaxAttempts = new(uint32(50))
	a.group(t, "t", "g", p)
	a.fill(t, "t", 4, 4)
	open := opener(t, b)
	attempt := uint32(1)
	for _, c := range []struct {
		name    string
		end     func(m *member)
		charged bool
	}{
		{"leave", func(m *member) { m.send(&strandmqv1.ConsumeRequest{Leave: true}); m.end("") }, false},
		{"half-close", func(m *member) { _ = m.CloseRequest(); m.end("") }, false},
		{"Leave beside it", func(m *member) {
			if _, err := a.consume.Leave(ctx(t), &strandmqv1.LeaveRequest{Topic: "t", Group: "g", Member: "m", Session: m.session}); err != nil {
				t.Fatal(err)
			}
			m.end("")
		}, false},
		{"cut", func(m *member) { m.cut() }, true},
		{"the same member again", func(m *member) {
			again := joins(t, open, opened("t", "g", "m"), 0)
			m.end("SESSION_ENDED")
			again.send(&strandmqv1.ConsumeRequest{Leave: true})
			again.end("")
		}, true},
		{"a bad frame", func(m *member) {
			m.send(&strandmqv1.ConsumeRequest{Open: opened("t", "g", "other")})
			m.end("BAD_VALUE")
		}, true},
		{"a bad run", func(m *member) { m.settle(ack, 5, 3); m.end("BAD_VALUE") }, true},
		{"a huge run", func(m *member) { m.settle(ack, 1, 1<<63); m.end("BAD_VALUE") }, true},
		{"too many runs", func(m *member) {
			m.send(&strandmqv1.ConsumeRequest{Settlements: make([]*strandmqv1.SettleRun, 1001)})
			m.end("BATCH_TOO_LARGE")
		}, true},
		{"the same delivery in two runs", func(m *member) {
			m.send(&strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{{First: 3, Action: ack}, {First: 1, Last: 3, Action: ack}}})
			m.end("BAD_VALUE")
		}, true},
		{"too many deliveries", func(m *member) {
			m.send(&strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{
				{First: 1, Last: maxSettled, Action: ack}, {First: maxSettled + 1, Action: ack},
			}})
			m.end("BATCH_TOO_LARGE")
		}, true},
		{"a huge frame", func(m *member) {
			m.send(&strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{{Reason: strings.Repeat("x", 5<<20)}}})
			m.end("REQUEST_TOO_LARGE")
		}, true},
		{"a settlement and leave", func(m *member) {
			m.send(&strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{{First: 1, Last: 4, Action: release}}, Leave: true})
			if rs := m.results(4); rs[0].GetProblem() != nil {
				t.Errorf("released: %v", rs)
			}
			m.end("")
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := joins(t, open, opened("t", "g", "m"), 100)
			for _, d := range m.take(4) {
				if d.attempt != attempt {
					t.Fatalf("attempt %d, want %d", d.attempt, attempt)
				}
			}
			c.end(m)
			if c.charged {
				attempt++
			}
			eventually(t, "the session is gone", func() bool {
				_, g, err := b.group("t", "g")
				return err == nil && len(g.Members) == 0
			})
		})
	}
}

// What is settled on a stream has results of its own for what does not fit.
func TestConsumeSettles(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	p := patient()
	p.MaxAttempts = new(uint32(2))
	a.group(t, "t", "g", p)
	a.fill(t, "t", 10, 10)
	m := joins(t, opener(t, b), opened("t", "g", "m"), 10)
	m.take(10)
	m.send(&strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{
		{First: 1, Last: 2, Action: ack}, {First: 3, Action: extend, DelayMs: 1000}, {First: 4, Action: reject, Reason: "no"},
		{First: 5, Action: release}, {First: 6, Action: nack, Reason: "first", DelayMs: 1},
		{First: 7}, {First: 8, Action: 99}, {First: 9, Action: ack, DelayMs: 5}, {First: 10, Action: nack, DelayMs: -1}, {First: 11, Action: nack, Reason: strings.Repeat("x", 1025)},
		{First: 0, Action: ack}, {First: 100, Last: 200, Action: ack},
	}})
	var said []string
	fields := map[uint64]string{7: "settlements[5].action", 8: "settlements[6].action", 9: "settlements[7].delay_ms", 11: "settlements[9].reason", 0: "settlements[10].first", 100: "settlements[11].token"}
	for _, r := range m.results(13 + 100) {
		if want := fields[r.GetFirst()]; want != "" && r.GetProblem().GetField() != want {
			t.Errorf("%d: field %s, want %s", r.GetFirst(), r.GetProblem().GetField(), want)
		}
		if r.GetFirst() == 7 && !strings.HasPrefix(r.GetProblem().GetMessage(), "action must be ack") {
			t.Errorf("of what? %s", r.GetProblem().GetMessage())
		}
		said = append(said, fmt.Sprintf("%d-%d %s %v %v", r.GetFirst(), r.GetLast(), r.GetProblem().GetReason(), r.GetDeadLettered(), r.GetDeadline() != nil))
	}
	want := []string{
		"1-2  false false", "3-3  false true", "4-4  true false", "5-5  false false", "6-6  false false",
		"7-7 BAD_VALUE false false", "8-8 BAD_VALUE false false", "9-9 BAD_VALUE false false", "10-10 BAD_VALUE false false", "11-11 BAD_VALUE false false",
		"0-0 BAD_VALUE false false", "100-200 STALE_DELIVERY false false",
	}
	if !slices.Equal(said, want) {
		t.Fatalf("results\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
	}
	// Settled once is settled; a delivery token remembers, a number does not.
	m.settle(ack, 1, 0)
	if r := m.results(1)[0]; r.GetProblem().GetReason() != "STALE_DELIVERY" {
		t.Fatalf("again: %v", r)
	}
	m.send(&strandmqv1.ConsumeRequest{Credits: 2})
	again := m.take(2)
	slices.SortFunc(again, func(x, y got) int { return int(x.attempt) - int(y.attempt) })
	if again[0].attempt != 1 || again[1].attempt != 2 {
		t.Fatalf("given again: %v", again)
	}
	// Unary Settle takes the tokens of a stream.
	if r := a.settle(t, "t", "g", again[1].token, nack, "second"); !r.GetDeadLettered() {
		t.Fatalf("beside the stream: %v", r)
	}
	m.settle(ack, again[1].number, 0)
	if r := m.results(1)[0]; r.GetProblem().GetReason() != "STALE_DELIVERY" {
		t.Fatalf("after it was settled beside the stream: %v", r)
	}
	if c := a.describe(t, "t", "g").GetCounts(); c.GetDead() != 2 || c.GetAcked() != 2 {
		t.Fatalf("counts %v", c)
	}
}

// What a stream must begin with.
func TestConsumeOpens(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	open := opener(t, b)
	for name, c := range map[string]struct {
		req    *strandmqv1.ConsumeRequest
		reason string
	}{
		"no open":      {&strandmqv1.ConsumeRequest{Credits: 1}, "BAD_VALUE"},
		"no topic":     {&strandmqv1.ConsumeRequest{Open: opened("nowhere", "g", "m")}, "UNKNOWN_TOPIC"},
		"no group":     {&strandmqv1.ConsumeRequest{Open: opened("t", "g", "m")}, "UNKNOWN_GROUP"},
		"no member":    {&strandmqv1.ConsumeRequest{Open: opened("t", "g", "")}, "BAD_NAME"},
		"bad format":   {&strandmqv1.ConsumeRequest{Open: &strandmqv1.ConsumeOpen{Topic: "t", Group: "g", Member: "m", CreateGroup: true, BodyFormat: 99}}, "BAD_VALUE"},
		"nothing":      {nil, "BAD_VALUE"},
		"many credits": {&strandmqv1.ConsumeRequest{Open: &strandmqv1.ConsumeOpen{Topic: "t", Group: "made", Member: "m", CreateGroup: true}, Credits: 1_000_001}, "BAD_VALUE"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &member{consuming: open(ctx(t)), t: t}
			if c.req != nil {
				m.send(c.req)
			} else if err := m.CloseRequest(); err != nil {
				t.Fatal(err)
			}
			m.end(c.reason)
		})
	}
}

// Members that come and go are told of live, and a group that is deleted ends
// its streams.
func TestConsumeAssignment(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	a.group(t, "t", "g", patient())
	open := opener(t, b)
	m := joins(t, open, opened("t", "g", "m1"), 1000)
	if len(m.assign.GetShares()) != 2 {
		t.Fatalf("alone: %v", m.assign)
	}
	other := joins(t, open, opened("t", "g", "m2"), 1000)
	for len(m.assign.GetShares()) != 1 {
		if _, err := m.frame(); err != nil {
			t.Fatal(err)
		}
	}
	if len(other.assign.GetShares()) != 1 || other.assign.GetShares()[0].GetPartition() == m.assign.GetShares()[0].GetPartition() {
		t.Fatalf("two: %v, %v", m.assign, other.assign)
	}
	a.fill(t, "t", 40, 40)
	mine, theirs := 0, 0
	for _, d := range a.describe(t, "t", "g").GetPartitions() {
		if d.GetPartition() == m.assign.GetShares()[0].GetPartition() {
			mine = int(d.GetEnd())
		} else {
			theirs = int(d.GetEnd())
		}
	}
	for _, d := range m.take(mine) {
		if d.partition != m.assign.GetShares()[0].GetPartition() {
			t.Fatalf("of a partition that is not assigned: %v", d)
		}
	}
	other.take(theirs)
	other.cut()
	for _, d := range m.take(theirs) {
		if d.attempt != 2 {
			t.Fatalf("from a member that was lost: %v", d)
		}
	}
	if len(m.assign.GetShares()) != 2 {
		t.Fatalf("alone again: %v", m.assign)
	}
	if _, err := a.groups.DeleteGroup(ctx(t), &strandmqv1.DeleteGroupRequest{Topic: "t", Group: "g", Confirm: "g"}); err != nil {
		t.Fatal(err)
	}
	m.end("UNKNOWN_GROUP")
}

// A member that never settles loses what it holds at the deadline, and a member
// that does not read loses its session.
func TestConsumersThatStall(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir(), func(c *Config) { c.SessionTimeout = time.Second })
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "hurry", &strandmqv1.GroupPolicy{AckDeadlineMs: new(int64(1000)), BackoffMs: new(int64(1)), MaxAttempts: new(uint32(2))})
	a.fill(t, "t", 3, 3)
	m := joins(t, opener(t, b), opened("t", "hurry", "m"), 1000)
	m.take(3)
	for _, d := range m.take(3) {
		if d.attempt != 2 {
			t.Fatalf("after its deadline: %v", d)
		}
	}
	eventually(t, "all are dead letters", func() bool { return a.describe(t, "t", "hurry").GetCounts().GetDead() == 3 })
	m.cut()

	a.topic(t, "big", 1)
	a.group(t, "big", "g", patient())
	body := strings.Repeat("x", 1<<20-100)
	for i := range 12 {
		a.store(t, "big", msg(fmt.Sprint(i), body))
	}
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	small := &http.Transport{Protocols: &p, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 1 << 16, MaxReceiveBufferPerConnection: 1 << 17}}
	defer small.CloseIdleConnections()
	slow, err := apiOver(&http.Client{Transport: small}, b.URL()).consume.Consume(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := slow.Send(&strandmqv1.ConsumeRequest{Open: opened("big", "g", "slow"), Credits: 1_000_000}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is handed out", func() bool { return a.describe(t, "big", "g").GetCounts().GetInFlight() == 12 })
	d := a.one(t, "big", "g", "other")
	if d.GetAttempt() != 2 {
		t.Fatalf("the attempt of a member that took nothing: %d", d.GetAttempt())
	}
	eventually(t, "the slow session is gone", func() bool {
		_, g, err := b.group("big", "g")
		if err != nil {
			return false
		}
		_, there := g.Member("slow")
		return !there
	})
}

// A broker that stops gives back what its streams hold, uncharged.
func TestConsumeWhileStopping(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", patient())
	a.fill(t, "t", 2, 2)
	m := joins(t, opener(t, b), opened("t", "g", "m"), 10)
	m.take(2)
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	m.end("NOT_READY")
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	a = newAPI(t, start(t, dir).URL())
	if ds := a.receive(t, "t", "g", "n", 10); len(ds) != 2 || ds[0].GetAttempt() != 1 {
		t.Fatalf("after the restart: %v", ds)
	}
}

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
	b := start(t, t.TempDir(), func(c *Config) { c.SessionTimeout = time.Second })
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
			t.Parallel() // it waits for deadlines
			topic := "t-" + name
			a.topic(t, topic, 2)
			a.group(t, topic, "g", &strandmqv1.GroupPolicy{AckDeadlineMs: new(int64(2000)), BackoffMs: new(int64(1))})
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
			// What lapses makes room too, and comes again.
			seen := map[uint32]int{}
			for _, d := range take(2) {
				seen[d.GetAttempt()]++
			}
			if r := a.settle(t, topic, "g", third.GetToken(), ack, ""); r.GetProblem().GetReason() != "STALE_DELIVERY" {
				t.Fatalf("a delivery that lapsed: %v (%v)", r, again)
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
	b := start(t, t.TempDir(), func(c *Config) { c.SessionTimeout = time.Second })
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	s, session := a.subscribe(t, ctx(t), &strandmqv1.SubscribeRequest{Topic: "t", Group: "g", Member: "m", CreateGroup: true})
	for n := 0; n < 8; n++ { // more than a session timeout
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

// Default clients, which all say that they take gzip, get none; who compresses
// what it sends gets it back.
func TestCompressionOnlyWhenMeant(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.store(t, "t", msg("k", strings.Repeat("x", 100_000)))
	for name, c := range map[string]struct {
		path, kind, body, accept, answer string
	}{
		"unary":  {"Receive", "application/json", `{"topic":"t","group":"plain","member":"m","create_group":true}`, "Accept-Encoding", "Content-Encoding"},
		"stream": {"Subscribe", "application/connect+json", `{"topic":"t","group":"s","member":"m","create_group":true}`, "Connect-Accept-Encoding", "Connect-Content-Encoding"},
		"web":    {"Receive", "application/grpc-web+json", `{"topic":"t","group":"w","member":"m","create_group":true}`, "Grpc-Accept-Encoding", "Grpc-Encoding"},
	} {
		t.Run(name, func(t *testing.T) {
			body := c.body
			if c.kind != "application/json" {
				body = string([]byte{0, 0, 0, 0, byte(len(body))}) + body
			}
			reqCtx, cancel := context.WithCancel(ctx(t))
			defer cancel()
			req, err := http.NewRequestWithContext(reqCtx, http.MethodPost, b.URL()+"/strandmq.v1.ConsumeService/"+c.path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", c.kind)
			req.Header.Set("Accept-Encoding", "gzip")
			req.Header.Set(c.accept, "gzip")
			res, err := httpClient(t, false).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text := make([]byte, 50_000)
			if _, err := io.ReadFull(res.Body, text); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), strings.Repeat("x", 10_000)) || text[0]&1 != 0 && c.kind != "application/json" {
				t.Fatalf("the answer is not plain: %q, %v", text[:100], res.Header)
			}
			if c.kind == "application/json" && res.Header.Get(c.answer) != "" {
				t.Fatalf("%s: %s", c.answer, res.Header.Get(c.answer))
			}
		})
	}
	var sizes []string
	zipped := httpClient(t, false)
	zipped.Transport = headers{zipped.Transport, func(h http.Header) { sizes = append(sizes, h.Get("Content-Encoding")) }}
	z := apiOver(zipped, b.URL(), connect.WithSendGzip())
	z.group(t, "t", "zipped", nil)
	if ds := z.receive(t, "t", "zipped", "m", 1); len(ds) != 1 || len(ds[0].GetMessage().GetText()) != 100_000 {
		t.Fatal("nothing came")
	}
	if len(sizes) != 2 || sizes[1] != "gzip" {
		t.Fatalf("encodings %q", sizes)
	}
}

// headers shows the headers of answers.
type headers struct {
	http.RoundTripper
	see func(http.Header)
}

func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := h.RoundTripper.RoundTrip(r)
	if err == nil {
		h.see(res.Header)
	}
	return res, err
}

// A panic while a stream is served ends that stream, with its session, and
// nothing else.
func TestStreamPanics(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	f := newTestFlow(t, b)
	m, err := b.newAttendant(context.WithValue(ctx(t), flowKey{}, f), memberOf{topic: "t", group: "g", member: "m", create: true})
	if err != nil {
		t.Fatal(err)
	}
	m.send = func(*frame) error { panic("a fault of ours") }
	err = b.unharmed("test", func() error { return m.serve(ctx(t)) })
	if reasonOf(err) != "INTERNAL" || strings.Contains(err.Error(), "fault of ours") {
		t.Fatalf("told: %v", err)
	}
	if _, g, err := b.group("t", "g"); err != nil || len(g.Members) != 0 {
		t.Fatalf("the session stayed: %v, %v", g, err)
	}
}
