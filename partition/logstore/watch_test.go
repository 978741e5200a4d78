package logstore

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// hanging is a disk whose fsyncs of the log do not come back while it is held.
// Only those: Pebble writes other files while it holds its locks.
type hanging struct {
	mu   sync.Mutex
	gate chan struct{}
}

func (h *hanging) hold() {
	h.mu.Lock()
	h.gate = make(chan struct{})
	h.mu.Unlock()
}

func (h *hanging) release() {
	h.mu.Lock()
	close(h.gate)
	h.gate = nil
	h.mu.Unlock()
}

func (h *hanging) String() string { return "hanging" }

func (h *hanging) MaybeError(op errorfs.Op) error {
	sync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
	if !sync || !strings.HasSuffix(op.Path, ".log") {
		return nil
	}
	h.mu.Lock()
	gate := h.gate
	h.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return nil
}

// until waits for what another goroutine does.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(time.Millisecond) // between looks
	}
}

// A disk that hangs is noticed while it hangs, and forgiven when it comes back.
func TestDiskHangs(t *testing.T) {
	disk := &hanging{}
	cfg := testConfig(errorfs.Wrap(newMem(), disk))
	cfg.StallAfter, cfg.StallStop = 200*time.Millisecond, time.Hour // longer than a write in memory takes on a busy machine
	s := mustOpen(t, cfg)
	if s.Stuck() != 0 {
		t.Fatal("stuck before anything was written")
	}
	disk.hold()
	b := s.NewBatch()
	_ = b.Append(1, []Entry{entry(1, 1, 100)})
	p, err := s.Commit(b)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the store says that it is stuck", func() bool { return s.Stuck() >= cfg.StallAfter })
	if m := s.Metrics(); m.StuckFor == 0 {
		t.Fatal("the metrics do not say so")
	}
	disk.release()
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	until(t, "the store goes on", func() bool { return s.Stuck() == 0 })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A disk that does not come back stops the store, and what it writes after that
// is confirmed to nobody.
func TestDiskHangsForGood(t *testing.T) {
	disk := &hanging{}
	cfg := testConfig(errorfs.Wrap(newMem(), disk))
	cfg.StallAfter, cfg.StallStop = 200*time.Millisecond, 3*time.Second // longer than a write in memory takes on a busy machine
	s := mustOpen(t, cfg)
	disk.hold()
	b := s.NewBatch()
	_ = b.Append(1, []Entry{entry(1, 1, 100)})
	p, err := s.Commit(b)
	if err != nil {
		t.Fatal(err)
	}
	<-s.Failed()
	var stuck *ErrStuck
	if err := s.Err(); !errors.As(err, &stuck) || stuck.Op != "fsync" || !strings.HasSuffix(stuck.Path, ".log") {
		t.Fatalf("stopped with %v", err)
	}
	disk.release()
	if err := p.Wait(); !errors.As(err, &stuck) {
		t.Fatalf("what was on its way gives %v", err)
	}
	if err := s.Close(); !errors.As(err, &stuck) {
		t.Fatalf("close gives %v", err)
	}
}
