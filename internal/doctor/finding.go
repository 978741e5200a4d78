package doctor

import (
	"cmp"
	"slices"
)

// Severity is how bad a finding is.
type Severity int

// The severities. A note is no fault: something to know of.
const (
	Note Severity = iota
	Warning
	Critical
)

// String prints a severity as it is shown: note, warning, critical.
func (s Severity) String() string {
	switch s {
	case Critical:
		return "critical"
	case Warning:
		return "warning"
	default:
		return "note"
	}
}

// MarshalText implements encoding.TextMarshaler.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is one cause.
type Finding struct {
	Severity Severity `json:"severity"`
	Cause    Cause    `json:"cause"`
	About    string   `json:"about"`    // a node, a topic, a group
	Text     string   `json:"text"`     // the cause in a sentence
	Evidence []string `json:"evidence"` // the figures that say so
	Next     []string `json:"next"`     // commands to go on with, the first one first

	size  uint64 // of two of one cause, which is the heavier
	since int64  // when it began; 0: not known. What happened before is of another time.
}

// Cause is a stable name.
type Cause string

// The causes, the heaviest first: what stops all before what stops one group, and what
// explains others before what they explain.
const (
	NoQuorum        Cause = "NO_QUORUM"
	DiskStuck       Cause = "DISK_STUCK"
	DiskFull        Cause = "DISK_FULL"
	Damaged         Cause = "DAMAGED"
	NewerFormat     Cause = "NEWER_FORMAT"
	NodeDown        Cause = "NODE_DOWN"
	NodeStuck       Cause = "NODE_STUCK"
	NodesCutOff     Cause = "NODES_CUT_OFF"
	UnderReplicated Cause = "UNDER_REPLICATED"
	PublishRefused  Cause = "PUBLISH_REFUSED"
	ClockOff        Cause = "CLOCK_OFF"
	DiskFilling     Cause = "DISK_FILLING"
	DiskSlow        Cause = "DISK_SLOW"
	PublishedTwice  Cause = "PUBLISHED_TWICE"
	RepeatDropped   Cause = "REPEAT_DROPPED"
	DeliveredAgain  Cause = "DELIVERED_AGAIN"

	Paused           Cause = "PAUSED"
	CircuitOpen      Cause = "CIRCUIT_OPEN"
	NoMembers        Cause = "NO_MEMBERS"
	MemberSilent     Cause = "MEMBER_SILENT"
	DeferredLimit    Cause = "DEFERRED_LIMIT"
	DeadlineTooShort Cause = "DEADLINE_TOO_SHORT"
	ConsumerCrashes  Cause = "CONSUMER_CRASHES"
	PoisonMessage    Cause = "POISON_MESSAGE"
	BlockedKey       Cause = "BLOCKED_KEY"
	HandlerFails     Cause = "HANDLER_FAILS"
	StaleAcks        Cause = "STALE_ACKS"
	TooFewPartitions Cause = "TOO_FEW_PARTITIONS"
	HotKey           Cause = "HOT_KEY"
	SlowHandlers     Cause = "SLOW_HANDLERS"
	HoldLimit        Cause = "HOLD_LIMIT"
	FallingBehind    Cause = "FALLING_BEHIND"
	Parked           Cause = "PARKED"
	Expired          Cause = "EXPIRED"
	ExpiresSoon      Cause = "EXPIRES_SOON"
	DeadLetters      Cause = "DEAD_LETTERS"
	CatchingUp       Cause = "CATCHING_UP"
)

// Causes lists all, the heaviest first.
func Causes() []Cause {
	return []Cause{
		NoQuorum, DiskStuck, DiskFull, Damaged, NewerFormat, NodeDown, NodeStuck, NodesCutOff, UnderReplicated, PublishRefused,
		ClockOff, DiskFilling, DiskSlow, PublishedTwice, RepeatDropped, DeliveredAgain,
		Paused, CircuitOpen, NoMembers, MemberSilent, DeferredLimit, DeadlineTooShort, ConsumerCrashes, PoisonMessage, BlockedKey,
		HandlerFails, StaleAcks, TooFewPartitions, HotKey, SlowHandlers, HoldLimit, FallingBehind, Parked, Expired, ExpiresSoon, DeadLetters, CatchingUp,
	}
}

// sortFindings puts the heaviest first: by severity, by cause, and by size.
func sortFindings(all []Finding) {
	order := Causes()
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(slices.Index(order, a.Cause), slices.Index(order, b.Cause)),
			cmp.Compare(b.size, a.size), cmp.Compare(a.About, b.About))
	})
}

// Worst is the worst severity among findings; a note if there are none.
func Worst(all []Finding) Severity {
	worst := Note
	for _, f := range all {
		worst = max(worst, f.Severity)
	}
	return worst
}
