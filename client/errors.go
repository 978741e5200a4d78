package client

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/router"
)

// Reason is why a broker refused something: a stable name of docs/errors.md. It
// is an error itself, so that errors.Is(err, client.ErrUnknownTopic) tells.
type Reason string

// Error gives the name.
func (r Reason) Error() string { return "strandmq: " + string(r) }

// The reasons that programs ask for most. Any other name of docs/errors.md works
// as well: errors.Is(err, client.Reason("REPLAY_LIMIT")).
const (
	ErrUnknownTopic    = Reason("UNKNOWN_TOPIC")
	ErrTopicExists     = Reason("TOPIC_EXISTS")
	ErrUnknownGroup    = Reason("UNKNOWN_GROUP")
	ErrGroupExists     = Reason("GROUP_EXISTS")
	ErrBadName         = Reason("BAD_NAME")
	ErrBadValue        = Reason("BAD_VALUE")
	ErrBadKey          = Reason("BAD_KEY")
	ErrBadID           = Reason("BAD_ID")
	ErrBadHeader       = Reason("BAD_HEADER")
	ErrBodyTooLarge    = Reason("BODY_TOO_LARGE")
	ErrIDReused        = Reason("ID_REUSED")
	ErrSequenceExpired = Reason("SEQUENCE_EXPIRED")
	ErrTopicReplaced   = Reason("TOPIC_REPLACED")
	ErrStaleRoute      = Reason("STALE_ROUTE")
	ErrStaleDelivery   = Reason("STALE_DELIVERY")
	ErrSessionEnded    = Reason("SESSION_ENDED")
	ErrNotConfirmed    = Reason("NOT_CONFIRMED")
	ErrLimitReached    = Reason("LIMIT_REACHED")
	ErrDiskFull        = Reason("DISK_FULL")
	ErrNoQuorum        = Reason("NO_QUORUM")
	ErrNotReady        = Reason("NOT_READY")
	ErrOutcomeUnknown  = Reason("OUTCOME_UNKNOWN")
)

// What the client itself says.
var (
	// ErrClosed is a call of what was closed.
	ErrClosed = errors.New("strandmq: closed")
	// ErrLapsed is why the context of a handler ended whose delivery is the
	// member's no longer: the connection broke, or the group's max hold is over.
	// The message comes again, to this member or another.
	ErrLapsed = errors.New("strandmq: the delivery is not this member's any more")
	// ErrDraining is why the context of a handler ended that still ran when the
	// time for a graceful end was over, and why Run ends if it did not return then, either.
	ErrDraining = errors.New("strandmq: the consumer ends")
)

// Error is a refusal by a broker, or by the client in its stead, or a failure of the
// way to it.
//
// errors.Is compares with a Reason; errors.As gives the whole.
type Error struct {
	Reason     Reason        // empty: no broker said it
	Message    string        // what went wrong and what to do, for people
	Field      string        // the field, or the option, at fault, for bad input
	RetryAfter time.Duration // for what passes: how long to wait; 0: nobody said
	RequestID  string        // of the call, by which the broker's logs tell of it; empty: no broker heard it

	passes bool
	err    error // what it came from; may be nil
}

// Error gives the words, and the reason behind them. For a fault of the broker's they name
// the request id, by which its log is searched.
func (e *Error) Error() string {
	switch {
	case e.Reason == "":
		return "strandmq: " + e.Message
	case e.Reason == "INTERNAL" && !strings.Contains(e.Message, e.RequestID):
		return fmt.Sprintf("strandmq: %s (%s, request id %s)", e.Message, string(e.Reason), e.RequestID)
	}
	return fmt.Sprintf("strandmq: %s (%s)", e.Message, string(e.Reason))
}

// Is tells whether target is the reason.
func (e *Error) Is(target error) bool {
	r, ok := target.(Reason) //nolint:errorlint // Is compares with the target itself
	return ok && r == e.Reason && r != ""
}

// Unwrap gives what it came from.
func (e *Error) Unwrap() error { return e.err }

// Passes implements retry.Passing.
func (e *Error) Passes() (time.Duration, bool) { return e.RetryAfter, e.passes }

// Retryable tells whether the same call may succeed later. It is true of
// ErrOutcomeUnknown too, but for what was closed: the same call stores the message if
// it was not stored. If it was, it is stored twice, unless it has an ID.
func Retryable(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.passes
}

// unknown is the error of a message that was perhaps stored.
func unknown(why error) *Error {
	return &Error{
		Reason:  ErrOutcomeUnknown,
		Message: fmt.Sprintf("it is not known whether the message was stored: %v", why),
		passes:  !errors.Is(why, ErrClosed),
		err:     why,
	}
}

// gaveUp is the error of a call whose context ended, after the way to the broker had
// failed. Both are behind it.
func gaveUp(ended, last error) error {
	var e *Error
	if !errors.As(last, &e) {
		return errors.Join(ended, last)
	}
	return &Error{
		Reason: e.Reason, Field: e.Field, RetryAfter: e.RetryAfter, RequestID: e.RequestID, passes: e.passes,
		Message: fmt.Sprintf("%s (%v)", e.Message, ended), err: errors.Join(ended, last),
	}
}

// badMessage is the error of a message that the router refuses.
func badMessage(err error) *Error {
	e := &Error{Message: err.Error(), err: err, Reason: ErrBadValue}
	var m *router.ErrMessage
	if !errors.As(err, &m) {
		return e
	}
	why := m.Err.Error()
	var rec *record.Error
	if errors.As(m.Err, &rec) {
		why = rec.Why // its page speaks of batches
	}
	e.Field, e.Message = m.Field, ofMessage(m.Field)+": "+why
	var large *router.ErrTooLarge
	switch {
	case errors.As(err, &large), m.Field == "body":
		e.Reason = ErrBodyTooLarge
	case m.Field == "key":
		e.Reason = ErrBadKey
	case m.Field == "id":
		e.Reason = ErrBadID
	default:
		e.Reason = ErrBadHeader
	}
	return e
}

// inRecord is how a broker names a field of a message of a record batch.
var inRecord = regexp.MustCompile(`^record_batch\.records\[\d+\]\.`)

// refusedMessage is the error of a message that a broker refused, in its batch, for good.
func refusedMessage(p *strandmqv1.Problem) *Error {
	e := refused(p, false)
	if field := inRecord.ReplaceAllString(e.Field, ""); field != e.Field {
		e.Field, e.Message = field, ofMessage(field)+": "+e.Message
	}
	return e
}

// ofMessage is a field of a message as Message has it.
func ofMessage(field string) string {
	head, tail, _ := strings.Cut(field, "[")
	name, ok := map[string]string{"key": "Key", "id": "ID", "headers": "Headers", "body": "Body"}[head]
	if !ok {
		return field
	}
	at, part, _ := strings.Cut(tail, ".")
	switch {
	case tail == "":
		return name
	case part == "":
		return name + "[" + at
	}
	return name + "[" + at + "." + strings.ToUpper(part[:1]) + part[1:]
}

// badName is the error of a name that breaks the rules; nil: it does not. An option that
// gave it is named with it.
func badName(field string, err error) error {
	var n *names.Error
	if !errors.As(err, &n) {
		return nil
	}
	e := &Error{Reason: ErrBadName, Field: field, Message: err.Error(), err: err}
	if strings.HasPrefix(field, "With") {
		e.Message = field + ": " + e.Message
	}
	return e
}
