package broker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/internal/histogram"
	"github.com/strandmq/strandmq/partition"
)

// deliveryMeter is the counters of one group's deliveries, looked up once. What
// is counted by delivery is added up by done. One goroutine uses it.
type deliveryMeter struct {
	topic, group string // as labels
	delivered    prometheus.Counter
	redelivered  prometheus.Counter
	latency      *histogram.Histogram

	n, again int
	now      partition.Millis
	run      histogram.Run
}

func (b *Broker) deliveryMeter(topic, group string) deliveryMeter {
	topic, group = b.metrics.label(topic, group)
	return deliveryMeter{
		topic: topic, group: group, delivered: b.metrics.delivered.WithLabelValues(topic, group),
		redelivered: b.metrics.redelivered.WithLabelValues(topic, group), latency: b.metrics.deliveryTime.with(topic, group),
	}
}

// delivery counts one delivery of an answer.
func (m *deliveryMeter) delivery(attempt uint32, replayed bool, published partition.Millis) {
	if m.n == 0 {
		m.now = partition.Millis(time.Now().UnixMilli())
	}
	m.n++
	if attempt > 1 {
		m.again++
	} else if !replayed {
		m.run.Add(m.latency, 1000*int64(max(0, m.now-published)))
	}
}

// done ends an answer.
func (m *deliveryMeter) done() {
	if m.n == 0 {
		return
	}
	m.delivered.Add(float64(m.n))
	m.redelivered.Add(float64(m.again))
	m.run.Flush(m.latency)
	m.n, m.again = 0, 0
}

// countRefused keeps the counters of settlements that came over a stream and were refused.
// Those that took effect are counted where their partition is led: see groupMeter.
func (a *attendant) countRefused(ctx context.Context, results []consumer.SettleRunResult) {
	for i := range results {
		if r := &results[i]; r.Err != nil {
			a.b.logItem(ctx, r.Err, "settle")
			a.b.metrics.refusedSettlement(r.Err, a.meter.topic, a.meter.group, float64(r.Last-r.First+1))
		}
	}
}
