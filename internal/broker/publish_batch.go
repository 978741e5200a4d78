package broker

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/router"
)

// A carrier is what carries a batch: a Publish call, or a batch of a stream.
type carrier interface {
	GetMessages() []*strandmqv1.Message
	GetProducerId() string
	GetFirstSequence() uint64
	GetRecordBatch() []byte
	GetPartition() uint32
	GetInOrder() bool
}

// checkCarrier refuses what is wrong with a batch before anything is looked at.
func checkCarrier(c carrier) error {
	n, opaque := len(c.GetMessages()), len(c.GetRecordBatch()) > 0
	switch {
	case n > 0 && opaque:
		return refuse("BAD_VALUE", "record_batch", "there are messages and a record batch: send one of the two")
	case opaque && (c.GetProducerId() != "" || c.GetFirstSequence() != 0):
		return refuse("BAD_VALUE", "producer_id", "a record batch has its producer and sequence in it: leave producer_id and first_sequence out")
	case opaque && c.GetInOrder():
		return refuse("BAD_VALUE", "in_order", "a record batch says itself whether it is in order: leave in_order out")
	case c.GetInOrder() && c.GetProducerId() != "":
		return refuse("BAD_VALUE", "in_order", "a producer's sequence is in order by itself: leave in_order or producer_id out")
	case opaque:
		return nil
	case n == 0:
		return refuse("BAD_VALUE", "messages", "the call has no messages: send 1 to %d", record.MaxBatchRecords)
	case n > record.MaxBatchRecords:
		return refuse("BATCH_TOO_LARGE", "messages", "the call has %d messages: send 1 to %d", n, record.MaxBatchRecords)
	}
	return nil
}

// An outcome is what became of a batch: of readable messages (sent, results),
// or of a record batch (parsed, number, stored).
type outcome struct {
	err error // of the batch as a whole: nothing was stored, or nobody knows

	sent    publication
	count   int // messages of the batch
	results []router.Result

	opaque bool
	parsed router.ParsedBatch
	number uint32 // of the partition in its topic
	stored []partition.Stored
}

// submit sends a batch that checkCarrier took on its way. then is called once,
// from any goroutine, unless an error is returned; it must not block. Batches of
// one key that are submitted one after the other are stored in that order.
func (b *Broker) submit(out outlet, pub *router.Publisher, t *topic, c carrier, then func(*outcome)) error {
	if r := b.full(); r != nil {
		return r
	}
	if raw := c.GetRecordBatch(); len(raw) > 0 {
		parsed, err := t.table.Parse(raw, c.GetPartition(), t.maxBody())
		if err != nil {
			return b.withRoute(t, err)
		}
		return out.PublishBatch(parsed.Partition, parsed.Batch, func(stored []partition.Stored, err error) {
			then(&outcome{err: err, opaque: true, parsed: parsed, number: c.GetPartition(), count: parsed.Len(), stored: stored})
		})
	}
	o, req, err := fromMessages(t, c)
	if err != nil {
		return err
	}
	if len(req.Records) == 0 {
		then(o)
		return nil
	}
	return pub.SubmitThen(req, func(results []router.Result) {
		o.results = results
		then(o)
	})
}

// full refuses publishes for want of room on the disk. Among others each node
// judges for what it stores itself.
func (b *Broker) full() *refusal {
	if b.far != nil {
		return nil
	}
	return b.disk.refuse()
}

// fromMessages turns readable messages that checkCarrier took into a request of the
// router's, which may be without records, and an outcome without results.
func fromMessages(t *topic, c carrier) (*outcome, router.Request, error) {
	o := &outcome{sent: prepare(c.GetMessages(), c.GetInOrder() || c.GetProducerId() != ""), count: len(c.GetMessages())}
	if o.sent.bytes > record.MaxBatchBytes {
		return nil, router.Request{}, refuse("BATCH_TOO_LARGE", "messages", "the messages have %d bytes: send at most %d in one call", o.sent.bytes, record.MaxBatchBytes)
	}
	return o, router.Request{
		Table: t.table, Records: o.sent.records, ProducerID: c.GetProducerId(), FirstSequence: c.GetFirstSequence(), InOrder: c.GetInOrder(), MaxBody: t.maxBody(),
	}, nil
}

// withRoute gives the refusal of a batch that was made by an old routing table
// the present one.
func (b *Broker) withRoute(t *topic, err error) error {
	if !errors.As(err, new(*router.ErrStaleRoute)) {
		return err
	}
	r := *b.explain(err)
	r.route = route(t)
	return &r
}

// route is a topic's routing table as publishers get it.
func route(t *topic) *strandmqv1.RouteResponse {
	out := &strandmqv1.RouteResponse{
		Topic: t.Name, Seed: t.table.Seed(), Revision: t.table.Revision(), MaxBodyBytes: int64(t.maxBody()),
		Partitions: make([]*strandmqv1.RoutePartition, t.table.Len()),
	}
	for i := range out.Partitions {
		owns := t.table.Target(i).Range
		out.Partitions[i] = &strandmqv1.RoutePartition{Partition: uint32(i), HashFirst: owns.First, HashLast: owns.Last}
	}
	return out
}

// publishRaw is a Publish call with a record batch.
func (b *Broker) publishRaw(ctx context.Context, t *topic, req *strandmqv1.PublishRequest, start time.Time) (*strandmqv1.PublishResponse, error) {
	done := make(chan *outcome, 1)
	if err := b.submit(b.parts, nil, t, req, func(o *outcome) { done <- o }); err != nil {
		return nil, err
	}
	select {
	case o := <-done:
		if o.err != nil {
			return nil, o.err
		}
		b.publishMeter(t.Name).count(ctx, b, o, time.Since(start))
		res := &strandmqv1.PublishResponse{}
		if run := (&strandmqv1.ReceiptRun{}); o.run(run) {
			res.Run = run
		} else {
			res.Results = b.receipts(ctx, o)
		}
		return res, nil
	case <-ctx.Done():
		return nil, &router.ErrOutcomeUnknown{Err: context.Cause(ctx)}
	}
}

// run tells where the records of a batch stand, when all of them were stored
// now and so one after the other.
func (o *outcome) run(to *strandmqv1.ReceiptRun) bool {
	if !o.opaque || len(o.stored) == 0 {
		return false
	}
	first := o.stored[0].Offset
	for i := range o.stored {
		if s := &o.stored[i]; s.Err != nil || s.Duplicate || s.Offset != first+partition.Offset(i) {
			return false
		}
	}
	to.Partition, to.FirstOffset, to.Count = o.number, uint64(first), uint32(len(o.stored))
	return true
}

// receipts are the results of a batch, message by message.
func (b *Broker) receipts(ctx context.Context, o *outcome) []*strandmqv1.PublishResult {
	if !o.opaque {
		return b.answer(ctx, o.sent, o.count, o.results)
	}
	out := make([]*strandmqv1.PublishResult, len(o.stored))
	for i, s := range o.stored {
		if s.Err != nil {
			out[i] = &strandmqv1.PublishResult{Problem: b.recordProblem(ctx, i, s.Err)}
			continue
		}
		out[i] = &strandmqv1.PublishResult{Receipt: &strandmqv1.Receipt{Partition: o.number, Offset: uint64(s.Offset), Duplicate: s.Duplicate}}
	}
	return out
}

// publishMeter is the counters of one topic's publishing, looked up once.
type publishMeter struct {
	topic                     string // as a label
	stored, bytes, duplicates prometheus.Counter
	took                      prometheus.Observer
}

func (b *Broker) publishMeter(topic string) publishMeter {
	label, _ := b.metrics.label(topic, "")
	return publishMeter{
		topic: label, stored: b.metrics.published.WithLabelValues(label), bytes: b.metrics.publishedBytes.WithLabelValues(label),
		duplicates: b.metrics.duplicates.WithLabelValues(label), took: b.metrics.publishTime.WithLabelValues(label),
	}
}

// count keeps the counters of one batch.
func (m publishMeter) count(ctx context.Context, b *Broker, o *outcome, took time.Duration) {
	stored, bytes, duplicates := 0, 0, 0
	refused := func(err error) {
		b.logItem(ctx, err, "publish")
		b.metrics.refused.WithLabelValues(m.topic, reasonOf(err)).Inc()
	}
	for i, r := range o.results {
		switch {
		case r.Err != nil:
			refused(r.Err)
		case r.Duplicate:
			duplicates++
		default:
			stored++
			bytes += recordBytes(o.sent.records[i])
		}
	}
	for _, err := range o.sent.refused {
		refused(err)
	}
	for i := range o.stored {
		switch s := &o.stored[i]; {
		case s.Err != nil:
			refused(s.Err)
		case s.Duplicate:
			duplicates++
		default:
			stored++
		}
	}
	switch {
	case !o.opaque:
	case stored == len(o.stored):
		bytes = o.parsed.Bytes
	case stored > 0:
		o.parsed.Each(func(i int, r record.Raw) bool {
			if s := &o.stored[i]; s.Err == nil && !s.Duplicate {
				f := r.Fields()
				bytes += f.Bytes()
			}
			return true
		})
	}
	m.stored.Add(float64(stored))
	m.bytes.Add(float64(bytes))
	m.duplicates.Add(float64(duplicates))
	m.took.Observe(took.Seconds())
}
