package partition

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strandmq/strandmq/partition/logstore"
)

// BenchmarkHalfLoad finds out how much the log takes when everybody publishes as
// fast as it goes, and then offers half of that for ten seconds, at even
// distances and whether or not earlier publishes are answered: what waits shows
// as latency, and not as fewer publishes. A latency counts from when a publish
// was due. Run it once: -benchtime 1x.
func BenchmarkHalfLoad(b *testing.B) {
	const partitions, findFor, offerFor = 8, 4 * time.Second, 10 * time.Second
	for _, size := range []int{1 << 10, 16 << 10} {
		b.Run(fmt.Sprintf("body=%dKiB", size>>10), func(b *testing.B) {
			for range b.N {
				store, err := logstore.Open(logstore.Config{Dir: b.TempDir() + "/s"})
				if err != nil {
					b.Fatal(err)
				}
				h, err := Open(Config{Node: 1, Store: store})
				if err != nil {
					b.Fatal(err)
				}
				for id := range PartitionID(partitions) {
					if err := h.Create(within(b), id+1); err != nil {
						b.Fatal(err)
					}
				}
				body := string(make([]byte, size))
				most := saturation(b, h, partitions, body, findFor)
				before := store.Metrics()
				took, refused := offer(b, h, partitions, body, most/2, offerFor)
				after := store.Metrics()
				slices.Sort(took)
				ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
				b.ReportMetric(most, "most/s")
				b.ReportMetric(float64(len(took))/offerFor.Seconds(), "offered/s")
				b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
				b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
				b.ReportMetric(ms(took[len(took)-1]), "max-ms")
				b.ReportMetric(float64(refused), "refused")
				b.ReportMetric(float64(after.WriteStalls-before.WriteStalls), "stalls")
				b.ReportMetric(ms(after.WriteStallFor-before.WriteStallFor), "stall-ms")
				b.ReportMetric(0, "ns/op") // how long the whole takes is no figure
				if err := h.Close(); err != nil {
					b.Fatal(err)
				}
				if err := store.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// saturation is how many publishes a second are stored when 64 callers of each
// partition publish one after the other.
func saturation(b *testing.B, h *Host, partitions int, body string, during time.Duration) float64 {
	var stored atomic.Int64
	var over atomic.Bool
	var wg sync.WaitGroup
	began := time.Now()
	for p := range partitions * 64 {
		wg.Go(func() {
			for !over.Load() {
				if _, err := h.Publish(b.Context(), PartitionID(p%partitions+1), batch(body)); err != nil {
					time.Sleep(5 * time.Millisecond) // as a client that is told to come again
					continue
				}
				stored.Add(1)
			}
		})
	}
	time.Sleep(during) // the length of the measurement
	over.Store(true)
	wg.Wait()
	return float64(stored.Load()) / time.Since(began).Seconds()
}

// offer publishes perSecond messages a second, each when it is due, and returns
// how long after that each was answered, and how many were refused.
func offer(b *testing.B, h *Host, partitions int, body string, perSecond float64, during time.Duration) ([]time.Duration, int64) {
	n := int(perSecond * during.Seconds())
	took := make([]time.Duration, n)
	var refused atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for i := 0; i < n; {
		next := int(time.Since(began).Seconds() * perSecond)
		for ; i < min(next, n); i++ {
			at, due := i, began.Add(time.Duration(float64(i)/perSecond*float64(time.Second)))
			wg.Add(1)
			err := h.PublishAsync(PartitionID(i%partitions+1), batch(body), func(_ []Stored, err error) {
				defer wg.Done()
				took[at] = time.Since(due)
				if err != nil {
					refused.Add(1)
				}
			})
			if err != nil {
				took[at] = time.Since(due)
				refused.Add(1)
				wg.Done()
			}
		}
		time.Sleep(200 * time.Microsecond) // between looks at what is due
	}
	wg.Wait()
	return took, refused.Load()
}
