package coordinator

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strconv"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// TopicID names a topic for all time; a later topic of the same name has
// another.
type TopicID uint64

// String prints the id as t1.
func (t TopicID) String() string { return "t" + strconv.FormatUint(uint64(t), 10) }

// GroupID names a group for all time.
type GroupID uint64

// String prints the id as g1.
func (g GroupID) String() string { return "g" + strconv.FormatUint(uint64(g), 10) }

// Phase is how far a topic or group has come. Both are created and deleted in
// two entries, with the partitions' part in between; what a crash leaves half
// done is in Map.Unfinished and is done again from the start.
//
//	create ──► Creating ──finish──► Ready ──delete──► Deleting ──remove──► gone
//	              └────────────────delete────────────────▲
type Phase uint8

// The phases.
const (
	Creating Phase = iota + 1 // the partitions may not all have done their part
	Ready                     // in use
	Deleting                  // the name is still taken
)

// String prints the phase in lower case.
func (p Phase) String() string {
	switch p {
	case Creating:
		return "creating"
	case Ready:
		return "ready"
	case Deleting:
		return "deleting"
	}
	return "phase-" + strconv.Itoa(int(p))
}

// Map is the cluster's metadata at one place of the metadata log. It and all
// that hangs on it is immutable, messages of policies and start positions
// included, and safe for concurrent use.
type Map struct {
	Revision uint64 // log index of the last entry that changed the map
	Cluster  Cluster

	topics     []*Topic // by name
	topicsByID []*Topic
	groupsByID []*Group
	partitions int // of all topics
	sessions   int // of all groups

	lastSession uint64 // the highest number given out; 0: none

	nodes         []*Node      // by id
	tokens        []*JoinToken // by hash
	metadata      Partition    // the metadata log itself
	placed        uint64       // log index of the last change of nodes or placements
	nextPartition partition.PartitionID
	nextGroup     GroupID
}

// Cluster is what all nodes have in common.
type Cluster struct {
	ID          string // empty before Bootstrap
	TokenSecret uint64 // delivery tokens are tagged with it
	Authority   Authority
}

// Topic is a topic at one moment.
type Topic struct {
	ID         TopicID
	Name       string
	Phase      Phase
	Seed       uint64      // of the key hash
	Partitions []Partition // in order; a partition's number is its place
	Config     TopicConfig
	Created    partition.Millis
	Revision   uint64 // log index of its last change, for routing tables; its groups do not count

	groups []*Group // by name
}

// Partition is one partition of a topic, the hashes that it owns, and where its
// replicas are wanted. Who carries a change out is the partition itself: its
// leader has the new ones fed, gives them votes and takes those of the others, and
// says so (Settle); then each node erases what it has left.
type Partition struct {
	ID    partition.PartitionID
	Range keyspace.Range
	// Replicas are the wanted voters; the first is to lead. There are none before
	// the cluster has its first node.
	Replicas []partition.ReplicaID
	Leaving  []Leaving // replicas that are not wanted any more and not erased yet
	// Placement is the log index of the last change of Replicas, and Settled the
	// last placement that was reached.
	Placement, Settled uint64
	Rebuild            Rebuild // of a damaged replica; zero: there is none

	nextIncarnation    uint32 // of the next replica, so that no id is used twice
	settledIncarnation uint32 // the same when it was last reached
}

// Group is a group at one moment.
type Group struct {
	ID      GroupID
	Topic   TopicID
	Name    string
	Phase   Phase
	Policy  *strandmqv1.GroupPolicy // all filled in
	Paused  bool
	Start   *strandmqv1.StartPosition // where the group starts in a partition that has not logged it yet
	Created partition.Millis
	// Revision counts the changes of Policy and Paused, from 1; Logged is the
	// last revision that every partition has logged; 0 is none. Between the two a change
	// is on its way.
	Revision, Logged uint64
	// Generation counts the changes of members and assignment. Changed is when the last one
	// was, and Why what it was for, such as: member a joined.
	Generation uint64
	Changed    partition.Millis
	Why        string
	Members    []*Member // by name
}

// Member is a member with a session.
type Member struct {
	Name     string
	Session  uint64 // never used again, greater than all earlier ones
	Joined   partition.Millis
	Stream   bool    // the session lives by a stream
	Away     bool    // silent for the timeout: no shares, but what it holds is its own
	Draining bool    // it takes nothing more: no shares, but what it holds is its own
	Shares   []Share // by partition
}

// Takes tells whether the member takes part in the assignment.
func (m *Member) Takes() bool { return !m.Away && !m.Draining }

// Share is a partition, or a share of its keys, given to a member.
type Share struct {
	Partition uint32 // the partition's number in the topic
	Share     uint32 // number Share
	Shares    uint32 // of Shares; 0 of 1 is all keys
}

// String prints a share as partition:share/shares.
func (s Share) String() string { return fmt.Sprintf("%d:%d/%d", s.Partition, s.Share, s.Shares) }

// Topics gives all topics by name, in every phase.
func (m *Map) Topics() iter.Seq[*Topic] { return slices.Values(m.topics) }

// Groups gives all groups by id, in every phase.
func (m *Map) Groups() iter.Seq[*Group] { return slices.Values(m.groupsByID) }

// Topic finds a topic that is in use. The error is an *ErrNotFound or, while it
// is on its way in or out, an *ErrBusy.
func (m *Map) Topic(name string) (*Topic, error) {
	t, ok := m.FindTopic(name)
	switch {
	case !ok:
		return nil, &ErrNotFound{Kind: KindTopic, Name: name}
	case t.Phase != Ready:
		return nil, busy(KindTopic, name, t.Phase)
	}
	return t, nil
}

// Group finds a group that is in use, with its topic. The error is an
// *ErrNotFound or, while either is on its way in or out, an *ErrBusy.
func (m *Map) Group(topic, name string) (*Topic, *Group, error) {
	t, err := m.Topic(topic)
	if err != nil {
		return nil, nil, err
	}
	g, ok := t.FindGroup(name)
	switch {
	case !ok:
		return nil, nil, &ErrNotFound{Kind: KindGroup, Name: name, Topic: topic}
	case g.Phase != Ready:
		return nil, nil, busy(KindGroup, name, g.Phase)
	}
	return t, g, nil
}

// FindTopic finds a topic in any phase.
func (m *Map) FindTopic(name string) (*Topic, bool) { return find(m.topics, name, topicName) }

// TopicByID finds a topic in any phase.
func (m *Map) TopicByID(id TopicID) (*Topic, bool) { return find(m.topicsByID, id, topicID) }

// GroupByID finds a group in any phase.
func (m *Map) GroupByID(id GroupID) (*Group, bool) { return find(m.groupsByID, id, groupID) }

// Place is a partition's place in its topic.
type Place struct {
	Topic  *Topic
	Number int
}

// Place finds the place of a partition, whatever the phase of its topic. See
// Deleted for one that has none.
func (m *Map) Place(id partition.PartitionID) (Place, bool) {
	// Ids of topics and of partitions are given out together, in order, so the
	// topics by id are sorted by their partitions too.
	i, ok := slices.BinarySearchFunc(m.topicsByID, id, func(t *Topic, id partition.PartitionID) int {
		switch {
		case id < t.Partitions[0].ID:
			return 1
		case id > t.Partitions[len(t.Partitions)-1].ID:
			return -1
		}
		return 0
	})
	if !ok {
		return Place{}, false
	}
	t := m.topicsByID[i]
	return Place{Topic: t, Number: int(id - t.Partitions[0].ID)}, true
}

// Unfinished is what was begun and not seen to its end.
type Unfinished struct {
	// Topics are Creating (create every partition, then FinishTopic) or
	// Deleting (drop every partition, then RemoveTopic).
	Topics []*Topic
	// Groups of topics in use are Creating or have Logged < Revision (give
	// every partition the group's policy and pause, then FinishGroup), or are
	// Deleting (delete the group in every partition, then RemoveGroup).
	Groups []*Group
}

// Unfinished lists what a crash, or a call that was given up, left half done.
// Each step is idempotent: whoever finds it does it again from the start.
func (m *Map) Unfinished() Unfinished {
	var u Unfinished
	for _, t := range m.topics {
		if t.Phase != Ready {
			u.Topics = append(u.Topics, t)
			continue // its groups go with it, or cannot exist yet
		}
		for _, g := range t.groups {
			if g.Phase != Ready || g.Logged < g.Revision {
				u.Groups = append(u.Groups, g)
			}
		}
	}
	return u
}

// Groups gives the topic's groups by name, in every phase.
func (t *Topic) Groups() iter.Seq[*Group] { return slices.Values(t.groups) }

// FindGroup finds a group of the topic in any phase.
func (t *Topic) FindGroup(name string) (*Group, bool) { return find(t.groups, name, groupName) }

// Member finds a member with a session.
func (g *Group) Member(name string) (*Member, bool) { return find(g.Members, name, memberName) }

// Session finds the member by its session. The error is an *ErrSessionEnded.
func (g *Group) Session(member string, session uint64) (*Member, error) {
	m, ok := g.Member(member)
	switch {
	case !ok:
		return nil, &ErrSessionEnded{Member: member, Session: session}
	case m.Session != session:
		return nil, &ErrSessionEnded{Member: member, Session: session, Now: m.Session}
	}
	return m, nil
}

// SessionOf finds a group's member by its session. A number that nobody has is
// an *ErrSessionEnded, unless it cannot have been this member's: none was given
// out that high, another member of the group has it, or it is later than the
// session that the member has now. Then it is an *ErrNoSession.
func (m *Map) SessionOf(id GroupID, member string, session uint64) (*Member, error) {
	g, ok := m.GroupByID(id)
	if !ok {
		return nil, &ErrNotFound{Kind: KindGroup, Name: id.String()}
	}
	mb, ended := g.Session(member, session)
	if ended == nil {
		return mb, nil
	}
	now, ok := g.Member(member)
	never := session == 0 || session > m.lastSession || ok && session > now.Session ||
		slices.ContainsFunc(g.Members, func(other *Member) bool { return other.Session == session })
	if never {
		return nil, &ErrNoSession{Member: member, Session: session}
	}
	return nil, ended
}

// Session is one member's session.
type Session struct {
	Topic  TopicID
	Group  GroupID
	Member string
	Number uint64
}

// Sessions gives every session, by group and member.
func (m *Map) Sessions() iter.Seq[Session] {
	return func(yield func(Session) bool) {
		for _, g := range m.groupsByID {
			for _, mb := range g.Members {
				if !yield(Session{Topic: g.Topic, Group: g.ID, Member: mb.Name, Number: mb.Session}) {
					return
				}
			}
		}
	}
}

// EndedSessions lists the sessions that before has and after does not, by group
// and member: those that left, that expired, that another session of the same
// member replaced, and those of groups that are going or gone. A session that
// both opened and ended in between is in neither map and not listed; where the
// member has a session in after, all its lower numbers have ended.
func EndedSessions(before, after *Map) []Session {
	var out []Session
	for _, g := range before.groupsByID {
		now, ok := after.GroupByID(g.ID)
		if ok && now.Generation == g.Generation {
			continue
		}
		for _, m := range g.Members {
			if ok {
				if n, still := now.Member(m.Name); still && n.Session == m.Session {
					continue
				}
			}
			out = append(out, Session{Topic: g.Topic, Group: g.ID, Member: m.Name, Number: m.Session})
		}
	}
	return out
}

// The keys that the map's slices are sorted by.
func topicName(t *Topic) string   { return t.Name }
func topicID(t *Topic) TopicID    { return t.ID }
func groupName(g *Group) string   { return g.Name }
func groupID(g *Group) GroupID    { return g.ID }
func memberName(m *Member) string { return m.Name }

// find looks key up in a slice sorted by it.
func find[T any, K cmp.Ordered](s []*T, key K, of func(*T) K) (*T, bool) {
	i, ok := search(s, key, of)
	if !ok {
		return nil, false
	}
	return s[i], true
}

func search[T any, K cmp.Ordered](s []*T, key K, of func(*T) K) (int, bool) {
	return slices.BinarySearchFunc(s, key, func(t *T, k K) int { return cmp.Compare(of(t), k) })
}

// with is s with t in its place, instead of what had the same key. s, which
// older maps share, is not touched.
func with[T any, K cmp.Ordered](s []*T, t *T, of func(*T) K) []*T {
	i, ok := search(s, of(t), of)
	out := make([]*T, 0, len(s)+1)
	out = append(append(out, s[:i]...), t)
	if ok {
		i++
	}
	return append(out, s[i:]...)
}

// without is s without what has key. s is not touched.
func without[T any, K cmp.Ordered](s []*T, key K, of func(*T) K) []*T {
	i, ok := search(s, key, of)
	if !ok {
		return s
	}
	out := make([]*T, 0, len(s)-1)
	return append(append(out, s[:i]...), s[i+1:]...)
}

// peerTaken tells whose address a node that joins would have; nil: it is nobody's.
func (m *Map) peerTaken(at Address) error {
	for n := range m.Nodes() {
		if at.Peer != "" && n.Peer == at.Peer && n.Store != at.Store && (n.State == Active || n.State == Draining) {
			return &ErrPeerTaken{Node: n.ID, Peer: at.Peer}
		}
	}
	return nil
}

// Rules are the newest rules of commands that every node applies, with which the
// log is written. They only go up: a node that applies less is not let in.
func (m *Map) Rules() uint32 {
	least := uint32(0)
	for _, n := range m.nodes {
		if n.State == Active || n.State == Draining {
			if r := n.applies(); least == 0 || r < least {
				least = r
			}
		}
	}
	if least == 0 {
		return Rules // no node has said anything
	}
	return least
}

// older tells that a node is of an older version than the map is written for.
func (m *Map) older(n partition.NodeID, at Address) *ErrOldRules {
	if r := m.Rules(); len(m.nodes) > 0 && at.applies() < r {
		return &ErrOldRules{Node: n, Applies: at.applies(), Rules: r}
	}
	return nil
}
