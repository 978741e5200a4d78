package broker

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
)

// What is no stream is refused in words.
func TestStreamProtocol(t *testing.T) {
	b := start(t, t.TempDir())
	for _, c := range []struct {
		path, kind string
		h2         bool
		header     [2]string
		status     int
		reason     string
	}{
		{"PublishService/PublishStream", "application/connect+proto", false, [2]string{}, 505, "BAD_REQUEST"},
		{"ConsumeService/Consume", "application/grpc", false, [2]string{}, 505, "BAD_REQUEST"},
		{"PublishService/PublishStream", "application/json", true, [2]string{}, 415, "BAD_CONTENT_TYPE"},
		{"ConsumeService/Subscribe", "application/json", false, [2]string{}, 415, "BAD_CONTENT_TYPE"},
		{"ConsumeService/Subscribe", "application/x-www-form-urlencoded", false, [2]string{}, 415, "BAD_CONTENT_TYPE"},
		{"ConsumeService/Subscribe", "application/connect+json; charset=utf-8", false, [2]string{}, 415, "BAD_CONTENT_TYPE"},
		{"PublishService/PublishStream", "application/connect+proto", true, [2]string{"Connect-Content-Encoding", "zstd"}, 415, "BAD_CONTENT_TYPE"},
		{"PublishService/PublishStream", "application/connect+proto", true, [2]string{"Connect-Protocol-Version", "9"}, 400, "BAD_REQUEST"},
		{"PublishService/PublishStream", "application/connect+proto", true, [2]string{"Host", "evil.example"}, 403, "HOST_NOT_ALLOWED"},
		{"ConsumeService/Subscribe", "application/connect+json", false, [2]string{"Host", "evil.example"}, 403, "HOST_NOT_ALLOWED"},
		{"ConsumeService/Subscribe", "application/connect+json", false, [2]string{"Sec-Fetch-Site", "cross-site"}, 403, "CROSS_ORIGIN"},
		{"PublishService/Publish", "application/connect+json", false, [2]string{}, 415, "BAD_CONTENT_TYPE"},
	} {
		req, err := http.NewRequestWithContext(ctx(t), http.MethodPost, b.URL()+"/strandmq.v1."+c.path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", c.kind)
		if c.header[0] == "Host" {
			req.Host = c.header[1]
		} else if c.header[0] != "" {
			req.Header.Set(c.header[0], c.header[1])
		}
		res, err := httpClient(t, c.h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != c.status || !strings.Contains(string(body), c.reason) {
			t.Errorf("%s %s %v: %d %s, want %d %s", c.path, c.kind, c.header, res.StatusCode, body, c.status, c.reason)
		}
	}
	res, err := http.Get(b.URL() + "/strandmq.v1.ConsumeService/Consume")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusMethodNotAllowed || res.Header.Get("Allow") != "POST" {
		t.Errorf("GET: %d", res.StatusCode)
	}
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
	err = b.unharmed(ctx(t), "test", func() error { return m.serve(ctx(t)) })
	if reasonOf(err) != "INTERNAL" || strings.Contains(err.Error(), "fault of ours") {
		t.Fatalf("told: %v", err)
	}
	if _, g, err := b.group("t", "g"); err != nil || len(g.Members) != 0 {
		t.Fatalf("the session stayed: %v, %v", g, err)
	}
}
