// Package otelmetrics measures what a client does with OpenTelemetry. A program that
// does not import it links nothing of OpenTelemetry.
//
//	m, err := otelmetrics.New(otel.GetMeterProvider())
//	c, err := client.New(servers, client.WithObserver(m))
//
//	messaging.client.operation.duration  s   a publish, from the call to the receipt
//	messaging.process.duration           s   one attempt of a handler
//	strandmq.client.publish.waiting          messages without a receipt
//	strandmq.client.publish.duplicates       receipts of what was stored before
//	strandmq.client.handlers.running         handlers that run
//	strandmq.client.handlers.retried         attempts that were not the first
//
// It owns the names of instruments and attributes, which follow the conventions for
// messaging where they have a name. The counts of the two histograms are how many
// messages were published and handled, by topic, group and error.type: a reason of
// docs/errors.md, canceled, deadline_exceeded or _OTHER. It promises that no attribute takes more values than there
// are topics, groups and reasons, so nothing of a message is among them. It refuses to
// measure what only the broker knows, such as lag: that is in its /metrics.
package otelmetrics

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/strandmq/strandmq/client"
)

const scope = "github.com/strandmq/strandmq/client"

// bounds are of both histograms, in seconds: a receipt takes a synced write, a handler
// what it takes.
var bounds = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}

// instruments are what is measured with.
type instruments struct {
	published, processed metric.Float64Histogram
	waiting, running     metric.Int64UpDownCounter
	duplicates, retried  metric.Int64Counter
}

// New gives what client.WithObserver takes. The error is the provider's.
func New(p metric.MeterProvider) (client.Observer, error) {
	m, in := p.Meter(scope), &instruments{}
	var errs [6]error
	in.published, errs[0] = m.Float64Histogram("messaging.client.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from the call of a publish to its receipt or refusal."), metric.WithExplicitBucketBoundaries(bounds...))
	in.processed, errs[1] = m.Float64Histogram("messaging.process.duration", metric.WithUnit("s"),
		metric.WithDescription("Time that a handler took for one attempt of a message."), metric.WithExplicitBucketBoundaries(bounds...))
	in.waiting, errs[2] = m.Int64UpDownCounter("strandmq.client.publish.waiting", metric.WithUnit("{message}"),
		metric.WithDescription("Messages that were published and have no receipt yet."))
	in.running, errs[3] = m.Int64UpDownCounter("strandmq.client.handlers.running", metric.WithUnit("{handler}"),
		metric.WithDescription("Handlers that run."))
	in.duplicates, errs[4] = m.Int64Counter("strandmq.client.publish.duplicates", metric.WithUnit("{message}"),
		metric.WithDescription("Receipts of messages that had been stored before."))
	in.retried, errs[5] = m.Int64Counter("strandmq.client.handlers.retried", metric.WithUnit("{message}"),
		metric.WithDescription("Attempts of messages that were not their first."))
	return client.Observer{Publish: in.publish, Handle: in.handle}, errors.Join(errs[:]...)
}

func (in *instruments) publish(ctx context.Context, topic string, _ *client.Message) func(client.Receipt, error) {
	at, where := time.Now(), about("publish", topic)
	set := metric.WithAttributeSet(attribute.NewSet(where...))
	in.waiting.Add(ctx, 1, set)
	return func(r client.Receipt, err error) {
		in.waiting.Add(ctx, -1, set)
		if r.Duplicate && err == nil {
			in.duplicates.Add(ctx, 1, set)
		}
		in.published.Record(ctx, time.Since(at).Seconds(), outcome(where, err))
	}
}

func (in *instruments) handle(ctx context.Context, d *client.Delivery) (context.Context, func(error)) {
	at, where := time.Now(), append(about("process", d.Topic), attribute.String("messaging.consumer.group.name", d.Group))
	set := metric.WithAttributeSet(attribute.NewSet(where...))
	in.running.Add(ctx, 1, set)
	if d.Attempt > 1 {
		in.retried.Add(ctx, 1, set)
	}
	return ctx, func(err error) {
		in.running.Add(ctx, -1, set)
		in.processed.Record(ctx, time.Since(at).Seconds(), outcome(where, err))
	}
}

// about is what every measure of an operation says.
func about(operation, topic string) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("messaging.system", "strandmq"), attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.destination.name", topic),
	}
}

// outcome adds how it ended, if not well.
func outcome(where []attribute.KeyValue, err error) metric.RecordOption {
	if err != nil {
		where = append(where[:len(where):len(where)], attribute.String("error.type", kind(err)))
	}
	return metric.WithAttributeSet(attribute.NewSet(where...))
}

// kind is a bounded name of an error.
func kind(err error) string {
	var e *client.Error
	switch {
	case errors.As(err, &e) && e.Reason != "":
		return string(e.Reason)
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline_exceeded"
	}
	return "_OTHER"
}
