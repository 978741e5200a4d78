package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// load drives a broker for BenchmarkMemory, over streams and with record batches, so
// that the client takes little beside it.
type load struct {
	b       testing.TB
	api     *clients
	publish strandmqv1connect.PublishServiceClient
	consume strandmqv1connect.ConsumeServiceClient
}

func newLoad(b testing.TB, url string) *load {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &p}
	b.Cleanup(tr.CloseIdleConnections)
	c := &http.Client{Transport: tr}
	return &load{b, dial(url), strandmqv1connect.NewPublishServiceClient(c, url, connect.WithGRPC()), strandmqv1connect.NewConsumeServiceClient(c, url, connect.WithGRPC())}
}

func (l *load) check(err error) {
	l.b.Helper()
	if err != nil {
		l.b.Fatal(err)
	}
}

func (l *load) topic(name string, partitions uint32) {
	_, err := l.api.topics.CreateTopic(l.b.Context(), &strandmqv1.CreateTopicRequest{Topic: name, Partitions: partitions})
	l.check(err)
}

// group makes a group that waits long for its members and never gives up.
func (l *load) group(topic, name string) {
	_, err := l.api.groups.CreateGroup(l.b.Context(), &strandmqv1.CreateGroupRequest{
		Topic: topic, Group: name, Policy: &strandmqv1.GroupPolicy{MaxAttempts: new(uint32(0)), AckDeadlineMs: new(int64(3_600_000))},
	})
	l.check(err)
}

// fill publishes 256 MiB that nobody takes, so that the store has all the memory
// tables that it will, and the log's tail in memory is as long as it gets.
func (l *load) fill() {
	l.topic("fill", 8)
	f := l.feed("fill")
	for k := range 16 << 10 {
		f.add(fmt.Sprint("key-", k), 16<<10)
	}
	f.close()
}

func (l *load) counts(topic, group string) *strandmqv1.GroupCounts {
	res, err := l.api.groups.DescribeGroup(l.b.Context(), &strandmqv1.DescribeGroupRequest{Topic: topic, Group: group})
	l.check(err)
	return res.GetCounts()
}

// feed publishes to a topic on one stream, in record batches, 64 of which may wait
// for their answers.
type feed struct {
	*load
	topic  string
	stream *connect.BidiStreamForClientSimple[strandmqv1.PublishStreamRequest, strandmqv1.PublishStreamResponse]
	route  *strandmqv1.RouteResponse
	parts  [][]record.Record
	bytes  []int
	body   []byte
	room   chan struct{}
	done   chan error
}

func (l *load) feed(topic string) *feed {
	r, err := l.publish.Route(l.b.Context(), &strandmqv1.RouteRequest{Topic: topic})
	l.check(err)
	s, err := l.publish.PublishStream(l.b.Context())
	l.check(err)
	f := &feed{load: l, topic: topic, stream: s, route: r, body: make([]byte, 1<<20), room: make(chan struct{}, 64), done: make(chan error, 1)}
	n := len(r.GetPartitions())
	f.parts, f.bytes = make([][]record.Record, n), make([]int, n)
	x := uint64(1)
	for i := range f.body { // nothing compresses it
		x = keyspace.Mix(x)
		f.body[i] = byte(x)
	}
	go f.receive() // ends with the stream
	return f
}

// add publishes a message, with others of its partition.
func (f *feed) add(key string, size int) {
	hash := keyspace.HashString(f.route.GetSeed(), key)
	for i, p := range f.route.GetPartitions() {
		if p.GetHashFirst() > hash || hash > p.GetHashLast() {
			continue
		}
		f.parts[i] = append(f.parts[i], record.Record{KeyHash: hash, HasKey: true, Key: []byte(key), Body: f.body[:size]})
		if f.bytes[i] += size; f.bytes[i] >= 64<<10 || len(f.parts[i]) == 500 {
			f.send(i)
		}
		return
	}
	f.b.Fatalf("no partition for key %s", key)
}

// send sends what there is for a partition.
func (f *feed) send(i int) {
	f.room <- struct{}{}
	err := f.stream.Send(&strandmqv1.PublishStreamRequest{Batches: []*strandmqv1.PublishBatch{{
		Topic: f.topic, Partition: uint32(i), RecordBatch: record.Append(nil, record.Meta{}, f.parts[i]),
	}}})
	if err != nil {
		f.b.Fatal(<-f.done) // the answers say why
	}
	f.parts[i], f.bytes[i] = f.parts[i][:0], 0
}

// receive takes answers until there are no more.
func (f *feed) receive() {
	for {
		res, err := f.stream.Receive()
		if errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			for _, r := range res.GetResults() {
				if r.GetRun() == nil {
					err = fmt.Errorf("a batch was not stored: %v", r)
				}
				<-f.room
			}
		}
		if err != nil || res == nil {
			f.done <- err
			return
		}
	}
}

// close publishes the rest and waits until all of it is stored.
func (f *feed) close() {
	for i := range f.parts {
		if len(f.parts[i]) > 0 {
			f.send(i)
		}
	}
	f.check(f.stream.CloseRequest())
	f.check(<-f.done)
}

// taker is a member on one stream, with at most window messages out.
type taker struct {
	*load
	stream *connect.BidiStreamForClientSimple[strandmqv1.ConsumeRequest, strandmqv1.ConsumeResponse]
	window int
	credit int
}

// delivery is what a taker shows of one.
type delivery struct {
	number, offset uint64
	key, body      []byte
}

func (d *delivery) settle(a strandmqv1.SettleAction, delayMs int64) *strandmqv1.SettleRun {
	return &strandmqv1.SettleRun{First: d.number, Last: d.number, Action: a, DelayMs: delayMs}
}

func (l *load) take(topic, group string, window int) *taker {
	s, err := l.consume.Consume(l.b.Context())
	l.check(err)
	l.check(s.Send(&strandmqv1.ConsumeRequest{Open: &strandmqv1.ConsumeOpen{Topic: topic, Group: group, Member: "m", RecordBatches: true}}))
	return &taker{load: l, stream: s, window: window}
}

// run settles n deliveries as fn says, and returns when that is confirmed. Those for
// which it says nothing stay out.
func (m *taker) run(n int, fn func(*delivery) *strandmqv1.SettleRun) {
	done, confirmed := 0, 0
	var runs []*strandmqv1.SettleRun
	for {
		more := max(0, min(m.window, n-done)-m.credit)
		m.credit += more
		// A frame has at most 1,000 settlements.
		for first := true; first || len(runs) > 0; first = false {
			k := min(len(runs), 1000)
			m.check(m.stream.Send(&strandmqv1.ConsumeRequest{Credits: uint32(more), Settlements: runs[:k]}))
			runs, more = runs[k:], 0
		}
		if done == n && confirmed == n {
			return
		}
		res, err := m.stream.Receive()
		m.check(err)
		for _, r := range res.GetSettled() {
			if r.GetProblem() != nil {
				m.b.Fatal(r.GetProblem())
			}
			confirmed += int(max(r.GetLast(), r.GetFirst()) - r.GetFirst() + 1)
		}
		runs = nil
		for _, batch := range res.GetBatches() {
			v, _, err := record.View(batch.GetRecords())
			m.check(err)
			d := delivery{number: batch.GetFirstNumber(), offset: batch.GetFirstOffset()}
			steps := batch.GetOffsetSteps()
			v.Each(func(i int, x record.Raw) bool {
				if i > 0 {
					step := uint64(1)
					if len(steps) > 0 {
						step = uint64(steps[i-1])
					}
					d.number, d.offset = d.number+1, d.offset+step
				}
				d.key, d.body = x.Key(), x.Body()
				m.credit--
				run := fn(&d)
				if run == nil {
					return true
				}
				done++
				if k := len(runs) - 1; k >= 0 && runs[k].GetLast()+1 == run.GetFirst() && runs[k].GetAction() == run.GetAction() && runs[k].GetDelayMs() == run.GetDelayMs() {
					runs[k].Last = run.GetLast()
				} else {
					runs = append(runs, run)
				}
				return true
			})
		}
	}
}
