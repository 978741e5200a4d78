package consumer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/strandmq/strandmq/partition"
)

// A call that waits while one of its partitions stops goes on with the others,
// and one that has no other is told why, at once: nobody is sent to ask again
// for what cannot come.
func TestWaitWhilePartitionsStop(t *testing.T) {
	n := newNode(t, 2)
	n.group(1, Default())
	type answer struct {
		ds  []Delivery
		err error
	}
	got := make(chan answer, 1)
	wait := func() {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		go func() {
			defer cancel()
			ds, _, err := n.shell.Receive(ctx, ReceiveRequest{Group: 1, Member: "A", Session: 1, Max: 10, Wait: time.Minute, Shares: n.shares()})
			got <- answer{ds, err}
		}()
	}
	waits := func(p partition.PartitionID) {
		t.Helper()
		for late := time.Now().Add(within); ; time.Sleep(time.Millisecond) { // until the demand is there
			var there bool
			if err := n.host.View(context.Background(), p, func(app partition.App, _ partition.Position) {
				h := app.(*App).group(1).hand
				there = h != nil && len(h.waiters) > 0
			}); err != nil {
				t.Fatal(err)
			}
			if there {
				return
			}
			if time.Now().After(late) {
				t.Fatal("nobody waits")
			}
		}
	}
	stop := func(p partition.PartitionID) {
		t.Helper()
		var damaged *partition.ErrDamaged
		if err := n.host.View(context.Background(), p, func(partition.App, partition.Position) { panic("planted") }); !errors.As(err, &damaged) {
			t.Fatal(err)
		}
	}
	wait()
	waits(1)
	waits(2)
	stop(1)
	select {
	case a := <-got:
		t.Fatalf("the call is over: %v, %v", a.ds, a.err)
	case <-time.After(50 * time.Millisecond): // an answer that is wrong would come at once
	}
	n.publish(2, "a")
	if a := <-got; a.err != nil || len(a.ds) != 1 || a.ds[0].Partition != 2 {
		t.Fatalf("with another partition: %v, %v", a.ds, a.err)
	}

	n = newNode(t, 1)
	n.group(1, Default())
	wait()
	waits(1)
	stop(1)
	a := <-got
	var damaged *partition.ErrDamaged
	if !errors.As(a.err, &damaged) || damaged.Partition != 1 || !strings.Contains(damaged.Why, "planted") {
		t.Fatalf("without another partition: %v, %v", a.ds, a.err)
	}
}
