package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc"

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

// consumings opens a stream with each client library and protocol.
func consumings(t *testing.T, b *Broker) map[string]func(context.Context) consuming {
	t.Helper()
	return streamsOver(t, b, "ConsumeService/Consume",
		func(a api, c context.Context) consuming { return a.consumeStream(t, c) },
		func(s grpc.ClientStream) consuming { return grpcConsuming{s} })
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

// ackRuns acks what came, in runs of numbers without a gap: a frame of deliveries
// from here and from elsewhere can have one.
func ackRuns(ds []got) (runs []*strandmqv1.SettleRun) {
	for _, d := range ds {
		if n := len(runs); n > 0 && runs[n-1].Last+1 == d.number {
			runs[n-1].Last = d.number
			continue
		}
		runs = append(runs, &strandmqv1.SettleRun{First: d.number, Last: d.number, Action: ack})
	}
	return runs
}
