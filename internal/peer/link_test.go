package peer

import (
	"net"
	"sync"
	"testing"
)

// link is a piece of network in front of a node: connections to its address reach
// the node, as long as it lets them.
type link struct {
	l      net.Listener
	target string
	group  sync.WaitGroup

	mu     sync.Mutex
	thaw   *sync.Cond
	closed bool
	conns  map[*pipe]struct{}
	frozen [2]bool // to the node, and back: bytes stay where they are
	cut    bool    // connections are closed as they come
}

type pipe struct {
	client, server net.Conn
	dead           bool // nothing passes any more, and nobody is told
}

func newLink(t *testing.T, target string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{l: l, target: target, conns: map[*pipe]struct{}{}}
	k.thaw = sync.NewCond(&k.mu)
	k.group.Go(k.accept)
	t.Cleanup(func() {
		k.set(func() { k.closed = true; k.closeAll() })
		_ = l.Close()
		k.group.Wait()
	})
	return k
}

// set changes what the link does.
func (k *link) set(f func()) {
	k.mu.Lock()
	f()
	k.thaw.Broadcast()
	k.mu.Unlock()
}

func (k *link) closeAll() {
	for p := range k.conns {
		_ = p.client.Close()
		_ = p.server.Close()
	}
}

// kill makes what is connected half-open; new connections pass.
func (k *link) kill() {
	k.set(func() {
		for p := range k.conns {
			p.dead = true
		}
	})
}

func (k *link) accept() {
	for {
		client, err := k.l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", k.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p := &pipe{client: client, server: server}
		k.mu.Lock()
		if k.cut || k.closed {
			_ = client.Close()
			_ = server.Close()
		} else {
			k.conns[p] = struct{}{}
			k.group.Go(func() { k.pump(p, server, client, 0) })
			k.group.Go(func() { k.pump(p, client, server, 1) })
		}
		k.mu.Unlock()
	}
}

func (k *link) pump(p *pipe, dst, src net.Conn, direction int) {
	defer func() {
		_ = dst.Close()
		_ = src.Close()
		k.mu.Lock()
		delete(k.conns, p)
		k.mu.Unlock()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		k.mu.Lock()
		for (k.frozen[direction] || p.dead) && !k.closed {
			k.thaw.Wait()
		}
		k.mu.Unlock()
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
