package broker

import (
	"context"
	"errors"
	"maps"
	"math"
	"net/http"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/strandmq/strandmq/consumer"
)

// metrics are what the node counts itself. What the log knows better (lag, in
// flight, dead letters) is read from it when asked: see collect.
//
// Labels are names of topics and groups, of which there are bounded numbers;
// never keys, ids or members.
type metrics struct {
	registry *prometheus.Registry

	published      *prometheus.CounterVec
	publishedBytes *prometheus.CounterVec
	duplicates     *prometheus.CounterVec
	refused        *prometheus.CounterVec
	publishTime    *prometheus.HistogramVec

	delivered    *prometheus.CounterVec
	redelivered  *prometheus.CounterVec
	stale        *prometheus.CounterVec
	deliveryTime *histograms

	rejects *prometheus.CounterVec
	calls   *prometheus.HistogramVec
	crowded *prometheus.CounterVec
	elected prometheus.Counter

	labelled []labelledSeries // all of the above
	groups   groupMeters      // of what is applied here
	read     descriptions     // of what is read when asked

	full func(reason string) // hears of calls that were refused for want of memory; nil: nobody asks

	mu   sync.Mutex
	seen map[[2]string]bool // guarded by mu: topics (with an empty group) and groups that have labels
}

// labelledSeries are series of which those with some labels can be dropped.
type labelledSeries interface {
	prometheus.Collector
	DeletePartialMatch(of prometheus.Labels) int
}

// maxLabels bounds the topics and groups that have series of their own; what
// comes after them is counted under one name.
const maxLabels = 2000

const otherLabel = "(other)"

// label gives the names to count under.
func (m *metrics) label(topic, group string) (string, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := [2]string{topic, group}
	switch {
	case m.seen[key]:
	case len(m.seen) >= maxLabels:
		return otherLabel, otherLabel
	default:
		m.seen[key] = true
	}
	return topic, group
}

// latency buckets: from 100 µs, below which a call does not come, to 60 s, the
// longest wait of a long poll.
func latency() []float64 {
	return []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
}

// ackLatency begins at what a time of publish can tell, a millisecond, and goes on to what
// a backlog and a day of retries take.
func ackLatency() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 86_400}
}

// micros are seconds in microseconds.
func micros(seconds []float64) (out []int64) {
	for _, s := range seconds {
		out = append(out, int64(math.Round(s*1e6)))
	}
	return out
}

func newMetrics(version string) *metrics {
	var labelled []labelledSeries
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "strandmq_" + name, Help: help}, labels)
		labelled = append(labelled, v)
		return v
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "strandmq_" + name, Help: help, Buckets: latency()}, labels)
		labelled = append(labelled, v)
		return v
	}
	byGroup := func(name, help string) *histograms {
		h := newHistograms(name, help, 1e6, micros(latency())...)
		labelled = append(labelled, h)
		return h
	}
	m := &metrics{
		registry:       prometheus.NewRegistry(),
		published:      counter("messages_published_total", "Messages stored since the broker started, duplicates not counted.", "topic"),
		publishedBytes: counter("bytes_published_total", "Bytes of keys, headers and bodies of the messages stored since the broker started.", "topic"),
		duplicates:     counter("messages_duplicate_total", "Publishes since the broker started that were stored before and got the first receipt again.", "topic"),
		refused:        counter("messages_refused_total", "Messages that were refused one by one since the broker started.", "topic", "reason"),
		publishTime:    histogram("publish_duration_seconds", "From a publish call's arrival until all its messages are on disk or refused.", "topic"),
		delivered:      counter("messages_delivered_total", "Deliveries in answers since the broker started; a delivery that was asked for again counts again.", "topic", "group"),
		redelivered:    counter("messages_redelivered_total", "Of the deliveries in answers, those with a second or later attempt.", "topic", "group"),
		stale:          counter("messages_stale_total", "Settlements since the broker started that were refused, as their token was not that of the current delivery.", "topic", "group"),
		deliveryTime:   byGroup("delivery_latency_seconds", "From a message's publish to its first delivery's answer."),
		rejects:        counter("rejected_total", "Calls that were refused as a whole since the broker started, by reason of docs/errors.md.", "reason"),
		calls:          histogram("rpc_server_call_duration_seconds", "Calls answered, long polls with their wait.", "rpc_system_name", "rpc_method", "rpc_response_status_code"),
		crowded:        counter("connections_refused_total", "Connections that were closed as they came since the broker started: their address had as many as one may have."),
		elected:        prometheus.NewCounter(prometheus.CounterOpts{Name: "strandmq_elections_won_total", Help: "How often a replica on this node came to lead its partition since the broker started, by an election or since it was handed over."}),
		seen:           map[[2]string]bool{},
	}
	m.labelled = labelled
	m.registry.MustRegister(m.elected)
	for _, v := range labelled {
		m.registry.MustRegister(v)
	}
	// go_gc_heap_live_bytes: what the last collection left. What is allocated by now is
	// mostly garbage.
	live := collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile("^/gc/heap/live:bytes$")})
	m.registry.MustRegister(collectors.NewGoCollector(live), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "strandmq_build_info", Help: "What is running; always 1."}, []string{"version", "revision", "go"})
	info.WithLabelValues(version, revision(), runtime.Version()).Set(1)
	m.registry.MustRegister(info)
	return m
}

// revision is the commit that the binary was built from, if it knows.
func revision() string {
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}

// call starts the clock of one call; the returned function stops it.
func (m *metrics) call(procedure string) func(code string) {
	start := time.Now()
	return func(code string) {
		m.calls.WithLabelValues("connect", strings.TrimPrefix(procedure, "/"), code).Observe(time.Since(start).Seconds())
	}
}

func (m *metrics) rejected(reason string) {
	m.rejects.WithLabelValues(reason).Inc()
	if m.full != nil && (reason == "BUSY" || reason == "TOO_MANY_STREAMS") {
		m.full(reason)
	}
}

// forget drops a deleted topic's series, those of its groups included.
func (m *metrics) forget(topic string) {
	m.drop(prometheus.Labels{"topic": topic}, func(key [2]string) bool { return key[0] == topic })
}

// forgetGroup drops a deleted group's series.
func (m *metrics) forgetGroup(topic, group string) {
	m.drop(prometheus.Labels{"topic": topic, "group": group}, func(key [2]string) bool { return key == [2]string{topic, group} })
}

func (m *metrics) drop(of prometheus.Labels, named func(key [2]string) bool) {
	m.mu.Lock()
	maps.DeleteFunc(m.seen, func(key [2]string, _ bool) bool { return named(key) })
	m.mu.Unlock()
	for _, v := range m.labelled {
		v.DeletePartialMatch(of)
	}
}

// maxScrapes bounds the scrapes that are answered at once; more are refused with 503.
const maxScrapes = 512

// handler serves the registry, and what collect reads from the log, for at most 5 s.
// Scrapes at once share it. Compressing would cost more than all else of a scrape, for
// clients on this machine.
func (m *metrics) handler(collect func(context.Context, chan<- prometheus.Metric)) http.Handler {
	m.registry.MustRegister(collector(collect))
	scrape := promhttp.HandlerFor(prometheus.GathererFunc(share(m.registry.Gather).Gather), promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, EnableOpenMetrics: true, DisableCompression: true})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scrape.ServeHTTP(laterWriter{w}, r)
	})
}

// laterWriter says of a page that is unavailable when to ask again.
type laterWriter struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w laterWriter) WriteHeader(status int) {
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w laterWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// collector reads metrics when asked. Their names depend on what exists, so it
// describes none beforehand.
type collector func(context.Context, chan<- prometheus.Metric)

func (c collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c(ctx, ch)
}

// refusedSettlement counts settlements whose token was not current.
func (m *metrics) refusedSettlement(err error, topic, group string, n float64) {
	var stale *consumer.ErrStale
	if errors.As(err, &stale) {
		m.stale.WithLabelValues(topic, group).Add(n)
	}
}
