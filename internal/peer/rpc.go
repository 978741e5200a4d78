package peer

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// helloHeader carries the hello of who calls: the certificate says which node it
	// is, and this which process and data folder.
	helloHeader = "Strandmq-Hello"
	// refusedHeader carries a refusal back.
	refusedHeader = "Strandmq-Refused"
)

var headerText = base64.RawStdEncoding

type callerKey struct{}

// From is the node whose call a Handler serves.
func From(ctx context.Context) (node uint64, ok bool) {
	node, ok = ctx.Value(callerKey{}).(uint64)
	return node, ok
}

// rpcServer serves calls on connections that serve has looked at.
type rpcServer struct {
	t      *Transport
	server *http.Server
	conns  chan net.Conn
}

// vetted is kept with each connection, so that a hello is judged once and not for
// each call.
type vetted struct{ last atomic.Pointer[verdict] }

type verdict struct {
	header   string
	revision uint64
}

type vettedKey struct{}

func newRPCServer(t *Transport) *rpcServer {
	s := &rpcServer{t: t, conns: make(chan net.Conn)}
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	s.server = &http.Server{
		Handler: s, Protocols: protocols, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute,
		ErrorLog:    slog.NewLogLogger(t.cfg.Logger.Handler(), slog.LevelDebug),
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: 4096, SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
		BaseContext: func(net.Listener) context.Context { return t.ctx },
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, vettedKey{}, new(vetted))
		},
	}
	return s
}

func (s *rpcServer) serve() { _ = s.server.Serve(handover{s}) }

// take hands a connection over; false: the server has ended.
func (s *rpcServer) take(conn net.Conn) bool {
	select {
	case s.conns <- conn:
		return true
	case <-s.t.ctx.Done():
		return false
	}
}

// close ends all calls. The Transport's context has ended, and theirs with it.
func (s *rpcServer) close() error { return s.server.Close() }

// handover is the listener of what take hands over.
type handover struct{ s *rpcServer }

// Accept implements net.Listener.
func (h handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.s.conns:
		return c, nil
	case <-h.s.t.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (handover) Close() error { return nil }

// Addr implements net.Listener.
func (h handover) Addr() net.Addr { return h.s.t.Addr() }

// ServeHTTP implements http.Handler.
func (s *rpcServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	node, refused := s.vet(r)
	if refused != nil {
		w.Header().Set(refusedHeader, headerText.EncodeToString(encodeRefusal(refused)))
		http.Error(w, refused.Error(), http.StatusForbidden)
		return
	}
	if !s.t.begin() {
		http.Error(w, "the node is stopping", http.StatusServiceUnavailable)
		return
	}
	defer s.t.group.Done()
	s.t.cfg.Handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, node)))
}

// begin makes Close wait for a call until group.Done; false: it is too late.
func (t *Transport) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.group.Add(1)
	return true
}

// vet judges who calls, by the certificate and the hello.
func (s *rpcServer) vet(r *http.Request) (uint64, *ErrRefused) {
	_, node, err := subjectOf(r.TLS.PeerCertificates[0])
	if err != nil {
		return 0, asRefused(err)
	}
	seen, _ := r.Context().Value(vettedKey{}).(*vetted)
	header := r.Header.Get(helloHeader)
	now := verdict{header, s.t.revision.Load()}
	if last := seen.last.Load(); last != nil && *last == now {
		return node, nil
	}
	b, err := headerText.DecodeString(header)
	if err != nil {
		return 0, refuse(Malformed, "the header %s is not one", helloHeader)
	}
	h, err := parseHello(b)
	if err != nil {
		return 0, asRefused(err)
	}
	s.t.mu.Lock()
	refused := s.t.running(h)
	if refused == nil {
		refused = s.t.meet(h, node)
	}
	now.revision = s.t.revision.Load()
	s.t.mu.Unlock()
	if refused != nil {
		return 0, refused
	}
	seen.last.Store(&now)
	return node, nil
}

func asRefused(err error) *ErrRefused {
	var refused *ErrRefused
	if errors.As(err, &refused) {
		return refused
	}
	return refuse(Malformed, "%v", err)
}

// Client is for calls to a node, and the base of their URLs. The client stays good
// while the node's address or certificate changes; it has no timeout of its own.
// Calls fail when the node is told to be down: those that are under way, and at once,
// with an *ErrUnreached, those that are made while it is. A process that was stopped,
// and not ended, still takes connections, so a call would wait long to find out. Where
// the node is not known it is an *ErrNoNode.
func (t *Transport) Client(node uint64) (*http.Client, string) {
	return &http.Client{Transport: &caller{t: t, node: node}, CheckRedirect: noRedirect}, "https://node-" + strconv.FormatUint(node, 10)
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// caller is the http.RoundTripper to one node.
type caller struct {
	t    *Transport
	node uint64
}

// RoundTrip implements http.RoundTripper.
func (c *caller) RoundTrip(r *http.Request) (*http.Response, error) {
	p := (*c.t.peers.Load())[c.node]
	if p == nil {
		closeBody(r)
		return nil, &ErrNoNode{Node: c.node}
	}
	if _, down := p.reachable(); down {
		closeBody(r)
		return nil, &ErrUnreached{Node: c.node, Err: errSilent}
	}
	h := c.t.self
	h.to = c.node
	r = r.Clone(r.Context())
	r.Header.Set(helloHeader, headerText.EncodeToString(h.encode()))
	res, err := p.http.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if said := res.Header.Get(refusedHeader); said != "" && res.StatusCode == http.StatusForbidden {
		_ = res.Body.Close()
		b, err := headerText.DecodeString(said)
		if err != nil {
			return nil, refuse(Malformed, "the header %s is not one", refusedHeader)
		}
		refused, err := parseRefusal(b)
		if err != nil {
			return nil, err
		}
		return nil, refused
	}
	return res, nil
}

// reachable gives a context that ends when the node is told to be down, and tells
// whether it is by now. One of which nothing was told yet is not.
func (p *peer) reachable() (until context.Context, down bool) {
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	return p.reach, p.told.known && !p.told.up
}

// dialForCalls connects until the node is told to be down.
func (p *peer) dialForCalls(ctx context.Context, cancel context.CancelFunc) (net.Conn, error) {
	until, down := p.reachable()
	if down {
		return nil, errSilent
	}
	defer context.AfterFunc(until, cancel)()
	conn, err := p.dial(ctx, protocolCalls, p.track)
	if err != nil {
		return nil, err // and no conn that is none
	}
	return conn, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// newHTTP makes what carries calls to the node.
func (p *peer) newHTTP() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	return &http.Transport{
		Protocols: protocols, DisableCompression: true, IdleConnTimeout: 2 * time.Minute,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, p.t.cfg.Timeout)
			defer cancel()
			conn, err := p.dialForCalls(ctx, cancel)
			if err != nil {
				return nil, &ErrUnreached{Node: p.node, Err: err}
			}
			return conn, nil
		},
	}
}

// track makes a connection one of those that are closed when the node is down. One
// that comes when the node is gone is closed at once.
func (p *peer) track(conn net.Conn) net.Conn {
	c := &tracked{Conn: conn}
	c.forget = sync.OnceFunc(func() {
		p.t.mu.Lock()
		delete(p.calls, c)
		p.t.mu.Unlock()
	})
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	if p.t.closed || (*p.t.peers.Load())[p.node] != p {
		_ = conn.Close()
		return c
	}
	p.calls[c] = struct{}{}
	return c
}
