package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// How a node of a cluster starts, by its folder and what it is told:
//
//	identity  store     told        it is
//	none      any       Listen      the first node of a cluster, with what it has
//	none      no data   Join        a new node: it is given a number and a certificate,
//	                                and waits for the map
//	none      data      Join        refused
//	there     its own   anything    the node that it was
//	there     another   anything    refused
//
// A node that was in a cluster says where it is now and waits for its own words in
// its map: so old maps serve nobody.

// beginAgent makes the agent of a node that works with others, and finds out who
// the node is. The store is open, and nothing else.
func (b *Broker) beginAgent(ctx context.Context) (_ *agent, err error) {
	told := b.cfg.Cluster
	h, err := readHome(b.cfg.DataDir)
	noHome := errors.Is(err, fs.ErrNotExist)
	if err != nil && !noHome {
		return nil, &StartError{Reason: FolderDamaged, Text: err.Error(), Err: err}
	}
	identity, err := loadIdentity(b.cfg.DataDir)
	if err != nil {
		return nil, &StartError{Reason: NoIdentity, Text: err.Error() + "; " + noIdentityHelp, Err: err}
	}
	if identity != nil && noHome {
		return nil, &StartError{Reason: NoIdentity, Text: fmt.Sprintf("%s is missing beside the certificate of node %d; %s",
			filepath.Join(identityDir(b.cfg.DataDir), homeFile), identity.Node(), noIdentityHelp)}
	}
	if identity == nil && len(h.Nodes) > 0 && (told == nil || told.Join == "") {
		return nil, &StartError{Reason: NoIdentity, Text: fmt.Sprintf("%s is of a node among others, and the node's certificate beside it is missing; %s; or, if it was about to join and never ran, start it with --join and its token again",
			filepath.Join(identityDir(b.cfg.DataDir), homeFile), noIdentityHelp)}
	}
	if told != nil {
		h.Listen, h.Address, h.Zone = or(told.Listen, h.Listen), or(told.Address, h.Address), or(told.Zone, h.Zone)
	}
	if err := checkPeerAddress(h); err != nil {
		return nil, err
	}
	store := b.store.ID()
	if identity != nil && h.Store != store {
		return nil, &StartError{Reason: NodeRefused, Text: fmt.Sprintf(
			"the identity of node %d is for another store than the one in %s: the data is gone, or of another node; %s", identity.Node(), b.cfg.DataDir, storeGoneHelp(partition.NodeID(identity.Node())))}
	}
	h.Store = store
	a := newAgent(b, h)
	defer func() {
		if err != nil {
			_ = a.close()
		}
	}()
	if identity == nil {
		// The port comes before whatever cannot be taken back: a token is used up by a
		// join, and the cluster has a node more.
		if err := a.listen(); err != nil {
			return nil, err
		}
	}
	if err := a.beginStart(); err != nil {
		return nil, err
	}
	switch {
	case identity != nil:
		a.identity = identity
		err = a.rejoined(told)
	case told != nil && told.Join != "":
		err = a.joinCluster(ctx, told)
	}
	if err != nil {
		return nil, err
	}
	if a.identity != nil {
		b.cfg.Node = partition.NodeID(a.identity.Node())
	}
	return a, nil
}

// listen takes the port for nodes.
func (a *agent) listen() (err error) {
	if a.listener, err = net.Listen("tcp", a.home.Listen); err != nil {
		return peerListenError(a.home.Listen, nil, err)
	}
	a.home.Listen = a.listener.Addr().String()
	return nil
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// checkPeerAddress makes sure that other nodes can be told where this one is.
func checkPeerAddress(h home) error {
	bad := func(format string, args ...any) error {
		return &StartError{Reason: BadConfig, Text: fmt.Sprintf(format, args...)}
	}
	host, _, err := net.SplitHostPort(h.Listen)
	if err != nil {
		return bad("the address for nodes %q is not an address and port: use one such as 127.0.0.1:7272", h.Listen)
	}
	if h.Address != "" {
		if host, _, err = net.SplitHostPort(h.Address); err != nil {
			return bad("the node's address %q is not an address and port", h.Address)
		}
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return bad("other nodes cannot be told to come to %q: say where they reach this node with --peer-address", or(h.Address, h.Listen))
	}
	return nil
}

// rejoined looks at a join of a node that is in a cluster: one of the same cluster
// changes nothing.
func (a *agent) rejoined(told *ClusterConfig) error {
	if told == nil || told.Token == "" {
		return nil
	}
	token, err := peer.ParseToken(told.Token)
	if err != nil {
		return joinError(told.Join, err)
	}
	if !token.Pins(a.identity) {
		return &StartError{Reason: WrongCluster, Text: fmt.Sprintf(
			"%s is the folder of node %d of cluster %s, and the join token is for another cluster: start it without --join, or use an empty folder", a.b.cfg.DataDir, a.identity.Node(), a.identity.Cluster())}
	}
	a.log.Info("the node is in the cluster already; the join token is not used", "node", a.identity.Node())
	return nil
}

// joinCluster has this machine let in.
func (a *agent) joinCluster(ctx context.Context, told *ClusterConfig) error {
	ids, err := a.b.store.Partitions()
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		return &StartError{Reason: FolderHasData, Text: fmt.Sprintf(
			"%s holds data already, and a node that joins begins with nothing: use an empty folder, or start it without --join", a.b.cfg.DataDir)}
	}
	dir := identityDir(a.b.cfg.DataDir)
	csr, err := peer.Request(dir)
	if err != nil {
		return err
	}
	request, err := proto.Marshal(&nodev1.JoinClusterRequest{CertificateRequest: csr, Address: a.presents(a.address())})
	if err != nil {
		return err
	}
	answer, err := peer.Join(ctx, told.Join, told.Token, request)
	if err != nil {
		var refused *peer.ErrRefused
		if errors.As(err, &refused) {
			switch refused.Reason {
			case peer.TokenUnknown, peer.TokenExpired, peer.TokenUsed, peer.OlderBoot, peer.NotMember:
				a.refusedStart() // of the others it is not known what became
			}
		}
		return joinError(told.Join, err)
	}
	var res nodev1.JoinClusterResponse
	if err := proto.Unmarshal(answer, &res); err != nil {
		return fmt.Errorf("the answer of %s to the join cannot be read: %w", told.Join, err)
	}
	// The certificate makes it a node, so it comes last.
	a.home.Nodes = homeNodes(res.GetNodes())
	if err := writeHome(a.b.cfg.DataDir, a.home); err != nil {
		return err
	}
	if err := peer.Install(dir, res.GetCertificate(), res.GetAuthority()); err != nil {
		return err
	}
	if a.identity, err = peer.Load(dir); err != nil {
		return err
	}
	a.log.Info("joined a cluster", "cluster", res.GetCluster(), "node", res.GetNode(), "by", told.Join)
	return nil
}

// joinError says why a machine was not let in.
func joinError(at string, err error) error {
	var refused *peer.ErrRefused
	var noTLS tls.RecordHeaderError
	if errors.As(err, &noTLS) {
		return &StartError{Reason: JoinFailed, Err: err, Text: fmt.Sprintf("what answers at %s does not speak as nodes do: that looks like a port for clients; give --join the --peer-listen of one of the cluster's nodes", at)}
	}
	if !errors.As(err, &refused) {
		return &StartError{Reason: JoinFailed, Err: err, Text: fmt.Sprintf("the node at %s cannot be asked to let this one in: %v: check --join, and that a node runs there with --peer-listen", at, err)}
	}
	reason := JoinRefused
	if refused.Reason == peer.WrongCluster {
		reason = WrongCluster
	}
	return &StartError{Reason: reason, Err: err, Text: fmt.Sprintf("the cluster does not let this node in: %s (%s)", refused.Text, refused.Reason)}
}

// address is where this node is. Before there are connections, port 0 is nowhere.
func (a *agent) address() coordinator.Address {
	at := coordinator.Address{Store: a.b.store.ID(), Boot: a.b.store.Boot(), API: a.b.URL(), Zone: a.home.Zone, Life: a.life, Rules: a.b.cfg.rules(), Peer: or(a.home.Address, a.home.Listen)}
	if strings.HasSuffix(at.Peer, ":0") {
		at.Peer = ""
	}
	return at
}

// hook has the host speak to other nodes.
func (a *agent) hook(hc *partition.Config) {
	hc.Send, hc.SendSnapshot, hc.OnRole = a.links.send, a.sendSnapshot, a.onRole
	hc.OnUnfit = a.onUnfit
	hc.SnapshotBytesPerSecond = max(0, a.b.cfg.MoveRate)
}

// open brings the node up among the others: the metadata log, the connections, and
// a map that is recent. far is set.
func (a *agent) open(ctx context.Context) error {
	b := a.b
	a.links.join(b.host)
	if a.identity == nil {
		if err := a.found(ctx); err != nil {
			return err
		}
	}
	boot := b.store.Boot()
	var told ClusterConfig
	if b.cfg.Cluster != nil {
		told = *b.cfg.Cluster
	}
	transport, err := peer.New(peer.Config{
		Now: told.clock, Versions: told.versions,
		Identity: a.identity, Store: storeID(b.store.ID()), Boot: boot, Life: a.life, Earlier: a.peerStarts(), Listen: a.home.Listen, Listener: a.listener,
		Deliver: a.links.deliver, Alive: a.alive, Handler: a.handler(), OnJoin: a.onJoin, Logger: b.log,
	})
	if err != nil {
		return peerListenError(a.home.Listen, a.identity, err)
	}
	a.transport = transport
	a.links.over(transport)
	// Where it listens it listens again: the others look for it there.
	a.home.Listen = transport.Addr().String()
	if err := writeHome(b.cfg.DataDir, a.home); err != nil {
		return err
	}
	if b.coord.View().Cluster.ID == "" {
		transport.SetNodes(a.home.members())
	}
	b.running.Go(func() { a.run(b.serving) })
	return a.announce(ctx)
}

// found makes this node the first one of a cluster, with what it has.
func (a *agent) found(ctx context.Context) error {
	b := a.b
	if err := b.host.Create(ctx, partition.Metadata); err != nil {
		return err
	}
	cluster, err := b.coord.Bootstrap(ctx, "")
	if err != nil {
		return err
	}
	if len(cluster.Authority.Certificate) == 0 {
		made, err := peer.NewAuthority(cluster.ID)
		if err != nil {
			return err
		}
		cert, key := made.PEM()
		if _, err := b.coord.SetAuthority(ctx, coordinator.Authority{Certificate: cert, Key: key}); err != nil {
			return err
		}
	}
	if _, err := b.coord.Found(ctx, coordinator.Address{Store: b.store.ID(), Boot: b.store.Boot(), Life: a.life, Rules: b.cfg.rules()}, a.earlier...); err != nil {
		return err
	}
	if err := writeHome(b.cfg.DataDir, a.home); err != nil {
		return err
	}
	if err := a.certify(b.coord.View(), b.cfg.Node); err != nil {
		return err
	}
	if a.identity, err = peer.Load(identityDir(b.cfg.DataDir)); err != nil {
		return err
	}
	a.log.Info("this is the first node of a cluster", "cluster", cluster.ID, "node", b.cfg.Node)
	return nil
}

// announce has the metadata log say where this node is, and waits for the map that
// has it.
func (a *agent) announce(ctx context.Context) error {
	b, at := a.b, a.address()
	last, member := time.Now(), time.Now()
	a.asks = last
	b.waits.Store(a)
	defer b.waits.Store(nil)
	for {
		err := a.sayWhere(ctx, at)
		if err == nil {
			break
		}
		switch reasonOf(err) {
		case "NODE_ACTIVE", "NODE_GONE", "NODE_OLDER", "UNKNOWN_NODE", "BAD_VALUE":
			a.refusedStart()
			return &StartError{Reason: NodeRefused, Text: "the cluster refuses this node: " + wordsOf(err), Err: err}
		}
		if why := a.displaced(); why != nil {
			a.refusedStart()
			return &StartError{Reason: NodeRefused, Err: why, Text: "the cluster refuses this node: " + why.Text + " (" + why.Reason.String() + ")"}
		}
		if why := a.shutOut(); why == nil {
			member = time.Now()
		} else if time.Since(member) > outcastAfter {
			return a.notTakenIn(why)
		}
		if time.Since(last) > waitingTold {
			last = time.Now()
			a.log.Warn("waiting for the cluster: a majority of the nodes that vote must be there", "node", b.cfg.Node, "waiting", a.waitsFor(last).text, "err", err)
		}
		if err := pauseFor(ctx, agentPause); err != nil {
			return err
		}
	}
	for {
		m, changed := b.coord.Watch()
		if n, ok := m.Node(b.cfg.Node); ok && n.Address == at {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-b.serving.Done():
			return context.Canceled
		}
	}
}

// notTakenIn is why a start ends that no node takes part in.
func (a *agent) notTakenIn(why *peer.ErrRefused) error {
	if why.Reason == peer.NotMember {
		a.refusedStart()
		return &StartError{Reason: NodeRefused, Err: why, Text: fmt.Sprintf(
			"the other nodes say that node %v is not in the cluster: it was removed, or given up, and never comes back; start it on an empty data folder, as a new node that joins", a.b.cfg.Node)}
	}
	return &StartError{Reason: NodeRefused, Err: why, Text: fmt.Sprintf("no node of the cluster works with this one: %s (%s)", why.Text, why.Reason)}
}

const (
	// waitingTold is how often it is said that a node waits.
	waitingTold = 5 * time.Second
	// outcastAfter is how long every node that answers must refuse this one: the map of
	// one may be older than this node's join, and a connection of its process before
	// this one not yet gone.
	outcastAfter = 5 * time.Second
)

func pauseFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sayWhere says where this node is, wherever the metadata log is led.
func (a *agent) sayWhere(ctx context.Context, at coordinator.Address) error {
	_, err := atMetadata(ctx, a.b, true, func(r *remote) (*nodev1.AnnounceResponse, error) {
		return r.membership.Announce(ctx, &nodev1.AnnounceRequest{Address: a.presents(at)})
	})
	return err
}

// wordsOf is an error in the words of the one table.
func wordsOf(err error) string {
	var r *refusal
	if errors.As(err, &r) {
		return r.text
	}
	return err.Error()
}
