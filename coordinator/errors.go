package coordinator

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/strandmq/strandmq/internal/format"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/partition"
)

// Kind is what an error speaks of.
type Kind string

// The kinds of things that the map holds.
const (
	KindTopic     Kind = "topic"
	KindGroup     Kind = "group"
	KindNode      Kind = "node"
	KindPartition Kind = "partition"
)

// ErrNotFound is a name or id that stands for nothing.
type ErrNotFound struct {
	Kind  Kind
	Name  string
	Topic string // the topic of a group
}

// Error says what is missing and how to see what there is.
func (e *ErrNotFound) Error() string {
	if e.Kind == KindGroup && e.Topic != "" {
		return fmt.Sprintf("topic %s has no group %s; list its groups to see what there is, or create it", plain.Quote(e.Topic), plain.Quote(e.Name))
	}
	if e.Kind == KindNode || e.Kind == KindPartition {
		return fmt.Sprintf("there is no %s %s; list them to see what there is", e.Kind, e.Name)
	}
	return fmt.Sprintf("there is no %s %s; list them to see what there is, or create it", e.Kind, plain.Quote(e.Name))
}

// ErrExists is a name that is taken by something with other settings.
type ErrExists struct {
	Kind    Kind
	Name    string
	Differs string // in words: what is different
	Fixed   bool   // what is different cannot be altered
}

// Error says what is different.
func (e *ErrExists) Error() string {
	way := "alter it, or choose another name"
	if e.Fixed {
		way = "that cannot be altered, so choose another name"
	}
	return fmt.Sprintf("%s %s exists with other settings: %s; %s", e.Kind, plain.Quote(e.Name), e.Differs, way)
}

// ErrBusy is something that is on its way in or out. It passes.
type ErrBusy struct {
	Kind       Kind
	Name       string
	Phase      Phase
	RetryAfter time.Duration
}

// Error says what is going on.
func (e *ErrBusy) Error() string {
	doing := "being created"
	if e.Phase == Deleting {
		doing = "being deleted"
	}
	return fmt.Sprintf("%s %s is %s; try again shortly", e.Kind, plain.Quote(e.Name), doing)
}

func busy(kind Kind, name string, phase Phase) error {
	return &ErrBusy{Kind: kind, Name: name, Phase: phase, RetryAfter: 200 * time.Millisecond}
}

// ErrConfirm is a deletion that was not confirmed by the name typed again.
type ErrConfirm struct {
	Kind  Kind
	Name  string
	Given string
}

// Error says what to type.
func (e *ErrConfirm) Error() string {
	what := fmt.Sprintf("deleting %s %s", e.Kind, plain.Quote(e.Name))
	if e.Kind == KindNode {
		what = "removing node " + e.Name
	}
	if e.Given == "" {
		return what + " cannot be undone; confirm it by giving the name again"
	}
	return fmt.Sprintf("%s cannot be undone; the name given again is %s, which is another", what, plain.Quote(e.Given))
}

// ErrLimit is one thing more than the cluster holds.
type ErrLimit struct {
	What  string // topics, partitions, groups of a topic, members of a group
	Limit int
}

// Error gives the limit.
func (e *ErrLimit) Error() string {
	return fmt.Sprintf("there are %d %s already, which is the limit; delete some first", e.Limit, e.What)
}

// ErrSessionEnded is a session that is no longer the member's.
type ErrSessionEnded struct {
	Member  string
	Session uint64
	Now     uint64 // the member's present session; 0: none
}

// Error says what to do.
func (e *ErrSessionEnded) Error() string {
	if e.Now != 0 {
		return fmt.Sprintf("session %d of member %s has ended, since the member joined again; if that was another process, give each a member name of its own", e.Session, plain.Quote(e.Member))
	}
	return fmt.Sprintf("session %d of member %s has ended: it left, or was not heard of for too long; join again", e.Session, plain.Quote(e.Member))
}

// ErrNoSession is a number that never was a session of the member.
type ErrNoSession struct {
	Member  string
	Session uint64
}

// Error says what to do.
func (e *ErrNoSession) Error() string {
	return fmt.Sprintf("%d is no session of member %s, and never was; send the one that Join or Receive gave this member", e.Session, plain.Quote(e.Member))
}

// ErrConflict is a change that others kept overtaking.
type ErrConflict struct {
	Kind Kind
	Name string
}

// Error says what to do.
func (e *ErrConflict) Error() string {
	return fmt.Sprintf("%s %s is being changed by others at the same time; look at it and try again", e.Kind, plain.Quote(e.Name))
}

// Fault is one setting that is wrong.
type Fault struct {
	Field string
	Why   string
}

// ErrInvalid is settings that are wrong, with all their faults.
type ErrInvalid struct{ Faults []Fault }

// Error lists the faults.
func (e *ErrInvalid) Error() string {
	var b strings.Builder
	for i, f := range e.Faults {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(f.Field + ": " + f.Why)
	}
	return b.String()
}

// ErrFormat is state or a command of the metadata log that this binary does not
// understand. It is not the asker's error: the replica stops.
type ErrFormat struct {
	At   partition.Index // the entry, or 0 for a row
	What string
	Err  error
}

// Error says what to do.
func (e *ErrFormat) Error() string {
	s := "metadata"
	if e.At != 0 {
		s += fmt.Sprintf(" log entry %d", e.At)
	}
	s += ": " + e.What
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if errors.As(e.Err, new(*format.ErrNewer)) {
		return s // it says what to do
	}
	return s + "; it is damaged: restore the data folder from a copy"
}

// Unwrap gives the decoder's error, or the *format.ErrNewer.
func (e *ErrFormat) Unwrap() error { return e.Err }
