package broker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
)

// deliveryMeter is the counters of one group's deliveries, looked up once. What
// is counted by delivery is added up by done. One goroutine uses it.
type deliveryMeter struct {
	b            *Broker
	topic, group string // as labels
	delivered    prometheus.Counter
	redelivered  prometheus.Counter
	latency      prometheus.Observer

	n, again int
	now      partition.Millis
}

func (b *Broker) deliveryMeter(topic, group string) deliveryMeter {
	topic, group = b.metrics.label(topic, group)
	return deliveryMeter{
		b: b, topic: topic, group: group, delivered: b.metrics.delivered.WithLabelValues(topic, group),
		redelivered: b.metrics.redelivered.WithLabelValues(topic, group), latency: b.metrics.deliveryTime.WithLabelValues(topic, group),
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
		m.latency.Observe(float64(max(0, m.now-published)) / 1000)
	}
}

// done ends an answer.
func (m *deliveryMeter) done() {
	m.delivered.Add(float64(m.n))
	m.redelivered.Add(float64(m.again))
	m.n, m.again = 0, 0
}

// countSettled keeps the counters of settlements that came over a stream.
func (a *attendant) countSettled(runs []consumer.SettleRun, results []consumer.SettleRunResult) {
	run := 0
	for i := range results {
		r := &results[i]
		// Results are in the order of the runs, each run's in one or several.
		for run < len(runs)-1 && !(runs[run].First <= r.First && r.Last <= max(runs[run].Last, runs[run].First)) {
			run++
		}
		if r.Err != nil {
			a.b.logItem(r.Err, "settle")
			a.b.metrics.refusedSettlement(r.Err, a.meter.topic, a.meter.group, float64(r.Last-r.First+1))
			continue
		}
		n := float64(r.Last - r.First + 1)
		a.b.metrics.settled[settledName(runs[run].Action)].WithLabelValues(a.meter.topic, a.meter.group).Add(n)
		if r.Dead {
			a.b.metrics.deadLettered.WithLabelValues(a.meter.topic, a.meter.group).Add(n)
		}
	}
}
