package loadtest

import (
	"context"
	"net"
	"net/url"
	"sync"
	"time"
)

// doors are the addresses of the nodes of one broker. A run is at one of them until a
// connection to it cannot be made, and then goes to the next: what broke with the old one
// is repeated there, as after a restart.
type doors struct {
	mu  sync.Mutex
	all []string // address and port
	at  int      // guarded by mu: the one that was reached last
}

// doorTime is how long a node may take to answer a connection where there are others.
const doorTime = 5 * time.Second

// newDoors takes the URLs of nodes, the first one's first. Those that differ in more than
// the address are left out: a call is made for the first.
func newDoors(server string, others []string) *doors {
	d := &doors{}
	first, err := url.Parse(server)
	if err != nil {
		return d
	}
	for _, name := range append([]string{server}, others...) {
		u, err := url.Parse(name)
		if err != nil || u.Scheme != "http" || u.Host == "" || u.Path != first.Path || u.User != nil || first.User != nil {
			continue
		}
		address := u.Host
		if u.Port() == "" {
			address = net.JoinHostPort(u.Hostname(), "80")
		}
		d.all = append(d.all, address)
	}
	return d
}

// dial connects to the node that was reached last, or to the next that can be.
func (d *doors) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d.mu.Lock()
	all, at := d.all, d.at
	d.mu.Unlock()
	if len(all) < 2 {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	var first error
	for i := range all {
		c, err := (&net.Dialer{Timeout: doorTime}).DialContext(ctx, network, all[(at+i)%len(all)])
		if err == nil {
			d.mu.Lock()
			d.at = (at + i) % len(all)
			d.mu.Unlock()
			return c, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}
