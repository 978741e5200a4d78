package broker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// The bounds of one Receive and Settle.
const (
	maxReceive     = 1000
	maxWait        = time.Minute
	maxRequestID   = 128
	maxSettlements = 1000
)

// consumeAPI is strandmq.v1.ConsumeService.
type consumeAPI struct{ b *Broker }

// Join opens a session.
func (a consumeAPI) Join(ctx context.Context, req *strandmqv1.JoinRequest) (*strandmqv1.JoinResponse, error) {
	if err := names.Member(req.GetMember()); err != nil {
		return nil, inField(err, "member")
	}
	if _, _, err := a.b.ensureGroup(ctx, req.GetTopic(), req.GetGroup(), req.GetCreateGroup()); err != nil {
		return nil, err
	}
	j, err := a.b.join(ctx, a.b.members.Join, req.GetTopic(), req.GetGroup(), req.GetMember())
	if err != nil {
		return nil, err
	}
	return &strandmqv1.JoinResponse{
		Session:          sessionText(j.Group.ID, req.GetMember(), j.Member.Session),
		SessionTimeoutMs: a.b.cfg.SessionTimeout.Milliseconds(),
		Assignment:       assignment(j.Member),
	}, nil
}

// Heartbeat keeps a session alive.
func (a consumeAPI) Heartbeat(ctx context.Context, req *strandmqv1.HeartbeatRequest) (*strandmqv1.HeartbeatResponse, error) {
	g, session, err := a.sessionIn(req.GetTopic(), req.GetGroup(), req.GetMember(), req.GetSession())
	if err != nil {
		return nil, err
	}
	m, err := a.b.heartbeat(ctx, g.ID, req.GetMember(), session)
	if err != nil {
		return nil, err
	}
	return &strandmqv1.HeartbeatResponse{Assignment: assignment(m)}, nil
}

// Drain has a member take nothing more. Its stream, if it has one, hears of it from
// the map.
func (a consumeAPI) Drain(ctx context.Context, req *strandmqv1.DrainRequest) (*strandmqv1.DrainResponse, error) {
	g, session, err := a.sessionIn(req.GetTopic(), req.GetGroup(), req.GetMember(), req.GetSession())
	if err != nil {
		return nil, err
	}
	if err := a.b.members.Drain(ctx, g.ID, req.GetMember(), session); err != nil {
		return nil, err
	}
	return &strandmqv1.DrainResponse{}, nil
}

// sessionIn reads the session that a call names.
func (a consumeAPI) sessionIn(topic, group, member, text string) (*coordinator.Group, uint64, error) {
	_, g, err := a.b.group(topic, group)
	if err != nil {
		return nil, 0, err
	}
	if err := names.Member(member); err != nil {
		return nil, 0, inField(err, "member")
	}
	session, err := parseSession(g.ID, member, text)
	return g, session, err
}

// Leave ends a session. Leaving one that is over already is success; leaving one
// that never was is not.
func (a consumeAPI) Leave(ctx context.Context, req *strandmqv1.LeaveRequest) (*strandmqv1.LeaveResponse, error) {
	t, g, err := a.b.group(req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	if err := names.Member(req.GetMember()); err != nil {
		return nil, inField(err, "member")
	}
	session, err := parseSession(g.ID, req.GetMember(), req.GetSession())
	if err != nil {
		return nil, err
	}
	var over *coordinator.ErrSessionEnded
	if _, err := a.b.coord.View().SessionOf(g.ID, req.GetMember(), session); errors.As(err, &over) {
		return &strandmqv1.LeaveResponse{}, nil
	} else if err != nil {
		return nil, err
	}
	// Released before the session ends: what is still held at its end is
	// charged.
	a.b.live.leaving(session)
	gid := consumer.GroupID(g.ID)
	told := a.b.sessions.take(session)
	if a.b.far != nil { // some calls may have come in at other nodes
		told = make(map[uint32]bool, len(t.Partitions))
		for i := range t.Partitions {
			told[uint32(i)] = true
		}
	}
	err = each(ctx, t.Topic, func(ctx context.Context, i int, id partition.PartitionID) error {
		if !told[uint32(i)] {
			return nil
		}
		err := a.b.parts.EndSession(ctx, id, gid, req.GetMember(), session+1, false)
		if errors.As(err, new(*partition.ErrDamaged)) {
			return nil // it stopped, and hands out nothing any more
		}
		return err
	})
	if err != nil {
		a.b.sessions.note(session, slices.Collect(maps.Keys(told))...)
		return nil, err
	}
	if err := a.b.members.Leave(ctx, g.ID, req.GetMember(), session); err != nil && !errors.As(err, &over) {
		return nil, err
	}
	return &strandmqv1.LeaveResponse{}, nil
}

// Receive waits for deliveries.
func (a consumeAPI) Receive(ctx context.Context, req *strandmqv1.ReceiveRequest) (*strandmqv1.ReceiveResponse, error) {
	b := a.b
	if err := checkReceive(req); err != nil {
		return nil, err
	}
	t, g, err := b.ensureGroup(ctx, req.GetTopic(), req.GetGroup(), req.GetCreateGroup())
	if err != nil {
		return nil, err
	}
	var session uint64
	if req.GetSession() == "" {
		j, err := b.members.Open(ctx, req.GetTopic(), req.GetGroup(), req.GetMember())
		if err != nil {
			return nil, err
		}
		session = j.Member.Session
	} else {
		if session, err = parseSession(g.ID, req.GetMember(), req.GetSession()); err != nil {
			return nil, err
		}
		if _, err := b.heartbeat(ctx, g.ID, req.GetMember(), session); err != nil {
			return nil, err
		}
	}
	maxBytes := int(req.GetMaxBytes())
	if maxBytes == 0 {
		maxBytes = record.MaxBatchBytes
	}
	over := b.waitsFor(ctx, g.ID, req.GetMember(), session)
	defer over()
	deliveries, idle, err := b.receive(ctx, t, g.ID, consumer.ReceiveRequest{
		Group: consumer.GroupID(g.ID), Member: req.GetMember(), Session: session,
		Max: max(1, int(req.GetMaxMessages())), MaxBytes: maxBytes,
		Wait: time.Duration(req.GetWaitMs()) * time.Millisecond, RequestID: req.GetRequestId(),
	})
	if err != nil {
		return nil, b.ended(t, g.ID, err)
	}
	res := &strandmqv1.ReceiveResponse{Session: sessionText(g.ID, req.GetMember(), session)}
	if len(deliveries) == 0 {
		res.IdleReason = idle
		return res, nil
	}
	res.Deliveries = make([]*strandmqv1.Delivery, len(deliveries))
	meter := b.deliveryMeter(t.Name, g.Name)
	for i, d := range deliveries {
		res.Deliveries[i] = &strandmqv1.Delivery{
			Message:   fromRecord(d.Message.Record, int64(d.Message.PublishTime), req.GetBodyFormat()),
			Topic:     t.Name,
			Partition: t.place[d.Partition],
			Offset:    uint64(d.Message.Offset),
			Attempt:   d.Attempt,
			Token:     d.Token.String(),
			Deadline:  timestampOrNil(int64(d.Deadline)),
			FirstSeen: timestampOrNil(int64(d.FirstSeen)),
			Fence:     d.Fence,
			Replayed:  d.Replayed,
			Settled:   d.Settled,
		}
		meter.delivery(d.Attempt, d.Replayed, d.Message.PublishTime)
	}
	meter.done()
	return res, nil
}

// checkWait checks how long a call is to wait.
func checkWait(ms int64) *refusal {
	if ms < 0 || ms > maxWait.Milliseconds() {
		return refuse("BAD_VALUE", "wait_ms", "%s is not 0 to %s: ask again instead of waiting longer", quantity.FormatMillis(ms), quantity.FormatSpan(maxWait))
	}
	return nil
}

func checkReceive(req *strandmqv1.ReceiveRequest) error {
	if err := names.Member(req.GetMember()); err != nil {
		return inField(err, "member")
	}
	if n := req.GetMaxMessages(); n > maxReceive {
		return refuse("BAD_VALUE", "max_messages", "%d is too many: ask for 1 to %d", n, maxReceive)
	}
	if r := checkWait(req.GetWaitMs()); r != nil {
		return r
	}
	if n := req.GetMaxBytes(); n > record.MaxBatchBytes {
		return refuse("BAD_VALUE", "max_bytes", "%d is too many: ask for at most %d", n, record.MaxBatchBytes)
	}
	if id := req.GetRequestId(); id != "" {
		if len(id) > maxRequestID || names.HeaderText(id) != nil {
			return refuse("BAD_VALUE", "request_id", "a request id has at most %d bytes and no control characters", maxRequestID)
		}
	}
	if r := checkFormat(req.GetBodyFormat()); r != nil {
		return r
	}
	return nil
}

// Settle settles deliveries.
func (a consumeAPI) Settle(ctx context.Context, req *strandmqv1.SettleRequest) (*strandmqv1.SettleResponse, error) {
	b := a.b
	t, g, err := b.group(req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	switch n := len(req.GetSettlements()); {
	case n == 0:
		return nil, refuse("BAD_VALUE", "settlements", "the call has no settlements: send 1 to %d", maxSettlements)
	case n > maxSettlements:
		return nil, refuse("BATCH_TOO_LARGE", "settlements", "the call has %d settlements: send 1 to %d", n, maxSettlements)
	}
	if err := a.alive(ctx, g, req); err != nil {
		return nil, err
	}
	res := &strandmqv1.SettleResponse{Results: make([]*strandmqv1.SettleResult, len(req.GetSettlements()))}
	list := make([]consumer.Settlement, 0, len(req.GetSettlements()))
	place := make([]int, 0, len(req.GetSettlements()))
	for i, s := range req.GetSettlements() {
		settlement, err := settlementOf(s)
		if err != nil {
			res.Results[i] = &strandmqv1.SettleResult{Problem: b.itemProblem(ctx, "settlements", i, err)}
			continue
		}
		settlement.Member = req.GetMember()
		list = append(list, settlement)
		place = append(place, i)
	}
	topicLabel, groupLabel := b.metrics.label(t.Name, g.Name)
	results := b.settle(ctx, consumer.GroupID(g.ID), list)
	b.live.settled(consumer.GroupID(g.ID), list, results)
	for i, r := range results {
		out := &strandmqv1.SettleResult{DeadLettered: r.Dead, Deadline: timestampOrNil(int64(r.Deadline))}
		if r.Err != nil {
			b.logItem(ctx, r.Err, "settle")
			b.metrics.refusedSettlement(r.Err, topicLabel, groupLabel, 1)
			out = &strandmqv1.SettleResult{Problem: b.itemProblem(ctx, "settlements", place[i], r.Err)}
		}
		res.Results[place[i]] = out
	}
	return res, nil
}

// alive checks member and session of a Settle, where they are named, and takes
// the call as a sign of life.
func (a consumeAPI) alive(ctx context.Context, g *coordinator.Group, req *strandmqv1.SettleRequest) error {
	if req.GetMember() == "" && req.GetSession() == "" {
		return nil // tokens say enough
	}
	if err := names.Member(req.GetMember()); err != nil {
		return inField(err, "member")
	}
	if req.GetSession() == "" {
		if m, ok := g.Member(req.GetMember()); ok {
			_, _ = a.b.heartbeat(ctx, g.ID, m.Name, m.Session) // it may just have ended
		}
		return nil
	}
	session, err := parseSession(g.ID, req.GetMember(), req.GetSession())
	if err != nil {
		return err
	}
	_, err = a.b.heartbeat(ctx, g.ID, req.GetMember(), session)
	return err
}

// settlementOf reads one settlement.
func settlementOf(s *strandmqv1.Settlement) (consumer.Settlement, error) {
	var out consumer.Settlement
	if out.Action = actionOf(s.GetAction()); out.Action == 0 {
		return out, refuse("BAD_VALUE", "action", "%d is not an action: use SETTLE_ACTION_ACK, NACK, REJECT, EXTEND or RELEASE", s.GetAction())
	}
	if d := s.GetDelayMs(); d < 0 || partition.Millis(d) > consumer.MaxDelay {
		return out, refuse("BAD_VALUE", "delay_ms", "%s is not 0 to %s", quantity.FormatMillis(d), quantity.FormatMillis(consumer.MaxDelay))
	}
	if n := len(s.GetReason()); n > consumer.MaxReason {
		return out, refuse("BAD_VALUE", "reason", "the reason has %d bytes: send at most %d", n, consumer.MaxReason)
	}
	token, err := consumer.ParseToken(s.GetToken())
	if err != nil {
		return out, err
	}
	out.Token, out.Delay, out.Reason = token, partition.Millis(s.GetDelayMs()), s.GetReason()
	return out, nil
}

// actionOf is an action as groups know it, 0 for none.
func actionOf(a strandmqv1.SettleAction) consumer.Action {
	switch a {
	case strandmqv1.SettleAction_SETTLE_ACTION_ACK:
		return consumer.Ack
	case strandmqv1.SettleAction_SETTLE_ACTION_NACK:
		return consumer.Nack
	case strandmqv1.SettleAction_SETTLE_ACTION_REJECT:
		return consumer.Reject
	case strandmqv1.SettleAction_SETTLE_ACTION_EXTEND:
		return consumer.Extend
	case strandmqv1.SettleAction_SETTLE_ACTION_RELEASE:
		return consumer.Release
	}
	return 0
}

func assignment(m *coordinator.Member) []*strandmqv1.PartitionShare {
	out := make([]*strandmqv1.PartitionShare, len(m.Shares))
	for i, s := range m.Shares {
		out[i] = &strandmqv1.PartitionShare{Partition: s.Partition, Share: s.Share, Shares: max(1, s.Shares)}
	}
	return out
}
