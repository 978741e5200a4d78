package broker

import (
	"context"
	"sync"
	"time"

	"github.com/strandmq/strandmq/coordinator"
)

// afterBreak is how long a member without a stream may take to be heard of again after
// its Receive broke off, until its partitions go to others: a client that asks again, here
// or at another node, does so in less.
const afterBreak = 1500 * time.Millisecond

// waiters is the sessions with a Receive that waits on this node, and those of which the
// last one broke off.
//
//	Receive waits ──caller gone──► afterBreak ──no call came──► miss ──► away
//	                                   └──any call──► as before
//
// What the member holds stays with it, until its deadlines: a proxy or a browser may have
// closed the connection for reasons of its own, and then the next call brings it back.
type waiters struct {
	mu sync.Mutex
	of map[uint64]*waiting // guarded by mu: by session
}

type waiting struct {
	calls  int         // that wait
	missed *time.Timer // nil: none broke off
}

func newWaiters() *waiters { return &waiters{of: map[uint64]*waiting{}} }

// begin notes a call that waits.
func (w *waiters) begin(session uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.of[session]
	if s == nil {
		s = &waiting{}
		w.of[session] = s
	}
	s.calls++
	s.sign()
}

// end notes that a call is over. If it broke off and no other waits, miss is called
// later, unless the session is heard of before.
func (w *waiters) end(session uint64, broke bool, after time.Duration, miss func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.of[session]
	s.calls--
	switch {
	case s.calls > 0:
	case !broke:
		delete(w.of, session)
	default:
		var t *time.Timer
		t = time.AfterFunc(after, func() {
			w.mu.Lock()
			silent := w.of[session] == s && s.missed == t
			if silent {
				delete(w.of, session)
			}
			w.mu.Unlock()
			if silent {
				miss()
			}
		})
		s.missed = t
	}
}

// heard notes a sign of life that is no waiting call.
func (w *waiters) heard(session uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.of[session]; s != nil {
		s.sign()
		if s.calls == 0 {
			delete(w.of, session)
		}
	}
}

func (s *waiting) sign() {
	if s.missed != nil {
		s.missed.Stop()
		s.missed = nil
	}
}

// heartbeat takes a call as a sign of life.
func (b *Broker) heartbeat(ctx context.Context, group coordinator.GroupID, member string, session uint64) (*coordinator.Member, error) {
	b.waiters.heard(session)
	return b.members.Heartbeat(ctx, group, member, session)
}

// waitsFor notes that a member waits, until the function that it gives is called.
func (b *Broker) waitsFor(ctx context.Context, group coordinator.GroupID, member string, session uint64) (over func()) {
	b.waiters.begin(session)
	return func() {
		// A deadline is the caller's word that it waits no longer, and it lives.
		broke := ctx.Err() == context.Canceled && b.serving.Err() == nil
		after := min(afterBreak, b.cfg.SessionTimeout)
		of := requestOf(ctx)
		b.waiters.end(session, broke, after, func() {
			ctx, cancel := context.WithTimeout(withRequest(b.serving, of), leaderPatience)
			defer cancel()
			// If it cannot be told, the timeout does it.
			// A beat of the call itself may have come to the leader a little later.
			if err := b.miss(ctx, group, member, session, after*4/5); err != nil {
				b.log.DebugContext(ctx, "cannot tell that a member is missed", "group", group, "member", member, "err", err)
			}
		})
	}
}
