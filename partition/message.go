package partition

import "github.com/strandmq/strandmq/internal/record"

// Stored is what became of one published record.
type Stored struct {
	// Offset is where the message stands: the new one, or for a duplicate the
	// first copy.
	Offset    Offset
	Duplicate bool
	// Err tells why the record was not stored: *ErrIDReused, *ErrSequenceGap,
	// *ErrSequenceReused, or *ErrSequenceExpired for a repeat of which nothing is
	// known but that it is one. Nil: stored, on disk; a duplicate of a producer
	// may have been removed by retention since.
	Err error
}

// Message is one stored message. Its key, header values and body alias memory
// that nobody changes; keeping one message keeps the whole entry that it came
// in.
type Message struct {
	Offset      Offset
	PublishTime Millis
	Record      record.Record
}

// RawMessage is one stored message as it stands in its record batch. It aliases
// memory that nobody changes, like Message.
type RawMessage struct {
	Offset      Offset
	PublishTime Millis
	Record      record.Raw
}

// EntryKind tells what a LogEntry holds.
type EntryKind byte

// The kinds of what stands in a log.
const (
	Batches EntryKind = 1 // a record batch
	Command EntryKind = 2 // a command to the App
	Trim    EntryKind = 3 // from where on the log is kept: see TrimTo
)

// String prints the kind.
func (k EntryKind) String() string {
	switch k {
	case Batches:
		return "batch"
	case Command:
		return "command"
	case Trim:
		return "trim"
	}
	return "unknown"
}

// LogEntry is one batch or one command of a log, as Scan shows it. Several can
// stand at one index, in order.
type LogEntry struct {
	Index Index
	Term  uint64 // in which it was proposed: Host.Led may know by whom
	Kind  EntryKind
	Time  Millis // publish time of a batch; 0 for a command, which carries its own
	First Offset // a batch's first stored message; for a command, the next message's offset
	Count int    // how many of a batch's records were stored (the others were duplicates or refused)
	Data  []byte // the record batch or the command; must not be changed, nor kept
}

// Info is a partition's state as operators see it.
type Info struct {
	Position   Position
	Bytes      uint64    // of record batches kept
	Oldest     Millis    // publish time of the first message kept; 0: there is none
	Duplicates uint64    // records suppressed as repeats since the partition began
	Replica    ReplicaID // 0: it stopped before it knew
	Leader     NodeID    // 0: not known
	Leading    bool      // it leads, and has applied all that was committed before
	Term       uint64
	Voters     []ReplicaID // whose votes and disks count; must not be changed
	Learners   []ReplicaID // who are fed and do not count
	Followers  []Follower  // the others, as the leader knows them; elsewhere none
	Fault      string      // why it stopped; empty: it works
	Damaged    bool        // it stopped since what it has cannot be trusted, and not for a newer version's rows
	FirstIndex Index       // first entry kept
	LastIndex  Index       // last entry written, applied or not
	Checkpoint Index       // a restart applies the entries behind this one again
	Queued     int64       // bytes waiting to be written

	before uint64 // bytes of record batches removed
}

// Follower is another replica of a partition as its leader knows it, some
// hundred milliseconds ago.
type Follower struct {
	Replica ReplicaID
	Voter   bool
	Match   Index // its log is the leader's up to there, on its disk
	Active  bool  // it was heard of lately
	// Snapshot tells that it is too far behind to be fed entries.
	Snapshot bool
}
