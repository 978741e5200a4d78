package peer

import (
	"net"
	"sync"
)

// gathering lies below TLS, where each record of 16 KiB would be a write of its own,
// and makes few large ones of many. The handshake passes at once.
type gathering struct {
	net.Conn

	mu  sync.Mutex
	on  bool   // guarded by mu: what is written stays in buf until flush, or until that is full
	buf []byte // guarded by mu
}

// gather begins to gather.
func (g *gathering) gather() {
	g.mu.Lock()
	g.on = true
	g.mu.Unlock()
}

// Write implements net.Conn.
func (g *gathering) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.on {
		return g.Conn.Write(b)
	}
	if len(g.buf)+len(b) > gathered+gathered/16 { // what one write above becomes, with what TLS adds
		if err := g.flushLocked(); err != nil {
			return 0, err
		}
	}
	g.buf = append(g.buf, b...)
	return len(b), nil
}

// flush writes what was gathered.
func (g *gathering) flush() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.flushLocked()
}

func (g *gathering) flushLocked() error {
	if len(g.buf) == 0 {
		return nil
	}
	_, err := g.Conn.Write(g.buf)
	g.buf = g.buf[:0]
	return err
}
