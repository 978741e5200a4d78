package main

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// again runs a call until it succeeds, fails for good, or has failed for as long
// as limit. It waits for as long as the broker says, or with growing steps.
func again[T any](ctx context.Context, limit time.Duration, waiting func(error, time.Duration), call func() (T, error)) (T, error) {
	steps := backoff.NewExponentialBackOff()
	steps.InitialInterval = 100 * time.Millisecond
	steps.MaxInterval = 5 * time.Second
	var last error
	opts := []backoff.RetryOption{backoff.WithBackOff(steps), backoff.WithMaxElapsedTime(limit)}
	if limit <= 0 {
		opts = append(opts, backoff.WithMaxTries(1))
	}
	if waiting != nil {
		opts = append(opts, backoff.WithNotify(func(err error, d time.Duration) { waiting(last, d) }))
	}
	res, err := backoff.Retry(ctx, func() (T, error) {
		res, err := call()
		var e *apiError
		switch last = err; {
		case err == nil:
			return res, nil
		case !errors.As(err, &e) || !e.passing:
			return res, backoff.Permanent(err)
		case e.retryAfter > 0:
			return res, &backoff.RetryAfterError{Duration: e.retryAfter}
		}
		return res, err
	}, opts...)
	var wait *backoff.RetryAfterError
	if errors.As(err, &wait) {
		err = last
	}
	return res, err
}
