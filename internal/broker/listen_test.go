package broker

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// from is a connection from anywhere.
type from struct {
	net.Conn
	remote net.Addr
	closed bool
}

func (f *from) RemoteAddr() net.Addr { return f.remote }
func (f *from) Close() error         { f.closed = true; return nil }

// queue is a listener to which connections come in a given order.
type queue struct{ conns []*from }

func (q *queue) Accept() (net.Conn, error) {
	if len(q.conns) == 0 {
		return nil, io.EOF
	}
	c := q.conns[0]
	q.conns = q.conns[1:]
	return c, nil
}
func (q *queue) Close() error   { return nil }
func (q *queue) Addr() net.Addr { return nil }

// What is closed as it comes is counted each time, and told once a minute.
func TestCrowdedIsTold(t *testing.T) {
	var out bytes.Buffer
	b := &Broker{cfg: Config{ConnectionsPerAddress: 7}, log: slog.New(slog.NewTextHandler(&out, nil)), metrics: newMetrics("test")}
	refused := b.crowded()
	for range 3 {
		refused(netip.MustParseAddr("192.0.2.1"))
	}
	if log := out.String(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "from=192.0.2.1 limit=7") {
		t.Errorf("the log says %q", log)
	}
	page := httptest.NewRecorder()
	b.metrics.handler(func(context.Context, chan<- prometheus.Metric) {}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	if !strings.Contains(page.Body.String(), "\nstrandmq_connections_refused_total 3\n") {
		t.Errorf("the metrics say %s", page.Body)
	}
}

// A page of metrics that is refused says when to ask again.
func TestScrapeRefused(t *testing.T) {
	page := httptest.NewRecorder()
	laterWriter{page}.WriteHeader(http.StatusServiceUnavailable)
	if got := page.Header().Get("Retry-After"); page.Code != http.StatusServiceUnavailable || got != "1" {
		t.Errorf("%d, Retry-After %q", page.Code, got)
	}
}

func TestConnectionsPerAddress(t *testing.T) {
	q := &queue{}
	var refused []netip.Addr
	l := limitPerAddress(q, 2, func(a netip.Addr) { refused = append(refused, a) })
	come := func(remote string) (net.Conn, *from) {
		t.Helper()
		c := &from{remote: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(remote))}
		q.conns = append(q.conns, c)
		got, err := l.Accept()
		if err == nil {
			return got, c
		}
		if !c.closed {
			t.Fatalf("%s is refused and left open", remote)
		}
		return nil, c
	}
	wants := func(remote string, in bool) net.Conn {
		t.Helper()
		got, _ := come(remote)
		if (got != nil) != in {
			t.Fatalf("%s is let in: %t, want %t", remote, got != nil, in)
		}
		return got
	}
	first := wants("192.0.2.1:1", true)
	wants("192.0.2.1:2", true)
	wants("192.0.2.1:3", false)
	wants("[::ffff:192.0.2.1]:4", false) // the same machine
	wants("192.0.2.2:1", true)           // another one is not touched
	for range 2 {                        // closing twice counts once
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wants("192.0.2.1:5", true)
	wants("192.0.2.1:6", false)
	// One IPv6 machine has a whole network of addresses.
	six := []net.Conn{wants("[2001:db8::1]:1", true), wants("[2001:db8::2]:1", true)}
	wants("[2001:db8::3]:1", false)
	wants("[2001:db8:0:1::1]:1", true)
	for _, c := range six {
		_ = c.Close()
	}
	for range 10 {
		wants("127.0.0.1:1", true)
		wants("[::1]:1", true)
	}
	if len(refused) != 4 {
		t.Errorf("refused %v", refused)
	}
	if n := len(l.open); n != 3 {
		t.Errorf("%d addresses are remembered: %v", n, l.open)
	}
	if _, err := l.Accept(); err != io.EOF {
		t.Errorf("a listener that ends gives %v", err)
	}
}
