package broker

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// descriptions are those of metrics that are read when asked, by name. To make one costs
// more than all else of a sample, and there are thousands of samples.
type descriptions struct {
	mu sync.Mutex
	of map[string]*prometheus.Desc // guarded by mu
}

func (d *descriptions) get(name, help string, labels []string) *prometheus.Desc {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil {
		d.of = map[string]*prometheus.Desc{}
	}
	one := d.of[name]
	if one == nil {
		one = prometheus.NewDesc("strandmq_"+name, help, labels, nil)
		d.of[name] = one
	}
	return one
}

// sampler gives one scrape what is read when asked. A name has one help and one set of
// labels.
type sampler struct {
	*descriptions
	ch chan<- prometheus.Metric
}

func (b *Broker) sampler(ch chan<- prometheus.Metric) sampler { return sampler{&b.metrics.read, ch} }

func (s sampler) gauge(name, help string, labels []string, v float64, values ...string) {
	s.ch <- prometheus.MustNewConstMetric(s.get(name, help, labels), prometheus.GaugeValue, v, values...)
}

func (s sampler) counter(name, help string, labels []string, v float64, values ...string) {
	s.ch <- prometheus.MustNewConstMetric(s.get(name, help, labels), prometheus.CounterValue, v, values...)
}
