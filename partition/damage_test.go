package partition

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/partition/logstore"
)

// A bit flips in the file that holds one partition's large message. That
// message alone cannot be read; the partition beside it serves, before the
// damage is met and after, over a restart, too.
func TestFlippedBitOnDisk(t *testing.T) {
	dir := t.TempDir()
	open := func() (*logstore.Store, *Host) {
		s, err := logstore.Open(logstore.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		h, err := Open(Config{Node: 1, Store: s, TailCacheBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		return s, h
	}
	s, h := open()
	for _, id := range []PartitionID{1, 2} {
		if err := h.Create(within(t), id); err != nil {
			t.Fatal(err)
		}
	}
	publish := func(id PartitionID, body string) {
		t.Helper()
		if _, err := h.Publish(within(t), id, batch(body)); err != nil {
			t.Fatal(err)
		}
	}
	publish(1, "small")
	publish(1, strings.Repeat("0123456789", 80_000))
	publish(1, "after")
	publish(2, "beside")
	if err := errors.Join(h.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(dir + "/pebble/*.blob")
	if err != nil {
		t.Fatal(err)
	}
	hit := false
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 500_000 {
			hit = true
			data[len(data)/2] ^= 0x10
			if err := os.WriteFile(f, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !hit {
		t.Fatal("no file holds the large message")
	}
	for range 2 {
		s, h = open()
		publish(2, "before")
		if ms, err := h.Read(1, 0, 1, 1000); err != nil || !slices.Equal(bodies(ms), []string{"small"}) {
			t.Fatalf("the message before gives %v, %v", ms, err)
		}
		_, err = h.Read(1, 1, 1, 1<<20)
		var d *ErrDamaged
		if !errors.As(err, &d) || d.Partition != 1 || d.From == 0 || d.From != d.To {
			t.Fatalf("the damaged message gives %v", err)
		}
		if ms, err := h.Read(1, 2, 1, 1000); err != nil || !slices.Equal(bodies(ms), []string{"after"}) {
			t.Fatalf("the message behind gives %v, %v", ms, err)
		}
		publish(2, "after")
		if err := errors.Join(h.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
