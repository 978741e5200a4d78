package partition

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/strandmq/strandmq/partition/logstore"
)

// hungDisk is a host with a partition over a disk that does not come back from the
// fsync of a publish that is on its way, until release is called.
func hungDisk(t *testing.T, stop time.Duration) (h *Host, store *logstore.Store, answers <-chan error, release func()) {
	var hold atomic.Bool
	gate := make(chan struct{})
	fs := errorfs.Wrap(vfs.NewCrashableMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		sync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
		if sync && strings.HasSuffix(op.Path, ".log") && hold.Load() {
			<-gate
		}
		return nil
	}))
	store, err := logstore.Open(logstore.Config{
		FS: fs, Dir: "store", MemTableBytes: 4 << 20, CacheBytes: 8 << 20,
		StallAfter: 200 * time.Millisecond, StallStop: stop, // longer than a write in memory takes on a busy machine
	})
	if err != nil {
		t.Fatal(err)
	}
	if h, err = Open(Config{Node: 1, Store: store}); err != nil {
		t.Fatal(err)
	}
	if err := h.Create(within(t), 1); err != nil {
		t.Fatal(err)
	}
	hold.Store(true)
	told := make(chan error, 1)
	if err := h.PublishAsync(1, batch("on its way"), func(_ []Stored, err error) { told <- err }); err != nil {
		t.Fatal(err)
	}
	return h, store, told, func() {
		hold.Store(false)
		close(gate)
	}
}

// While the disk does not come back from an fsync, publishes are refused, until it
// does.
func TestDiskHangs(t *testing.T) {
	t.Parallel() // it waits for clocks
	h, store, answers, release := hungDisk(t, time.Hour)
	until(t, "the store says that it is stuck", func() bool { return store.Stuck() > 0 })
	var stuck *ErrDiskStuck
	if _, err := h.Publish(within(t), 1, batch("late")); !errors.As(err, &stuck) || stuck.Partition != 1 || stuck.For == 0 {
		t.Fatalf("a publish gives %v", err)
	}
	release()
	if err := <-answers; err != nil {
		t.Fatalf("what was on its way gives %v", err)
	}
	until(t, "publishes are taken again", func() bool {
		_, err := h.Publish(within(t), 1, batch("again"))
		if err != nil && !errors.As(err, &stuck) {
			t.Fatal(err)
		}
		return err == nil
	})
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

// When the disk does not come back at all, the node stops, and everybody who waits
// is told, although the fsync is still under way.
func TestDiskHangsForGood(t *testing.T) {
	t.Parallel() // it waits for clocks
	h, store, answers, release := hungDisk(t, 3*time.Second)
	var unknown *ErrOutcomeUnknown
	if err := <-answers; !errors.As(err, &unknown) {
		t.Fatalf("what was on its way gives %v", err)
	}
	var never *logstore.ErrStuck
	if err := <-h.Failed(); !errors.As(err, &never) {
		t.Fatalf("the host failed with %v", err)
	}
	var stopped *ErrStopped
	if _, err := h.Propose(within(t), 1, nil); !errors.As(err, &stopped) {
		t.Fatalf("a command gives %v", err)
	}
	release()
	_ = h.Close()
	_ = store.Close()
}
