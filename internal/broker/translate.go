package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
	"github.com/strandmq/strandmq/router"
)

// shortly is how long to wait for what passes by itself, such as a leader's
// election.
const shortly = 200 * time.Millisecond

// An explainer puts errors of the packages below into a caller's words. Those
// packages know partitions by their ids in this cluster, which no caller ever
// sees.
type explainer struct {
	// partition names a partition as callers know it.
	partition func(partition.PartitionID) string
	// fromOne: the caller counts a producer's messages from 1, as with readable
	// messages. In record batches they count from 0, as in the log.
	fromOne bool
}

// sequence is a producer's sequence as the caller counts.
func (x explainer) sequence(n uint64) uint64 {
	if x.fromOne {
		return n + 1
	}
	return n
}

// explain translates an error for a caller.
func (b *Broker) explain(err error) *refusal {
	r := explainer{b.partitionName, true}.translate(err)
	if r.reason == "NOT_LEADER" {
		if lost := b.noQuorum(err); lost != nil {
			return lost
		}
	}
	return r
}

// partitionName is a partition by its topic and its number there.
func (b *Broker) partitionName(id partition.PartitionID) string {
	if id == partition.Metadata {
		return "the metadata log"
	}
	if at, ok := b.coord.View().Place(id); ok {
		return fmt.Sprintf("partition %d of topic %s", at.Number, at.Topic.Name)
	}
	return "a partition that was deleted"
}

// reasonOf is an error's reason in the table, for who does not need the words.
func reasonOf(err error) string {
	return explainer{partition: partition.PartitionID.String}.translate(err).reason
}

// translate gives every error of the packages below its row of the table. What
// it does not know is a fault of ours: INTERNAL, whose text stays here.
func (x explainer) translate(err error) *refusal {
	var notSent *router.ErrNotSent
	if errors.As(err, &notSent) {
		// It wraps the reason of the message before it, whose words may be ours
		// alone. What that one waits for may pass, and then this one passes too.
		first := x.translate(notSent.Err)
		return &refusal{reason: "NOT_SENT", retryAfter: first.retryAfter,
			text: fmt.Sprintf("not sent, since message %d of the call must be stored before it and was refused (%s): send both again, in order", notSent.Earlier, first.reason)}
	}
	var r *refusal
	if errors.As(err, &r) {
		return r
	}
	for _, f := range []func(error) *refusal{x.routerError, storeError, x.partitionError, x.consumerError, coordinatorError} {
		if r := f(err); r != nil {
			return r
		}
	}
	var name *names.Error
	switch {
	case errors.As(err, &name):
		return refuse(nameReason(name.Kind), "", "%s", err)
	case errors.Is(err, context.DeadlineExceeded):
		return &refusal{reason: "DEADLINE", text: "the time of the call ran out before the answer; what was asked may still happen"}
	case errors.Is(err, context.Canceled):
		return &refusal{reason: "CANCELED", text: "the caller gave up"}
	}
	return &refusal{reason: "INTERNAL", text: err.Error()}
}

func nameReason(k names.Kind) string {
	switch k {
	case names.KindHeaderName, names.KindHeaderValue:
		return "BAD_HEADER"
	case names.KindMessageID:
		return "BAD_ID"
	}
	return "BAD_NAME"
}

func (x explainer) routerError(err error) *refusal {
	var (
		message *router.ErrMessage
		call    *router.ErrCall
		unknown *router.ErrOutcomeUnknown
		stale   *router.ErrStaleRoute
		one     *router.ErrRecord
		batch   *record.Error
	)
	switch {
	case errors.As(err, &stale):
		return refuse("STALE_ROUTE", "record_batch", "the record batch was made by another routing table than the topic's present one, which is with this answer: %s", err)
	case errors.As(err, &one):
		r := messageError(one.Err)
		r.field = fmt.Sprintf("record_batch.records[%d].%s", one.Record, r.field)
		return r
	case errors.As(err, &unknown):
		why := x.translate(unknown.Err).text
		return &refusal{reason: "OUTCOME_UNKNOWN", retryAfter: shortly,
			text: "it is not known whether the message was stored (" + why + "): with the same message id or producer sequence, sending it again stores it once"}
	case errors.As(err, &message):
		return messageError(message)
	case errors.As(err, &call):
		reason := "BAD_VALUE"
		switch call.Field {
		case "messages":
			reason = "BATCH_TOO_LARGE"
		case "producer_id":
			reason = "BAD_NAME"
		}
		return refuse(reason, call.Field, "%s", err)
	case errors.As(err, &batch):
		return refuse("BAD_RECORD_BATCH", "record_batch", "%s", err)
	}
	return nil
}

// messageError is a message that was refused for what it is.
func messageError(message *router.ErrMessage) *refusal {
	text := message.Err.Error()
	var name *names.Error
	var rec *record.Error
	switch {
	case errors.As(message, &name):
		return refuse(nameReason(name.Kind), message.Field, "%s", text)
	case errors.As(message, &rec):
		text = rec.Why // its page speaks of batches on disk
	}
	reason := "BAD_VALUE"
	switch field, _, _ := strings.Cut(message.Field, "["); field {
	case "key":
		reason = "BAD_KEY"
	case "id":
		reason = "BAD_ID"
	case "headers":
		reason = "BAD_HEADER"
	case "body":
		reason = "BODY_TOO_LARGE"
	}
	return refuse(reason, message.Field, "%s", text)
}

func (x explainer) partitionError(err error) *refusal {
	var (
		gone      *partition.ErrUnknownPartition
		full      *partition.ErrFull
		stuck     *partition.ErrDiskStuck
		notLeader *partition.ErrNotLeader
		unknown   *partition.ErrOutcomeUnknown
		stopped   *partition.ErrStopped
		bad       *partition.ErrUnreadable
		damaged   *partition.ErrDamaged
		expired   *partition.ErrExpired
		notStored *partition.ErrNotStored
		id        *partition.ErrIDReused
		behind    *partition.ErrBehind
		gap       *partition.ErrSequenceGap
		reused    *partition.ErrSequenceReused
		old       *partition.ErrSequenceExpired
	)
	passes := func(reason string, after time.Duration, format string, args ...any) *refusal {
		return &refusal{reason: reason, retryAfter: after, text: fmt.Sprintf(format, args...)}
	}
	switch {
	case errors.As(err, &stuck):
		return passes("DISK_STUCK", time.Second, "the broker's disk has not come back from a write for %v, so nothing is published: try again when it does", stuck.For.Round(time.Second))
	case errors.As(err, &full):
		return passes("QUEUE_FULL", full.RetryAfter, "%s takes no more at the moment: try again in %v", x.partition(full.Partition), full.RetryAfter)
	case errors.As(err, &notLeader):
		return passes("NOT_LEADER", shortly, "%s has no leader on this node at the moment: try again shortly", x.partition(notLeader.Partition))
	case errors.As(err, &unknown):
		return passes("OUTCOME_UNKNOWN", shortly, "%s: it is not known whether this was done (%s); repeat it if it has an id, a producer sequence, or is harmless twice", x.partition(unknown.Partition), unknown.Why)
	case errors.As(err, &stopped):
		return passes("NOT_READY", time.Second, "the node is stopping, or stopped: try again when it is up")
	case errors.As(err, &gone):
		// The names were known a moment ago: the topic is being deleted.
		return refuse("UNKNOWN_PARTITION", "", "%s is not here any more: its topic was deleted", x.partition(gone.Partition))
	case errors.As(err, &bad):
		return refuse("PARTITION_DAMAGED", "", "%s of %s cannot be read (%s): restore the data folder from a copy; other messages are served", bad.What(), x.partition(bad.Partition), bad.Why())
	case errors.As(err, &damaged) && damaged.Newer != nil:
		return refuse("NEWER_FORMAT", "", "%s stopped: %s; the other partitions go on", x.partition(damaged.Partition), damaged.Why)
	case errors.As(err, &damaged):
		return refuse("PARTITION_DAMAGED", "", "%s stopped, since what it stored cannot be trusted (%s): restore the data folder from a copy; the other partitions go on", x.partition(damaged.Partition), damaged.Why)
	case errors.As(err, &expired):
		return refuse("OFFSET_EXPIRED", "", "%s keeps messages from offset %d on: ask for that one or a later one", x.partition(expired.Partition), expired.Start)
	case errors.As(err, &notStored):
		return refuse("UNKNOWN_MESSAGE", "", "%s has no offset %d yet: it ends at %d", x.partition(notStored.Partition), notStored.Offset, notStored.End)
	case errors.As(err, &id):
		return refuse("ID_REUSED", "id", "message id %s is taken: %s holds another message with this id and key at offset %d: use a new id", plain.Quote(id.ID), x.partition(id.Partition), id.Offset)
	case errors.As(err, &behind):
		return refuse("NOT_SENT", "", "%s did not store it, since a message before it in the call must be stored first and was refused: send both again, in order", x.partition(behind.Partition))
	case errors.As(err, &old):
		return refuse("SEQUENCE_EXPIRED", "", "producer %s used sequence %d before: that message was stored in %s, and retention has removed it since: go on with the next one",
			plain.Quote(old.Producer), x.sequence(old.Sequence), x.partition(old.Partition))
	case errors.As(err, &gap):
		return refuse("SEQUENCE_GAP", "first_sequence", "producer %s sends sequence %d where %d is next: send from there on, or begin with a new producer id", plain.Quote(gap.Producer), x.sequence(gap.Got), x.sequence(gap.Expected))
	case errors.As(err, &reused):
		return refuse("SEQUENCE_REUSED", "first_sequence", "producer %s used sequence %d before, for another message, stored at offset %d: begin with a new producer id", plain.Quote(reused.Producer), x.sequence(reused.Sequence), reused.Offset)
	}
	return nil
}

// notDead is a message that is no dead letter of the group.
func notDead(what string) *refusal {
	return refuse("UNKNOWN_DEAD_LETTER", "which", "%s: it was replayed and handled, or discarded, or never died; list the dead letters to see what there is", what)
}

func (x explainer) consumerError(err error) *refusal {
	var (
		stale     *consumer.ErrStale
		token     *consumer.ErrToken
		group     *consumer.ErrUnknownGroup
		holder    *consumer.ErrNotHolder
		held      *consumer.ErrHeldTooLong
		session   *consumer.ErrSessionEnded
		settle    *consumer.ErrBadSettlement
		not       *consumer.ErrNotDead
		limit     *consumer.ErrReplayLimit
		replaying *consumer.ErrReplaying
		policy    *consumer.ErrBadPolicy
		receive   *consumer.ErrBadReceive
		again     *consumer.ErrSuperseded
	)
	switch {
	case errors.As(err, &stale):
		return refuse("STALE_DELIVERY", "token", "%s", err)
	case errors.As(err, &token):
		return refuse("BAD_TOKEN", "token", "%s", err)
	case errors.As(err, &group):
		return refuse("UNKNOWN_GROUP", "group", "%s does not know the group: it was deleted, or is still being created", x.partition(group.Partition))
	case errors.As(err, &holder):
		return refuse("NOT_HOLDER", "member", "%s", err)
	case errors.As(err, &held):
		return refuse("HELD_TOO_LONG", "", "%s", err)
	case errors.As(err, &session):
		return refuse("SESSION_ENDED", "session", "%s", err)
	case errors.As(err, &settle):
		return refuse("BAD_VALUE", settle.Field, "%s %s", settle.Field, settle.Why)
	case errors.As(err, &not):
		return notDead(fmt.Sprintf("the group has no dead letter at offset %d of %s", not.Offset, x.partition(not.Partition)))
	case errors.As(err, &limit):
		return refuse("REPLAY_LIMIT", "", "the replay stopped: %d replayed messages wait in %s already, the group's max_deferred; repeat the request when some were handled", limit.Limit, x.partition(limit.Partition))
	case errors.As(err, &replaying):
		return refuse("REPLAYING", "which", "the dead letter at offset %d of %s was replayed: it waits for its turn or is with a member; settle that delivery (a reject makes it a dead letter again), then discard it", replaying.Offset, x.partition(replaying.Partition))
	case errors.As(err, &receive):
		return refuse("BAD_VALUE", receive.Field, "%s", receive.Why)
	case errors.As(err, &again):
		return refuse("SUPERSEDED", "request_id", "%s", err)
	case errors.As(err, &policy):
		return refuse("BAD_POLICY", "policy", "%s", err)
	}
	return nil
}

func coordinatorError(err error) *refusal {
	var (
		notFound *coordinator.ErrNotFound
		exists   *coordinator.ErrExists
		busy     *coordinator.ErrBusy
		confirm  *coordinator.ErrConfirm
		limit    *coordinator.ErrLimit
		session  *coordinator.ErrSessionEnded
		never    *coordinator.ErrNoSession
		conflict *coordinator.ErrConflict
		invalid  *coordinator.ErrInvalid
	)
	switch {
	case errors.As(err, &notFound):
		reason, field := "UNKNOWN_TOPIC", "topic"
		switch notFound.Kind {
		case coordinator.KindGroup:
			reason, field = "UNKNOWN_GROUP", "group"
		case coordinator.KindNode:
			reason, field = "UNKNOWN_NODE", "node"
		case coordinator.KindPartition:
			reason, field = "UNKNOWN_PARTITION", "partition"
		}
		return refuse(reason, field, "%s", err)
	case errors.As(err, &exists):
		if exists.Kind == coordinator.KindGroup {
			return refuse("GROUP_EXISTS", "group", "%s", err)
		}
		return refuse("TOPIC_EXISTS", "topic", "%s", err)
	case errors.As(err, &busy):
		return &refusal{reason: "IN_PROGRESS", text: err.Error(), retryAfter: busy.RetryAfter}
	case errors.As(err, &confirm):
		return refuse("NOT_CONFIRMED", "confirm", "%s", err)
	case errors.As(err, &limit):
		return refuse("LIMIT_REACHED", "", "%s", err)
	case errors.As(err, &session):
		return refuse("SESSION_ENDED", "session", "%s", err)
	case errors.As(err, &never):
		return refuse("UNKNOWN_SESSION", "session", "%s", err)
	case errors.As(err, &conflict):
		return refuse("CONFLICT", "", "%s", err)
	case errors.As(err, &invalid):
		reason, field := "BAD_POLICY", ""
		if len(invalid.Faults) > 0 {
			field = invalid.Faults[0].Field
		}
		switch field {
		case "partitions", "nodes", "valid_ms", "zone":
			reason = "BAD_VALUE"
		}
		return refuse(reason, field, "%s", err)
	}
	return nodeError(err)
}

// nodeError is what the coordinator says of nodes and of where replicas are.
func nodeError(err error) *refusal {
	var (
		replication *coordinator.ErrReplication
		active      *coordinator.ErrNodeActive
		oldBoot     *coordinator.ErrOldBoot
		older       *coordinator.ErrOldRules
		last        *coordinator.ErrLastNode
		gone        *coordinator.ErrNodeGone
		notActive   *coordinator.ErrNotActive
		holds       *coordinator.ErrNodeHolds
		token       *coordinator.ErrToken
		erasing     *coordinator.ErrErasing
	)
	switch {
	case errors.As(err, &replication):
		return refuse("REPLICATION", "config.replication", "%s", err)
	case errors.As(err, &active), errors.As(err, &oldBoot):
		return refuse("NODE_ACTIVE", "node", "%s", err)
	case errors.As(err, &older):
		return refuse("NODE_OLDER", "node", "%s", err)
	case errors.As(err, &last):
		return refuse("LAST_NODE", "node", "%s", err)
	case errors.As(err, &gone):
		return refuse("NODE_GONE", "node", "%s", err)
	case errors.As(err, &notActive):
		return refuse("NODE_NOT_ACTIVE", "nodes", "%s", err)
	case errors.As(err, &holds):
		return refuse("NODE_HOLDS", "node", "%s", err)
	case errors.As(err, &token):
		return refuse("BAD_JOIN_TOKEN", "token", "%s", err)
	case errors.As(err, &erasing):
		return &refusal{reason: "IN_PROGRESS", text: fmt.Sprintf("node %v has not erased its old replica yet; try again shortly, or choose another node", erasing.Node), retryAfter: time.Second}
	}
	return nil
}

func storeError(err error) *refusal {
	var (
		failed    *logstore.ErrFailed
		full      *logstore.ErrDiskFull
		damaged   *logstore.ErrDamaged
		compacted *logstore.ErrCompacted
	)
	switch {
	case errors.As(err, &failed), errors.As(err, &full), errors.Is(err, logstore.ErrReadOnly):
		return refuse("STORE_FAILED", "", "the disk refused a write, so the broker stopped writing; everything acknowledged is stored: check the disk and start the broker again")
	case errors.As(err, &damaged):
		return refuse("PARTITION_DAMAGED", "", "stored data is damaged and is not served; the broker's log says which")
	case errors.As(err, &compacted):
		return refuse("OFFSET_EXPIRED", "", "%s", err)
	case errors.Is(err, logstore.ErrClosed):
		return &refusal{reason: "NOT_READY", text: "the broker is stopping", retryAfter: time.Second}
	}
	return nil
}
