package loadtest

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are kept in microseconds, from one to an hour, to three digits.
const (
	finest  = 1
	longest = int64(time.Hour / time.Microsecond)
	digits  = 3
)

// latencies collects from many goroutines. Each writes to one of a few
// histograms, so they hardly ever wait for each other, and memory does not grow
// with their number.
type latencies struct {
	shards [8]struct {
		mu     sync.Mutex
		all    *hdrhistogram.Histogram
		recent *hdrhistogram.Histogram // since the last look
	}
}

func newLatencies() *latencies {
	l := &latencies{}
	for i := range l.shards {
		l.shards[i].all = hdrhistogram.New(finest, longest, digits)
		l.shards[i].recent = hdrhistogram.New(finest, longest, digits)
	}
	return l
}

// record adds latencies in nanoseconds for one of the writers. measured: they
// belong to the figures of the run, not only to what is shown meanwhile.
func (l *latencies) record(writer int, measured bool, nanos ...int64) {
	s := &l.shards[writer%len(l.shards)]
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range nanos {
		v := min(max(n/int64(time.Microsecond), finest), longest)
		// Values are within the range by the line above.
		_ = s.recent.RecordValue(v)
		if measured {
			_ = s.all.RecordValue(v)
		}
	}
}

// recordMany adds the same latency for so many messages.
func (l *latencies) recordMany(writer int, measured bool, nanos, count int64) {
	s := &l.shards[writer%len(l.shards)]
	s.mu.Lock()
	defer s.mu.Unlock()
	v := min(max(nanos/int64(time.Microsecond), finest), longest)
	// Values are within the range by the line above.
	_ = s.recent.RecordValues(v, count)
	if measured {
		_ = s.all.RecordValues(v, count)
	}
}

// look merges what came since the last look.
func (l *latencies) look() Latency {
	sum := hdrhistogram.New(finest, longest, digits)
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		sum.Merge(s.recent)
		s.recent.Reset()
		s.mu.Unlock()
	}
	return latencyOf(sum)
}

// total merges all that was measured.
func (l *latencies) total() Latency {
	sum := hdrhistogram.New(finest, longest, digits)
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		sum.Merge(s.all)
		s.mu.Unlock()
	}
	return latencyOf(sum)
}

// Latency is a distribution, in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	Min   float64 `json:"min_ms"`
	Mean  float64 `json:"mean_ms"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p999_ms"`
	P9999 float64 `json:"p9999_ms"`
	Max   float64 `json:"max_ms"`
}

func latencyOf(h *hdrhistogram.Histogram) Latency {
	if h.TotalCount() == 0 {
		return Latency{}
	}
	ms := func(v int64) float64 { return float64(v) / 1000 }
	at := h.ValueAtPercentiles([]float64{50, 90, 99, 99.9, 99.99})
	return Latency{
		Count: h.TotalCount(), Min: ms(h.Min()), Mean: float64(int64(h.Mean())) / 1000,
		P50: ms(at[50]), P90: ms(at[90]), P99: ms(at[99]), P999: ms(at[99.9]), P9999: ms(at[99.99]), Max: ms(h.Max()),
	}
}
