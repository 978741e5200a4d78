package strandmqtest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/client/strandmqtest"
)

// What was stored is there after a restart, and nothing is left at the end.
func TestRestart(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 2)
	p, err := b.Client.Publisher(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish(t.Context(), client.Message{Key: "alice", ID: "a-1"}); err != nil {
		t.Fatal(err)
	}
	b.Restart(t)
	if p, err = b.Client.Publisher(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	if r, err := p.Publish(t.Context(), client.Message{Key: "alice", ID: "a-1"}); err != nil || !r.Duplicate {
		t.Errorf("after a restart: %+v, %v", r, err)
	}
}

func TestOpen(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	b, err := strandmqtest.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := strandmqtest.Open(strandmqtest.WithDir(filepath.Join(t.TempDir(), "a\x00b"))); err == nil {
		t.Error("a folder that cannot be was opened")
	}
}
