package doctor

import "time"

// Facts are what was asked of a cluster. What is zero is not known or is not so; times are
// milliseconds since 1970, by the clock of whoever asks unless it says otherwise.
type Facts struct {
	Now     int64
	Apart   time.Duration // between the two looks at counters; 0: there was one
	Only    string        // the topic that alone was looked at; empty: all were
	Cluster Cluster
	Nodes   []Node
	Topics  []Topic
	Groups  []Group
	Events  []Event
	// Messages are those that somebody asked about.
	Messages []Message
	// Unreached is what could not be asked, and why: the findings are without it.
	Unreached []Unreached
}

// Unreached is one thing that did not answer.
type Unreached struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Cluster is what is said of all nodes together.
type Cluster struct {
	Behind string // too few nodes are there for the metadata, in words
	Stuck  []Stuck
	Moving int // partitions on their way to where they are wanted
}

// Stuck is a partition that should move and cannot.
type Stuck struct {
	Place Place
	Why   string
	Needs string
}

// Place is a partition of a topic; without a topic the metadata log.
type Place struct {
	Topic  string
	Number uint32
}

// Node is one node.
type Node struct {
	ID       uint64
	API      string // where clients reach it
	State    string // active, draining, lost
	Known    bool   // it is known whether the others hear of it
	Silent   time.Duration
	Left     int64 // of one that is silent: when it said that it stops, by the cluster's clock; 0: it did not
	Replicas int
	Answered bool // the node itself did; else the rest is not known
	Hangs    bool // it did not in time, and did not refuse either
	// Leaderless is why it knows nobody who leads the cluster's metadata; empty: it does.
	Leaderless string
	Foreign    bool // a node of another cluster answered at its address

	Disk Disk
	// SlowWrites and Stalls are of the time between two looks, or since the node started.
	SlowWrites, Stalls uint64
	Damage             []string
	Stopped            []Stopped
	ClocksOff          []Skew
	Deaf               []uint64 // nodes that it does not hear of
}

// Disk is the disk of a node, in bytes.
type Disk struct {
	Total, Free, Reserve, Store uint64
	Low                         bool
	Stuck                       time.Duration
}

// Stopped is a partition that a node does not serve.
type Stopped struct {
	Place Place
	Why   string
	Newer bool // nothing is damaged: a newer version wrote it
}

// Skew is how far a node's clock is ahead of that of the node that says so.
type Skew struct {
	Node  uint64
	Ahead time.Duration
}

// Topic is a topic and its partitions.
type Topic struct {
	Name       string
	Refuses    bool          // publishes, when a group that holds is at its limit
	Retention  time.Duration // 0: without limit
	Partitions []Partition
}

// Partition is one of a topic.
type Partition struct {
	Number      uint32
	Bytes       uint64
	Nodes       []uint64 // that are to hold it
	Leader      uint64
	Fault       string
	FaultReason string
	HeldBy      string
	HeldBytes   uint64
}

// Group is a consumer group.
type Group struct {
	Topic, Name string
	Mode        string // key, partition, none
	Paused      bool
	Holds       bool // it keeps from retention what it needs
	Deadline    time.Duration
	MaxAttempts uint32
	InFlightMax uint32 // of a partition
	BreakerKeys uint32 // over how many keys failures open the circuit; 0: not known, and many
	Counted     bool   // Now is known
	Compared    bool   // Before is, too
	Before, Now Counts
	Oldest      int64 // when the oldest message that is not settled was published, by the cluster's clock; 0: none
	Looked      bool  // the rest was asked
	Members     []Member
	Partitions  int
	Stalls      []Stall
	Circuits    []Circuit // those that are open
	Losses      []Loss
	Dead        []Letter // some, the newest first
	Suspects    []Letter // some messages that failed and are not settled
}

// Message is one that somebody asked about.
type Message struct {
	Place     Place
	Offset    uint64
	Key, ID   string
	Published int64
	Copies    []Copy // besides it, of the same key and body, published at about the time
	Cut       uint64 // events of its life that were not looked at
	Repeats   uint64 // publishes of its id that stored nothing
	Courses   []Course
}

// Copy is another message of the same key and body.
type Copy struct {
	Offset    uint64
	ID        string
	Published int64
}

// Course is how a message went in a group.
type Course struct {
	Group     string
	State     string // as a trace says it
	HandedOut int
	Failed    []Attempt // the oldest first
	Again     []Again   // what else made it come again
}

// Again is what made a message come again beside an attempt that failed.
type Again struct {
	What string // that it was replayed, or the group reset, in words
	When int64
	How  string // more of it in words, such as to where; may be empty
}

// Event is what the cluster did by itself, or what happened to it, once or several times.
type Event struct {
	Kind         string
	Topic, Group string // empty: it is of none
	Node         uint64 // 0: of none
	Count        uint64
	First, Last  int64
}

// Counts are a group's, over all partitions.
type Counts struct {
	Lag, InFlight, Blocked, BackingOff, Parked, Dead, Expired uint64
	Acked, HandedOut, Nacked, Rejected, Lapsed, Lost, Late    uint64
	Stale                                                     uint64 // settlements that were refused, the late ones among them
	HandledMs, LateMs                                         uint64
}

// Failed are all attempts that failed.
func (c Counts) Failed() uint64 { return c.Nacked + c.Rejected + c.Lapsed + c.Lost }

// Member is one of a group.
type Member struct {
	Name     string
	Away     bool
	Draining bool
	InFlight uint64
}

// Stall is one thing of a group that waits, as the API tells it.
type Stall struct {
	Partition uint32
	Reason    string
	Key       string
	Offset    uint64
	Waiting   uint64
	Attempts  uint32
	Member    string
	Text      string
}

// Circuit is a partition in which a group's circuit breaker is open.
type Circuit struct {
	Partition uint32
	Opened    uint64
}

// Loss is messages that retention took before a group had settled them.
type Loss struct {
	Partition          uint32
	First, Last, Count uint64
	Cause              string
	Until              int64
}

// Letter is a message that failed, with what is known of its attempts.
type Letter struct {
	Partition uint32
	Offset    uint64
	Key, ID   string
	Attempts  uint32
	Waiting   uint64 // messages behind it
	Dead      bool
	Reason    string
	History   []Attempt // the oldest first
}

// Attempt is one hand-out and how it ended: nack, reject, lapse, session-lost.
type Attempt struct {
	Member  string
	Took    time.Duration
	Ended   int64
	Outcome string
	Reason  string
	Late    time.Duration // so long after the hand-out its ack came, which was refused; 0: none is known of
}
