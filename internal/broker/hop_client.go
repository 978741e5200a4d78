package broker

import (
	"context"
	"errors"
	"net"
	"net/http"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
	"github.com/strandmq/strandmq/proto/node/v1/nodev1connect"
)

// remote asks another node about the partitions that it leads.
type remote struct {
	node     partition.NodeID
	http     *http.Client
	url      string
	parts    nodev1connect.PartitionServiceClient
	sessions nodev1connect.SessionServiceClient

	membership nodev1connect.MembershipServiceClient
}

var _ asked = (*remote)(nil)

// maxHop is the most bytes of one message between nodes.
const maxHop = 32 << 20

func newRemote(n partition.NodeID, client *http.Client, url string) *remote {
	opts := []connect.ClientOption{connect.WithInterceptors(carrying{}), connect.WithReadMaxBytes(maxHop), connect.WithAcceptCompression("gzip", nil, nil)}
	return &remote{
		node: n, http: client, url: url,
		parts: nodev1connect.NewPartitionServiceClient(client, url, opts...), sessions: nodev1connect.NewSessionServiceClient(client, url, opts...),
		membership: nodev1connect.NewMembershipServiceClient(client, url, opts...),
	}
}

// carrying has each call to another node say which request it is made for.
type carrying struct{}

var _ connect.Interceptor = carrying{}

// WrapUnary implements connect.Interceptor.
func (carrying) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		requestOf(ctx).to(req.Header())
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (carrying) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		requestOf(ctx).to(conn.RequestHeader())
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor; this is no handler.
func (carrying) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// failed is what an error of a call to the node means: what the node said, or
// that it was not reached, or that nobody knows whether it heard.
func (r *remote) failed(id partition.PartitionID, err error) error {
	if err == nil {
		return nil
	}
	if own := (*connect.Error)(nil); errors.As(err, &own) {
		for _, d := range own.Details() {
			v, bad := d.Value()
			if f, ok := v.(*nodev1.Failure); bad == nil && ok {
				return errorOf(f)
			}
		}
	}
	if notSent(err) {
		return &errUnreached{node: r.node, err: err}
	}
	why := "the connection to node " + r.node.String() + " broke before its answer came"
	switch connect.CodeOf(err) {
	case connect.CodeDeadlineExceeded:
		why = "the time of the call ran out before node " + r.node.String() + " answered"
	case connect.CodeCanceled:
		why = "the caller did not wait for the answer"
	case connect.CodeUnimplemented:
		return &errUnreached{node: r.node, err: err} // it runs an older version, or does not serve yet
	default:
	}
	return &partition.ErrOutcomeUnknown{Partition: id, Why: why}
}

// nearby is this node as another asks it, without a connection between.
func (b *Broker) nearby() *remote {
	r := &remote{node: b.cfg.Node, sessions: sessionServer{b}}
	if b.agent != nil {
		r.membership = membershipServer{a: b.agent, own: true}
	}
	return r
}

// notSent tells whether a call between nodes failed before anything of it was sent.
func notSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, new(*peer.ErrUnreached)) || errors.As(err, new(*peer.ErrNoNode))
}

// looked is failed for calls that only look: nothing can have happened.
func (r *remote) looked(ctx context.Context, id partition.PartitionID, err error) error {
	err = r.failed(id, err)
	if err != nil && ctx.Err() != nil && errors.As(err, new(*partition.ErrOutcomeUnknown)) {
		return ctx.Err()
	}
	return err
}

// Info implements partitionReader.
func (r *remote) Info(ctx context.Context, id partition.PartitionID) (partitionInfo, error) {
	res, err := r.parts.Info(ctx, &nodev1.InfoRequest{Partition: uint64(id)})
	if err != nil {
		return partitionInfo{}, r.looked(ctx, id, err)
	}
	return infoFrom(res), nil
}

// Position implements partitionReader.
func (r *remote) Position(ctx context.Context, id partition.PartitionID) (partition.Position, error) {
	info, err := r.Info(ctx, id)
	return info.Position, err
}

// OffsetAt implements partitionReader.
func (r *remote) OffsetAt(ctx context.Context, id partition.PartitionID, t partition.Millis) (partition.Offset, error) {
	res, err := r.parts.OffsetAt(ctx, &nodev1.OffsetAtRequest{Partition: uint64(id), TimeMs: int64(t)})
	return partition.Offset(res.GetOffset()), r.looked(ctx, id, err)
}

// FindByMessageID implements partitionReader.
func (r *remote) FindByMessageID(ctx context.Context, id partition.PartitionID, messageID string) ([]partition.Offset, error) {
	res, err := r.parts.FindByMessageID(ctx, &nodev1.FindByMessageIDRequest{Partition: uint64(id), MessageId: messageID})
	return offsetsFrom(res.GetOffsets()), r.looked(ctx, id, err)
}

// Read implements partitionReader.
func (r *remote) Read(ctx context.Context, id partition.PartitionID, from partition.Offset, most, maxBytes int) (stretch, error) {
	res, err := r.parts.Read(ctx, &nodev1.ReadRequest{Partition: uint64(id), From: uint64(from), Max: uint32(most), MaxBytes: uint64(maxBytes)})
	if err != nil {
		return stretch{}, r.looked(ctx, id, err)
	}
	out := stretch{messages: make([]partition.Message, len(res.GetMessages())), kept: positionFrom(res.GetPosition())}
	for i, m := range res.GetMessages() {
		if out.messages[i], err = messageFrom(m); err != nil {
			return stretch{}, err
		}
	}
	return out, nil
}

// Life implements partitionReader.
func (r *remote) Life(ctx context.Context, id partition.PartitionID, o partition.Offset, show consumer.Window) (life, error) {
	res, err := r.parts.Life(ctx, &nodev1.LifeRequest{
		Partition: uint64(id), Offset: uint64(o), Before: uint64(show.Before), Limit: uint32(show.First + show.Last), First: uint32(show.First),
	})
	if err != nil {
		return life{}, r.looked(ctx, id, err)
	}
	return lifeFrom(res)
}

// LogGroup implements groupKeeper.
func (r *remote) LogGroup(ctx context.Context, id partition.PartitionID, g consumer.GroupSpec, isNew bool) error {
	_, err := r.parts.LogGroup(ctx, &nodev1.LogGroupRequest{Partition: uint64(id), Group: groupTo(g), IsNew: isNew})
	return r.failed(id, err)
}

// DeleteGroup implements groupKeeper.
func (r *remote) DeleteGroup(ctx context.Context, id partition.PartitionID, g consumer.GroupID) error {
	_, err := r.parts.DeleteGroup(ctx, &nodev1.DeleteGroupRequest{Partition: uint64(id), Group: uint64(g)})
	return r.failed(id, err)
}

// Groups implements groupKeeper.
func (r *remote) Groups(ctx context.Context, id partition.PartitionID) ([]consumer.GroupID, error) {
	res, err := r.parts.Groups(ctx, &nodev1.GroupsRequest{Partition: uint64(id)})
	out := make([]consumer.GroupID, len(res.GetGroups()))
	for i, g := range res.GetGroups() {
		out[i] = consumer.GroupID(g)
	}
	return out, r.looked(ctx, id, err)
}

// Reset implements groupKeeper.
func (r *remote) Reset(ctx context.Context, id partition.PartitionID, g consumer.GroupID, to partition.Offset) (partition.Offset, error) {
	res, err := r.parts.Reset(ctx, &nodev1.ResetRequest{Partition: uint64(id), Group: uint64(g), To: uint64(to)})
	return partition.Offset(res.GetFrom()), r.failed(id, err)
}

// Stats implements groupKeeper.
func (r *remote) Stats(ctx context.Context, id partition.PartitionID, g consumer.GroupID) (groupState, error) {
	res, err := r.parts.Stats(ctx, &nodev1.StatsRequest{Partition: uint64(id), Group: uint64(g)})
	if err != nil {
		return groupState{}, r.looked(ctx, id, err)
	}
	return stateFrom(res.GetState()), nil
}

// EndSession implements groupKeeper.
func (r *remote) EndSession(ctx context.Context, id partition.PartitionID, g consumer.GroupID, member string, before uint64, lost bool) error {
	_, err := r.parts.EndSession(ctx, &nodev1.EndSessionRequest{Partition: uint64(id), Group: uint64(g), Member: member, Before: before, Lost: lost})
	return r.failed(id, err)
}

// DeadLetters implements deadKeeper.
func (r *remote) DeadLetters(ctx context.Context, id partition.PartitionID, g consumer.GroupID, from partition.Offset, most int) ([]consumer.DeadLetter, error) {
	if most < 1 {
		return nil, nil
	}
	return r.dead(ctx, id, &nodev1.DeadLettersRequest{Partition: uint64(id), Group: uint64(g), From: uint64(from), Most: uint32(most)})
}

// DeadLetter implements deadKeeper.
func (r *remote) DeadLetter(ctx context.Context, id partition.PartitionID, g consumer.GroupID, o partition.Offset) (consumer.DeadLetter, error) {
	list, err := r.dead(ctx, id, &nodev1.DeadLettersRequest{Partition: uint64(id), Group: uint64(g), From: uint64(o)})
	if err == nil && len(list) != 1 {
		err = errNotWhole
	}
	if err != nil {
		return consumer.DeadLetter{}, err
	}
	return list[0], nil
}

func (r *remote) dead(ctx context.Context, id partition.PartitionID, req *nodev1.DeadLettersRequest) ([]consumer.DeadLetter, error) {
	res, err := r.parts.DeadLetters(ctx, req)
	if err != nil {
		return nil, r.looked(ctx, id, err)
	}
	out := make([]consumer.DeadLetter, len(res.GetDeadLetters()))
	for i, d := range res.GetDeadLetters() {
		if out[i], err = deadFrom(id, d); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// CopiesOf implements deadKeeper.
func (r *remote) CopiesOf(ctx context.Context, id partition.PartitionID, g consumer.GroupID, messageID string) ([]partition.Offset, error) {
	res, err := r.parts.CopiesOf(ctx, &nodev1.CopiesOfRequest{Partition: uint64(id), Group: uint64(g), MessageId: messageID})
	return offsetsFrom(res.GetOffsets()), r.looked(ctx, id, err)
}

// Replay implements deadKeeper.
func (r *remote) Replay(ctx context.Context, id partition.PartitionID, g consumer.GroupID, which consumer.Selector) (replayed, already int, err error) {
	res, err := r.parts.Replay(ctx, &nodev1.ReplayRequest{Partition: uint64(id), Group: uint64(g), Which: selectorTo(which)})
	return int(res.GetReplayed()), int(res.GetAlready()), r.failed(id, err)
}

// Discard implements deadKeeper.
func (r *remote) Discard(ctx context.Context, id partition.PartitionID, g consumer.GroupID, which consumer.Selector) (int, error) {
	res, err := r.parts.Discard(ctx, &nodev1.DiscardRequest{Partition: uint64(id), Group: uint64(g), Which: selectorTo(which)})
	return int(res.GetDiscarded()), r.failed(id, err)
}
