package broker

import (
	"context"
	"errors"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/format"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
	"github.com/strandmq/strandmq/router"
)

// A hopError is an error that came from another node. Its words are those that
// the other node would have used; what the packages below tell apart by type has
// its type here too.
type hopError struct {
	told  *refusal
	typed error // nil: nobody here acts on it
}

func (e *hopError) Error() string { return e.told.Error() }

// Unwrap gives the error's type and its words. translate finds the words.
func (e *hopError) Unwrap() []error {
	if e.typed == nil {
		return []error{e.told}
	}
	return []error{e.typed, e.told}
}

// failureOn makes an error ready for its way to another node. nil stays nil.
func (b *Broker) failureOn(ctx context.Context, err error) *nodev1.Failure {
	if err == nil {
		return nil
	}
	r := b.explain(err)
	if r.reason == "INTERNAL" {
		b.log.ErrorContext(ctx, "a call from another node failed", "err", err)
		r = internal(requestOf(ctx))
	}
	out := &nodev1.Failure{Problem: r.problem(nil), Route: r.route}
	set := func(k nodev1.FailureKind, p partition.PartitionID, number uint64, name, why string) {
		out.Kind, out.Partition, out.Number, out.Name, out.Why = k, uint64(p), number, valid(name), valid(why)
	}
	var (
		notLeader *partition.ErrNotLeader
		unknown   *partition.ErrOutcomeUnknown
		told      *router.ErrOutcomeUnknown
		full      *partition.ErrFull
		bad       *partition.ErrUnreadable
		damaged   *partition.ErrDamaged
		gone      *partition.ErrUnknownPartition
		stopped   *partition.ErrStopped
		group     *consumer.ErrUnknownGroup
		not       *consumer.ErrNotDead
		stale     *consumer.ErrStale
		session   *consumer.ErrSessionEnded
		member    *coordinator.ErrSessionEnded
	)
	switch {
	case errors.As(err, &told):
		set(nodev1.FailureKind_FAILURE_KIND_OUTCOME_UNKNOWN, 0, 0, "", r.text)
	case errors.As(err, &unknown):
		set(nodev1.FailureKind_FAILURE_KIND_OUTCOME_UNKNOWN, unknown.Partition, 0, "", unknown.Why)
	case errors.As(err, &notLeader):
		set(nodev1.FailureKind_FAILURE_KIND_NOT_LEADER, notLeader.Partition, uint64(notLeader.Leader), "", "")
	case errors.As(err, &full):
		set(nodev1.FailureKind_FAILURE_KIND_FULL, full.Partition, uint64(full.RetryAfter.Milliseconds()), "", "")
	case errors.As(err, &stopped):
		set(nodev1.FailureKind_FAILURE_KIND_STOPPED, 0, 0, "", "")
	case errors.As(err, &gone):
		set(nodev1.FailureKind_FAILURE_KIND_UNKNOWN_PARTITION, gone.Partition, 0, "", "")
	case errors.As(err, &bad):
		// One message of a partition that goes on: the words say all.
	case errors.As(err, &damaged):
		newer := uint64(0)
		if damaged.Newer != nil {
			newer = 1
		}
		set(nodev1.FailureKind_FAILURE_KIND_DAMAGED, damaged.Partition, newer, "", damaged.Why)
	case errors.As(err, &group):
		set(nodev1.FailureKind_FAILURE_KIND_UNKNOWN_GROUP, group.Partition, uint64(group.Group), "", "")
	case errors.As(err, &not):
		set(nodev1.FailureKind_FAILURE_KIND_NOT_DEAD, not.Partition, uint64(not.Offset), "", "")
	case errors.As(err, &stale):
		set(nodev1.FailureKind_FAILURE_KIND_STALE, 0, 0, "", stale.Why)
	case errors.As(err, &session):
		set(nodev1.FailureKind_FAILURE_KIND_SESSION_ENDED, 0, session.Session, session.Member, "")
	case errors.As(err, &member):
		set(nodev1.FailureKind_FAILURE_KIND_MEMBER_ENDED, 0, member.Session, member.Member, "")
	}
	return out
}

// errorOf is what failureOn made ready. nil stays nil. A reason that this version
// does not know is a fault of ours, with its words.
func errorOf(f *nodev1.Failure) error {
	if f == nil {
		return nil
	}
	p := f.GetProblem()
	e := &hopError{told: &refusal{
		reason: p.GetReason(), text: p.GetMessage(), field: p.GetField(), retryAfter: time.Duration(p.GetRetryAfterMs()) * time.Millisecond, route: f.GetRoute(),
	}}
	id := partition.PartitionID(f.GetPartition())
	switch f.GetKind() {
	case nodev1.FailureKind_FAILURE_KIND_NOT_LEADER:
		e.typed = &partition.ErrNotLeader{Partition: id, Leader: partition.NodeID(f.GetNumber())}
	case nodev1.FailureKind_FAILURE_KIND_OUTCOME_UNKNOWN:
		e.typed = &partition.ErrOutcomeUnknown{Partition: id, Why: f.GetWhy()}
	case nodev1.FailureKind_FAILURE_KIND_FULL:
		e.typed = &partition.ErrFull{Partition: id, RetryAfter: time.Duration(f.GetNumber()) * time.Millisecond}
	case nodev1.FailureKind_FAILURE_KIND_DAMAGED:
		damaged := &partition.ErrDamaged{Partition: id, Why: f.GetWhy()}
		if f.GetNumber() == 1 {
			damaged.Newer = &format.ErrNewer{}
		}
		e.typed = damaged
	case nodev1.FailureKind_FAILURE_KIND_UNKNOWN_PARTITION:
		e.typed = &partition.ErrUnknownPartition{Partition: id}
	case nodev1.FailureKind_FAILURE_KIND_UNKNOWN_GROUP:
		e.typed = &consumer.ErrUnknownGroup{Partition: id, Group: consumer.GroupID(f.GetNumber())}
	case nodev1.FailureKind_FAILURE_KIND_NOT_DEAD:
		e.typed = &consumer.ErrNotDead{Partition: id, Offset: partition.Offset(f.GetNumber())}
	case nodev1.FailureKind_FAILURE_KIND_STALE:
		e.typed = &consumer.ErrStale{Why: f.GetWhy()}
	case nodev1.FailureKind_FAILURE_KIND_SESSION_ENDED:
		e.typed = &consumer.ErrSessionEnded{Member: f.GetName(), Session: f.GetNumber()}
	case nodev1.FailureKind_FAILURE_KIND_MEMBER_ENDED:
		e.typed = &coordinator.ErrSessionEnded{Member: f.GetName(), Session: f.GetNumber()}
	case nodev1.FailureKind_FAILURE_KIND_STOPPED:
		e.typed = &partition.ErrStopped{}
	case nodev1.FailureKind_FAILURE_KIND_UNSPECIFIED:
	}
	return e
}

// notTaken tells that a call did nothing where it was made, and may do better
// elsewhere or later: the partition is led by another node, or this one stops.
func notTaken(err error) bool {
	if errors.As(err, new(*partition.ErrOutcomeUnknown)) {
		return false
	}
	return errors.As(err, new(*partition.ErrNotLeader)) || errors.As(err, new(*partition.ErrStopped)) || errors.As(err, new(*errUnreached))
}

// errUnreached tells that a node could not be asked: nothing was sent.
type errUnreached struct {
	node partition.NodeID
	err  error
}

func (e *errUnreached) Error() string { return "node " + e.node.String() + " cannot be reached" }

func (e *errUnreached) Unwrap() error { return e.err }
