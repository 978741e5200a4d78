package partition

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/strandmq/strandmq/partition/logstore"
)

// A bit flips in an entry, and an App asks for the keys of what lies around it: it
// is told which messages cannot be read, after those before them, and gets those
// behind. The partition goes on, over a restart, too.
func TestKeysOfDamagedEntry(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	var from Offset
	var got []Offset
	var met error
	looked := make(chan struct{}, 1)
	drive := func(_ *counter, _ Millis, log Log) ([][]byte, Millis) {
		mu.Lock()
		defer mu.Unlock()
		got = nil
		met = log.Keys(from, 1<<30, func(o Offset, _ uint64, _ int) bool { got = append(got, o); return true })
		select {
		case looked <- struct{}{}:
		default:
		}
		return nil, 0
	}
	open := func() (*logstore.Store, *Host) {
		s, err := logstore.Open(logstore.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		h, err := Open(Config{Node: 1, Store: s, TailCacheBytes: 1, NewApp: newCounter(drive)})
		if err != nil {
			t.Fatal(err)
		}
		return s, h
	}
	s, h := open()
	if err := h.Create(within(t), 1); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("0123456789", 40_000)
	for _, bodies := range [][]string{{"a", "b"}, {large, large, "c"}, {"d"}, {"e", "f"}} {
		if _, err := h.Publish(within(t), 1, batch(bodies...)); err != nil {
			t.Fatal(err)
		}
	}
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
		t.Fatal("no file holds the large messages")
	}
	end := Offset(8)
	for range 2 {
		s, h = open()
		look := func(at Offset) ([]Offset, error) {
			t.Helper()
			mu.Lock()
			from = at
			select {
			case <-looked:
			default:
			}
			mu.Unlock()
			if err := h.Post(1, "look"); err != nil {
				t.Fatal(err)
			}
			select {
			case <-looked:
			case <-within(t).Done():
				t.Fatal("the App has no turn")
			}
			mu.Lock()
			defer mu.Unlock()
			return got, met
		}
		var behind []Offset
		for o := Offset(5); o < end; o++ {
			behind = append(behind, o)
		}
		for _, c := range []struct {
			from  Offset
			want  []Offset
			first Offset // that cannot be read
		}{{0, []Offset{0, 1}, 2}, {2, nil, 2}, {3, nil, 3}, {5, behind, 0}} {
			got, err := look(c.from)
			var bad *ErrUnreadable
			if errors.As(err, &bad) != (c.first > 0) || !slices.Equal(got, c.want) {
				t.Fatalf("from %d on: %v, %v", c.from, got, err)
			}
			if bad != nil && (bad.Partition != 1 || bad.Offset != c.first || bad.Last != 4 || bad.End() != 5) {
				t.Fatalf("from %d on it says %+v", c.from, bad)
			}
		}
		if _, err := h.Publish(within(t), 1, batch("on")); err != nil {
			t.Fatalf("a publish gives %v", err)
		}
		end++
		if info, err := h.Info(1); err != nil || info.Fault != "" {
			t.Fatalf("the partition says %q, %v", info.Fault, err)
		}
		if err := errors.Join(h.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
