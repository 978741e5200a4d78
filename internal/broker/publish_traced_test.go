package broker

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// headersOf are a message's headers, whose names no test has twice.
func headersOf(m *strandmqv1.Message) map[string]string {
	out := map[string]string{}
	for _, h := range m.GetHeaders() {
		out[h.GetName()] = h.GetValue()
	}
	return out
}

// A message of a unary call is stored with the trace of the call, and with the id that
// the caller gave it, over every protocol and over a hop.
func TestPublishKeepsTheCall(t *testing.T) {
	for name, b := range map[string]*Broker{"one node": start(t, t.TempDir()), "a hop": startCluster(t, nil).edge} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, b.URL())
			a.topic(t, "t", 1)
			a.group(t, "t", "g", nil)
			p := newPlainly(t, b)
			next := func(what string, want map[string]string) {
				t.Helper()
				d := a.one(t, "t", "g", "m")
				if got := headersOf(d.GetMessage()); !maps.Equal(got, want) {
					t.Errorf("%s: stored with %v, not %v", what, got, want)
				}
				a.done(t, "t", "g", d, ack, "")
			}
			both := map[string]string{"traceparent": aParent, "x-request-id": "mine"}
			for kind, opts := range map[string][]connect.ClientOption{"connect": nil, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()}} {
				saidBy(t, b, "mine", opts...).store(t, "t", msg("k", "x"))
				next(kind, both)
			}
			const path = "/v1/topics/t/messages"
			p.do("POST", path, octets, "x", "X-Request-Id", "mine", "Traceparent", aParent).ok(201, nil)
			next("plain", both)
			p.do("POST", path, ndlines, `{"value":"x"}`, "X-Request-Id", "mine", "Traceparent", aParent).ok(200, nil)
			next("plain lines", both)
			p.do("POST", path, octets, "x").ok(201, nil)
			next("a call without", nil)
			p.do("POST", path, octets, "x", "X-Request-Id", "not fit", "Traceparent", aParent+"-").ok(201, nil)
			next("a call with what is not valid", nil)
			p.do("POST", path, octets, "x", "X-Request-Id", "mine", "Traceparent", aParent, "Strandmq-Header-TraceParent", "own").ok(201, nil)
			next("a message with a trace of its own", map[string]string{"traceparent": "own", "x-request-id": "mine"})

			own := msg("k", "x")
			own.Headers = []*strandmqv1.Header{{Name: "X-Request-ID", ValueKind: &strandmqv1.Header_Value{Value: "own"}}}
			saidBy(t, b, "mine").store(t, "t", own)
			next("a message with an id of its own", map[string]string{"X-Request-ID": "own", "traceparent": aParent})

			full, want := msg("k", "x"), map[string]string{}
			for i := range record.MaxHeaders {
				want[fmt.Sprint(i)] = "v"
				full.Headers = append(full.Headers, &strandmqv1.Header{Name: fmt.Sprint(i), ValueKind: &strandmqv1.Header_Value{Value: "v"}})
			}
			saidBy(t, b, "mine").store(t, "t", full)
			next("a message with as many headers as there may be", want)
		})
	}
}

// On a stream the messages carry their own.
func TestPublishStreamKeepsNoCall(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	s := saidBy(t, b, "mine").publishStream(t, ctx(t))
	sends(t, s, &strandmqv1.PublishBatch{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "x")}})
	if err := s.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	if r, _, err := rest(s); err != nil || len(r) != 1 {
		t.Fatal(r, err)
	}
	a.group(t, "t", "g", nil)
	if m := a.one(t, "t", "g", "m").GetMessage(); len(m.GetHeaders()) != 0 {
		t.Fatalf("stored with %v", m.GetHeaders())
	}
}

// A retry has another id, and perhaps another span, and is a duplicate all the same.
func TestPublishRetryIsADuplicate(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	hc := httpClient(t, false)
	way := &saying{RoundTripper: hc.Transport}
	hc.Transport = way
	caller := apiOver(hc, b.URL())
	for _, req := range []*strandmqv1.PublishRequest{
		{Topic: "t", Messages: []*strandmqv1.Message{{Id: "1", KeyKind: &strandmqv1.Message_Key{Key: "k"}, Body: &strandmqv1.Message_Text{Text: "x"}}}},
		{Topic: "t", ProducerId: "p", FirstSequence: 1, Messages: []*strandmqv1.Message{msg("k", "x")}},
	} {
		for i := range 3 {
			way.say = map[string]string{"X-Request-Id": fmt.Sprint("try-", i), "Traceparent": strings.Replace(aParent, "00f0", fmt.Sprint("00f", i), 1)}
			if i == 2 {
				way.say = nil
			}
			res, err := caller.publish.Publish(ctx(t), req)
			if err != nil {
				t.Fatal(err)
			}
			if r := res.GetResults()[0]; r.GetProblem() != nil || r.GetReceipt().GetDuplicate() != (i > 0) {
				t.Fatalf("try %d: %v", i, r)
			}
		}
	}
	a.group(t, "t", "g", nil)
	for _, d := range a.receive(t, "t", "g", "m", 10) {
		if h := headersOf(d.GetMessage()); h["x-request-id"] != "try-0" {
			t.Errorf("stored with %v", h)
		}
	}
}

// Nothing becomes too large for what a call is found by.
func TestMarkFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := publication{}
		for range rapid.IntRange(1, 6).Draw(t, "messages") {
			r := record.Record{Body: make([]byte, rapid.SampledFrom([]int{0, 1, 100, 1 << 20, 1<<20 - 130, 900_000}).Draw(t, "body"))}
			for i := range rapid.SampledFrom([]int{0, 1, 62, 63, 64}).Draw(t, "headers") {
				r.Headers = append(r.Headers, record.Header{Name: fmt.Sprint(i), Value: make([]byte, rapid.SampledFrom([]int{0, 1, 100, 250, 16_100, 16_250}).Draw(t, "value"))})
			}
			if r.Check() == nil {
				p.records = append(p.records, r)
			}
		}
		size := record.Size(record.Meta{}, p.records)
		if size > record.MaxBatchBytes {
			return
		}
		h := http.Header{"Traceparent": {aParent}, "X-Request-Id": {strings.Repeat("x", rapid.IntRange(1, 128).Draw(t, "id"))}}
		requestFrom(h).mark(&p, "")
		for i := range p.records {
			if err := p.records[i].Check(); err != nil {
				t.Fatalf("record %d: %v", i, err)
			}
		}
		if now := record.Size(record.Meta{}, p.records); now > record.MaxBatchBytes {
			t.Fatalf("%d bytes became %d", size, now)
		}
	})
}
