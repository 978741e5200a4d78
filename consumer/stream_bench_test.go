package consumer

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
)

// benchNode is a node over a store on disk.
func benchNode(b *testing.B, parts int) *node {
	n := &node{t: b, disk: b.TempDir()}
	n.start()
	for i := 1; i <= parts; i++ {
		id := partition.PartitionID(i)
		if err := n.host.Create(context.Background(), id); err != nil {
			b.Fatal(err)
		}
		n.parts = append(n.parts, id)
	}
	b.Cleanup(n.stop)
	n.group(1, Default())
	return n
}

// fill publishes messages of 100 bytes, over all partitions, of so many keys.
func (n *node) fill(count, keys int) {
	body := make([]byte, 100)
	var rs []record.Record
	for i, p := 0, 0; i < count; p++ {
		rs = rs[:0]
		for ; i < count && len(rs) < 500; i++ {
			key := binary.BigEndian.AppendUint64(nil, uint64(i%keys))
			rs = append(rs, record.Record{HasKey: true, Key: key, KeyHash: keyspace.Hash(7, key), Body: body})
		}
		if _, err := n.host.Publish(context.Background(), n.parts[p%len(n.parts)], record.Append(nil, record.Meta{}, rs)); err != nil {
			n.t.Fatal(err)
		}
	}
}

// cpuTime is what the process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkStream receives and acks a backlog through streams: host, log and
// groups, without the API. The batches of a Next are settled as they came. From
// memory, the node keeps most of what was published; from disk, it was started anew.
func BenchmarkStream(b *testing.B) {
	for _, c := range []struct {
		from                 string
		parts, keys, members int
	}{
		{"memory", 8, 100_000, 1}, {"memory", 8, 100_000, 2}, {"memory", 8, 1000, 1}, {"memory", 1, 100_000, 1},
		{"disk", 8, 100_000, 1}, {"disk", 8, 100_000, 2},
	} {
		b.Run(fmt.Sprintf("%s/partitions=%d/keys=%d/members=%d", c.from, c.parts, c.keys, c.members), func(b *testing.B) {
			n := benchNode(b, c.parts)
			n.fill(b.N, c.keys)
			if c.from == "disk" {
				n.stop()
				n.start()
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := cpuTime(b)
			n.consume(b.N, c.members, 4000)
			b.StopTimer()
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/msg")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// consume acks so many messages by some members with a window each.
func (n *node) consume(count, members, window int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var left atomic.Int64
	left.Store(int64(count))
	over := make(chan struct{})
	done := make(chan struct{}, members)
	for m := range members {
		st, err := n.shell.Open(StreamRequest{Group: 1, Member: fmt.Sprint("m", m), Session: uint64(m + 1)})
		if err != nil {
			n.t.Fatal(err)
		}
		st.SetShares(n.shares())
		st.AddCredit(window)
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				hs, err := st.Next(ctx)
				if err != nil {
					return
				}
				runs := make([]SettleRun, 0, len(hs))
				for i := range hs {
					runs = append(runs, SettleRun{First: hs[i].First, Last: hs[i].First + uint64(len(hs[i].Deliveries)) - 1, Action: Ack})
				}
				st.Settle(ctx, runs, func(rs []SettleRunResult) {
					acked := 0
					for _, r := range rs {
						if r.Err != nil {
							n.t.Error(r.Err)
						}
						acked += int(r.Last-r.First) + 1
					}
					st.AddCredit(acked)
					if left.Add(-int64(acked)) == 0 {
						close(over)
					}
				})
			}
		}()
	}
	<-over
	cancel()
	for range members {
		<-done
	}
}

// BenchmarkWaitingMember publishes one message at a time to a member that waits,
// and acks it. It tells the medians, and what the end to end takes of them: near
// 1 if the hand-out is in the commit of the publish, 2 if it has one of its own.
func BenchmarkWaitingMember(b *testing.B) {
	n := benchNode(b, 1)
	st, err := n.shell.Open(StreamRequest{Group: 1, Member: "m", Session: 1})
	if err != nil {
		b.Fatal(err)
	}
	st.SetShares(n.shares())
	st.AddCredit(1 << 20)
	type arrival struct {
		h  Handed
		at time.Time
	}
	came := make(chan arrival, 1)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			hs, err := st.Next(ctx)
			if err != nil {
				return
			}
			came <- arrival{hs[0], time.Now()}
		}
	}()
	key := []byte("k")
	recs := []record.Record{{HasKey: true, Key: key, KeyHash: keyspace.Hash(7, key), Body: make([]byte, 100)}}
	var publish, endToEnd, settle []time.Duration
	settled := make(chan struct{}, 1)
	b.ResetTimer()
	for range b.N {
		batch := record.Append(nil, record.Meta{}, recs)
		begun := time.Now()
		if _, err := n.host.Publish(context.Background(), 1, batch); err != nil {
			b.Fatal(err)
		}
		publish = append(publish, time.Since(begun))
		a := <-came
		endToEnd = append(endToEnd, a.at.Sub(begun))
		begun = time.Now()
		st.Settle(ctx, []SettleRun{{First: a.h.First, Action: Ack}}, func([]SettleRunResult) { settled <- struct{}{} })
		<-settled
		settle = append(settle, time.Since(begun))
	}
	b.StopTimer()
	cancel()
	<-over
	median := func(ds []time.Duration) float64 {
		slices.Sort(ds)
		return float64(ds[len(ds)/2].Nanoseconds()) / 1e3
	}
	p, e, s := median(publish), median(endToEnd), median(settle)
	b.ReportMetric(p, "publish-p50-us")
	b.ReportMetric(e, "end-to-end-p50-us")
	b.ReportMetric(s, "settle-p50-us")
	b.ReportMetric(e/p, "end-to-end/publish")
	b.ReportMetric(s/p, "settle/publish")
}
