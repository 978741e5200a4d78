package peer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Transport is this node's end of all connections between nodes.
//
// Goroutines: one accepts, one keeps the pulse, one for each node dials and
// writes with one beside it that reads answers, and one for each connection that
// came. Close ends them all. The only lock that is held while another is taken is
// mu, before a queue's.
type Transport struct {
	cfg      Config
	self     hello
	began    time.Time
	listener net.Listener
	gate     *gate
	joining  chan struct{} // holds one for each join under way
	rpc      *rpcServer    // nil: no Handler
	tells    *complaints
	nudge    chan struct{} // the pulse has to be looked at; holds one

	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	group sync.WaitGroup

	peers    atomic.Pointer[map[uint64]*peer] // replaced as a whole, under mu
	revision atomic.Uint64                    // grows when a hello that was taken may be refused now

	mu      sync.Mutex
	closed  bool                  // guarded by mu
	machine *machine              // guarded by mu
	conns   map[*tracked]struct{} // guarded by mu: connections that came
}

// peer is another node.
type peer struct {
	t     *Transport
	node  uint64
	queue *queue
	kick  chan struct{}   // dial now; holds one
	turn  chan struct{}   // full while a connection delivers
	life  context.Context // ends when the node is not known any more, or with Close
	stop  context.CancelFunc
	http  *http.Transport

	heard    atomic.Int64 // since began
	answered atomic.Int64
	busy     atomic.Bool
	refused  atomic.Bool
	reborn   atomic.Bool
	count    counters

	// guarded by Transport.mu
	address string
	out     *outgoing
	in      *incoming
	calls   map[*tracked]struct{} // connections to it for calls
	told    tale                  // written by the keeper
	reach   context.Context       // of connections for calls that are being made: ends when the node is told to be down
	lose    context.CancelFunc    // ends reach
	last    error                 // why there is no connection to it
}

// counters are what the Status of a node counts.
type counters struct {
	sent, sentBytes, received, receivedBytes, dropped, connects atomic.Uint64

	rtt, skew atomic.Int64
}

// New listens, and connects to nobody until SetNodes says to whom.
func New(cfg Config) (_ *Transport, err error) {
	l := cfg.Listener
	defer func() {
		if err != nil && l != nil {
			_ = l.Close()
		}
	}()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, err
	}
	if l == nil {
		if l, err = net.Listen("tcp", cfg.Listen); err != nil {
			return nil, err
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	t := &Transport{
		cfg: cfg, began: time.Now(), listener: l, gate: newGate(pendingLimit, pendingPerAddress), joining: make(chan struct{}, joinsAtOnce),
		tells: newComplaints(cfg.Logger), nudge: make(chan struct{}, 1), ctx: ctx, stop: stop, conns: map[*tracked]struct{}{},
		self: hello{
			lowest: cfg.Versions[0], highest: cfg.Versions[1], cluster: cfg.Identity.Cluster(), node: cfg.Identity.Node(),
			store: cfg.Store, boot: cfg.Boot, life: cfg.Life, earlier: cfg.Earlier[max(0, len(cfg.Earlier)-earlierLimit):],
		},
	}
	if t.self.life == 0 {
		t.self.life = binary.LittleEndian.Uint64(seed[:])
	}
	t.machine = newMachine(t.self)
	t.peers.Store(&map[uint64]*peer{})
	if cfg.Handler != nil {
		t.rpc = newRPCServer(t)
		t.group.Go(t.rpc.serve)
	}
	t.group.Go(t.accept)
	t.group.Go(t.keep)
	cfg.Logger.Info("listening for nodes", "address", l.Addr().String(), "node", t.self.node, "cluster", t.self.cluster, "store", cfg.Store, "boot", cfg.Boot,
		"beat", cfg.Beat, "silence", cfg.Silence, "queue_bytes", cfg.QueueBytes, "max_message", cfg.MaxMessage, "certificate_until", cfg.Identity.Expires())
	return t, nil
}

// Addr is where it listens.
func (t *Transport) Addr() net.Addr { return t.listener.Addr() }

// Close ends all connections. It waits for a Deliver, an OnJoin and calls of
// Handler that are under way. Nothing is called after it returns.
func (t *Transport) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		t.group.Wait()
		return nil
	}
	t.closed = true
	t.stop()
	err := t.listener.Close()
	for c := range t.conns {
		_ = c.Conn.Close()
	}
	for _, p := range *t.peers.Load() {
		p.cut(&ErrClosed{})
	}
	t.mu.Unlock()
	if t.rpc != nil {
		err = errors.Join(err, t.rpc.close())
	}
	t.group.Wait()
	for _, p := range *t.peers.Load() {
		p.http.CloseIdleConnections()
	}
	return err
}

// SetNodes says which nodes there are, and replaces what it was told before: it
// connects to those, and takes connections and calls of those only. This node may
// be among them. Connections of a node that is not named any more are closed.
func (t *Transport) SetNodes(nodes map[uint64]Member) {
	members := make(map[uint64]Member, len(nodes))
	for n, m := range nodes {
		if n != t.self.node && n != 0 {
			members[n] = m
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.machine.setMembers(members)
	t.revision.Add(1)
	old := *t.peers.Load()
	peers := make(map[uint64]*peer, len(members))
	for n, m := range members {
		p := old[n]
		if p == nil {
			p = t.newPeer(n, m.Address)
		} else if p.address != m.Address {
			p.address, p.last = m.Address, nil
			p.cut(errMoved)
			notify(p.kick)
		}
		peers[n] = p
	}
	t.peers.Store(&peers)
	for n, p := range old {
		if peers[n] == nil {
			p.stop()
			p.cut(&ErrNoNode{Node: n})
		}
	}
	notify(t.nudge)
}

var errMoved = errors.New("its address changed")

// newPeer begins to connect to a node. Its owner holds mu.
func (t *Transport) newPeer(node uint64, address string) *peer {
	ctx, stop := context.WithCancel(t.ctx)
	p := &peer{t: t, node: node, address: address, queue: newQueue(t.cfg.QueueBytes), kick: make(chan struct{}, 1), life: ctx, stop: stop, turn: make(chan struct{}, 1), calls: map[*tracked]struct{}{}}
	p.heard.Store(int64(never))
	p.answered.Store(int64(never))
	p.told = tale{since: t.now()}
	p.reach, p.lose = context.WithCancel(ctx)
	p.http = p.newHTTP()
	random := mathrand.New(mathrand.NewPCG(t.self.life, node))
	t.group.Go(func() { p.run(ctx, random) })
	return p
}

// cut closes all connections with a node. Its owner holds mu.
func (p *peer) cut(why error) {
	if p.out != nil {
		p.out.fail(why)
	}
	if p.in != nil {
		p.in.close()
	}
	p.cutCalls()
}

// CutCalls ends the calls that are under way to a node, as when it goes down. New ones
// can be made.
func (t *Transport) CutCalls(to uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := (*t.peers.Load())[to]; p != nil {
		p.cutCalls()
	}
}

// cutCalls ends the calls that are under way to a node, and connections for others
// that are being made. Its owner holds mu.
func (p *peer) cutCalls() {
	p.lose()
	p.reach, p.lose = context.WithCancel(p.life)
	for c := range p.calls {
		_ = c.Conn.Close()
	}
}

// Send queues a message for a node and takes its bytes over. It returns at once.
// False: the message was dropped, since the node is not known or not connected, its
// queue is full, or the message is larger than MaxMessage. True promises nothing.
func (t *Transport) Send(to uint64, b []byte) bool { return t.send(to, b, false) }

// SendUrgent is Send for small messages that go before all that is not urgent, also
// before what was sent earlier, and for which there is room when that has none.
func (t *Transport) SendUrgent(to uint64, b []byte) bool { return t.send(to, b, true) }

func (t *Transport) send(to uint64, b []byte, urgent bool) bool {
	p := (*t.peers.Load())[to]
	if p == nil {
		return false
	}
	if len(b) > t.cfg.MaxMessage {
		t.tells.warn("a message is larger than MaxMessage and is never sent", "node", to, "bytes", len(b), "max", t.cfg.MaxMessage)
		p.count.dropped.Add(1)
		return false
	}
	if !p.queue.put(b, urgent) {
		p.count.dropped.Add(1)
		return false
	}
	return true
}

// running refuses the process that comes as one of a node of which another is here
// and answers: it is a copy of the data folder, or of the machine. Where the earlier
// one has died its connections have ended, or it was silent for longer. The owner
// holds mu.
func (t *Transport) running(h hello) *ErrRefused {
	last, met := t.machine.lives[h.node]
	p := (*t.peers.Load())[h.node]
	if !met || h.boot <= last.boot || p == nil || p.in == nil || p.out == nil {
		return nil
	}
	if m := t.machine.members[h.node]; !h.knows(Start{m.Boot, m.Life}) {
		return nil // it is worse than that, and meet says so
	}
	now := t.now()
	if now-time.Duration(p.heard.Load()) > t.cfg.Silence || now-time.Duration(p.answered.Load()) > t.cfg.Silence {
		return nil
	}
	return refuse(Running, "node %d runs already, at %s, and answers: of one data folder and its copies one process runs at a time; stop it first if it is to run here", h.node, p.address)
}

// meet judges a hello and ends the connections that it shows to be wrong.
func (t *Transport) meet(h hello, subject uint64) *ErrRefused {
	ended, refused := t.machine.meet(h, subject)
	for _, n := range ended {
		t.revision.Add(1)
		if p := (*t.peers.Load())[n]; p != nil {
			p.reborn.Store(true)
			p.cut(errReplaced)
		}
	}
	return refused
}

var errReplaced = errors.New("another process of the node came")

// now counts from when the Transport was made.
func (t *Transport) now() time.Duration { return time.Since(t.began) }

// notify puts a token into a channel that holds one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Status is what is known of a node.
type Status struct {
	Node    uint64
	Address string
	Up      bool
	// Since is for how long it is up or down, or known where it has been neither yet.
	Since time.Duration
	// To and From tell whether there is a connection in each direction.
	To, From bool
	// RoundTrip is that of the last beat; 0: none yet.
	RoundTrip time.Duration
	// Skew is how far its clock is ahead of this node's, give or take half a round trip.
	Skew time.Duration
	// Waiting is what its queue holds, in bytes.
	Waiting int

	Sent, SentBytes, Received, ReceivedBytes, Dropped, Connects uint64

	// Err is why there was no connection to it last; often an *ErrRefused. Nil while
	// there is one.
	Err error
}

// Nodes tells of all nodes but this one, in no order.
func (t *Transport) Nodes() []Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	var out []Status
	for n, p := range *t.peers.Load() {
		out = append(out, Status{
			Node: n, Address: p.address, Up: p.told.up, Since: now - p.told.since, To: p.out != nil, From: p.in != nil,
			RoundTrip: time.Duration(p.count.rtt.Load()), Skew: time.Duration(p.count.skew.Load()), Waiting: p.queue.waiting(),
			Sent: p.count.sent.Load(), SentBytes: p.count.sentBytes.Load(), Received: p.count.received.Load(), ReceivedBytes: p.count.receivedBytes.Load(),
			Dropped: p.count.dropped.Load(), Connects: p.count.connects.Load(), Err: p.last,
		})
	}
	return out
}
