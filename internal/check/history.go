package check

import (
	"fmt"
	"sort"
)

// Place is where a message is stored.
type Place struct {
	Partition uint32
	Offset    uint64
}

// String prints a place as 3/17.
func (p Place) String() string { return fmt.Sprintf("%d/%d", p.Partition, p.Offset) }

// Message is what identifies a message to the judge. Body may be a digest, as
// long as it is one everywhere.
type Message struct {
	Key, ID, Body string
}

// Kind tells what an Event records.
type Kind uint8

// The kinds. Of each call the beginning is recorded before the request is sent,
// and the end after the answer came or was given up.
const (
	PublishCall   Kind = iota + 1 // Messages
	PublishReturn                 // Receipts, unless Lost
	ReceiveCall                   // Group, Member
	ReceiveReturn                 // Deliveries, unless Lost
	SettleCall                    // Settlements
	SettleReturn                  // Settled, unless Lost
	SessionLeft                   // Group, Member: what it held was released
	KillCall                      // nothing: a node is about to end or to be cut off, without a word
	KillReturn                    // nothing: it has ended, or is no longer cut off
)

// Event is one line of a history.
type Event struct {
	Kind   Kind
	Call   int // the same for the beginning and the end of one call
	Group  string
	Member string
	Lost   bool // the outcome is unknown

	Messages    []Message
	Receipts    []Receipt
	Deliveries  []Delivery
	Settlements []Settlement
	Settled     []Settled
}

// Receipt is the answer for one message of a publish.
type Receipt struct {
	Place     Place
	Duplicate bool
	Refused   bool // nothing was stored
}

// Delivery is one message of an answer to a receive.
type Delivery struct {
	Place    Place
	Message  Message
	Attempt  uint32
	Token    string
	Replayed bool
}

// Action is how a delivery is settled.
type Action uint8

// The actions that the judge tells apart.
const (
	Ack Action = iota + 1
	Nack
	Reject
	Extend
	Release
)

// Settlement is one delivery of a settle call.
type Settlement struct {
	Token  string
	Action Action
}

// Settled is the answer for one settlement.
type Settled struct {
	Refused bool
	Dead    bool // the message is now a dead letter
}

// Stored is one message of the log as read back at the end.
type Stored struct {
	Place   Place
	Message Message
}

// Dead is one dead letter of a group at the end.
type Dead struct {
	Place    Place
	Message  Message
	Attempts uint32
}

// Group is what the judge must know of a consumer group.
type Group struct {
	Name        string
	MaxAttempts uint32 // 0: without limit
	Keyed       bool   // one message of a key at a time, in order
	Drained     bool   // it ran until nothing was left: everything is acked or dead
	Dead        []Dead
}

// History is a run.
type History struct {
	Events []Event
	Log    []Stored
	Groups []Group
	// Routed tells that calls went by nodes that do not lead. Such a node sends a
	// publish with an id again when the leader died over it, so that what the caller
	// sent once can be called a duplicate.
	Routed bool
	// Logged gives a message's hand-outs to a group as the log has them, in its order.
	// With it an attempt that no member saw has to be one of them, and to have gone to a
	// member that lost an answer, or that waited for one as a node was killed or cut off: what a
	// leader had handed out when it ended never came to the node that the member asked,
	// and costs an attempt although that node answered. nil: nobody knows, and lost
	// answers of the group are counted.
	Logged func(group string, at Place) []HandOut
}

// HandOut is one hand-out as the log has it.
type HandOut struct {
	Attempt uint32
	Member  string
}

// Violation is one broken promise, proven by the history.
type Violation struct {
	Promise string // P1..P9
	Text    string
}

func (v Violation) String() string { return v.Promise + ": " + v.Text }

// Promises judges a history.
func Promises(h History) []Violation {
	j := judge{h: h, log: map[Place]Message{}, calls: map[int]*call{}, takes: map[string]*takes{}}
	j.index()
	j.publishing()
	for _, g := range h.Groups {
		j.group(g)
	}
	return j.found
}

// call joins the two ends of a call. end is -1 when it has none.
type call struct {
	begin, end int
	first      *Event
	last       *Event // nil: unknown outcome
}

// takes are receives in the order in which they began.
type takes struct {
	calls []*call
	ends  []int // the last end up to each; never: one has none
}

func (t *takes) index() {
	last := 0
	for _, c := range t.calls {
		if c.end < 0 {
			last = never
		}
		last = max(last, c.end)
		t.ends = append(t.ends, last)
	}
}

// around are those that can overlap a span: few are open at once, and a history has
// hundreds of thousands.
func (t *takes) around(from, to int) []*call {
	if t == nil {
		return nil
	}
	first := sort.SearchInts(t.ends, from+1)
	n := len(t.calls)
	if to >= 0 {
		n = sort.Search(n, func(i int) bool { return t.calls[i].begin >= to })
	}
	return t.calls[min(first, n):n]
}

type judge struct {
	h     History
	log   map[Place]Message
	calls map[int]*call
	order []*call           // by beginning
	kills []*call           // those of them that are KillCalls
	takes map[string]*takes // and the ReceiveCalls of each group
	found []Violation
}

func (j *judge) say(promise, format string, args ...any) {
	j.found = append(j.found, Violation{promise, fmt.Sprintf(format, args...)})
}

// index pairs calls with returns and maps the log.
func (j *judge) index() {
	for i := range j.h.Events {
		e := &j.h.Events[i]
		switch e.Kind {
		case PublishCall, ReceiveCall, SettleCall, KillCall:
			c := &call{begin: i, end: -1, first: e}
			j.calls[e.Call] = c
			j.order = append(j.order, c)
			switch e.Kind {
			case KillCall:
				j.kills = append(j.kills, c)
			case ReceiveCall:
				if j.takes[e.Group] == nil {
					j.takes[e.Group] = &takes{}
				}
				j.takes[e.Group].calls = append(j.takes[e.Group].calls, c)
			}
		case PublishReturn, ReceiveReturn, SettleReturn, KillReturn:
			c := j.calls[e.Call]
			if c == nil {
				j.say("history", "event %d ends call %d, which never began", i, e.Call)
				continue
			}
			c.end = i
			if !e.Lost {
				c.last = e
			}
		}
	}
	for _, t := range j.takes {
		t.index()
	}
	next := map[uint32]uint64{}
	for _, s := range j.h.Log {
		if want := next[s.Place.Partition]; s.Place.Offset != want {
			j.say("P1", "the log of partition %d goes on at offset %d instead of %d", s.Place.Partition, s.Place.Offset, want)
		}
		next[s.Place.Partition] = s.Place.Offset + 1
		j.log[s.Place] = s.Message
	}
}
