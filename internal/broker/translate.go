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

// translate gives every error of the packages below its row of the table. What
// it does not know is a fault of ours: INTERNAL, whose text stays here.
func translate(err error) *refusal {
	var notSent *router.ErrNotSent
	if errors.As(err, &notSent) {
		// It wraps the reason of the message before it. What that one waits for
		// may pass, and then this one passes too.
		return &refusal{reason: "NOT_SENT", text: notSentText(notSent), retryAfter: translate(notSent.Err).retryAfter}
	}
	var r *refusal
	if errors.As(err, &r) {
		return r
	}
	for _, f := range []func(error) *refusal{routerError, partitionError, consumerError, coordinatorError, storeError} {
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

// notSentText leaves out what another message's fault of ours says.
func notSentText(e *router.ErrNotSent) string {
	return fmt.Sprintf("not sent, since message %d of the call must be stored before it and was refused (%s): send both again, in order", e.Earlier, translate(e.Err).reason)
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

func routerError(err error) *refusal {
	var (
		message *router.ErrMessage
		call    *router.ErrCall
		unknown *router.ErrOutcomeUnknown
	)
	switch {
	case errors.As(err, &unknown):
		return &refusal{reason: "OUTCOME_UNKNOWN", text: err.Error(), retryAfter: shortly}
	case errors.As(err, &message):
		reason := "BAD_VALUE"
		var large *router.ErrTooLarge
		var rec *record.Error
		var name *names.Error
		field, _, _ := strings.Cut(message.Field, "[")
		switch {
		case errors.As(err, &large):
			reason = "BODY_TOO_LARGE"
		case errors.As(err, &name):
			reason = nameReason(name.Kind)
		case field == "key":
			reason = "BAD_KEY"
		case field == "id":
			reason = "BAD_ID"
		case field == "headers":
			reason = "BAD_HEADER"
		case field == "body":
			reason = "BODY_TOO_LARGE"
		case errors.As(err, &rec):
			reason = "BAD_VALUE"
		}
		return refuse(reason, message.Field, "%s", message.Err)
	case errors.As(err, &call):
		reason := "BAD_VALUE"
		switch call.Field {
		case "messages":
			reason = "BATCH_TOO_LARGE"
			if strings.HasPrefix(call.Why, "there are none") {
				reason = "BAD_VALUE"
			}
		case "producer_id":
			reason = "BAD_NAME"
		}
		return refuse(reason, call.Field, "%s", err)
	}
	return nil
}

func partitionError(err error) *refusal {
	var (
		unknownPart *partition.ErrUnknownPartition
		full        *partition.ErrFull
		notLeader   *partition.ErrNotLeader
		unknown     *partition.ErrOutcomeUnknown
		stopped     *partition.ErrStopped
		damaged     *partition.ErrDamaged
		expired     *partition.ErrExpired
		id          *partition.ErrIDReused
		gap         *partition.ErrSequenceGap
		reused      *partition.ErrSequenceReused
	)
	switch {
	case errors.As(err, &full):
		return &refusal{reason: "QUEUE_FULL", text: err.Error(), retryAfter: full.RetryAfter}
	case errors.As(err, &notLeader):
		return &refusal{reason: "NOT_LEADER", text: err.Error(), retryAfter: shortly}
	case errors.As(err, &unknown):
		return &refusal{reason: "OUTCOME_UNKNOWN", text: err.Error(), retryAfter: shortly}
	case errors.As(err, &stopped):
		return &refusal{reason: "NOT_READY", text: err.Error(), retryAfter: time.Second}
	case errors.As(err, &unknownPart):
		// The names were known a moment ago: the topic is being deleted.
		return refuse("UNKNOWN_PARTITION", "", "%s", err)
	case errors.As(err, &damaged):
		return refuse("PARTITION_DAMAGED", "", "%s", err)
	case errors.As(err, &expired):
		return refuse("OFFSET_EXPIRED", "", "%s", err)
	case errors.As(err, &id):
		return refuse("ID_REUSED", "id", "%s", err)
	// Callers count a producer's messages from 1, the log from 0.
	case errors.As(err, &gap):
		return refuse("SEQUENCE_GAP", "first_sequence", "producer %s sends sequence %d where %d is next: send from there on, or begin with a new producer id", plain.Quote(gap.Producer), gap.Got+1, gap.Expected+1)
	case errors.As(err, &reused):
		return refuse("SEQUENCE_REUSED", "first_sequence", "producer %s used sequence %d before, for another message, stored at offset %d: begin with a new producer id", plain.Quote(reused.Producer), reused.Sequence+1, reused.Offset)
	}
	return nil
}

func consumerError(err error) *refusal {
	var (
		stale     *consumer.ErrStale
		token     *consumer.ErrToken
		group     *consumer.ErrUnknownGroup
		held      *consumer.ErrHeldTooLong
		session   *consumer.ErrSessionEnded
		settle    *consumer.ErrBadSettlement
		notDead   *consumer.ErrNotDead
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
		return refuse("UNKNOWN_GROUP", "group", "%s", err)
	case errors.As(err, &held):
		return refuse("HELD_TOO_LONG", "", "%s", err)
	case errors.As(err, &session):
		return refuse("SESSION_ENDED", "session", "%s", err)
	case errors.As(err, &settle):
		return refuse("BAD_VALUE", settle.Field, "%s", settle.Why)
	case errors.As(err, &notDead):
		return refuse("UNKNOWN_DEAD_LETTER", "which", "%s", err)
	case errors.As(err, &limit):
		return refuse("REPLAY_LIMIT", "", "%s", err)
	case errors.As(err, &replaying):
		return refuse("REPLAYING", "which", "%s", err)
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
		conflict *coordinator.ErrConflict
		invalid  *coordinator.ErrInvalid
	)
	switch {
	case errors.As(err, &notFound):
		reason, field := "UNKNOWN_TOPIC", "topic"
		switch notFound.Kind {
		case coordinator.KindGroup:
			reason, field = "UNKNOWN_GROUP", "group"
		case coordinator.KindMember:
			reason, field = "UNKNOWN_MEMBER", "member"
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
	case errors.As(err, &conflict):
		return refuse("CONFLICT", "", "%s", err)
	case errors.As(err, &invalid):
		reason, field := "BAD_POLICY", ""
		if len(invalid.Faults) > 0 {
			field = invalid.Faults[0].Field
		}
		if field == "partitions" {
			reason = "BAD_VALUE"
		}
		return refuse(reason, field, "%s", err)
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
