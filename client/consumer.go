package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/strandmq/strandmq/internal/names"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// ConsumerOption sets one thing of a consumer.
type ConsumerOption func(*Consumer)

// WithMember names this member of the group. A name belongs to one process at a
// time: whoever comes later ends the earlier one's session (ErrSessionEnded).
// Default: a name that nobody else has.
func WithMember(name string) ConsumerOption {
	return func(x *Consumer) { x.member, x.named = name, true }
}

// WithConcurrency is how many handlers run at once, for different keys: 1 to
// 1,000,000. 0: the default, 16. 1 handles one message after the other.
func WithConcurrency(n int) ConsumerOption {
	return func(x *Consumer) { x.most = whole(&x.wrong, "WithConcurrency", n, 1, mostCredits, 16) }
}

// WithPrefetch is how many deliveries are in this consumer's hands at most, those
// that handlers have included: 1 to 1,000,000, and at least one for each handler
// (WithConcurrency). 0: the default, 256. More keeps fast handlers busy; less
// leaves more to other members while handlers are slow. The group's limit per
// member holds too.
func WithPrefetch(n int) ConsumerOption {
	return func(x *Consumer) { x.prefetch = whole(&x.wrong, "WithPrefetch", n, 1, mostCredits, 256) }
}

// WithCreateGroup makes the group with the default policy when there is none.
func WithCreateGroup() ConsumerOption { return func(x *Consumer) { x.create = true } }

// WithDrainTimeout is how long handlers may run on when the context of Run has
// ended: up to 24 h. Default 30 s; 0: their contexts end at once. Then their contexts
// end, and 5 s later Run no longer waits.
func WithDrainTimeout(d time.Duration) ConsumerOption {
	return func(x *Consumer) { x.drain = span(&x.wrong, "WithDrainTimeout", d, longestDrain) }
}

// graceTime is how long handlers have to return once their context has ended, and
// the broker to confirm that the member left.
const graceTime = 5 * time.Second

// Consumer is one member of a group. See Run.
type Consumer struct {
	c            *Client
	topic, group string
	member       string
	named        bool // by the caller
	most         int
	prefetch     int
	create       bool
	drain        time.Duration
	wrong        []error // what options were refused for
	running      atomic.Bool
}

// Consumer makes a member of a topic's group. Nothing is sent before Run. The error
// names each option, and each name, that is out of range; it is ErrClosed after Close.
func (c *Client) Consumer(topic, group string, opts ...ConsumerOption) (*Consumer, error) {
	x := &Consumer{c: c, topic: topic, group: group, member: "go-" + uuid.NewString(), most: 16, prefetch: 256, drain: 30 * time.Second}
	for _, o := range opts {
		o(x)
	}
	x.prefetch = max(x.prefetch, x.most)
	if err := allOf(append(x.wrong, badName("topic", names.Topic(topic)), badName("group", names.Group(group)), badName("WithMember", names.Member(x.member)))); err != nil {
		return nil, err
	}
	if err := c.begin(); err != nil {
		return nil, err
	}
	c.made.Done()
	return x, nil
}

// Run joins the group and has its messages handled until ctx ends. Of one key it
// handles one message at a time, in order; different keys run beside each other.
//
// When ctx ends, no more messages are taken, other members get this one's partitions
// at once, what no handler has is given back, handlers that run may finish (see
// WithDrainTimeout), their results are stored, and Run returns nil. No attempt is
// charged for what was given back.
//
// A group that is at-most-once has its messages settled by the hand-out, so nothing is
// given back, extended or tried again: those that came are handled, also while Run drains
// and when the connection broke, and what a handler returns is logged, no more.
//
// When the connection breaks, another session begins, at the next address if
// there is one. What was in hand is the consumer's no longer: the broker gives it
// out again, and charges the attempt unless it ended the stream in good order. The
// contexts of its handlers end (ErrLapsed). A message whose handler was done,
// and whose ack was lost, is acked when it comes here again, without another run.
//
// An error means that going on makes no sense: ErrUnknownTopic, ErrUnknownGroup,
// ErrSessionEnded, handlers that did not return in time, or ErrClosed when the client
// was closed while ctx lives; the graceful end is the same. Run may be called again
// when it has returned.
func (x *Consumer) Run(ctx context.Context, handle Handler) error {
	if handle == nil {
		return badOption("handle", "Run has no handler: give it a function")
	}
	if !x.running.CompareAndSwap(false, true) {
		return &Error{Message: "this consumer runs already: make another one, with another member name"}
	}
	defer x.running.Store(false)
	if err := x.c.begin(); err != nil {
		return err
	}
	defer x.c.made.Done()
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(x.c.ctx, func() { cancel(ErrClosed) })()
	r := &consuming{
		x: x, way: newWay(x.c.servers), handle: handle, base: context.WithoutCancel(ctx), began: time.Now(),
		wake: make(chan struct{}, 1), gathered: time.NewTimer(time.Hour), hand: newHand(x.topic, x.group, x.prefetch, x.most),
	}
	r.work.L = &r.mu
	err := r.run(running)
	if errors.Is(context.Cause(running), ErrClosed) && ctx.Err() == nil {
		err = errors.Join(ErrClosed, err)
	}
	return err
}

// consuming is one Run: its goroutine, and those of handlers (see worker).
type consuming struct {
	x      *Consumer
	way    *way
	handle Handler
	base   context.Context //nolint:containedctx // of handlers
	began  time.Time
	wake   chan struct{} // one place: there is something to tell

	mu        sync.Mutex
	hand      *hand          // guarded by mu
	work      sync.Cond      // guarded by mu: those of idle wait for it
	crew      sync.WaitGroup // goroutines for handlers
	workers   int            // guarded by mu: how many
	idle      int            // guarded by mu: of those, the ones that wait
	coming    bool           // guarded by mu: one was woken, or begun, and has not looked yet
	over      bool           // guarded by mu: they end
	gathering bool           // guarded by mu: gathered was set
	gathered  *time.Timer    // when what gathers is told

	// Those of Run's goroutine.
	s        *session // nil: none at the moment
	left     bool     // leave was sent
	failed   error    // why there will be no other session
	draining bool
	told     bool // the handlers' contexts have ended
	due      bool // what gathered is to be told
}

func (r *consuming) now() int64 { return time.Since(r.began).Milliseconds() }

func (r *consuming) run(ctx context.Context) error {
	waits := newWaits()
	again := time.NewTimer(0) // the next session
	limit := time.NewTimer(time.Hour)
	limit.Stop()
	every := int64(1000)
	tick := time.NewTicker(time.Duration(every) * time.Millisecond)
	defer func() {
		again.Stop()
		limit.Stop()
		tick.Stop()
		r.gathered.Stop()
		if r.s != nil {
			r.s.cut(nil)
			<-r.s.over
		}
		r.way.close()
		r.dismiss()
	}()
	done := ctx.Done()
	drain := func(d time.Duration) {
		r.draining, done = true, nil
		r.mu.Lock()
		defer r.mu.Unlock()
		r.hand.drain()
		if r.hand.busy() == 0 {
			d = min(d, graceTime)
		}
		limit.Reset(d)
	}
	for {
		busy, shortest := r.speak()
		// A session that is there is left before a drain is over.
		if r.draining && busy == 0 && r.s == nil {
			return r.failed
		}
		if e := max(10, shortest/8); shortest > 0 && e < every {
			every = e
			tick.Reset(time.Duration(every) * time.Millisecond)
		}
		var frames chan *strandmqv1.ConsumeResponse
		var sent chan struct{}
		var over chan error
		if r.s != nil {
			frames, sent, over = r.s.frames, r.s.sent, r.s.over
		}
		select {
		case f := <-frames:
			if !r.s.open {
				r.s.began(f)
				waits.Reset()
				r.x.c.log.Info("a session began", "topic", r.x.topic, "group", r.x.group, "member", r.x.member, "node", r.s.node.url, "session", f.GetSession())
			}
			if err := r.arrive(f); err != nil {
				r.s.cut(err)
			}
		case <-sent:
			r.s.free = true
		case <-r.wake:
		case <-r.gathered.C:
			r.mu.Lock()
			r.gathering, r.due = false, true
			r.mu.Unlock()
		case <-tick.C:
			r.change(func(h *hand) []*task { return h.tick(r.now()) })
		case err := <-over:
			wait := r.lost(err, waits.NextBackOff)
			switch {
			case r.failed != nil && !r.draining:
				drain(graceTime)
			case !r.draining:
				again.Reset(wait)
			}
		case <-again.C:
			if !r.draining {
				r.join()
			}
		case <-done:
			drain(r.x.drain)
		case <-limit.C:
			if running := r.late(limit); running > 0 {
				return errors.Join(r.failed, stillRun(running))
			}
		}
	}
}

func handlersHave(n int) string {
	if n == 1 {
		return "a handler has"
	}
	return fmt.Sprintf("%d handlers have", n)
}

// stillRun is the error of a Run whose handlers did not return.
func stillRun(handlers int) *Error {
	return &Error{
		Message: handlersHave(handlers) + " not returned in time; what they had was given back and may be handled elsewhere meanwhile",
		err:     ErrDraining,
	}
}

// change does something that may give deliveries, and take some away from handlers.
func (r *consuming) change(what func(*hand) (gone []*task)) {
	r.mu.Lock()
	gone := what(r.hand)
	r.rouse()
	r.gather()
	r.mu.Unlock()
	stop(gone, ErrLapsed)
}

// arrive takes a frame.
func (r *consuming) arrive(f *strandmqv1.ConsumeResponse) error {
	now := r.now()
	u, err := unpack(f, r.x.topic, r.x.group, now)
	if err != nil {
		return err
	}
	var refused []refusal
	r.change(func(h *hand) (gone []*task) {
		gone, err = h.arrive(u, now)
		refused, h.refused = h.refused, nil
		return gone
	})
	r.complain(refused)
	return err
}

// dismiss has the goroutines of handlers end: those that wait now, the others when their
// handlers return.
func (r *consuming) dismiss() {
	r.mu.Lock()
	r.over = true
	r.work.Broadcast()
	running := slices.Clone(r.hand.running)
	r.mu.Unlock()
	stop(running, ErrDraining)
	if len(running) == 0 {
		r.crew.Wait()
	}
}

// join begins a session.
func (r *consuming) join() {
	r.mu.Lock()
	credits := r.hand.opens()
	r.mu.Unlock()
	r.s = openSession(r.base, r.way.node(), &strandmqv1.ConsumeRequest{
		Open: &strandmqv1.ConsumeOpen{
			Topic: r.x.topic, Group: r.x.group, Member: r.x.member, CreateGroup: r.x.create,
			BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES, RecordBatches: true,
		},
		Credits: uint32(credits),
	})
}

// speak gives the writer the next frame, if it is free and there is enough to tell, or
// what gathered is due, or a sign of life. It tells for how many deliveries handlers run
// or will, and the shortest time in which something has to be done.
func (r *consuming) speak() (busy int, shortest int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	busy, shortest = r.hand.busy(), r.hand.every
	if r.s == nil || !r.s.open {
		return busy, shortest
	}
	if r.s.every > 0 && (shortest == 0 || r.s.every < shortest) {
		shortest = r.s.every
	}
	if !r.s.free || r.left {
		return busy, shortest
	}
	var f *strandmqv1.ConsumeRequest
	if r.due || r.hand.pressing() {
		r.due = false
		f = r.hand.frame()
		if f == nil && r.draining && r.hand.idle() {
			f = &strandmqv1.ConsumeRequest{Leave: true}
			r.left = true
		}
	}
	now := r.now()
	if f == nil && r.s.every > 0 && now-r.s.spoke >= r.s.every {
		f = &strandmqv1.ConsumeRequest{} // with nothing in it: a sign of life
	}
	if f != nil {
		r.s.free, r.s.spoke = false, now
		r.s.out <- f
	}
	return busy, shortest
}

// lost notes that the session ended, and gives the wait before the next one.
func (r *consuming) lost(err error, next func() time.Duration) time.Duration {
	n := r.s.node
	r.s = nil
	r.change((*hand).closed)
	if r.left {
		return 0
	}
	err = explain(err, n.url)
	var e *Error
	// A session of a name that nobody else has ends when this process was asleep.
	awake := errors.Is(err, ErrSessionEnded) && !r.x.named
	if errors.As(err, &e) && !e.passes && !awake {
		r.failed = err
		return 0
	}
	r.way.blame(n, err)
	wait := next()
	if e != nil {
		wait = max(wait, e.RetryAfter)
	}
	r.x.c.log.Warn("a session was lost; another one begins", "topic", r.x.topic, "group", r.x.group, "member", r.x.member, "node", n.url, "err", err, "in", wait)
	return wait
}

// late goes on when a drain takes too long: first the handlers' contexts end, then
// nobody waits any more, and it tells how many there are.
func (r *consuming) late(limit *time.Timer) (abandoned int) {
	limit.Reset(graceTime)
	r.mu.Lock()
	running, lost := slices.Clone(r.hand.running), r.hand.giveUp()
	r.mu.Unlock()
	if lost > 0 {
		r.x.c.log.Warn("the time to drain is over, and messages of a group that is at-most-once had no handler: nobody gets them", "topic", r.x.topic, "group", r.x.group, "member", r.x.member, "messages", lost)
	}
	switch {
	case len(running) == 0 && r.s != nil:
		// The broker does not confirm: what was settled may come again.
		r.s.cut(&Error{Message: "the broker did not confirm in time that the member left", passes: true})
		return 0
	case !r.told:
		r.told = true
		stop(running, ErrDraining)
		return 0
	}
	r.abandon()
	return len(running)
}

// abandon leaves although handlers still run.
func (r *consuming) abandon() {
	if r.s == nil || !r.s.open || !r.s.free {
		return
	}
	r.s.out <- &strandmqv1.ConsumeRequest{Leave: true}
	end := time.After(graceTime)
	for {
		select {
		case <-r.s.frames:
		case <-r.s.over:
			r.s = nil
			return
		case <-end:
			return
		}
	}
}
