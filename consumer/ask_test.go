package consumer

import (
	"context"
	"testing"
	"time"
)

// Ask and HeldAsync give what Receive gives, without a wait.
func TestAsk(t *testing.T) {
	w := newWorld(1)
	s := w.shell()
	if err := s.CreateGroup(context.Background(), 1, GroupSpec{ID: 1, Name: "G", Policy: Default()}); err != nil {
		t.Fatal(err)
	}
	req := ReceiveRequest{Group: 1, Member: "A", Session: 1, Max: 2, Wait: time.Second, Shares: []Share{{Partition: 1}}}
	a, err := s.Ask(req)
	if err != nil {
		t.Fatal(err)
	}
	if ds, over, err := a.Poll(); len(ds) != 0 || over || err != nil {
		t.Fatalf("%d deliveries, over %v, %v: there is nothing yet", len(ds), over, err)
	}
	w.publish(1, "a", "b", "c")
	ds, over, err := a.Poll()
	if len(ds) != 2 || !over || err != nil {
		t.Fatalf("%d deliveries, over %v, %v", len(ds), over, err)
	}
	var read func() ([]Delivery, error)
	if bad := s.HeldAsync(1, req, func(fn func() ([]Delivery, error), bad error) { read, err = fn, bad }); bad != nil || err != nil {
		t.Fatal(bad, err)
	}
	if held, err := read(); err != nil || len(held) != 2 || held[0].Token != ds[0].Token || held[1].Token != ds[1].Token {
		t.Fatalf("%+v is held, %v", held, err)
	}

	req.Wait = 0 // over when all was tried
	for want := range 2 {
		if a, err = s.Ask(req); err != nil {
			t.Fatal(err)
		}
		if ds, over, err = a.Poll(); len(ds) != 1-want || !over || err != nil {
			t.Fatalf("%d deliveries, over %v, %v", len(ds), over, err)
		}
	}
	req.Wait = time.Second
	if a, err = s.Ask(req); err != nil {
		t.Fatal(err)
	}
	a.End()
	if ds, over, err = a.Poll(); len(ds) != 0 || !over || err != nil {
		t.Fatalf("%d deliveries, over %v, %v after its time", len(ds), over, err)
	}
	if _, err = s.Ask(ReceiveRequest{Group: 1}); err == nil {
		t.Fatal("a request without a member is taken")
	}
}
