package loadtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strandmq/strandmq/internal/check"
)

// group is one group, and the judge that watches all of its members.
type group struct {
	r    *run
	n    int
	name string

	mu    sync.Mutex
	judge *check.Strands

	latency    *latencies    // due → first delivery
	arrived    atomic.Uint64 // messages that came for the first time
	repeated   atomic.Uint64 // further deliveries
	acked      atomic.Uint64
	measured   atomic.Uint64 // of those acked, in the time of the figures
	nacked     atomic.Uint64
	lapsed     atomic.Uint64
	dead       atomic.Uint64
	stale      atomic.Uint64 // settlements that were too late
	crashes    atomic.Uint64
	leaves     atomic.Uint64
	foreign    atomic.Uint64 // deliveries of others' messages
	violations atomic.Uint64

	moved int64 // guarded by mu: when the last ack was confirmed
	gap   int64 // guarded by mu: the longest time without one, in the figures

	members []*member
}

// member works in a group.
type member struct {
	g     *group
	n     int
	name  string
	rand  *rand.Rand
	crash chan struct{} // holds one: drop what you hold
	leave chan struct{} // holds one: give back what you hold
}

// held is a delivery that a member has decided about.
type held struct {
	who     check.Sent
	ours    bool
	attempt uint32
	s       Settlement
	ends    bool
}

const receiveWait = time.Second

func (g *group) newMember(n int) *member {
	return &member{
		g: g, n: n, name: fmt.Sprintf("%s-m%d", g.name, n+1), crash: make(chan struct{}, 1), leave: make(chan struct{}, 1),
		rand: rand.New(rand.NewPCG(g.r.c.Seed, uint64(g.n)<<32|uint64(n)|1<<63)),
	}
}

// work is a member's life: sessions, each until it crashes or ctx ends. What it
// settles then is still settled, until all ends.
func (m *member) work(ctx, all context.Context, joined func()) error {
	for ctx.Err() == nil {
		session, err := m.g.r.broker.Join(ctx, m.g.r.topic, m.g.name, m.name)
		if err == nil {
			if joined != nil {
				joined()
				joined = nil
			}
			err = m.session(ctx, all, session)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errCrashed), errors.Is(err, errLeft):
			select {
			case <-time.After(m.g.r.c.Away):
			case <-ctx.Done():
				return nil
			}
		case isReason(err, "SESSION_ENDED"): // join again
		case err != nil:
			return fmt.Errorf("member %s: %w", m.name, err)
		}
	}
	return nil
}

// Why a session ended that neither the broker nor the end of the run ended.
var (
	errCrashed = errors.New("the member crashed")
	errLeft    = errors.New("the member left")
)

// session receives until ctx ends, it crashes, leaves, or the broker ends it. A
// second goroutine settles, so that waiting for one batch's settlement does not
// delay the next one's arrival. It ends before session returns.
func (m *member) session(ctx, all context.Context, s Session) (err error) {
	number := m.g.r.sessions.Add(1)
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	dropped := make(chan struct{}) // closed: what is not on its way yet is not settled
	var failed error               // the settling goroutine's, until it ended
	work := make(chan []held)
	handled := m.handlers(work, dropped)
	var settling sync.WaitGroup
	settling.Go(func() {
		for list := range handled {
			if failed != nil || isClosed(dropped) {
				continue
			}
			if failed = m.settle(all, s, list); failed != nil {
				stop()
			}
		}
	})
	for receiving.Err() == nil && err == nil {
		m.g.mu.Lock()
		asked := m.g.judge.Now()
		m.g.mu.Unlock()
		var got []Delivery
		got, err = s.Receive(receiving, m.g.r.c.Take, receiveWait)
		if err != nil || len(got) == 0 {
			continue
		}
		list := m.take(got, number, asked)
		select {
		case <-m.crash:
			m.g.crashes.Add(1)
			err = errCrashed
		case <-m.leave:
			m.g.leaves.Add(1)
			err = errLeft
		case work <- list:
		}
	}
	inOrder := ctx.Err() != nil || errors.Is(err, errLeft)
	if err != nil && !inOrder {
		close(dropped)
	}
	close(work)
	settling.Wait()
	// From here on what the session held may be anywhere.
	m.g.mu.Lock()
	m.g.judge.Gone(number)
	m.g.mu.Unlock()
	if !inOrder {
		s.Drop()
	} else {
		leave, done := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer done()
		if gone := s.Leave(leave); ctx.Err() != nil || isReason(gone, "SESSION_ENDED") {
			err = gone
		}
	}
	if failed != nil {
		err = failed
	}
	// Who crashes does not hear whether the broker had ended the session just before.
	if isReason(err, "SESSION_ENDED") || errors.Is(err, errCrashed) {
		m.g.mu.Lock()
		m.g.judge.Ended(number)
		m.g.mu.Unlock()
	}
	return err
}

// take judges the arrival of deliveries and decides what becomes of each.
func (m *member) take(got []Delivery, session, asked uint64) []held {
	g, c := m.g, &m.g.r.c
	now := g.r.since()
	list := make([]held, 0, len(got))
	var waited []int64
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range got {
		d := &got[i]
		settle := Settlement{Token: d.Token, Number: d.Number}
		since := asked
		if d.Pushed {
			since = 0
		}
		who, due, ours, whole := readBody(d.Body, d.Key, g.r.id, c.Size)
		switch {
		case !ours && g.r.shared:
			g.foreign.Add(1)
			list = append(list, held{s: settle})
			continue
		case !whole:
			g.judge.Alter(d.Place, "is not as it was sent")
			list = append(list, held{s: settle})
			continue
		}
		first := g.judge.Arrived(check.Arrival{
			Sent: who, Place: d.Place, Attempt: d.Attempt, Session: session, Asked: since,
			HandedOut: d.Deadline - c.AckDeadline.Milliseconds(), Deadline: d.Deadline,
		})
		if first {
			g.arrived.Add(1)
			if g.r.inFigures(due) {
				waited = append(waited, now-due)
			} else {
				g.latency.record(m.n, false, now-due)
			}
		} else {
			g.repeated.Add(1)
		}
		h := held{who: who, ours: true, attempt: d.Attempt, s: settle, ends: true}
		switch chance := m.rand.Float64() * 100; {
		case chance < c.Nack:
			h.s.Nack = true
			h.ends = c.MaxAttempts > 0 && d.Attempt >= c.MaxAttempts
		case chance < c.Nack+c.Lapse:
			g.lapsed.Add(1)
			continue
		}
		list = append(list, h)
	}
	g.violations.Store(g.judge.So().Broken())
	g.latency.record(m.n, true, waited...)
	return list
}

// settle settles, and tells the judge before and after.
func (m *member) settle(ctx context.Context, s Session, list []held) error {
	if len(list) == 0 {
		return nil
	}
	g := m.g
	wire := make([]Settlement, len(list))
	g.mu.Lock()
	for i, h := range list {
		wire[i] = h.s
		if h.ours {
			g.judge.Settling(h.who, h.attempt, h.ends)
		}
	}
	g.mu.Unlock()
	outcomes, err := s.Settle(ctx, wire)
	now := g.r.since()
	figures := g.r.inFigures(now)
	acked := false
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, h := range list {
		if !h.ours {
			continue
		}
		how := check.Unknown
		if i < len(outcomes) {
			how = outcomes[i]
		}
		g.judge.Settled(h.who, h.attempt, how)
		switch how {
		case check.Acked:
			g.acked.Add(1)
			if figures {
				g.measured.Add(1)
				acked = true
			}
		case check.Failed:
			g.nacked.Add(1)
		case check.Buried:
			g.nacked.Add(1)
			g.dead.Add(1)
		case check.Stale:
			g.stale.Add(1)
		}
	}
	if acked {
		if g.moved > 0 {
			g.gap = max(g.gap, now-g.moved)
		}
		g.moved = max(g.moved, now)
	}
	g.violations.Store(g.judge.So().Broken())
	return err
}
