package main

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/strandmq/strandmq/internal/retry"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// member is one member of a group as the API sees it.
type member struct {
	api                *clients
	topic, group, name string
	session            string
	format             strandmqv1.BodyFormat
	retryFor           time.Duration
	once               bool                       // the group is at-most-once
	waiting            func(error, time.Duration) // may be nil
	idle               string                     // why the last receive brought nothing
}

// join opens a session; one of the same name that is open ends.
func (m *member) join(ctx context.Context) error {
	res, err := patiently(ctx, m.retryFor, m.waiting, m.api.consume.Join, &strandmqv1.JoinRequest{Topic: m.topic, Group: m.group, Member: m.name})
	if err != nil {
		return err
	}
	m.session = res.GetSession()
	return nil
}

// drain has the member take nothing more: others get its partitions while it finishes
// what it has.
func (m *member) drain(ctx context.Context) error {
	_, err := m.api.consume.Drain(ctx, &strandmqv1.DrainRequest{Topic: m.topic, Group: m.group, Member: m.name, Session: m.session})
	return err
}

// leave ends the session: what it holds is given back. It is a courtesy, and the
// broker would find out by itself, so its failure is not told.
func (m *member) leave(ctx context.Context) {
	_, _ = m.api.consume.Leave(ctx, &strandmqv1.LeaveRequest{Topic: m.topic, Group: m.group, Member: m.name, Session: m.session})
}

// receive takes deliveries. A lost answer is asked for again under the same
// request id, so it costs nothing.
func (m *member) receive(ctx context.Context, id string, n int, wait time.Duration) ([]*strandmqv1.Delivery, error) {
	res, err := retry.Do(ctx, retry.Config{Limit: m.retryFor, Waiting: m.waiting}, func() (*strandmqv1.ReceiveResponse, error) {
		call, cancel := context.WithTimeout(ctx, wait+callTime)
		defer cancel()
		return m.api.consume.Receive(call, &strandmqv1.ReceiveRequest{
			Topic: m.topic, Group: m.group, Member: m.name, Session: m.session,
			MaxMessages: uint32(min(n, 1000)), WaitMs: wait.Milliseconds(), RequestId: id, BodyFormat: m.format,
		})
	})
	if isReason(err, "SESSION_ENDED") || isReason(err, "UNKNOWN_SESSION") {
		return nil, errors.Join(errSessionGone, err)
	}
	if err != nil {
		return nil, err
	}
	if m.session == "" { // it stays the same, and others read it
		m.session = res.GetSession()
	}
	m.idle = res.GetIdleReason()
	return res.GetDeliveries(), nil
}

// settle settles up to 1,000 deliveries. Repeating a settlement that was done is
// a success, so a lost answer is asked for again.
func (m *member) settle(ctx context.Context, list []*strandmqv1.Settlement) ([]*strandmqv1.SettleResult, error) {
	res, err := retry.Do(ctx, retry.Config{Limit: m.retryFor, Waiting: m.waiting}, func() (*strandmqv1.SettleResponse, error) {
		call, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		return m.api.consume.Settle(call, &strandmqv1.SettleRequest{
			Topic: m.topic, Group: m.group, Member: m.name, Settlements: list,
		})
	})
	if err != nil {
		return nil, err
	}
	if len(res.GetResults()) != len(list) {
		return nil, errors.New("the broker settled another number of deliveries than were sent")
	}
	return res.GetResults(), nil
}

func newRequestID() string { return uuid.NewString() }

// errSessionGone ends a member whose name was taken over.
var errSessionGone = errors.New("another member of the same name has joined: give each its own --member")
