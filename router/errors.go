package router

import "fmt"

// ErrMessage is a message that was refused for what it is. Trying again
// unchanged does not help.
type ErrMessage struct {
	Field string // key, id, headers, headers[2].name, body
	Err   error  // *names.Error, *record.Error or *ErrTooLarge
}

// Error says which field and why.
func (e *ErrMessage) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap gives the broken rule.
func (e *ErrMessage) Unwrap() error { return e.Err }

// ErrTooLarge is a body beyond the topic's own limit.
type ErrTooLarge struct{ Size, Limit int }

// Error gives both sizes.
func (e *ErrTooLarge) Error() string {
	return fmt.Sprintf("it has %d bytes and the topic takes %d; send less, or raise the topic's max_body_bytes (at most 1 MiB)", e.Size, e.Limit)
}

// ErrKey is a key that is none: present and empty.
type ErrKey struct{}

// Error says what to do.
func (e *ErrKey) Error() string {
	return "it is empty; leave the key out for a message without key, or give at least one byte"
}

// ErrCall is a whole call that was refused for what it is.
type ErrCall struct{ Field, Why string }

// Error says which field and why.
func (e *ErrCall) Error() string { return e.Field + ": " + e.Why }

// ErrNotSent is a message that was not sent because an earlier one of the call,
// which must come before it, was refused. It was not stored.
type ErrNotSent struct {
	Earlier int   // the place in the call of the message that was refused
	Err     error // why that one was
}

// Error says what to do.
func (e *ErrNotSent) Error() string {
	return fmt.Sprintf("not sent, since message %d must be stored before it and was refused (%v); send both again, in order", e.Earlier, e.Err)
}

// Unwrap gives the earlier message's refusal.
func (e *ErrNotSent) Unwrap() error { return e.Err }

// ErrOutcomeUnknown is a message that was sent and may or may not have been stored,
// since nobody waited for the answer to the end.
type ErrOutcomeUnknown struct{ Err error }

// Error says what to do.
func (e *ErrOutcomeUnknown) Error() string {
	return fmt.Sprintf("it is not known whether the message was stored (%v); sending it again with the same message id or producer sequence stores it once", e.Err)
}

// Unwrap gives what ended the wait.
func (e *ErrOutcomeUnknown) Unwrap() error { return e.Err }
