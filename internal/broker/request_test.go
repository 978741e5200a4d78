package broker

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

const (
	aTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	aParent = "00-" + aTrace + "-00f067aa0ba902b7-01"
)

func TestRequestFrom(t *testing.T) {
	for _, c := range []struct {
		id    string
		given bool
	}{
		{"a", true}, {"~!\"$%&/()=?", true}, {strings.Repeat("x", 128), true},
		{"", false}, {strings.Repeat("x", 129), false}, {"a b", false}, {"a\tb", false}, {"grüß", false}, {"a\x7f", false},
	} {
		q := requestFrom(http.Header{"X-Request-Id": {c.id}})
		if q.given != c.given || c.given != (q.id == c.id) || !fitRequest(q.id) {
			t.Errorf("%q: got %q, given: %v", c.id, q.id, q.given)
		}
	}
	if a, b := requestFrom(nil), requestFrom(nil); a.id == b.id || len(a.id) != 16 {
		t.Errorf("made %q and %q", a.id, b.id)
	}
}

func TestTraceParent(t *testing.T) {
	const end = "-00f067aa0ba902b7-01"
	for s, valid := range map[string]bool{
		aParent:                                       true,
		"cc" + aParent[2:]:                            true,
		"cc" + aParent[2:] + "-x":                     true,
		"cc" + aParent[2:] + "x":                      false,
		"cc" + aParent[2:] + "- ":                     false,
		aParent + "-x":                                false,
		"ff" + aParent[2:]:                            false,
		"":                                            false,
		aParent[:54]:                                  false,
		strings.ToUpper(aParent):                      false,
		"00-" + strings.Repeat("0", 32) + end:         false,
		"00-" + aTrace + "-0000000000000000-01":       false,
		"00-" + aTrace + "-00f067aa0ba902b7-0g":       false,
		"00-" + aTrace + "_00f067aa0ba902b7-01":       false,
		"01" + aParent[2:] + strings.Repeat("-", 999): false,
	} {
		if validParent(s) != valid {
			t.Errorf("%q: valid is %v", s, !valid)
		}
	}
	if q := requestFrom(http.Header{"Traceparent": {aParent}}); q.trace() != aTrace {
		t.Errorf("trace %q", q.trace())
	}
	if q := requestFrom(http.Header{"Traceparent": {aParent, aParent}}); q.trace() != "" {
		t.Errorf("one of two: %q", q.trace())
	}
}

// saying puts headers on requests and looks at those of answers.
type saying struct {
	http.RoundTripper
	say  map[string]string
	seen http.Header // of the last answer
}

func (s *saying) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range s.say {
		r.Header.Set(name, value)
	}
	res, err := s.RoundTripper.RoundTrip(r)
	if err == nil {
		s.seen = res.Header
	}
	return res, err
}

// Every call has a request id, over every protocol, done or refused: the caller's, or
// one that is made.
func TestRequestIDs(t *testing.T) {
	b := start(t, t.TempDir())
	newAPI(t, b.URL()).topic(t, "t", 1)
	for _, c := range []struct {
		name string
		h2   bool
		opts []connect.ClientOption
	}{
		{"connect", false, nil},
		{"connect-json-h2", true, []connect.ClientOption{connect.WithProtoJSON()}},
		{"grpc", true, []connect.ClientOption{connect.WithGRPC()}},
		{"grpc-web", false, []connect.ClientOption{connect.WithGRPCWeb()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			hc := httpClient(t, c.h2)
			way := &saying{RoundTripper: hc.Transport}
			hc.Transport = way
			a := apiOver(hc, b.URL(), c.opts...)
			one := func(topic string) error {
				_, err := a.topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: topic})
				return err
			}
			item := func() *strandmqv1.Problem {
				res, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("k", strings.Repeat("x", 2<<20))}})
				if err != nil {
					t.Fatal(err)
				}
				return res.GetResults()[0].GetProblem()
			}
			stream := func() error {
				s, err := a.consume.Subscribe(ctx(t), &strandmqv1.SubscribeRequest{Topic: "nowhere", Group: "g", Member: "m"})
				if err != nil {
					return err
				}
				defer s.Close()
				for s.Receive() {
					t.Error("it receives")
				}
				return s.Err()
			}
			id := func() string {
				t.Helper()
				id := way.seen["X-Request-Id"]
				if len(id) != 1 || !fitRequest(id[0]) {
					t.Fatalf("the answer has request ids %q", id)
				}
				return id[0]
			}
			refused := func(err error, want string) {
				t.Helper()
				if p := problemOf(err); p.GetReason() == "" || p.GetRequestId() != want || id() != want {
					t.Errorf("refused with %v, and the answer has %q, not %q", p, id(), want)
				}
			}

			way.say = map[string]string{"X-Request-Id": "mine/1"}
			if err := one("t"); err != nil || id() != "mine/1" {
				t.Fatalf("%v, request id %q", err, id())
			}
			refused(one("nowhere"), "mine/1")
			refused(stream(), "mine/1")
			if p := item(); p.GetRequestId() != "mine/1" {
				t.Errorf("an item: %v", p)
			}

			made := map[string]bool{}
			for _, unfit := range []string{"", "not mine", strings.Repeat("x", 129)} {
				if way.say = nil; unfit != "" {
					way.say = map[string]string{"X-Request-Id": unfit}
				}
				if err := one("t"); err != nil {
					t.Fatal(err)
				}
				made[id()] = true
				err := one("nowhere")
				refused(err, id())
				made[id()] = true
				err = stream()
				refused(err, id())
				made[id()] = true
			}
			if len(made) != 9 || made["mine/1"] {
				t.Errorf("made %v", made)
			}
		})
	}
}

// So it is with the client of Google's own library.
func TestRequestIDsGRPCGo(t *testing.T) {
	b := start(t, t.TempDir())
	conn, err := grpc.NewClient(b.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var h metadata.MD
	call := func(method string, in, out any) error {
		c := metadata.AppendToOutgoingContext(ctx(t), "x-request-id", "mine")
		return conn.Invoke(c, "/strandmq.v1."+method, in, out, grpc.Header(&h))
	}
	if err := call("TopicService/ListTopics", &strandmqv1.ListTopicsRequest{}, &strandmqv1.ListTopicsResponse{}); err != nil || len(h["x-request-id"]) != 1 || h["x-request-id"][0] != "mine" {
		t.Fatalf("%v, header %v", err, h)
	}
	h = nil
	err = call("TopicService/DescribeTopic", &strandmqv1.DescribeTopicRequest{Topic: "nowhere"}, &strandmqv1.DescribeTopicResponse{})
	st := status.Convert(err)
	if p, ok := st.Details()[0].(*strandmqv1.Problem); !ok || p.GetRequestId() != "mine" || len(h["x-request-id"]) != 1 || h["x-request-id"][0] != "mine" {
		t.Fatalf("%v, header %v", st.Details(), h)
	}
}

// What is refused before a method is reached has a request id all the same.
func TestRequestIDsBeforeAMethod(t *testing.T) {
	b := start(t, t.TempDir())
	p := newPlainly(t, b)
	const call = "/strandmq.v1.TopicService/ListTopics"
	for _, c := range []struct{ name, method, path, kind, body string }{
		{"content type", "POST", call, "text/plain", "{}"},
		{"content type of a stream", "POST", "/strandmq.v1.ConsumeService/Subscribe", "application/json", "{}"},
		{"method", "DELETE", call, "", ""},
		{"GET of a method", "GET", call, "", ""},
		{"unknown method", "POST", "/strandmq.v1.TopicService/Nonsense", "application/json", "{}"},
		{"unknown path", "POST", "/nowhere", "application/json", "{}"},
		{"JSON", "POST", call, "application/json", "{"},
		{"plain path", "GET", "/v1/nowhere", "", ""},
		{"plain method", "PATCH", "/v1/topics", "", ""},
		{"plain content type", "POST", "/v1/topics/t/messages", "text/plain", "x"},
		{"plain dots", "GET", "/v1/topics/../x", "", ""},
		{"plain parameter", "GET", "/v1/topics?x=1", "", ""},
		{"plain topic", "GET", "/v1/topics/nowhere", "", ""},
	} {
		for _, host := range []string{b.Addr(), "rebound.example"} {
			e := p.send(c.method, c.path, c.kind, c.body, "X-Request-Id", "mine", "Host", host)
			if e.status < 400 || e.header.Get("X-Request-Id") != "mine" || !strings.Contains(string(e.body), `"mine"`) {
				t.Errorf("%s at %s: %d, request id %q: %s", c.name, host, e.status, e.header.Get("X-Request-Id"), e.body)
			}
		}
	}
	// What is not refused has one too.
	for _, path := range []string{"/livez", "/metrics", "/v1/openapi.json", "/"} {
		if e := p.send("GET", path, "", "", "X-Request-Id", "mine"); e.status != 200 || e.header.Get("X-Request-Id") != "mine" {
			t.Errorf("%s: %d, %v", path, e.status, e.header)
		}
	}
}

// Pages of other origins may send the headers, and may read the id.
func TestRequestIDsOfGuests(t *testing.T) {
	const origin, publish = "https://app.example", "/strandmq.v1.PublishService/Publish"
	b := start(t, t.TempDir(), func(c *Config) { c.AllowedOrigins = []string{origin} })
	if res := preflight(t, b.URL()+publish, origin, "content-type,traceparent,tracestate,x-request-id"); res.Header.Get("Access-Control-Allow-Headers") == "" {
		t.Errorf("the preflight: %v", res.Header)
	}
	res := pageCalls(t, b.URL()+publish, origin, "application/json", `{"topic":"nowhere"}`)
	if shown := res.Header.Get("Access-Control-Expose-Headers"); !strings.Contains(shown, "X-Request-Id") || res.Header.Get("X-Request-Id") == "" {
		t.Errorf("shown are %s", shown)
	}
}

// An error of the library's own has the id in its header, if nowhere else.
func TestRequestIDOfInflation(t *testing.T) {
	b := start(t, t.TempDir())
	req, err := http.NewRequestWithContext(ctx(t), http.MethodPost, b.URL()+"/strandmq.v1.TopicService/ListTopics", strings.NewReader("no gzip"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}, "X-Request-Id": {"mine"}}
	res, err := httpClient(t, false).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusBadRequest || res.Header.Get("X-Request-Id") != "mine" {
		t.Errorf("%s, %v", res.Status, res.Header)
	}
}

// A panic of a call between nodes ends under the id of the call that it was for.
func TestHopPanics(t *testing.T) {
	lines := &jsonLog{}
	b := start(t, t.TempDir(), lines.on)
	next := func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { panic("secret") }
	req := connect.NewRequest(&strandmqv1.ListTopicsRequest{})
	(&request{id: "mine", parent: aParent}).to(req.Header())
	_, err := (&hopEdge{b: b}).WrapUnary(next)(ctx(t), req)
	if err == nil || !strings.Contains(err.Error(), "request id mine") || strings.Contains(err.Error(), "secret") {
		t.Fatalf("told: %v", err)
	}
	found := lines.of("mine")
	if len(found) == 0 || found[0]["msg"] != "panic in a call from another node" || found[0]["trace_id"] != aTrace {
		t.Fatalf("logged %v", found)
	}
	if own := (*connect.Error)(nil); !errors.As(err, &own) || own.Code() != connect.CodeInternal {
		t.Fatalf("%v", err)
	}
}
