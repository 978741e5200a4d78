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

// drive is one run of a shape. Its goroutines end before RunShape returns.
type drive struct {
	c      Config
	shape  Shape
	server string
	broker *unary

	topic    string
	producer string // its id, for sequences
	lanes    *lanes
	crowd    *crowd
	source   source
	pumped   *pumped
	singles  []*single

	opened  time.Time
	start   atomic.Int64 // of the load, from then on: what every time is counted from
	begin   atomic.Int64 // of the figures, from the start
	end     atomic.Int64
	publish *latencies
	unsent  uint64
}

func (d *drive) since() int64 { return int64(time.Since(d.opened)) - d.start.Load() }

func (d *drive) inFigures(at int64) bool { return at >= d.begin.Load() && at < d.end.Load() }

// wake tells the pump that a member has handled something.
func (d *drive) wake() {
	if d.pumped != nil && d.shape.Window > 0 {
		d.pumped.nudge()
	}
}

// Measure is called when the time of the figures begins, and when it ends.
type Measure func(begins bool)

// RunShape runs a shape against the broker at a URL. Of the configuration, what
// the shape does not say counts: partitions, members, in-flight, ids, sequences,
// messages, progress. A refusal ends the run: nothing is tried
// again, since that would be in the figures. When ctx ends, publishing ends with
// it; what was published is still consumed and judged.
func RunShape(ctx context.Context, server string, s Shape, c Config, measure Measure) (*Report, error) {
	c = s.fill(c)
	if err := s.Validate(c); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	admin := c
	admin.RetryFor = 3 * time.Second // a broker that has gone is not waited for
	b, done := Unary(server, admin)
	defer done()
	id := uuid.New()
	d := &drive{c: c, shape: s, server: server, broker: b.(*unary), publish: newLatencies(), topic: "loadtest-" + id.String()[:13]}
	var run uint64
	for _, x := range id[:8] {
		run = run<<8 | uint64(x)
	}
	d.producer = fmt.Sprintf("loadtest-%x", run)
	version, err := b.Version(ctx)
	if err != nil {
		return nil, err
	}
	had, err := b.CreateTopic(ctx, d.topic, c.Partitions)
	if err != nil {
		return nil, err
	}
	if had > 0 {
		return nil, fmt.Errorf("topic %s is there already: a shape needs one of its own", d.topic)
	}
	rep, err := d.run(ctx, run, version, measure)
	if !c.Keep {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
		defer cancel()
		if gone := b.DeleteTopic(clean, d.topic); gone != nil {
			err = errors.Join(err, fmt.Errorf("cleaning up topic %s: %w", d.topic, gone))
		}
	}
	return rep, err
}

func (d *drive) run(ctx context.Context, run uint64, version string, measure Measure) (*Report, error) {
	route, err := d.broker.route(ctx, d.topic)
	if err != nil {
		return nil, err
	}
	if d.lanes, err = newLanes(run, d.shape.Size, d.shape.Keys, d.c.Seed, route); err != nil {
		return nil, err
	}
	if d.c.Groups > 0 {
		d.crowd = &crowd{d: d, name: "loadtest", tally: check.NewTally("loadtest", d.shape.Keys), latency: newLatencies()}
		if err := d.broker.CreateGroup(ctx, d.topic, d.crowd.name, Policy{
			AckDeadline: d.c.AckDeadline, Backoff: d.c.Backoff, MaxAttempts: d.c.MaxAttempts,
		}); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	drained, rest, err := d.load(ctx, measure)
	rep := d.report(began, version)
	rep.Drained, rep.Drain, rep.Interrupted = drained, milliseconds(rest), ctx.Err() != nil || err != nil
	if d.crowd != nil {
		for _, x := range d.lanes.all {
			for _, k := range x.keys {
				if err == nil { // all that was sent was answered
					d.crowd.tally.Stored(k.key, k.sent)
				}
			}
		}
		if err != nil {
			d.crowd.tally.Refused()
		}
		rep.Groups[0].judged(d.crowd.tally.Finish(drained))
	}
	rep.conclude()
	return rep, err
}

// load publishes and consumes.
func (d *drive) load(ctx context.Context, measure Measure) (drained bool, rest time.Duration, err error) {
	if measure == nil {
		measure = func(bool) {}
	}
	// Members and the drain outlast ctx, but not a failure.
	all, fail := context.WithCancelCause(context.WithoutCancel(ctx))
	defer fail(nil)
	publishing, stopPublishing := context.WithCancel(all)
	defer stopPublishing()
	defer context.AfterFunc(ctx, stopPublishing)()
	d.opened = time.Now()
	if err := d.open(ctx); err != nil {
		return false, 0, err
	}
	var members sync.WaitGroup
	var takers []partaker
	join := func() error {
		for n := range d.c.Members {
			t, err := d.partaker(all, n)
			if err != nil {
				return err
			}
			takers = append(takers, t)
			members.Go(func() {
				if err := t.work(); err != nil {
					fail(fmt.Errorf("member %d: %w", n+1, err))
				}
			})
		}
		return nil
	}
	defer func() {
		for _, t := range takers {
			t.cut() // what has left is closed already
		}
		members.Wait()
	}()
	if d.shape.Consume {
		if err := join(); err != nil {
			d.closePublishers()
			return false, 0, err
		}
	}
	d.start.Store(int64(time.Since(d.opened)))
	d.begin.Store(int64(d.shape.Warmup))
	d.end.Store(int64(d.shape.Warmup + d.shape.Time))
	limit := d.shape.Warmup + d.shape.Time
	if d.shape.Backlog > 0 {
		limit = 2 * d.shape.Time
		d.begin.Store(0)
		d.end.Store(int64(limit))
	}
	telling, quiet := context.WithCancel(context.Background())
	var aside sync.WaitGroup
	aside.Go(func() { d.tell(telling) })
	defer aside.Wait()
	defer quiet()

	stop := make(chan struct{})
	var publishers sync.WaitGroup
	each := func(work func(<-chan struct{}) error) {
		publishers.Go(func() {
			if err := work(stop); err != nil {
				fail(err)
			}
		})
	}
	if d.source != nil {
		each(d.source.work)
	}
	for _, s := range d.singles {
		each(s.work)
	}
	published := make(chan struct{})
	go func() { publishers.Wait(); close(published) }()
	if d.shape.Backlog == 0 {
		if wait(publishing, d.shape.Warmup-time.Duration(d.since()), nil) {
			measure(true)
			wait(publishing, limit-time.Duration(d.since()), nil)
			measure(false)
			if d.shape.Rate > 0 { // what is due goes out, with some grace
				wait(publishing, 2*grace, published)
			}
		}
	} else {
		wait(publishing, limit, published)
	}
	close(stop)
	if publishing.Err() != nil && d.shape.Backlog == 0 { // it was cut short
		d.end.Store(min(d.end.Load(), d.since()))
	}
	<-published
	ended := time.Now()
	if d.crowd == nil || all.Err() != nil {
		return d.crowd == nil && all.Err() == nil, time.Since(ended), context.Cause(all)
	}
	if d.shape.Backlog > 0 {
		measure(true)
		if err := join(); err != nil {
			return false, 0, err
		}
	}
	drained = d.drain(all)
	d.crowd.drained(d.since())
	if d.shape.Backlog > 0 {
		measure(false)
	}
	rest = time.Since(ended)
	for _, t := range takers {
		t.leave()
	}
	members.Wait()
	return drained, rest, context.Cause(all)
}

// wait waits for a time, ctx, or over.
func wait(ctx context.Context, t time.Duration, over <-chan struct{}) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-over:
	case <-timer.C:
	}
	return true
}

// partaker is a member of the group of a shape.
type partaker interface {
	work() error // until it has left
	leave()      // what was handled and is not confirmed yet still is
	cut()        // ends it, wherever it is
}

// source publishes what is not sent by singles.
type source interface {
	work(stop <-chan struct{}) error // until stop, and waits for the receipts
	cut()
}

// partaker has a member join.
func (d *drive) partaker(ctx context.Context, n int) (partaker, error) {
	if d.c.GoClient {
		return d.crowd.hire(ctx, n)
	}
	return d.crowd.join(ctx, n)
}

// open connects the publishers.
func (d *drive) open(ctx context.Context) (err error) {
	if d.shape.Sync == 0 {
		d.pumped = &pumped{wake: make(chan struct{}, 1)}
		if d.c.GoClient {
			d.source, err = d.newClientPump(ctx)
		} else {
			d.source, err = d.newPump(ctx)
		}
		return err
	}
	for n := range d.shape.Sync {
		s, err := d.newSingle(ctx, n)
		if err != nil {
			d.closePublishers()
			return err
		}
		d.singles = append(d.singles, s)
	}
	return nil
}

func (d *drive) closePublishers() {
	if d.source != nil {
		d.source.cut()
	}
	for _, s := range d.singles {
		s.close()
	}
}

// drain waits until the group has settled everything, by the broker's own word.
func (d *drive) drain(ctx context.Context) bool {
	const ask = 500 * time.Millisecond
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	moved, asked, last := time.Now(), time.Time{}, uint64(0)
	for {
		settled := d.crowd.settled.Load()
		if settled != last {
			last, moved = settled, time.Now()
		}
		if settled >= d.stored() || time.Since(moved) > ask && time.Since(asked) > ask {
			asked = time.Now()
			if lag, err := d.broker.Lag(ctx, d.topic, d.crowd.name); err == nil && lag == 0 {
				return true
			}
		}
		if time.Since(moved) > d.c.DrainFor {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// stored counts the messages with a receipt.
func (d *drive) stored() (n uint64) {
	if d.pumped != nil {
		n = d.pumped.published.Load()
	}
	for _, s := range d.singles {
		n += s.published.Load()
	}
	return n
}

// report gathers the figures.
func (d *drive) report(began time.Time, version string) *Report {
	r := &run{c: d.c, topic: d.topic, publish: d.publish}
	r.c.Warmup = time.Duration(d.begin.Load())
	r.end.Store(d.end.Load())
	rep := r.report(began, version)
	rep.Load.Warmup = milliseconds(d.shape.Warmup)
	rep.Shape = d.shape.Name
	rep.Publish.Messages = d.stored()
	rep.Publish.Unsent = d.unsent
	span := time.Duration(max(d.end.Load()-d.begin.Load(), int64(time.Millisecond))).Seconds()
	if d.pumped != nil {
		rep.Publish.Calls = d.pumped.batches.Load()
		rep.Publish.Rate = float64(d.pumped.measured.Load()) / span
		if d.shape.Backlog > 0 {
			rep.Publish.Rate = 0 // it was filled, not measured
		}
	}
	for _, s := range d.singles {
		rep.Publish.Calls += s.published.Load()
		rep.Publish.Rate += float64(s.measured.Load()) / span
	}
	rep.Publish.Bytes = rep.Publish.Rate * float64(d.shape.Size)
	if g := d.crowd; g != nil {
		x := Group{
			Name: g.name, Messages: g.arrived.Load(), Acked: g.settled.Load(), Rate: float64(g.measured.Load()) / span,
			Redelivered: g.tally.Again(), Latency: g.latency.total(),
		}
		if d.shape.Backlog > 0 {
			took := time.Duration(g.last.Load() - g.first.Load()).Seconds()
			x.Rate = float64(x.Acked) / max(took, 0.001)
			x.Latency = Latency{} // of a backlog it says nothing
			rep.Publish.Latency = Latency{}
			rep.Measured = took * 1000
		}
		rep.Groups = append(rep.Groups, x)
	}
	return rep
}

// tell calls Tell at each tick.
func (d *drive) tell(ctx context.Context) {
	if d.c.Tell == nil {
		return
	}
	tick := time.NewTicker(d.c.Tick)
	defer tick.Stop()
	before, published, settled := time.Now(), uint64(0), uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		span := now.Sub(before).Seconds()
		before = now
		p := Progress{
			At: time.Duration(d.since()), Total: d.shape.Warmup + d.shape.Time, Published: d.stored(), Publish: d.publish.look(),
		}
		p.Publishing = p.At < p.Total
		p.Rate = float64(p.Published-published) / span
		published = p.Published
		if g := d.crowd; g != nil {
			n := g.settled.Load()
			p.Groups = []GroupProgress{{
				Name: g.name, Ended: n, Rate: float64(n-settled) / span, Latency: g.latency.look(), Violations: g.broken.Load(),
			}}
			settled = n
		}
		d.c.Tell(p)
	}
}
