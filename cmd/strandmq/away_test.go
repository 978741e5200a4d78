package main

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/strandmq/strandmq/internal/broker"
	"github.com/strandmq/strandmq/internal/heldport"
)

// lockedBuffer is what a command says, to be looked at while it runs.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Consuming and publishing may begin before the broker does, as they do when a
// machine starts them all at once.
func TestTheBrokerMayComeLater(t *testing.T) {
	listen, dir := heldport.Address(t), t.TempDir()
	start := func() *broker.Broker {
		b, err := broker.Start(t.Context(), broker.Config{DataDir: dir, Listen: listen, Logger: slog.New(slog.DiscardHandler), Version: "test"})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := start()
	if code, _, talk := strandmq(t, b.URL(), "", "topic", "create", "t"); code != 0 {
		t.Fatal(talk)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	type result struct {
		code int
		talk *lockedBuffer
		out  *lockedBuffer
	}
	run := func(args ...string) chan result {
		done := make(chan result, 1)
		r := result{talk: &lockedBuffer{}, out: &lockedBuffer{}}
		a := &app{in: strings.NewReader("1\n2\n"), out: r.out, err: r.talk}
		go func() {
			r.code = run(a, append([]string{"--server", "http://" + listen}, args...))
			done <- r
		}()
		waitFor(t, func() bool { return strings.Contains(r.talk.String(), "waiting") })
		return done
	}
	published, consumed := run("publish", "t"), run("consume", "t", "--group", "g", "--max", "2")
	b = start()
	defer b.Close()
	for name, done := range map[string]chan result{"publish": published, "consume": consumed} {
		if r := <-done; r.code != 0 {
			t.Errorf("%s: code %d\n%s", name, r.code, r.talk)
		}
	}
}

// However a connection breaks, the call is made again.
func TestBrokenConnections(t *testing.T) {
	server, err := url.Parse(scriptBroker(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(server)
	var calls atomic.Int64
	flaky := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1)%2 == 1 && strings.HasPrefix(r.URL.Path, "/strandmq.v1.ConsumeService/") || strings.HasSuffix(r.URL.Path, "/Publish") && calls.Load()%2 == 1 {
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			if calls.Load()%4 == 1 {
				_ = c.(*net.TCPConn).SetLinger(0) // a reset instead of an end
			}
			c.Close()
			return
		}
		r.Host = server.Host
		proxy.ServeHTTP(w, r)
	}))
	defer flaky.Close()
	if code, _, talk := strandmq(t, flaky.URL, "", "topic", "create", "t", "--partitions", "1"); code != 0 {
		t.Fatal(talk)
	}
	var lines strings.Builder
	for range 6 {
		lines.WriteString("1\n")
		if code, _, talk := strandmq(t, flaky.URL, lines.String(), "publish", "t"); code != 0 {
			t.Fatalf("publish: %s", talk)
		}
	}
	code, out, talk := strandmq(t, flaky.URL, "", "consume", "t", "--group", "g", "--until-empty")
	if code != 0 || strings.Count(out, "\n") != 6 {
		t.Errorf("consume: code %d %q\n%s", code, out, talk)
	}
}

// With --exec, what is printed has the body format that was asked for.
func TestExecPrintsTheBodyFormat(t *testing.T) {
	url := scriptBroker(t)
	if code, _, talk := strandmq(t, url, "", "topic", "create", "t"); code != 0 {
		t.Fatal(talk)
	}
	if code, _, talk := strandmq(t, url, "", "publish", "t", "--body", "grüß"); code != 0 {
		t.Fatal(talk)
	}
	for format, want := range map[string]string{"text": `"text":"grüß"`, "bytes": `"bytes":"Z3LDvMOf"`} {
		code, out, talk := strandmq(t, url, "", "consume", "t", "--group", format, "--until-empty", "--exec", "cat", "--output", "json", "--body-format", format)
		if code != 0 || !strings.Contains(out, want) || !strings.Contains(talk, "grüß") {
			t.Errorf("%s: code %d\n%s%s", format, code, out, talk)
		}
	}
}
