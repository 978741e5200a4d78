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

// BenchmarkStalls publishes more than the disk takes, 16 KiB at a time, and
// counts how often the store made writes wait for flushes, with and without
// pacing. Run it for some seconds: -benchtime 5s.
func BenchmarkStalls(b *testing.B) {
	for _, paced := range []bool{false, true} {
		b.Run(fmt.Sprintf("paced=%v", paced), func(b *testing.B) {
			store, err := logstore.Open(logstore.Config{Dir: b.TempDir() + "/s"})
			if err != nil {
				b.Fatal(err)
			}
			h, err := Open(Config{Node: 1, Store: store, unpaced: !paced})
			if err != nil {
				b.Fatal(err)
			}
			const partitions, publishers = 8, 256
			for id := range PartitionID(partitions) {
				if err := h.Create(within(b), id+1); err != nil {
					b.Fatal(err)
				}
			}
			body := string(make([]byte, 16<<10))
			b.SetBytes(int64(len(body)))
			var left atomic.Int64
			left.Store(int64(b.N))
			took := make([][]time.Duration, publishers)
			var refused atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for p := range publishers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						began := time.Now()
						for {
							if _, err := h.Publish(b.Context(), PartitionID(p%partitions+1), batch(body)); err == nil {
								break
							}
							refused.Add(1)
							time.Sleep(5 * time.Millisecond) // as a client that is told to come again
						}
						took[p] = append(took[p], time.Since(began))
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			all := slices.Concat(took...)
			slices.Sort(all)
			m := store.Metrics()
			b.ReportMetric(float64(m.WriteStalls), "stalls")
			b.ReportMetric(float64(m.WriteStallFor.Milliseconds()), "stall-ms")
			b.ReportMetric(float64(refused.Load()), "refused")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(float64(all[len(all)-1].Microseconds())/1000, "max-ms")
			if err := h.Close(); err != nil {
				b.Fatal(err)
			}
			if err := store.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
