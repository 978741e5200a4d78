package broker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// BenchmarkRetentionSpace publishes at full speed through eight partitions that
// keep 32 MiB each, and measures the room of the data folder once that much has
// come several times over: its greatest ("max-MB"), its last ("end-MB") and what
// of it there is for each byte kept ("of-kept"); and the bytes written to disk
// for each one published ("written"). Then everything is to go, and what is
// left within ten seconds are the store's log files, and tables that a later
// compaction takes ("empty-MB"). One operation is 1 MiB.
func BenchmarkRetentionSpace(b *testing.B) {
	const keep, batch = 32 << 20, 16 << 10
	dir := b.TempDir()
	n := start(b, dir)
	a := newAPI(b, n.URL())
	if _, err := a.topics.CreateTopic(ctx(b), &strandmqv1.CreateTopicRequest{
		Topic: "t", Partitions: benchPartitions, Config: &strandmqv1.TopicConfig{RetentionBytes: proto.Int64(keep)},
	}); err != nil {
		b.Fatal(err)
	}
	t, err := n.topic("t")
	if err != nil {
		b.Fatal(err)
	}
	rec := record.Record{HasKey: true, Key: []byte("k"), Body: []byte(strings.Repeat("x", batch-100))}
	form := record.Append(nil, record.Meta{}, []record.Record{rec})

	var most, last atomic.Int64
	var done atomic.Bool
	var watch sync.WaitGroup
	published := func() (sum uint64) {
		for _, p := range t.Partitions {
			if info, err := n.host.Info(p.ID); err == nil {
				sum += uint64(info.Position.End) * batch
			}
		}
		return sum
	}
	watch.Go(func() {
		for !done.Load() {
			room := roomOf(dir)
			if last.Store(room); published() > 2*benchPartitions*keep {
				most.Store(max(most.Load(), room))
			}
			time.Sleep(50 * time.Millisecond) // between two samples
		}
	})
	wrote := written(b)
	b.SetBytes(1 << 20)
	b.ResetTimer()
	var next atomic.Int64
	var publishers sync.WaitGroup
	for range 16 {
		publishers.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N)*(1<<20)/batch {
					return
				}
				id := t.Partitions[i%benchPartitions].ID
				for {
					_, err := n.host.Publish(b.Context(), id, append([]byte(nil), form...))
					if err == nil {
						break
					}
					var full *partition.ErrFull
					if !errors.As(err, &full) {
						b.Error(err)
						return
					}
					time.Sleep(full.RetryAfter) // as it asks for
				}
			}
		})
	}
	publishers.Wait()
	b.StopTimer()
	b.ReportMetric(float64(written(b)-wrote)/float64(b.N)/(1<<20), "written")
	until(b, "the limit is kept", func() bool {
		for _, p := range t.Partitions {
			if info, err := n.host.Info(p.ID); err != nil || info.Bytes > keep {
				return false
			}
		}
		return true
	})
	done.Store(true)
	watch.Wait()
	const mb = 1e6
	b.ReportMetric(float64(most.Load())/mb, "max-MB")
	b.ReportMetric(float64(last.Load())/mb, "end-MB")
	b.ReportMetric(float64(most.Load())/(benchPartitions*keep), "of-kept")

	// Then nothing is to be kept, and nobody publishes.
	a.alter(b, "t", &strandmqv1.TopicConfig{RetentionBytes: proto.Int64(1)})
	since := time.Now()
	least := roomOf(dir)
	for time.Since(since) < 10*time.Second {
		time.Sleep(100 * time.Millisecond) // between two samples
		least = min(least, roomOf(dir))
	}
	b.ReportMetric(float64(least)/mb, "empty-MB")
}

// roomOf is the room that the files of a folder take on disk.
func roomOf(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // deleted meanwhile
		}
		if info, err := d.Info(); err == nil && !d.IsDir() {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				sum += st.Blocks * 512
			}
		}
		return nil
	})
	return sum
}

// written is what this process has had written to disk.
func written(b *testing.B) int64 {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		b.Skip("this system does not count what a process writes")
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatal("no write_bytes")
	return 0
}
