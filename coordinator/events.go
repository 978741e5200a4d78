package coordinator

import "github.com/strandmq/strandmq/partition"

// EventKind is what happened: a stable name, in capital letters and underscores. What a
// machine does not know it writes down like the others.
type EventKind string

// The kinds that the metadata log tells itself.
const (
	ReplicaDamaged EventKind = "REPLICA_DAMAGED" // a damaged replica is made anew from the others
	ReplicaRemade  EventKind = "REPLICA_REMADE"  // it was
	NodeStarted    EventKind = "NODE_STARTED"    // a node was started again
	NodeSilent     EventKind = "NODE_SILENT"     // a node is not heard of
	NodeGivenUp    EventKind = "NODE_GIVEN_UP"   // for so long that what it holds goes to others
	NodeBack       EventKind = "NODE_BACK"       // it is heard of again
	NodeRemoved    EventKind = "NODE_REMOVED"    // a node that was given up by an operator holds nothing any more
	MemberAway     EventKind = "MEMBER_AWAY"     // a member was silent for the timeout: its shares went to others
	MemberExpired  EventKind = "MEMBER_EXPIRED"  // and its session ended
)

// The kinds that nodes tell.
const (
	ExpiredUnread   EventKind = "EXPIRED_UNREAD"  // retention took messages that a group had not settled
	LostUnread      EventKind = "LOST_UNREAD"     // an at-most-once group was handed a message that cannot be read
	KeyParked       EventKind = "KEY_PARKED"      // a key of a group waits behind its dead letter
	CircuitOpened   EventKind = "CIRCUIT_OPENED"  // nearly everything failed for a group: one message at a time is tried
	CircuitClosed   EventKind = "CIRCUIT_CLOSED"  // one was handled, or the group was changed
	ReplicaKept     EventKind = "REPLICA_KEPT"    // a damaged replica is not made anew from the others
	ReplicaStopped  EventKind = "REPLICA_STOPPED" // a replica cannot be trusted any more
	EntriesLetGo    EventKind = "ENTRIES_LET_GO"  // a node let go of entries of the metadata log that do not read
	NodeStopped     EventKind = "NODE_STOPPED"    // a node was told to stop
	NodeUnfit       EventKind = "NODE_UNFIT"      // a node should lead nothing: its disk hangs, or is full
	NodeFit         EventKind = "NODE_FIT"        // it may lead again
	LeadGiven       EventKind = "LEAD_GIVEN"      // such a node handed a partition over
	DiskLow         EventKind = "DISK_LOW"        // less than the reserve is free: publishes are refused
	DiskRoom        EventKind = "DISK_ROOM"       // there is room again
	HoldLimit       EventKind = "HOLD_LIMIT"      // a group that holds has reached its limit
	DeferredLimit   EventKind = "DEFERRED_LIMIT"  // so many messages of a group wait behind others that it looks no further
	MemoryLimit     EventKind = "MEMORY_LIMIT"    // calls were refused: the memory that is for them is used up
	EventsDropped   EventKind = "EVENTS_DROPPED"  // a node had more to tell than it could keep
	eventsOtherKind EventKind = "OTHER"           // of totals: kinds beyond those that are counted by name
)

// Event is something that happened, once or several times in a row. It never changes.
type Event struct {
	ID     uint64 // its number
	Change uint64 // the number of its last change; events are in this order
	Happening
	First, Last partition.Millis // when it happened, by the log's clock
}

// Happening is what a node tells.
type Happening struct {
	Kind      EventKind
	Topic     string           // empty: none
	Partition *uint32          // its number in the topic; nil: none, or several
	Group     string           // empty: none
	Node      partition.NodeID // 0: none
	Text      string           // what it was, the last time, in words
	Count     uint64           // how often it happened, or of how many it is
}

// Like tells whether two happenings are of one kind and about the same, so that they
// are told as one. Partitions of a topic are not told apart: what befalls one often
// befalls all.
func (h *Happening) Like(o *Happening) bool {
	return h.Kind == o.Kind && h.Topic == o.Topic && h.Group == o.Group && h.Node == o.Node
}

// Merge adds one that is like this to it, and came later.
func (h *Happening) Merge(o *Happening) {
	if h.Partition == nil || o.Partition == nil || *h.Partition != *o.Partition {
		h.Partition = nil
	}
	h.Text = o.Text
	if h.Count += o.Count; h.Count < o.Count {
		h.Count = 1<<64 - 1
	}
}

// EventTotal is how many events of a kind there were since the cluster began.
type EventTotal struct {
	Kind  EventKind
	Count uint64
}

// Events is what the metadata log remembers of what happened. It never changes.
type Events struct {
	list   []*Event // by Change
	change uint64   // the last one
	gone   uint64   // the greatest Change of one that was let go
	totals []EventTotal
}

// All gives the events in the order of their last change. The slice is not to be
// changed.
func (e *Events) All() []*Event { return e.list }

// Change is the number of the last change.
func (e *Events) Change() uint64 { return e.change }

// Gone is the greatest number of a change of an event that is not kept any more.
func (e *Events) Gone() uint64 { return e.gone }

// Totals are the totals by kind. The slice is not to be changed.
func (e *Events) Totals() []EventTotal { return e.totals }

// Stopped tells when a node said that it stops, if it said nothing since and was not heard
// of again.
func (e *Events) Stopped(n partition.NodeID) (at partition.Millis, ok bool) {
	for i := len(e.list) - 1; i >= 0; i-- {
		if x := e.list[i]; x.Node == n && (x.Kind == NodeStopped || x.Kind == NodeStarted || x.Kind == NodeBack) {
			return x.Last, x.Kind == NodeStopped
		}
	}
	return 0, false
}

// Presence is whether a node is heard of, as the metadata log knows it.
type Presence byte

// The presences. Who was given up is not merely silent before it was back.
const (
	Present Presence = iota
	Silent
	GivenUp
)
