package peer

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// dialRaw makes a TLS connection that checks nothing.
func dialRaw(t *testing.T, address string, id *Identity, protocol string) (*tls.Conn, error) {
	t.Helper()
	cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}
	if id != nil {
		cfg.Certificates = []tls.Certificate{id.held.Load().cert}
	}
	conn, err := tls.Dial("tcp", address, cfg)
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(patience))
	}
	return conn, err
}

// greetRaw says a hello and reads what comes back.
func greetRaw(conn *tls.Conn, body []byte) error {
	if _, err := conn.Write(appendFrame(nil, kindHello, body)); err != nil {
		return err
	}
	w, err := expect(conn, kindWelcome, helloLimit)
	if err != nil {
		return err
	}
	_, err = parseHello(w)
	return err
}

func isRefused(t *testing.T, err error, reason Reason, remote bool) {
	t.Helper()
	var refused *ErrRefused
	if !errors.As(err, &refused) || refused.Reason != reason || refused.Remote != remote || len(refused.Text) < 20 || !strings.Contains(err.Error(), reason.String()) {
		t.Errorf("got %v, want %v, by the other side: %t", err, reason, remote)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel() // it waits
	c := newCluster(t, "c1")
	a := c.start(1, func(cfg *Config) { cfg.Boot = 5 })
	a.SetNodes(map[uint64]Member{
		2: {Address: "127.0.0.1:1"}, 3: {Address: "127.0.0.1:1", Store: storeOf(33), Boot: 4},
		4: {Address: "127.0.0.1:1"}, 5: {Address: "127.0.0.1:1"}, 6: {Address: "127.0.0.1:1"},
	})
	base := func(node uint64) hello {
		return hello{lowest: 1, highest: 1, cluster: "c1", node: node, to: 1, store: storeOf(node), boot: 3, life: node}
	}
	// Those that are taken first.
	for _, n := range []uint64{5, 6} {
		conn, err := dialRaw(t, a.Addr().String(), c.identity(n), protocolFrames)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := greetRaw(conn, base(n).encode()); err != nil {
			t.Fatalf("node %d: %v", n, err)
		}
	}
	early, late := *c, *c
	past, future := time.Now().Add(-2*certificateLife), time.Now().Add(3*time.Hour)
	early.authority, late.authority = new(Authority), new(Authority)
	*early.authority, *late.authority = *c.authority, *c.authority
	early.authority.now = func() time.Time { return past }
	late.authority.now = func() time.Time { return future }
	for _, x := range []struct {
		name   string
		id     *Identity
		node   uint64
		change func(*hello)
		want   Reason
	}{
		{"good", c.identity(2), 2, func(*hello) {}, 0},
		{"speaks later versions too", c.identity(2), 2, func(h *hello) { h.highest = 9 }, 0},
		{"hello of another cluster", c.identity(2), 2, func(h *hello) { h.cluster = "c2" }, WrongCluster},
		{"hello of another node", c.identity(2), 2, func(h *hello) { h.node = 4 }, WrongNode},
		{"certificate of another node", c.identity(4), 2, func(*hello) {}, WrongNode},
		{"calls another node", c.identity(2), 2, func(h *hello) { h.to = 9 }, WrongNode},
		{"the same node", c.identity(1), 1, func(h *hello) { h.store = storeOf(77) }, WrongNode},
		{"the store of who is called", c.identity(2), 2, func(h *hello) { h.store = storeOf(1) }, StoreTwice},
		{"another store than is known", c.identity(3), 3, func(*hello) {}, WrongStore},
		{"a boot before what is known", c.identity(3), 3, func(h *hello) { h.store = storeOf(33) }, OlderBoot},
		{"the store of another node", c.identity(4), 4, func(h *hello) { h.store = storeOf(5) }, StoreTwice},
		{"an earlier boot than before", c.identity(6), 6, func(h *hello) { h.boot = 2 }, OlderBoot},
		{"another store than before", c.identity(6), 6, func(h *hello) { h.store = storeOf(66) }, WrongStore},
		{"another process of the same boot", c.identity(6), 6, func(h *hello) { h.life = 99 }, StoreTwice},
		{"and the first of them", c.identity(6), 6, func(*hello) {}, StoreTwice},
		{"until it is started again", c.identity(6), 6, func(h *hello) { h.boot = 4 }, 0},
		{"no version of ours", c.identity(2), 2, func(h *hello) { h.lowest, h.highest = 7, 9 }, UnknownVersion},
		{"no member", c.identity(8), 8, func(*hello) {}, NotMember},
		{"a certificate of another cluster", newCluster(t, "c2").identity(2), 2, func(*hello) {}, WrongCluster},
		{"a certificate of another authority", newCluster(t, "c1").identity(2), 2, func(*hello) {}, BadCertificate},
		{"a certificate that has ended", early.identity(2), 2, func(*hello) {}, CertificateExpired},
		{"a certificate that begins later", late.identity(2), 2, func(*hello) {}, ClockSkew},
		{"a hello that is none", c.identity(2), 2, nil, Malformed},
	} {
		t.Run(x.name, func(t *testing.T) {
			conn, err := dialRaw(t, a.Addr().String(), x.id, protocolFrames)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			body := []byte("no fields at all")
			if x.change != nil {
				h := base(x.node)
				x.change(&h)
				body = h.encode()
			}
			err = greetRaw(conn, body)
			if x.want == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			isRefused(t, err, x.want, true)
			_ = conn.Close()
			if x.want != NotMember {
				a.until("the refusal in the log", func() bool { return strings.Contains(a.logs.String(), x.want.String()) })
			}
		})
	}
	if conn, err := dialRaw(t, a.Addr().String(), nil, protocolFrames); err == nil {
		defer conn.Close()
		if err := greetRaw(conn, base(2).encode()); err == nil {
			t.Error("a caller without a certificate was taken")
		}
	}
	for _, protocol := range []string{protocolCalls, "http/1.1"} {
		if conn, err := dialRaw(t, a.Addr().String(), newCluster(t, "c2").identity(2), protocol); err == nil {
			defer conn.Close()
			if n, err := conn.Read(make([]byte, 1)); err == nil {
				t.Errorf("a stranger was answered %d bytes over %s", n, protocol)
			}
		}
	}
}

// The side that dials refuses, too.
func TestWhoAnswersIsLookedAt(t *testing.T) {
	c := newCluster(t, "c1")
	serving := func(cfg *Config) { cfg.Handler = http.NotFoundHandler() }
	a, b := c.start(1, serving), c.start(2, serving)
	other := newCluster(t, "c2").start(2, serving)
	forged := newCluster(t, "c1").start(2, serving)
	old := *c
	old.authority = new(Authority)
	*old.authority = *c.authority
	old.authority.now = func() time.Time { return time.Now().Add(-2 * certificateLife) }
	ended := old.start(2, serving)
	for _, n := range []*node{b, other, forged, ended} {
		n.SetNodes(map[uint64]Member{1: {Address: a.Addr().String()}})
	}
	for _, x := range []struct {
		node uint64
		at   *node
		want Reason
	}{{3, b, WrongNode}, {2, other, WrongCluster}, {2, forged, BadCertificate}, {2, ended, CertificateExpired}} {
		a.SetNodes(nil)
		a.SetNodes(map[uint64]Member{x.node: {Address: x.at.Addr().String()}})
		a.until("a refusal", func() bool { return a.status(x.node).Err != nil })
		isRefused(t, a.status(x.node).Err, x.want, false)
		// A call whose connection is being made as the node is told to be down ends for that.
		var err error
		a.until("a call that is refused", func() bool {
			_, err = tryCall(t.Context(), a, x.node, "")
			return !errors.Is(err, net.ErrClosed)
		})
		isRefused(t, err, x.want, false)
	}
	// What the other side refused is told as such.
	ended.until("a refusal", func() bool { return ended.status(1).Err != nil })
	isRefused(t, ended.status(1).Err, CertificateExpired, true)
}

// A copied data folder: both are refused, by whoever meets both.
func TestACopyOfAFolder(t *testing.T) {
	c := newCluster(t, "c1")
	id := c.identity(2)
	as2 := func(cfg *Config) { cfg.Identity = id }
	a, b := c.start(1), c.start(2, as2)
	connect(a, b)
	talks(t, a, b)
	twin := c.start(2, as2)
	twin.SetNodes(map[uint64]Member{1: {Address: a.Addr().String()}})
	for _, n := range []*node{twin, b} {
		n.until("a refusal", func() bool {
			return errors.Is(n.status(1).Err, &ErrRefused{Reason: StoreTwice})
		})
	}
	a.untilDown(2)
	if got := twin.heard(1); slices.Contains(got, true) {
		t.Errorf("the copy was told that node 1 is up: %v", got)
	}
}

func TestCallsAreRefused(t *testing.T) {
	c := newCluster(t, "c1")
	a := c.start(1)
	b := c.start(2, func(cfg *Config) { cfg.Handler = http.NotFoundHandler() })
	_, err := tryCall(t.Context(), a, 2, "")
	if missing := new(ErrNoNode); !errors.As(err, &missing) || missing.Node != 2 {
		t.Errorf("a call to an unknown node: %v", err)
	}
	a.SetNodes(map[uint64]Member{2: {Address: b.Addr().String()}})
	_, err = tryCall(t.Context(), a, 2, "")
	isRefused(t, err, NotMember, true)
	b.SetNodes(map[uint64]Member{1: {Address: a.Addr().String()}})
	a.untilUp(2)
	if got, err := tryCall(t.Context(), a, 2, ""); err != nil || !strings.Contains(got, "not found") {
		t.Errorf("%q, %v", got, err)
	}
	// Who is removed is refused on the connection that it has.
	b.SetNodes(nil)
	_, err = tryCall(t.Context(), a, 2, "")
	isRefused(t, err, NotMember, true)
	// Node 1 serves no calls.
	b.SetNodes(map[uint64]Member{1: {Address: a.Addr().String()}})
	_, err = tryCall(t.Context(), b, 1, "")
	isRefused(t, err, UnknownVersion, true)
}

// Nodes that have no version of the protocol in common say so on both sides, with what to
// do, in the log too, and take each other for down. Those that have one work.
func TestVersionsApart(t *testing.T) {
	c := newCluster(t, "c1")
	a := c.start(1, func(cfg *Config) { cfg.Versions = [2]uint16{1, 3} })
	b := c.start(2, func(cfg *Config) { cfg.Versions = [2]uint16{4, 5} })
	between := c.start(3, func(cfg *Config) { cfg.Versions = [2]uint16{2, 4} })
	all := map[uint64]Member{1: {Address: a.Addr().String()}, 2: {Address: b.Addr().String()}, 3: {Address: between.Addr().String()}}
	for _, n := range []*node{a, b, between} {
		n.SetNodes(all)
	}
	for _, x := range []struct {
		n  *node
		of uint64
	}{{a, 2}, {b, 1}} {
		x.n.untilDown(x.of)
		var refused *ErrRefused
		x.n.until("the reason", func() bool { return errors.As(x.n.status(x.of).Err, &refused) })
		if refused.Reason != UnknownVersion {
			t.Errorf("node %d of node %d: %v", x.n.self.node, x.of, refused)
		}
		for _, words := range []string{"versions 1 to 3", "versions 4 to 5", "run versions of the broker that are closer to each other"} {
			if !strings.Contains(refused.Text, words) {
				t.Errorf("%q does not say %q", refused.Text, words)
			}
		}
		x.n.until("the refusal in the log", func() bool { return strings.Contains(x.n.logs.String(), "UNKNOWN_VERSION") })
		if slices.Contains(x.n.heard(x.of), true) || x.n.status(x.of).Up {
			t.Errorf("node %d took node %d for up", x.n.self.node, x.of)
		}
	}
	talks(t, a, between)
	talks(t, b, between)
}

func TestClocksThatDiffer(t *testing.T) {
	c := newCluster(t, "c1")
	a := c.start(1)
	b := c.start(2, func(cfg *Config) { cfg.Now = func() time.Time { return time.Now().Add(40 * time.Second) } })
	connect(a, b)
	talks(t, a, b)
	a.until("the skew", func() bool {
		s := a.status(2)
		return s.Skew > 30*time.Second && s.Skew < 50*time.Second && s.RoundTrip > 0
	})
	b.until("the skew", func() bool { s := b.status(1); return s.Skew < -30*time.Second && s.Skew > -50*time.Second })
	a.until("a warning", func() bool { return strings.Contains(a.logs.String(), "clocks of two nodes differ") })
}

// Of a folder and its copies one runs: the copy's process is refused for as long as
// the other is there, and then it may be the one.
func TestCopyWaitsForTheOther(t *testing.T) {
	c := newCluster(t, "c1")
	a := c.start(1)
	b := c.start(2, func(cfg *Config) { cfg.Store, cfg.Boot, cfg.Life = storeOf(2), 1, 11 })
	connect(a, b)
	talks(t, a, b)
	copied := func(cfg *Config) {
		cfg.Store, cfg.Boot, cfg.Life, cfg.Earlier = storeOf(2), 2, 22, []Start{{1, 11}}
	}
	second := c.start(2, copied)
	second.SetNodes(map[uint64]Member{1: {Address: a.Addr().String()}})
	second.until("the refusal", func() bool { return errors.Is(second.status(1).Err, &ErrRefused{Reason: Running}) })
	if _, err := tryCall(t.Context(), second, 1, ""); err == nil {
		t.Error("a call of the copy was answered")
	}
	talks(t, a, b)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	second.until("its turn", func() bool { return second.status(1).To })
}

// All certificates are made anew by another authority, while the nodes run.
func TestCertificatesAreReplaced(t *testing.T) {
	c := newCluster(t, "c1")
	dirs := []string{filepath.Join(t.TempDir(), "1"), filepath.Join(t.TempDir(), "2")}
	var nodes []*node
	for i, dir := range dirs {
		c.issue(dir, uint64(i+1))
		id, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, c.start(uint64(i+1), func(cfg *Config) { cfg.Identity = id }))
	}
	a, b := nodes[0], nodes[1]
	connect(a, b)
	talks(t, a, b)
	next := newCluster(t, "c1")
	oldCA, _ := c.authority.PEM()
	newCA, _ := next.authority.PEM()
	both := slices.Concat(oldCA, newCA)
	again := func(what string) {
		t.Helper()
		for _, n := range nodes {
			if changed, err := n.cfg.Identity.Reload(); err != nil || !changed {
				t.Fatalf("%s: read again: %t, %v", what, changed, err)
			}
		}
		a.SetNodes(nil)
		b.SetNodes(nil)
		connect(a, b)
		talks(t, a, b)
	}
	sign := func(cl *cluster, ca []byte) {
		t.Helper()
		for i, dir := range dirs {
			csr, err := Request(dir)
			if err != nil {
				t.Fatal(err)
			}
			cert, err := cl.authority.Sign(csr, uint64(i+1))
			if err != nil {
				t.Fatal(err)
			}
			if err := Install(dir, cert, ca); err != nil {
				t.Fatal(err)
			}
		}
	}
	sign(c, both)
	again("both authorities")
	sign(next, both)
	again("certificates of the new one")
	sign(next, newCA)
	again("the new authority alone")
	// Who still has the old one is a stranger now.
	conn, err := dialRaw(t, a.Addr().String(), c.identity(2), protocolFrames)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h := b.self
	h.to = 1
	isRefused(t, greetRaw(conn, h.encode()), BadCertificate, true)
}
