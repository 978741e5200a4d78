package loadtest

import (
	"context"
	"fmt"
	"time"

	"github.com/strandmq/strandmq/internal/check"
)

// Message is what a producer sends.
type Message struct {
	Key  string
	ID   string // may be empty
	Body []byte
}

// Receipt says where a message is stored.
type Receipt struct {
	Place     check.Place
	Duplicate bool
}

// Delivery is what a member gets.
type Delivery struct {
	Key     string
	Body    []byte
	Place   check.Place
	Attempt uint32
	Token   string
	Number  uint64 // instead of the token, where a stream numbers deliveries
	// The broker sent it without being asked: it may have been on its way, or in
	// a queue of the session, for long.
	Pushed   bool
	Deadline int64 // by the broker's clock, in milliseconds since 1970
	Replayed bool
}

// Settlement is what becomes of a delivery.
type Settlement struct {
	Token  string
	Number uint64 // instead of the token, as in the Delivery
	Nack   bool   // else it is an ack
}

// Broker is the way to a broker. All of it is safe for concurrent use, repeats
// what passes (a full queue, a broker that is away) for as long as the
// configuration says, and returns what does not pass as a *Refusal.
type Broker interface {
	// Publisher opens the way of one producer to one topic.
	Publisher(topic string) Publisher
	// Join opens a session of a member. An open one of the same name ends.
	Join(ctx context.Context, topic, group, member string) (Session, error)
	// Admin makes and removes what a run needs.
	Admin
}

// Publisher sends the batches of one producer. It belongs to one goroutine.
type Publisher interface {
	// Send stores a batch in its order, also with regard to earlier batches. It
	// may return before the receipts are there; done is called once, from any
	// goroutine, in the order of sending. On an error the outcome of each
	// message without a receipt is unknown, and nothing that comes after is
	// stored. The batch is the caller's again when done is called.
	Send(ctx context.Context, batch []Message, done func([]*Receipt, error))
	// Flush waits until done was called for all that was sent.
	Flush(ctx context.Context) error
	// Close ends the way; what Flush did not see done is done with an error.
	Close()
}

// Session is a member's. Receive and Settle may run at the same time.
type Session interface {
	// Receive waits for deliveries that no earlier call of the session got; none
	// when the wait ran out. A session that ended is the Refusal SESSION_ENDED.
	Receive(ctx context.Context, most int, wait time.Duration) ([]Delivery, error)
	// Settle answers for each settlement in its place.
	Settle(ctx context.Context, list []Settlement) ([]check.Outcome, error)
	// Drop ends the session as a crash does: what it holds lapses, charged. By
	// unary calls there is nothing to break off, and its next session ends it.
	Drop()
	// Leave gives back what the session holds. A session that had ended is the
	// Refusal SESSION_ENDED.
	Leave(ctx context.Context) error
}

// Admin makes and removes what a run needs.
type Admin interface {
	// CreateTopic tells how many partitions the topic had before; 0: it is new.
	CreateTopic(ctx context.Context, topic string, partitions uint32) (had uint32, err error)
	DeleteTopic(ctx context.Context, topic string) error
	// CreateGroup starts at the earliest message, or at the latest.
	CreateGroup(ctx context.Context, topic, group string, p Policy) error
	DeleteGroup(ctx context.Context, topic, group string) error
	// Lag counts what is neither settled nor dead.
	Lag(ctx context.Context, topic, group string) (uint64, error)
	// Dead calls fn for each dead letter.
	Dead(ctx context.Context, topic, group string, fn func(Delivery)) error
	// Version is the broker's.
	Version(ctx context.Context) (string, error)
}

// Policy is what a run sets of a group; the rest is the broker's default.
type Policy struct {
	AckDeadline time.Duration
	Backoff     time.Duration
	MaxAttempts uint32
	FromLatest  bool
}

// Refusal is an error by a broker, or by the way to it.
type Refusal struct {
	Reason     string        // a stable name of docs/errors.md; empty: no broker said it
	Text       string        // what went wrong and what to do
	Passing    bool          // trying again may help
	RetryAfter time.Duration // when; 0: nobody said
}

// Passes implements retry.Passing.
func (r *Refusal) Passes() (time.Duration, bool) { return r.RetryAfter, r.Passing }

func (r *Refusal) Error() string {
	if r.Reason == "" {
		return r.Text
	}
	return fmt.Sprintf("%s (%s)", r.Text, r.Reason)
}
