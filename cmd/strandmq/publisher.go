package main

import (
	"context"
	"errors"
	"time"

	"github.com/strandmq/strandmq/internal/retry"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// publisher sends batches until every message has a receipt or a refusal that
// trying again would not change. Every message must have an id: an answer may
// be lost after the batch was stored.
type publisher struct {
	api      *clients
	topic    string
	retryFor time.Duration
	waiting  func(err error, d time.Duration) // may be nil
}

// send publishes one batch, in order. Messages that were refused for now are sent
// again, alone and in their order, after the delay that the broker gives; it
// refuses the later ones of a key together with an earlier one. Where a message is
// refused for good, the broker stores nothing of its key behind it, and nothing
// behind it is sent again: its place in the order is open until someone mends it.
// With an error, what has a receipt is stored all the same.
func (p *publisher) send(ctx context.Context, messages []*strandmqv1.Message) ([]*strandmqv1.PublishResult, error) {
	results := make([]*strandmqv1.PublishResult, len(messages))
	pending := make([]int, len(messages))
	for i := range messages {
		pending[i] = i
	}
	final := len(messages) // the first that was refused for good
	_, err := retry.Do(ctx, retry.Config{Limit: p.retryFor, Waiting: p.waiting}, func() (struct{}, error) {
		req := &strandmqv1.PublishRequest{Topic: p.topic, InOrder: true}
		for _, i := range pending {
			req.Messages = append(req.Messages, messages[i])
		}
		call, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		res, err := p.api.publish.Publish(call, req)
		if err != nil {
			return struct{}{}, err
		}
		if len(res.GetResults()) != len(pending) {
			return struct{}{}, errors.New("the broker answered for another number of messages than were sent")
		}
		var later []int
		var why *apiError
		for n, r := range res.GetResults() {
			i := pending[n]
			results[i] = r
			refused := r.GetProblem()
			switch {
			case refused == nil:
			case final < i: // it stays unsent, whatever it was told
			case refused.GetRetryAfterMs() > 0 || refused.GetReason() == "NOT_SENT":
				later = append(later, i)
				wait := time.Duration(refused.GetRetryAfterMs()) * time.Millisecond
				if why == nil || wait > why.retryAfter {
					why = &apiError{reason: refused.GetReason(), text: refused.GetMessage(), requestID: refused.GetRequestId(), retryAfter: wait, passing: true}
				}
			default:
				final = i
			}
		}
		if len(later) == 0 {
			return struct{}{}, nil
		}
		pending = later
		return struct{}{}, why
	})
	return results, err
}
