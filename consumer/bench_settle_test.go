package consumer

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
)

// BenchmarkReceiveSettle is what four members receive and ack, batch by batch,
// through the log and the disk and without the API: of eight partitions, each
// of two. The share is of storing the same messages in bare Pebble.
func BenchmarkReceiveSettle(b *testing.B) {
	const partitions, members, batch = 8, 4, 500
	for _, size := range []int{100, 1 << 10} {
		b.Run(fmt.Sprintf("members=%d/batch=%d/size=%d", members, batch, size), func(b *testing.B) {
			raw, err := logstore.Yardstick(logstore.Config{Dir: b.TempDir()}, batch*size, 16, time.Second)
			if err != nil {
				b.Fatal(err)
			}
			n := &node{t: b, disk: b.TempDir()}
			n.start()
			defer n.stop()
			for p := range partitions {
				id := partition.PartitionID(p + 1)
				if err := n.host.Create(b.Context(), id); err != nil {
					b.Fatal(err)
				}
				if err := n.shell.CreateGroup(b.Context(), id, GroupSpec{ID: 1, Name: "g", Policy: Default()}); err != nil {
					b.Fatal(err)
				}
			}
			recs := make([]record.Record, batch)
			for i := range b.N {
				for j := range recs {
					at := uint64(i*batch + j)
					recs[j] = record.Record{KeyHash: keyspace.Mix(at % 10_000), HasKey: true, Key: fmt.Appendf(nil, "key-%d", at%10_000), Body: make([]byte, size)}
				}
				if _, err := n.host.Publish(b.Context(), partition.PartitionID(i%partitions+1), record.Append(nil, record.Meta{}, recs)); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(batch * size))
			b.ReportAllocs()
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N * batch))
			var running sync.WaitGroup
			for m := range members {
				req := ReceiveRequest{Group: 1, Member: fmt.Sprint("m", m), Session: uint64(m + 1), Max: batch, Wait: 50 * time.Millisecond}
				for p := m; p < partitions; p += members {
					req.Shares = append(req.Shares, Share{Partition: partition.PartitionID(p + 1)})
				}
				running.Go(func() {
					for left.Load() > 0 {
						ds, _, err := n.shell.Receive(b.Context(), req)
						if err != nil {
							b.Error(err)
							return
						}
						acks := make([]Settlement, len(ds))
						for i := range ds {
							acks[i] = Settlement{Token: ds[i].Token, Action: Ack}
						}
						for _, r := range n.shell.Settle(b.Context(), 1, acks) {
							if r.Err != nil {
								b.Error(r.Err)
								return
							}
						}
						left.Add(-int64(len(ds)))
					}
				})
			}
			running.Wait()
			b.StopTimer()
			perSecond := float64(b.N) / b.Elapsed().Seconds()
			b.ReportMetric(perSecond*batch, "msg/s")
			b.ReportMetric(perSecond/raw, "of-raw")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// onDisk is where a node's store is: in memory, unless a folder is named.
func (n *node) onDisk() logstore.Config {
	if n.disk != "" {
		return logstore.Config{FS: vfs.Default, Dir: n.disk}
	}
	return logstore.Config{
		FS: n.fs, Dir: "store", MemTableBytes: 8 << 20, CacheBytes: 8 << 20, MinSyncInterval: -1,
		StallAfter: time.Hour, StallStop: time.Hour, // a busy machine is no disk that hangs
	}
}
