package oteltracing_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/client/oteltracing"
	"github.com/strandmq/strandmq/client/strandmqtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder keeps the spans that ended.
type recorder struct {
	mu    sync.Mutex
	n     byte
	ended []*span
}

type span struct {
	noop.Span
	r      *recorder
	name   string
	self   trace.SpanContext
	parent trace.SpanContext
	links  []trace.Link
	code   codes.Code
}

// provider gives the recorder as a tracer.
type provider struct {
	noop.TracerProvider
	r *recorder
}

func (p provider) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{r: p.r} }

type tracer struct {
	noop.Tracer
	r *recorder
}

func (t tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.r.n++
	parent := trace.SpanContextFromContext(ctx)
	id := parent.TraceID()
	if !id.IsValid() {
		id = trace.TraceID{1, t.r.n}
	}
	c := trace.NewSpanStartConfig(opts...)
	s := &span{r: t.r, name: name, parent: parent, links: c.Links(), self: trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{2, t.r.n}, TraceFlags: trace.FlagsSampled})}
	return trace.ContextWithSpan(ctx, s), s
}

func (s *span) SpanContext() trace.SpanContext      { return s.self }
func (s *span) IsRecording() bool                   { return true }
func (s *span) SetStatus(code codes.Code, _ string) { s.code = code }
func (s *span) End(...trace.SpanEndOption) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.ended = append(s.r.ended, s)
}

// A trace goes from the publisher's caller over the message's headers to each
// attempt of the handler, and what that one publishes.
func TestTraceGoesThrough(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	r := &recorder{}
	c, err := client.New([]string{b.URL}, client.WithObserver(oteltracing.New(provider{r: r})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	p, err := c.Publisher(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	caller := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{9}, SpanID: trace.SpanID{9}, TraceFlags: trace.FlagsSampled, Remote: true})
	own := make([]client.Header, 1, 5)
	own[0] = client.Header{Name: "h", Value: "v"}
	if _, err := p.Publish(trace.ContextWithRemoteSpanContext(ctx, caller), client.Message{Key: "k", Headers: own}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish(ctx, client.Message{Key: "k", Headers: []client.Header{{Name: "a b"}}}); err == nil {
		t.Fatal("a bad header was taken")
	}
	if extra := own[:2][1]; extra.Name != "" {
		t.Errorf("the caller's headers were written to: %v", extra)
	}
	x, err := c.Consumer("orders", "g", client.WithCreateGroup())
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	var within []trace.SpanContext
	if err := x.Run(run, func(ctx context.Context, d *client.Delivery) error {
		within = append(within, trace.SpanContextFromContext(ctx))
		if d.Attempt == 1 {
			return errors.New("fails")
		}
		stop()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	got := ""
	for _, s := range r.ended {
		got += fmt.Sprint(s.name, " ", s.code, "; ")
	}
	if want := "publish orders Unset; publish orders Error; process orders Error; process orders Unset; "; got != want {
		t.Fatalf("spans %s; want %s", got, want)
	}
	published := r.ended[0]
	if published.parent.SpanID() != caller.SpanID() {
		t.Errorf("the publish has the parent %v", published.parent.SpanID())
	}
	for i, s := range r.ended[2:] {
		if s.parent.SpanID() != published.self.SpanID() || s.self.TraceID() != caller.TraceID() || len(s.links) != 1 || s.links[0].SpanContext.SpanID() != published.self.SpanID() {
			t.Errorf("attempt %d: parent %v, trace %v, links %v", i+1, s.parent.SpanID(), s.self.TraceID(), s.links)
		}
		if within[i].SpanID() != s.self.SpanID() {
			t.Errorf("attempt %d: the handler's context has span %v", i+1, within[i].SpanID())
		}
	}
}
