package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Every protocol does the same job and shows the same errors.
func TestProtocols(t *testing.T) {
	b := start(t, t.TempDir())
	for _, c := range []struct {
		name string
		h2   bool
		opts []connect.ClientOption
	}{
		{"connect", false, nil},
		{"connect-h2", true, nil},
		{"connect-json", false, []connect.ClientOption{connect.WithProtoJSON()}},
		{"connect-gzip", false, []connect.ClientOption{connect.WithSendGzip()}},
		{"grpc", true, []connect.ClientOption{connect.WithGRPC()}},
		{"grpc-json", true, []connect.ClientOption{connect.WithGRPC(), connect.WithProtoJSON()}},
		{"grpc-web", false, []connect.ClientOption{connect.WithGRPCWeb()}},
		{"grpc-web-h2", true, []connect.ClientOption{connect.WithGRPCWeb()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			testProtocol(t, apiOver(httpClient(t, c.h2), b.URL(), c.opts...), "t-"+c.name)
		})
	}
}

func testProtocol(t *testing.T, a api, topic string) {
	a.topic(t, topic, 1)
	a.group(t, topic, "g", nil)
	in := []*strandmqv1.Message{
		{KeyKind: &strandmqv1.Message_Key{Key: "schlüssel"}, Id: "1", Body: &strandmqv1.Message_Text{Text: "grüß"},
			Headers: []*strandmqv1.Header{
				{Name: "h", ValueKind: &strandmqv1.Header_Value{Value: "1"}}, {Name: "h", ValueKind: &strandmqv1.Header_ValueBytes{ValueBytes: []byte{0, 255}}}, {Name: "H"},
			}},
		{KeyKind: &strandmqv1.Message_KeyBytes{KeyBytes: []byte{0xff, 0}}, Body: &strandmqv1.Message_Bytes{Bytes: []byte{0x80, 0}}},
		{KeyKind: &strandmqv1.Message_Key{Key: "json"}, Body: &strandmqv1.Message_Json{Json: structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewNumberValue(1.5), structpb.NewNullValue()}})}},
		{KeyKind: &strandmqv1.Message_Key{Key: "empty"}},
	}
	r := a.store(t, topic, in...)
	if r[3].GetOffset() != 3 {
		t.Fatalf("receipts %v", r)
	}
	if r := a.store(t, topic, in[0]); !r[0].GetDuplicate() || r[0].GetOffset() != 0 {
		t.Fatalf("repeat: %v", r)
	}
	ds := a.receive(t, topic, "g", "m", 10)
	if len(ds) != 4 {
		t.Fatalf("got %d deliveries", len(ds))
	}
	if m := ds[0].GetMessage(); m.GetKey() != "schlüssel" || m.GetText() != "grüß" || m.GetId() != "1" || len(m.GetHeaders()) != 3 ||
		string(m.GetHeaders()[1].GetValueBytes()) != "\x00\xff" || m.GetHeaders()[2].GetName() != "H" || m.GetPublishTime() == nil {
		t.Fatalf("first: %v", m)
	}
	if m := ds[1].GetMessage(); string(m.GetKeyBytes()) != "\xff\x00" || string(m.GetBytes()) != "\x80\x00" {
		t.Fatalf("second: %v", m)
	}
	if m := ds[2].GetMessage(); m.GetText() != "[1.5,null]" {
		t.Fatalf("third: %v", m)
	}
	if m := ds[3].GetMessage(); m.GetText() != "" || m.GetKey() != "empty" {
		t.Fatalf("fourth: %v", m)
	}
	for _, d := range ds {
		a.done(t, topic, "g", d, ack, "")
	}
	_, err := a.topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: "nowhere"})
	wantReason(t, err, "UNKNOWN_TOPIC")
	_, err = a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: topic, Group: "g", Member: "../etc"})
	wantReason(t, err, "BAD_NAME")
	if p := problemOf(err); p.GetField() != "member" {
		t.Fatalf("field %q", p.GetField())
	}
}

// The gRPC client of Google's own library.
func TestGRPCGo(t *testing.T) {
	b := start(t, t.TempDir())
	conn, err := grpc.NewClient(b.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func(method string, in, out proto.Message) error {
		return conn.Invoke(ctx(t), "/strandmq.v1."+method, in, out)
	}
	want := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	want(call("TopicService/CreateTopic", &strandmqv1.CreateTopicRequest{Topic: "t", Partitions: 1}, &strandmqv1.CreateTopicResponse{}))
	var pub strandmqv1.PublishResponse
	want(call("PublishService/Publish", &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "x")}}, &pub))
	if pub.GetResults()[0].GetReceipt() == nil {
		t.Fatalf("published: %v", &pub)
	}
	var got strandmqv1.ReceiveResponse
	want(call("ConsumeService/Receive", &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", CreateGroup: true, WaitMs: 10_000}, &got))
	if len(got.GetDeliveries()) != 1 {
		t.Fatalf("received: %v", &got)
	}
	var settled strandmqv1.SettleResponse
	want(call("ConsumeService/Settle", &strandmqv1.SettleRequest{Topic: "t", Group: "g", Settlements: []*strandmqv1.Settlement{{Token: got.GetDeliveries()[0].GetToken(), Action: ack}}}, &settled))
	if settled.GetResults()[0].GetProblem() != nil {
		t.Fatalf("settled: %v", &settled)
	}

	err = call("TopicService/DescribeTopic", &strandmqv1.DescribeTopicRequest{Topic: "nowhere"}, &strandmqv1.DescribeTopicResponse{})
	st := status.Convert(err)
	if st.Code() != codes.NotFound || len(st.Details()) != 1 {
		t.Fatalf("got %v with %v", err, st.Details())
	}
	if p, ok := st.Details()[0].(*strandmqv1.Problem); !ok || p.GetReason() != "UNKNOWN_TOPIC" {
		t.Fatalf("detail %v", st.Details()[0])
	}
	if err := call("TopicService/Nonsense", &strandmqv1.ListTopicsRequest{}, &strandmqv1.ListTopicsResponse{}); status.Code(err) != codes.Unimplemented {
		t.Fatalf("an unknown method: %v", err)
	}

	health := healthpb.NewHealthClient(conn)
	res, err := health.Check(ctx(t), &healthpb.HealthCheckRequest{Service: "strandmq.v1.PublishService"})
	if err != nil || res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("health %v, %v", res, err)
	}
	if _, err := health.Check(ctx(t), &healthpb.HealthCheckRequest{Service: "nowhere"}); status.Code(err) != codes.NotFound {
		t.Fatalf("health of nothing: %v", err)
	}
}

// grpcurl finds everything by reflection, in both versions of it.
func TestReflection(t *testing.T) {
	b := start(t, t.TempDir())
	for _, version := range []string{"v1", "v1alpha"} {
		c := httpClient(t, true)
		opts := []connect.ClientOption{connect.WithGRPC()}
		if version == "v1alpha" {
			c.Transport = onlyAlpha{c.Transport}
		}
		stream := grpcreflect.NewClient(c, b.URL(), opts...).NewStream(ctx(t))
		found, err := stream.ListServices()
		if err != nil {
			t.Fatal(err)
		}
		have := map[protoreflect.FullName]bool{}
		for _, name := range found {
			have[name] = true
		}
		for _, name := range append(services(), grpchealth.HealthV1ServiceName) {
			if !have[protoreflect.FullName(name)] {
				t.Errorf("%s: reflection does not list %s", version, name)
			}
		}
		files, err := stream.FileContainingSymbol("strandmq.v1.PublishService")
		if err != nil || len(files) == 0 {
			t.Errorf("%s: no file for PublishService: %v", version, err)
		}
		if _, err := stream.Close(); err != nil {
			t.Error(err)
		}
		c.CloseIdleConnections()
	}
}

// onlyAlpha makes the client fall back to the older reflection.
type onlyAlpha struct{ http.RoundTripper }

func (o onlyAlpha) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "grpc.reflection.v1.") {
		r.URL.Path = "/nowhere" + r.URL.Path
	}
	return o.RoundTripper.RoundTrip(r)
}

func (o onlyAlpha) CloseIdleConnections() {
	if c, ok := o.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// curl posts JSON as a person types it and gives the answer.
func curl(t *testing.T, b *Broker, method, body string) (int, map[string]any) {
	t.Helper()
	res, err := http.Post(b.URL()+"/strandmq.v1."+method, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("%s: %q: %v", method, text, err)
	}
	return res.StatusCode, out
}

// dig walks an answer: names of objects and places of lists.
func dig(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok {
				t.Fatalf("%v: %v is no object", path, v)
			}
			v = m[p]
		case int:
			l, ok := v.([]any)
			if !ok || p >= len(l) {
				t.Fatalf("%v: %v has no %d", path, v, p)
			}
			v = l[p]
		}
	}
	return v
}

// A newcomer with curl: no token, no protocol header, no base64.
func TestCurl(t *testing.T) {
	b := start(t, t.TempDir())
	ok := func(method, body string) map[string]any {
		t.Helper()
		code, out := curl(t, b, method, body)
		if code != 200 {
			t.Fatalf("%s: %d %v", method, code, out)
		}
		return out
	}
	ok("TopicService/CreateTopic", `{"topic":"orders","partitions":1}`)
	out := ok("PublishService/Publish", `{"topic":"orders","messages":[
		{"key":"a","text":"hello"},
		{"key":"b","json":{"n":1,"list":[true,null],"s":"é"}},
		{"key":"c","json":9007199254740993},
		{"key":"d","json":[1,{"x":9007199254740992}]},
		{"key":"e","bytes":"gAA="}]}`)
	for i, want := range []string{"0", "1", "", "", "2"} {
		if want == "" {
			if got := dig(t, out, "results", i, "problem", "reason"); got != "BAD_BODY" {
				t.Fatalf("message %d: %v", i, dig(t, out, "results", i))
			}
			if text, _ := dig(t, out, "results", i, "problem", "message").(string); !strings.Contains(text, "string") {
				t.Fatalf("message %d does not say what to do: %q", i, text)
			}
			continue
		}
		if got := dig(t, out, "results", i, "receipt", "offset"); got != want {
			t.Fatalf("message %d: offset %v, want %q", i, got, want)
		}
	}
	// Zeros are shown, so that a script finds what it looks for.
	if got := dig(t, out, "results", 0, "receipt", "partition"); got != float64(0) {
		t.Fatalf("partition %v", got)
	}
	out = ok("ConsumeService/Receive", `{"topic":"orders","group":"g","member":"me","createGroup":true,"maxMessages":10,"waitMs":"10000","bodyFormat":"BODY_FORMAT_JSON"}`)
	if got := dig(t, out, "deliveries", 0, "message", "text"); got != "hello" {
		t.Fatalf("first body %v", got)
	}
	body, _ := json.Marshal(dig(t, out, "deliveries", 1, "message", "json"))
	if string(body) != `{"list":[true,null],"n":1,"s":"é"}` {
		t.Fatalf("second body %s", body)
	}
	if got := dig(t, out, "deliveries", 2, "message", "bytes"); got != "gAA=" {
		t.Fatalf("third body %v", got)
	}
	token, _ := dig(t, out, "deliveries", 0, "token").(string)
	out = ok("ConsumeService/Settle", fmt.Sprintf(`{"topic":"orders","group":"g","settlements":[{"token":%q,"action":"SETTLE_ACTION_ACK"},{"token":"x","action":"SETTLE_ACTION_ACK"},{"token":%q}]}`, token, token))
	if dig(t, out, "results", 0, "problem") != nil {
		t.Fatalf("ack: %v", out)
	}
	if dig(t, out, "results", 1, "problem", "reason") != "BAD_TOKEN" || dig(t, out, "results", 2, "problem", "reason") != "BAD_VALUE" {
		t.Fatalf("refusals: %v", out)
	}
	// The names of the protocol file are taken too.
	ok("TopicService/CreateTopic", `{"topic":"t2","partitions":1,"config":{"max_body_bytes":"10"}}`)
	code, out := curl(t, b, "TopicService/CreateTopic", `{"topic":"orders","partitions":2}`)
	if code != 409 || dig(t, out, "details", 0, "debug", "reason") != "TOPIC_EXISTS" {
		t.Fatalf("%d %v", code, out)
	}
	out = ok("PublishService/Publish", `{"topic":"t2","messages":[{"text":"12345678901"},{"text":"1234567890"}]}`)
	if dig(t, out, "results", 0, "problem", "reason") != "BODY_TOO_LARGE" || dig(t, out, "results", 1, "receipt", "offset") != "0" {
		t.Fatalf("topic limit: %v", out)
	}
}

// Connect-Web from npm, as browsers use it, over its three transports.
func TestConnectWeb(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped with -short: it installs packages from npm")
	}
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: %s is not installed (%v)", tool, err)
		}
	}
	dir, err := filepath.Abs(filepath.Join("testdata", "web"))
	if err != nil {
		t.Fatal(err)
	}
	run := func(limit time.Duration, name string, args ...string) (string, error) {
		c, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		cmd := exec.CommandContext(c, name, args...)
		cmd.Dir = dir
		cmd.WaitDelay = time.Second
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		return out.String(), err
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); errors.Is(err, os.ErrNotExist) {
		if out, err := run(2*time.Minute, "npm", "ci", "--no-progress"); err != nil {
			t.Skipf("skipped: npm ci failed, perhaps without network: %v\n%s", err, out)
		}
	}
	t.Parallel() // it waits for processes
	b := start(t, t.TempDir())
	for _, transport := range []string{"connect-json", "connect-binary", "grpc-web"} {
		t.Run(transport, func(t *testing.T) {
			out, err := run(time.Minute, "node", "calls.mjs", b.URL(), transport)
			if err != nil || !strings.HasSuffix(strings.TrimSpace(out), "ok") {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}
