package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/table"
	"github.com/strandmq/strandmq/loadtest"
	"github.com/strandmq/strandmq/partition/logstore"
)

var (
	shapesTime = flag.Duration("shapes.time", 5*time.Second, "how long BenchmarkShapes measures each shape")
	shapesJSON = flag.String("shapes.json", "", "append what BenchmarkShapes measured to this file, a line of JSON each")
)

// shapeResult is one shape's figures. Rates are per second.
type shapeResult struct {
	Shape    string           `json:"shape"`
	Nodes    int              `json:"nodes"`
	Time     time.Time        `json:"time"`
	Rate     float64          `json:"rate"`    // messages with a receipt, or settled where a group takes them
	MB       float64          `json:"mb_rate"` // their bodies, in 10^6 bytes
	P50      float64          `json:"p50_ms"`
	P99      float64          `json:"p99_ms"`
	P999     float64          `json:"p999_ms"`
	Server   float64          `json:"server_cpu_s_per_million"`
	Client   float64          `json:"client_cpu_s_per_million"`
	Others   float64          `json:"other_cores"` // what neither of them used: high is not a clean run
	Peak     float64          `json:"server_peak_mib"`
	Written  float64          `json:"written_per_user_byte"`
	Flushes  float64          `json:"disk_flushes"` // of the whole machine
	Syncs    float64          `json:"raw_syncs"`    // 4 KiB appended and synced, one after the other
	Raw      float64          `json:"raw_messages"` // group commit of the same batches by Pebble alone; 0: does not apply
	OfRaw    float64          `json:"of_raw"`
	OfSyncs  float64          `json:"of_syncs"`
	Verdict  string           `json:"verdict"`
	Report   *loadtest.Report `json:"report"`
	messages float64          // of the time of the figures
}

// BenchmarkShapes runs every shape of the load test against the real binary with
// its defaults, each on a fresh folder, with the disk's and Pebble's own rates
// taken just before. `make bench-broker` prints the table.
func BenchmarkShapes(b *testing.B) {
	benchShapes(b, buildMeasured(b), loadtest.Shapes, 1)
}

// benchShapes measures shapes against brokers of so many nodes.
func benchShapes(b *testing.B, binary string, shapes []loadtest.Shape, nodes int) {
	var results []*shapeResult
	for _, named := range shapes {
		b.Run(named.Name, func(b *testing.B) {
			for range b.N {
				r := measureShape(b, binary, named, nodes)
				results = append(results, r)
				b.ReportMetric(r.Rate, "msg/s")
				b.ReportMetric(r.P50, "p50-ms")
				b.ReportMetric(r.P99, "p99-ms")
				b.ReportMetric(r.Server, "server-s/M")
				b.ReportMetric(r.OfRaw, "of-raw")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
	if len(results) > 0 {
		showShapes(b, results)
	}
}

// showShapes prints the table, and keeps the figures.
func showShapes(b *testing.B, results []*shapeResult) {
	t := table.Table{
		Head:  []string{"SHAPE", "NODES", "MSG/S", "MB/S", "P50", "P99", "SERVER S/M", "CLIENT S/M", "PEAK MIB", "WRITTEN", "SYNCS/S", "OF RAW", "OF SYNCS", "OTHERS", "VERDICT"},
		Right: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13},
	}
	for _, r := range results {
		t.Add(r.Shape, fmt.Sprint(r.Nodes), whole(r.Rate), fmt.Sprintf("%.1f", r.MB), ms(r.P50), ms(r.P99), fmt.Sprintf("%.2f", r.Server), fmt.Sprintf("%.2f", r.Client),
			fmt.Sprintf("%.0f", r.Peak), share(r.Written), whole(r.Syncs), share(r.OfRaw), share(r.OfSyncs), fmt.Sprintf("%.2f", r.Others), r.Verdict)
	}
	fmt.Println()
	if err := t.Write(os.Stdout, false); err != nil {
		b.Error(err)
	}
	if *shapesJSON == "" {
		return
	}
	f, err := os.OpenFile(*shapesJSON, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		b.Fatal(err)
	}
	w := json.NewEncoder(f)
	for _, r := range results {
		if err := w.Encode(r); err != nil {
			b.Error(err)
		}
	}
	if err := f.Close(); err != nil {
		b.Error(err)
	}
}

func share(x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", x)
}

// measureShape runs one shape once.
func measureShape(b *testing.B, binary string, named loadtest.Shape, nodes int) *shapeResult {
	b.Helper()
	s, ok := loadtest.ShapeOf(named.Name)
	if !ok {
		b.Fatalf("no shape %s", named.Name)
	}
	s.Time, s.Rate = *shapesTime, named.Rate
	r := &shapeResult{Shape: named.Name, Nodes: nodes, Time: time.Now().UTC(), Syncs: rawSyncs(b)}
	if s.Sync == 0 && !s.Consume && s.Backlog == 0 {
		// The pump's batches: half of what may be under way, two of each partition.
		const batch, committers = 256, 16
		n, err := logstore.Yardstick(logstore.Config{Dir: b.TempDir()}, batch*(s.Size+25), committers, time.Second)
		if err != nil {
			b.Fatal(err)
		}
		r.Raw = n * batch
	}
	f := startFleet(b, binary, nodes)
	defer f.stop()
	var from, to counters
	rep, err := loadtest.RunShape(b.Context(), f[0].url, s, loadtest.Config{NoIDs: true, Others: f.urls()[1:]}, func(begins bool) {
		if begins {
			from = f.count(b)
		} else {
			to = f.count(b)
		}
	})
	if err != nil {
		b.Fatalf("%s: %v", named.Name, err)
	}
	r.Report, r.Verdict, r.Rate = rep, rep.Verdict.Outcome, rep.Publish.Rate
	l := rep.Publish.Latency
	r.messages = rep.Publish.Rate * s.Time.Seconds()
	if len(rep.Groups) > 0 {
		r.Rate, l = rep.Groups[0].Rate, rep.Groups[0].Latency
		if s.Backlog > 0 {
			r.messages = float64(rep.Groups[0].Acked)
		}
	}
	span := to.at.Sub(from.at).Seconds()
	r.P50, r.P99, r.P999, r.MB = l.P50, l.P99, l.P999, r.Rate*float64(s.Size)/1e6
	million := max(r.messages, 1) / 1e6
	r.Server, r.Client = (to.server-from.server)/million, (to.client-from.client)/million
	r.Others = max(0, (to.all-from.all)-(to.server-from.server)-(to.client-from.client)) / span
	r.Peak, r.Flushes = to.peak, (to.flushes-from.flushes)/span
	if s.Backlog == 0 {
		r.Written = (to.written - from.written) / max(r.messages*float64(s.Size), 1)
	}
	r.OfSyncs = r.Rate / r.Syncs
	if r.Raw > 0 {
		r.OfRaw = r.Rate / r.Raw
	}
	if s.Sync != 1 {
		r.OfSyncs = 0 // of one publisher alone it says something
	}
	return r
}

// rawSyncs appends 4 KiB to a file and syncs, for a second.
func rawSyncs(b *testing.B) float64 {
	f, err := os.Create(filepath.Join(b.TempDir(), "raw"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 4096)
	n, began := 0, time.Now()
	for ; time.Since(began) < time.Second; n++ {
		if _, err := f.Write(buf); err != nil {
			b.Fatal(err)
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
	return float64(n) / time.Since(began).Seconds()
}
