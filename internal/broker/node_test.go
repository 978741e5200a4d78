package broker

import (
	"context"
	"flag"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests that run at the same time wait for clocks and processes, so there may
// be more of them than processors, unless the command line says otherwise.
func init() { //nolint:gochecknoinits // before the command line is read, and TestMain has one form
	testing.Init()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
}

// start runs a broker on a folder until the test ends. For tests that run behind
// an edge it is the edge of a cluster.
func start(t testing.TB, dir string, change ...func(*Config)) *Broker {
	t.Helper()
	if leads, is := throughEdge(t); is {
		return startCluster(t, leads, change...).edge
	}
	return startAlone(t, dir, change...)
}

// patient has a node not take a busy machine for a disk that hangs.
func (c *Config) patient() {
	c.Store.StallAfter, c.Store.StallStop, c.Host.HangAfter = time.Hour, time.Hour, time.Hour
}

func startAlone(t testing.TB, dir string, change ...func(*Config)) *Broker {
	t.Helper()
	cfg := Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler), Version: "test", StopTime: 2 * time.Second}
	cfg.patient()
	for _, f := range change {
		f(&cfg)
	}
	b, err := Start(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

// api is every service of a broker, over one protocol.
type api struct {
	publish strandmqv1connect.PublishServiceClient
	consume strandmqv1connect.ConsumeServiceClient
	topics  strandmqv1connect.TopicServiceClient
	groups  strandmqv1connect.GroupServiceClient
	dead    strandmqv1connect.DeadLetterServiceClient
	trace   strandmqv1connect.TraceServiceClient
	node    strandmqv1connect.NodeServiceClient
	cluster strandmqv1connect.ClusterServiceClient
}

func newAPI(t testing.TB, url string, opts ...connect.ClientOption) api {
	c := httpClient(t, false)
	return apiOver(c, url, opts...)
}

func apiOver(c connect.HTTPClient, url string, opts ...connect.ClientOption) api {
	return api{
		strandmqv1connect.NewPublishServiceClient(c, url, opts...), strandmqv1connect.NewConsumeServiceClient(c, url, opts...),
		strandmqv1connect.NewTopicServiceClient(c, url, opts...), strandmqv1connect.NewGroupServiceClient(c, url, opts...),
		strandmqv1connect.NewDeadLetterServiceClient(c, url, opts...), strandmqv1connect.NewTraceServiceClient(c, url, opts...),
		strandmqv1connect.NewNodeServiceClient(c, url, opts...), strandmqv1connect.NewClusterServiceClient(c, url, opts...),
	}
}

// httpClient speaks HTTP/1.1, or HTTP/2 without TLS.
func httpClient(t testing.TB, h2 bool) *http.Client {
	var p http.Protocols
	p.SetHTTP1(!h2)
	p.SetUnencryptedHTTP2(h2)
	tr := &http.Transport{Protocols: &p, MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// soon bounds the waits for what comes within moments on a machine that does nothing
// else, and within seconds with all of a test.
const soon = 3 * time.Minute

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), 2*soon)
	t.Cleanup(cancel)
	return c
}

// msg is a message of a key with a text body.
func msg(key, text string) *strandmqv1.Message {
	m := &strandmqv1.Message{Body: &strandmqv1.Message_Text{Text: text}}
	if key != "" {
		m.KeyKind = &strandmqv1.Message_Key{Key: key}
	}
	return m
}

// store publishes and wants every message stored.
func (a api) store(t testing.TB, topic string, ms ...*strandmqv1.Message) []*strandmqv1.Receipt {
	t.Helper()
	res, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: topic, Messages: ms})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]*strandmqv1.Receipt, len(ms))
	for i, r := range res.GetResults() {
		if r.GetProblem() != nil {
			t.Fatalf("message %d: %v", i, r.GetProblem())
		}
		out[i] = r.GetReceipt()
	}
	return out
}

// topic creates a topic.
func (a api) topic(t testing.TB, name string, partitions uint32) {
	t.Helper()
	c := ctx(t)
	for {
		_, err := a.topics.CreateTopic(c, &strandmqv1.CreateTopicRequest{Topic: name, Partitions: partitions})
		if err == nil {
			return
		}
		// A call that was on its way to who led the metadata log before is harmless twice.
		if problemOf(err).GetReason() != "OUTCOME_UNKNOWN" || c.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // nobody tells the test of a change
	}
}

// group creates a group.
func (a api) group(t testing.TB, topic, name string, p *strandmqv1.GroupPolicy) {
	t.Helper()
	if _, err := a.groups.CreateGroup(ctx(t), &strandmqv1.CreateGroupRequest{Topic: topic, Group: name, Policy: p}); err != nil {
		t.Fatal(err)
	}
}

// receive asks for deliveries, waiting long for the first: there has to be one.
func (a api) receive(t testing.TB, topic, group, member string, n uint32) []*strandmqv1.Delivery {
	t.Helper()
	res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: topic, Group: group, Member: member, MaxMessages: n, WaitMs: 40_000})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetDeliveries()
}

// one asks for one delivery and wants it.
func (a api) one(t testing.TB, topic, group, member string) *strandmqv1.Delivery {
	t.Helper()
	ds := a.receive(t, topic, group, member, 1)
	if len(ds) != 1 {
		t.Fatalf("got %d deliveries, want one", len(ds))
	}
	return ds[0]
}

// none wants nothing to be delivered now, and gives the reason.
func (a api) none(t testing.TB, topic, group, member string) string {
	t.Helper()
	res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: topic, Group: group, Member: member, MaxMessages: 10})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.GetDeliveries()) != 0 {
		t.Fatalf("got %v, want nothing", res.GetDeliveries())
	}
	if res.GetIdleReason() == "" {
		t.Fatal("no deliveries and no reason")
	}
	return res.GetIdleReason()
}

const (
	ack     = strandmqv1.SettleAction_SETTLE_ACTION_ACK
	nack    = strandmqv1.SettleAction_SETTLE_ACTION_NACK
	reject  = strandmqv1.SettleAction_SETTLE_ACTION_REJECT
	extend  = strandmqv1.SettleAction_SETTLE_ACTION_EXTEND
	release = strandmqv1.SettleAction_SETTLE_ACTION_RELEASE
)

// settle settles one token and gives its result.
func (a api) settle(t testing.TB, topic, group, token string, action strandmqv1.SettleAction, reason string) *strandmqv1.SettleResult {
	t.Helper()
	res, err := a.consume.Settle(ctx(t), &strandmqv1.SettleRequest{Topic: topic, Group: group, Settlements: []*strandmqv1.Settlement{{Token: token, Action: action, Reason: reason}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.GetResults()) != 1 {
		t.Fatalf("got %d results, want one", len(res.GetResults()))
	}
	return res.GetResults()[0]
}

// done settles and wants it done.
func (a api) done(t testing.TB, topic, group string, d *strandmqv1.Delivery, action strandmqv1.SettleAction, reason string) *strandmqv1.SettleResult {
	t.Helper()
	r := a.settle(t, topic, group, d.GetToken(), action, reason)
	if r.GetProblem() != nil {
		t.Fatalf("%v of offset %d: %v", action, d.GetOffset(), r.GetProblem())
	}
	return r
}

// lapse has the deadline of a delivery come at once, as that of a member that hangs does
// in time.
func (a api) lapse(t testing.TB, topic, group string, d *strandmqv1.Delivery) {
	t.Helper()
	res, err := a.consume.Settle(ctx(t), &strandmqv1.SettleRequest{Topic: topic, Group: group, Settlements: []*strandmqv1.Settlement{{Token: d.GetToken(), Action: extend, DelayMs: 1}}})
	if err != nil || res.GetResults()[0].GetProblem() != nil {
		t.Fatalf("the deadline of offset %d: %v, %v", d.GetOffset(), res, err)
	}
}

// describe gives a group and checks that its counts add up.
func (a api) describe(t testing.TB, topic, group string) *strandmqv1.DescribeGroupResponse {
	t.Helper()
	res, err := a.groups.DescribeGroup(ctx(t), &strandmqv1.DescribeGroupRequest{Topic: topic, Group: group})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range res.GetPartitions() {
		c := p.GetCounts()
		total := c.GetReady() + c.GetBlocked() + c.GetInFlight() + c.GetBackingOff() + c.GetParked() + c.GetDead() + c.GetAcked() + c.GetSkipped() + c.GetNotScanned()
		if total != p.GetEnd()-p.GetStart() {
			t.Fatalf("partition %d: the counts %v sum to %d, want %d", p.GetPartition(), c, total, p.GetEnd()-p.GetStart())
		}
	}
	return res
}

// wantReason wants an error of the whole call with a code of the table.
func wantReason(t testing.TB, err error, reason string) {
	t.Helper()
	p := problemOf(err)
	if p.GetReason() != reason {
		t.Fatalf("got %v (%v), want %s", err, p, reason)
	}
	if got, want := connect.CodeOf(err).String(), rowOf(reason).code; got != want {
		t.Fatalf("%s has code %s, want %s", reason, got, want)
	}
	if p.GetMessage() == "" {
		t.Fatalf("%s says nothing", reason)
	}
}
