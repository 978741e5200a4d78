package partition

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// BenchmarkReplicatedPublish stores batches through eight partitions of three
// voters each: three hosts in one process, each with a store on the same disk, and
// between them channels that carry bytes. The yardstick is a bare store with as many
// committers, which writes everything once, so a third of it is the most that
// there can be.
func BenchmarkReplicatedPublish(b *testing.B) {
	for _, c := range []struct{ body, batch, publishers int }{
		{100, 500, 16},
		{100, 500, 64},
		{1 << 10, 100, 16},
		{1 << 10, 1, 256},
	} {
		b.Run(fmt.Sprintf("%dB×%d/publishers=%d", c.body, c.batch, c.publishers), func(b *testing.B) {
			recs := make([]record.Record, c.batch)
			for i := range recs {
				recs[i] = record.Record{KeyHash: uint64(i), HasKey: true, Key: fmt.Appendf(nil, "key-%04d", i), Body: make([]byte, c.body)}
			}
			size := record.Size(record.Meta{}, recs)
			raw := benchRaw(b, size, c.publishers)
			cl := &cluster{t: b, cut: make(map[[2]NodeID]bool)}
			for i := range 3 {
				m := &member{c: cl, id: NodeID(i + 1), dir: b.TempDir()}
				cl.nodes = append(cl.nodes, m)
			}
			for _, m := range cl.nodes {
				m.start()
			}
			for _, m := range cl.nodes {
				cl.isUp(m.id, true)
			}
			for p := range benchPartitions {
				cl.create(PartitionID(p + 1))
			}
			leaders := make([]*member, benchPartitions)
			for p := range leaders {
				leaders[p] = cl.leader(PartitionID(p + 1))
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
					buf := record.Append(nil, record.Meta{}, recs)
					for left.Add(-1) >= 0 {
						if _, err := leaders[g%benchPartitions].Publish(b.Context(), PartitionID(g%benchPartitions+1), buf); err != nil {
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
			for _, m := range cl.nodes {
				m.stop()
			}
		})
	}
}

// benchStore is a store as it is by default, in a folder.
func benchStore(dir string) logstore.Config { return logstore.Config{Dir: dir} }
