package loadtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/strandmq/strandmq/internal/check"
)

// producer sends the messages of one schedule, or one batch after the other.
type producer struct {
	r    *run
	n    uint32
	keys *rand.Rand
	fill *rand.ChaCha8
	way  Publisher
	sent []uint64 // by key: the number of the latest that was sent; the goroutine's own
	// By key: the highest number with a receipt. Read when the producer is over.
	stored []uint64
	maybe  []check.Sent // outcome unknown; at most the batches that were on their way when it ended, with ids

	spare chan *batch // batches to use again
	fault atomic.Pointer[error]

	published  atomic.Uint64 // messages with a receipt
	measured   atomic.Uint64 // of those, in the time of the figures
	calls      atomic.Uint64
	duplicates atomic.Uint64
	unsent     uint64 // due, and never sent
}

// batch is what is on its way in one call.
type batch struct {
	messages []Message
	who      []check.Sent
	due      []int64
	waited   []int64
	slab     []byte
}

func (r *run) newProducer(n uint32) *producer {
	var seed [32]byte
	copy(seed[:], fmt.Sprintf("%016x%016x", r.id, n))
	return &producer{
		r: r, n: n, keys: rand.New(rand.NewPCG(r.c.Seed, uint64(n))), fill: rand.NewChaCha8(seed),
		way: r.broker.Publisher(r.topic), sent: make([]uint64, r.c.Keys), stored: make([]uint64, r.c.Keys),
		spare: make(chan *batch, 256),
	}
}

// work sends until the time is over or ctx ends.
func (p *producer) work(ctx context.Context) error {
	end := int64(p.r.c.Warmup + p.r.c.Duration)
	var err error
	if p.r.c.Rate > 0 {
		err = p.scheduled(ctx, end)
	} else {
		for ctx.Err() == nil && p.fault.Load() == nil && p.r.since() < end {
			n := p.r.room()
			if n == 0 {
				time.Sleep(time.Millisecond) // acks come by the batch: a wake for each would cost more
				continue
			}
			p.send(ctx, n, func(int) int64 { return p.r.since() })
		}
	}
	// What is on its way gets its time to arrive, also when the run is cut short.
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.r.c.RetryFor)
	defer cancel()
	err = errors.Join(err, p.way.Flush(flush))
	p.way.Close()
	if fault := p.fault.Load(); fault != nil {
		return *fault
	}
	return err
}

// grace is for what is due when the time is over: only a producer that needs
// longer for it is behind.
const grace = time.Second

// scheduled sends what is due, and never waits for more. What came due during a
// call goes with the next one.
func (p *producer) scheduled(ctx context.Context, end int64) error {
	s := Schedule{Rate: uint64(p.r.c.Rate), Producers: uint64(p.r.c.Producers), Producer: uint64(p.n)}
	total := s.DueBy(end - 1)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var next uint64
	for next < total && ctx.Err() == nil && p.fault.Load() == nil {
		now := p.r.since()
		if now >= end+int64(grace) {
			break
		}
		due := min(s.DueBy(now), total)
		if due <= next {
			timer.Reset(time.Duration(s.Due(next) - now))
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			continue
		}
		n := int(min(due-next, uint64(p.r.c.Batch)))
		first := next
		p.send(ctx, n, func(i int) int64 { return s.Due(first + uint64(i)) })
		next += uint64(n)
	}
	// Whatever was due by now and was not sent has waited for this long at
	// least. Leaving it out would hide the worst of an overload.
	now := p.r.since()
	due := min(s.DueBy(now), total)
	if due > next {
		p.unsent = due - next
		for i := next; i < due; i++ {
			at := s.Due(i)
			p.r.publish.record(int(p.n), p.r.inFigures(at), now-at)
		}
	}
	return nil
}

// send makes one batch of n messages and sends it.
func (p *producer) send(ctx context.Context, n int, due func(i int) int64) {
	b := p.take(n)
	size := p.r.c.Size
	_, _ = p.fill.Read(b.slab) // never fails
	for i := range n {
		key := p.r.keys.Pick(p.keys.Float64)
		p.sent[key]++
		m := check.Sent{Key: key, Producer: p.n, Number: p.sent[key]}
		at := due(i)
		body := b.slab[i*size : (i+1)*size : (i+1)*size]
		stampBody(body, p.r.id, m, at)
		b.who[i], b.due[i] = m, at
		b.messages[i] = Message{Key: keyName(key), Body: body}
		if !p.r.c.NoIDs {
			b.messages[i].ID = messageID(p.r.id, m)
		}
	}
	p.calls.Add(1)
	p.r.sent.Add(int64(n))
	p.way.Send(ctx, b.messages, func(receipts []*Receipt, err error) { p.done(b, receipts, err) })
}

// done takes the receipts of a batch.
func (p *producer) done(b *batch, receipts []*Receipt, err error) {
	now := p.r.since()
	b.waited = b.waited[:0]
	var measured uint64
	for i, m := range b.who {
		if i >= len(receipts) || receipts[i] == nil {
			p.maybe = append(p.maybe, m)
			continue
		}
		p.stored[m.Key] = max(p.stored[m.Key], m.Number)
		if receipts[i].Duplicate {
			p.duplicates.Add(1)
		}
		if p.r.inFigures(b.due[i]) {
			b.waited = append(b.waited, now-b.due[i])
		} else {
			p.r.publish.record(int(p.n), false, now-b.due[i])
		}
		p.published.Add(1)
		measured++
	}
	p.r.publish.record(int(p.n), true, b.waited...)
	if p.r.inFigures(now) {
		p.measured.Add(measured)
	}
	if err != nil {
		err = fmt.Errorf("producer %d: %w", p.n, err)
		p.fault.CompareAndSwap(nil, &err)
	}
	select {
	case p.spare <- b:
	default:
	}
}

// take gives a batch with room for n messages.
func (p *producer) take(n int) *batch {
	var b *batch
	select {
	case b = <-p.spare:
	default:
		b = &batch{}
	}
	if cap(b.messages) < n {
		most := p.r.c.Batch
		b.messages, b.who, b.due = make([]Message, most), make([]check.Sent, most), make([]int64, most)
		b.slab = make([]byte, most*p.r.c.Size)
	}
	b.messages, b.who, b.due, b.slab = b.messages[:n], b.who[:n], b.due[:n], b.slab[:n*p.r.c.Size]
	return b
}
