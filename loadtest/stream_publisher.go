package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/check"
	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// streamPublisher publishes one producer's batches over a stream. A batch is
// divided by partition; what is not answered when a stream breaks is sent again
// on the next one, in its order.
//
//	Send ─► parts by partition ─► stream ─► answers ─► item done ─► in order of sending
//	            ▲                    │ broke
//	            └── all unanswered ──┘
//
// Send is the producer's goroutine; a second one, keep, dials, sends again, reads
// answers and calls done. Lock order: sending, mu.
type streamPublisher struct {
	b        *streams
	topic    string
	producer string // its id, for sequences
	routes   *routing
	sequence []uint64 // by partition: of the next record, from 0

	dial   context.Context
	hangUp context.CancelFunc
	keeper sync.WaitGroup
	begun  bool

	sending sync.Mutex // numbers batches and writes them
	s       *stream    // guarded by sending; nil while there is none
	number  uint64     // guarded by sending: of the latest batch on s

	mu      sync.Mutex
	moved   sync.Cond
	parts   []*part          // guarded by mu: without an answer, in the order of sending
	numbers map[uint64]*part // guarded by mu: those on s
	items   []*item          // guarded by mu: in the order of sending
	waiting []int            // guarded by mu: messages without an answer, by partition
	failed  error            // guarded by mu: nothing is sent any more
}

// item is one batch of the producer.
type item struct {
	receipts []*Receipt
	left     int // parts without an answer
	done     func([]*Receipt, error)
}

// part is what of an item goes to one partition.
type part struct {
	of        *item
	partition uint32
	places    []int // in the item
	batch     *strandmqv1.PublishBatch
	size      int // of batch, in a frame
	answered  bool
}

// Send implements Publisher.
func (p *streamPublisher) Send(ctx context.Context, batch []Message, done func([]*Receipt, error)) {
	it := &item{receipts: make([]*Receipt, len(batch)), done: done}
	parts, err := p.divide(ctx, batch, it)
	if err != nil {
		p.fail(err)
	}
	p.mu.Lock()
	for _, x := range parts {
		// ctx is the producer's: what it began to send is sent, in order.
		for p.failed == nil && p.waiting[x.partition] > 0 && p.waiting[x.partition]+len(x.places) > p.b.c.InFlight {
			p.moved.Wait()
		}
	}
	p.mu.Unlock()
	p.sending.Lock()
	defer p.sending.Unlock()
	p.mu.Lock()
	if err := p.failed; err != nil {
		// Those before it are done first.
		for len(p.items) > 0 {
			p.moved.Wait()
		}
		p.mu.Unlock()
		done(it.receipts, err)
		return
	}
	p.items = append(p.items, it)
	p.parts = append(p.parts, parts...)
	for _, x := range parts {
		p.waiting[x.partition] += len(x.places)
	}
	p.mu.Unlock()
	if p.s != nil {
		p.write(parts)
	}
	if !p.begun {
		p.begun = true
		p.keeper.Go(p.keep)
	}
}

// divide makes the parts of a batch.
func (p *streamPublisher) divide(ctx context.Context, batch []Message, it *item) ([]*part, error) {
	if p.routes == nil {
		r, err := p.b.route(context.WithoutCancel(ctx), p.topic)
		if err != nil {
			return nil, err
		}
		if p.routes, err = newRouting(r); err != nil {
			return nil, err
		}
		p.sequence, p.waiting = make([]uint64, len(p.routes.ranges)), make([]int, len(p.routes.ranges))
	}
	by := make([]*part, len(p.routes.ranges))
	recs := make([][]record.Record, len(p.routes.ranges))
	var parts []*part
	for i, m := range batch {
		hash := keyspace.HashString(p.routes.seed, m.Key)
		n := p.routes.of(hash)
		if by[n] == nil {
			by[n] = &part{of: it, partition: n}
			parts = append(parts, by[n])
		}
		by[n].places = append(by[n].places, i)
		recs[n] = append(recs[n], record.Record{KeyHash: hash, HasKey: true, Key: []byte(m.Key), ID: m.ID, Body: m.Body})
	}
	for _, x := range parts {
		m := record.Meta{}
		if p.b.c.Sequences {
			m.ProducerID, m.FirstSequence = p.producer, p.sequence[x.partition]
			p.sequence[x.partition] += uint64(len(x.places))
		}
		x.batch = &strandmqv1.PublishBatch{}
		if p.b.c.Messages {
			fillMessages(x.batch, p.topic, m, recs[x.partition])
		} else {
			fillRecords(x.batch, p.topic, x.partition, m, recs[x.partition], nil)
		}
		x.size = proto.Size(x.batch)
	}
	it.left = len(parts)
	return parts, nil
}

// write sends parts on the stream. A failure is the reader's to see: what has no
// answer is sent again. sending is held.
func (p *streamPublisher) write(parts []*part) {
	for len(parts) > 0 {
		frame := &strandmqv1.PublishStreamRequest{}
		n, size := 0, 0
		p.mu.Lock()
		for ; n < len(parts) && n < 1000 && (n == 0 || size+parts[n].size <= maxFrameBytes); n++ {
			p.number++
			p.numbers[p.number] = parts[n]
			frame.Batches = append(frame.Batches, parts[n].batch)
			size += parts[n].size
		}
		p.mu.Unlock()
		if p.s.Send(frame) != nil {
			return
		}
		parts = parts[n:]
	}
}

// keep keeps a stream open until stop, or until something does not pass.
func (p *streamPublisher) keep() {
	var since time.Time // the stream broke, and nothing was answered after
	wait := 50 * time.Millisecond
	for {
		s, err := again(p.dial, p.b.c.RetryFor, func() (*stream, error) {
			once, cancel := context.WithTimeout(p.dial, callTime)
			defer cancel()
			s, err := openStreamAt(once, p.b.doors, p.b.server, publishStream)
			return s, explainStream(err, p.b.server)
		})
		if err != nil {
			p.fail(err)
			return
		}
		answers := 0
		told := make(chan struct{})
		cut := context.AfterFunc(p.dial, func() { defer close(told); _ = s.Close() })
		// Resending and reading go on at once: the broker may answer while much is
		// still to be sent.
		var again sync.WaitGroup
		again.Go(func() {
			p.sending.Lock()
			defer p.sending.Unlock()
			p.mu.Lock()
			clear(p.numbers)
			rest := append([]*part(nil), p.parts...)
			p.mu.Unlock()
			p.s, p.number = s, 0
			p.write(rest)
		})
		err = p.answers(s, &answers)
		_ = s.Close()
		again.Wait()
		p.sending.Lock()
		p.s = nil
		p.sending.Unlock()
		if !cut() {
			<-told
		}
		if p.dial.Err() != nil {
			return
		}
		if answers > 0 {
			since, wait = time.Time{}, 50*time.Millisecond
		}
		if since.IsZero() {
			since = time.Now()
		}
		if err := p.mayRepeat(err); err != nil || time.Since(since) > p.b.c.RetryFor {
			p.fail(errors.Join(err, p.lastError(err, since)))
			return
		}
		var r *Refusal
		if errors.As(explainStream(err, p.b.server), &r) && r.RetryAfter > wait {
			wait = r.RetryAfter
		}
		select {
		case <-p.dial.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, time.Second)
	}
}

func (p *streamPublisher) lastError(err error, since time.Time) error {
	if err != nil {
		return nil
	}
	return &Refusal{Text: fmt.Sprintf("streams to the broker at %s have kept breaking for %v", p.b.server, time.Since(since).Round(time.Second))}
}

// mayRepeat gives the error that ends the publishing, or nil when what has no
// answer may be sent again.
func (p *streamPublisher) mayRepeat(err error) error {
	err = explainStream(err, p.b.server)
	if errors.Is(err, io.EOF) {
		err = &Refusal{Text: "the broker ended the stream", Passing: true, RetryAfter: time.Millisecond}
	}
	var r *Refusal
	switch {
	case !errors.As(err, &r) || !r.Passing:
		return err
	case !p.b.c.NoIDs || p.b.c.Sequences:
		return nil
	case r.Reason != "":
		return nil // the broker said it, after it had answered for all that it took
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.parts) > 0 {
		r.Passing = false
		return r // some may be stored
	}
	return nil
}

// answers reads answers until the stream ends.
func (p *streamPublisher) answers(s *stream, count *int) error {
	var m strandmqv1.PublishStreamResponse
	for {
		if err := s.Receive(&m); err != nil {
			return err
		}
		for _, r := range m.GetResults() {
			if err := p.answer(r); err != nil {
				return err
			}
			*count++
		}
		p.finish()
	}
}

// answer takes one answer. A part that was refused for now keeps its place; the
// broker ends the stream, and it is sent again.
func (p *streamPublisher) answer(a *strandmqv1.PublishBatchResult) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.numbers[a.GetBatch()]
	if x == nil || x.answered {
		return fmt.Errorf("the broker answered batch %d, which has no answer to wait for", a.GetBatch())
	}
	refused := a.GetProblem()
	receipts := make([]*Receipt, len(x.places))
	if run := a.GetRun(); run != nil && int(run.GetCount()) == len(receipts) {
		for i := range receipts {
			receipts[i] = &Receipt{Place: check.Place{Partition: run.GetPartition(), Offset: run.GetFirstOffset() + uint64(i)}}
		}
	} else if len(a.GetResults()) == len(receipts) {
		for i, one := range a.GetResults() {
			if r := one.GetReceipt(); r != nil {
				receipts[i] = &Receipt{Place: check.Place{Partition: r.GetPartition(), Offset: r.GetOffset()}, Duplicate: r.GetDuplicate()}
			} else if refused == nil {
				refused = one.GetProblem()
			}
		}
	} else if refused == nil {
		return fmt.Errorf("the broker answered for %d or %d messages of %d", run.GetCount(), len(a.GetResults()), len(receipts))
	}
	if refused != nil {
		r := &Refusal{}
		refuse(r, refused)
		known := !p.b.c.NoIDs || p.b.c.Sequences
		if r.Passing || r.Reason == "NOT_SENT" || r.Reason == "OUTCOME_UNKNOWN" && known {
			return nil
		}
		return r
	}
	x.answered = true
	for i, place := range x.places {
		x.of.receipts[place] = receipts[i]
	}
	x.of.left--
	p.waiting[x.partition] -= len(x.places)
	delete(p.numbers, a.GetBatch())
	return nil
}

// finish calls done for what is done, in order.
func (p *streamPublisher) finish() {
	p.mu.Lock()
	kept := p.parts[:0]
	for _, x := range p.parts {
		if !x.answered {
			kept = append(kept, x)
		}
	}
	clear(p.parts[len(kept):])
	p.parts = kept
	p.mu.Unlock()
	for {
		p.mu.Lock()
		if len(p.items) == 0 || p.items[0].left > 0 {
			p.moved.Broadcast()
			p.mu.Unlock()
			return
		}
		it := p.items[0]
		p.mu.Unlock()
		it.done(it.receipts, nil)
		p.mu.Lock()
		p.items = p.items[1:]
		p.mu.Unlock()
	}
}

// fail ends the publishing: whatever has no receipt will not get one.
func (p *streamPublisher) fail(err error) {
	p.mu.Lock()
	if p.failed == nil {
		p.failed = err
	}
	items := p.items
	p.mu.Unlock()
	for _, it := range items {
		it.done(it.receipts, err)
	}
	p.mu.Lock()
	p.items, p.parts = nil, nil
	p.moved.Broadcast()
	p.mu.Unlock()
}

// Flush implements Publisher.
func (p *streamPublisher) Flush(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return waitFor(ctx, &p.moved, func() bool { return len(p.items) == 0 })
}

// Close implements Publisher.
func (p *streamPublisher) Close() {
	p.hangUp()
	p.keeper.Wait()
	p.mu.Lock()
	left := len(p.items) > 0
	p.mu.Unlock()
	if left {
		p.fail(&Refusal{Text: "the run ended before the broker answered"})
	}
}
