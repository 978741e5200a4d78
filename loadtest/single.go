package loadtest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/duplex"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// single publishes one message at a time, each when the one before it has its
// receipt, over a connection of its own.
type single struct {
	d     *drive
	n     int
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
	s := &single{d: d, n: n}
	s.lanes, s.lane = d.lanes.fork(uint32(n))
	if d.shape.Unary {
		way, err := dialUnary(ctx, d.server, d.topic)
		if err != nil {
			return nil, err
		}
		s.way = way
		return s, nil
	}
	conn, err := duplex.Dial(ctx, d.server, publishStream)
	if err != nil {
		return nil, explainStream(err, d.server)
	}
	way := &streamSingle{s: conn, topic: d.topic, partition: s.lane.partition, buf: make([]byte, duplex.Headroom, 4096)}
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
			return explainStream(err, s.d.server)
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
	s         *duplex.Stream
	topic     string // named once
	partition uint32
	producer  string
	number    uint64
	buf       []byte
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
	w.buf = appendRecordBatch(w.buf[:duplex.Headroom], topic, w.partition, m, w.one[:])
	if err := w.s.Send(w.buf); err != nil {
		return err
	}
	_ = w.s.SetReadDeadline(time.Now().Add(answerTime))
	b, err := w.s.Receive()
	if err != nil {
		return err
	}
	f := wireFields{b: b}
	for f.next() {
		if f.num != fieldResults {
			continue
		}
		a, err := readAnswer(f.v)
		switch {
		case err != nil:
			return err
		case a.problem != nil:
			r := &Refusal{}
			refuse(r, a.problem)
			return r
		case a.batch != w.number || a.stored != 1:
			return fmt.Errorf("the broker answered for %d messages of batch %d, and 1 of batch %d was sent", a.stored, a.batch, w.number)
		}
		return nil
	}
	return errors.Join(f.end(), fmt.Errorf("%w: it has no answer", errFrame))
}

// unarySingle sends by unary calls over HTTP/1.1 in protobuf, as a readable
// message. Requests are written by hand: a general client would take as much
// processor time as the broker.
type unarySingle struct {
	conn net.Conn
	in   *bufio.Reader
	head []byte
	req  strandmqv1.PublishRequest
	msg  strandmqv1.Message
	kind strandmqv1.Message_Key
	body strandmqv1.Message_Bytes
	out  []byte
	raw  []byte
	buf  bytes.Buffer
}

func dialUnary(ctx context.Context, server, topic string) (*unarySingle, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" || u.Port() == "" {
		return nil, fmt.Errorf("%q: this shape needs an address such as http://127.0.0.1:7171", server)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, explainStream(err, server)
	}
	w := &unarySingle{conn: conn, in: bufio.NewReaderSize(conn, 4096)}
	w.head = fmt.Appendf(nil, "POST %s/strandmq.v1.PublishService/Publish HTTP/1.1\r\nHost: %s\r\nContent-Type: application/proto\r\nConnect-Protocol-Version: 1\r\nContent-Length: ", u.Path, u.Host)
	w.msg.KeyKind, w.msg.Body = &w.kind, &w.body
	w.req.Topic, w.req.Messages = topic, []*strandmqv1.Message{&w.msg}
	return w, nil
}

func (w *unarySingle) close() { _ = w.conn.Close() }

func (w *unarySingle) send(r record.Record) (err error) {
	w.kind.Key, w.body.Bytes, w.msg.Id = string(r.Key), r.Body, r.ID
	if w.raw, err = (proto.MarshalOptions{}).MarshalAppend(w.raw[:0], &w.req); err != nil {
		return err
	}
	w.out = append(w.out[:0], w.head...)
	w.out = strconv.AppendInt(w.out, int64(len(w.raw)), 10)
	w.out = append(w.out, "\r\n\r\n"...)
	w.out = append(w.out, w.raw...)
	_ = w.conn.SetDeadline(time.Now().Add(answerTime))
	if _, err := w.conn.Write(w.out); err != nil {
		return err
	}
	res, err := http.ReadResponse(w.in, nil)
	if err != nil {
		return err
	}
	w.buf.Reset()
	_, err = w.buf.ReadFrom(io.LimitReader(res.Body, 1<<20))
	err = errors.Join(err, res.Body.Close())
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return duplex.Refused(strconv.Itoa(res.StatusCode), w.buf.Bytes())
	}
	var answer strandmqv1.PublishResponse
	if err := proto.Unmarshal(w.buf.Bytes(), &answer); err != nil {
		return err
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
