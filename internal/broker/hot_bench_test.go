package broker

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// BenchmarkHotKey consumes a backlog over streams beside a key whose first message
// is never settled, with a message of that key for each of the others, and a
// backlog without: the same messages of other keys, a slice of each topic in turn.
// It tells the medians of what other keys got a second and of their ratio, and the
// live memory when a fifth of it had piled up behind the key, so that caches are
// full, and when all had.
func BenchmarkHotKey(b *testing.B) {
	const turns, batch, warm = 10, 500, 20_000
	n := max(b.N/turns, 1)
	a := benchStreams(b)
	var ms [2]*hotMember
	for i, hot := range []bool{false, true} {
		topic := fmt.Sprint("hot-", hot)
		a.topic(b, topic, 1)
		a.group(b, topic, "g", patient())
		r := a.route(b, topic)
		s := a.publishStream(b, b.Context())
		for done := 0; done < warm+n*turns; {
			recs := make([]record.Record, 0, 2*batch)
			for range batch {
				recs = append(recs, keyed(fmt.Sprint("key-", done%10_000), strings.Repeat("x", 100)))
				if hot {
					recs = append(recs, keyed("hot", strings.Repeat("x", 100)))
				}
				done++
			}
			sends(b, s, &strandmqv1.PublishBatch{Topic: topic, RecordBatch: pack(r, record.Meta{}, recs...)})
		}
		_ = s.CloseRequest()
		if _, _, err := rest(s); err != nil {
			b.Fatal(err)
		}
		what := opened(topic, "g", "m")
		what.RecordBatches = true
		ms[i] = &hotMember{member: joins(b, func(c context.Context) consuming { return a.consumeStream(b, c) }, what, 0), b: b}
		if hot {
			ms[i].extra = 1
		}
		ms[i].run(warm)
	}
	before := 0.0
	var plain, hot, ratio []float64
	b.ResetTimer()
	for i := range turns {
		if i == turns/5 {
			b.StopTimer()
			before = liveMiB()
			b.StartTimer()
		}
		p, h := ms[0].run(n), ms[1].run(n)
		plain, hot, ratio = append(plain, p), append(hot, h), append(ratio, h/p)
	}
	b.StopTimer()
	for _, fs := range [][]float64{plain, hot, ratio} {
		slices.Sort(fs)
	}
	b.ReportMetric(plain[turns/2], "msg/s-without")
	b.ReportMetric(hot[turns/2], "msg/s-with")
	b.ReportMetric(ratio[turns/2], "with/without")
	b.ReportMetric(before, "MiB-at-a-fifth")
	b.ReportMetric(liveMiB(), "MiB-at-the-end")
}

func liveMiB() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// hotMember acks what it gets but messages of the hot key.
type hotMember struct {
	*member
	b     *testing.B
	extra uint32 // credit for the hot key's first message
}

// run acks so many messages of other keys, and returns how many a second.
func (m *hotMember) run(n int) float64 {
	const window = 10_000
	begun := time.Now()
	granted := min(n, window)
	m.send(&strandmqv1.ConsumeRequest{Credits: uint32(granted) + m.extra})
	m.extra = 0
	for done := 0; done < n; {
		res, err := m.Receive()
		if err != nil {
			m.b.Fatal(err)
		}
		req := &strandmqv1.ConsumeRequest{}
		for _, x := range res.GetBatches() {
			v, _, err := record.View(x.GetRecords())
			if err != nil {
				m.b.Fatal(err)
			}
			first, next := x.GetFirstNumber(), x.GetFirstNumber()
			settle := func(to uint64) {
				if to > first {
					req.Settlements = append(req.Settlements, &strandmqv1.SettleRun{First: first, Last: to - 1, Action: ack})
				}
			}
			c := v.Cursor()
			for raw, ok := c.Next(); ok; raw, ok = c.Next() {
				if string(raw.Key()) == "hot" {
					settle(next)
					first = next + 1
				} else {
					done++
					if granted < n {
						granted++
						req.Credits++
					}
				}
				next++
			}
			settle(next)
		}
		if len(req.Settlements) > 0 {
			m.send(req)
		}
	}
	return float64(n) / time.Since(begun).Seconds()
}
