package broker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/partition/logstore"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// The benchmarks here go through the API, from client to disk and back. Each is
// also told as a share of what bare Pebble commits of the same message bytes in
// the same run ("of-raw"), and those that publish as a share of the same calls to a
// service that does nothing ("of-bare").

const benchPartitions = 8

// rawBatches is how many batches of a size a second committers store, synced, in
// bare Pebble.
func rawBatches(b *testing.B, size, committers int) float64 {
	b.Helper()
	n, err := logstore.Yardstick(logstore.Config{Dir: b.TempDir()}, size, committers, time.Second)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

func benchBroker(b *testing.B, json bool) api {
	a := benchCaller(b, start(b, b.TempDir()).URL(), json)
	a.topic(b, "t", benchPartitions)
	return a
}

func benchCaller(b *testing.B, url string, json bool) api {
	opts := []connect.ClientOption{connect.WithAcceptCompression("gzip", nil, nil)}
	if json {
		opts = append(opts, connect.WithProtoJSON())
	}
	return newAPI(b, url, opts...)
}

func BenchmarkPublish(b *testing.B) {
	const callers = 16
	for _, c := range []struct {
		batch, size int
		json        bool
	}{{1, 1024, false}, {500, 100, false}, {100, 1024, false}, {100, 1024, true}} {
		b.Run(fmt.Sprintf("batch=%d/size=%d/json=%v", c.batch, c.size, c.json), func(b *testing.B) {
			raw := rawBatches(b, c.batch*c.size, callers)
			var ms []*strandmqv1.Message
			for i := range c.batch {
				ms = append(ms, msg(fmt.Sprint("key-", i), strings.Repeat("x", c.size)))
			}
			bare := bareCalls(b, callers, func(url string) api { return benchCaller(b, url, c.json) }, func(c context.Context, a api) func() error {
				return func() error {
					_, err := a.publish.Publish(c, &strandmqv1.PublishRequest{Topic: "t", Messages: ms})
					return err
				}
			})
			a := benchBroker(b, c.json)
			b.SetBytes(int64(c.batch * c.size))
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N))
			var running sync.WaitGroup
			for range callers {
				running.Go(func() {
					for left.Add(-1) >= 0 {
						res, err := a.publish.Publish(context.Background(), &strandmqv1.PublishRequest{Topic: "t", Messages: ms})
						if err != nil || res.GetResults()[0].GetReceipt() == nil {
							b.Error(err, res)
							return
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

// BenchmarkReceiveSettle has what was published received and acked by four
// members, batch by batch. The share is of storing the same messages: it tells
// what being delivered costs beside being published.
func BenchmarkReceiveSettle(b *testing.B) {
	const members, batch = 4, 500
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("members=%d/batch=%d/size=%d", members, batch, size), func(b *testing.B) {
			raw := rawBatches(b, batch*size, 16)
			a := benchBroker(b, false)
			a.group(b, "t", "g", nil)
			ms := make([]*strandmqv1.Message, batch)
			for n := range b.N {
				for i := range ms {
					ms[i] = msg(fmt.Sprint("key-", (n*batch+i)%10_000), strings.Repeat("x", size))
				}
				a.store(b, "t", ms...)
			}
			var sessions []*strandmqv1.JoinResponse
			for m := range members {
				res, err := a.consume.Join(ctx(b), &strandmqv1.JoinRequest{Topic: "t", Group: "g", Member: fmt.Sprint("m", m)})
				if err != nil {
					b.Fatal(err)
				}
				sessions = append(sessions, res)
			}
			b.SetBytes(int64(batch * size))
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N * batch))
			var running sync.WaitGroup
			for m, session := range sessions {
				running.Go(func() {
					name := fmt.Sprint("m", m)
					for left.Load() > 0 {
						res, err := a.consume.Receive(context.Background(), &strandmqv1.ReceiveRequest{
							Topic: "t", Group: "g", Member: name, Session: session.GetSession(), MaxMessages: batch, WaitMs: 50,
						})
						if err != nil {
							b.Error(err)
							return
						}
						if len(res.GetDeliveries()) == 0 {
							continue
						}
						list := make([]*strandmqv1.Settlement, len(res.GetDeliveries()))
						for i, d := range res.GetDeliveries() {
							list[i] = &strandmqv1.Settlement{Token: d.GetToken(), Action: ack}
						}
						settled, err := a.consume.Settle(context.Background(), &strandmqv1.SettleRequest{Topic: "t", Group: "g", Member: name, Settlements: list})
						if err != nil {
							b.Error(err)
							return
						}
						for _, r := range settled.GetResults() {
							if r.GetProblem() != nil {
								b.Error(r.GetProblem())
								return
							}
						}
						left.Add(-int64(len(list)))
					}
				})
			}
			running.Wait()
			b.StopTimer()
			perSecond := float64(b.N) / b.Elapsed().Seconds()
			b.ReportMetric(perSecond*batch, "msg/s")
			b.ReportMetric(perSecond/raw, "of-raw")
		})
	}
}
