package partition

import (
	"errors"
	"testing"
)

// A bound is judged by bytes at each publish: the last batch may lie across it,
// and all but the spare bytes are told once.
func TestBoundTo(t *testing.T) {
	n := newNode(t, Config{})
	n.create(1)
	size := uint64(len(batch("a")))
	publish := func() error {
		_, err := n.Publish(within(t), 1, batch("a"))
		return err
	}
	for range 3 {
		n.publish(1, batch("a"))
	}
	why, near := errors.New("as long as it may be"), 0
	bound := Bound{From: 1, Bytes: 3*size + 1, Why: why, Spare: size + 1, Near: func() { near++ }}
	if err := n.BoundTo(1, &bound); err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		err  error
		near int
	}{{nil, 1}, {nil, 1}, {why, 1}, {why, 1}} { // from offset 1 on: 2 batches, 3, and the one across
		if err := publish(); !errors.Is(err, want.err) || near != want.near {
			t.Errorf("publish %d gives %v and %d calls; want %v and %d", i, err, near, want.err, want.near)
		}
	}
	// Further on it counts from there, also when what was there is gone.
	n.trim(1, TrimTo{To: 4, Why: BySize})
	bound.From = 2
	if err := n.BoundTo(1, &bound); err != nil {
		t.Fatal(err)
	}
	if err := publish(); err != nil || near != 2 {
		t.Errorf("after a new bound: %v, %d calls", err, near)
	}
	for publish() == nil {
	}
	if pos, err := n.Position(1); err != nil || pos.End != 8 {
		t.Errorf("from 4 on, 3 batches and one across: %v, %v", pos, err)
	}
	if err := n.BoundTo(1, nil); err != nil {
		t.Fatal(err)
	}
	if err := publish(); err != nil {
		t.Errorf("without a bound: %v", err)
	}
	// An empty log begins at its end.
	n.trim(1, TrimTo{To: 9, Why: BySize})
	bound.From, bound.Bytes = 0, 1
	if err := n.BoundTo(1, &bound); err != nil {
		t.Fatal(err)
	}
	if err := publish(); err != nil {
		t.Errorf("into an empty log: %v", err)
	}
	if err := publish(); !errors.Is(err, why) {
		t.Errorf("beyond one batch: %v", err)
	}
	var unknown *ErrUnknownPartition
	if err := n.BoundTo(7, nil); !errors.As(err, &unknown) {
		t.Errorf("a partition that is not there: %v", err)
	}
}
