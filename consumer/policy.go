package consumer

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/partition"
)

// GroupID names a group for all time: ids come from the metadata log and are
// never used again, so what is left of a deleted group can harm no other.
type GroupID uint64

// String prints the id as g1.
func (g GroupID) String() string { return fmt.Sprintf("g%d", uint64(g)) }

// Mode is how much order a group keeps.
type Mode uint8

// The modes. ByKey is one message of a key at a time, in order, keys in
// parallel; ByPartition one message of the whole partition at a time, the
// textbook queue; NoOrder hands out whatever is there.
const (
	ByKey       Mode = 1
	ByPartition Mode = 2
	NoOrder     Mode = 3
)

// String prints the mode as key, partition, none.
func (m Mode) String() string {
	switch m {
	case ByKey:
		return "key"
	case ByPartition:
		return "partition"
	case NoOrder:
		return "none"
	default:
		return fmt.Sprintf("mode(%d)", uint8(m))
	}
}

// Exhaustion is what becomes of a key whose message used up its attempts.
type Exhaustion uint8

// Skip lets the key flow on behind a dead letter; Park keeps the key's later
// messages waiting until the dead letter was replayed or discarded.
const (
	Skip Exhaustion = 1
	Park Exhaustion = 2
)

// String prints the choice as skip, park.
func (e Exhaustion) String() string {
	switch e {
	case Skip:
		return "skip"
	case Park:
		return "park"
	default:
		return fmt.Sprintf("exhaustion(%d)", uint8(e))
	}
}

// Retention is what becomes of messages that the topic's limits no longer keep
// and the group has not handled.
type Retention uint8

// Expire loses them, with a record of the loss; Hold keeps them, up to a limit.
const (
	Expire Retention = 1
	Hold   Retention = 2
)

// String prints the choice as expire, hold.
func (r Retention) String() string {
	switch r {
	case Expire:
		return "expire"
	case Hold:
		return "hold"
	default:
		return fmt.Sprintf("retention(%d)", uint8(r))
	}
}

// Policy is how a group handles its messages. A partition reads it from its own
// log only, so every replica decides by the same policy at the same entry.
type Policy struct {
	Mode                 Mode
	AckDeadline          partition.Millis // a delivery lapses after this; 100 ms to 12 h
	MaxHold              partition.Millis // the longest hold over all extends; AckDeadline to 7 days
	MaxAttempts          uint32           // attempts before a message is dead; 0: never
	Backoff              partition.Millis // wait before the second attempt; 0 to 1 day
	BackoffMax           partition.Millis // the most that a wait doubles up to; Backoff to 7 days
	MaxInFlightMember    uint32           // most deliveries that one member holds
	MaxInFlightPartition uint32           // most deliveries out in a partition; memory: ~200 B each
	OnExhaustion         Exhaustion
	AtMostOnce           bool             // the hand-out settles; nothing is retried
	MaxDeferred          uint32           // most messages that wait in a partition, nearly all of them on disk
	MaxDeferredKey       uint32           // so many that wait behind one key are an alarm
	BreakerPercent       uint32           // the circuit opens when so many of the hand-outs in the window failed; 0: never
	BreakerKeys          uint32           // and over so many keys at least
	BreakerWindow        partition.Millis // that it looks back
	Retention            Retention
	HoldBytes            uint64           // hold: most bytes of a partition kept beyond the topic's limits; 0: any number
	HoldAge              partition.Millis // hold: the oldest message that is kept for the group; 0: of any age
}

// Default is the policy of a group that asked for nothing else.
func Default() Policy {
	return Policy{
		Mode:                 ByKey,
		AckDeadline:          30_000,
		MaxHold:              600_000,
		MaxAttempts:          5,
		Backoff:              200,
		BackoffMax:           300_000,
		MaxInFlightMember:    1_000,
		MaxInFlightPartition: 10_000,
		OnExhaustion:         Skip,
		MaxDeferred:          2_000_000,
		MaxDeferredKey:       10_000,
		BreakerPercent:       90,
		BreakerKeys:          20,
		BreakerWindow:        30_000,
		Retention:            Expire,
		HoldBytes:            DefaultHoldBytes,
	}
}

// DefaultHoldBytes is what a group that holds may keep of a partition beyond the
// topic's limits: a group that everybody forgot must not fill the disk.
const DefaultHoldBytes = 1 << 30

const (
	minute partition.Millis = 60_000
	hour                    = 60 * minute
	day                     = 24 * hour

	maxHoldBytes = 1 << 50
	maxHoldAge   = 36_500 * day
)

// Validate lists every fault of a policy at once, as an *ErrBadPolicy.
func (p Policy) Validate() error {
	var faults []string
	span := func(name string, v, lo, hi partition.Millis) {
		if v < lo || v > hi {
			faults = append(faults, fmt.Sprintf("%s is %s and must be from %s to %s", name, quantity.FormatMillis(v), quantity.FormatMillis(lo), quantity.FormatMillis(hi)))
		}
	}
	count := func(name string, v, lo, hi uint32) {
		if v < lo || v > hi {
			faults = append(faults, fmt.Sprintf("%s is %d and must be from %d to %d", name, v, lo, hi))
		}
	}
	if p.Mode < ByKey || p.Mode > NoOrder {
		faults = append(faults, "mode must be key, partition or none")
	}
	if p.OnExhaustion != Skip && p.OnExhaustion != Park {
		faults = append(faults, "on_exhaustion must be skip or park")
	}
	span("ack_deadline", p.AckDeadline, 100, 12*hour)
	span("max_hold", p.MaxHold, max(p.AckDeadline, 100), 7*day)
	span("backoff", p.Backoff, 0, day)
	span("backoff_max", p.BackoffMax, max(p.Backoff, 0), 7*day)
	count("max_attempts", p.MaxAttempts, 0, 1_000_000)
	count("max_in_flight_member", p.MaxInFlightMember, 1, 100_000)
	count("max_in_flight_partition", p.MaxInFlightPartition, 1, 1_000_000)
	count("breaker_failed_percent", p.BreakerPercent, 0, 100)
	if p.BreakerPercent > 0 {
		count("breaker_keys", p.BreakerKeys, 1, MaxBreakerKeys)
		span("breaker_window", p.BreakerWindow, 100, hour)
	}
	count("max_deferred", p.MaxDeferred, 1, 10_000_000)
	count("max_deferred_key", p.MaxDeferredKey, 1, 10_000_000)
	if p.Retention != Expire && p.Retention != Hold {
		faults = append(faults, "retention must be expire or hold")
	}
	if p.HoldBytes > maxHoldBytes {
		faults = append(faults, fmt.Sprintf("hold_limit_bytes is %d and must be from 0 to %d", p.HoldBytes, maxHoldBytes))
	}
	span("hold_limit", p.HoldAge, 0, maxHoldAge)
	if p.AtMostOnce && p.OnExhaustion == Park {
		faults = append(faults, "on_exhaustion park does nothing for an at-most-once group, whose messages never fail: use skip")
	}
	if len(faults) > 0 {
		return &ErrBadPolicy{Faults: faults}
	}
	return nil
}

// ErrBadPolicy lists all that is wrong with a policy.
type ErrBadPolicy struct{ Faults []string }

func (e *ErrBadPolicy) Error() string { return "policy: " + strings.Join(e.Faults, "; ") }

// backoff is the wait before the attempt that follows the given one, counted
// from 1. It doubles, and up to a quarter is added so that messages that failed
// together do not come back together. The addition is drawn from the names, not
// from a random source: apply must give the same wait on every replica. It only
// adds, so no wait is shorter than what the policy says.
func (p Policy) backoff(g GroupID, o partition.Offset, attempt uint32) partition.Millis {
	if p.Backoff == 0 {
		return 0
	}
	wait := p.BackoffMax
	if n := attempt - 1; n < 40 && p.Backoff<<n < p.BackoffMax {
		wait = p.Backoff << n
	}
	draw := keyspace.Mix(uint64(g)<<32 ^ uint64(attempt)<<56 ^ uint64(o))
	extra, _ := bits.Mul64(draw, uint64(wait/4)+1)
	return min(wait+partition.Millis(extra), p.BackoffMax)
}

// shareOf is which of shares shares a key belongs to. It mixes the hash first:
// a partition holds one range of the hashes, so their upper bits are alike.
func shareOf(keyHash uint64, shares uint32) uint32 {
	if shares <= 1 {
		return 0
	}
	hi, _ := bits.Mul64(keyspace.Mix(keyHash), uint64(shares))
	return uint32(hi)
}
