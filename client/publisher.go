package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/router"
)

// PublisherOption sets one thing of a publisher.
type PublisherOption func(*Publisher)

// WithLinger is how long a message waits for others to share its batch while
// earlier ones are on their way; one that finds nothing on its way goes at once.
// Default 2 ms, at most a minute; longer makes larger batches, shorter tells sooner.
// 0: do not wait.
func WithLinger(d time.Duration) PublisherOption {
	return func(p *Publisher) { p.linger = span(&p.wrong, "WithLinger", d, longestLinger) }
}

// WithBatchBytes is when a batch of one partition is full: 1 KiB to 1 MiB, and 1,000
// messages at most. 0: the default, 256 KiB. Larger ones cost less for each message,
// and more to send again.
func WithBatchBytes(n int) PublisherOption {
	return func(p *Publisher) { p.out.most = whole(&p.wrong, "WithBatchBytes", n, 1<<10, 1<<20, 256<<10) }
}

// WithMaxInFlight bounds the bytes of messages without a receipt, kept in memory
// here: 1 to 1 GiB. 0: the default, 16 MiB. At the bound, publishing waits. One
// message always fits.
func WithMaxInFlight(bytes int) PublisherOption {
	return func(p *Publisher) { p.most = whole(&p.wrong, "WithMaxInFlight", bytes, 1, 1<<30, 16<<20) }
}

// overhead is what a message counts for beside its bytes.
const overhead = 128

// Publisher publishes to one topic. It gathers messages into batches, sends them
// without waiting for the answers before, and sends again what has no answer when
// a connection breaks. What one goroutine publishes for one key is stored in that
// order, each message once. It is safe for concurrent use. Close it.
//
//	Publish ─► gather by partition ─► stream ─► receipts
//	   ▲            │ full, or linger   │ broke
//	   │ waits      ▼                   ▼
//	   └──── bytes in flight ◄──── sent again, in order
type Publisher struct {
	c      *Client
	way    *way
	linger time.Duration
	most   int
	wrong  []error // what options were refused for

	ctx  context.Context //nolint:containedctx // the publisher's life
	stop context.CancelFunc
	over chan struct{} // closed when run has ended
	wake chan struct{} // one place: the writer has something to look at

	mu         sync.Mutex
	changed    chan struct{}  // guarded by mu: closed and made anew when room or receipts come
	out        outbox         // guarded by mu
	flying     int            // guarded by mu: bytes without a receipt
	since      time.Time      // guarded by mu: when the oldest that is not sent came
	key        []byte         // guarded by mu: of the message that is being put
	generation uint32         // guarded by mu: of Flush
	latest     int            // guarded by mu: messages of it without a receipt
	left       map[uint32]int // guarded by mu: the same of those before, while there are some
	flushing   int            // guarded by mu: calls of Flush that wait
	closing    bool           // guarded by mu
	failed     error          // guarded by mu: nothing is sent any more
}

// Publisher makes a publisher for a topic, which must exist: ErrUnknownTopic. The
// error names each option that is out of range.
func (c *Client) Publisher(ctx context.Context, topic string, opts ...PublisherOption) (*Publisher, error) {
	p := &Publisher{
		c: c, way: newWay(c.servers), linger: 2 * time.Millisecond, most: 16 << 20,
		over: make(chan struct{}), wake: make(chan struct{}, 1), changed: make(chan struct{}),
		left: map[uint32]int{},
		out:  outbox{topic: topic, producer: "go-" + uuid.NewString(), most: 256 << 10},
	}
	for _, o := range opts {
		o(p)
	}
	if err := allOf(append(p.wrong, badName("topic", names.Topic(topic)))); err != nil {
		return nil, err
	}
	r, err := ask(ctx, c, func(ctx context.Context, n *node) (*strandmqv1.RouteResponse, error) {
		return n.publish.Route(ctx, &strandmqv1.RouteRequest{Topic: topic})
	})
	if err != nil {
		return nil, err
	}
	table, err := tableOf(r)
	if err != nil {
		return nil, err
	}
	p.out.rotation = rand.Uint64() // publishers begin on different partitions
	p.out.loose = int(p.out.rotation % uint64(table.Len()))
	p.out.route(table, int(r.GetMaxBodyBytes()))
	if err := c.begin(); err != nil {
		return nil, err
	}
	p.ctx, p.stop = context.WithCancel(c.ctx)
	go p.run()
	return p, nil
}

// tableOf makes a routing table of the broker's answer.
func tableOf(r *strandmqv1.RouteResponse) (*router.Table, error) {
	targets := make([]router.Target, len(r.GetPartitions()))
	for i, p := range r.GetPartitions() {
		targets[i] = router.Target{ID: uint64(p.GetPartition()), Range: keyspace.Range{First: p.GetHashFirst(), Last: p.GetHashLast()}}
	}
	t, err := router.NewTable(r.GetRevision(), r.GetSeed(), targets)
	if err != nil {
		return nil, &Error{Message: err.Error(), err: err}
	}
	return t, nil
}

// Publish stores a message and waits for its receipt. When ctx ends first, the
// error is ErrOutcomeUnknown and wraps ctx's: the message may be stored all the
// same, and messages published after it are still stored behind it.
func (p *Publisher) Publish(ctx context.Context, m Message) (Receipt, error) {
	type result struct {
		receipt Receipt
		err     error
	}
	got := make(chan result, 1)
	p.PublishAsync(ctx, m, func(r Receipt, err error) { got <- result{r, err} })
	select {
	case r := <-got:
		return r.receipt, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-got:
		return r.receipt, r.err
	default:
		return Receipt{}, unknown(context.Cause(ctx))
	}
}

// PublishAsync stores a message and calls done, once, when it has its receipt or
// a refusal. It waits only while too many bytes are in flight; when ctx ends
// meanwhile, done is called with ctx's error, and the message is not sent. The
// message's bytes are the caller's again when PublishAsync returns.
//
// done is called from the goroutine that reads answers, or before PublishAsync
// returns if the message was refused at once. It must not block, and so must not
// publish. nil: nobody is told; Flush waits for the message all the same.
func (p *Publisher) PublishAsync(ctx context.Context, m Message, done func(Receipt, error)) {
	if done == nil {
		done = func(Receipt, error) {}
	}
	done = p.c.observed.published(ctx, p.out.topic, &m, done)
	r := record.Record{HasKey: m.Key != "", ID: m.ID, Body: m.Body}
	if len(m.Headers) > 0 {
		r.Headers = make([]record.Header, len(m.Headers))
		for i, h := range m.Headers {
			r.Headers[i] = record.Header{Name: h.Name, Value: []byte(h.Value)}
		}
	}
	if err := p.accept(ctx, m.Key, &r, done); err != nil {
		done(Receipt{}, err)
	}
}

// accept takes a message as soon as there is room.
func (p *Publisher) accept(ctx context.Context, key string, r *record.Record, done func(Receipt, error)) error {
	size := recordSize(r) + len(key) + overhead
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.failed != nil:
			return p.failed
		case p.closing || p.ctx.Err() != nil:
			return ErrClosed
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if p.flying == 0 || p.flying+size <= p.most {
			break
		}
		if err := p.await(ctx); err != nil {
			return err
		}
	}
	if p.out.gather == 0 {
		p.since = time.Now()
	}
	p.key = append(p.key[:0], key...)
	r.Key = p.key
	if err := p.out.put(r, waiting{done: done, size: int32(size), generation: p.generation}); err != nil {
		return err
	}
	p.flying += size
	p.latest++
	nudge(p.wake)
	return nil
}

// await waits for a change. mu is held, and let go meanwhile.
func (p *Publisher) await(ctx context.Context) error {
	changed := p.changed
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.over:
		return nil
	}
}

// Flush waits until everything that was published before has a receipt or a
// refusal, and tells of ctx's end.
func (p *Publisher) Flush(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	upTo := p.generation
	if p.latest > 0 {
		p.left[p.generation] = p.latest
		p.latest = 0
		p.generation++
	}
	p.flushing++
	defer func() { p.flushing-- }()
	nudge(p.wake)
	for {
		n := 0
		for g := range p.left {
			if upTo-g < 1<<31 { // it is not later
				n++
			}
		}
		if n == 0 {
			return nil
		}
		if err := p.await(ctx); err != nil {
			return err
		}
	}
}

// Close takes no more messages, flushes, and ends the publisher. When ctx ends
// first, what has no receipt is answered with ErrOutcomeUnknown, or with ErrClosed
// if it was never sent.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	err := p.Flush(ctx)
	p.stop()
	<-p.over
	return err
}

// run keeps a stream open until the publisher ends.
func (p *Publisher) run() {
	defer p.c.made.Done()
	defer p.stop()
	defer close(p.over)
	defer p.way.close()
	waits := newWaits()
	for p.ctx.Err() == nil {
		n := p.way.node()
		answers, err := p.stream(n)
		if p.ctx.Err() != nil {
			break
		}
		err = explain(err, n.url)
		if answers > 0 {
			waits.Reset()
		}
		var e *Error
		if errors.As(err, &e) && !e.passes {
			p.end(err, err)
			return
		}
		wait := time.Duration(0)
		if err != nil {
			p.way.blame(n, err)
			wait = waits.NextBackOff()
			if e != nil {
				wait = max(wait, e.RetryAfter)
			}
			p.c.log.Warn("a publish stream broke; what has no answer is sent again", "topic", p.out.topic, "node", n.url, "err", err, "in", wait)
		}
		select {
		case <-time.After(wait):
		case <-p.ctx.Done():
		}
	}
	p.end(unknown(ErrClosed), ErrClosed)
}

// newWaits gives the waits between streams.
func newWaits() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 50*time.Millisecond, 2*time.Second
	return b
}

// publishStream is the client's end of a publish stream.
type publishStream interface {
	Send(*strandmqv1.PublishStreamRequest) error
	Receive() (*strandmqv1.PublishStreamResponse, error)
	CloseRequest() error
	CloseResponse() error
}

// stream serves one stream to its end: nil when another one has to begin, with
// batches that were numbered anew, or by another table. It tells how many answers came.
func (p *Publisher) stream(n *node) (answers int, err error) {
	p.mu.Lock()
	before := p.out.table
	done := p.out.reopen()
	anew := p.out.table != before
	p.mu.Unlock()
	if anew {
		p.c.log.Warn("the topic was made anew; what has no answer is sent to the new one", "topic", p.out.topic)
	}
	p.tell(done)
	first := p.next(p.ctx) // a stream begins with its first frame
	if first == nil {
		return 0, nil
	}
	ctx, cut := context.WithCancel(p.ctx)
	defer cut()
	s, err := n.publish.PublishStream(ctx)
	if err != nil {
		return 0, err
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		defer cut()
		answers, err = p.read(s, cut)
	})
	for f := first; f != nil && s.Send(f) == nil; {
		f = p.next(ctx)
	}
	<-ctx.Done() // the reader knows why; or the publisher ends
	_ = s.CloseRequest()
	reader.Wait()
	_ = s.CloseResponse()
	return answers, err
}

// patience is how long a broker may take to end a stream after a refusal for now.
const patience = 5 * time.Second

// read takes answers until the stream ends.
func (p *Publisher) read(s publishStream, cut func()) (answers int, err error) {
	limit := time.AfterFunc(time.Hour, cut)
	limit.Stop()
	defer limit.Stop()
	stuck := false
	for {
		res, err := s.Receive()
		if err != nil {
			return answers, err
		}
		done, redo, now, err := p.take(res)
		p.tell(done)
		answers += len(done)
		if err != nil || redo {
			return answers, err
		}
		if now && !stuck {
			stuck = true
			limit.Reset(patience)
		}
	}
}

// take takes a frame of answers.
func (p *Publisher) take(res *strandmqv1.PublishStreamResponse) (done []answered, redo, stuck bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range res.GetResults() {
		out, failed := p.out.answer(a)
		if failed != nil {
			err = failed
			break
		}
		done = append(done, out...)
		if p.out.redo {
			break // the next stream tells the rest
		}
	}
	p.out.tidy()
	return done, p.out.redo, p.out.stuck, err
}

// tell calls back, and then lets go of what has its answer: Flush waits for both.
func (p *Publisher) tell(done []answered) {
	for i := range done {
		done[i].each()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range done {
		for _, w := range done[i].wait {
			p.flying -= int(w.size)
			if w.generation == p.generation {
				p.latest--
			} else if p.left[w.generation]--; p.left[w.generation] == 0 {
				delete(p.left, w.generation)
			}
		}
	}
	if len(done) > 0 {
		close(p.changed)
		p.changed = make(chan struct{})
		nudge(p.wake) // with nothing on its way, what waits goes at once
	}
}

// next waits for the next frame to send; nil: there is none before ctx ends.
func (p *Publisher) next(ctx context.Context) *strandmqv1.PublishStreamRequest {
	for ctx.Err() == nil {
		p.mu.Lock()
		if f := p.out.frame(); f != nil {
			p.mu.Unlock()
			return f
		}
		var portions []portion
		wait := time.Hour
		if p.out.gather > 0 && !p.out.holds() {
			if wait = p.linger - time.Since(p.since); wait <= 0 || p.flushing > 0 || len(p.out.sent) == 0 || p.out.full() {
				portions = p.out.take()
				p.since = time.Now()
			}
		}
		p.mu.Unlock()
		if len(portions) > 0 {
			batches := make([]*batch, len(portions))
			for i := range portions {
				batches[i] = portions[i].encode()
			}
			p.mu.Lock()
			for _, b := range batches {
				p.out.add(b)
			}
			p.mu.Unlock()
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-p.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

// end answers all that is left: what was sent, and what was not.
func (p *Publisher) end(sent, unsent error) {
	p.mu.Lock()
	p.failed = unsent
	done := p.out.rest(sent, unsent)
	p.mu.Unlock()
	p.tell(done)
}

func nudge(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
