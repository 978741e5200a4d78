package broker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// rot flips a bit in the one message of a stopped broker that is half a megabyte.
func rot(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "pebble", "*.blob"))
	if err != nil {
		t.Fatal(err)
	}
	hit := false
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) < 400_000 {
			continue
		}
		hit = true
		data[200_000] ^= 2
		if err := os.WriteFile(f, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !hit {
		t.Fatal("no file holds the message")
	}
}

// A bit flips in the file of stored messages. The scrub finds it although nobody
// reads it, and the node says so wherever it is asked; it goes on serving.
func TestRotIsTold(t *testing.T) {
	dir := t.TempDir()
	scrub := func(every time.Duration) func(*Config) {
		return func(c *Config) { c.Store.ScrubEvery, c.Store.ScrubBytesPerSecond = every, 1<<40 }
	}
	b := start(t, dir, scrub(time.Hour))
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.store(t, "t", msg("k", strings.Repeat("0123456789", 50_000)))
	a.store(t, "t", msg("k", "after")) // a log's last entry is read at the start
	if _, body := get(t, b.URL()+"/readyz?verbose"); !strings.Contains(body, "[+] scrub: not begun yet") {
		t.Errorf("readyz of a new node: %s", body)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	rot(t, dir)

	b = start(t, dir, scrub(time.Millisecond))
	a = newAPI(t, b.URL())
	for deadline := time.Now().Add(soon); b.store.Scrub().Passes == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the scrub does not come to an end")
		}
		time.Sleep(time.Millisecond) // between looks at another goroutine's work
	}
	want := "concerned: partition 0 of topic t, entry "
	code, body := get(t, b.URL()+"/readyz?verbose")
	if code != 200 || !strings.Contains(body, "[!] damaged in ") || !strings.Contains(body, want) || !strings.Contains(body, "[+] scrub: ") {
		t.Errorf("readyz: %d %s", code, body)
	}
	if _, body := get(t, b.URL()+"/metrics"); !strings.Contains(body, "\nstrandmq_store_damaged_places 1\n") {
		t.Error("the metrics do not show it")
	}
	info, err := a.node.NodeInfo(ctx(t), &strandmqv1.NodeInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if faults := strings.Join(info.GetFaults(), "\n"); !strings.Contains(faults, want) {
		t.Errorf("NodeInfo says %q", faults)
	}
	if len(info.GetDamage()) != 1 || len(info.GetDamage()[0].GetRanges()) != 1 {
		t.Fatalf("NodeInfo's damage is %v", info.GetDamage())
	}
	d := info.GetDamage()[0]
	if r := d.GetRanges()[0]; !strings.HasSuffix(d.GetFile(), ".blob") || d.GetFound() == nil || r.GetTopic() != "t" || r.GetPartition() != 0 ||
		r.GetMetadata() || r.GetFirstEntry() == 0 || r.GetFirstEntry() != r.GetLastEntry() {
		t.Errorf("NodeInfo's damage is %v", d)
	}
	if s := info.GetScrub(); s.GetPasses() == 0 || s.GetLastPass() == nil || s.GetDisabled() {
		t.Errorf("NodeInfo's scrub is %v", s)
	}
	if d := info.GetDisk(); d.GetTotalBytes() == 0 || d.GetFreeBytes() == 0 || d.GetStoreBytes() < 400_000 || d.GetLow() {
		t.Errorf("NodeInfo's disk is %v", d)
	}
	a.store(t, "t", msg("k", "it goes on"))
}
