package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

var (
	memoryBacklog = flag.Int("memory.backlog", 1_000_000, "BenchmarkMemory: how many messages pile up behind a key")
	memoryHoles   = flag.Int("memory.holes", 500_000, "BenchmarkMemory: how many messages are left between acked ones")
	memoryWrite   = flag.Int("memory.write-mb", 1024, "BenchmarkMemory: how many MiB are published to see what is written")
	memoryRestart = flag.Int("memory.restart-mb", 10240, "BenchmarkMemory: how many MiB of log the broker starts on")
)

// A claim is one figure and what it is to be.
type claim struct {
	what, size, figure, wanted string
	kept                       bool
}

// BenchmarkMemory measures what a real broker process takes: memory as the kernel
// counts it, bytes written, the time of a start. `make bench-memory` prints the table.
func BenchmarkMemory(b *testing.B) {
	binary := buildMeasured(b)
	var claims []claim
	for _, of := range []struct {
		name    string
		measure func(b *testing.B, binary string) []claim
	}{
		{"idle", memoryIdle}, {"backlog", memoryBehindKey}, {"holes", memoryOfHoles}, {"written", bytesWritten}, {"restart", timeOfRestart},
	} {
		b.Run(of.name, func(b *testing.B) {
			for range b.N {
				claims = append(claims, of.measure(b, binary)...)
			}
		})
	}
	t := table.Table{Head: []string{"WHAT", "SIZE", "MEASURED", "WANTED", "KEPT"}}
	for _, c := range claims {
		kept := "yes"
		if !c.kept {
			kept = "NO"
		}
		t.Add(c.what, c.size, c.figure, c.wanted, kept)
	}
	fmt.Println()
	if err := t.Write(os.Stdout, false); err != nil {
		b.Error(err)
	}
}

// memoryIdle is a broker with 64 partitions and nothing to do.
func memoryIdle(b *testing.B, binary string) []claim {
	p := startMeasured(b, binary, filepath.Join(b.TempDir(), "data"))
	defer p.stop()
	l := newLoad(b, p.url)
	l.topic("t", 64)
	l.group("t", "g")
	time.Sleep(2 * time.Second) // what was needed to make them is let go of
	m := p.watch(b).memory(b)
	return []claim{{"idle", "64 partitions", m.String(), "at most 150 MiB", m.now <= 150}}
}

// memoryBehindKey consumes beside a key that never flows, and without, a slice each
// in turn: see BenchmarkHotKey of internal/broker, which does the same in one process.
func memoryBehindKey(b *testing.B, binary string) []claim {
	const turns = 10
	n := *memoryBacklog / turns
	// What runs before the first look: without the key for as long as half of the
	// measurement is, since garbage and the cache take some seconds to their full size.
	warm := [2]int{n * turns / 2, n / 5}
	p := startMeasured(b, binary, filepath.Join(b.TempDir(), "data"))
	defer p.stop()
	l := newLoad(b, p.url)
	l.fill()
	var ms [2]*taker
	for i, hot := range []bool{false, true} {
		topic := fmt.Sprint("hot-", hot)
		l.topic(topic, 1)
		l.group(topic, "g")
		f := l.feed(topic)
		for k := range warm[i] + n*turns {
			f.add(fmt.Sprint("key-", k%10_000), 100)
			if hot {
				f.add("hot", 100)
			}
		}
		f.close()
		ms[i] = l.take(topic, "g", 10_000)
	}
	run := func(i, n int) float64 {
		began := time.Now()
		extra := 0
		ms[i].run(n, func(d *delivery) *strandmqv1.SettleRun {
			if string(d.key) == "hot" {
				extra++
				return nil
			}
			return d.settle(strandmqv1.SettleAction_SETTLE_ACTION_ACK, 0)
		})
		if extra > 1 {
			b.Fatalf("%d messages of one key are out", extra)
		}
		return float64(n) / time.Since(began).Seconds()
	}
	for i := range warm {
		run(i, warm[i])
	}
	w := p.watch(b)
	var before rss
	var ratio, plain []float64
	for i := range turns {
		if i == turns/5 {
			before = w.memory(b)
		}
		a, c := run(0, n), run(1, n)
		plain, ratio = append(plain, a), append(ratio, c/a)
	}
	after := w.memory(b)
	slices.Sort(ratio)
	slices.Sort(plain)
	size := fmt.Sprintf("%s behind a key", whole(float64(*memoryBacklog)))
	return []claim{
		{"backlog", size, fmt.Sprintf("%v with a fifth, then %v", before, after), "within 10 %", after.flatFrom(before)},
		{"other keys beside it", size, fmt.Sprintf("%.2f of %s/s without it", ratio[turns/2], whole(plain[turns/2])), "at least 0.8", ratio[turns/2] >= 0.8},
	}
}

// memoryOfHoles acks every other message, and starts on what is left.
func memoryOfHoles(b *testing.B, binary string) []claim {
	holes := *memoryHoles
	folder := filepath.Join(b.TempDir(), "data")
	p := startMeasured(b, binary, folder)
	defer func() { p.stop() }()
	l := newLoad(b, p.url)
	l.fill()
	l.topic("t", 1)
	l.group("t", "g")
	f := l.feed("t")
	for k := range 2 * holes {
		f.add(fmt.Sprint("key-", k), 100)
	}
	f.close()
	m := l.take("t", "g", 10_000)
	later := time.Hour.Milliseconds()
	half := func() {
		m.run(holes, func(d *delivery) *strandmqv1.SettleRun {
			if d.offset%2 == 1 {
				return d.settle(strandmqv1.SettleAction_SETTLE_ACTION_ACK, 0)
			}
			return d.settle(strandmqv1.SettleAction_SETTLE_ACTION_NACK, later)
		})
	}
	w := p.watch(b)
	half()
	before := w.memory(b)
	half()
	after := w.memory(b)
	p.stop()
	p = startMeasured(b, binary, folder)
	l = newLoad(b, p.url)
	if acked := l.counts("t", "g").GetAcked(); acked != uint64(holes) {
		b.Fatalf("%d messages were acked, and %d are after a restart", holes, acked)
	}
	again := p.watch(b).memory(b)
	return []claim{{
		"ack holes", whole(float64(holes)), fmt.Sprintf("%v with half, then %v; %v after a kill and a start", before, after, again), "within 10 %",
		after.flatFrom(before) && again.flatFrom(before),
	}}
}

// bytesWritten publishes messages of 16 KiB and waits until nothing more is written.
func bytesWritten(b *testing.B, binary string) []claim {
	p := startMeasured(b, binary, filepath.Join(b.TempDir(), "data"))
	defer p.stop()
	l := newLoad(b, p.url)
	l.topic("t", 8)
	from := p.count(b).written
	f := l.feed("t")
	const size = 16 << 10
	n := *memoryWrite << 20 / size
	for k := range n {
		f.add(fmt.Sprint("key-", k), size)
	}
	f.close()
	to := p.count(b)
	for quiet := 0; quiet < 5; quiet++ {
		time.Sleep(time.Second) // flushes and compactions go on by themselves
		if now := p.count(b); now.written > to.written+1<<20 {
			to, quiet = now, -1
		}
	}
	share := (to.written - from) / float64(n*size)
	return []claim{{
		"written for a byte", fmt.Sprintf("%d MiB in messages of 16 KiB", *memoryWrite),
		fmt.Sprintf("%.2f bytes; %v", share, p.watch(b).memory(b)), "at most 2.2", share <= 2.2,
	}}
}

// timeOfRestart kills a broker with a long log and groups that are in the middle of
// it, drops the system's memory of the files, and starts it again.
func timeOfRestart(b *testing.B, binary string) []claim {
	folder := filepath.Join(b.TempDir(), "data")
	var room syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(folder), &room); err != nil {
		b.Fatal(err)
	}
	// The log, its log files before they are flushed, and what compactions write beside.
	if need := uint64(*memoryRestart)*13/10<<20 + 1<<30; room.Bavail*uint64(room.Bsize) < need {
		b.Fatalf("%d MiB are free in %s, and a log of %d MiB needs %d: set TMPDIR, or -memory.restart-mb", room.Bavail*uint64(room.Bsize)>>20, filepath.Dir(folder), *memoryRestart, need>>20)
	}
	p := startMeasured(b, binary, folder)
	defer func() { p.stop() }()
	l := newLoad(b, p.url)
	l.topic("t", 8)
	const size, groups, each = 16 << 10, 4, 20_000
	n := max(*memoryRestart<<20/size, 2*each)
	f := l.feed("t")
	for k := range n {
		f.add(fmt.Sprint("key-", k), size)
	}
	f.close()
	for g := range groups {
		name := fmt.Sprint("g", g)
		l.group("t", name)
		l.take("t", name, 5000).run(each, func(d *delivery) *strandmqv1.SettleRun {
			if d.offset%10 == 0 {
				return d.settle(strandmqv1.SettleAction_SETTLE_ACTION_NACK, time.Hour.Milliseconds())
			}
			return d.settle(strandmqv1.SettleAction_SETTLE_ACTION_ACK, 0)
		})
	}
	p.stop()
	stored := forgetFiles(b, folder)
	began := time.Now()
	p = startMeasured(b, binary, folder)
	serving := time.Since(began)
	l = newLoad(b, p.url)
	f = l.feed("t")
	f.add("new", 100)
	f.close()
	m := l.take("t", "g0", 1)
	m.run(1, func(d *delivery) *strandmqv1.SettleRun { return d.settle(strandmqv1.SettleAction_SETTLE_ACTION_ACK, 0) })
	works := time.Since(began)
	for g := range groups {
		if c := l.counts("t", fmt.Sprint("g", g)); c.GetAcked() < each*8/10 {
			b.Fatalf("group %d has acked %d messages after the restart", g, c.GetAcked())
		}
	}
	return []claim{{
		"start after a kill", fmt.Sprintf("%.1f GiB on disk, %d groups", float64(stored)/(1<<30), groups),
		fmt.Sprintf("serves after %.1f s, published and delivered after %.1f s; %v", serving.Seconds(), works.Seconds(), p.watch(b).memory(b)), "10 s", serving <= 10*time.Second,
	}}
}

// forgetFiles lets the system forget what it keeps of a folder's files in memory, as
// far as it does, and returns their size.
func forgetFiles(b *testing.B, folder string) (size int64) {
	const dontNeed = 4
	syscall.Sync()
	err := filepath.Walk(folder, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		size += info.Size()
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, _, _ = syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0)
		return f.Close()
	})
	if err != nil {
		b.Fatal(err)
	}
	return size
}

// rss is what of a process is in memory, in MiB: in the middle and at most since it was
// looked at before, and now. Of it, live is Go's heap without garbage, as a collection
// left it that was made after the load had stopped; tables are memory tables of the
// store, and blocks its cache. The rest is code, and garbage: as much of it as live.
type rss struct{ now, middle, peak, live, tables, blocks float64 }

// held is what is in use.
func (m rss) held() float64 { return m.live + m.tables + m.blocks }

func (m rss) String() string {
	return fmt.Sprintf("%.0f MiB (at most %.0f; in use %.0f: live heap %.0f, memory tables %.0f, cache %.0f)", m.middle, m.peak, m.held(), m.live, m.tables, m.blocks)
}

// flatFrom tells whether neither what is in use nor what was resident in the middle
// grew by more than a tenth. What is resident at one moment says nothing: garbage comes
// and goes, and the kernel gets it back when there is time for that.
func (m rss) flatFrom(before rss) bool {
	return m.held() <= before.held()*1.1 && m.middle <= before.middle*1.1
}

// watch looks at a process's memory ten times a second, until it ends.
func (p *measured) watch(b testing.TB) *watched {
	w := &watched{p: p, end: make(chan struct{}), ended: make(chan struct{})}
	w.look()
	go func() {
		defer close(w.ended)
		for {
			select {
			case <-w.end:
				return
			case <-time.After(100 * time.Millisecond):
				w.look()
			}
		}
	}()
	b.Cleanup(w.stop)
	return w
}

// watched is a process whose memory is looked at.
type watched struct {
	p          *measured
	once       sync.Once
	end, ended chan struct{}

	mu   sync.Mutex
	seen []float64 // guarded by mu: MiB
}

func (w *watched) stop() {
	w.once.Do(func() { close(w.end) })
	<-w.ended
}

func (w *watched) look() {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.p.cmd.Process.Pid))
	if err != nil {
		return // it has ended: who measures is told
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, fieldOf(string(raw), "VmRSS:")/1024)
}

// memory tells what a broker takes that has nothing to do just now, and took since the
// last call.
func (w *watched) memory(b testing.TB) rss {
	w.look()
	w.mu.Lock()
	seen := w.seen
	w.seen = nil
	w.mu.Unlock()
	if len(seen) == 0 {
		b.Fatal("the broker has ended")
	}
	m := rss{now: seen[len(seen)-1]}
	slices.Sort(seen)
	m.middle, m.peak = seen[len(seen)/2], seen[len(seen)-1]
	p := w.p
	// Each scrape leaves garbage, and so much of it a collection.
	const collections = "\ngo_memstats_last_gc_time_seconds "
	text := p.scrape(b)
	for last := fieldOf(text, collections); fieldOf(text, collections) == last; {
		text = p.scrape(b)
	}
	m.live = fieldOf(text, "\ngo_gc_heap_live_bytes ") / (1 << 20)
	m.tables = fieldOf(text, "\nstrandmq_store_memtable_bytes ") / (1 << 20)
	m.blocks = fieldOf(text, "\nstrandmq_store_cache_bytes ") / (1 << 20)
	return m
}

// scrape reads the broker's metrics.
func (p *measured) scrape(b testing.TB) string {
	text, err := p.metrics()
	if err != nil {
		b.Fatal(err)
	}
	return text
}

func (p *measured) metrics() (string, error) {
	res, err := http.Get(p.url + "/metrics")
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(res.Status)
	}
	return string(text), err
}
