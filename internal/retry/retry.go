// Package retry makes a call again while it fails in a way that passes.
//
// It owns the waits, and the knowledge of how a connection breaks. It does not
// know what an error of the API means: an error that may pass says so itself.
//
//	call ──► ok ─────────────────────────────► result
//	  ▲  └─► error ─ Passes? ─ no ───────────► error
//	  │                └─ yes, after d ─┐
//	  └── wait d, or a growing step ◄───┴── limit over ──► the last error
//
// It promises that the error it returns is always one of the call's, or the
// context's; and that it waits no longer than the limit from the first failure
// on. Time in which the process stood still does not count: the other side could
// not answer then. It refuses to decide whether a call may be made twice: give it only those
// that can.
package retry

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Passing is an error that knows whether it passes.
type Passing interface {
	error
	// Passes tells whether the same call may succeed later, and after how long;
	// 0 means that nobody knows.
	Passes() (after time.Duration, yes bool)
}

// Config is how patient to be.
type Config struct {
	// Limit is for how long a call is made again. 0: it is made once.
	Limit time.Duration
	// First and Most bound the waits that nobody gave. Default 100 ms and 5 s.
	First, Most time.Duration
	// Waiting is told of every wait. May be nil.
	Waiting func(err error, wait time.Duration)
}

// Do makes the call until it succeeds, fails for good, or the limit is over.
func Do[T any](ctx context.Context, c Config, call func() (T, error)) (T, error) {
	steps := backoff.NewExponentialBackOff()
	steps.InitialInterval, steps.MaxInterval = c.First, c.Most
	if c.First == 0 {
		steps.InitialInterval = 100 * time.Millisecond
	}
	if c.Most == 0 {
		steps.MaxInterval = 5 * time.Second
	}
	steps.Reset()
	var spent *awake // since the first failure
	for {
		res, err := call()
		var passing Passing
		if err == nil || !errors.As(err, &passing) || c.Limit <= 0 {
			return res, err
		}
		wait, yes := passing.Passes()
		if !yes {
			return res, err
		}
		if over := context.Cause(ctx); over != nil {
			return res, over
		}
		if wait > 0 {
			steps.Reset()
		} else {
			wait = steps.NextBackOff()
		}
		if spent == nil {
			spent = newAwake(c.Limit)
			defer spent.end()
		}
		if spent.time()+wait > c.Limit {
			return res, err
		}
		if c.Waiting != nil {
			c.Waiting(err, wait)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return res, context.Cause(ctx)
		}
	}
}

// Broke tells whether an error means that the connection could not be made, or
// ended before the answer: there may be another in a moment.
func Broke(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED)
}
