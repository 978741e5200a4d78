package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// A partition, or the metadata log, of whose replicas too few are there has no
// leader, and nothing can be done in it. That is told as NO_QUORUM, with who is
// missing, as far as this node sees it. What only looks goes on with the replica of
// this node, and says so: it may be behind.

// missing are the nodes of a partition's replicas that are not there, if they are too
// many for the others to have a leader; nil: they are not.
func (b *Broker) missing(id partition.PartitionID) []partition.NodeID {
	if b.agent == nil {
		return nil
	}
	p, ok := b.coord.View().Partition(id)
	if !ok {
		return nil
	}
	nodes := p.Nodes()
	away := slices.DeleteFunc(slices.Clone(nodes), b.agent.isUp)
	if len(nodes)-len(away) > len(nodes)/2 {
		return nil
	}
	slices.Sort(away)
	return away
}

// noQuorum is the refusal of a partition that has too few of its replicas; nil: it has
// enough, or err is about something else.
func (b *Broker) noQuorum(err error) *refusal {
	var not *partition.ErrNotLeader
	if !errors.As(err, &not) {
		return nil
	}
	away := b.missing(not.Partition)
	if len(away) == 0 {
		return nil
	}
	return &refusal{reason: "NO_QUORUM", retryAfter: time.Second, text: fmt.Sprintf(
		"%s has too few of its replicas: of the %d nodes that have one, %s not there; bring them back, it goes on when a majority is there",
		b.partitionName(not.Partition), len(away)+b.there(not.Partition), nodesAre(away))}
}

// there counts the nodes of a partition's replicas that are there.
func (b *Broker) there(id partition.PartitionID) (n int) {
	p, _ := b.coord.View().Partition(id)
	for _, node := range p.Nodes() {
		if b.agent.isUp(node) {
			n++
		}
	}
	return n
}

// nodesAre is "n1 is" or "n1 and n2 are".
func nodesAre(nodes []partition.NodeID) string {
	words := make([]string, len(nodes))
	for i, n := range nodes {
		words[i] = n.String()
	}
	if len(words) == 1 {
		return words[0] + " is"
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last] + " are"
}

// looking are the calls that only look, among those that are passed on.
//
//nolint:gochecknoglobals // a constant that Go cannot spell as one
var looking = map[string]bool{
	strandmqv1connect.GroupServiceDescribeGroupProcedure: true, strandmqv1connect.ClusterServiceDescribeClusterProcedure: true,
}

// behind is what a call that only looks took from this node's replicas, since the
// partitions have no leader. It goes with the call's context.
type behind struct {
	mu   sync.Mutex
	from map[partition.PartitionID]bool // guarded by mu
}

type behindKey struct{}

// maybeBehind lets what a call reads come from this node's replicas.
func maybeBehind(ctx context.Context) (context.Context, *behind) {
	h := &behind{from: map[partition.PartitionID]bool{}}
	return context.WithValue(ctx, behindKey{}, h), h
}

func (h *behind) note(id partition.PartitionID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.from[id] = true
}

// of tells whether something of a partition was taken from here.
func (h *behind) of(id partition.PartitionID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.from[id]
}

// mapBehind says that the map here may be behind, since too few of those that vote for
// it are there; empty: enough are.
func (b *Broker) mapBehind() string {
	if len(b.missing(partition.Metadata)) == 0 {
		return ""
	}
	_, h := maybeBehind(context.Background())
	h.note(partition.Metadata)
	return h.words(b)
}

// words say what may be behind; empty: nothing.
func (h *behind) words(b *Broker) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.from) == 0 {
		return ""
	}
	var away []partition.NodeID
	names := make([]string, 0, len(h.from))
	for id := range h.from {
		names = append(names, b.partitionName(id))
		away = append(away, b.missing(id)...)
	}
	slices.Sort(names)
	slices.Sort(away)
	const most = 3
	what := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		what += fmt.Sprintf(" and %d more", more)
	}
	who := ""
	if away = slices.Compact(away); len(away) > 0 {
		who = ", since " + nodesAre(away) + " not there"
	}
	return fmt.Sprintf("of %s this is what node %v holds, and it may be behind: too few replicas are there%s", what, b.cfg.Node, who)
}

// look asks a partition where it is led or, if it has no leader for too few replicas
// and the call can do with it, this node's replica.
func look[T any](ctx context.Context, d *dispatch, id partition.PartitionID, call func(asked) (T, error)) (T, error) {
	h, _ := ctx.Value(behindKey{}).(*behind)
	if h != nil && len(d.b.missing(id)) > 0 {
		if out, err := call(d.own); err == nil {
			h.note(id)
			return out, nil
		}
	}
	return ask(ctx, d, id, true, call)
}

// seen is a node as the connections of this one see it, where nobody leads the
// metadata log who would know better.
func (b *Broker) seen(out *strandmqv1.ClusterNode) {
	if b.agent == nil {
		return
	}
	if out.GetNode() == uint64(b.cfg.Node) {
		out.SilentMs, out.Stopped = new(int64), nil
		return
	}
	for _, n := range b.agent.transport.Nodes() {
		if n.Node != out.GetNode() {
			continue
		}
		ms := int64(0)
		if !n.Up {
			ms = max(n.Since.Milliseconds(), 1)
		}
		if out.SilentMs = &ms; ms == 0 {
			out.Stopped = nil
		}
	}
}
