package loadtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// single publishes one message at a time, each when the one before it has its
// receipt, over a connection of its own.
type single struct {
	d     *drive
	n     int
	at    string // the URL of its node
	lane  *lane
	lanes *lanes // its own
	way   singleWay

	published atomic.Uint64
	measured  atomic.Uint64
}

// singleWay sends one message and waits for its receipt.
type singleWay interface {
	send(r record.Record) error
	close()
}

func (d *drive) newSingle(ctx context.Context, n int) (*single, error) {
	s := &single{d: d, n: n, at: d.server}
	if i := n % (len(d.c.Others) + 1); i > 0 {
		s.at = d.c.Others[i-1]
	}
	s.lanes, s.lane = d.lanes.fork(uint32(n))
	if d.shape.Unary {
		s.way = newUnarySingle(s.at, d.topic)
		return s, nil
	}
	conn, err := openStream(ctx, s.at, publishStream)
	if err != nil {
		return nil, explainStream(err, s.at)
	}
	way := &streamSingle{s: conn, topic: d.topic, partition: s.lane.partition}
	if d.c.Sequences {
		way.producer = fmt.Sprintf("%s-%d", d.producer, n)
	}
	s.way = way
	return s, nil
}

func (s *single) close() { s.way.close() }

func (s *single) work(stop <-chan struct{}) error {
	defer s.way.close()
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		at := s.d.since()
		if err := s.way.send(s.lanes.records(s.lane, 1, at, !s.d.c.NoIDs)[0]); err != nil {
			return explainStream(err, s.at)
		}
		now := s.d.since()
		s.published.Add(1)
		if s.d.inFigures(now) {
			s.measured.Add(1)
		}
		s.d.publish.recordMany(s.n, s.d.inFigures(at), now-at, 1)
	}
}

// streamSingle sends over a stream, as a record batch of one.
type streamSingle struct {
	s         *stream
	topic     string // named once
	partition uint32
	producer  string
	number    uint64
	out       outbox
	answer    strandmqv1.PublishStreamResponse
	one       [1]record.Record
}

func (w *streamSingle) close() { _ = w.s.Close() }

func (w *streamSingle) send(r record.Record) error {
	w.number++
	w.one[0] = r
	topic := w.topic
	if w.number > 1 {
		topic = ""
	}
	var m record.Meta
	if w.producer != "" {
		m = record.Meta{ProducerID: w.producer, FirstSequence: w.number - 1}
	}
	w.out.clear()
	w.out.add(topic, w.partition, m, w.one[:], false)
	if err := w.s.Send(&w.out.frame); err != nil && !errors.Is(err, errCut) {
		return err
	}
	w.s.Patience(answerTime)
	if err := w.s.Receive(&w.answer); err != nil {
		return err
	}
	if len(w.answer.GetResults()) != 1 {
		return fmt.Errorf("%w: it has %d answers, and one batch was sent", errFrame, len(w.answer.GetResults()))
	}
	a := w.answer.GetResults()[0]
	stored, problem := readAnswer(a)
	switch {
	case problem != nil:
		r := &Refusal{}
		refuse(r, problem)
		return r
	case a.GetBatch() != w.number || stored != 1:
		return fmt.Errorf("the broker answered for %d messages of batch %d, and 1 of batch %d was sent", stored, a.GetBatch(), w.number)
	}
	return nil
}

// unarySingle sends by unary calls over HTTP/1.1 in protobuf, as a readable
// message, on a connection of its own.
type unarySingle struct {
	server string
	call   strandmqv1connect.PublishServiceClient
	idle   func()
	req    strandmqv1.PublishRequest
	msg    strandmqv1.Message
	kind   strandmqv1.Message_Key
	body   strandmqv1.Message_Bytes
}

func newUnarySingle(server, topic string) *unarySingle {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxConnsPerHost, transport.ForceAttemptHTTP2 = 1, false
	w := &unarySingle{server: server, idle: transport.CloseIdleConnections}
	w.call = newPublishClient(&http.Client{Transport: transport}, server)
	w.msg.KeyKind, w.msg.Body = &w.kind, &w.body
	w.req.Topic, w.req.Messages = topic, []*strandmqv1.Message{&w.msg}
	return w
}

func (w *unarySingle) close() { w.idle() }

func (w *unarySingle) send(r record.Record) error {
	w.kind.Key, w.body.Bytes, w.msg.Id = string(r.Key), r.Body, r.ID
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	answer, err := w.call.Publish(ctx, &w.req)
	if err != nil {
		return explain(err, w.server)
	}
	if n := len(answer.GetResults()); n != 1 {
		return fmt.Errorf("the broker answered for %d of 1 messages", n)
	}
	if p := answer.GetResults()[0].GetProblem(); p != nil {
		r := &Refusal{}
		refuse(r, p)
		return r
	}
	return nil
}
