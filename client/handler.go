package client

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Handler handles one message. What it returns decides:
//
//	nil                  handled: acked, and never delivered to the group again
//	an error             failed: tried again after the group's backoff, or
//	                     dead-lettered when the attempts are used up
//	RetryAfter(d, err)   failed, and tried again after d
//	Reject(err)          dead-lettered at once
//
// The error's text is kept in the message's history. A panic is an error, and is
// logged with its stack.
//
// While a handler runs, its delivery is extended, up to the group's max hold. ctx
// has the values of the one that Run was given. It ends when the delivery is this
// consumer's no longer (cause ErrLapsed), or when the time for a graceful end is
// over (cause ErrDraining); after the latter an error gives the message back, and
// no attempt is charged.
type Handler func(ctx context.Context, d *Delivery) error

// Reject is an error by which a handler gives a message up: it is dead-lettered
// now, without further attempts.
func Reject(err error) error { return &rejection{err} }

type rejection struct{ err error }

func (r *rejection) Error() string { return text(r.err) }
func (r *rejection) Unwrap() error { return r.err }

// RetryAfter is an error by which a handler has a message tried again after d, at
// least a millisecond and at most 7 days, instead of the group's backoff. The attempt
// counts. What is beyond 7 days is taken as 7 days, and logged.
func RetryAfter(d time.Duration, err error) error { return &later{max(d, time.Millisecond), err} }

type later struct {
	d   time.Duration
	err error
}

func (l *later) Error() string { return text(l.err) }
func (l *later) Unwrap() error { return l.err }

func text(err error) string {
	if err == nil {
		return "no reason was given"
	}
	return err.Error()
}

// panicked is what became of a handler that panicked.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("the handler panicked: %v", p.value) }

// call runs a handler.
func call(ctx context.Context, h Handler, d *Delivery) (err error) {
	done := false
	defer func() {
		if done {
			return
		}
		// A handler that ends its goroutine, as a failed test does, has no value.
		err = &panicked{recover(), debug.Stack()}
	}()
	err = h(ctx, d)
	done = true
	return err
}

// judge makes a verdict of what a handler returned. ended is why its context has ended.
func judge(ended, err error) *verdict {
	var r *rejection
	var l *later
	switch {
	case err == nil:
		return ackIt
	case errors.As(err, &r):
		return &verdict{action: strandmqv1.SettleAction_SETTLE_ACTION_REJECT, reason: reason(err)}
	case errors.Is(ended, ErrDraining):
		return releaseIt
	case errors.As(err, &l):
		return &verdict{action: strandmqv1.SettleAction_SETTLE_ACTION_NACK, delay: min(l.d, longestDelay), reason: reason(err)}
	}
	return &verdict{action: strandmqv1.SettleAction_SETTLE_ACTION_NACK, reason: reason(err)}
}

// reason is an error's text as it may be stored.
func reason(err error) string {
	s := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(s) <= longestReason {
		return s
	}
	n := longestReason
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
