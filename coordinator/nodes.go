package coordinator

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"iter"
	"slices"
	"strconv"

	"github.com/strandmq/strandmq/partition"
)

// NodeState is what becomes of a node.
//
//	join ──► Active ◄──drain──► Draining ──remove──► Removed
//	           └─────lose──► Lost ──remove──────────────▲
type NodeState uint8

// The states.
const (
	Active   NodeState = iota + 1 // it is given replicas
	Draining                      // its replicas go elsewhere
	Lost                          // its disk is lost: what it held is given up
	Removed                       // it is out of the cluster, and its id is never used again
)

// String prints the state in lower case.
func (s NodeState) String() string {
	switch s {
	case Active:
		return "active"
	case Draining:
		return "draining"
	case Lost:
		return "lost"
	case Removed:
		return "removed"
	}
	return "state-" + strconv.Itoa(int(s))
}

// Node is a broker node at one moment.
type Node struct {
	ID     partition.NodeID
	State  NodeState
	Joined partition.Millis
	Address
}

// Address is what a node says of itself at its start.
type Address struct {
	Store string // the id of its store, in hex: a node is its disk
	Boot  uint64 // how often the store was started
	Peer  string // where other nodes reach it, address and port; empty: nowhere
	API   string // where clients reach it, a URL; empty: nowhere
	Zone  string // nodes of one zone may fail together
	Life  uint64 // a random number of that start; 0: not known
	Rules uint32 // the newest rules that it applies; 0: toldRules
}

// applies is the newest rules that the node applies.
func (at Address) applies() uint32 { return max(at.Rules, toldRules) }

// Start is one start of a node's store. Of two copies of a folder each makes starts
// of its own, with the same boot numbers and other lives.
type Start struct{ Boot, Life uint64 }

// knows tells whether a store that knows of earlier starts can be the one whose
// last start is at: it knows it, or it was too long ago to tell.
func knows(earlier []Start, at Address) bool {
	return at.Life == 0 || len(earlier) > 0 && at.Boot < earlier[0].Boot || slices.Contains(earlier, Start{at.Boot, at.Life})
}

// Authority signs the certificates of the cluster's nodes. Both parts are PEM.
type Authority struct{ Certificate, Key []byte }

// TokenHash is the SHA-256 of a join token's secret. The secret itself is nowhere
// in the metadata.
type TokenHash [sha256.Size]byte

// HashToken is the hash of a join token's secret.
func HashToken(secret []byte) TokenHash { return sha256.Sum256(secret) }

// JoinToken is a token that one node can join with, once.
type JoinToken struct {
	Hash    TokenHash
	Created partition.Millis
	Expires partition.Millis
	Node    partition.NodeID // that joined with it; 0: none
}

// Leaving is a replica that is not wanted any more.
type Leaving struct {
	ID  partition.ReplicaID
	Out bool // it has no vote any more, and its node is to erase it
}

// Moving tells whether the partition's voters may yet be others than those that
// are wanted.
func (p *Partition) Moving() bool { return p.Settled != p.Placement }

// Past tells whether a replica was one of the partition and is none any more, nor
// leaves: no later map wants it, since no id is given twice. One that this map is too
// old to know of is not. Those of the metadata log are for good.
func (p *Partition) Past(r partition.ReplicaID) bool {
	return p.ID != partition.Metadata && r.Incarnation() < p.nextIncarnation && !slices.Contains(p.Replicas, r) &&
		!slices.ContainsFunc(p.Leaving, func(l Leaving) bool { return l.ID == r })
}

// settle notes that the voters are those that are wanted.
func (p *Partition) settle() { p.Settled, p.settledIncarnation = p.Placement, p.nextIncarnation }

// voted tells whether a replica was a voter when the placement was last
// reached: it has been fed then. The metadata log feeds every node.
func (p *Partition) voted(r partition.ReplicaID) bool {
	return p.ID == partition.Metadata || r.Incarnation() < p.settledIncarnation
}

// Nodes are the nodes of the wanted replicas. The first is to lead.
func (p *Partition) Nodes() []partition.NodeID {
	out := make([]partition.NodeID, len(p.Replicas))
	for i, r := range p.Replicas {
		out[i] = r.Node()
	}
	return out
}

// Replica finds the wanted replica on a node.
func (p *Partition) Replica(n partition.NodeID) (partition.ReplicaID, bool) {
	for _, r := range p.Replicas {
		if r.Node() == n {
			return r, true
		}
	}
	return 0, false
}

// Left finds the replica on a node that is not wanted any more.
func (p *Partition) Left(n partition.NodeID) (Leaving, bool) {
	for _, l := range p.Leaving {
		if l.ID.Node() == n {
			return l, true
		}
	}
	return Leaving{}, false
}

// Nodes gives all nodes by id, in every state.
func (m *Map) Nodes() iter.Seq[*Node] { return slices.Values(m.nodes) }

// Node finds a node in any state.
func (m *Map) Node(id partition.NodeID) (*Node, bool) { return find(m.nodes, id, nodeID) }

// NodeOf finds the node that has a store, in any state.
func (m *Map) NodeOf(store string) (*Node, bool) {
	for _, n := range m.nodes {
		if n.Store == store {
			return n, true
		}
	}
	return nil, false
}

// active counts the nodes that are given replicas.
func (m *Map) active() (n int) {
	for _, x := range m.nodes {
		if x.State == Active {
			n++
		}
	}
	return n
}

// Tokens gives the join tokens that are remembered, used ones and those past
// their time included.
func (m *Map) Tokens() iter.Seq[*JoinToken] { return slices.Values(m.tokens) }

// Partition finds a partition, the metadata log included. Of the metadata log
// Replicas are the voters: every other node has a replica that only listens.
func (m *Map) Partition(id partition.PartitionID) (*Partition, bool) {
	if id == partition.Metadata {
		return &m.metadata, true
	}
	at, ok := m.Place(id)
	if !ok {
		return nil, false
	}
	return &at.Topic.Partitions[at.Number], true
}

// Partitions gives all partitions, the metadata log first.
func (m *Map) Partitions() iter.Seq[*Partition] {
	return func(yield func(*Partition) bool) {
		if !yield(&m.metadata) {
			return
		}
		for _, t := range m.topicsByID {
			for i := range t.Partitions {
				if !yield(&t.Partitions[i]) {
					return
				}
			}
		}
	}
}

// Held is what a node has of the partitions.
type Held struct {
	Replicas int  // wanted on it
	Leads    int  // of those, that it is to lead
	Leaving  int  // that are to leave it, or to be erased
	Votes    bool // it is a voter of the metadata log, which the others do not count
}

// Held counts what each node has.
func (m *Map) Held() map[partition.NodeID]Held {
	out := map[partition.NodeID]Held{}
	for p := range m.Partitions() {
		for i, r := range p.Replicas {
			h := out[r.Node()]
			if p.ID == partition.Metadata {
				h.Votes = true
			} else if h.Replicas++; i == 0 {
				h.Leads++
			}
			out[r.Node()] = h
		}
		for _, l := range p.Leaving {
			h := out[l.ID.Node()]
			h.Leaving++
			out[l.ID.Node()] = h
		}
	}
	return out
}

// Placed is the log index of the last change of nodes or placements.
func (m *Map) Placed() uint64 { return m.placed }

// Deleted tells whether a partition was handed out and is gone. It is the one
// proof that a partition can be dropped: that a map does not have it says
// nothing, since the map may be older than the partition.
func (m *Map) Deleted(id partition.PartitionID) bool {
	if id == partition.Metadata || id >= m.nextPartition {
		return false
	}
	_, ok := m.Place(id)
	return !ok
}

// GroupDeleted tells whether a group was there and is gone, as Deleted does of a
// partition.
func (m *Map) GroupDeleted(id GroupID) bool {
	_, ok := m.GroupByID(id)
	return !ok && id < m.nextGroup
}

// partitionsOn counts the partitions that a node has a replica of that has, or
// may have, a vote, or is to have one again. The metadata log counts where the node votes
// in it.
func (m *Map) partitionsOn(n partition.NodeID) (count int) {
	on := func(p *Partition) bool {
		if _, ok := p.Replica(n); ok {
			return true
		}
		l, ok := p.Left(n)
		return ok && (!l.Out || p.comesAgain(n))
	}
	for p := range m.Partitions() {
		if on(p) {
			count++
		}
	}
	return count
}

func nodeID(n *Node) partition.NodeID { return n.ID }

// findToken looks a token up by its hash.
func (m *Map) findToken(h TokenHash) (*JoinToken, bool) {
	i, ok := slices.BinarySearchFunc(m.tokens, h, func(t *JoinToken, h TokenHash) int { return bytes.Compare(t.Hash[:], h[:]) })
	if !ok {
		return nil, false
	}
	return m.tokens[i], true
}

// withToken is tokens with t in its place. tokens is not touched.
func withToken(tokens []*JoinToken, t *JoinToken) []*JoinToken {
	out := slices.DeleteFunc(slices.Clone(tokens), func(x *JoinToken) bool { return x.Hash == t.Hash })
	out = append(out, t)
	slices.SortFunc(out, func(a, b *JoinToken) int { return bytes.Compare(a.Hash[:], b.Hash[:]) })
	return out
}

// firstActive is the active node with the lowest id.
func (m *Map) firstActive() (partition.NodeID, bool) {
	i := slices.IndexFunc(m.nodes, func(n *Node) bool { return n.State == Active })
	if i < 0 {
		return 0, false
	}
	return m.nodes[i].ID, true
}

// sortNodes sorts ids.
func sortNodes(ids []partition.NodeID) {
	slices.SortFunc(ids, func(a, b partition.NodeID) int { return cmp.Compare(a, b) })
}
