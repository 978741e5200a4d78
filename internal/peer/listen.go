package peer

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// pendingLimit is how many connections may be without a proof at once, and
	// pendingPerAddress how many of one machine. More are closed as they come.
	pendingLimit      = 256
	pendingPerAddress = 64
)

// accept takes connections until the listener is closed.
func (t *Transport) accept() {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		conn, err := t.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Such as too many open files: others close theirs in time.
			t.tells.warn("a connection of a node could not be taken", "error", err)
			wait.Reset(50 * time.Millisecond)
			select {
			case <-wait.C:
				continue
			case <-t.ctx.Done():
				return
			}
		}
		leave, ok := t.gate.enter(conn.RemoteAddr())
		if !ok {
			_ = conn.Close()
			continue
		}
		held := t.hold(conn)
		t.group.Go(func() { t.serve(held, sync.OnceFunc(leave)) })
	}
}

// hold makes Close close a connection that came, until somebody has.
func (t *Transport) hold(conn net.Conn) *tracked {
	c := &tracked{Conn: conn, ahead: bufio.NewReaderSize(conn, gathered)}
	c.forget = sync.OnceFunc(func() {
		t.mu.Lock()
		delete(t.conns, c)
		t.mu.Unlock()
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = conn.Close()
		return c
	}
	t.conns[c] = struct{}{}
	return c
}

// drop closes a connection at once, without a word to the other side and without
// waiting for what it writes. It takes no lock, so it may be called with mu held.
func drop(conn *tls.Conn) {
	raw := conn.NetConn()
	if t, ok := raw.(*tracked); ok {
		raw = t.Conn
	}
	_ = raw.Close()
}

// tracked is a connection that is known until it is closed. forget takes mu, so who
// holds that closes what is inside.
type tracked struct {
	net.Conn
	forget func()
	ahead  *bufio.Reader // not nil: reads more at once than TLS asks for
}

// Read implements net.Conn.
func (c *tracked) Read(b []byte) (int, error) {
	if c.ahead != nil {
		return c.ahead.Read(b)
	}
	return c.Conn.Read(b)
}

// Close implements net.Conn.
func (c *tracked) Close() error {
	c.forget()
	return c.Conn.Close()
}

// serve finds out who calls and for what. proven is called when it is no stranger
// any more.
func (t *Transport) serve(raw net.Conn, proven func()) {
	defer proven()
	handed := false
	defer func() {
		if !handed {
			_ = raw.Close()
		}
	}()
	conn := tls.Server(raw, &tls.Config{GetConfigForClient: t.serverConfig, MinVersion: tls.VersionTLS13})
	_ = raw.SetDeadline(time.Now().Add(t.cfg.Timeout))
	if err := conn.HandshakeContext(t.ctx); err != nil {
		t.cfg.Logger.Debug("a connection did not get past its handshake", "remote", raw.RemoteAddr().String(), "error", err)
		return
	}
	state := conn.ConnectionState()
	protocol := state.NegotiatedProtocol
	if protocol == protocolJoin {
		t.told(raw, t.serveJoin(conn))
		return
	}
	held := t.cfg.Identity.held.Load()
	node, refused := verify(state.PeerCertificates, held.roots, held.cluster, t.cfg.Now(), x509.ExtKeyUsageClientAuth)
	if refused == nil {
		proven()
	}
	switch {
	case protocol == protocolFrames:
		t.told(raw, t.serveFrames(conn, node, refused))
	case refused != nil:
		// Nobody speaks HTTP with strangers; over frames they are told why.
		t.told(raw, refused)
	case protocol == protocolCalls:
		_ = raw.SetDeadline(time.Time{})
		handed = t.rpc.take(conn)
	}
}

// told logs why a connection ended, aloud where somebody has to do something.
func (t *Transport) told(raw net.Conn, err error) {
	var refused *ErrRefused
	if errors.As(err, &refused) && !refused.Remote && refused.lasts() {
		host, _, _ := net.SplitHostPort(raw.RemoteAddr().String())
		t.tells.warn("a node was refused: "+refused.Error(), "remote", host)
		return
	}
	t.cfg.Logger.Debug("a connection of a node ended", "remote", raw.RemoteAddr().String(), "error", err)
}

// serverConfig is made for each connection, so that files that were read again are
// used. A client's certificate is asked for here and judged by serve, which can
// say what is wrong with it; nothing else is done before.
func (t *Transport) serverConfig(client *tls.ClientHelloInfo) (*tls.Config, error) {
	c := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{t.cfg.Identity.held.Load().cert}, Time: t.cfg.Now,
		SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
	}
	if slices.Equal(client.SupportedProtos, []string{protocolJoin}) && t.cfg.OnJoin != nil {
		c.NextProtos = []string{protocolJoin}
		return c, nil
	}
	c.ClientAuth = tls.RequireAnyClientCert
	c.NextProtos = []string{protocolFrames}
	if t.rpc != nil {
		c.NextProtos = append(c.NextProtos, protocolCalls)
	}
	return c, nil
}

// gate counts connections that have proven nothing yet.
type gate struct {
	most, perAddress int

	mu   sync.Mutex
	all  int                // guarded by mu
	from map[netip.Addr]int // guarded by mu: only addresses with connections
}

func newGate(most, perAddress int) *gate {
	return &gate{most: most, perAddress: perAddress, from: map[netip.Addr]int{}}
}

// enter counts a connection until leave is called.
func (g *gate) enter(a net.Addr) (leave func(), ok bool) {
	ap, _ := netip.ParseAddrPort(a.String())
	from := ap.Addr().Unmap().WithZone("")
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all >= g.most || g.from[from] >= g.perAddress {
		return nil, false
	}
	g.all++
	g.from[from]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.all--
		if g.from[from]--; g.from[from] == 0 {
			delete(g.from, from)
		}
	}, true
}
