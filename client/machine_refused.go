package client

import (
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// longestDelay is the longest wait before another attempt that a broker takes.
const longestDelay = 7 * 24 * time.Hour

// refusal is a settlement that the broker refused, and would refuse again.
type refusal struct {
	task    *task
	verdict *verdict
	problem *strandmqv1.Problem
}

// forGood tells whether a settlement was refused for what it is, and not because its
// delivery had lapsed or its session ended, which is told otherwise.
func forGood(p *strandmqv1.Problem) bool {
	switch Reason(p.GetReason()) {
	case "", ErrStaleDelivery, ErrSessionEnded, "UNKNOWN_SESSION", "NOT_HOLDER", "HELD_TOO_LONG", "BAD_TOKEN":
		return false
	}
	return !passing(p)
}

// plainer is the same verdict with less that can be refused: first without the delay,
// then without the words. nil: there is none.
func (v *verdict) plainer() *verdict {
	switch {
	case v.delay != 0:
		return &verdict{action: v.action, reason: v.reason}
	case v.reason != "":
		return &verdict{action: v.action}
	}
	return nil
}
