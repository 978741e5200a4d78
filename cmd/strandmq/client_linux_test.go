package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/table"
	"github.com/strandmq/strandmq/loadtest"
)

var (
	clientTime    = flag.Duration("client.time", 5*time.Second, "how long BenchmarkClient measures a shape")
	clientProfile = flag.String("client.profile", "", "write what takes the client's processor time to this folder, a profile for each row")
	clientBacklog = flag.Int("client.backlog", 1_000_000, "how many messages w4 of BenchmarkClient has")
)

// BenchmarkClient runs shapes of the load test with four members over eight partitions
// on one node: by bare streams, which do nothing that they need not, and then by the Go
// client with a handler for each message. The client's processor time is that of this
// process. `make bench-client` prints the table, in which each row of the client is beside
// the bare streams of a moment before.
func BenchmarkClient(b *testing.B) {
	binary := buildMeasured(b)
	t := table.Table{
		Head:  []string{"SHAPE", "BY", "MSG/S", "P50", "P99", "SERVER S/M", "CLIENT S/M", "CLIENT OF BARE", "BOTH OF BARE", "OTHERS", "VERDICT"},
		Right: []int{2, 3, 4, 5, 6, 7, 8, 9},
	}
	for _, name := range []string{"w1", "w3max", "w4"} {
		var bare *shapeResult
		for _, by := range []string{"bare", "client"} {
			b.Run(name+"/"+by, func(b *testing.B) {
				for range b.N {
					r := measureClient(b, binary, name, by == "client")
					ofClient, ofBoth := 1.0, 1.0
					if by == "bare" {
						bare = r
					} else if bare != nil {
						ofClient, ofBoth = r.Client/bare.Client, (r.Client+r.Server)/(bare.Client+bare.Server)
					}
					t.Add(name, by, whole(r.Rate), ms(r.P50), ms(r.P99), fmt.Sprintf("%.2f", r.Server), fmt.Sprintf("%.2f", r.Client),
						share(ofClient), share(ofBoth), fmt.Sprintf("%.2f", r.Others), r.Verdict)
					b.ReportMetric(r.Rate, "msg/s")
					b.ReportMetric(r.Client, "client-s/M")
					b.ReportMetric(r.Server, "server-s/M")
					b.ReportMetric(0, "ns/op")
				}
			})
		}
	}
	fmt.Println()
	if err := t.Write(os.Stdout, false); err != nil {
		b.Error(err)
	}
}

// measureClient runs one shape once.
func measureClient(b *testing.B, binary, name string, byClient bool) *shapeResult {
	b.Helper()
	s, ok := loadtest.ShapeOf(name)
	if !ok {
		b.Fatalf("no shape %s", name)
	}
	s.Time = *clientTime
	if s.Backlog > 0 {
		s.Backlog = *clientBacklog
	}
	f := startFleet(b, binary, 1)
	defer f.stop()
	var from, to counters
	// With a producer's sequence, which a Publisher always has.
	c := loadtest.Config{NoIDs: true, Sequences: true, Members: 4, GoClient: byClient}
	rep, err := loadtest.RunShape(b.Context(), f[0].url, s, c, func(begins bool) {
		if begins {
			profileClient(b, name, byClient)
			from = f.count(b)
		} else {
			to = f.count(b)
			pprof.StopCPUProfile()
		}
	})
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	r := &shapeResult{Shape: name, Verdict: rep.Verdict.Outcome, Rate: rep.Publish.Rate}
	l, messages := rep.Publish.Latency, rep.Publish.Rate*s.Time.Seconds()
	if len(rep.Groups) > 0 {
		r.Rate, l = rep.Groups[0].Rate, rep.Groups[0].Latency
		messages = r.Rate * s.Time.Seconds()
		if s.Backlog > 0 {
			messages = float64(rep.Groups[0].Acked)
		}
	}
	r.P50, r.P99 = l.P50, l.P99
	million := max(messages, 1) / 1e6
	r.Server, r.Client = (to.server-from.server)/million, (to.client-from.client)/million
	r.Others = max(0, (to.all-from.all)-(to.server-from.server)-(to.client-from.client)) / to.at.Sub(from.at).Seconds()
	return r
}

// profileClient begins a profile of the time of the figures, if one was asked for. It is in
// the figures, too.
func profileClient(b *testing.B, name string, byClient bool) {
	if *clientProfile == "" {
		return
	}
	by := "bare"
	if byClient {
		by = "client"
	}
	f, err := os.Create(filepath.Join(*clientProfile, name+"-"+by+".pprof"))
	if err != nil {
		b.Fatal(err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		b.Fatal(err)
	}
}
