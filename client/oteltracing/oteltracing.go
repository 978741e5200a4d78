// Package oteltracing shows what a client does as spans of OpenTelemetry. A program
// that does not import it links nothing of OpenTelemetry.
//
//	c, err := client.New(servers, client.WithObserver(oteltracing.New(otel.GetTracerProvider())))
//
//	caller's span
//	  └─ "publish orders"  until the receipt; traceparent goes into the message's headers
//	       └─ "process orders"  one for each attempt, with a link to its parent
//	            └─ what the handler begins with its context
//
// It owns the names of spans and attributes, which follow the conventions for
// messaging where they have a name; those are not stable yet, so they stand in this
// package alone. It promises that a trace context travels in W3C form (traceparent
// and tracestate), as other languages read it, and that a message which carries
// one already keeps it: what relays a message does not take its place in the trace.
// It refuses to count anything: otelmetrics does.
package oteltracing

import (
	"context"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/strandmq/strandmq/client"
)

// The name of the tracer, and of attributes.
const (
	scope = "github.com/strandmq/strandmq/client"

	system        = "messaging.system"
	operation     = "messaging.operation.name"
	operationType = "messaging.operation.type"
	destination   = "messaging.destination.name"
	partitionID   = "messaging.destination.partition.id"
	groupName     = "messaging.consumer.group.name"
	messageID     = "messaging.message.id"
	bodySize      = "messaging.message.body.size"
	offset        = "strandmq.message.offset"
	duplicate     = "strandmq.message.duplicate"
	attempt       = "strandmq.delivery.attempt"
)

// New gives what client.WithObserver takes.
func New(p trace.TracerProvider) client.Observer {
	t := p.Tracer(scope)
	return client.Observer{
		Publish: func(ctx context.Context, topic string, m *client.Message) func(client.Receipt, error) {
			return publish(ctx, t, topic, m)
		},
		Handle: func(ctx context.Context, d *client.Delivery) (context.Context, func(error)) {
			return handle(ctx, t, d)
		},
	}
}

func publish(ctx context.Context, t trace.Tracer, topic string, m *client.Message) func(client.Receipt, error) {
	ctx, span := t.Start(ctx, "publish "+topic, trace.WithSpanKind(trace.SpanKindProducer))
	if span.IsRecording() {
		span.SetAttributes(attribute.String(system, "strandmq"), attribute.String(operation, "publish"), attribute.String(operationType, "send"),
			attribute.String(destination, topic), attribute.Int(bodySize, len(m.Body)))
		if m.ID != "" {
			span.SetAttributes(attribute.String(messageID, m.ID))
		}
	}
	if _, ok := m.Header("traceparent"); !ok {
		m.Headers = slices.Clip(m.Headers) // the caller's array is not written to
		propagation.TraceContext{}.Inject(ctx, (*headers)(m))
	}
	return func(r client.Receipt, err error) {
		if err == nil && span.IsRecording() {
			span.SetAttributes(attribute.Int(partitionID, int(r.Partition)), attribute.Int64(offset, int64(r.Offset)), attribute.Bool(duplicate, r.Duplicate))
		}
		end(span, err)
	}
}

func handle(ctx context.Context, t trace.Tracer, d *client.Delivery) (context.Context, func(error)) {
	ctx = propagation.TraceContext{}.Extract(ctx, (*headers)(&d.Message))
	ctx, span := t.Start(ctx, "process "+d.Topic, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(trace.LinkFromContext(ctx)))
	if span.IsRecording() {
		span.SetAttributes(attribute.String(system, "strandmq"), attribute.String(operation, "process"), attribute.String(operationType, "process"),
			attribute.String(destination, d.Topic), attribute.String(groupName, d.Group), attribute.Int(partitionID, int(d.Partition)),
			attribute.Int64(offset, int64(d.Offset)), attribute.Int(attempt, int(d.Attempt)), attribute.Int(bodySize, len(d.Body)))
		if d.ID != "" {
			span.SetAttributes(attribute.String(messageID, d.ID))
		}
	}
	return ctx, func(err error) { end(span, err) }
}

func end(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// headers are a message's, as a carrier.
type headers client.Message

func (h *headers) Get(name string) string {
	for _, x := range h.Headers {
		if strings.EqualFold(x.Name, name) {
			return x.Value
		}
	}
	return ""
}

func (h *headers) Set(name, value string) {
	h.Headers = append(h.Headers, client.Header{Name: name, Value: value})
}

func (h *headers) Keys() (names []string) {
	for _, x := range h.Headers {
		names = append(names, x.Name)
	}
	return names
}
