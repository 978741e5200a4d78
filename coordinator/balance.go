package coordinator

import (
	"maps"

	"github.com/strandmq/strandmq/coordinator/placement"
	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// balancer is where the leader of the metadata log notes which nodes are there,
// and from it and the map decides what should be placed anew. Like expiry it lives
// as long as the leadership and decides nothing by itself: what it wants goes
// through the log, where a partition that was placed otherwise meanwhile stays as
// it is.
//
// A node that nobody spoke of is silent from the moment the leader began to
// listen: it is given nothing before it is heard of, and counts as dead a full
// delay later. After a gap in its own turns the leader has heard nobody, and grants
// everybody a full delay anew.
type balancer struct {
	self partition.NodeID
	opt  placement.Options

	since   map[partition.NodeID]partition.Millis // silent nodes → since when
	up      map[partition.NodeID]bool             // nodes that are there
	fresh   map[partition.NodeID]bool             // news since the last turn
	last    partition.Millis                      // the last turn; 0: none yet
	next    partition.Millis                      // plan then, though nothing changes; 0: need not
	planned uint64                                // Map.Placed of the last plan
	planAt  partition.Millis                      // when that was
	due     bool                                  // plan in the next turn that may
	noted   partition.Millis                      // when news of nodes was proposed last; 0: not yet
}

// between is the least time from one plan to the next: what was placed by one
// should be in the next one's picture, and a plan over all partitions takes time.
const between partition.Millis = 1_000

func newBalancer(self partition.NodeID, opt placement.Options) *balancer {
	return &balancer{
		self: self, opt: opt,
		since: map[partition.NodeID]partition.Millis{}, up: map[partition.NodeID]bool{}, fresh: map[partition.NodeID]bool{},
	}
}

// heard notes that a node came or went.
func (b *balancer) heard(n partition.NodeID, up bool) { b.fresh[n] = up }

// turn returns what to propose, and when it wants its next turn at the latest (0:
// not before something is heard, or placed).
func (b *balancer) turn(now partition.Millis, m *Map) (cmds []*storagev1.MetadataCommand, wake partition.Millis) {
	if len(m.nodes) < 2 {
		clear(b.fresh)
		return nil, 0
	}
	gap := now - b.last
	slept := b.last == 0 || gap < 0 || len(b.since) > 0 && gap > b.opt.DeadAfter/2
	b.last = now
	if slept {
		clear(b.since)
		b.planAt, b.due = min(b.planAt, now-between), true
	}
	for n, up := range b.fresh {
		if up == b.up[n] {
			continue
		}
		b.up[n] = up
		delete(b.since, n)
		b.due = true
	}
	clear(b.fresh)
	for _, n := range m.nodes {
		if n.State == Lost || n.State == Removed {
			delete(b.since, n.ID) // nobody waits for it
		} else if _, ok := b.since[n.ID]; !ok && n.ID != b.self && !b.up[n.ID] {
			b.since[n.ID] = now
		}
	}
	b.due = b.due || m.placed != b.planned || b.next != 0 && now >= b.next
	switch {
	case b.due && now < b.planAt+between:
		return nil, b.planAt + between
	case b.due:
		cmds = b.plan(now, m)
	}
	return cmds, b.wake(now)
}

// wake is often enough to tell a gap from silence.
func (b *balancer) wake(now partition.Millis) partition.Millis {
	wake := b.next
	if len(b.since) > 0 {
		often := now + max(b.opt.DeadAfter/4, 1)
		if wake == 0 || often < wake {
			wake = often
		}
	}
	return wake
}

// silentAfter is how long a node is not heard of until that is an event: who is
// started again is back before.
const silentAfter partition.Millis = 5_000

// notes returns what is news about nodes, and when there may be more (0: not before a
// node comes or goes); noted is what the log knows.
func (b *balancer) notes(now partition.Millis, m *Map, noted func(partition.NodeID) Presence) (cmd *storagev1.MetadataCommand, wake partition.Millis) {
	sooner := func(at partition.Millis) {
		if wake == 0 || at < wake {
			wake = at
		}
	}
	var news []*storagev1.NodeNote
	for _, n := range m.nodes {
		if n.State == Lost || n.State == Removed {
			continue
		}
		was, is := noted(n.ID), Present
		if at, silent := b.since[n.ID]; silent {
			quiet, dead := at+min(silentAfter, b.opt.DeadAfter/2), at+b.opt.DeadAfter+1
			switch {
			case now >= dead && was != Present:
				is = GivenUp
			case now >= quiet:
				// Its silence is told first, also where that had to wait for other news.
				if is = max(Silent, was); now < dead {
					sooner(dead)
				}
			default:
				is = was // it is not known yet
				sooner(quiet)
			}
		} else if n.ID != b.self && !b.up[n.ID] {
			is = was
		}
		if is != was {
			news = append(news, &storagev1.NodeNote{Node: uint64(n.ID), Presence: storagev1.NodePresence(is)})
		}
	}
	switch {
	case len(news) == 0:
		return nil, wake
	case b.noted != 0 && now >= b.noted && now < b.noted+between: // it may be on its way
		sooner(b.noted + between)
		return nil, wake
	}
	b.noted = now
	sooner(now + between) // in case the proposal gets lost
	return &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_NoteNodes{NoteNodes: &storagev1.NoteNodes{Nodes: news}}}, wake
}

// silentFor is how long a node was not heard of.
func silentFor(since map[partition.NodeID]partition.Millis, now partition.Millis) func(partition.NodeID) partition.Millis {
	return func(n partition.NodeID) partition.Millis {
		if at, ok := since[n]; ok {
			return max(now-at, 1)
		}
		return 0
	}
}

// unheard are the active nodes that are not heard of, and not yet for so long that it is an
// event: the leader has just begun to listen, or they may be back in a moment.
func unheard(m *Map, silent func(partition.NodeID) partition.Millis) (out []partition.NodeID) {
	for _, n := range m.nodes {
		if ms := silent(n.ID); n.State == Active && ms > 0 && ms < silentAfter {
			out = append(out, n.ID)
		}
	}
	return out
}

func (b *balancer) plan(now partition.Millis, m *Map) (cmds []*storagev1.MetadataCommand) {
	b.planned, b.planAt, b.due, b.next = m.placed, now, false, 0
	for _, at := range b.since {
		// Dead is who is silent for longer than the delay.
		if dead := at + b.opt.DeadAfter + 1; dead > now && (b.next == 0 || dead < b.next) {
			b.next = dead
		}
	}
	plan := placement.Make(picture(m, silentFor(b.since, now)), b.opt)
	if len(plan.Moves) > 0 {
		place := &storagev1.PlaceReplicas{}
		for _, mv := range plan.Moves {
			p, _ := m.Partition(mv.Partition)
			place.Placements = append(place.Placements, placementOf(p, mv.To))
		}
		cmds = append(cmds, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_PlaceReplicas{PlaceReplicas: place}})
		// In case the proposal gets lost.
		if again := now + 10*between; b.next == 0 || again < b.next {
			b.next = again
		}
	}
	for _, n := range m.nodes {
		if n.State == Lost && m.partitionsOn(n.ID) == 0 {
			cmds = append(cmds, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_RemoveNode{RemoveNode: &storagev1.RemoveNode{Node: uint64(n.ID)}}})
		}
	}
	return cmds
}

func placementOf(p *Partition, nodes []partition.NodeID) *storagev1.Placement {
	out := &storagev1.Placement{PartitionId: uint64(p.ID), Placement: p.Placement}
	for _, n := range nodes {
		out.Nodes = append(out.Nodes, uint64(n))
	}
	return out
}

// picture is the cluster as placement sees it. Lost and removed nodes are not of
// it, so what they held counts as lost. Topics that come or go stay as they are.
func picture(m *Map, silent func(partition.NodeID) partition.Millis) placement.Picture {
	var pic placement.Picture
	for _, n := range m.nodes {
		if n.State == Active || n.State == Draining {
			pic.Nodes = append(pic.Nodes, placement.Node{ID: n.ID, Zone: n.Zone, Draining: n.State == Draining, Silent: silent(n.ID)})
		}
	}
	active := m.active()
	add := func(p *Partition, topic uint64, want int) {
		if len(p.Replicas) == 0 {
			return
		}
		one := placement.Partition{ID: p.ID, Topic: topic, Replicas: p.Nodes(), Want: want, Moving: p.Moving()}
		for _, l := range p.Leaving {
			if l.ID == p.Rebuild.ID {
				// It comes again, by itself.
				one.Replicas, one.Moving = append(one.Replicas, l.ID.Node()), true
			} else if l.Out {
				one.Erasing = append(one.Erasing, l.ID.Node())
			} else {
				one.Leaving = append(one.Leaving, l.ID.Node())
			}
		}
		pic.Partitions = append(pic.Partitions, one)
	}
	add(&m.metadata, 0, placement.MetadataVoters(len(m.metadata.Replicas), active))
	for _, t := range m.topicsByID {
		if t.Phase != Ready {
			continue
		}
		for i := range t.Partitions {
			p := &t.Partitions[i]
			add(p, uint64(t.ID), placement.Wanted(t.Config.Replication, p.replicas(), active))
		}
	}
	return pic
}

// silences is a copy for readers on other goroutines.
func (b *balancer) silences() map[partition.NodeID]partition.Millis { return maps.Clone(b.since) }
