package otelmetrics_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/client/otelmetrics"
	"github.com/strandmq/strandmq/client/strandmqtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider gives sums as the meter.
type provider struct {
	noop.MeterProvider
	s *sums
}

func (p provider) Meter(string, ...metric.MeterOption) metric.Meter { return p.s }

// sums adds up what is recorded: of a histogram how often.
type sums struct {
	noop.Meter
	mu  sync.Mutex
	got map[string]int64
}

func (s *sums) add(name string, set attribute.Set, n int64) {
	var of []string
	for _, kv := range set.ToSlice() {
		key := string(kv.Key)
		of = append(of, key[strings.LastIndexByte(key, '.')+1:]+"="+kv.Value.Emit())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got[name+" "+strings.Join(of, " ")] += n
}

type histogram struct {
	noop.Float64Histogram
	s    *sums
	name string
}

func (h histogram) Record(_ context.Context, v float64, opts ...metric.RecordOption) {
	if v >= 0 && v < 120 { // in seconds
		h.s.add(h.name, metric.NewRecordConfig(opts).Attributes(), 1)
	}
}

type counter struct {
	noop.Int64Counter
	s    *sums
	name string
}

func (c counter) Add(_ context.Context, n int64, opts ...metric.AddOption) {
	c.s.add(c.name, metric.NewAddConfig(opts).Attributes(), n)
}

type gauge struct {
	noop.Int64UpDownCounter
	counter
}

func (g gauge) Add(ctx context.Context, n int64, opts ...metric.AddOption) {
	g.counter.Add(ctx, n, opts...)
}

func (s *sums) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return histogram{s: s, name: name}, nil
}

func (s *sums) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return counter{s: s, name: name}, nil
}

func (s *sums) Int64UpDownCounter(name string, _ ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return gauge{counter: counter{s: s, name: name}}, nil
}

// TestMeasures counts every publish and every attempt once, by how it ended, beside
// another observer; nothing is left waiting or running.
func TestMeasures(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	s := &sums{got: map[string]int64{}}
	m, err := otelmetrics.New(provider{s: s})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string // by the other; handlers of one key run one after the other
	other := client.Observer{Handle: func(ctx context.Context, d *client.Delivery) (context.Context, func(error)) {
		return ctx, func(err error) { seen = append(seen, fmt.Sprintf("%s %d %v", d.Body, d.Attempt, err)) }
	}}
	c, err := client.New([]string{b.URL}, client.WithObserver(m), client.WithObserver(other))
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
	for _, m := range []client.Message{{Key: "k", ID: "1", Body: []byte("one")}, {Key: "k", ID: "1", Body: []byte("one")}, {Key: "k", Body: []byte("two")}} {
		if _, err := p.Publish(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Publish(ctx, client.Message{Key: "k", ID: "1", Body: []byte("other")}); !errors.Is(err, client.ErrIDReused) {
		t.Fatal(err)
	}
	x, err := c.Consumer("orders", "g", client.WithCreateGroup())
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	if err := x.Run(run, func(_ context.Context, d *client.Delivery) error {
		switch {
		case string(d.Body) == "two":
			stop()
		case d.Attempt == 1:
			return errors.New("fails")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"one 1 fails", "one 2 <nil>", "two 1 <nil>"}; !slices.Equal(seen, want) {
		t.Errorf("the other observer saw %q", seen)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[string]int64{
		"messaging.client.operation.duration name=orders name=publish system=strandmq":                3,
		"messaging.client.operation.duration type=ID_REUSED name=orders name=publish system=strandmq": 1,
		"strandmq.client.publish.waiting name=orders name=publish system=strandmq":                    0,
		"strandmq.client.publish.duplicates name=orders name=publish system=strandmq":                 1,
		"messaging.process.duration name=g name=orders name=process system=strandmq":                  2,
		"messaging.process.duration type=_OTHER name=g name=orders name=process system=strandmq":      1,
		"strandmq.client.handlers.running name=g name=orders name=process system=strandmq":            0,
		"strandmq.client.handlers.retried name=g name=orders name=process system=strandmq":            1,
	}
	if !maps.Equal(s.got, want) {
		t.Errorf("measured %v; want %v", s.got, want)
	}
}
