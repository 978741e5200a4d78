package broker

import (
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/strandmq/strandmq/internal/histogram"
)

// histograms are those of one name, by topic and group. They are counted by
// histogram.Histogram, which adds many values at once: Prometheus' own take one by one,
// and one Observe for each delivery was most of what counting cost.
type histograms struct {
	desc   *prometheus.Desc
	bounds []int64
	unit   float64 // how many of what is counted make one of what is shown

	mu sync.Mutex
	of map[[2]string]*histogram.Histogram // guarded by mu: by topic and group
}

func newHistograms(name, help string, unit float64, bounds ...int64) *histograms {
	return &histograms{
		desc: prometheus.NewDesc("strandmq_"+name, help, []string{"topic", "group"}, nil), bounds: bounds, unit: unit, of: map[[2]string]*histogram.Histogram{},
	}
}

// with gives the histogram of two labels.
func (h *histograms) with(topic, group string) *histogram.Histogram {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := [2]string{topic, group}
	one := h.of[key]
	if one == nil {
		one = histogram.New(h.bounds...)
		h.of[key] = one
	}
	return one
}

// DeletePartialMatch implements labelledSeries.
func (h *histograms) DeletePartialMatch(of prometheus.Labels) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := len(h.of)
	maps.DeleteFunc(h.of, func(key [2]string, _ *histogram.Histogram) bool {
		group, named := of["group"]
		return key[0] == of["topic"] && (!named || key[1] == group)
	})
	return before - len(h.of)
}

// Describe implements prometheus.Collector.
func (h *histograms) Describe(ch chan<- *prometheus.Desc) { ch <- h.desc }

// Collect implements prometheus.Collector.
func (h *histograms) Collect(ch chan<- prometheus.Metric) {
	h.mu.Lock()
	all := maps.Clone(h.of)
	h.mu.Unlock()
	for key, one := range all {
		ch <- shown(h.desc, one.Read(), h.unit, key[0], key[1])
	}
}

// shown is a reading as Prometheus has it.
func shown(desc *prometheus.Desc, r histogram.Reading, unit float64, labels ...string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(r.Bounds))
	for i, bound := range r.Bounds {
		buckets[float64(bound)/unit] = r.UpTo[i]
	}
	return prometheus.MustNewConstHistogram(desc, r.Count, float64(r.Sum)/unit, buckets, labels...)
}
