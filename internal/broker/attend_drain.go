package broker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
)

// draining is the end of a member's demand, before that of its stream.
//
//	drain ──► no partition is asked any more ──► what was on its way is given back
//	   └────► metadata log: the shares go to others
//
// The stream asks for nothing from the first moment, so that what the member gives
// back does not come to it again while the metadata log is on its way.
type draining struct {
	mu   sync.Mutex // held while the stream is told its shares, so that what it is told last is right
	on   bool       // guarded by mu
	tell bool       // guarded by mu: the metadata log does not know
}

// ask tells the stream its shares: none, once the member drains.
func (a *attendant) ask(shares []consumer.Share) {
	a.drains.mu.Lock()
	defer a.drains.mu.Unlock()
	if a.drains.on {
		shares = nil
	}
	a.stream.SetShares(shares)
}

// drain has the member be handed out nothing more. Its credits are used up.
func (a *attendant) drain(tell bool) {
	a.drains.mu.Lock()
	was := a.drains.on
	a.drains.on = true
	if !was {
		a.drains.tell = tell
		a.stream.SetShares(nil)
	}
	a.drains.mu.Unlock()
	a.mu.Lock()
	a.credit = 0
	a.mu.Unlock()
	nudge(a.wake)
}

func (a *attendant) isDraining() bool {
	a.drains.mu.Lock()
	defer a.drains.mu.Unlock()
	return a.drains.on
}

// tellDrain takes it on to tell the metadata log, if somebody has to.
func (a *attendant) tellDrain() bool {
	a.drains.mu.Lock()
	defer a.drains.mu.Unlock()
	tell := a.drains.tell
	a.drains.tell = false
	return tell
}

// telling tells the metadata log that the member drains, until it knows, or stop is
// called, which waits for the end. Settlements go on meanwhile.
func (a *attendant) telling(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		for pause := firstLook; ; pause = min(2*pause, lastLook) {
			err := a.b.members.Drain(ctx, coordinator.GroupID(a.group), a.member, a.session)
			if err == nil || errors.As(err, new(*coordinator.ErrSessionEnded)) || errors.As(err, new(*coordinator.ErrNotFound)) {
				return
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// giveBack releases what was on its way to the member when it began to drain, and
// returns what it has to be sent all the same: what was settled by being handed out,
// which nobody would get otherwise. A release that is not taken is the session's
// end's to make good.
func (a *attendant) giveBack(ctx context.Context, hs []consumer.Handed) (rest []consumer.Handed) {
	var runs []consumer.SettleRun
	n := 0
	for i := range hs {
		h := &hs[i]
		if slices.ContainsFunc(h.Deliveries, func(d consumer.StreamDelivery) bool { return d.Settled }) {
			rest = append(rest, *h)
			continue
		}
		n += len(h.Deliveries)
		runs = append(runs, consumer.SettleRun{First: h.First, Last: h.First + uint64(len(h.Deliveries)) - 1, Action: consumer.Release})
	}
	if n == 0 {
		return rest
	}
	a.stream.Settle(ctx, runs, func(results []consumer.SettleRunResult) { a.countRefused(ctx, results) })
	a.mu.Lock()
	a.granted -= n
	a.mu.Unlock()
	a.flow.mem.give(int64(n) * grantCost)
	if len(rest) == 0 { // else it is given with the frame
		a.flow.mem.give(a.taken)
		a.taken = 0
	}
	return rest
}
