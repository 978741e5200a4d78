package coordinator

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

func (mc *machine) setAuthority(c *storagev1.SetAuthority) *result {
	switch {
	case len(mc.m.Cluster.Authority.Certificate) > 0:
		return &result{existed: true}
	case len(c.GetCertificate()) == 0 || len(c.GetKey()) == 0 || len(c.Certificate)+len(c.Key) > maxAuthority:
		return refuse(&ErrInvalid{Faults: []Fault{{"authority", fmt.Sprintf("it has a certificate and a key, up to %d bytes", maxAuthority)}}})
	}
	mc.edit().Cluster.Authority = Authority{Certificate: c.Certificate, Key: c.Key}
	mc.touch(rowKey{kind: rowAuthority})
	return &result{}
}

// How long what nodes say of themselves may be.
const (
	maxAuthority = 64 << 10
	maxStore     = 64
	maxAddress   = 255
	maxZone      = 64
)

// addressOf checks what a node says of itself.
func addressOf(a *storagev1.NodeAddress) (Address, error) {
	var bad ErrInvalid
	check := func(field, v string, most int, needed bool, allowed func(rune) bool, what string) {
		if needed && v == "" || len(v) > most || strings.ContainsFunc(v, func(r rune) bool { return !allowed(r) }) {
			bad.Faults = append(bad.Faults, Fault{field, what})
		}
	}
	printable := func(r rune) bool { return r > ' ' && r < 0x7f }
	word := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
	}
	check("store", a.GetStore(), maxStore, true, word, "it is the id of the node's store")
	check("peer_address", a.GetPeer(), maxAddress, false, printable, "use address:port, up to 255 bytes")
	check("api_address", a.GetApi(), maxAddress, false, printable, "use a URL of up to 255 bytes")
	check("zone", a.GetZone(), maxZone, false, word, "use up to 64 letters, digits, dots, underscores and dashes")
	if len(bad.Faults) > 0 {
		return Address{}, &bad
	}
	return Address{Store: a.Store, Boot: a.Boot, Peer: a.Peer, API: a.Api, Zone: a.Zone, Life: a.Life, Rules: a.Rules}, nil
}

func startsOf(list []*storagev1.NodeStart) (out []Start) {
	for _, s := range list {
		out = append(out, Start{s.GetBoot(), s.GetLife()})
	}
	return out
}

// putNode puts a new value of a node into the map and its row.
func (mc *machine) putNode(n *Node) {
	m := mc.edit()
	m.nodes = with(m.nodes, n, nodeID)
	mc.place()
	mc.touch(rowKey{kind: rowNode, id: uint64(n.ID)})
}

// place notes that nodes or placements changed.
func (mc *machine) place() { mc.edit().placed = uint64(mc.at) }

func (mc *machine) addNode(c *storagev1.AddNode) *result {
	at, err := addressOf(c.GetAddress())
	if err != nil {
		return refuse(err)
	}
	if len(c.TokenHash) == 0 {
		return mc.addFirst(c, at)
	}
	var hash TokenHash
	// The first node brings what there is, so it cannot be one that joins.
	if len(c.TokenHash) != len(hash) || len(mc.m.nodes) == 0 {
		return refuse(&ErrToken{Fault: TokenUnknown})
	}
	copy(hash[:], c.TokenHash)
	token, ok := mc.m.findToken(hash)
	if !ok {
		return refuse(&ErrToken{Fault: TokenUnknown})
	}
	if n, ok := mc.m.NodeOf(at.Store); ok {
		// It joined before and has not heard so, or has lost what it was told.
		switch {
		case n.State == Lost || n.State == Removed:
			return refuse(&ErrNodeGone{Node: n.ID, State: n.State})
		case token.Node != n.ID:
			if bad := mc.usable(token); bad != nil {
				return refuse(bad)
			}
			if r := mc.moveTo(n, at, startsOf(c.Earlier)); r.err != nil {
				return r
			}
			mc.useToken(token, n.ID)
			n, _ = mc.m.Node(n.ID)
			return &result{node: n}
		}
		return mc.moveTo(n, at, startsOf(c.Earlier))
	}
	if bad := mc.usable(token); bad != nil {
		return refuse(bad)
	}
	if old := mc.m.older(mc.next.node, at); old != nil {
		return refuse(old)
	}
	n := &Node{ID: mc.next.node, State: Active, Joined: mc.clock, Address: at}
	if n.ID > math.MaxUint32 || mc.members() >= mc.limits.nodes {
		return refuse(&ErrLimit{"nodes", mc.limits.nodes})
	}
	mc.next.node++
	mc.useToken(token, n.ID)
	mc.putNode(n)
	return &result{node: n}
}

// members counts the nodes that belong to the cluster.
func (mc *machine) members() (n int) {
	for _, x := range mc.m.nodes {
		if x.State != Removed {
			n++
		}
	}
	return n
}

func (mc *machine) usable(t *JoinToken) error {
	switch {
	case t.Node != 0:
		return &ErrToken{Fault: TokenUsed}
	case mc.clock > t.Expires:
		return &ErrToken{Fault: TokenExpired}
	}
	return nil
}

func (mc *machine) useToken(t *JoinToken, n partition.NodeID) {
	used := *t
	used.Node = n
	mc.putToken(&used)
}

func (mc *machine) putToken(t *JoinToken) {
	m := mc.edit()
	m.tokens = withToken(m.tokens, t)
	mc.touch(rowKey{kind: rowToken, name: string(t.Hash[:])})
}

// addFirst writes down the node that the cluster began with, which has all that
// there is so far.
func (mc *machine) addFirst(c *storagev1.AddNode, at Address) *result {
	id := partition.NodeID(c.Node)
	if id == 0 || id > math.MaxUint32 {
		return refuse(&ErrInvalid{Faults: []Fault{{"node", "use 1 to 4,294,967,295"}}})
	}
	if len(mc.m.nodes) > 0 {
		n, ok := mc.m.Node(id)
		if ok && n.Store == at.Store {
			return mc.updateNode(&storagev1.UpdateNode{Node: uint64(id), Address: at.proto(), Earlier: c.Earlier})
		}
		return refuse(&ErrToken{Fault: TokenUnknown})
	}
	n := &Node{ID: id, State: Active, Joined: mc.clock, Address: at}
	mc.next.node = max(mc.next.node, id+1)
	mc.putNode(n)
	own := partition.NewReplicaID(id, 0)
	first := func(p *Partition) {
		p.Replicas, p.Placement, p.nextIncarnation = []partition.ReplicaID{own}, uint64(mc.at), 1
		p.settle()
	}
	first(mc.editMetadata())
	for _, t := range mc.m.topicsByID {
		next := *t
		next.Partitions = slices.Clone(t.Partitions)
		for i := range next.Partitions {
			first(&next.Partitions[i])
		}
		mc.setTopic(&next)
		mc.touch(rowKey{kind: rowTopic, id: uint64(t.ID)})
	}
	return &result{node: n}
}

func (a Address) proto() *storagev1.NodeAddress {
	return &storagev1.NodeAddress{Store: a.Store, Boot: a.Boot, Peer: a.Peer, Api: a.API, Zone: a.Zone, Life: a.Life, Rules: a.Rules}
}

// nodeFor finds the node of a command that needs it not to be gone.
func (mc *machine) nodeFor(id uint64) (*Node, error) {
	n, ok := mc.m.Node(partition.NodeID(id))
	switch {
	case !ok:
		return nil, &ErrNotFound{Kind: KindNode, Name: partition.NodeID(id).String()}
	case n.State == Removed || n.State == Lost:
		return nil, &ErrNodeGone{Node: n.ID, State: n.State}
	}
	return n, nil
}

func (mc *machine) updateNode(c *storagev1.UpdateNode) *result {
	at, err := addressOf(c.GetAddress())
	if err != nil {
		return refuse(err)
	}
	n, err := mc.nodeFor(c.Node)
	if err != nil {
		return refuse(err)
	}
	return mc.moveTo(n, at, startsOf(c.Earlier))
}

// moveTo gives a node its present address, if it comes with the store that it had
// last and not with a copy of it.
func (mc *machine) moveTo(n *Node, at Address, earlier []Start) *result {
	switch {
	case n.Store != at.Store:
		return refuse(&ErrNodeActive{Node: n.ID, Store: n.Store, Given: at.Store})
	case n.Boot > at.Boot:
		return refuse(&ErrOldBoot{Node: n.ID, Boot: at.Boot, Now: n.Boot})
	case at.Life != 0 && (n.Boot != at.Boot || n.Life != at.Life) && !knows(earlier, n.Address):
		return refuse(&ErrOldBoot{Node: n.ID, Boot: at.Boot, Now: n.Boot, Copy: true})
	case n.Address == at:
		return &result{node: n, existed: true}
	}
	if old := mc.m.older(n.ID, at); old != nil {
		return refuse(old)
	}
	next := *n
	next.Address = at
	mc.putNode(&next)
	if mc.applied >= newsRules && n.Peer != "" && (n.Boot != at.Boot || n.Life != at.Life) {
		mc.record(Happening{Kind: NodeStarted, Node: n.ID, Text: fmt.Sprintf("it was started again: start %d of its store", at.Boot)})
	}
	return &result{node: &next}
}

func (mc *machine) setState(n *Node, s NodeState) *result {
	if n.State == s {
		return &result{node: n, existed: true}
	}
	next := *n
	next.State = s
	mc.putNode(&next)
	return &result{node: &next}
}

// isLast tells whether no other node is active.
func (mc *machine) isLast(n *Node) bool {
	others := mc.m.active()
	if n.State == Active {
		others--
	}
	return others == 0
}

func (mc *machine) drainNode(c *storagev1.DrainNode) *result {
	n, err := mc.nodeFor(c.GetNode())
	switch {
	case err != nil:
		return refuse(err)
	case !c.Draining:
		return mc.setState(n, Active)
	case mc.isLast(n):
		return refuse(&ErrLastNode{Node: n.ID})
	}
	return mc.setState(n, Draining)
}

func (mc *machine) loseNode(c *storagev1.LoseNode) *result {
	n, err := mc.nodeFor(c.GetNode())
	if gone, ok := mc.m.Node(partition.NodeID(c.GetNode())); ok && gone.State == Lost {
		return &result{node: gone, existed: true}
	}
	switch {
	case err != nil:
		return refuse(err)
	case mc.isLast(n):
		return refuse(&ErrLastNode{Node: n.ID})
	}
	if only := mc.m.onlyOn(n.ID); only > 0 {
		return refuse(&ErrNodeHolds{Node: n.ID, Partitions: only, Only: true})
	}
	mc.record(Happening{Kind: NodeGivenUp, Node: n.ID, Text: "an operator gave it up, since its disk is lost: its " + mc.holds(n.ID) + " go to other nodes"})
	return mc.setState(n, Lost)
}

// onlyOn counts the partitions that nobody but this node is known to have whole.
func (m *Map) onlyOn(id partition.NodeID) (count int) {
	only := func(p *Partition) bool {
		has, others := false, false
		whole := func(r partition.ReplicaID) {
			n, ok := m.Node(r.Node())
			switch {
			case !p.voted(r): // it may have been fed nothing yet
			case r.Node() == id:
				has = true
			case ok && (n.State == Active || n.State == Draining):
				others = true
			}
		}
		for _, r := range p.Replicas {
			whole(r)
		}
		for _, l := range p.Leaving {
			if !l.Out && l.ID != p.Rebuild.ID {
				whole(l.ID)
			}
		}
		return has && !others
	}
	for p := range m.Partitions() {
		if only(p) {
			count++
		}
	}
	return count
}

func (mc *machine) removeNode(c *storagev1.RemoveNode) *result {
	n, ok := mc.m.Node(partition.NodeID(c.GetNode()))
	switch {
	case !ok:
		return refuse(&ErrNotFound{Kind: KindNode, Name: partition.NodeID(c.GetNode()).String()})
	case n.State == Removed:
		return &result{node: n, existed: true}
	case mc.isLast(n):
		return refuse(&ErrLastNode{Node: n.ID})
	}
	if holds := mc.m.partitionsOn(n.ID); holds > 0 {
		return refuse(&ErrNodeHolds{Node: n.ID, Partitions: holds})
	}
	// What it has not erased it never will, as far as the cluster is concerned.
	for _, t := range mc.m.topicsByID {
		for i := range t.Partitions {
			if l, ok := t.Partitions[i].Left(n.ID); ok {
				mc.dropLeaving(t.Partitions[i].ID, l.ID)
			}
		}
	}
	if n.State == Lost {
		mc.record(Happening{Kind: NodeRemoved, Node: n.ID, Text: "what it held is on other nodes, and it is no part of the cluster any more"})
	}
	mc.setSource(n.ID, source{})
	return mc.setState(n, Removed)
}

// rememberTokens is how long a token is remembered after its time, so that who
// comes late hears why.
const rememberTokens partition.Millis = 24 * 60 * 60 * 1000

// maxTokenLife is the most that a token may live.
const maxTokenLife partition.Millis = 7 * 24 * 60 * 60 * 1000

const validTime = "use 1 ms to 7 days"

func (mc *machine) createJoinToken(c *storagev1.CreateJoinToken) *result {
	var hash TokenHash
	expires := partition.Millis(c.GetExpiresMs())
	if len(c.GetHash()) != len(hash) || expires <= mc.clock || expires > mc.clock+maxTokenLife {
		return refuse(&ErrInvalid{Faults: []Fault{{"valid_ms", validTime}}})
	}
	copy(hash[:], c.Hash)
	if t, ok := mc.m.findToken(hash); ok {
		return &result{token: t, existed: true}
	}
	open := 0
	for _, t := range mc.m.tokens {
		switch {
		case t.Expires+rememberTokens < mc.clock:
			mc.dropToken(t)
		case t.Node == 0 && t.Expires >= mc.clock:
			open++
		}
	}
	if open >= mc.limits.tokens {
		return refuse(&ErrLimit{"join tokens that nobody used", mc.limits.tokens})
	}
	t := &JoinToken{Hash: hash, Created: mc.clock, Expires: expires}
	mc.putToken(t)
	return &result{token: t}
}

func (mc *machine) dropToken(t *JoinToken) {
	m := mc.edit()
	m.tokens = slices.DeleteFunc(slices.Clone(m.tokens), func(x *JoinToken) bool { return x.Hash == t.Hash })
	mc.touch(rowKey{kind: rowToken, name: string(t.Hash[:])})
}
