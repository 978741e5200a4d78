package peer

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 3 * time.Minute

// cluster is an authority and what was made with it.
type cluster struct {
	t         *testing.T
	authority *Authority
}

func newCluster(t *testing.T, id string) *cluster {
	t.Helper()
	// Made a while ago, so that it can have signed certificates that have ended.
	a, err := newAuthority(id, func() time.Time { return time.Now().Add(-3 * certificateLife) })
	if err != nil {
		t.Fatal(err)
	}
	a.now = time.Now
	return &cluster{t: t, authority: a}
}

// identity makes that of a node.
func (c *cluster) identity(node uint64) *Identity {
	c.t.Helper()
	dir := filepath.Join(c.t.TempDir(), "identity")
	c.issue(dir, node)
	id, err := Load(dir)
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

func (c *cluster) issue(dir string, node uint64) {
	c.t.Helper()
	csr, err := Request(dir)
	if err != nil {
		c.t.Fatal(err)
	}
	cert, err := c.authority.Sign(csr, node)
	if err != nil {
		c.t.Fatal(err)
	}
	ca, _ := c.authority.PEM()
	if err := Install(dir, cert, ca); err != nil {
		c.t.Fatal(err)
	}
}

// node is a Transport and what it was told.
type node struct {
	*Transport
	t *testing.T

	mu      sync.Mutex
	got     map[uint64][][]byte // guarded by mu
	news    map[uint64][]bool   // guarded by mu
	changed chan struct{}       // holds one: something above changed
	gate    chan struct{}       // not nil: Deliver waits for it
	logs    *recorder
}

func storeOf(n uint64) (s StoreID) {
	binary.LittleEndian.PutUint64(s[:], n)
	s[15] = 1
	return s
}

// silence is after what time nodes of tests are down: longer than a busy machine keeps
// one of them from running.
const silence = 1500 * time.Millisecond

// start makes a node with small times.
func (c *cluster) start(n uint64, change ...func(*Config)) *node {
	c.t.Helper()
	nd := &node{t: c.t, got: map[uint64][][]byte{}, news: map[uint64][]bool{}, changed: make(chan struct{}, 1), logs: &recorder{}}
	cfg := Config{
		Store: storeOf(n), Boot: 1, Listen: "127.0.0.1:0", Beat: 20 * time.Millisecond, Silence: silence, Backoff: 100 * time.Millisecond,
		Logger:  slog.New(slog.NewTextHandler(nd.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Deliver: nd.deliver, Alive: nd.alive,
	}
	for _, f := range change {
		f(&cfg)
	}
	if cfg.Identity == nil {
		cfg.Identity = c.identity(n)
	}
	tr, err := New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	nd.Transport = tr
	c.t.Cleanup(func() {
		if nd.gate != nil {
			nd.open()
		}
		if err := tr.Close(); err != nil {
			c.t.Errorf("close: %v", err)
		}
	})
	return nd
}

func (n *node) open() {
	defer func() { _ = recover() }() // it may be open
	close(n.gate)
}

func (n *node) deliver(from uint64, b []byte) {
	if n.gate != nil {
		<-n.gate
	}
	n.mu.Lock()
	n.got[from] = append(n.got[from], b)
	n.mu.Unlock()
	notify(n.changed)
}

func (n *node) alive(of uint64, up bool) {
	n.mu.Lock()
	n.news[of] = append(n.news[of], up)
	n.mu.Unlock()
	notify(n.changed)
}

// heard is what was told of a node.
func (n *node) heard(of uint64) []bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]bool(nil), n.news[of]...)
}

// takeTurns wants up and down in turn, up at both ends. That a node is taken for dead
// which a busy machine kept from running is no fault.
func takeTurns(t *testing.T, what string, heard []bool) {
	t.Helper()
	for i, up := range heard {
		if up != (i%2 == 0) {
			t.Errorf("%s: %v: up and down do not take turns", what, heard)
			return
		}
	}
	if len(heard) < 3 || len(heard)%2 == 0 {
		t.Errorf("%s: %v: it was down, and it is up", what, heard)
	}
}

func (n *node) messages(from uint64) [][]byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([][]byte(nil), n.got[from]...)
}

// until waits for a condition of what the node was told or its status.
func (n *node) until(what string, cond func() bool) {
	n.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	look := time.NewTicker(10 * time.Millisecond) // a Status tells nobody that it changed
	defer look.Stop()
	for !cond() {
		select {
		case <-n.changed:
		case <-look.C:
		case <-limit.C:
			n.t.Fatalf("node %d: %s did not happen; status %+v\n%s", n.self.node, what, n.Nodes(), n.logs)
		}
	}
}

func (n *node) untilUp(of uint64) {
	n.t.Helper()
	n.until(fmt.Sprintf("node %d up", of), func() bool { return n.status(of).Up })
}

func (n *node) untilDown(of uint64) {
	n.t.Helper()
	n.until(fmt.Sprintf("node %d down", of), func() bool { h := n.heard(of); return len(h) > 0 && !h[len(h)-1] })
}

func (n *node) status(of uint64) Status {
	for _, s := range n.Nodes() {
		if s.Node == of {
			return s
		}
	}
	return Status{}
}

// connect tells nodes of each other, by their own addresses.
func connect(nodes ...*node) {
	all := map[uint64]Member{}
	for _, n := range nodes {
		all[n.self.node] = Member{Address: n.Addr().String()}
	}
	for _, n := range nodes {
		n.SetNodes(all)
	}
}

// recorder keeps a log.
type recorder struct {
	mu sync.Mutex
	b  []byte
}

func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.b = append(r.b, b...)
	return len(b), nil
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.b)
}

func TestMessagesArriveInOrder(t *testing.T) {
	c := newCluster(t, "c1")
	long := func(cfg *Config) { cfg.Silence = patience } // nobody is taken for dead who is busy
	a, b := c.start(1, long), c.start(2, long)
	connect(a, b)
	a.untilUp(2)
	b.untilUp(1)
	const count = 20000
	send := func(from *node, to uint64) {
		for i := range count {
			m := make([]byte, 8, 8+i%3000)
			binary.LittleEndian.PutUint64(m, uint64(i))
			m = m[:cap(m)]
			for !from.Send(to, m) { // the queue is full: the test is faster than TLS
				from.until("room", func() bool { return from.status(to).Waiting < 16<<20 })
			}
		}
	}
	var group sync.WaitGroup
	group.Go(func() { send(a, 2) })
	group.Go(func() { send(b, 1) })
	group.Wait()
	for _, x := range []struct {
		n    *node
		from uint64
	}{{a, 2}, {b, 1}} {
		x.n.until("all messages", func() bool { return len(x.n.messages(x.from)) >= count })
		for i, m := range x.n.messages(x.from) {
			if got := binary.LittleEndian.Uint64(m); got != uint64(i) || len(m) != 8+i%3000 && len(m) != 8 {
				t.Fatalf("message %d is number %d with %d bytes", i, got, len(m))
			}
		}
	}
	if s := a.status(2); s.Dropped > 0 && s.Sent != count || s.SentBytes == 0 || !s.To || !s.From || s.Connects != 1 {
		t.Errorf("status: %+v", s)
	}
}

func TestADeadNodeIsDownAndUpAgain(t *testing.T) {
	c := newCluster(t, "c1")
	id := c.identity(2)
	a := c.start(1)
	b := c.start(2, func(cfg *Config) { cfg.Identity = id })
	address := b.Addr().String()
	connect(a, b)
	a.untilUp(2)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	a.untilDown(2)
	if a.Send(2, []byte("x")) {
		a.until("a queue without a connection takes nothing", func() bool { return !a.Send(2, []byte("x")) })
	}
	b = c.start(2, func(cfg *Config) { cfg.Identity, cfg.Boot, cfg.Listen = id, 2, address })
	b.SetNodes(map[uint64]Member{1: {Address: a.Addr().String()}})
	a.untilUp(2)
	takeTurns(t, "told of node 2", a.heard(2))
	a.until("a message gets through", func() bool { return a.Send(2, []byte("again")) })
	b.until("it arrives", func() bool { return len(b.messages(1)) == 1 })
}

func TestNobodyThereIsDown(t *testing.T) {
	t.Parallel() // it waits
	c := newCluster(t, "c1")
	a := c.start(1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a.SetNodes(map[uint64]Member{1: {}, 7: {Address: l.Addr().String()}}) // takes connections and says nothing
	a.untilDown(7)
	if got := a.heard(7); len(got) != 1 || len(a.heard(1)) != 0 {
		t.Errorf("told of node 7: %v, of itself: %v", got, a.heard(1))
	}
	a.SetNodes(nil)
	if a.Send(7, nil) || len(a.Nodes()) != 0 {
		t.Error("a node that is not named any more is still there")
	}
}

func TestCalls(t *testing.T) {
	c := newCluster(t, "c1")
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, ok := From(r.Context())
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%d %t %s %s", from, ok, r.Proto, b)
	})
	with := func(cfg *Config) { cfg.Handler = echo }
	a, b := c.start(1, with), c.start(2, with)
	connect(a, b)
	for range 3 {
		if got := call(t, a, 2, "hello"); got != "1 true HTTP/2.0 hello" {
			t.Errorf("answer %q", got)
		}
	}
	if got := call(t, b, 1, "hi"); got != "2 true HTTP/2.0 hi" {
		t.Errorf("answer %q", got)
	}
}

func call(t *testing.T, n *node, to uint64, body string) string {
	t.Helper()
	got, err := tryCall(t.Context(), n, to, body)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func tryCall(ctx context.Context, n *node, to uint64, body string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, url := n.Client(to)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/x", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	res, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}
