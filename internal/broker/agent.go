package broker

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/coordinator/duty"
	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
)

// agent makes a node what the map says of it, and has it heard by the others.
//
//	map ─────► who is let in and connected to      (SetNodes)
//	    ─────► replicas made, and erased           (agent_replicas.go)
//	damage ──► a replica made anew                 (agent_damage.go)
//	    ─────► where this node leads: the voters   (agent_lead.go, coordinator/duty)
//	roles ───► what a leader finishes              (agent_lead.go)
//	who is up ► the host, and who leads the metadata log
//
// Nothing is erased because a map does not have it: a replica goes when the map
// names it as out, or its topic as going, or says that its partition was there once
// and is not any more.
//
// The goroutine run looks whenever something changed, and while something is not
// yet as it is wanted, again and again. What takes time goes on beside it, one thing
// for each partition.
type agent struct {
	b         *Broker
	log       *slog.Logger
	home      home
	identity  *peer.Identity
	links     *links
	listener  net.Listener // for nodes, until transport has it; nil: that listens by itself
	transport *peer.Transport
	work      chan struct{} // holds one for each thing under way
	wake      chan struct{} // look again; holds one
	ready     chan struct{} // closed when the node serves

	asks    time.Time           // since when it asks to be taken in again, as long as it does
	life    uint64              // of this start
	earlier []coordinator.Start // of the data folder, as far as it knows them

	setNodes uint64          // Map.Placed when the connections were told last; run's
	told     bool            // they were told at all; run's
	keeper   duty.Keeper     // run's
	mending  mending         // run's
	shedding partition.Index // the last entry of the metadata log here that is to go, as long as it is there; run's
	disown   time.Time       // since when most others have not taken this node for one of the cluster; run's
	undone   time.Time       // since when, as the leader of the metadata log, this node sees something unfinished; run's

	mu      sync.Mutex
	clients map[partition.NodeID]*http.Client   // guarded by mu
	since   map[partition.NodeID]time.Time      // guarded by mu: nodes that are up, and since when
	led     map[partition.PartitionID]bool      // guarded by mu: began to be led here, and that is not attended to yet
	busy    map[partition.PartitionID]bool      // guarded by mu: something is under way
	rest    map[partition.PartitionID]time.Time // guarded by mu: something failed; not before that
	unfit   []partition.NodeID                  // guarded by mu: should lead nothing that another can
}

const (
	agentWork   = 16                     // things under way at once
	agentPause  = 100 * time.Millisecond // between looks at what is not done
	agentRest   = 500 * time.Millisecond // after something failed
	agentIdle   = 10 * time.Second       // between looks that nothing asked for
	agentCall   = 15 * time.Second       // what one change may take
	agentUndone = 10 * time.Second       // what is begun and not finished for so long is taken up again
	agentReturn = 5 * time.Second        // a node must be up for so long before leaderships go back to it
)

func newAgent(b *Broker, h home) *agent {
	return &agent{
		b: b, log: b.log, home: h, links: newLinks(b.log),
		work: make(chan struct{}, agentWork), wake: make(chan struct{}, 1), ready: make(chan struct{}),
		clients: map[partition.NodeID]*http.Client{}, since: map[partition.NodeID]time.Time{}, led: map[partition.PartitionID]bool{},
		busy: map[partition.PartitionID]bool{}, rest: map[partition.PartitionID]time.Time{},
	}
}

// nudge has run look again.
func (a *agent) nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// onRole is partition.Config.OnRole.
func (a *agent) onRole(id partition.PartitionID, _ partition.NodeID, leading bool, _ uint64) {
	a.mu.Lock()
	if leading {
		a.led[id] = true
		a.b.metrics.elected.Inc()
	} else {
		delete(a.led, id)
	}
	a.mu.Unlock()
	a.nudge()
}

// onUnfit is partition.Config.OnUnfit.
func (a *agent) onUnfit(nodes []partition.NodeID) {
	a.mu.Lock()
	self := a.b.cfg.Node
	was, is := slices.Contains(a.unfit, self), slices.Contains(nodes, self)
	a.unfit = nodes
	a.mu.Unlock()
	switch {
	case is && !was:
		a.b.events.ofNode(coordinator.NodeUnfit, "its disk is full, or hangs, or hung lately: it leads nothing that another can lead")
	case was && !is:
		a.b.events.ofNode(coordinator.NodeFit, "its disk is well again, and it may lead")
	}
	a.log.Info("which nodes should lead nothing that others can, since their disks are full, or hang or hung lately", "nodes", nodes)
	a.nudge()
}

// fit tells whether a node, this one too, may lead where another can.
func (a *agent) fit(n partition.NodeID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !slices.Contains(a.unfit, n)
}

// alive is peer.Config.Alive.
func (a *agent) alive(node uint64, up bool) {
	n := partition.NodeID(node)
	a.mu.Lock()
	if up {
		a.since[n] = time.Now()
	} else {
		delete(a.since, n)
	}
	a.mu.Unlock()
	a.links.alive(node, up)
	if a.b.coord != nil {
		_ = a.b.coord.Reached(n, up) // a host that stops has no use for it
	}
	a.nudge()
}

// upSince tells since when a node is up. This one always was.
func (a *agent) upSince(n partition.NodeID) (time.Time, bool) {
	if n == a.b.cfg.Node {
		return a.b.startedAt, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.since[n]
	return at, ok
}

func (a *agent) isUp(n partition.NodeID) bool {
	_, ok := a.upSince(n)
	return ok
}

// run works until the node stops.
func (a *agent) run(ctx context.Context) {
	var doing sync.WaitGroup
	defer doing.Wait()
	renew := time.NewTicker(time.Hour)
	defer renew.Stop()
	for ctx.Err() == nil {
		_, changed := a.b.coord.Watch()
		pause := agentIdle
		if a.pass(ctx, &doing) {
			pause = agentPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-changed:
		case <-a.wake:
		case <-timer.C:
		case <-renew.C:
			a.renew(time.Now())
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// pass looks at everything once. It tells whether something is not yet as it is
// wanted.
func (a *agent) pass(ctx context.Context, doing *sync.WaitGroup) (more bool) {
	m := a.b.coord.View()
	if m.Cluster.ID == "" {
		return true // the map has not come yet
	}
	a.connect(m)
	if a.outcast(m) || a.replaced() {
		return false
	}
	rot := a.rotten()
	shed := a.shed(ctx, doing)
	made := a.replicas(ctx, m, rot, doing)
	return a.leads(ctx, m, rot, doing) || made || shed
}

// connect tells the connections who belongs to the cluster.
func (a *agent) connect(m *coordinator.Map) {
	if a.told && a.setNodes == m.Placed() {
		return
	}
	members := map[uint64]peer.Member{}
	for n := range m.Nodes() {
		if n.State == coordinator.Active || n.State == coordinator.Draining {
			members[uint64(n.ID)] = peer.Member{Address: n.Peer, Store: storeID(n.Store), Boot: n.Boot, Life: n.Life}
		}
	}
	if len(members) == 0 {
		return // older than the first node
	}
	a.transport.SetNodes(members)
	a.told, a.setNodes = true, m.Placed()
	a.mu.Lock()
	maps.DeleteFunc(a.since, func(n partition.NodeID, _ time.Time) bool { return members[uint64(n)] == (peer.Member{}) })
	a.mu.Unlock()
}

// outcast ends a node that the cluster has given up: what it holds is made anew
// elsewhere.
func (a *agent) outcast(m *coordinator.Map) bool {
	n, ok := m.Node(a.b.cfg.Node)
	if !ok || n.State == coordinator.Active || n.State == coordinator.Draining {
		return false
	}
	a.b.fail(&coordinator.ErrNodeGone{Node: n.ID, State: n.State})
	return true
}

// replaced ends a node whose data folder, or a copy of it, was started since, and one
// that was removed while it was cut off: the map that says so does not reach it any more.
func (a *agent) replaced() bool {
	select {
	case <-a.ready:
	default:
		return false // its start ends
	}
	why := a.displaced()
	if why == nil {
		why = a.disowned(time.Now())
	}
	if why == nil {
		return false
	}
	a.b.fail(&StartError{Reason: NodeRefused, Err: why, Text: "the cluster has nothing to do with this node any more: " + why.Text})
	return true
}

// do has one thing about a partition done beside run, unless another one is or it
// has to wait. It tells whether it was begun.
func (a *agent) do(ctx context.Context, doing *sync.WaitGroup, id partition.PartitionID, what string, fn func(ctx context.Context) error) bool {
	a.mu.Lock()
	rest, tired := a.rest[id]
	if a.busy[id] || tired && time.Now().Before(rest) {
		a.mu.Unlock()
		return false
	}
	select {
	case a.work <- struct{}{}:
	default:
		a.mu.Unlock()
		return false
	}
	a.busy[id] = true
	delete(a.rest, id)
	a.mu.Unlock()
	doing.Go(func() {
		limit, cancel := context.WithTimeout(ctx, agentCall)
		err := fn(limit)
		cancel()
		<-a.work
		a.mu.Lock()
		delete(a.busy, id)
		if err != nil {
			a.rest[id] = time.Now().Add(agentRest)
		}
		a.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			a.log.Info("it is tried again in a moment", "what", what, "partition", a.b.partitionName(id), "err", err)
		}
		a.nudge()
	})
	return true
}

// client is Peers.Client.
func (a *agent) client(n partition.NodeID) (*http.Client, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, url := a.transport.Client(uint64(n))
	if known := a.clients[n]; known != nil {
		return known, url
	}
	a.clients[n] = c
	return c, url
}

// asked is Peers.Replicas: who may know the leader of a partition.
func (a *agent) asked(id partition.PartitionID) (out []partition.NodeID) {
	m := a.b.coord.View()
	if p, ok := m.Partition(id); ok {
		out = p.Nodes()
		for _, l := range p.Leaving {
			out = append(out, l.ID.Node())
		}
	}
	if id == partition.Metadata {
		for n := range m.Nodes() {
			out = append(out, n.ID)
		}
		out = append(out, a.home.nodes()...)
	}
	// A node that is down is asked for nothing, unless there is no other.
	up := slices.DeleteFunc(slices.Clone(out), func(n partition.NodeID) bool { return n == a.b.cfg.Node || !a.isUp(n) })
	if len(up) > 0 {
		return up
	}
	return slices.DeleteFunc(out, func(n partition.NodeID) bool { return n == a.b.cfg.Node })
}

// peers is how the broker works with the other nodes.
func (a *agent) peers() *Peers {
	return &Peers{Client: a.client, Replicas: a.asked, Created: a.created, Dropped: a.dropped}
}

// renew makes the certificate anew when half of its life is over. Every node can:
// the map has the authority.
func (a *agent) renew(now time.Time) {
	if !a.identity.Due(now) {
		return
	}
	if err := a.certify(a.b.coord.View(), a.b.cfg.Node); err != nil {
		a.log.Warn("the node's certificate could not be made anew; it is tried again in an hour", "until", a.identity.Expires(), "err", err)
		return
	}
	a.log.Info("the node's certificate was made anew")
}

// certify makes a certificate for this node.
func (a *agent) certify(m *coordinator.Map, n partition.NodeID) error {
	own := m.Cluster.Authority
	authority, err := peer.ParseAuthority(own.Certificate, own.Key)
	if err != nil {
		return err
	}
	dir := identityDir(a.b.cfg.DataDir)
	csr, err := peer.Request(dir)
	if err != nil {
		return err
	}
	cert, err := authority.Sign(csr, uint64(n))
	if err != nil {
		return err
	}
	return peer.Install(dir, cert, own.Certificate)
}

// close ends the connections. The host is closed after it.
func (a *agent) close() error {
	switch {
	case a.transport != nil:
		return a.transport.Close()
	case a.listener != nil:
		return a.listener.Close()
	}
	return nil
}
