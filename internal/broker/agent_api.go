package broker

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
	"github.com/strandmq/strandmq/proto/node/v1/nodev1connect"
)

// handler is what this node answers to other nodes. Who belongs to the cluster is
// answered before this node serves: a cluster that starts begins with that.
func (a *agent) handler() http.Handler {
	mux := http.NewServeMux()
	opts := []connect.HandlerOption{connect.WithInterceptors(&hopEdge{b: a.b, early: true}), connect.WithReadMaxBytes(maxHop), connect.WithCompressMinBytes(compressNever)}
	mux.Handle(nodev1connect.NewMembershipServiceHandler(membershipServer{a: a}, opts...))
	mux.HandleFunc(snapshotPath, a.takeSnapshot)
	mux.Handle("/", a.b.nodeHandler())
	return mux
}

// membershipServer is node.v1.MembershipService.
type membershipServer struct {
	a   *agent
	own bool // this node asks itself
}

// caller is the node that asks.
func (s membershipServer) caller(ctx context.Context) partition.NodeID {
	if s.own {
		return s.a.b.cfg.Node
	}
	from, _ := peer.From(ctx)
	return partition.NodeID(from)
}

var _ nodev1connect.MembershipServiceHandler = membershipServer{}

// Admit implements nodev1connect.MembershipServiceHandler.
func (s membershipServer) Admit(ctx context.Context, req *nodev1.AdmitRequest) (*nodev1.AdmitResponse, error) {
	if err := s.a.b.led(uint64(partition.Metadata)); err != nil {
		return nil, err
	}
	n, err := s.a.admit(ctx, req)
	var refused *peer.ErrRefused
	if errors.As(err, &refused) {
		return &nodev1.AdmitResponse{Refused: uint32(refused.Reason), Why: refused.Text}, nil
	}
	if err != nil {
		return nil, err
	}
	return &nodev1.AdmitResponse{Node: uint64(n.ID), Revision: s.a.b.coord.View().Revision}, nil
}

// Announce implements nodev1connect.MembershipServiceHandler.
func (s membershipServer) Announce(ctx context.Context, req *nodev1.AnnounceRequest) (*nodev1.AnnounceResponse, error) {
	if err := s.a.b.led(uint64(partition.Metadata)); err != nil {
		return nil, err
	}
	if _, err := s.a.b.coord.UpdateNode(ctx, s.caller(ctx), addressFrom(req.GetAddress()), startsFrom(req.GetAddress())...); err != nil {
		return nil, err
	}
	return &nodev1.AnnounceResponse{Revision: s.a.b.coord.View().Revision}, nil
}

// Reached implements nodev1connect.MembershipServiceHandler.
func (s membershipServer) Reached(ctx context.Context, req *nodev1.ReachedRequest) (*nodev1.ReachedResponse, error) {
	if err := s.a.b.led(uint64(partition.Metadata)); err != nil {
		return nil, err
	}
	_, err := s.a.b.coord.Settle(ctx, partition.PartitionID(req.GetPartition()), req.GetPlacement())
	return &nodev1.ReachedResponse{}, err
}

// Erased implements nodev1connect.MembershipServiceHandler.
func (s membershipServer) Erased(ctx context.Context, req *nodev1.ErasedRequest) (*nodev1.ErasedResponse, error) {
	if err := s.a.b.led(uint64(partition.Metadata)); err != nil {
		return nil, err
	}
	r := partition.ReplicaID(req.GetReplica())
	if r.Node() != s.caller(ctx) {
		return nil, refuse("BAD_VALUE", "replica", "replica %v is not of the node that says so", r)
	}
	return &nodev1.ErasedResponse{}, s.a.b.coord.Left(ctx, partition.PartitionID(req.GetPartition()), r)
}

// Damaged implements nodev1connect.MembershipServiceHandler.
func (s membershipServer) Damaged(ctx context.Context, req *nodev1.DamagedRequest) (*nodev1.DamagedResponse, error) {
	if err := s.a.b.led(uint64(partition.Metadata)); err != nil {
		return nil, err
	}
	r := partition.ReplicaID(req.GetReplica())
	if r.Node() != s.caller(ctx) {
		return nil, refuse("BAD_VALUE", "replica", "replica %v is not of the node that says so", r)
	}
	_, err := s.a.b.coord.Damaged(ctx, partition.PartitionID(req.GetPartition()), r, req.GetWhy())
	return &nodev1.DamagedResponse{}, err
}

// Happened implements nodev1connect.MembershipServiceHandler.
func (s membershipServer) Happened(ctx context.Context, req *nodev1.HappenedRequest) (*nodev1.HappenedResponse, error) {
	if err := s.a.b.led(uint64(partition.Metadata)); err != nil {
		return nil, err
	}
	batch := coordinator.Batch{Node: s.caller(ctx), Boot: req.GetBoot(), Number: req.GetBatch()}
	for _, h := range req.GetEvents() {
		batch.Events = append(batch.Events, coordinator.Happening{
			Kind: coordinator.EventKind(h.GetKind()), Topic: h.GetTopic(), Partition: h.Partition, Group: h.GetGroup(),
			Node: partition.NodeID(h.GetNode()), Text: h.GetText(), Count: h.GetCount(),
		})
	}
	return &nodev1.HappenedResponse{}, s.a.b.coord.AddEvents(ctx, batch)
}

// admit lets a machine in, where the metadata log is led. What is wrong with its
// token, or its folder, is a *peer.ErrRefused.
func (a *agent) admit(ctx context.Context, req *nodev1.AdmitRequest) (*coordinator.Node, error) {
	var hash coordinator.TokenHash
	copy(hash[:], req.GetTokenHash())
	n, err := a.b.coord.AddNode(ctx, hash, addressFrom(req.GetAddress()), startsFrom(req.GetAddress())...)
	var (
		token *coordinator.ErrToken
		gone  *coordinator.ErrNodeGone
		old   *coordinator.ErrOldBoot
		rules *coordinator.ErrOldRules
		taken *coordinator.ErrPeerTaken
		limit *coordinator.ErrLimit
		bad   *coordinator.ErrInvalid
	)
	reason := peer.Reason(0)
	switch {
	case errors.As(err, &token):
		reason = map[coordinator.TokenFault]peer.Reason{
			coordinator.TokenUnknown: peer.TokenUnknown, coordinator.TokenUsed: peer.TokenUsed, coordinator.TokenExpired: peer.TokenExpired,
		}[token.Fault]
	case errors.As(err, &gone):
		reason = peer.NotMember
	case errors.As(err, &old):
		reason = peer.OlderBoot
	case errors.As(err, &taken):
		reason = peer.AddressTaken
	case errors.As(err, &rules):
		reason = peer.UnknownVersion
	case errors.As(err, &limit):
		reason = peer.Failed
	case errors.As(err, &bad):
		reason = peer.Malformed
	}
	if reason != 0 {
		return nil, &peer.ErrRefused{Reason: reason, Text: err.Error()}
	}
	return n, err
}

// onJoin is peer.Config.OnJoin: it lets a machine in, wherever the metadata log is
// led, and makes its certificate here.
func (a *agent) onJoin(ctx context.Context, secret, request []byte) ([]byte, error) {
	var req nodev1.JoinClusterRequest
	if err := proto.Unmarshal(request, &req); err != nil {
		return nil, &peer.ErrRefused{Reason: peer.Malformed, Text: "what the machine says of itself cannot be read: run the cluster's version"}
	}
	authority, err := peer.ParseAuthority(a.b.coord.View().Cluster.Authority.Certificate, a.b.coord.View().Cluster.Authority.Key)
	if err != nil {
		return nil, err
	}
	// Before the token is used up for it.
	if _, err := authority.Sign(req.GetCertificateRequest(), 1); err != nil {
		return nil, err
	}
	hash := peer.Hash(secret)
	admit := &nodev1.AdmitRequest{TokenHash: hash[:], Address: req.GetAddress()}
	admitted, err := atMetadata(ctx, a.b, true, func(r *remote) (*nodev1.AdmitResponse, error) { return r.membership.Admit(ctx, admit) })
	if err != nil {
		return nil, err
	}
	if admitted.GetRefused() != 0 {
		return nil, &peer.ErrRefused{Reason: peer.Reason(admitted.GetRefused()), Text: admitted.GetWhy()}
	}
	node := admitted.GetNode()
	a.b.awaitRevision(ctx, admitted.GetRevision())
	cert, err := authority.Sign(req.GetCertificateRequest(), node)
	if err != nil {
		return nil, err
	}
	m := a.b.coord.View()
	res := &nodev1.JoinClusterResponse{Node: node, Cluster: m.Cluster.ID, Certificate: cert, Authority: m.Cluster.Authority.Certificate}
	for n := range m.Nodes() {
		if n.State == coordinator.Active || n.State == coordinator.Draining {
			res.Nodes = append(res.Nodes, &nodev1.KnownNode{Node: uint64(n.ID), Address: addressTo(n.Address)})
		}
	}
	a.log.Info("a machine joins", "node", node, "store", req.GetAddress().GetStore(), "peer", req.GetAddress().GetPeer())
	return proto.Marshal(res)
}

func addressTo(a coordinator.Address) *nodev1.NodeAddress {
	return &nodev1.NodeAddress{Store: a.Store, Boot: a.Boot, Peer: a.Peer, Api: a.API, Zone: a.Zone, Life: a.Life, Rules: a.Rules}
}

func addressFrom(a *nodev1.NodeAddress) coordinator.Address {
	return coordinator.Address{Store: a.GetStore(), Boot: a.GetBoot(), Peer: a.GetPeer(), API: a.GetApi(), Zone: a.GetZone(), Life: a.GetLife(), Rules: a.GetRules()}
}
