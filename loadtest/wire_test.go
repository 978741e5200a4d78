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

// wired puts the API in front of a textbook, by the generated code: what the
// load test writes by hand is read by that, and the other way round.
type wired struct {
	strandmqv1connect.UnimplementedPublishServiceHandler
	strandmqv1connect.UnimplementedConsumeServiceHandler
	strandmqv1connect.UnimplementedTopicServiceHandler
	strandmqv1connect.UnimplementedGroupServiceHandler
	strandmqv1connect.UnimplementedDeadLetterServiceHandler
	strandmqv1connect.UnimplementedNodeServiceHandler

	b       *textbook
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
	t.Cleanup(func() { _ = s.Close(); <-done })
	return "http://" + l.Addr().String()
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
		return &strandmqv1.DescribeTopicResponse{}, nil
	}
	return nil, problem("UNKNOWN_TOPIC", 0)
}

func (w *wired) CreateTopic(ctx context.Context, r *strandmqv1.CreateTopicRequest) (*strandmqv1.CreateTopicResponse, error) {
	_, err := w.b.CreateTopic(ctx, r.GetTopic(), 1)
	return &strandmqv1.CreateTopicResponse{}, err
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
	// A retry is recognised by its ids, as a broker does.
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
			snap := w.breakAt > 0 && number > w.breakAt && !w.broken
			w.broken = w.broken || snap
			w.mu.Unlock()
			if snap { // in the middle of a frame; what was stored of it has no answer
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
	tick := time.NewTicker(time.Millisecond) // the textbook tells nobody of what is new
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

// What is written by hand is what the generated code writes.
func TestFrames(t *testing.T) {
	recs := []record.Record{{HasKey: true, Key: []byte("k"), Body: []byte("body"), ID: "i"}, {Body: []byte("other")}}
	m := record.Meta{ProducerID: "p", FirstSequence: 3}
	b := appendRecordBatch(nil, "topic", 5, m, recs)
	b = appendRecordBatch(b, "", 0, record.Meta{}, recs)
	b = appendMessages(b, "other", record.Meta{}, recs[:1])
	var got strandmqv1.PublishStreamRequest
	if err := proto.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	want := &strandmqv1.PublishStreamRequest{Batches: []*strandmqv1.PublishBatch{
		{Topic: "topic", Partition: 5, RecordBatch: record.Append(nil, m, recs)},
		{RecordBatch: record.Append(nil, record.Meta{}, recs)},
		{Topic: "other", Messages: []*strandmqv1.Message{{KeyKind: &strandmqv1.Message_Key{Key: "k"}, Id: "i", Body: &strandmqv1.Message_Bytes{Bytes: []byte("body")}}}},
	}}
	if d := cmp.Diff(want, &got, protocmp.Transform()); d != "" {
		t.Error(d)
	}

	b = appendCredits(nil, 300)
	b = appendSettleRun(b, 1, 1000, strandmqv1.SettleAction_SETTLE_ACTION_ACK, "")
	b = appendSettleRun(b, 1<<40, 1<<41, strandmqv1.SettleAction_SETTLE_ACTION_NACK, "why")
	var consume strandmqv1.ConsumeRequest
	if err := proto.Unmarshal(b, &consume); err != nil {
		t.Fatal(err)
	}
	wantConsume := &strandmqv1.ConsumeRequest{Credits: 300, Settlements: []*strandmqv1.SettleRun{
		{First: 1, Last: 1000, Action: strandmqv1.SettleAction_SETTLE_ACTION_ACK},
		{First: 1 << 40, Last: 1 << 41, Action: strandmqv1.SettleAction_SETTLE_ACTION_NACK, Reason: "why"},
	}}
	if d := cmp.Diff(wantConsume, &consume, protocmp.Transform()); d != "" {
		t.Error(d)
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

func TestReadFrames(t *testing.T) {
	no := &strandmqv1.Problem{Reason: "TOPIC_FULL"}
	for _, c := range []struct {
		sent *strandmqv1.PublishBatchResult
		want batchAnswer
	}{
		{&strandmqv1.PublishBatchResult{Batch: 300, Run: &strandmqv1.ReceiptRun{Partition: 3, FirstOffset: 1 << 40, Count: 500}}, batchAnswer{batch: 300, stored: 500}},
		{&strandmqv1.PublishBatchResult{Batch: 1, Problem: no}, batchAnswer{batch: 1, problem: no}},
		{&strandmqv1.PublishBatchResult{Batch: 2, Results: []*strandmqv1.PublishResult{
			{Receipt: &strandmqv1.Receipt{Offset: 7}}, {Problem: no}, {Receipt: &strandmqv1.Receipt{Offset: 8, Duplicate: true}},
		}}, batchAnswer{batch: 2, stored: 2, problem: no}},
	} {
		got, err := readAnswer(encode(t, c.sent))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, got, cmp.AllowUnexported(batchAnswer{}), protocmp.Transform()); d != "" {
			t.Error(d)
		}
	}
	d, err := readDeliveryBatch(encode(t, &strandmqv1.DeliveryBatch{
		Partition: 2, FirstNumber: 1 << 33, Records: []byte("r"), FirstOffset: 9, OffsetSteps: []uint32{300, 1}, Attempts: []uint32{1, 2, 3},
		Fences: []uint64{1}, FirstFence: 4, HandedMs: 5, DeadlineMs: 6, FirstSeenMs: []int64{7}, PublishMs: []int64{8}, Replayed: []uint32{1},
	}))
	if err != nil {
		t.Fatal(err)
	}
	var steps, attempts []uint64
	for range 4 {
		s, err := packed(&d.steps, 1)
		a, err2 := packed(&d.attempts, 1)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		steps, attempts = append(steps, s), append(attempts, a)
	}
	if d.partition != 2 || d.firstNumber != 1<<33 || string(d.records) != "r" || d.firstOffset != 9 || d.deadline != 6 ||
		!cmp.Equal(steps, []uint64{300, 1, 1, 1}) || !cmp.Equal(attempts, []uint64{1, 2, 3, 1}) {
		t.Errorf("%+v, %v, %v", d, steps, attempts)
	}
	run, err := readSettledRun(encode(t, &strandmqv1.SettleRunResult{First: 5, Last: 9, DeadLettered: true, Problem: no}))
	if err != nil || run.first != 5 || run.last != 9 || !run.dead || run.problem.GetReason() != "TOPIC_FULL" {
		t.Errorf("%+v, %v", run, err)
	}
	if run, err = readSettledRun(encode(t, &strandmqv1.SettleRunResult{First: 5})); err != nil || run.last != 5 {
		t.Errorf("%+v, %v", run, err)
	}
	for _, bad := range []*strandmqv1.SettleRunResult{{}, {First: 5, Last: 4}} {
		if _, err := readSettledRun(encode(t, bad)); !errors.Is(err, errFrame) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// Whatever bytes come, they are read or refused.
func FuzzReadFrames(f *testing.F) {
	f.Add(encode(f, &strandmqv1.PublishBatchResult{Batch: 300, Run: &strandmqv1.ReceiptRun{Count: 500}, Results: []*strandmqv1.PublishResult{{}}}))
	f.Add(encode(f, &strandmqv1.DeliveryBatch{Partition: 2, Records: []byte("r"), OffsetSteps: []uint32{300, 1}}))
	f.Add(encode(f, &strandmqv1.SettleRunResult{First: 5, Last: 9, Problem: &strandmqv1.Problem{}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := readAnswer(b)
		var want strandmqv1.PublishBatchResult
		if wrong := proto.Unmarshal(b, &want); wrong == nil && err != nil {
			t.Errorf("%x: %v", b, err)
		} else if wrong == nil && a.batch != want.GetBatch() {
			t.Errorf("%x: batch %d, want %d", b, a.batch, want.GetBatch())
		}
		if d, err := readDeliveryBatch(b); err == nil {
			for range 3 {
				_, _ = packed(&d.steps, 1)
			}
		}
		_, _ = readSettledRun(b)
	})
}
