package partition

import (
	"errors"
	"testing"

	"github.com/strandmq/strandmq/partition/logstore"
)

// A replica that is condemned stops, says which it is, and does not come back by a
// restart; the partition beside it goes on. What is dropped and made anew is another one.
func TestCondemned(t *testing.T) {
	dir := t.TempDir()
	open := func() (*logstore.Store, *Host) {
		s, err := logstore.Open(logstore.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		h, err := Open(Config{Node: 1, Store: s})
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
		if _, err := h.Publish(within(t), id, batch("before")); err != nil {
			t.Fatal(err)
		}
	}
	self := NodeID(1).Replica()
	var other *ErrOtherReplica
	if err := h.Condemn(within(t), 1, NewReplicaID(1, 3), "a block"); !errors.As(err, &other) {
		t.Fatalf("another replica: %v", err)
	}
	if err := h.Condemn(within(t), 1, self, "a block"); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		var d *ErrDamaged
		if _, err := h.Publish(within(t), 1, batch("late")); !errors.As(err, &d) || d.Why != "a block" {
			t.Fatalf("a publish gives %v", err)
		}
		if _, err := h.Read(1, 0, 1, 100); !errors.As(err, &d) {
			t.Fatalf("a read gives %v", err)
		}
		if info, err := h.Info(1); err != nil || info.Fault != "a block" || !info.Damaged || info.Replica != self || info.Leading {
			t.Fatalf("%+v, %v", info, err)
		}
		if err := h.Condemn(within(t), 1, self, "another block"); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Publish(within(t), 2, batch("beside")); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := errors.Join(h.Close(), s.Close()); err != nil {
				t.Fatal(err)
			}
			s, h = open()
		}
	}
	defer func() { _ = s.Close() }()
	defer func() { _ = h.Close() }()
	if err := h.Drop(within(t), 1); err != nil {
		t.Fatal(err)
	}
	if err := h.Join(within(t), 1, NewReplicaID(1, 1)); err != nil {
		t.Fatal(err)
	}
	if info, err := h.Info(1); err != nil || info.Fault != "" || info.Damaged || info.Replica != NewReplicaID(1, 1) {
		t.Fatalf("%+v, %v", info, err)
	}
}
