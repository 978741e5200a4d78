package loadtest

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/check"
	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func eightWays() *strandmqv1.RouteResponse {
	r := &strandmqv1.RouteResponse{Seed: 7}
	for i, x := range keyspace.Ranges(8) {
		r.Partitions = append(r.Partitions, &strandmqv1.RoutePartition{Partition: uint32(i), HashFirst: x.First, HashLast: x.Last})
	}
	return r
}

// What the load test itself pays to make a message, and to judge one: it has to
// be little beside what a broker pays.
func BenchmarkMake(b *testing.B) {
	l, err := newLanes(1, 100, 100_000, 1, eightWays())
	if err != nil {
		b.Fatal(err)
	}
	var out outbox
	var buf []byte
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		x := l.all[i%len(l.all)]
		out.clear()
		out.add("", x.partition, record.Meta{}, l.records(x, 256, 1, false), false)
		if buf, err = (proto.MarshalOptions{}).MarshalAppend(buf[:0], &out.frame); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(i)/256, "ns/msg")
}

func BenchmarkJudge(b *testing.B) {
	const batch, keys = 256, 100_000
	l, err := newLanes(1, 100, keys, 1, eightWays())
	if err != nil {
		b.Fatal(err)
	}
	// Each frame brings a batch, and confirms what was settled of the one before.
	var frames [][]byte
	offsets := make([]uint64, 8)
	for i := range uint64(64) {
		x := l.all[i%8]
		m := &strandmqv1.ConsumeResponse{Batches: []*strandmqv1.DeliveryBatch{{
			Partition: x.partition, FirstNumber: i*batch + 1, FirstOffset: offsets[x.partition],
			Records: record.Append(nil, record.Meta{}, l.records(x, batch, 1, false)),
		}}}
		if i > 0 {
			m.Settled = []*strandmqv1.SettleRunResult{{First: (i-1)*batch + 1, Last: i * batch}}
		}
		frames = append(frames, encode(b, m))
		offsets[x.partition] += batch
	}
	d := &drive{lanes: l, publish: newLatencies()}
	var m *taker
	var frame strandmqv1.ConsumeResponse
	overlaps := uint64(0) // two of a key in one batch, which a broker would not do
	b.ReportAllocs()
	n := 0
	for ; b.Loop(); n++ {
		if n%len(frames) == 0 {
			b.StopTimer()
			d.crowd = &crowd{d: d, tally: check.NewTally("g", keys), latency: newLatencies()}
			m = &taker{g: d.crowd}
			b.StartTimer()
		}
		if err := proto.Unmarshal(frames[n%len(frames)], &frame); err != nil {
			b.Fatal(err)
		}
		if err := m.handle(&frame); err != nil {
			b.Fatal(err)
		}
		overlaps = d.crowd.tally.So().Overlapping
	}
	if got := d.crowd.tally.So().Broken(); got != overlaps {
		b.Fatalf("%d violations, of which %d overlap", got, overlaps)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*batch), "ns/msg")
}
