package consumer

import "github.com/strandmq/strandmq/partition"

// standing is where an unsettled message stands. Ready, deferred and parked
// follow from its key's queue and are not stored.
type standing uint8

const (
	vacant   standing = iota // the slot holds no message
	inFlight                 // handed out
	failed                   // waits for its next attempt, not before until
	ready                    // can be handed out
	deferred                 // waits behind an earlier message of its key
	parked                   // waits behind a dead letter of its key
	standings
)

// ending is how a message's last hand-out ended.
type ending uint8

const (
	notEnded ending = iota
	byNack
	byReject
	byLapse
	bySession
	byRelease
)

func (e ending) String() string {
	switch e {
	case byNack:
		return "nack"
	case byReject:
		return "reject"
	case byLapse:
		return "lapse"
	case bySession:
		return "session-lost"
	case byRelease:
		return "release"
	default:
		return ""
	}
}

const none int32 = -1

// entry is one message that was scanned and is not settled. Settled messages
// cost nothing: what is below scanned and has no entry is settled or dead.
type entry struct {
	offset    partition.Offset
	keyHash   uint64
	handOut   uint64 // number of its last hand-out; 0: never handed out
	session   uint64 // of the last hand-out
	request   uint64 // tag of the request that the last hand-out answered
	handedAt  partition.Millis
	until     partition.Millis // in flight: deadline; failed: not before
	firstSeen partition.Millis
	size      uint32
	attempts  uint32 // charged
	ordinal   uint32 // hand-outs, released ones too
	key       int32  // its key's slot; none in mode none
	next      int32  // behind it in its key's queue; next vacant slot
	member    int32  // holder, or last holder; none
	prevHeld  int32  // neighbours in the holder's list, in the order of hand-outs
	nextHeld  int32
	at        standing
	last      ending
	replayed  bool // came out of the dead letters
	history   bool // failed before: has a history row
	stored    bool // has a row in the last checkpoint
	planned   bool // the leader proposed to hand it out: not replicated
}

// keyState is one key's unsettled messages, by offset, and what blocks it: the
// first of them in memory, the others in a queue on disk. It exists as long as
// there is any of that.
type keyState struct {
	hash     uint64
	head     int32
	tail     int32
	waiting  int32 // messages in memory, handed out or not
	inFlight int32
	inserted int32              // last entry that came back into the middle; none
	blockers []partition.Offset // dead letters that park what lies behind, sorted
	queue    queue
	soiled   bool // its row is to be written at the next checkpoint
	row      bool // it may have a row

	// On the shelf.
	cold      bool
	wants     shelfDue
	headReady bool // its first message could go when it came there
}

// all is how many of a key's messages wait, or are out.
func (k *keyState) all() uint64 { return uint64(k.waiting) + k.queue.n }

func (k *keyState) blocked(o partition.Offset) bool {
	return len(k.blockers) > 0 && o > k.blockers[0]
}

// member is what a partition knows of one group member.
type member struct {
	name     string
	sessions uint64 // lower session numbers ended
	head     int32  // what it holds
	tail     int32
	held     uint32
	planned  uint32 // hand-outs that the leader proposed: not replicated

	// When it last waited for work, in which session and for which share: known
	// where the partition is led, not replicated.
	asked     partition.Millis
	askedIn   uint64
	share, of uint32
}
