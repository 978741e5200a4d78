package partition

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/strandmq/strandmq/partition/logstore"
)

// A whole table is gone. If it held rows of the store itself, or the node's
// metadata would not be known, the store does not open. Else it does: partitions
// that need what was in it are there, stopped and named, and are not made anew;
// others serve.
func TestTableGone(t *testing.T) {
	dir := t.TempDir() + "/s"
	open := func() (*logstore.Store, *Host, error) {
		s, err := logstore.Open(logstore.Config{Dir: dir})
		if err != nil {
			return nil, nil, err
		}
		h, err := Open(Config{Node: 1, Store: s})
		if err != nil {
			t.Fatal(err)
		}
		return s, h, nil
	}
	s, h, err := open()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []PartitionID{1, 2} {
		if err := h.Create(within(t), id); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Publish(within(t), id, batch("message")); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(h.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(dir + "/pebble/*.sst")
	if err != nil {
		t.Fatal(err)
	}
	refused, opened := 0, 0
	for _, name := range tables {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		s, h, err := open()
		var d *logstore.ErrDamaged
		if errors.As(err, &d) {
			refused++
			if d.File != filepath.Base(name) {
				t.Fatalf("refused with %v", err)
			}
			if err := os.WriteFile(name, whole, 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		opened++
		if got := s.Damage(); len(got) == 0 || got[0].File != filepath.Base(name) || len(got[0].Ranges) != 2 {
			t.Fatalf("damage %+v", got)
		}
		for _, id := range []PartitionID{1, 2} {
			var stopped *ErrDamaged
			info, err := h.Info(id)
			if err != nil || info.Fault == "" {
				t.Fatalf("%v: %+v, %v", id, info, err)
			}
			if err := h.Create(within(t), id); !errors.As(err, &stopped) || stopped.Partition != id {
				t.Fatalf("%v is made anew: %v", id, err)
			}
			if _, err := h.Publish(within(t), id, batch("late")); !errors.As(err, &stopped) {
				t.Fatalf("a publish to %v gives %v", id, err)
			}
		}
		if err := h.Create(within(t), 3); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Publish(within(t), 3, batch("beside")); err != nil {
			t.Fatal(err)
		}
		// One that is given up is gone.
		if err := h.Drop(within(t), 2); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(h.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
		break
	}
	if refused == 0 || opened == 0 {
		t.Fatalf("of %d tables, %d were missed at the start, and %d were gone without", len(tables), refused, opened)
	}
	s, h, err = open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	defer func() { _ = h.Close() }()
	if ms, err := h.Read(3, 0, 10, 1000); err != nil || len(ms) != 1 || string(ms[0].Record.Body) != "beside" {
		t.Fatalf("p3 after another start: %v, %v", bodies(ms), err)
	}
	if ids := h.Partitions(); !slices.Equal(ids, []PartitionID{1, 3}) {
		t.Fatalf("partitions %v", ids)
	}
	if info, err := h.Info(1); err != nil || info.Fault == "" {
		t.Fatalf("p1 after another start: %+v, %v", info, err)
	}
}
