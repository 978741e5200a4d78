package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/strandmq/strandmq/internal/check"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// wired puts the API in front of a textbook.
type wired struct {
	strandmqv1connect.UnimplementedPublishServiceHandler
	strandmqv1connect.UnimplementedConsumeServiceHandler
	strandmqv1connect.UnimplementedTopicServiceHandler
	strandmqv1connect.UnimplementedGroupServiceHandler
	strandmqv1connect.UnimplementedDeadLetterServiceHandler
	strandmqv1connect.UnimplementedNodeServiceHandler

	b       *textbook
	loses   int    // answers to the first creations of a topic that get lost
	refuse  string // publish batch number n/reason: refuse it
	breakAt uint64 // end each publish stream when so many batches came; 0: never

	mu       sync.Mutex
	batches  uint64
	messages int // of readable messages
	records  int // of record batches
	broken   bool
}

// serve gives the URL of a broker over a textbook.
func serve(t testing.TB, w *wired) string {
	at, _ := serveUntil(t, w)
	return at
}

// serveUntil is serve, and ends with its connections when gone is called.
func serveUntil(t testing.TB, w *wired) (at string, gone func()) {
	mux := http.NewServeMux()
	mux.Handle(strandmqv1connect.NewPublishServiceHandler(w))
	mux.Handle(strandmqv1connect.NewConsumeServiceHandler(w))
	mux.Handle(strandmqv1connect.NewTopicServiceHandler(w))
	mux.Handle(strandmqv1connect.NewGroupServiceHandler(w))
	mux.Handle(strandmqv1connect.NewDeadLetterServiceHandler(w))
	mux.Handle(strandmqv1connect.NewNodeServiceHandler(w))
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: mux, Protocols: &p}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	gone = sync.OnceFunc(func() { _ = s.Close(); <-done })
	t.Cleanup(gone)
	return "http://" + l.Addr().String(), gone
}

func (w *wired) NodeInfo(context.Context, *strandmqv1.NodeInfoRequest) (*strandmqv1.NodeInfoResponse, error) {
	return &strandmqv1.NodeInfoResponse{Version: "textbook"}, nil
}

func problem(reason string, passes int64) error {
	e := connect.NewError(connect.CodeFailedPrecondition, errors.New(reason))
	if passes > 0 {
		e = connect.NewError(connect.CodeUnavailable, errors.New(reason))
	}
	d, err := connect.NewErrorDetail(&strandmqv1.Problem{Reason: reason, Message: "refused: " + reason, RetryAfterMs: passes})
	if err != nil {
		panic(err)
	}
	e.AddDetail(d)
	return e
}

func (w *wired) DescribeTopic(context.Context, *strandmqv1.DescribeTopicRequest) (*strandmqv1.DescribeTopicResponse, error) {
	if w.b.existing {
		return &strandmqv1.DescribeTopicResponse{Topic: &strandmqv1.Topic{Partitions: 1}}, nil
	}
	return nil, problem("UNKNOWN_TOPIC", 0)
}

func (w *wired) CreateTopic(ctx context.Context, r *strandmqv1.CreateTopicRequest) (*strandmqv1.CreateTopicResponse, error) {
	before := len(w.b.created)
	_, err := w.b.CreateTopic(ctx, r.GetTopic(), 1)
	if err == nil && before < w.loses {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("the way to the broker broke"))
	}
	return &strandmqv1.CreateTopicResponse{Existed: before > 0, Topic: &strandmqv1.Topic{Partitions: 1}}, err
}

func (w *wired) DeleteTopic(ctx context.Context, r *strandmqv1.DeleteTopicRequest) (*strandmqv1.DeleteTopicResponse, error) {
	return &strandmqv1.DeleteTopicResponse{}, w.b.DeleteTopic(ctx, r.GetTopic())
}

func (w *wired) CreateGroup(ctx context.Context, r *strandmqv1.CreateGroupRequest) (*strandmqv1.CreateGroupResponse, error) {
	p := r.GetPolicy()
	return &strandmqv1.CreateGroupResponse{}, w.b.CreateGroup(ctx, r.GetTopic(), r.GetGroup(), Policy{
		AckDeadline: time.Duration(p.GetAckDeadlineMs()) * time.Millisecond, Backoff: time.Duration(p.GetBackoffMs()) * time.Millisecond,
		MaxAttempts: p.GetMaxAttempts(),
	})
}

func (w *wired) DescribeGroup(ctx context.Context, r *strandmqv1.DescribeGroupRequest) (*strandmqv1.DescribeGroupResponse, error) {
	n, err := w.b.Lag(ctx, r.GetTopic(), r.GetGroup())
	return &strandmqv1.DescribeGroupResponse{Counts: &strandmqv1.GroupCounts{Lag: n}}, err
}

func (w *wired) ListDeadLetters(ctx context.Context, r *strandmqv1.ListDeadLettersRequest) (*strandmqv1.ListDeadLettersResponse, error) {
	res := &strandmqv1.ListDeadLettersResponse{}
	return res, w.b.Dead(ctx, r.GetTopic(), r.GetGroup(), func(d Delivery) {
		res.DeadLetters = append(res.DeadLetters, &strandmqv1.DeadLetter{
			Message: &strandmqv1.Message{KeyKind: &strandmqv1.Message_Key{Key: d.Key}, Body: &strandmqv1.Message_Bytes{Bytes: d.Body}},
		})
	})
}

func (w *wired) Route(_ context.Context, r *strandmqv1.RouteRequest) (*strandmqv1.RouteResponse, error) {
	return &strandmqv1.RouteResponse{Topic: r.GetTopic(), Seed: 7, Revision: 1, Partitions: []*strandmqv1.RoutePartition{{HashLast: ^uint64(0)}}}, nil
}

// store stores what a call carries.
func (w *wired) store(topic string, messages []*strandmqv1.Message, batch []byte) (*strandmqv1.ReceiptRun, error) {
	if topic == "" {
		return nil, errors.New("no topic")
	}
	var list []Message
	for _, m := range messages {
		list = append(list, Message{Key: m.GetKey(), ID: m.GetId(), Body: m.GetBytes()})
	}
	if batch != nil {
		bt, rest, err := record.Parse(batch)
		if err != nil || len(rest) > 0 || len(messages) > 0 {
			return nil, fmt.Errorf("%w, %d bytes and %d messages too many", err, len(rest), len(messages))
		}
		bt.Each(func(_ int, r record.Raw) bool {
			list = append(list, Message{Key: string(r.Key()), ID: string(r.ID()), Body: append([]byte(nil), r.Body()...)})
			return true
		})
	}
	w.mu.Lock()
	w.messages += len(messages)
	if batch != nil {
		w.records += len(list)
	}
	w.mu.Unlock()
	var run *strandmqv1.ReceiptRun
	var fault error
	w.b.Publisher(topic).Send(context.Background(), list, func(receipts []*Receipt, err error) {
		fault = err
		if err == nil {
			run = &strandmqv1.ReceiptRun{FirstOffset: receipts[0].Place.Offset, Count: uint32(len(receipts))}
		}
	})
	return run, fault
}

func (w *wired) Publish(_ context.Context, r *strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
	run, err := w.store(r.GetTopic(), r.GetMessages(), r.GetRecordBatch())
	if err != nil {
		return nil, err
	}
	return &strandmqv1.PublishResponse{Results: []*strandmqv1.PublishResult{{Receipt: &strandmqv1.Receipt{Offset: run.GetFirstOffset()}}}}, nil
}

func (w *wired) PublishStream(_ context.Context, s *connect.BidiStream[strandmqv1.PublishStreamRequest, strandmqv1.PublishStreamResponse]) error {
	topic, number := "", uint64(0)
	for {
		req, err := s.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		res := &strandmqv1.PublishStreamResponse{}
		for _, b := range req.GetBatches() {
			number++
			if b.GetTopic() != "" {
				topic = b.GetTopic()
			}
			w.mu.Lock()
			w.batches++
			at, reason, _ := strings.Cut(w.refuse, "/")
			refused := at == strconv.FormatUint(w.batches, 10)
			// What was stored before has its answer: a textbook does not tell repeats.
			snap := w.breakAt > 0 && number > w.breakAt && !w.broken && len(res.GetResults()) == 0
			w.broken = w.broken || snap
			w.mu.Unlock()
			if snap {
				return problem("SHUTTING_DOWN", 1)
			}
			if refused {
				res.Results = append(res.Results, &strandmqv1.PublishBatchResult{Batch: number, Problem: &strandmqv1.Problem{Reason: reason, Message: "no"}})
				continue
			}
			run, err := w.store(topic, b.GetMessages(), b.GetRecordBatch())
			if err != nil {
				return err
			}
			out := &strandmqv1.PublishBatchResult{Batch: number, Run: run}
			if len(b.GetMessages()) > 0 {
				out.Run = nil
				for i := range run.GetCount() {
					out.Results = append(out.Results, &strandmqv1.PublishResult{Receipt: &strandmqv1.Receipt{Offset: run.GetFirstOffset() + uint64(i)}})
				}
			}
			res.Results = append(res.Results, out)
		}
		if err := s.Send(res); err != nil {
			return err
		}
	}
}

// Consume hands out what the textbook gives, in record batches.
func (w *wired) Consume(ctx context.Context, s *connect.BidiStream[strandmqv1.ConsumeRequest, strandmqv1.ConsumeResponse]) error {
	first, err := s.Receive()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	session, err := w.b.Join(ctx, open.GetTopic(), open.GetGroup(), open.GetMember())
	if err != nil {
		return err
	}
	if err := s.Send(&strandmqv1.ConsumeResponse{Session: "s", SessionTimeoutMs: 10_000}); err != nil {
		return err
	}
	asked := make(chan *strandmqv1.ConsumeRequest)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		defer close(asked)
		for {
			r, err := s.Receive()
			if err != nil {
				return
			}
			select {
			case asked <- r:
			case <-ended:
				return
			}
		}
	}()
	credits, number := int(first.GetCredits()), uint64(0)
	tokens := map[uint64]string{}
	tick := time.NewTicker(2 * time.Millisecond) // the textbook tells nobody of what is new
	defer tick.Stop()
	for {
		var req *strandmqv1.ConsumeRequest
		var more bool
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			more = true
		case req, more = <-asked:
		}
		if !more || req.GetLeave() {
			return nil
		}
		res := &strandmqv1.ConsumeResponse{}
		credits += int(req.GetCredits())
		for _, x := range req.GetSettlements() {
			for n := x.GetFirst(); n <= max(x.GetFirst(), x.GetLast()); n++ {
				token, ok := tokens[n]
				delete(tokens, n)
				if !ok {
					return fmt.Errorf("nobody holds delivery %d", n)
				}
				out, err := session.Settle(ctx, []Settlement{{Token: token, Nack: x.GetAction() == strandmqv1.SettleAction_SETTLE_ACTION_NACK}})
				if err != nil {
					return err
				}
				r := &strandmqv1.SettleRunResult{First: n, Last: n, DeadLettered: out[0] == check.Buried}
				if out[0] == check.Stale {
					r.Problem = &strandmqv1.Problem{Reason: "STALE_DELIVERY", Message: "stale"}
				}
				res.Settled = append(res.Settled, r)
			}
		}
		if credits > 0 {
			got, err := session.Receive(ctx, min(credits, 50), 0)
			if err != nil {
				return err
			}
			if len(got) > 0 {
				b := &strandmqv1.DeliveryBatch{FirstNumber: number + 1, FirstOffset: got[0].Place.Offset, DeadlineMs: got[0].Deadline}
				var recs []record.Record
				for i, d := range got {
					number++
					tokens[number] = d.Token
					recs = append(recs, record.Record{HasKey: true, Key: []byte(d.Key), Body: d.Body})
					b.Attempts = append(b.Attempts, d.Attempt)
					if i > 0 {
						b.OffsetSteps = append(b.OffsetSteps, uint32(d.Place.Offset-got[i-1].Place.Offset))
					}
				}
				b.Records = record.Append(nil, record.Meta{}, recs)
				credits -= len(got)
				res.Batches = append(res.Batches, b)
			}
		}
		if len(res.GetBatches())+len(res.GetSettled()) > 0 {
			if err := s.Send(res); err != nil {
				return err
			}
		}
	}
}

// A frame is filled again and again, and says what it was given each time.
func TestOutbox(t *testing.T) {
	recs := []record.Record{{HasKey: true, Key: []byte("k"), Body: []byte("body"), ID: "i"}, {Body: []byte("other")}}
	m := record.Meta{ProducerID: "p", FirstSequence: 3}
	first := &strandmqv1.PublishStreamRequest{Batches: []*strandmqv1.PublishBatch{
		{Topic: "topic", Partition: 5, RecordBatch: record.Append(nil, m, recs)},
		{RecordBatch: record.Append(nil, record.Meta{}, recs)},
	}}
	second := &strandmqv1.PublishStreamRequest{Batches: []*strandmqv1.PublishBatch{
		{Topic: "other", Partition: 1, RecordBatch: record.Append(nil, m, recs[:1])},
	}}
	var o outbox
	for range 2 {
		for _, want := range []*strandmqv1.PublishStreamRequest{first, second} {
			if o.size != 0 || len(o.frame.GetBatches()) != 0 {
				t.Fatalf("a frame of %d bytes and %d batches, and it was cleared", o.size, len(o.frame.GetBatches()))
			}
			if want == first {
				o.add("topic", 5, m, recs, false)
				o.add("", 0, record.Meta{}, recs, false)
			} else {
				o.add("other", 1, m, recs[:1], false)
			}
			if d := cmp.Diff(want, &o.frame, protocmp.Transform()); d != "" {
				t.Error(d)
			}
			if whole := proto.Size(&o.frame); o.size > whole || o.size < whole-16 {
				t.Errorf("its size is told as %d, and is %d", o.size, whole)
			}
			o.clear()
		}
	}
	var readable outbox
	readable.add("t", 0, m, recs[:1], true)
	want := &strandmqv1.PublishStreamRequest{Batches: []*strandmqv1.PublishBatch{
		{Topic: "t", ProducerId: "p", FirstSequence: 3, Messages: []*strandmqv1.Message{
			{KeyKind: &strandmqv1.Message_Key{Key: "k"}, Id: "i", Body: &strandmqv1.Message_Bytes{Bytes: []byte("body")}},
		}},
	}}
	if d := cmp.Diff(want, &readable.frame, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

func TestReadAnswers(t *testing.T) {
	no := &strandmqv1.Problem{Reason: "TOPIC_FULL"}
	for _, c := range []struct {
		sent    *strandmqv1.PublishBatchResult
		stored  int
		problem *strandmqv1.Problem
	}{
		{&strandmqv1.PublishBatchResult{Batch: 300, Run: &strandmqv1.ReceiptRun{Partition: 3, FirstOffset: 1 << 40, Count: 500}}, 500, nil},
		{&strandmqv1.PublishBatchResult{Batch: 1, Problem: no}, 0, no},
		{&strandmqv1.PublishBatchResult{Batch: 2, Results: []*strandmqv1.PublishResult{
			{Receipt: &strandmqv1.Receipt{Offset: 7}}, {Problem: no}, {Receipt: &strandmqv1.Receipt{Offset: 8, Duplicate: true}},
		}}, 2, no},
	} {
		stored, problem := readAnswer(c.sent)
		if stored != c.stored || problem != c.problem {
			t.Errorf("%v: %d stored, %v", c.sent, stored, problem)
		}
	}
	for _, c := range []struct{ first, last, wantLast uint64 }{
		{5, 9, 9}, {5, 0, 5}, {5, 5, 5}, {1 << 40, 1<<40 + mostInHand - 1, 1<<40 + mostInHand - 1},
		{0, 0, 0}, {0, 4, 0}, {5, 4, 0}, {1, mostInHand + 1, 0}, {1, 1<<64 - 1, 0},
	} {
		first, last, err := settledRun(&strandmqv1.SettleRunResult{First: c.first, Last: c.last})
		if c.wantLast == 0 && !errors.Is(err, errFrame) || c.wantLast != 0 && (err != nil || first != c.first || last != c.wantLast) {
			t.Errorf("%d to %d: %d to %d, %v", c.first, c.last, first, last, err)
		}
	}
	for i, want := range []uint32{300, 1, 9} {
		if n := numberOf([]uint32{300, 1}, i, 9); n != want {
			t.Errorf("number %d is %d, want %d", i, n, want)
		}
	}
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
