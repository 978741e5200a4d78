package broker

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// jsonLog is the log of a node, or of several, line by line.
type jsonLog struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (l *jsonLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// on has a node write there, down to what is for who looks for it.
func (l *jsonLog) on(c *Config) {
	c.Logger = slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// of are the lines of a request.
func (l *jsonLog) of(id string) (out []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil && m["request_id"] == id {
			out = append(out, m)
		}
	}
	return out
}

// saidBy are clients whose calls have a request id and a trace.
func saidBy(t testing.TB, b *Broker, id string, opts ...connect.ClientOption) api {
	hc := httpClient(t, true)
	hc.Transport = &saying{RoundTripper: hc.Transport, say: map[string]string{"X-Request-Id": id, "Traceparent": aParent}}
	return apiOver(hc, b.URL(), opts...)
}

// A failed call leaves one line, with what it is found by.
func TestRequestsInTheLog(t *testing.T) {
	lines := &jsonLog{}
	b := start(t, t.TempDir(), lines.on)
	newAPI(t, b.URL()).topic(t, "t", 1)
	one := func(id, level string, want map[string]string) {
		t.Helper()
		found := lines.of(id)
		if len(found) != 1 || found[0]["level"] != level {
			t.Fatalf("%s: %d lines: %v", id, len(found), found)
		}
		for k, v := range want {
			if found[0][k] != v {
				t.Errorf("%s: %s is %v, not %s, in %v", id, k, found[0][k], v, found[0])
			}
		}
	}

	const describe = "/strandmq.v1.TopicService/DescribeTopic"
	for name, opts := range map[string][]connect.ClientOption{"connect": nil, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()}} {
		_, err := saidBy(t, b, name, opts...).topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: "nowhere"})
		wantReason(t, err, "UNKNOWN_TOPIC")
		one(name, "DEBUG", map[string]string{"method": describe, "code": "not_found", "reason": "UNKNOWN_TOPIC", "trace_id": aTrace})
	}
	stream, err := saidBy(t, b, "stream").consume.Subscribe(ctx(t), &strandmqv1.SubscribeRequest{Topic: "nowhere", Group: "g", Member: "m"})
	if err == nil {
		for stream.Receive() {
			t.Error("it receives")
		}
		err = stream.Err()
		stream.Close()
	}
	wantReason(t, err, "UNKNOWN_TOPIC")
	one("stream", "DEBUG", map[string]string{"method": "/strandmq.v1.ConsumeService/Subscribe", "reason": "UNKNOWN_TOPIC", "trace_id": aTrace})

	p := newPlainly(t, b)
	p.do("GET", "/v1/topics/nowhere", "", "", "X-Request-Id", "plain").refused(404, "UNKNOWN_TOPIC")
	one("plain", "DEBUG", map[string]string{"method": describe, "reason": "UNKNOWN_TOPIC"})
	p.do("GET", "/v1/nowhere", "", "", "X-Request-Id", "path").refused(404, "UNKNOWN_METHOD")
	one("path", "DEBUG", map[string]string{"method": "/v1/nowhere", "reason": "UNKNOWN_METHOD"})
	p.send("POST", describe, "text/plain", "{}", "X-Request-Id", "guard")
	one("guard", "DEBUG", map[string]string{"method": describe, "code": "invalid_argument", "reason": "BAD_CONTENT_TYPE"})
	p.send("GET", describe, "", "", "X-Request-Id", "protocol")
	one("protocol", "DEBUG", map[string]string{"method": describe, "reason": "BAD_METHOD"})
	p.do("GET", "/v1/topics/t", "", "", "X-Request-Id", "done").ok(200, nil)
	one("done", "DEBUG", map[string]string{"method": describe, "code": "ok", "msg": "a call was answered"})

	saved := b.publisher
	b.publisher = nil // every publish panics now
	defer func() { b.publisher = saved }()
	_, err = saidBy(t, b, "fault").publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "x")}})
	if pr := problemOf(err); pr.GetReason() != "INTERNAL" || pr.GetRequestId() != "fault" || !strings.HasSuffix(pr.GetMessage(), "request id fault") {
		t.Fatalf("told %v", err)
	}
	one("fault", "ERROR", map[string]string{"method": "/strandmq.v1.PublishService/Publish", "msg": "panic in a call", "trace_id": aTrace})
	got := p.do("POST", "/v1/topics/t/messages", octets, "x", "X-Request-Id", "plain fault is replaced").refused(500, "INTERNAL")
	one(got.RequestID, "ERROR", map[string]string{"msg": "panic in a call"})
}

// Items that are refused leave a line, though the call that has them is answered.
func TestRefusedItemsInTheLog(t *testing.T) {
	lines := &jsonLog{}
	b := start(t, t.TempDir(), lines.on)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", nil)
	one := func(id string, want map[string]any) {
		t.Helper()
		found := lines.of(id)
		if len(found) != 1 || found[0]["level"] != "DEBUG" || found[0]["took"] == nil {
			t.Fatalf("%s: %d lines: %v", id, len(found), found)
		}
		for k, v := range want {
			if found[0][k] != v {
				t.Errorf("%s: %s is %v, not %v, in %v", id, k, found[0][k], v, found[0])
			}
		}
	}
	const publish, settle = "/strandmq.v1.PublishService/Publish", "/strandmq.v1.ConsumeService/Settle"
	said := func(id, body string) *strandmqv1.Message {
		m := msg("k", body)
		m.Id = id
		return m
	}
	send := func(id string, ms ...*strandmqv1.Message) {
		t.Helper()
		if _, err := saidBy(t, b, id).publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: ms}); err != nil {
			t.Fatal(err)
		}
	}
	send("stored", said("1", "a"), said("2", "b"))
	one("stored", map[string]any{"method": publish, "code": "ok", "msg": "a call was answered", "refused": nil, "reason": nil})
	send("reused", said("1", "other"), said("3", "c"), said("2", "other"))
	one("reused", map[string]any{"method": publish, "code": "ok", "refused": 2.0, "reason": "ID_REUSED"})

	d := a.one(t, "t", "g", "m")
	settled := func(id string, action strandmqv1.SettleAction) {
		t.Helper()
		if _, err := saidBy(t, b, id).consume.Settle(ctx(t), &strandmqv1.SettleRequest{Topic: "t", Group: "g", Settlements: []*strandmqv1.Settlement{{Token: d.GetToken(), Action: action}}}); err != nil {
			t.Fatal(err)
		}
	}
	settled("settled", release)
	one("settled", map[string]any{"method": settle, "code": "ok", "msg": "a call was answered", "refused": nil})
	settled("late", ack)
	one("late", map[string]any{"method": settle, "code": "ok", "refused": 1.0, "reason": "STALE_DELIVERY"})

	told := newPlainly(t, b).do("POST", "/v1/topics/t/groups/g/ack", asJSON, `{"tokens":["`+d.GetToken()+`","`+d.GetToken()+`"]}`, "X-Request-Id", "plain").refused(409, "STALE_DELIVERY")
	one("plain", map[string]any{"method": settle, "code": "ok", "refused": 2.0, "reason": "STALE_DELIVERY"})
	if !strings.HasPrefix(told.Detail, "2 of 2 deliveries were refused; the first refused: ") {
		t.Errorf("of all that are refused it says %q", told.Detail)
	}
}

// What a call begins and the node finishes, whether its caller waits or not, is still
// done for the call.
func TestRequestsOfWhatIsFinished(t *testing.T) {
	c := startCluster(t, func(partition.PartitionID) partition.NodeID { return edgeNode })
	came := make(chan *request, 100)
	h := c.edge.nodeHandler()
	c.serve(edgeNode, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/LogGroup") {
			came <- requestFrom(r.Header)
		}
		h.ServeHTTP(w, r)
	}))
	a := saidBy(t, c.owner, "mine")
	a.topic(t, "t", 1)
	a.group(t, "t", "g", nil)
	select {
	case q := <-came:
		if q.id != "mine" || q.trace() != aTrace {
			t.Fatalf("the group is logged for %+v", q)
		}
	default:
		t.Fatal("the group is there, and no other node was asked to log it")
	}
}

// Calls that go to another node have the same id there, and the same trace.
func TestRequestsOverHops(t *testing.T) {
	lines := &jsonLog{}
	c := startCluster(t, nil, lines.on)
	var mu sync.Mutex
	came := map[string]string{} // path at the owner: request id and trace
	h := c.owner.nodeHandler()
	c.serve(ownerNode, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := requestFrom(r.Header)
		mu.Lock()
		came[q.id+" "+r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]] = q.trace()
		mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	a := saidBy(t, c.edge, "mine")
	a.topic(t, "t", 1)
	a.group(t, "t", "g", nil)
	a.store(t, "t", msg("k", "1"), msg("k", "2"), msg("other", "3"))
	d := a.one(t, "t", "g", "m")
	a.done(t, "t", "g", d, ack, "")
	a.describe(t, "t", "g")

	_, err := a.dead.GetDeadLetter(ctx(t), &strandmqv1.GetDeadLetterRequest{Topic: "t", Group: "g", Which: &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Place{Place: &strandmqv1.MessagePlace{Offset: 2}}}})
	wantReason(t, err, "UNKNOWN_DEAD_LETTER")
	_, err = a.groups.DescribeGroup(ctx(t), &strandmqv1.DescribeGroupRequest{Topic: "t", Group: "nowhere"})
	if p := problemOf(err); p.GetReason() != "UNKNOWN_GROUP" || p.GetRequestId() != "mine" {
		t.Fatalf("passed on whole: %v", p)
	}

	stream, err := a.consume.Subscribe(ctx(t), &strandmqv1.SubscribeRequest{Topic: "t", Group: "g", Member: "s"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	eventually(t, "the stream is open at the owner", func() bool {
		mu.Lock()
		defer mu.Unlock()
		_, is := came["mine Attach"]
		return is
	})
	mu.Lock()
	defer mu.Unlock()
	for _, method := range []string{"CreateTopic", "CreateGroup", "Receive", "Settle", "DescribeGroup", "DeadLetters", "Join", "Attach"} {
		if got := came["mine "+method]; got != aTrace {
			t.Errorf("%s came with trace %q, of %v", method, got, came)
		}
	}
	told := map[string]int{}
	for _, line := range lines.of("mine") {
		if line["trace_id"] != aTrace {
			t.Errorf("without its trace: %v", line)
		}
		if reason, is := line["reason"].(string); is {
			told[reason+": "+line["msg"].(string)]++
		}
	}
	if told["UNKNOWN_DEAD_LETTER: a call from another node was refused"] < 1 || told["UNKNOWN_DEAD_LETTER: a call was refused"] != 1 {
		t.Errorf("of what failed over a hop the logs say %v", told)
	}
	if told["UNKNOWN_GROUP: a call was refused"] < 1 {
		t.Errorf("of what was passed on the logs say %v", told)
	}
}
