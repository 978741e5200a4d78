package client

import (
	"errors"
	"runtime/debug"
	"strings"
	"time"
)

// gatherTime is how long a settlement may wait for others while handlers have more to
// do: a frame for each would cost more than handling.
const gatherTime = time.Millisecond

// The goroutines that handlers run in belong to the consumer, and take the deliveries
// themselves, under its lock. They are begun when they are needed, one by one: whoever
// takes a delivery and sees another wakes the next, unless somebody was woken and has not
// come yet. So handlers that wait have all of their number beside them, and those that
// are over in a microsecond run in as many goroutines as there are processors.

// rouse has one more goroutine look for a delivery, if there is one. mu is held.
func (r *consuming) rouse() {
	switch {
	case r.coming || !r.hand.ready():
	case r.idle > 0:
		r.coming = true
		r.work.Signal()
	case r.workers < r.x.most:
		r.coming = true
		r.workers++
		r.crew.Go(r.worker)
	}
}

// worker runs one handler after the other until the consumer ends.
func (r *consuming) worker() {
	r.mu.Lock()
	r.coming = false
	var at *task // what its handler has
	defer func() {
		if at != nil {
			// The handler ended this goroutine, as a failed test does.
			at.handling.end(nil)
			r.mu.Lock()
			r.settled(at, r.verdict(at, &panicked{"it ended its goroutine", debug.Stack()}))
		}
		r.workers--
		r.rouse()
		r.mu.Unlock()
	}()
	for !r.over {
		t := r.hand.start()
		if t == nil {
			r.idle++
			r.work.Wait()
			r.idle--
			r.coming = false
			continue
		}
		t.handling.base = r.base
		r.rouse()
		at = t
		r.mu.Unlock()
		v := r.verdict(t, r.x.c.observed.call(&t.handling, r.handle, &t.Delivery))
		t.handling.end(nil)
		r.mu.Lock()
		at = nil
		r.settled(t, v)
	}
}

// verdict makes of what a handler returned what becomes of the delivery.
func (r *consuming) verdict(t *task, err error) *verdict {
	if err == nil {
		return ackIt
	}
	var p *panicked
	if errors.As(err, &p) {
		r.x.c.log.Error("a handler panicked", "topic", t.Topic, "group", t.Group, "partition", t.Partition, "offset", t.Offset, "panic", p.value, "stack", string(p.stack))
	}
	if t.settled {
		if p == nil {
			r.x.c.log.Warn("a handler failed, and the message does not come again: the group is at-most-once", "topic", t.Topic, "group", t.Group, "partition", t.Partition, "offset", t.Offset, "err", err)
		}
		return ackIt
	}
	v := judge(t.handling.why(), err)
	var l *later
	if v.delay == longestDelay && errors.As(err, &l) && l.d > longestDelay {
		r.x.c.log.Warn("a handler asked for another attempt later than the broker takes; it is made after the longest delay", "topic", t.Topic, "group", t.Group, "partition", t.Partition, "offset", t.Offset, "asked", l.d, "delay", longestDelay)
	}
	return v
}

// complain logs what the broker refused for good.
func (r *consuming) complain(list []refusal) {
	for _, x := range list {
		t := x.task
		r.x.c.log.Warn("the broker refused a settlement; what it may have been refused for is left out, or the delivery lapses",
			"topic", t.Topic, "group", t.Group, "partition", t.Partition, "offset", t.Offset, "action", strings.ToLower(strings.TrimPrefix(x.verdict.action.String(), "SETTLE_ACTION_")),
			"delay", x.verdict.delay, "handler", x.verdict.reason, "err", refused(x.problem, false))
	}
}

// settled takes a handler's end, and has it told. mu is held.
func (r *consuming) settled(t *task, v *verdict) {
	r.hand.finish(t, v)
	if r.hand.pressing() {
		nudge(r.wake)
		return
	}
	r.gather()
}

// gather has what is there to tell be told after a while. mu is held.
func (r *consuming) gather() {
	if !r.gathering && r.hand.unsaid() {
		r.gathering = true
		r.gathered.Reset(gatherTime)
	}
}

// stop tells handlers why they should end.
func stop(ts []*task, why error) {
	for _, t := range ts {
		t.handling.end(why)
	}
}
