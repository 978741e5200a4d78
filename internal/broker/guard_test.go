package broker

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// newGuard serves next behind a guard on a real port.
func newGuard(t *testing.T, g *guard) string {
	t.Helper()
	g.log = slog.New(slog.DiscardHandler)
	g.origins = http.NewCrossOriginProtection()
	g.hosts = map[string]bool{"localhost": true, "broker.example": true}
	g.rejected = func(string) {}
	if g.bodyTime == 0 {
		g.bodyTime = 10 * time.Second
	}
	if g.flight == nil {
		g.flight = &flight{max: 64 << 20}
	}
	s := httptest.NewServer(g)
	t.Cleanup(s.Close)
	return s.URL
}

// wireReason reads the reason out of an answer that refuses.
func wireReason(t *testing.T, res *http.Response) string {
	t.Helper()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		Code    string
		Message string
		Details []struct {
			Type  string
			Value string
			Debug struct{ Reason, Message string }
		}
	}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("%d %q: %v", res.StatusCode, b, err)
	}
	if len(out.Details) != 1 || out.Details[0].Type != "strandmq.v1.Problem" || out.Message == "" {
		t.Fatalf("%d without a Problem: %s", res.StatusCode, b)
	}
	if want := rowOf(out.Details[0].Debug.Reason).code; out.Code != want {
		t.Fatalf("%s has code %s, want %s", out.Details[0].Debug.Reason, out.Code, want)
	}
	return out.Details[0].Debug.Reason
}

func TestGuardRefusals(t *testing.T) {
	var reached atomic.Int64
	url := newGuard(t, &guard{next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Errorf("%s: %v", r.URL, err)
		}
		reached.Add(1)
	})})
	for _, c := range []struct {
		name    string
		method  string
		host    string
		headers map[string]string
		body    string
		status  int
		reason  string // empty: let through
	}{
		{name: "json", status: 200},
		{name: "json with charset", headers: map[string]string{"Content-Type": "application/json; charset=utf-8"}, status: 200},
		{name: "grpc", headers: map[string]string{"Content-Type": "application/grpc+proto"}, status: 200},
		{name: "grpc-web", headers: map[string]string{"Content-Type": "application/grpc-web+proto"}, status: 200},
		{name: "connect stream", headers: map[string]string{"Content-Type": "application/connect+json"}, status: 200},
		{name: "allowed host", host: "Broker.Example:7171", status: 200},
		{name: "loopback v6 host", host: "[::1]:7171", status: 200},
		{name: "other loopback host", host: "127.8.8.8", status: 200},
		{name: "same origin page", host: "localhost:1", headers: map[string]string{"Origin": "http://localhost:1"}, status: 200},
		{name: "get", method: "GET", headers: map[string]string{"Content-Type": ""}, status: 200},

		{name: "rebound host", host: "evil.example", status: 403, reason: "HOST_NOT_ALLOWED"},
		{name: "rebound host, same origin", host: "evil.example:7171", headers: map[string]string{"Origin": "http://evil.example:7171", "Sec-Fetch-Site": "same-origin"}, status: 403, reason: "HOST_NOT_ALLOWED"},
		{name: "host with loopback as prefix", host: "127.0.0.1.evil.example", status: 403, reason: "HOST_NOT_ALLOWED"},
		{name: "host with localhost as prefix", host: "localhost.evil.example", status: 403, reason: "HOST_NOT_ALLOWED"},
		{name: "foreign address", host: "192.0.2.1:7171", status: 403, reason: "HOST_NOT_ALLOWED"},
		{name: "unspecified address", host: "0.0.0.0:7171", status: 403, reason: "HOST_NOT_ALLOWED"},
		{name: "rebound get", method: "GET", host: "evil.example", status: 403, reason: "HOST_NOT_ALLOWED"},
		{name: "foreign origin", headers: map[string]string{"Origin": "https://evil.example"}, status: 403, reason: "CROSS_ORIGIN"},
		{name: "null origin", headers: map[string]string{"Origin": "null"}, status: 403, reason: "CROSS_ORIGIN"},
		{name: "cross-site fetch", headers: map[string]string{"Sec-Fetch-Site": "cross-site"}, status: 403, reason: "CROSS_ORIGIN"},
		{name: "same-site fetch", headers: map[string]string{"Sec-Fetch-Site": "same-site"}, status: 403, reason: "CROSS_ORIGIN"},
		{name: "form", headers: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, status: 415, reason: "BAD_CONTENT_TYPE"},
		{name: "multipart", headers: map[string]string{"Content-Type": "multipart/form-data; boundary=x"}, status: 415, reason: "BAD_CONTENT_TYPE"},
		{name: "text", headers: map[string]string{"Content-Type": "text/plain"}, status: 415, reason: "BAD_CONTENT_TYPE"},
		{name: "text that ends in json", headers: map[string]string{"Content-Type": "text/plain;application/json"}, status: 415, reason: "BAD_CONTENT_TYPE"},
		{name: "none", headers: map[string]string{"Content-Type": ""}, status: 415, reason: "BAD_CONTENT_TYPE"},
		{name: "put", method: "PUT", status: 405, reason: "BAD_METHOD"},
		{name: "delete", method: "DELETE", status: 405, reason: "BAD_METHOD"},
		{name: "preflight", method: "OPTIONS", headers: map[string]string{"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}, status: 405, reason: "BAD_METHOD"},
		{name: "too large", body: strings.Repeat("x", 1<<20+1), status: 413, reason: "REQUEST_TOO_LARGE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.method == "" {
				c.method = "POST"
			}
			req, err := http.NewRequest(c.method, url+"/strandmq.v1.TopicService/ListTopics", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if c.host != "" {
				req.Host = c.host
			}
			for k, v := range c.headers {
				if v == "" {
					req.Header.Del(k)
				} else {
					req.Header.Set(k, v)
				}
			}
			before := reached.Load()
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != c.status {
				t.Fatalf("status %d, want %d", res.StatusCode, c.status)
			}
			for h := range res.Header {
				if strings.HasPrefix(h, "Access-Control-") {
					t.Errorf("the answer has %s: no other origin is ever allowed", h)
				}
			}
			if got := reached.Load() - before; (got == 1) != (c.reason == "") {
				t.Fatalf("the handler was reached %d times", got)
			}
			if c.reason != "" {
				if got := wireReason(t, res); got != c.reason {
					t.Fatalf("reason %s, want %s", got, c.reason)
				}
			}
		})
	}
}

// A body without a length is cut at the limit, with the reason.
func TestGuardEndlessBody(t *testing.T) {
	fail := make(chan error, 1)
	url := newGuard(t, &guard{next: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		fail <- err
	})})
	endless := io.MultiReader(strings.NewReader("{"), zeros{})
	req, err := http.NewRequest("POST", url+"/x", endless)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err == nil {
		res.Body.Close()
	}
	if got := translateWire(<-fail); got != "REQUEST_TOO_LARGE" {
		t.Fatalf("reason %q", got)
	}
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// All requests together may hold only so much.
func TestGuardBoundsAllBodies(t *testing.T) {
	hold, fail := make(chan struct{}), make(chan error, 1)
	g := &guard{flight: &flight{max: 1000}}
	g.next = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/hold" {
			<-hold
			return
		}
		fail <- err
	})
	url := newGuard(t, g)
	post := func(path string, n int) {
		res, err := http.Post(url+path, "application/json", strings.NewReader(strings.Repeat("x", n)))
		if err != nil {
			t.Error(err)
			return
		}
		res.Body.Close()
	}
	done := make(chan struct{})
	go func() { defer close(done); post("/hold", 900) }()
	waitFor(t, func() bool { return g.flight.held.Load() == 900 })
	post("/x", 200)
	if got := translateWire(<-fail); got != "BUSY" {
		t.Fatalf("reason %q", got)
	}
	close(hold)
	<-done
	waitFor(t, func() bool { return g.flight.held.Load() == 0 })
	post("/x", 200)
	if err := <-fail; err != nil {
		t.Fatal(err)
	}
}

// A body that trickles in is cut; a handler that waits after its body came is
// not, however long it waits.
func TestGuardTime(t *testing.T) {
	t.Parallel() // it waits
	fail := make(chan error, 1)
	const limit = 2 * time.Second // a body that comes at once is not cut on a busy machine
	url := newGuard(t, &guard{bodyTime: limit, next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/trickle" {
			fail <- err
			return
		}
		select { // a long poll, longer than a body may take
		case <-time.After(limit + limit/2):
			fmt.Fprint(w, "late")
		case <-r.Context().Done():
			fmt.Fprint(w, "cut")
		}
	})})
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /trickle HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	if err := <-fail; translateWire(err) != "REQUEST_SLOW" {
		t.Fatalf("a body that does not come ended with %v", err)
	}
	for range 2 { // the second one on the same connection
		res, err := http.Post(url+"/poll", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if string(b) != "late" {
			t.Fatalf("a long poll answered %q", b)
		}
	}
}

// A connection that was used before and idle for longer than an answer may take
// still says "100 Continue" to a large body.
func TestGuardIdleConnection(t *testing.T) {
	t.Parallel()                  // it waits
	const limit = 2 * time.Second // a body that comes at once is not cut on a busy machine
	url := newGuard(t, &guard{bodyTime: limit, next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})})
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(soon))
	in := bufio.NewReader(conn)
	answered := func() {
		t.Helper()
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(res.Body); string(b) != "2 <nil>" {
			t.Fatalf("%d %q", res.StatusCode, b)
		}
	}
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
	answered()
	time.Sleep(limit + limit/2) // the idle time is what is tested
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	if line, err := in.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "{}")
	answered()
}

// A caller that does not take its answer is cut off.
func TestGuardSlowReader(t *testing.T) {
	t.Parallel() // it waits
	fail := make(chan error, 1)
	url := newGuard(t, &guard{bodyTime: time.Second, next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		big := make([]byte, 1<<20)
		for range 256 { // more than any socket buffers
			if _, err := w.Write(big); err != nil {
				fail <- err
				return
			}
		}
		fail <- nil
	})})
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := <-fail; err == nil {
		t.Fatal("256 MiB were written to a reader that took none")
	}
}

// A panic is answered without what it said.
func TestGuardPanic(t *testing.T) {
	url := newGuard(t, &guard{next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("secret") })})
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != 500 || strings.Contains(string(b), "secret") || !strings.Contains(string(b), "INTERNAL") {
		t.Fatalf("%d %s", res.StatusCode, b)
	}
}

// waitFor waits for a condition that another goroutine brings about.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain", soon)
		}
		time.Sleep(time.Millisecond) // between looks at a condition
	}
}
