package partition

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

const benchPartitions = 8

// BenchmarkPublish stores batches through eight partitions, synced, and then the
// same bytes with as many committers in a bare Pebble store with the same
// options (logstore.Yardstick): the share tells what partitions, raft, checksums
// and the offset index cost.
func BenchmarkPublish(b *testing.B) {
	for _, c := range []struct {
		body, batch, publishers int
		ids                     bool
	}{
		{100, 500, 16, false},
		{100, 500, 64, false},
		{100, 50, 64, false},
		{100, 500, 16, true},
		{1 << 10, 100, 16, false},
		{1 << 10, 1, 256, false},
	} {
		name := fmt.Sprintf("%dB×%d/publishers=%d", c.body, c.batch, c.publishers)
		if c.ids {
			name += "/ids"
		}
		b.Run(name, func(b *testing.B) {
			recs := make([]record.Record, c.batch)
			for i := range recs {
				recs[i] = record.Record{KeyHash: uint64(i), HasKey: true, Key: fmt.Appendf(nil, "key-%04d", i), Body: make([]byte, c.body)}
			}
			size := record.Size(record.Meta{}, recs)
			raw := benchRaw(b, size, c.publishers)

			store, err := logstore.Open(logstore.Config{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			h, err := Open(Config{Node: 1, Store: store})
			if err != nil {
				b.Fatal(err)
			}
			for p := range benchPartitions {
				if err := h.Create(within(b), PartitionID(p+1)); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(size))
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			for g := range c.publishers {
				wg.Add(1)
				go func() {
					defer wg.Done()
					mine := append([]record.Record(nil), recs...)
					buf := record.Append(nil, record.Meta{}, mine)
					for n := 0; left.Add(-1) >= 0; n++ {
						if c.ids {
							for i := range mine {
								mine[i].ID = fmt.Sprintf("%d-%d-%d", g, n, i)
							}
							buf = record.Append(buf[:0], record.Meta{}, mine)
						}
						if _, err := h.Publish(b.Context(), PartitionID(g%benchPartitions+1), buf); err != nil {
							b.Error(err)
							return
						}
					}
				}()
			}
			wg.Wait()
			b.StopTimer()
			perSecond := float64(b.N) / b.Elapsed().Seconds()
			b.ReportMetric(perSecond*float64(c.batch), "msg/s")
			b.ReportMetric(perSecond/raw, "of-raw")
			b.ReportMetric(0, "ns/op")
			if err := h.Close(); err != nil {
				b.Fatal(err)
			}
			if err := store.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// benchRaw returns how many values of a size per second committers store,
// synced, in a bare store.
func benchRaw(b *testing.B, size, committers int) float64 {
	n, err := logstore.Yardstick(logstore.Config{Dir: b.TempDir()}, size, committers, time.Second)
	if err != nil {
		b.Fatal(err)
	}
	return n
}
