package logstore

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// The yardstick syncs what it counts, and a disk that refuses is an error, not a
// figure.
func TestYardstick(t *testing.T) {
	var syncs atomic.Int64
	var broken atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo {
			syncs.Add(1)
		}
		if broken.Load() && op.Kind == errorfs.OpCreate {
			return errorfs.ErrInjected
		}
		return nil
	}))
	n, err := Yardstick(Config{FS: fs, Dir: "a", MemTableBytes: 1 << 20}, 1000, 2, 20*time.Millisecond)
	if err != nil || n < 1 {
		t.Fatalf("%v a second, %v", n, err)
	}
	if syncs.Load() < 3 {
		t.Errorf("%d syncs", syncs.Load())
	}
	broken.Store(true)
	if _, err := Yardstick(Config{FS: fs, Dir: "b", MemTableBytes: 1 << 20}, 1000, 2, time.Millisecond); !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("a disk that refuses: %v", err)
	}
}
