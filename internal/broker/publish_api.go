package broker

import (
	"context"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/router"
)

// publishAPI is strandmq.v1.PublishService.
type publishAPI struct{ b *Broker }

// Publish stores a batch.
func (a publishAPI) Publish(ctx context.Context, req *strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
	start := time.Now()
	t, err := a.b.topic(req.GetTopic())
	if err != nil {
		return nil, err
	}
	switch n := len(req.GetMessages()); {
	case n == 0:
		return nil, refuse("BAD_VALUE", "messages", "the call has no messages: send 1 to %d", record.MaxBatchRecords)
	case n > record.MaxBatchRecords:
		return nil, refuse("BATCH_TOO_LARGE", "messages", "the call has %d messages: send 1 to %d", n, record.MaxBatchRecords)
	}
	if r := a.b.disk.refuse(); r != nil {
		return nil, r
	}
	p := prepare(req.GetMessages(), req.GetProducerId() != "")
	if p.bytes > record.MaxBatchBytes {
		return nil, refuse("BATCH_TOO_LARGE", "messages", "the messages have %d bytes: send at most %d in one call", p.bytes, record.MaxBatchBytes)
	}
	var results []router.Result
	if len(p.records) > 0 {
		results, err = a.b.publisher.Publish(ctx, router.Request{
			Table: t.table, Records: p.records, ProducerID: req.GetProducerId(), FirstSequence: req.GetFirstSequence(), MaxBody: t.maxBody(),
		})
		if err != nil {
			return nil, err
		}
		if len(p.refused) == 0 {
			if err := wholeCall(results); err != nil {
				return nil, err
			}
		}
	}
	a.b.countPublish(t.Name, p, results, time.Since(start))
	return &strandmqv1.PublishResponse{Results: a.b.answer(p, len(req.GetMessages()), results)}, nil
}

// countPublish keeps the counters of one call.
func (b *Broker) countPublish(topic string, p publication, results []router.Result, took time.Duration) {
	topic, _ = b.metrics.label(topic, "")
	stored, bytes, duplicates := 0, 0, 0
	for i, r := range results {
		switch {
		case r.Err != nil:
			b.logItem(r.Err, "publish")
			b.metrics.refused.WithLabelValues(topic, reasonOf(r.Err)).Inc()
		case r.Duplicate:
			duplicates++
		default:
			stored++
			bytes += recordBytes(p.records[i])
		}
	}
	for _, err := range p.refused {
		b.metrics.refused.WithLabelValues(topic, reasonOf(err)).Inc()
	}
	b.metrics.published.WithLabelValues(topic).Add(float64(stored))
	b.metrics.publishedBytes.WithLabelValues(topic).Add(float64(bytes))
	b.metrics.duplicates.WithLabelValues(topic).Add(float64(duplicates))
	b.metrics.publishTime.WithLabelValues(topic).Observe(took.Seconds())
}
