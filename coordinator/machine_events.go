package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// The events are what the cluster did by itself and what happened to it: a ring of rows
// that nothing reads but people, and no part of the map. What the log decides it writes
// down as it is applied; the rest comes from nodes, in batches that are numbered, since
// a batch whose answer got lost is proposed again.
//
//	a node: AddEvents ──► boot and batch newer than its last? ──► like one of the last minute?
//	the log's own acts ─────────────────────────────────────────►   yes: its count is raised
//	                                                                no:  a new row; the oldest goes
//
// A raised event is the newest again, so who asks after a change hears of it.

// How much of the events is kept. They are rules of apply, like theLimits.
const (
	maxEvents      = 1_000
	eventWindow    = partition.Millis(60_000) // later, the same is an event of its own
	maxHappenings  = 100                      // of a batch
	maxEventKind   = 40
	maxEventName   = 255
	maxEventText   = 512
	maxEventTotals = 64 // kinds that are counted by name
)

// eventRules are the first rules with events: what entries of earlier ones did was not
// written down, and must not be by who applies them again.
const eventRules = 4

// newsRules are the first with which a node's start is told, its silence apart from its
// stop, and why a group's partitions were assigned anew. The start is written down with the address, so that no stop of before is taken for
// one of a node that died at once. A silence no more claims that others lead what the node
// led: what has no majority left has no leader.
const newsRules = 6

// source is what is known of a node as one that tells events, and of which they tell.
type source struct {
	boot, batch uint64
	presence    Presence
}

// record writes down what happened.
func (mc *machine) record(h Happening) {
	if mc.applied < eventRules {
		return
	}
	h.Count = max(h.Count, 1)
	h.Text = clip(h.Text, maxEventText)
	e := &mc.events
	e.change++
	next := &Event{ID: e.change, Change: e.change, Happening: h, First: mc.clock, Last: mc.clock}
	list := make([]*Event, 0, len(e.list)+1)
	list = append(list, e.list...)
	for i := len(list) - 1; i >= 0 && list[i].Last+eventWindow >= mc.clock; i-- {
		was := list[i]
		if !was.Like(&h) {
			continue
		}
		next.ID, next.First, next.Happening = was.ID, was.First, was.Happening
		next.Merge(&h)
		list = slices.Delete(list, i, i+1)
		break
	}
	list = append(list, next)
	mc.touch(rowKey{kind: rowEvent, id: next.ID})
	if len(list) > maxEvents {
		e.gone = max(e.gone, list[0].Change)
		mc.touch(rowKey{kind: rowEvent, id: list[0].ID})
		list = list[1:]
	}
	e.list = list
	e.count(h.Kind, h.Count)
}

// clip cuts a text off, and what of it is no UTF-8.
func clip(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "") }

// count adds to the total of a kind.
func (e *Events) count(k EventKind, n uint64) {
	i, ok := find2(e.totals, k)
	if !ok && len(e.totals) >= maxEventTotals-1 {
		k = eventsOtherKind
		i, ok = find2(e.totals, k)
	}
	totals := slices.Clone(e.totals)
	if !ok {
		totals = slices.Insert(totals, i, EventTotal{Kind: k})
	}
	if totals[i].Count += n; totals[i].Count < n {
		totals[i].Count = 1<<64 - 1
	}
	e.totals = totals
}

func find2(totals []EventTotal, k EventKind) (int, bool) {
	return slices.BinarySearchFunc(totals, k, func(t EventTotal, k EventKind) int { return cmp.Compare(t.Kind, k) })
}

func (mc *machine) addEvents(c *storagev1.AddEvents) *result {
	if len(c.GetEvents()) > maxHappenings {
		return refuse(&ErrInvalid{Faults: []Fault{{"events", fmt.Sprintf("a batch has at most %d", maxHappenings)}}})
	}
	for _, h := range c.Events {
		if bad := badHappening(h); bad != "" {
			return refuse(&ErrInvalid{Faults: []Fault{{"events", bad}}})
		}
	}
	n, err := mc.nodeFor(c.Node)
	if err != nil {
		return refuse(err)
	}
	was := mc.sources[n.ID]
	if c.Boot < was.boot || c.Boot == was.boot && c.Batch <= was.batch {
		return &result{existed: true}
	}
	was.boot, was.batch = c.Boot, c.Batch
	mc.setSource(n.ID, was)
	for _, h := range c.Events {
		mc.record(Happening{
			Kind: EventKind(h.Kind), Topic: h.Topic, Partition: h.Partition, Group: h.Group,
			Node: partition.NodeID(h.Node), Text: h.Text, Count: h.Count,
		})
	}
	return &result{}
}

// badHappening says what is wrong with what a node tells; the texts are cut off.
func badHappening(h *storagev1.Happening) string {
	word := func(r rune) bool { return r == '_' || r >= 'A' && r <= 'Z' }
	switch {
	case h.GetKind() == "" || len(h.Kind) > maxEventKind || strings.ContainsFunc(h.Kind, func(r rune) bool { return !word(r) }):
		return fmt.Sprintf("a kind has up to %d capital letters and underscores", maxEventKind)
	case len(h.Topic) > maxEventName || len(h.Group) > maxEventName:
		return fmt.Sprintf("a name has up to %d bytes", maxEventName)
	case h.Node > 1<<32-1:
		return "a node's id is at most 4,294,967,295"
	}
	return ""
}

func (mc *machine) setSource(n partition.NodeID, s source) {
	if s == (source{}) {
		delete(mc.sources, n)
	} else {
		mc.sources[n] = s
	}
	mc.touch(rowKey{kind: rowSource, id: uint64(n)})
}

// noteNodes writes down what is news about nodes. Each leader of the log finds out by
// itself who is there, so most of what it says is known.
func (mc *machine) noteNodes(c *storagev1.NoteNodes) *result {
	for _, note := range c.GetNodes() {
		n, ok := mc.m.Node(partition.NodeID(note.GetNode()))
		now := Presence(note.GetPresence())
		if !ok || now > GivenUp || n.State != Active && n.State != Draining {
			continue
		}
		s := mc.sources[n.ID]
		if s.presence == now || s.presence == GivenUp && now == Silent {
			continue
		}
		s.presence = now
		mc.setSource(n.ID, s)
		h := Happening{Node: n.ID}
		switch now {
		case Silent:
			h.Kind, h.Text = NodeSilent, mc.silentText(n.ID)
		case GivenUp:
			h.Kind, h.Text = NodeGivenUp, "it was not heard of for long: its "+mc.holds(n.ID)+" go to other nodes, where one can take them"
		default:
			h.Kind, h.Text = NodeBack, "it is heard of again, and is to hold "+mc.holds(n.ID)
		}
		mc.record(h)
	}
	return &result{}
}

// silentText says what is known of a node that is not heard of.
func (mc *machine) silentText(n partition.NodeID) string {
	_, stopped := mc.events.Stopped(n)
	switch {
	case mc.applied < newsRules:
		return "it is not heard of: others lead what it led"
	case stopped:
		return "it is not heard of, since it was stopped"
	}
	return "it is not heard of, and did not say that it stops: others lead what it led, where a majority of the replicas is there"
}

// holds is how much is wanted on a node, in words.
func (mc *machine) holds(n partition.NodeID) string {
	if held := mc.m.Held()[n].Replicas; held != 1 {
		return fmt.Sprintf("%d replicas", held)
	}
	return "1 replica"
}

// about names a partition of a topic in what happened.
func (mc *machine) about(h Happening, id partition.PartitionID) Happening {
	if at, ok := mc.m.Place(id); ok {
		number := uint32(at.Number)
		h.Topic, h.Partition = at.Topic.Name, &number
	}
	return h
}
