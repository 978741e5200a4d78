package loadtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/strandmq/strandmq/internal/check"
)

// run is one run. Its goroutines end before Run returns.
type run struct {
	c      Config
	broker Broker
	id     uint64
	topic  string
	shared bool // others' messages are in the topic
	mine   bool // nobody else can have a topic of the run's name
	keys   Keys
	start  time.Time

	publish   *latencies // due → receipt
	producers []*producer
	groups    []*group
	sessions  atomic.Uint64
	sent      atomic.Int64 // messages
	end       atomic.Int64 // of the figures, from the start
}

// since is the time from the start of the run, in nanoseconds, by a clock that
// is never set.
func (r *run) since() int64 { return int64(time.Since(r.start)) }

// inFigures tells whether a moment counts in the figures.
func (r *run) inFigures(at int64) bool {
	return at >= int64(r.c.Warmup) && at < r.end.Load()
}

// Run runs a load and reports on it. When ctx ends, publishing ends with it, and
// the run still waits for its groups, judges, and cleans up. An error means that
// the run could not be carried out; the report is nil then, or tells of the part
// before. A broken promise is no error: see Report.Verdict.
func Run(ctx context.Context, c Config, b Broker) (*Report, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	id := uuid.New()
	r := &run{c: c, broker: b, keys: NewKeys(c.Keys, c.Zipf), publish: newLatencies()}
	for _, x := range id[:8] {
		r.id = r.id<<8 | uint64(x)
	}
	if r.mine = r.c.Name == ""; r.mine {
		r.c.Name = time.Now().UTC().Format("20060102-150405-") + id.String()[:4]
	}
	r.topic = c.Topic
	if r.topic == "" {
		r.topic = "loadtest-" + r.c.Name
	}
	version, err := b.Version(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	clean, err := r.setUp(ctx)
	defer func() {
		if clean != nil {
			_ = clean() // after a failure that is told
		}
	}()
	if err != nil {
		return nil, err
	}
	drained, rest, err := r.load(ctx)
	cause := err
	if err != nil {
		drained = false
	}
	// The rest is done also when ctx has ended.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.c.RetryFor)
	defer cancel()
	rep := r.report(began, version)
	rep.Drain = milliseconds(rest)
	rep.Drained = drained
	rep.Interrupted = ctx.Err() != nil || err != nil
	if err := r.judge(end, rep, drained); err != nil {
		return rep, errors.Join(cause, err)
	}
	err, clean = clean(), nil
	return rep, errors.Join(cause, err)
}

// setUp makes the topic and the groups. clean takes away what was made.
func (r *run) setUp(ctx context.Context) (clean func() error, err error) {
	var made []func(context.Context) error
	clean = func() error {
		if r.c.Keep {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.c.RetryFor)
		defer cancel()
		var faults []error
		for _, undo := range made {
			faults = append(faults, undo(ctx))
		}
		if err := errors.Join(faults...); err != nil {
			return fmt.Errorf("cleaning up topic %s: %w", r.topic, err)
		}
		return nil
	}
	had, err := r.broker.CreateTopic(ctx, r.topic, r.c.Partitions)
	if err != nil {
		if r.c.Topic == "" && r.mine { // it may have been made all the same
			made = append(made, func(ctx context.Context) error { return r.broker.DeleteTopic(ctx, r.topic) })
		}
		return clean, err
	}
	if r.shared = had > 0; r.shared {
		r.c.Partitions = had
	}
	if !r.shared {
		made = append(made, func(ctx context.Context) error { return r.broker.DeleteTopic(ctx, r.topic) })
	}
	for i := range r.c.Groups {
		name := fmt.Sprintf("loadtest-%s-g%d", r.c.Name, i+1)
		if err := r.broker.CreateGroup(ctx, r.topic, name, Policy{
			AckDeadline: r.c.AckDeadline, Backoff: r.c.Backoff, MaxAttempts: r.c.MaxAttempts, FromLatest: r.shared,
		}); err != nil {
			return clean, err
		}
		if r.shared {
			made = append(made, func(ctx context.Context) error { return r.broker.DeleteGroup(ctx, r.topic, name) })
		}
		g := &group{
			r: r, n: i, name: name, latency: newLatencies(),
			judge: check.NewStrands(check.StrandsConfig{
				Group: name, Keys: r.c.Keys, Producers: uint32(r.c.Producers), MaxAttempts: r.c.MaxAttempts,
			}),
		}
		for n := range r.c.Members {
			g.members = append(g.members, g.newMember(n))
		}
		r.groups = append(r.groups, g)
	}
	for n := range r.c.Producers {
		r.producers = append(r.producers, r.newProducer(uint32(n)))
	}
	return clean, nil
}

// load runs members and producers, and waits until the groups are through.
func (r *run) load(ctx context.Context) (drained bool, rest time.Duration, err error) {
	// Members and the drain outlast ctx, but not a failure.
	all, fail := context.WithCancelCause(context.WithoutCancel(ctx))
	defer fail(nil)
	members, stop := context.WithCancel(all)
	defer stop()
	var here, gone, published sync.WaitGroup
	for _, g := range r.groups {
		for _, m := range g.members {
			here.Add(1)
			gone.Go(func() {
				joined := sync.OnceFunc(here.Done)
				defer joined() // also when it never joins, so that the start does not wait
				if err := m.work(members, all, joined); err != nil {
					fail(err)
				}
			})
		}
	}
	here.Wait()
	producing, stopProducing := context.WithCancel(all)
	defer stopProducing()
	defer context.AfterFunc(ctx, stopProducing)()
	r.end.Store(int64(r.c.Warmup + r.c.Duration))
	r.start = time.Now()
	for _, p := range r.producers {
		published.Go(func() {
			if err := p.work(producing); err != nil {
				fail(err)
			}
		})
	}
	over := make(chan struct{}) // closed when publishing is over
	aside, endAside := context.WithCancel(all)
	var asides sync.WaitGroup
	asides.Go(func() { r.tell(aside, over) })
	if r.c.Crash > 0 {
		asides.Go(func() { r.inTurn(aside, over, r.c.Crash, func(m *member) chan<- struct{} { return m.crash }) })
	}
	if r.c.Leave > 0 {
		asides.Go(func() { r.inTurn(aside, over, r.c.Leave, func(m *member) chan<- struct{} { return m.leave }) })
	}
	published.Wait()
	close(over)
	ended := time.Now()
	if ctx.Err() != nil || all.Err() != nil { // it was cut short
		r.end.Store(min(r.end.Load(), r.since()))
	}
	if all.Err() == nil {
		drained = r.drain(all)
	}
	rest = time.Since(ended)
	stop()
	gone.Wait()
	endAside()
	asides.Wait()
	return drained, rest, context.Cause(all)
}

// inTurn tells one member after the other to crash or to leave, for as long as
// there is something to publish.
func (r *run) inTurn(ctx context.Context, over <-chan struct{}, every time.Duration, ear func(*member) chan<- struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-tick.C:
		}
		g := r.groups[i%len(r.groups)]
		m := g.members[i/len(r.groups)%len(g.members)]
		select {
		case ear(m) <- struct{}{}:
		default: // it still has the last one before it
		}
	}
}

// drain waits until no group has anything left, by the broker's own word. False:
// nothing moved for too long, and something is left.
func (r *run) drain(ctx context.Context) bool {
	const look, ask = 20 * time.Millisecond, 500 * time.Millisecond
	tick := time.NewTicker(look)
	defer tick.Stop()
	moved, asked := time.Now(), time.Time{}
	var last uint64
	for {
		var moves, left uint64
		stored := r.stored()
		for _, g := range r.groups {
			ended := g.acked.Load() + g.dead.Load()
			left += stored - min(stored, ended)
			moves += ended + g.arrived.Load() + g.repeated.Load() + g.nacked.Load()
		}
		if moves != last {
			last, moved = moves, time.Now()
		}
		if left == 0 || time.Since(moved) > ask && time.Since(asked) > ask {
			asked = time.Now()
			empty := true
			for _, g := range r.groups {
				lag, err := r.broker.Lag(ctx, r.topic, g.name)
				empty = empty && err == nil && lag == 0
			}
			if empty {
				return true
			}
		}
		if time.Since(moved) > r.c.DrainFor {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// room is how many messages producers may send now: see Config.Ahead.
func (r *run) room() int {
	if r.c.Ahead == 0 {
		return r.c.Batch
	}
	sent := r.sent.Load()
	room := int64(r.c.Ahead)
	for _, g := range r.groups {
		room = min(room, int64(r.c.Ahead)-(sent-int64(g.acked.Load()+g.dead.Load())))
	}
	return int(max(min(room, int64(r.c.Batch)), 0))
}

// stored counts the messages with a receipt.
func (r *run) stored() (n uint64) {
	for _, p := range r.producers {
		n += p.published.Load()
	}
	return n
}

// judge asks for the dead letters and finishes the verdicts.
func (r *run) judge(ctx context.Context, rep *Report, drained bool) error {
	for i, g := range r.groups {
		var dead []check.Sent
		if r.c.MaxAttempts > 0 {
			err := r.broker.Dead(ctx, r.topic, g.name, func(d Delivery) {
				who, _, ours, whole := readBody(d.Body, d.Key, r.id, r.c.Size)
				switch {
				case whole:
					dead = append(dead, who)
				case ours || !r.shared:
					g.judge.Alter(d.Place, "is a dead letter, and not as it was sent")
				}
			})
			if err != nil {
				return err
			}
		}
		for _, p := range r.producers {
			for _, m := range p.maybe {
				g.judge.Maybe(m)
			}
		}
		v := g.judge.Finish(check.End{
			Stored:  func(key, producer uint32) uint64 { return r.producers[producer].stored[key] },
			Dead:    dead,
			Drained: drained,
		})
		rep.Groups[i].Dead = uint64(len(dead))
		rep.Groups[i].judged(v)
	}
	rep.conclude()
	return nil
}

func isReason(err error, reason string) bool {
	var r *Refusal
	return errors.As(err, &r) && r.Reason == reason
}
