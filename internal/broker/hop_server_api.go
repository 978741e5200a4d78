package broker

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
	"github.com/strandmq/strandmq/proto/node/v1/nodev1connect"
)

// nodeHandler serves what other nodes ask of this one, and refuses until the node
// has started.
func (b *Broker) nodeHandler() http.Handler {
	mux := http.NewServeMux()
	opts := []connect.HandlerOption{connect.WithInterceptors(&hopEdge{b: b}), connect.WithReadMaxBytes(maxHop), connect.WithCompressMinBytes(compressNever)}
	mux.Handle(nodev1connect.NewPartitionServiceHandler(partitionServer{b}, opts...))
	mux.Handle(nodev1connect.NewSessionServiceHandler(sessionServer{b}, opts...))
	mux.Handle("/", b.passedOn())
	return mux
}

// hopEdge is the interceptor around every method between nodes: errors become
// Failures, panics end one call, and what is logged says for which request it was.
type hopEdge struct {
	b     *Broker
	early bool // calls are answered before the node serves
}

var _ connect.Interceptor = (*hopEdge)(nil)

// WrapUnary implements connect.Interceptor.
func (e *hopEdge) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		ctx = withRequest(ctx, requestFrom(req.Header()))
		defer e.recover(ctx, req.Spec(), &err)
		if r := e.b.ready(); r != nil && !(e.early && e.b.serving.Err() == nil) {
			return nil, e.fail(ctx, req.Spec(), &partition.ErrStopped{Cause: r})
		}
		if res, err = next(ctx, req); err != nil {
			return nil, e.fail(ctx, req.Spec(), err)
		}
		return res, nil
	}
}

// WrapStreamingClient implements connect.Interceptor; this is no client.
func (e *hopEdge) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (e *hopEdge) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		ctx = withRequest(ctx, requestFrom(conn.RequestHeader()))
		defer e.recover(ctx, conn.Spec(), &err)
		if r := e.b.ready(); r != nil {
			return e.fail(ctx, conn.Spec(), &partition.ErrStopped{Cause: r})
		}
		if err = next(ctx, conn); err != nil {
			return e.fail(ctx, conn.Spec(), err)
		}
		return nil
	}
}

func (e *hopEdge) recover(ctx context.Context, spec connect.Spec, err *error) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // the value itself is the signal
		panic(p)
	}
	logPanic(ctx, e.b.log, "panic in a call from another node", spec.Procedure, p)
	*err = e.fail(ctx, spec, internal(requestOf(ctx)))
}

// fail makes an error of this node's one for the wire.
func (e *hopEdge) fail(ctx context.Context, spec connect.Spec, err error) error {
	if own := (*connect.Error)(nil); errors.As(err, &own) {
		return own // the connection's
	}
	f := e.b.failureOn(ctx, err)
	if e.b.log.Enabled(ctx, slog.LevelDebug) {
		e.b.log.DebugContext(ctx, "a call from another node was refused", "method", spec.Procedure, "code", rowOf(f.GetProblem().GetReason()).code, "reason", f.GetProblem().GetReason())
	}
	var code connect.Code
	if bad := code.UnmarshalText([]byte(rowOf(f.GetProblem().GetReason()).code)); bad != nil {
		code = connect.CodeInternal
	}
	out := connect.NewError(code, errors.New(f.GetProblem().GetMessage()))
	if d, bad := connect.NewErrorDetail(f); bad == nil {
		out.AddDetail(d)
	}
	return out
}

// partitionServer is node.v1.PartitionService.
type partitionServer struct{ b *Broker }

var _ nodev1connect.PartitionServiceHandler = partitionServer{}

// led refuses calls for a partition that this node does not lead.
func (b *Broker) led(id uint64) error {
	pid := partition.PartitionID(id)
	info, err := b.host.Info(pid)
	switch {
	case errors.As(err, new(*partition.ErrUnknownPartition)):
		return notLed(pid)
	case err == nil && info.Fault != "" && b.shared(pid):
		return notLed(pid) // the others go on
	case err != nil || info.Fault != "":
		return nil // the call itself says it better
	case info.Leader != b.cfg.Node:
		return &partition.ErrNotLeader{Partition: pid, Leader: info.Leader}
	}
	return nil
}

// shared tells whether a partition is to have replicas on other nodes, too.
func (b *Broker) shared(id partition.PartitionID) bool {
	if b.coord == nil {
		return false // it starts
	}
	p, ok := b.coord.View().Partition(id)
	return ok && slices.ContainsFunc(p.Replicas, func(r partition.ReplicaID) bool { return r.Node() != b.cfg.Node })
}

// where this node leads a partition, call is made there.
func where[T any](b *Broker, id uint64, call func(own, partition.PartitionID) (T, error)) (T, error) {
	if err := b.led(id); err != nil {
		var none T
		return none, err
	}
	return call(own{b}, partition.PartitionID(id))
}

// Info implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) Info(ctx context.Context, req *nodev1.InfoRequest) (*nodev1.InfoResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.InfoResponse, error) {
		i, err := l.Info(ctx, id)
		if err != nil {
			return nil, err
		}
		return infoTo(i), nil
	})
}

// OffsetAt implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) OffsetAt(ctx context.Context, req *nodev1.OffsetAtRequest) (*nodev1.OffsetAtResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.OffsetAtResponse, error) {
		o, err := l.OffsetAt(ctx, id, partition.Millis(req.GetTimeMs()))
		return &nodev1.OffsetAtResponse{Offset: uint64(o)}, err
	})
}

// FindByMessageID implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) FindByMessageID(ctx context.Context, req *nodev1.FindByMessageIDRequest) (*nodev1.FindByMessageIDResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.FindByMessageIDResponse, error) {
		os, err := l.FindByMessageID(ctx, id, req.GetMessageId())
		return &nodev1.FindByMessageIDResponse{Offsets: offsetsTo(os)}, err
	})
}

// Read implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) Read(ctx context.Context, req *nodev1.ReadRequest) (*nodev1.ReadResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.ReadResponse, error) {
		x, err := l.Read(ctx, id, partition.Offset(req.GetFrom()), int(req.GetMax()), int(min(req.GetMaxBytes(), maxHop/2)))
		if err != nil {
			return nil, err
		}
		res := &nodev1.ReadResponse{Messages: make([]*nodev1.Message, len(x.messages)), Position: positionTo(x.kept)}
		for i, m := range x.messages {
			res.Messages[i] = messageTo(m)
		}
		return res, nil
	})
}

// Life implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) Life(ctx context.Context, req *nodev1.LifeRequest) (*nodev1.LifeResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.LifeResponse, error) {
		show := consumer.Window{Last: maxTraceEvents, Before: partition.Index(req.GetBefore())}
		if n := int(req.GetLimit()); n > 0 { // a node of an earlier version does not say
			show.Last = min(n, maxTraceEvents)
			show.First = min(int(req.GetFirst()), show.Last)
			show.Last -= show.First
		}
		x, err := l.Life(ctx, id, partition.Offset(req.GetOffset()), show)
		if err != nil {
			return nil, err
		}
		return lifeTo(x), nil
	})
}

// LogGroup implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) LogGroup(ctx context.Context, req *nodev1.LogGroupRequest) (*nodev1.LogGroupResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.LogGroupResponse, error) {
		return &nodev1.LogGroupResponse{}, l.LogGroup(ctx, id, groupFrom(req.GetGroup()), req.GetIsNew())
	})
}

// DeleteGroup implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) DeleteGroup(ctx context.Context, req *nodev1.DeleteGroupRequest) (*nodev1.DeleteGroupResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.DeleteGroupResponse, error) {
		return &nodev1.DeleteGroupResponse{}, l.DeleteGroup(ctx, id, consumer.GroupID(req.GetGroup()))
	})
}

// Groups implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) Groups(ctx context.Context, req *nodev1.GroupsRequest) (*nodev1.GroupsResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.GroupsResponse, error) {
		groups, err := l.Groups(ctx, id)
		res := &nodev1.GroupsResponse{Groups: make([]uint64, len(groups))}
		for i, g := range groups {
			res.Groups[i] = uint64(g)
		}
		return res, err
	})
}

// Reset implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) Reset(ctx context.Context, req *nodev1.ResetRequest) (*nodev1.ResetResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.ResetResponse, error) {
		from, err := l.Reset(ctx, id, consumer.GroupID(req.GetGroup()), partition.Offset(req.GetTo()))
		return &nodev1.ResetResponse{From: uint64(from)}, err
	})
}

// Stats implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) Stats(ctx context.Context, req *nodev1.StatsRequest) (*nodev1.StatsResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.StatsResponse, error) {
		x, err := l.Stats(ctx, id, consumer.GroupID(req.GetGroup()))
		if err != nil {
			return nil, err
		}
		return &nodev1.StatsResponse{State: stateTo(x)}, nil
	})
}

// EndSession implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) EndSession(ctx context.Context, req *nodev1.EndSessionRequest) (*nodev1.EndSessionResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.EndSessionResponse, error) {
		return &nodev1.EndSessionResponse{}, l.EndSession(ctx, id, consumer.GroupID(req.GetGroup()), req.GetMember(), req.GetBefore(), req.GetLost())
	})
}

// DeadLetters implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) DeadLetters(ctx context.Context, req *nodev1.DeadLettersRequest) (*nodev1.DeadLettersResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.DeadLettersResponse, error) {
		g, from := consumer.GroupID(req.GetGroup()), partition.Offset(req.GetFrom())
		if req.GetMost() == 0 {
			d, err := l.DeadLetter(ctx, id, g, from)
			if err != nil {
				return nil, err
			}
			return &nodev1.DeadLettersResponse{DeadLetters: []*nodev1.DeadLetter{deadTo(d)}}, nil
		}
		list, err := l.DeadLetters(ctx, id, g, from, int(req.GetMost()))
		res := &nodev1.DeadLettersResponse{DeadLetters: make([]*nodev1.DeadLetter, len(list))}
		for i := range list {
			res.DeadLetters[i] = deadTo(list[i])
		}
		return res, err
	})
}

// CopiesOf implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) CopiesOf(ctx context.Context, req *nodev1.CopiesOfRequest) (*nodev1.CopiesOfResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.CopiesOfResponse, error) {
		os, err := l.CopiesOf(ctx, id, consumer.GroupID(req.GetGroup()), req.GetMessageId())
		return &nodev1.CopiesOfResponse{Offsets: offsetsTo(os)}, err
	})
}

// Replay implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) Replay(ctx context.Context, req *nodev1.ReplayRequest) (*nodev1.ReplayResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.ReplayResponse, error) {
		n, m, err := l.Replay(ctx, id, consumer.GroupID(req.GetGroup()), selectorFrom(req.GetWhich()))
		return &nodev1.ReplayResponse{Replayed: uint64(n), Already: uint64(m)}, err
	})
}

// Discard implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) Discard(ctx context.Context, req *nodev1.DiscardRequest) (*nodev1.DiscardResponse, error) {
	return where(s.b, req.GetPartition(), func(l own, id partition.PartitionID) (*nodev1.DiscardResponse, error) {
		n, err := l.Discard(ctx, id, consumer.GroupID(req.GetGroup()), selectorFrom(req.GetWhich()))
		return &nodev1.DiscardResponse{Discarded: uint64(n)}, err
	})
}

// Settle implements nodev1connect.PartitionServiceHandler. Each settlement has its
// own answer, so those of partitions that are led elsewhere are refused alone.
func (s partitionServer) Settle(ctx context.Context, req *nodev1.SettleRequest) (*nodev1.SettleResponse, error) {
	list := settlementsFrom(req.GetSettlements())
	return &nodev1.SettleResponse{Results: s.b.settledTo(ctx, own(s).settle(ctx, consumer.GroupID(req.GetGroup()), list))}, nil
}

// Receive implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) Receive(ctx context.Context, req *nodev1.ReceiveRequest) (*nodev1.ReceiveResponse, error) {
	ask := consumer.ReceiveRequest{
		Group: consumer.GroupID(req.GetGroup()), Member: req.GetMember(), Session: req.GetSession(), Shares: sharesFrom(req.GetShares()),
		Max: int(req.GetMax()), MaxBytes: int(min(req.GetMaxBytes(), maxHop/2)), RequestID: req.GetRequestId(),
	}
	if req.GetHeldOnly() {
		ds, inFlight, limit, err := s.b.groups.Held(ctx, ask)
		if err != nil {
			return nil, err
		}
		return &nodev1.ReceiveResponse{Handed: deliveriesTo(ds), InFlight: uint32(inFlight), Limit: uint32(limit)}, nil
	}
	ds, idle, err := s.b.groups.Receive(ctx, ask)
	if err != nil {
		return nil, err
	}
	return &nodev1.ReceiveResponse{Handed: deliveriesTo(ds), Idle: valid(idle)}, nil
}

// WhyIdle implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) WhyIdle(ctx context.Context, req *nodev1.WhyIdleRequest) (*nodev1.WhyIdleResponse, error) {
	return &nodev1.WhyIdleResponse{Why: valid(s.b.groups.WhyIdle(ctx, consumer.GroupID(req.GetGroup()), sharesFrom(req.GetShares())))}, nil
}

// Publish implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) Publish(ctx context.Context, stream *connect.BidiStream[nodev1.PublishRequest, nodev1.PublishResponse]) error {
	return newInlet(ctx, s.b, stream).run()
}

// Attach implements nodev1connect.PartitionServiceHandler.
func (s partitionServer) Attach(ctx context.Context, stream *connect.BidiStream[nodev1.AttachRequest, nodev1.AttachResponse]) error {
	return s.b.lend(ctx, stream)
}

// sessionServer is node.v1.SessionService.
type sessionServer struct{ b *Broker }

var _ nodev1connect.SessionServiceHandler = sessionServer{}

// Join implements nodev1connect.SessionServiceHandler.
func (s sessionServer) Join(ctx context.Context, req *nodev1.JoinRequest) (*nodev1.JoinResponse, error) {
	if err := s.b.led(uint64(partition.Metadata)); err != nil {
		return nil, err
	}
	open := s.b.coord.Join
	switch req.GetKind() {
	case nodev1.JoinKind_JOIN_KIND_STREAM:
		open = s.b.coord.JoinStream
	case nodev1.JoinKind_JOIN_KIND_OPEN:
		open = s.b.coord.Open
	case nodev1.JoinKind_JOIN_KIND_UNSPECIFIED:
	}
	j, err := open(ctx, req.GetTopic(), req.GetGroup(), req.GetMember())
	if err != nil {
		return nil, err
	}
	return &nodev1.JoinResponse{Session: j.Member.Session, Replaced: j.Replaced, Revision: s.b.coord.View().Revision}, nil
}

// Heartbeat implements nodev1connect.SessionServiceHandler.
func (s sessionServer) Heartbeat(ctx context.Context, req *nodev1.HeartbeatRequest) (*nodev1.HeartbeatResponse, error) {
	if err := s.b.led(uint64(partition.Metadata)); err != nil {
		return nil, err
	}
	if _, err := s.b.coord.Heartbeat(ctx, coordinator.GroupID(req.GetGroup()), req.GetMember(), req.GetSession()); err != nil {
		return nil, err
	}
	return &nodev1.HeartbeatResponse{Revision: s.b.coord.View().Revision}, nil
}

// Leave implements nodev1connect.SessionServiceHandler.
func (s sessionServer) Leave(ctx context.Context, req *nodev1.LeaveRequest) (*nodev1.LeaveResponse, error) {
	if err := s.b.led(uint64(partition.Metadata)); err != nil {
		return nil, err
	}
	end := s.b.coord.Leave
	if req.GetDrain() {
		end = s.b.coord.Drain
	}
	if err := end(ctx, coordinator.GroupID(req.GetGroup()), req.GetMember(), req.GetSession()); err != nil {
		return nil, err
	}
	return &nodev1.LeaveResponse{Revision: s.b.coord.View().Revision}, nil
}

// Miss implements nodev1connect.SessionServiceHandler.
func (s sessionServer) Miss(_ context.Context, req *nodev1.MissRequest) (*nodev1.MissResponse, error) {
	if err := s.b.led(uint64(partition.Metadata)); err != nil {
		return nil, err
	}
	return &nodev1.MissResponse{}, s.b.coord.Miss(coordinator.GroupID(req.GetGroup()), req.GetMember(), req.GetSession(), partition.Millis(req.GetSilentMs()))
}

// EnsureGroup implements nodev1connect.SessionServiceHandler.
func (s sessionServer) EnsureGroup(ctx context.Context, req *nodev1.EnsureGroupRequest) (*nodev1.EnsureGroupResponse, error) {
	if err := s.b.led(uint64(partition.Metadata)); err != nil {
		return nil, err
	}
	_, _, err := s.b.ensureGroup(ctx, req.GetTopic(), req.GetGroup(), true)
	return &nodev1.EnsureGroupResponse{}, err
}

// Revision implements nodev1connect.SessionServiceHandler.
func (s sessionServer) Revision(context.Context, *nodev1.RevisionRequest) (*nodev1.RevisionResponse, error) {
	if err := s.b.led(uint64(partition.Metadata)); err != nil {
		return nil, err
	}
	return &nodev1.RevisionResponse{Revision: s.b.coord.View().Revision}, nil
}
