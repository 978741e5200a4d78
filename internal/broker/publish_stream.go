package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/router"
)

// publishConn is the two directions of a publish stream. One goroutine may
// receive while another sends.
type publishConn interface {
	Receive() (*strandmqv1.PublishStreamRequest, error)
	Send(*strandmqv1.PublishStreamResponse) error
}

// The most that one frame of a publish stream carries.
const (
	maxStreamBatches = 1000 // batches in, answers out
	maxFrameReceipts = 5000 // receipts out, unless one batch has more
)

// A publishStream is one publisher's stream of batches. Two goroutines are its
// own, and both end before run returns:
//
//	frames ─► reader ─► host ─► answered() ─► ready ─► sender ─► frames
//	            │                                        │
//	            └── waits while too much is on its way ◄─┘
//
// The reader submits in the order in which batches come, and alone, which is
// what keeps a key's order. Where the host has no room it waits, so that the
// caller is held back by the connection. A refusal that passes with time ends
// the reading: what came behind it must not overtake it.
type publishStream struct {
	b      *Broker
	ctx    context.Context //nolint:containedctx // of the call, whose whole life this is
	flow   *flow
	conn   publishConn
	log    outlet
	router *router.Publisher

	// The reader's.
	number uint64 // of the batch taken last
	view   *coordinator.Map
	topic  *topic // of the batch before

	wake    chan struct{} // one place: the sender has something to look at
	changed chan struct{} // one place: there may be room for the reader

	mu      sync.Mutex
	ready   []streamAnswer // guarded by mu: known and not yet taken by the sender
	batches int            // guarded by mu: taken in and not yet told
	bytes   int            // guarded by mu: of those; an answer keeps its batch
	ending  error          // guarded by mu: the refusal that ended the reading
	read    bool           // guarded by mu: nothing more comes in
	left    bool           // guarded by mu: nobody is told any more
}

// A streamAnswer is what became of a batch.
type streamAnswer struct {
	number uint64
	topic  *topic // nil: refused before it was known
	took   time.Time
	what   *outcome
	size   int // of the batch, which what keeps
}

func newPublishStream(ctx context.Context, b *Broker, conn publishConn) *publishStream {
	s := &publishStream{b: b, ctx: ctx, flow: flowOf(ctx), conn: conn, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	n := b.streamNumber.Add(1)
	s.log = b.parts.From(partition.Source(n))
	s.router = router.NewPublisher(s, router.Config{Seed: n}) // each stream's rotation begins elsewhere
	return s
}

// run serves the stream to its end.
func (s *publishStream) run() error {
	defer context.AfterFunc(s.b.serving, func() { s.end(s.b.stopping()) })()
	sent := make(chan error, 1)
	go func() {
		defer s.gone() // whatever happened, nobody is told any more
		sent <- s.b.unharmed(s.ctx, "PublishStream", s.send)
	}()
	err := s.receive()
	s.mu.Lock()
	s.read = true
	s.mu.Unlock()
	nudge(s.wake)
	failed := <-sent
	switch {
	case s.failure() != nil:
		return s.failure()
	case err != nil:
		return err
	}
	return failed
}

// receive takes batches in until the caller has no more, or may not go on.
func (s *publishStream) receive() error {
	for {
		if err := s.waitForRoom(); err != nil {
			return err
		}
		req, err := s.conn.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if n := len(req.GetBatches()); n > maxStreamBatches {
			return refuse("BATCH_TOO_LARGE", "batches", "the frame has %d batches: send at most %d in one", n, maxStreamBatches)
		}
		if err := s.waitForMemory(req.GetBatches()); err != nil {
			return err
		}
		took := time.Now()
		for _, batch := range req.GetBatches() {
			if err := s.take(batch, took); err != nil {
				return err
			}
		}
		s.flow.release()
	}
}

// waitForRoom holds the caller back while too much of the stream is on its way.
func (s *publishStream) waitForRoom() error {
	for {
		s.mu.Lock()
		room := s.batches < s.b.cfg.StreamBatches && s.bytes < s.b.cfg.StreamBytes
		err := s.ending
		s.mu.Unlock()
		room = room && s.flow.mem.room() > 0
		if err != nil || room {
			return err
		}
		select {
		case <-s.changed:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

// waitForMemory holds the caller back while the batches of a frame do not fit with what
// all streams hold. Meanwhile they are still counted as a frame that is read.
func (s *publishStream) waitForMemory(batches []*strandmqv1.PublishBatch) error {
	var n int64
	for _, batch := range batches {
		n += int64(batchSize(batch)) + batchCost
	}
	for {
		taken, freed := s.flow.mem.take(n, false)
		if err := s.failure(); err != nil || taken {
			return err
		}
		select {
		case <-freed:
		case <-s.changed:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

// take sends one batch on its way. An error ends the stream; what is wrong with
// the batch alone stands in its answer.
func (s *publishStream) take(batch *strandmqv1.PublishBatch, took time.Time) error {
	s.number++
	n, size := s.number, batchSize(batch)
	s.mu.Lock()
	s.batches++
	s.bytes += size
	s.mu.Unlock()
	t, err := s.topicOf(batch.GetTopic())
	if err == nil {
		err = checkCarrier(batch)
	}
	if err == nil {
		err = s.b.submit(s, s.router, t, batch, func(o *outcome) { s.answered(streamAnswer{n, t, took, o, size}) })
	}
	if err != nil {
		s.answered(streamAnswer{n, t, took, &outcome{err: err}, size})
	}
	return s.failure()
}

// batchSize is about what a batch keeps in memory while it waits.
func batchSize(batch *strandmqv1.PublishBatch) int {
	n := len(batch.GetRecordBatch())
	for _, m := range batch.GetMessages() {
		n += len(m.GetKey()) + len(m.GetKeyBytes()) + len(m.GetText()) + len(m.GetBytes()) + 64
	}
	return n
}

// topicOf finds the topic of a batch: without a name that of the batch before.
func (s *publishStream) topicOf(name string) (*topic, error) {
	if name == "" {
		if s.topic == nil {
			return nil, refuse("BAD_VALUE", "topic", "the first batch of a stream must name its topic")
		}
		name = s.topic.Name
	}
	view := s.b.coord.View()
	if s.topic != nil && s.view == view && s.topic.Name == name {
		return s.topic, nil
	}
	t, err := s.b.topic(name)
	if err != nil && missing(err) && s.b.caughtUp(s.ctx, view.Revision) {
		t, err = s.b.topic(name)
	}
	if err != nil {
		return nil, err
	}
	s.view, s.topic = view, t
	return t, nil
}

// PublishAsync implements router.Log with patience.
func (s *publishStream) PublishAsync(id uint64, batch []byte, done func([]router.Stored, error)) error {
	return s.patiently(func() error { return s.log.PublishAsync(id, batch, done) })
}

// PublishBatch implements outlet with patience.
func (s *publishStream) PublishBatch(id uint64, batch record.Batch, done func([]partition.Stored, error)) error {
	return s.patiently(func() error { return s.log.PublishBatch(id, batch, done) })
}

// patiently tries until a full queue has room, which is what holds a caller
// back that publishes more than the disk takes.
func (s *publishStream) patiently(try func() error) error {
	for {
		err := try()
		var full *partition.ErrFull
		if !errors.As(err, &full) {
			return err
		}
		timer := time.NewTimer(full.RetryAfter)
		select {
		case <-timer.C:
		case <-s.changed: // an answer came, so the queue may be shorter
			timer.Stop()
		case <-s.ctx.Done():
			timer.Stop()
			return s.ctx.Err()
		}
		if ended := s.failure(); ended != nil {
			return ended
		}
	}
}

// answered notes what became of a batch. It is called from any goroutine.
func (s *publishStream) answered(a streamAnswer) {
	stop := s.b.stopsStream(a.what)
	s.mu.Lock()
	if !s.left {
		s.ready = append(s.ready, a)
	}
	s.mu.Unlock()
	nudge(s.wake)
	nudge(s.changed)
	if stop != nil {
		s.end(stop)
	}
}

// stopsStream finds the refusal, in what became of a batch, that passes with
// time, so that nothing may be stored behind it.
func (b *Broker) stopsStream(o *outcome) error {
	stops := func(err error) bool {
		switch rowOf(reasonOf(err)).code {
		case "unavailable", "resource_exhausted", "canceled", "deadline_exceeded":
			return true
		}
		return false
	}
	if o.err != nil && stops(o.err) {
		return o.err
	}
	for i := range o.results {
		if err := o.results[i].Err; err != nil && stops(err) {
			return err
		}
	}
	return nil
}

// end ends the reading; what is on its way is still answered.
func (s *publishStream) end(why error) {
	s.mu.Lock()
	if s.ending == nil {
		s.ending = why
	}
	s.mu.Unlock()
	nudge(s.changed)
	s.flow.cut(s.b.explain(why))
}

func (s *publishStream) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

// send tells the caller what became of its batches, as many in one frame as are
// known by then, until all that were taken in are told.
func (s *publishStream) send() error {
	var frame answerFrame
	var answers []streamAnswer
	for {
		answers = s.next(answers[:0])
		if len(answers) == 0 {
			return s.ctx.Err()
		}
		for told := 0; told < len(answers); {
			n := frame.fill(s.ctx, s.b, answers[told:])
			if err := s.conn.Send(&frame.res); err != nil {
				s.end(fmt.Errorf("the answers cannot be sent: %w", context.Canceled))
				return err
			}
			size := 0
			for i := told; i < told+n; i++ {
				size += answers[i].size
				answers[i] = streamAnswer{} // it holds the whole batch
			}
			told += n
			s.mu.Lock()
			s.batches -= n
			s.bytes -= size
			s.mu.Unlock()
			s.flow.mem.give(int64(size + n*batchCost))
			nudge(s.changed)
		}
	}
}

// next waits for answers and takes them; none: there are no more to come.
func (s *publishStream) next(spare []streamAnswer) []streamAnswer {
	for {
		s.mu.Lock()
		answers := s.ready
		over := s.read && s.batches == 0
		if len(answers) > 0 {
			s.ready = spare
		}
		s.mu.Unlock()
		if len(answers) > 0 || over {
			return answers
		}
		select {
		case <-s.wake:
		case <-s.ctx.Done():
			return nil
		}
	}
}

// gone lets go of what is not told.
func (s *publishStream) gone() {
	s.mu.Lock()
	s.left, s.ready = true, nil
	s.mu.Unlock()
	nudge(s.changed)
}

func nudge(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// An answerFrame is a frame of answers whose memory is used again and again: the
// sender is done with a frame before it fills the next.
type answerFrame struct {
	res   strandmqv1.PublishStreamResponse
	parts []strandmqv1.PublishBatchResult
	runs  []strandmqv1.ReceiptRun
	meter publishMeter
	of    *topic // whose meter it is
}

// fill makes a frame of the first answers and tells of how many.
func (f *answerFrame) fill(ctx context.Context, b *Broker, answers []streamAnswer) int {
	if n := min(len(answers), maxStreamBatches); n > len(f.parts) {
		f.parts, f.runs = make([]strandmqv1.PublishBatchResult, n), make([]strandmqv1.ReceiptRun, n)
	}
	f.res.Results = f.res.Results[:0]
	now := time.Now()
	receipts := 0
	for i := range answers {
		a := &answers[i]
		if i == len(f.parts) || i > 0 && receipts > maxFrameReceipts {
			return i
		}
		out := &f.parts[i]
		out.Batch, out.Results, out.Run, out.Problem, out.Route = a.number, nil, nil, nil, nil
		f.res.Results = append(f.res.Results, out)
		if a.what.err != nil {
			out.Problem, out.Route = b.batchProblem(ctx, a.what.err)
			continue
		}
		if a.topic != f.of {
			f.meter, f.of = b.publishMeter(a.topic.Name), a.topic
		}
		f.meter.count(ctx, b, a.what, now.Sub(a.took))
		if a.what.run(&f.runs[i]) {
			out.Run = &f.runs[i]
			continue
		}
		out.Results = b.receipts(ctx, a.what)
		receipts += len(out.Results)
	}
	return len(answers)
}

// batchProblem is the refusal of a batch as a whole, with the present route
// where that is what it lacks.
func (b *Broker) batchProblem(ctx context.Context, err error) (*strandmqv1.Problem, *strandmqv1.RouteResponse) {
	r := *b.explain(err)
	if r.reason == "INTERNAL" {
		b.log.ErrorContext(ctx, "a batch of a stream failed", "err", err)
		r.text = "the broker failed to handle this batch" + underID(requestOf(ctx))
	}
	b.metrics.rejected(r.reason)
	return r.problem(requestOf(ctx)), r.route
}
