package router

import (
	"context"
	"fmt"
	"sync"
)

// Call is the answers of one Submit, as they come in.
type Call struct {
	done chan struct{}  // closed when every message has its answer
	then func([]Result) // nil: nobody asked to be called

	mu        sync.Mutex
	results   []Result // guarded by mu until done is closed or Wait gave up
	left      int      // guarded by mu: batches without answer, and 1 while Submit runs
	abandoned bool     // guarded by mu: Wait gave up; later answers are dropped
}

// unanswered marks, in Result.Partition, a message that was sent and has no
// answer yet.
const unanswered = -1

func newCall(n int, then func([]Result)) *Call {
	return &Call{results: make([]Result, n), left: 1, done: make(chan struct{}), then: then}
}

// Done is closed when every message has its answer.
func (c *Call) Done() <-chan struct{} { return c.done }

// Wait returns a result per message, in the order of the call. When ctx ends
// first, messages without answer get an *ErrOutcomeUnknown: they may be stored all the
// same. Wait may be called once.
func (c *Call) Wait(ctx context.Context) []Result {
	select {
	case <-c.done:
		return c.results
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandoned = true
	for i := range c.results {
		if r := &c.results[i]; r.Partition == unanswered {
			*r = Result{Err: &ErrOutcomeUnknown{Err: context.Cause(ctx)}}
		}
	}
	return c.results
}

// begin notes that a batch is about to be sent. It comes before the sending,
// since the answer may come on another goroutine at once.
func (c *Call) begin(batch []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left++
	for _, i := range batch {
		c.results[i].Partition = unanswered
	}
}

// answer takes the answer of a batch: one result per record, or the error of
// all.
func (c *Call) answer(partition int, batch []int, stored []Stored, err error) {
	if err == nil && len(stored) != len(batch) {
		err = &ErrOutcomeUnknown{Err: fmt.Errorf("the log answered %d results for %d messages", len(stored), len(batch))}
	}
	c.mu.Lock()
	if !c.abandoned {
		for at, i := range batch {
			switch {
			case err != nil:
				c.results[i] = Result{Err: err}
			case stored[at].Err != nil:
				c.results[i] = Result{Err: stored[at].Err}
			default:
				c.results[i] = Result{Partition: partition, Offset: stored[at].Offset, Duplicate: stored[at].Duplicate}
			}
		}
	}
	c.finish()
}

// notSent marks messages that were held back behind one that was refused.
func (c *Call) notSent(members []int, earlier int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range members {
		c.results[i] = Result{Err: &ErrNotSent{Earlier: earlier, Err: err}}
	}
}

// sent notes that Submit has sent all it will.
func (c *Call) sent() {
	c.mu.Lock()
	c.finish()
}

// finish takes one off what is awaited. mu is held, and let go.
func (c *Call) finish() {
	c.left--
	last := c.left == 0
	c.mu.Unlock()
	if !last {
		return
	}
	close(c.done)
	if c.then != nil {
		c.then(c.results)
	}
}
