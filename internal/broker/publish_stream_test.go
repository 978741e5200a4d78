package broker

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Batches of both kinds, pipelined, are answered once each and stored in the
// order sent, with every client.
func TestPublishStream(t *testing.T) {
	b := start(t, t.TempDir())
	admin := newAPI(t, b.URL())
	for name, open := range publishings(t, b) {
		t.Run(name, func(t *testing.T) {
			topic := "t-" + name
			admin.topic(t, topic, 2)
			r := admin.route(t, topic)
			s := open(ctx(t))
			const n = 300
			var reads sync.WaitGroup
			var got map[uint64]*strandmqv1.PublishBatchResult
			var failed error
			reads.Go(func() { got, _, failed = rest(s) })
			for i := range n {
				body := fmt.Sprint(i)
				batch := &strandmqv1.PublishBatch{Messages: []*strandmqv1.Message{msg("k", body), msg("other", body)}}
				if i == 0 {
					batch.Topic = topic
				}
				if i%2 == 1 {
					batch = &strandmqv1.PublishBatch{Partition: partitionOf(r, "k"), RecordBatch: pack(r, record.Meta{}, keyed("k", body))}
				}
				sends(t, s, batch)
			}
			if err := s.CloseRequest(); err != nil {
				t.Fatal(err)
			}
			reads.Wait()
			if failed != nil || len(got) != n {
				t.Fatalf("%d answers, then %v", len(got), failed)
			}
			last := int64(-1)
			for i := range uint64(n) {
				x := got[i+1]
				at := int64(x.GetRun().GetFirstOffset())
				if i%2 == 0 {
					at = int64(x.GetResults()[0].GetReceipt().GetOffset())
				}
				if x.GetProblem() != nil || at <= last {
					t.Fatalf("batch %d: %v, after offset %d", i+1, x, last)
				}
				last = at
			}
			admin.group(t, topic, "g", nil)
			for i := range 3 {
				d := admin.one(t, topic, "g", "m")
				for d.GetMessage().GetKey() != "k" {
					admin.done(t, topic, "g", d, ack, "")
					d = admin.one(t, topic, "g", "m")
				}
				if d.GetMessage().GetText() != fmt.Sprint(i) {
					t.Fatalf("message %d is %v", i, d.GetMessage())
				}
				admin.done(t, topic, "g", d, ack, "")
			}
			if got := metric(t, b, fmt.Sprintf("strandmq_messages_published_total{topic=%q}", topic)); got != n/2*3 {
				t.Errorf("%v messages were counted", got)
			}
			if got := metric(t, b, fmt.Sprintf("strandmq_publish_duration_seconds_count{topic=%q}", topic)); got != n {
				t.Errorf("%v batches were timed", got)
			}
		})
	}
}

// What is wrong with one batch is told of that one, and its neighbours are
// stored.
func TestPublishStreamRefusesAlone(t *testing.T) {
	b := start(t, t.TempDir())
	a := streamAPI(t, b)
	a.topic(t, "t", 2)
	r := a.route(t, "t")
	s := a.publishStream(t, ctx(t))
	bad := pack(r, record.Meta{}, keyed("k", "x"))
	bad[len(bad)-1] ^= 1
	good := &strandmqv1.PublishBatch{Topic: "t", Partition: partitionOf(r, "k"), RecordBatch: pack(r, record.Meta{}, keyed("k", "x"))}
	sends(t, s,
		&strandmqv1.PublishBatch{Messages: []*strandmqv1.Message{msg("k", "x")}}, // no topic yet
		good,
		&strandmqv1.PublishBatch{RecordBatch: bad, Partition: partitionOf(r, "k")},
		&strandmqv1.PublishBatch{Topic: "nowhere", Messages: []*strandmqv1.Message{msg("k", "x")}},
		&strandmqv1.PublishBatch{RecordBatch: pack(r, record.Meta{}, keyed("k", "x")), Partition: 1 - partitionOf(r, "k")},
		&strandmqv1.PublishBatch{},
		&strandmqv1.PublishBatch{Messages: []*strandmqv1.Message{msg("", "x"), {KeyKind: &strandmqv1.Message_Key{}}, msg("k", "z")}},
		&strandmqv1.PublishBatch{Messages: make([]*strandmqv1.Message, 1001)},
	)
	sends(t, s)
	if err := s.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	got, _, err := rest(s)
	if err != nil || len(got) != 8 {
		t.Fatalf("%d answers, %v", len(got), err)
	}
	for i, want := range map[uint64]string{1: "BAD_VALUE", 2: "", 3: "BAD_RECORD_BATCH", 4: "UNKNOWN_TOPIC", 5: "STALE_ROUTE", 6: "BAD_VALUE", 7: "", 8: "BATCH_TOO_LARGE"} {
		if p := got[i].GetProblem(); p.GetReason() != want {
			t.Errorf("batch %d: %v, want %s", i, p, want)
		}
		if now := got[i].GetRoute(); (now != nil) != (want == "STALE_ROUTE") {
			t.Errorf("batch %d: route %v", i, now)
		}
	}
	if rs := got[7].GetResults(); len(rs) != 3 || rs[0].GetReceipt() == nil || rs[1].GetProblem().GetReason() != "BAD_KEY" || rs[2].GetReceipt() == nil {
		t.Errorf("batch 7: %v", got[7])
	}
	if n := len(logOf(t, b, "t", 0)) + len(logOf(t, b, "t", 1)); n < 2 || n > 3 {
		t.Errorf("%d batches are stored", n)
	}

	// Frames that cannot be read end the stream, with a reason.
	s = a.publishStream(t, ctx(t))
	sends(t, s, good)
	sends(t, s, make([]*strandmqv1.PublishBatch, 1001)...)
	got, _, err = rest(s)
	wantReason(t, err, "BATCH_TOO_LARGE")
	if got[1].GetRun() == nil {
		t.Errorf("the batch before: %v", got)
	}
	s = a.publishStream(t, ctx(t))
	sends(t, s, &strandmqv1.PublishBatch{RecordBatch: make([]byte, 9<<20)})
	_, _, err = rest(s)
	wantReason(t, err, "REQUEST_TOO_LARGE")
}

// A refusal that passes with time ends the stream, behind the answers to what
// was stored, and nothing that came later is stored.
func TestPublishStreamEndsAtARefusalThatPasses(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir())
	a := streamAPI(t, b)
	a.topic(t, "t", 1)
	s := a.publishStream(t, ctx(t))
	batch := func() *strandmqv1.PublishBatch {
		return &strandmqv1.PublishBatch{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "x")}}
	}
	sends(t, s, batch())
	if res, err := s.Receive(); err != nil || res.GetResults()[0].GetProblem() != nil {
		t.Fatalf("before: %v, %v", res, err)
	}
	b.disk.mu.Lock()
	b.disk.room = func() (logstore.Room, error) { return logstore.Room{Total: 1 << 40, Free: 0}, nil }
	b.disk.mu.Unlock()
	b.disk.look()
	for range 50 {
		if s.Send(&strandmqv1.PublishStreamRequest{Batches: []*strandmqv1.PublishBatch{batch(), batch()}}) != nil {
			break
		}
	}
	got, _, err := rest(s)
	wantReason(t, err, "DISK_FULL")
	if len(got) != 1 || got[2].GetProblem().GetReason() != "DISK_FULL" || got[2].GetProblem().GetRetryAfterMs() == 0 {
		t.Errorf("answers %v", got)
	}
	if n := len(logOf(t, b, "t", 0)); n != 1 {
		t.Errorf("%d batches are stored, want the first only", n)
	}
}

// A full queue holds the stream back and refuses nothing.
func TestPublishStreamWaitsForRoom(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir(), func(c *Config) { c.Host.PartitionQueueBytes = 1000; c.Host.QueueBytes = 1500 })
	a := streamAPI(t, b)
	a.topic(t, "t", 2)
	r := a.route(t, "t")
	body := strings.Repeat("x", 700)
	var streams sync.WaitGroup
	for i := range 4 {
		streams.Go(func() {
			s := a.publishStream(t, ctx(t))
			key := fmt.Sprint(i)
			streams.Go(func() {
				for range 50 {
					sends(t, s, &strandmqv1.PublishBatch{Topic: "t", Messages: []*strandmqv1.Message{msg(key, body), msg(key+"'", body)}},
						&strandmqv1.PublishBatch{RecordBatch: pack(r, record.Meta{}, keyed(key, body)), Partition: partitionOf(r, key)})
				}
				if err := s.CloseRequest(); err != nil {
					t.Error(err)
				}
			})
			got, _, err := rest(s)
			if err != nil || len(got) != 100 {
				t.Errorf("%d answers, %v", len(got), err)
			}
			for n, x := range got {
				for _, one := range x.GetResults() {
					if one.GetReceipt() == nil {
						t.Errorf("batch %d: %v", n, x)
					}
				}
				if x.GetProblem() != nil {
					t.Errorf("batch %d: %v", n, x)
				}
			}
		})
	}
	streams.Wait()
	if got := metric(t, b, `strandmq_messages_published_total{topic="t"}`); got != 4*150 {
		t.Errorf("%v messages are stored", got)
	}
}

// Streams that are cut at any stage leave whole batches, in order and without
// gaps, and nothing in the broker.
func TestPublishStreamCut(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	path := b.URL() + "/strandmq.v1.PublishService/PublishStream"
	frame := func(n int) []byte {
		r := a.route(t, "t")
		return connectFrame(t, &strandmqv1.PublishStreamRequest{Batches: []*strandmqv1.PublishBatch{
			{Topic: "t", RecordBatch: pack(r, record.Meta{ProducerID: "p", FirstSequence: uint64(2 * n)}, keyed("k", "1"), keyed("k", "2"))},
		}})
	}
	whole := frame(0)
	for _, c := range []struct {
		name string
		send []byte
		read bool // wait for the first answer
	}{
		{"at once", nil, false}, {"in the prefix", whole[:3], false}, {"behind the prefix", whole[:5], false}, {"in a frame", whole[:len(whole)-1], false},
		{"behind a frame", whole, false}, {"behind an answer", frame(1), true}, {"in the frame after", append(frame(2), whole[:20]...), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cutStream(t, path, c.send, c.read)
		})
	}
	eventually(t, "everything is let go of", func() bool { return b.flight.held.Load() == 0 })
	// Whatever was stored is a run from the first sequence on; the next number
	// fits behind it.
	s := streamAPI(t, b).publishStream(t, ctx(t))
	sends(t, s, &strandmqv1.PublishBatch{Topic: "t", ProducerId: "p", FirstSequence: 1, Messages: []*strandmqv1.Message{msg("k", "1"), msg("k", "2"), msg("k", "1"), msg("k", "2"), msg("k", "1"), msg("k", "2")}})
	_ = s.CloseRequest()
	got, _, err := rest(s)
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range got[1].GetResults() {
		if x.GetReceipt() == nil || x.GetReceipt().GetOffset() != uint64(i) {
			t.Fatalf("sequence %d: %v", i+1, x)
		}
	}
}

// cutStream opens a stream of the Connect protocol, sends bytes, waits for the
// beginning of an answer when it shall, and breaks off.
func cutStream(t *testing.T, path string, send []byte, read bool) {
	t.Helper()
	client := httpClient(t, true)
	out, in := io.Pipe()
	cutCtx, cut := context.WithCancel(ctx(t))
	defer cut()
	req, err := http.NewRequestWithContext(cutCtx, http.MethodPost, path, out)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+proto")
	answered := make(chan *http.Response, 1)
	go func() {
		res, err := client.Do(req)
		if err != nil {
			res = nil
		}
		answered <- res
	}()
	if len(send) > 0 {
		if _, err := in.Write(send); err != nil {
			t.Fatal(err)
		}
	}
	if read {
		res := <-answered
		if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		answered <- res
	}
	cut()
	if res := <-answered; res != nil {
		res.Body.Close()
	}
	in.Close()
}

// connectFrame is a message as it goes over a stream of the Connect protocol.
func connectFrame(t *testing.T, m any) []byte {
	t.Helper()
	body, err := protoCodec{}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !is(); {
		if time.Now().After(end) {
			t.Fatalf("in %v it did not come about that %s", soon, what)
		}
		time.Sleep(time.Millisecond) // looks again; nothing tells
	}
}

// A fake caller, to see how much is taken from it.
type fakePublisher struct {
	frames chan *strandmqv1.PublishStreamRequest
	taken  chan struct{}
	answer chan *strandmqv1.PublishStreamResponse // copies
	ctx    context.Context                        //nolint:containedctx // the stream's
}

func (f *fakePublisher) Receive() (*strandmqv1.PublishStreamRequest, error) {
	select {
	case m, ok := <-f.frames:
		if !ok {
			return nil, io.EOF
		}
		f.taken <- struct{}{}
		return m, nil
	case <-f.ctx.Done():
		return nil, f.ctx.Err()
	}
}

func (f *fakePublisher) Send(m *strandmqv1.PublishStreamResponse) error {
	out := &strandmqv1.PublishStreamResponse{}
	for _, r := range m.GetResults() {
		out.Results = append(out.Results, &strandmqv1.PublishBatchResult{Batch: r.GetBatch()})
	}
	select {
	case f.answer <- out:
		return nil
	case <-f.ctx.Done():
		return f.ctx.Err()
	}
}

// A caller that does not read its answers is not read from for long.
func TestPublishStreamBounded(t *testing.T) {
	t.Run("batches", func(t *testing.T) { boundedStream(t, func(c *Config) { c.StreamBatches = 3 }, "x") })
	// An answer that is not read keeps its batch.
	t.Run("bytes", func(t *testing.T) {
		boundedStream(t, func(c *Config) { c.StreamBytes = 64 << 10 }, strings.Repeat("x", 30_000))
	})
}

// boundedStream tests a configuration that has room for three messages.
func boundedStream(t *testing.T, change func(*Config), body string) {
	b := start(t, t.TempDir(), change)
	newAPI(t, b.URL()).topic(t, "t", 1)
	c, cancel := context.WithCancel(ctx(t))
	defer cancel()
	f := newTestFlow(t, b)
	fake := &fakePublisher{frames: make(chan *strandmqv1.PublishStreamRequest, 100), taken: make(chan struct{}, 100), answer: make(chan *strandmqv1.PublishStreamResponse), ctx: c}
	for range 10 {
		fake.frames <- &strandmqv1.PublishStreamRequest{Batches: []*strandmqv1.PublishBatch{{Topic: "t", Messages: []*strandmqv1.Message{msg("k", body)}}}}
	}
	close(fake.frames)
	done := make(chan error, 1)
	go func() { done <- newPublishStream(context.WithValue(c, flowKey{}, f), b, fake).run() }()
	eventually(t, "three are stored", func() bool { return len(logOf(t, b, "t", 0)) == 3 })
	if n := len(fake.taken); n != 3 {
		t.Fatalf("%d frames were taken with no answer read, want 3", n)
	}
	answers, frames := 0, 0
	for answers < 10 {
		m := <-fake.answer
		answers += len(m.GetResults())
		frames++
		if n := len(fake.taken); n > answers+3 {
			t.Fatalf("%d frames were taken with %d answers read", n, answers)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if frames == 10 {
		t.Error("every answer had a frame of its own, though others were there")
	}
}

// A broker that stops answers what it took, and says so.
func TestPublishStreamWhileStopping(t *testing.T) {
	b := start(t, t.TempDir())
	a := streamAPI(t, b)
	a.topic(t, "t", 1)
	s := a.publishStream(t, ctx(t))
	sends(t, s, &strandmqv1.PublishBatch{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "x")}})
	if _, err := s.Receive(); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	_, _, err := rest(s)
	wantReason(t, err, "NOT_READY")
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
}

// A caller that takes nothing, and one whose frame does not arrive, are cut.
func TestSlowPublishers(t *testing.T) {
	t.Parallel()                                                                     // it waits
	b := start(t, t.TempDir(), func(c *Config) { c.TransferTime = 2 * time.Second }) // calls have that time, too
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	out, in := io.Pipe()
	defer in.Close()
	req, err := http.NewRequestWithContext(ctx(t), http.MethodPost, b.URL()+"/strandmq.v1.PublishService/PublishStream", out)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+json")
	var writes sync.WaitGroup
	writes.Go(func() { _, _ = in.Write([]byte{0, 0, 0, 1, 0, '{'}) })
	defer writes.Wait()
	res, err := httpClient(t, true).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(body), "BAD_REQUEST") || !strings.Contains(string(body), "did not arrive") {
		t.Fatalf("%q, %v", body, err)
	}

	// The answers, refusals with words, fill what the connection holds.
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	small := &http.Transport{Protocols: &p, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 1 << 10, MaxReceiveBufferPerConnection: 1 << 16}}
	defer small.CloseIdleConnections()
	s := apiOver(&http.Client{Transport: small}, b.URL()).publishStream(t, ctx(t))
	for {
		if err := s.Send(&strandmqv1.PublishStreamRequest{Batches: make([]*strandmqv1.PublishBatch, 1000)}); err != nil {
			break // it was cut; till then the broker holds it back
		}
	}
	eventually(t, "everything is let go of", func() bool { return b.flight.held.Load() == 0 })
}
