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

// While the disk does not come back from an fsync, publishes are refused; when it
// does not come back at all, the node stops, and everybody who waits is told,
// although the fsync is still under way.
func TestDiskHangs(t *testing.T) {
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
		FS: fs, Dir: "store", MemTableBytes: 4 << 20, CacheBytes: 8 << 20, StallAfter: 20 * time.Millisecond, StallStop: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	h, err := Open(Config{Node: 1, Store: store})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Create(within(t), 1); err != nil {
		t.Fatal(err)
	}
	hold.Store(true)
	answers := make(chan error, 1)
	if err := h.PublishAsync(1, batch("on its way"), func(_ []Stored, err error) { answers <- err }); err != nil {
		t.Fatal(err)
	}
	late := deadline()
	for store.Stuck() == 0 {
		if late() {
			t.Fatal("the store does not say that it is stuck")
		}
		time.Sleep(time.Millisecond) // between looks at the store's watch
	}
	var stuck *ErrDiskStuck
	if _, err := h.Publish(within(t), 1, batch("late")); !errors.As(err, &stuck) || stuck.Partition != 1 || stuck.For == 0 {
		t.Fatalf("a publish gives %v", err)
	}
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
	hold.Store(false)
	close(gate)
	_ = h.Close()
	_ = store.Close()
}
