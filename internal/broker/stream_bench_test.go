package broker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// benchStreams is a broker and the API over HTTP/2.
func benchStreams(b *testing.B) api {
	n := start(b, b.TempDir())
	a := apiOver(httpClient(b, true), n.URL())
	a.topic(b, "t", benchPartitions)
	return a
}

// benchRecords makes one batch for each partition, of keys that live there.
func benchRecords(r *strandmqv1.RouteResponse, n, size int) [][]byte {
	recs := make([][]record.Record, len(r.GetPartitions()))
	for i, left := 0, len(recs); left > 0; i++ {
		key := fmt.Sprint("key-", i)
		if p := partitionOf(r, key); len(recs[p]) < n {
			if recs[p] = append(recs[p], keyed(key, strings.Repeat("x", size))); len(recs[p]) == n {
				left--
			}
		}
	}
	out := make([][]byte, len(recs))
	for p := range recs {
		out[p] = pack(r, record.Meta{}, recs[p]...)
	}
	return out
}

// BenchmarkPublishStream pipelines record batches over two streams, one batch a
// frame, and measures until the last is on disk; with many streams each waits for
// the answer of its one message.
func BenchmarkPublishStream(b *testing.B) {
	for _, c := range []struct{ streams, window, batch, size int }{{2, 32, 500, 100}, {2, 32, 100, 1024}, {64, 1, 1, 100}} {
		b.Run(fmt.Sprintf("streams=%d/window=%d/batch=%d/size=%d", c.streams, c.window, c.batch, c.size), func(b *testing.B) {
			raw := rawBatches(b, c.batch*c.size, 16)
			a := benchStreams(b)
			batches := benchRecords(a.route(b, "t"), c.batch, c.size)
			bare := bareCalls(b, c.streams, func(url string) api { return apiOver(httpClient(b, true), url) }, func(ctx context.Context, a api) func() error {
				s := a.publishStream(b, ctx)
				sent, answered := 0, 0
				return func() error { // as many on the way as below
					for ; sent-answered < c.window; sent++ {
						if err := s.Send(&strandmqv1.PublishStreamRequest{Batches: []*strandmqv1.PublishBatch{{Topic: "t", RecordBatch: batches[0]}}}); err != nil {
							return err
						}
					}
					_, err := s.Receive()
					answered++
					return err
				}
			})
			b.SetBytes(int64(c.batch * c.size))
			b.ReportAllocs()
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N))
			var running sync.WaitGroup
			for n := range c.streams {
				s := a.publishStream(b, b.Context())
				room := make(chan struct{}, c.window)
				running.Go(func() {
					for i := n; left.Add(-1) >= 0; i++ {
						room <- struct{}{}
						p := i % len(batches)
						sends(b, s, &strandmqv1.PublishBatch{Topic: "t", Partition: uint32(p), RecordBatch: batches[p]})
					}
					_ = s.CloseRequest()
				})
				running.Go(func() {
					for {
						res, err := s.Receive()
						if err != nil {
							return
						}
						for _, r := range res.GetResults() {
							if r.GetRun() == nil {
								b.Error(r)
							}
							<-room
						}
					}
				})
			}
			running.Wait()
			b.StopTimer()
			perSecond := float64(b.N) / b.Elapsed().Seconds()
			b.ReportMetric(perSecond*float64(c.batch), "msg/s")
			b.ReportMetric(perSecond/raw, "of-raw")
			b.ReportMetric(perSecond/bare, "of-bare")
		})
	}
}

// BenchmarkConsumeStream has a backlog delivered as record batches over two
// streams, each frame acked by one run.
func BenchmarkConsumeStream(b *testing.B) {
	const members, batch, size, credits = 2, 500, 100, 10_000
	a := benchStreams(b)
	a.group(b, "t", "g", patient())
	r := a.route(b, "t")
	batches := benchRecords(r, batch, size)
	s := a.publishStream(b, b.Context())
	for i := range b.N {
		sends(b, s, &strandmqv1.PublishBatch{Topic: "t", Partition: uint32(i % len(batches)), RecordBatch: batches[i%len(batches)]})
	}
	_ = s.CloseRequest()
	if _, _, err := rest(s); err != nil {
		b.Fatal(err)
	}
	var ms []*member
	for i := range members {
		what := opened("t", "g", fmt.Sprint("m", i))
		what.RecordBatches = true
		ms = append(ms, joins(b, func(c context.Context) consuming { return a.consumeStream(b, c) }, what, 0))
	}
	b.SetBytes(batch * size)
	b.ReportAllocs()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N) * batch)
	var running sync.WaitGroup
	for _, m := range ms {
		m.send(&strandmqv1.ConsumeRequest{Credits: credits})
		running.Go(func() {
			for {
				res, err := m.Receive()
				if err != nil {
					return
				}
				req := &strandmqv1.ConsumeRequest{}
				for _, x := range res.GetBatches() {
					v, _, err := record.View(x.GetRecords())
					if err != nil {
						b.Error(err)
						return
					}
					req.Credits += uint32(v.Len())
					req.Settlements = append(req.Settlements, &strandmqv1.SettleRun{First: x.GetFirstNumber(), Last: x.GetFirstNumber() + uint64(v.Len()) - 1, Action: ack})
				}
				if req.Credits > 0 {
					m.send(req)
				}
				for _, x := range res.GetSettled() {
					if x.GetProblem() != nil {
						b.Error(x)
					}
					if left.Add(-int64(x.GetLast()-x.GetFirst()+1)) <= 0 {
						for _, m := range ms {
							m.send(&strandmqv1.ConsumeRequest{Leave: true})
						}
					}
				}
			}
		})
	}
	running.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds(), "msg/s")
}
