package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
	binary := buildMeasured(b)
	var results []*shapeResult
	for _, named := range loadtest.Shapes {
		b.Run(named.Name, func(b *testing.B) {
			for range b.N {
				r := measureShape(b, binary, named.Name)
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
		Head:  []string{"SHAPE", "MSG/S", "MB/S", "P50", "P99", "SERVER S/M", "CLIENT S/M", "PEAK MIB", "WRITTEN", "SYNCS/S", "OF RAW", "OF SYNCS", "OTHERS", "VERDICT"},
		Right: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
	}
	for _, r := range results {
		t.Add(r.Shape, whole(r.Rate), fmt.Sprintf("%.1f", r.MB), ms(r.P50), ms(r.P99), fmt.Sprintf("%.2f", r.Server), fmt.Sprintf("%.2f", r.Client),
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
func measureShape(b *testing.B, binary, name string) *shapeResult {
	b.Helper()
	s, ok := loadtest.ShapeOf(name)
	if !ok {
		b.Fatalf("no shape %s", name)
	}
	s.Time = *shapesTime
	r := &shapeResult{Shape: name, Time: time.Now().UTC(), Syncs: rawSyncs(b)}
	if s.Sync == 0 && !s.Consume && s.Backlog == 0 {
		// The pump's batches: half of what may be under way, two of each partition.
		const batch, committers = 256, 16
		n, err := logstore.Yardstick(logstore.Config{Dir: b.TempDir()}, batch*(s.Size+25), committers, time.Second)
		if err != nil {
			b.Fatal(err)
		}
		r.Raw = n * batch
	}
	p := startMeasured(b, binary, filepath.Join(b.TempDir(), "data"))
	defer p.stop()
	var from, to counters
	rep, err := loadtest.RunShape(b.Context(), p.url, s, loadtest.Config{NoIDs: true}, func(begins bool) {
		if begins {
			from = p.count(b)
		} else {
			to = p.count(b)
		}
	})
	if err != nil {
		b.Fatalf("%s: %v", name, err)
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

// buildMeasured builds the binary.
func buildMeasured(b *testing.B) string {
	binary := filepath.Join(b.TempDir(), "strandmq")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// measured is a broker that runs as a process of its own.
type measured struct {
	url string
	cmd *exec.Cmd
}

func startMeasured(b *testing.B, binary, folder string) *measured {
	p := &measured{cmd: exec.Command(binary, "serve", "--data", folder, "--listen", "127.0.0.1:0", "--log-level", "warn")}
	said, err := p.cmd.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	// However this process ends, the broker ends with it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "serving at "); ok {
			p.url, _, _ = strings.Cut(rest, ",")
			return p
		}
	}
	p.stop()
	b.Fatal("the broker did not serve")
	return nil
}

func (p *measured) stop() {
	_ = p.cmd.Process.Kill() // its data are thrown away
	_ = p.cmd.Wait()
}

// counters are what the kernel counts, in seconds, MiB, bytes.
type counters struct {
	at                  time.Time
	server, client, all float64
	peak                float64
	written             float64
	flushes             float64
}

func (p *measured) count(b *testing.B) counters {
	c := counters{at: time.Now()}
	of := func(name string) string {
		raw, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		return string(raw)
	}
	proc := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
	stat := of(proc + "stat")
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	c.server = (number(f[11]) + number(f[12])) / 100
	c.peak = fieldOf(of(proc+"status"), "VmHWM:") / 1024
	c.written = fieldOf(of(proc+"io"), "write_bytes:")
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		b.Fatal(err)
	}
	c.client = float64(self.Utime.Nano()+self.Stime.Nano()) / 1e9
	cpu := strings.Fields(strings.SplitN(of("/proc/stat"), "\n", 2)[0])
	for _, i := range []int{1, 2, 3, 6, 7, 8} { // without idle and waiting
		c.all += number(cpu[i]) / 100
	}
	for line := range strings.Lines(of("/proc/diskstats")) {
		f := strings.Fields(line)
		if len(f) < 20 {
			continue
		}
		if _, err := os.Stat("/sys/block/" + f[2] + "/device"); err == nil {
			c.flushes += number(f[18])
		}
	}
	return c
}

func number(s string) float64 { n, _ := strconv.ParseFloat(s, 64); return n }

// fieldOf finds the number behind a name.
func fieldOf(text, name string) float64 {
	_, rest, _ := strings.Cut(text, name)
	f := strings.Fields(rest)
	if len(f) == 0 {
		return 0
	}
	return number(f[0])
}
