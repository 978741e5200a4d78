package loadtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/check"
	"github.com/strandmq/strandmq/internal/retry"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// callTime bounds a call that does not wait for anything.
const callTime = 30 * time.Second

// unary is a Broker over unary calls.
type unary struct {
	server   string
	doors    *doors
	retryFor time.Duration

	topics  strandmqv1connect.TopicServiceClient
	groups  strandmqv1connect.GroupServiceClient
	dead    strandmqv1connect.DeadLetterServiceClient
	node    strandmqv1connect.NodeServiceClient
	publish strandmqv1connect.PublishServiceClient
	consume strandmqv1connect.ConsumeServiceClient
}

// Unary speaks to the broker at a URL, such as http://127.0.0.1:7171, with unary
// calls; each producer has one batch on its way at a time. Nothing is sent until
// the first call. close ends the connections that are left.
func Unary(server string, c Config) (b Broker, close func()) {
	c = c.withDefaults()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 0
	transport.MaxIdleConnsPerHost = c.Producers + 2*c.Groups*c.Members + 8
	at := newDoors(server, c.Fallback)
	if len(at.all) > 1 {
		transport.DialContext = at.dial
	}
	hc := &http.Client{Transport: transport}
	opts := clientOptions()
	return &unary{
		server: server, doors: at, retryFor: c.RetryFor,
		topics:  strandmqv1connect.NewTopicServiceClient(hc, server, opts...),
		groups:  strandmqv1connect.NewGroupServiceClient(hc, server, opts...),
		dead:    strandmqv1connect.NewDeadLetterServiceClient(hc, server, opts...),
		node:    strandmqv1connect.NewNodeServiceClient(hc, server, opts...),
		publish: newPublishClient(hc, server),
		consume: strandmqv1connect.NewConsumeServiceClient(hc, server, opts...),
	}, transport.CloseIdleConnections
}

// clientOptions are those of every client: bodies are random, so gzip would only
// cost.
func clientOptions() []connect.ClientOption {
	return []connect.ClientOption{connect.WithAcceptCompression("gzip", nil, nil)}
}

func newPublishClient(hc connect.HTTPClient, server string) strandmqv1connect.PublishServiceClient {
	return strandmqv1connect.NewPublishServiceClient(hc, server, clientOptions()...)
}

// ask makes a call, and repeats it while it fails in a way that passes, for at
// most limit. 0: once.
func ask[Req, Res any](ctx context.Context, u *unary, limit, patience time.Duration, call func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	return again(ctx, limit, func() (*Res, error) {
		once, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		res, err := call(once, req)
		if err != nil && ctx.Err() == nil {
			err = explain(err, u.server)
		}
		return res, err
	})
}

// again repeats a call that fails in a way that passes.
func again[T any](ctx context.Context, limit time.Duration, call func() (T, error)) (T, error) {
	return retry.Do(ctx, retry.Config{Limit: limit, First: 50 * time.Millisecond, Most: time.Second}, call)
}

// explain turns the error of a call that its caller did not end into a Refusal.
func explain(err error, server string) error {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return err
	}
	code := ce.Code()
	r := &Refusal{Text: ce.Message()}
	// Connect calls a connection that the other side reset canceled, too; that
	// nobody here canceled the call is the caller's to know.
	r.Passing = retry.Broke(err) || code == connect.CodeUnavailable || code == connect.CodeAborted ||
		code == connect.CodeDeadlineExceeded || code == connect.CodeCanceled
	for _, d := range ce.Details() {
		if v, err := d.Value(); err == nil {
			if p, ok := v.(*strandmqv1.Problem); ok {
				refuse(r, p)
			}
		}
	}
	if r.Reason != "" {
		return r
	}
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		r.Text = fmt.Sprintf("no broker answers at %s (%v): start one with 'strandmq serve', or name another with --server", server, op.Err)
	case code == connect.CodeDeadlineExceeded:
		r.Text = fmt.Sprintf("the broker at %s did not answer in time", server)
	case code == connect.CodeUnimplemented || code == connect.CodeUnknown || strings.HasPrefix(r.Text, "invalid content-type"):
		r.Text = fmt.Sprintf("what answers at %s is no StrandMQ broker of this version: %s", server, r.Text)
	}
	return r
}

func refuse(r *Refusal, p *strandmqv1.Problem) {
	r.Reason = p.GetReason()
	if p.GetMessage() != "" {
		r.Text = p.GetMessage()
	}
	r.RetryAfter = time.Duration(p.GetRetryAfterMs()) * time.Millisecond
	r.Passing = r.Passing || r.RetryAfter > 0
}

// unaryPublisher sends one batch after the other.
type unaryPublisher struct {
	u       *unary
	topic   string
	request strandmqv1.PublishRequest // used again for each batch
	failed  error
}

func (u *unary) Publisher(topic string) Publisher { return &unaryPublisher{u: u, topic: topic} }

func (p *unaryPublisher) Flush(context.Context) error { return nil }

func (p *unaryPublisher) Close() {}

// Send sends the batch until every message has a receipt. Messages that were
// refused for now are sent again, alone and in their order: the broker refuses
// the later ones of a key together with an earlier one. A lost answer is asked
// for again only with ids, since the batch may have been stored.
func (p *unaryPublisher) Send(ctx context.Context, batch []Message, done func([]*Receipt, error)) {
	receipts := make([]*Receipt, len(batch))
	if p.failed != nil {
		done(receipts, p.failed)
		return
	}
	pending := make([]int, len(batch))
	ids := true
	for i := range pending {
		pending[i] = i
		ids = ids && batch[i].ID != ""
	}
	_, err := again(context.WithoutCancel(ctx), p.u.retryFor, func() (struct{}, error) {
		p.request.Topic = p.topic
		p.request.Messages = p.request.Messages[:0]
		for _, i := range pending {
			p.request.Messages = append(p.request.Messages, &strandmqv1.Message{
				KeyKind: &strandmqv1.Message_Key{Key: batch[i].Key}, Id: batch[i].ID,
				Body: &strandmqv1.Message_Bytes{Bytes: batch[i].Body},
			})
		}
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
		defer cancel()
		res, err := p.u.publish.Publish(call, &p.request)
		if err != nil {
			err = explain(err, p.u.server)
			var r *Refusal
			// A refusal with a wait stored nothing; another may have.
			if errors.As(err, &r) && !ids && r.RetryAfter == 0 {
				r.Passing = false
			}
			return struct{}{}, err
		}
		if len(res.GetResults()) != len(pending) {
			return struct{}{}, fmt.Errorf("the broker answered for %d of %d messages", len(res.GetResults()), len(pending))
		}
		var later []int
		var why *Refusal
		for n, x := range res.GetResults() {
			i := pending[n]
			if receipt := x.GetReceipt(); receipt != nil {
				receipts[i] = &Receipt{Place: check.Place{Partition: receipt.GetPartition(), Offset: receipt.GetOffset()}, Duplicate: receipt.GetDuplicate()}
				continue
			}
			r := &Refusal{}
			refuse(r, x.GetProblem())
			switch r.Reason {
			case "NOT_SENT":
				r.Passing = true
			case "OUTCOME_UNKNOWN":
				r.Passing = ids
			}
			if why == nil || why.Passing && (!r.Passing || r.RetryAfter > why.RetryAfter) {
				why = r
			}
			later = append(later, i)
		}
		if why == nil {
			return struct{}{}, nil
		}
		pending = later
		return struct{}{}, why
	})
	p.failed = err
	done(receipts, err)
}

// unarySession is a member's session.
type unarySession struct {
	u                    *unary
	topic, group, member string
	session              string
}

func (u *unary) Join(ctx context.Context, topic, group, member string) (Session, error) {
	res, err := ask(ctx, u, u.retryFor, callTime, u.consume.Join, &strandmqv1.JoinRequest{Topic: topic, Group: group, Member: member})
	if err != nil {
		return nil, err
	}
	return &unarySession{u: u, topic: topic, group: group, member: member, session: res.GetSession()}, nil
}

func (s *unarySession) Drop() {}

func (s *unarySession) Leave(ctx context.Context) error {
	_, err := ask(ctx, s.u, 0, callTime, s.u.consume.Leave, &strandmqv1.LeaveRequest{
		Topic: s.topic, Group: s.group, Member: s.member, Session: s.session,
	})
	return err
}

// Receive asks again for a lost answer under the same request id, so that it
// costs nothing.
func (s *unarySession) Receive(ctx context.Context, most int, wait time.Duration) ([]Delivery, error) {
	res, err := ask(ctx, s.u, s.u.retryFor, wait+callTime, s.u.consume.Receive, &strandmqv1.ReceiveRequest{
		Topic: s.topic, Group: s.group, Member: s.member, Session: s.session, MaxMessages: uint32(most),
		WaitMs: wait.Milliseconds(), RequestId: uuid.NewString(), BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES,
	})
	if err != nil {
		return nil, err
	}
	out := make([]Delivery, len(res.GetDeliveries()))
	for i, d := range res.GetDeliveries() {
		out[i] = Delivery{
			Key: d.GetMessage().GetKey(), Body: d.GetMessage().GetBytes(),
			Place:   check.Place{Partition: d.GetPartition(), Offset: d.GetOffset()},
			Attempt: d.GetAttempt(), Token: d.GetToken(), Deadline: d.GetDeadline().AsTime().UnixMilli(), Replayed: d.GetReplayed(),
		}
	}
	return out, nil
}

// Settle repeats what passes. Repeating a settlement that was done is a success.
func (s *unarySession) Settle(ctx context.Context, list []Settlement) ([]check.Outcome, error) {
	out := make([]check.Outcome, len(list))
	for i := range out {
		out[i] = check.Unknown
	}
	pending := make([]int, len(list))
	for i := range pending {
		pending[i] = i
	}
	_, err := again(ctx, s.u.retryFor, func() (struct{}, error) {
		req := &strandmqv1.SettleRequest{Topic: s.topic, Group: s.group, Member: s.member}
		for _, i := range pending {
			x := &strandmqv1.Settlement{Token: list[i].Token, Action: strandmqv1.SettleAction_SETTLE_ACTION_ACK}
			if list[i].Nack {
				x.Action, x.Reason = strandmqv1.SettleAction_SETTLE_ACTION_NACK, "the load test's failure mix"
			}
			req.Settlements = append(req.Settlements, x)
		}
		call, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		res, err := s.u.consume.Settle(call, req)
		if err != nil {
			if ctx.Err() == nil {
				err = explain(err, s.u.server)
			}
			return struct{}{}, err
		}
		if len(res.GetResults()) != len(pending) {
			return struct{}{}, fmt.Errorf("the broker answered for %d of %d settlements", len(res.GetResults()), len(pending))
		}
		var later []int
		var why *Refusal
		for n, x := range res.GetResults() {
			i := pending[n]
			switch reason := x.GetProblem().GetReason(); {
			case x.GetProblem() == nil && x.GetDeadLettered():
				out[i] = check.Buried
			case x.GetProblem() == nil && list[i].Nack:
				out[i] = check.Failed
			case x.GetProblem() == nil:
				out[i] = check.Acked
			case reason == "STALE_DELIVERY" || reason == "SESSION_ENDED" || reason == "UNKNOWN_MESSAGE":
				out[i] = check.Stale
			default:
				r := &Refusal{}
				refuse(r, x.GetProblem())
				r.Passing = r.Passing || reason == "OUTCOME_UNKNOWN"
				if why == nil || why.Passing && (!r.Passing || r.RetryAfter > why.RetryAfter) {
					why = r
				}
				later = append(later, i)
			}
		}
		if why == nil {
			return struct{}{}, nil
		}
		pending = later
		return struct{}{}, why
	})
	return out, err
}

func (u *unary) CreateTopic(ctx context.Context, topic string, partitions uint32) (uint32, error) {
	there, err := ask(ctx, u, u.retryFor, callTime, u.topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: topic})
	if !isReason(err, "UNKNOWN_TOPIC") {
		return there.GetTopic().GetPartitions(), err
	}
	tries := 0
	res, err := again(ctx, u.retryFor, func() (*strandmqv1.CreateTopicResponse, error) {
		tries++
		return ask(ctx, u, 0, callTime, u.topics.CreateTopic, &strandmqv1.CreateTopicRequest{Topic: topic, Partitions: partitions})
	})
	// After a call that failed on its way, what exists is what that call made: it was not
	// there before. Else somebody else was faster.
	if res.GetExisted() && tries == 1 {
		return res.GetTopic().GetPartitions(), err
	}
	return 0, err
}

// route asks how keys become partitions.
func (u *unary) route(ctx context.Context, topic string) (*strandmqv1.RouteResponse, error) {
	return ask(ctx, u, u.retryFor, callTime, u.publish.Route, &strandmqv1.RouteRequest{Topic: topic})
}

func (u *unary) DeleteTopic(ctx context.Context, topic string) error {
	_, err := ask(ctx, u, u.retryFor, callTime, u.topics.DeleteTopic, &strandmqv1.DeleteTopicRequest{Topic: topic, Confirm: topic})
	if isReason(err, "UNKNOWN_TOPIC") { // a call whose answer got lost did it
		return nil
	}
	return err
}

func (u *unary) CreateGroup(ctx context.Context, topic, group string, p Policy) error {
	req := &strandmqv1.CreateGroupRequest{
		Topic: topic, Group: group,
		Policy: &strandmqv1.GroupPolicy{
			AckDeadlineMs: proto.Int64(p.AckDeadline.Milliseconds()), BackoffMs: proto.Int64(p.Backoff.Milliseconds()),
			MaxAttempts: proto.Uint32(p.MaxAttempts),
		},
	}
	if p.FromLatest {
		req.Start = &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Latest{Latest: true}}
	}
	_, err := ask(ctx, u, u.retryFor, callTime, u.groups.CreateGroup, req)
	return err
}

func (u *unary) DeleteGroup(ctx context.Context, topic, group string) error {
	_, err := ask(ctx, u, u.retryFor, callTime, u.groups.DeleteGroup, &strandmqv1.DeleteGroupRequest{Topic: topic, Group: group, Confirm: group})
	return err
}

func (u *unary) Lag(ctx context.Context, topic, group string) (uint64, error) {
	res, err := ask(ctx, u, u.retryFor, callTime, u.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: topic, Group: group})
	return res.GetCounts().GetLag(), err
}

func (u *unary) Dead(ctx context.Context, topic, group string, fn func(Delivery)) error {
	for token := ""; ; {
		res, err := ask(ctx, u, u.retryFor, callTime, u.dead.ListDeadLetters, &strandmqv1.ListDeadLettersRequest{
			Topic: topic, Group: group, PageSize: 1000, PageToken: token, BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES,
		})
		if err != nil {
			return err
		}
		for _, d := range res.GetDeadLetters() {
			fn(Delivery{
				Key: d.GetMessage().GetKey(), Body: d.GetMessage().GetBytes(), Attempt: d.GetAttempts(),
				Place: check.Place{Partition: d.GetPartition(), Offset: d.GetOffset()},
			})
		}
		if token = res.GetNextPageToken(); token == "" {
			return nil
		}
	}
}

func (u *unary) Version(ctx context.Context) (string, error) {
	res, err := ask(ctx, u, 0, callTime, u.node.NodeInfo, &strandmqv1.NodeInfoRequest{})
	return res.GetVersion(), err
}
