package main

import (
	"context"
	"sync"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// ending is the end of a consumer whose commands still run: other members get its
// partitions meanwhile. It belongs to the goroutine of runCommands.
type ending struct {
	c      *consumption
	cancel context.CancelFunc // of the Receive that waits
	over   chan error         // one place: the broker has heard, or not
	begun  bool
	calls  sync.WaitGroup
}

// endTime is how long a call may take that is a courtesy.
const endTime = 5 * time.Second

// begin begins the end, with so many commands running. While there are some the
// Receive that waits is not broken off: the broker answers it, so nothing is handed out
// to a caller that is gone.
func (e *ending) begin(busy int) {
	if busy == 0 {
		e.cancel() // what it would bring is given back by leaving
	} else if !e.begun {
		e.calls.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), endTime)
			defer cancel()
			e.over <- e.c.m.drain(ctx)
		})
	}
	e.begun = true
}

// giveBack releases what came when nothing more was wanted.
func (e *ending) giveBack(ds []*strandmqv1.Delivery) {
	if len(ds) == 0 {
		return
	}
	list := make([]*strandmqv1.Settlement, len(ds))
	for i, d := range ds {
		list[i] = &strandmqv1.Settlement{Token: d.GetToken(), Action: strandmqv1.SettleAction_SETTLE_ACTION_RELEASE}
	}
	e.calls.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endTime)
		defer cancel()
		_, _ = e.c.m.settle(ctx, list) // or leaving does it
	})
}
