package broker

import (
	"net"
	"net/netip"
	"sync"
)

// perAddress is a listener that bounds how many connections one remote address
// has open, so that one machine cannot take them all. Connections beyond that
// are closed as they come. Loopback is not bounded here: whoever is on this
// machine shares one address with everybody else on it, and the bound on all
// connections holds.
type perAddress struct {
	net.Listener
	most    int
	refused func(netip.Addr)

	mu   sync.Mutex
	open map[netip.Addr]int // guarded by mu: only addresses with connections
}

func limitPerAddress(l net.Listener, most int, refused func(netip.Addr)) *perAddress {
	return &perAddress{Listener: l, most: most, refused: refused, open: map[netip.Addr]int{}}
}

// Accept implements net.Listener.
func (l *perAddress) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, bounded := remoteOf(c)
		if !bounded {
			return c, nil
		}
		if l.enter(from) {
			return &countedConn{Conn: c, leave: sync.OnceFunc(func() { l.leave(from) })}, nil
		}
		l.refused(from)
		_ = c.Close()
	}
}

// remoteOf is the address that a connection counts for, and whether it is
// bounded. Of IPv6 that is the network of 64 bits, which is what one machine
// has.
func remoteOf(c net.Conn) (netip.Addr, bool) {
	ap, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}, true // what has no address shares one bound
	}
	a := ap.Addr().Unmap()
	if a.IsLoopback() {
		return a, false
	}
	if a.Is6() {
		if p, err := a.WithZone("").Prefix(64); err == nil {
			a = p.Addr()
		}
	}
	return a, true
}

func (l *perAddress) enter(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from] >= l.most {
		return false
	}
	l.open[from]++
	return true
}

func (l *perAddress) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from]--; l.open[from] == 0 {
		delete(l.open, from)
	}
}

// countedConn is a connection that is counted until it is closed.
type countedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
