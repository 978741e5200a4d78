package broker

import (
	"context"
	"sync"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// happenings is what happened at this node and is not in the event log yet. Whoever
// sees it notes it, from any goroutine, without a wait; one goroutine takes it to the
// leader of the metadata log, a batch at a time and one batch a second at most, so that
// a storm costs the log no more than a drizzle.
//
//	note ──► waiting: the same is one, with a count ──take──► batch ──► AddEvents at the leader
//	           └─ too many kinds: counted, and told as one        └─ again until it answers
//
// It is in memory: what a node notes in its last second is told only if it comes to it.
type happenings struct {
	news chan struct{} // holds one
	last chan struct{} // closed when the node is about to stop: what waits now is the last
	told chan struct{} // closed when that is told, or cannot be

	mu      sync.Mutex
	waiting []happening // guarded by mu
	dropped uint64      // guarded by mu: what found no room
}

// happening is what happened, by numbers: names are looked up when it is told.
type happening struct {
	kind  coordinator.EventKind
	of    spot
	group consumer.GroupID // 0: none
	ours  bool             // it is about this node
	text  string
	count uint64 // 0: once
}

// spot is a partition, if there is one: the metadata log's number is 0.
type spot struct {
	id partition.PartitionID
	is bool
}

const (
	// happeningsKept is how many that differ wait: with texts about 100 KiB.
	happeningsKept = 500
	// tellEvery is the least time from one batch of a node to the next.
	tellEvery = time.Second
)

func newHappenings() *happenings {
	return &happenings{news: make(chan struct{}, 1), last: make(chan struct{}), told: make(chan struct{})}
}

// ofNode notes what happened to this node.
func (h *happenings) ofNode(kind coordinator.EventKind, text string) {
	h.note(happening{kind: kind, ours: true, text: text})
}

func (h *happenings) note(x happening) {
	x.count = max(x.count, 1)
	h.mu.Lock()
	h.keep(x)
	h.mu.Unlock()
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// keep adds one to those that wait. mu is held.
func (h *happenings) keep(x happening) {
	for i := range h.waiting {
		was := &h.waiting[i]
		if was.kind == x.kind && was.of == x.of && was.group == x.group && was.ours == x.ours {
			was.text, was.count = x.text, was.count+x.count
			return
		}
	}
	if len(h.waiting) >= happeningsKept {
		h.dropped += x.count
		return
	}
	h.waiting = append(h.waiting, x)
}

// take gives what waits as one batch, with its names; more tells that some is left.
func (h *happenings) take(m *coordinator.Map, self partition.NodeID) (batch []coordinator.Happening, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for ; n < len(h.waiting); n++ {
		x := named(m, self, &h.waiting[n])
		like := false
		for i := range batch {
			if like = batch[i].Like(&x); like {
				batch[i].Merge(&x)
				break
			}
		}
		if !like && len(batch) == coordinator.MaxBatch-1 {
			break // one is for what was dropped
		}
		if !like {
			batch = append(batch, x)
		}
	}
	h.waiting = append([]happening(nil), h.waiting[n:]...)
	if h.dropped > 0 {
		batch = append(batch, coordinator.Happening{
			Kind: coordinator.EventsDropped, Node: self, Count: h.dropped, Text: "more happened at it than it keeps to tell: it is counted here only; its own log has it",
		})
		h.dropped = 0
	}
	return batch, len(h.waiting) > 0
}

// named gives a happening its names.
func named(m *coordinator.Map, self partition.NodeID, x *happening) coordinator.Happening {
	out := coordinator.Happening{Kind: x.kind, Text: x.text, Count: x.count}
	if x.ours {
		out.Node = self
	}
	if at, ok := m.Place(x.of.id); ok && x.of.is {
		number := uint32(at.Number)
		out.Topic, out.Partition = at.Topic.Name, &number
	} else if x.of.is && x.of.id == partition.Metadata {
		out.Text = "of the metadata log: " + out.Text
	}
	if g, ok := m.GroupByID(coordinator.GroupID(x.group)); ok {
		out.Group = g.Name
	}
	return out
}

// noticed is consumer.App.Notice.
func (b *Broker) noticed(n consumer.Notice) {
	kind := map[consumer.NoticeKind]coordinator.EventKind{
		consumer.NoticeExpired: coordinator.ExpiredUnread, consumer.NoticeParked: coordinator.KeyParked,
		consumer.NoticeOpened: coordinator.CircuitOpened, consumer.NoticeClosed: coordinator.CircuitClosed,
		consumer.NoticeDeferred: coordinator.DeferredLimit,
	}[n.Kind]
	b.events.note(happening{kind: kind, of: spot{n.Partition, true}, group: n.Group, text: n.Text, count: n.Count})
}

// tellStop has the event log say that this node stops, so that others do not take it for
// one that died. It is tried once, and not where nobody leads the metadata log: a stop does
// not wait for what may not come.
func (b *Broker) tellStop() {
	if b.leaderless() != "" {
		return
	}
	b.events.ofNode(coordinator.NodeStopped, "it was told to stop, and hands over what it leads")
	close(b.events.last)
	timer := time.NewTimer(tellStopTime)
	defer timer.Stop()
	select {
	case <-b.events.told:
	case <-timer.C:
		b.log.Info("the cluster could not be told that this node stops: it will be taken for one that is silent", "waited", tellStopTime)
	}
}

// tellStopTime is how long a node that stops waits until that is told.
const tellStopTime = time.Second

// tellEvents takes what happened to the event log, as long as the node serves.
func (b *Broker) tellEvents() {
	defer close(b.events.told)
	for number, more, last := uint64(1), false, false; ; {
		if !more {
			select {
			case <-b.events.news:
			case <-b.events.last:
				last = true
			case <-b.serving.Done():
				return
			}
		}
		var batch []coordinator.Happening
		if batch, more = b.events.take(b.coord.View(), b.cfg.Node); len(batch) == 0 {
			if last {
				return
			}
			continue
		}
		for {
			err := b.tellBatch(number, batch)
			if err != nil && reasonOf(err) == "BAD_VALUE" {
				b.log.Warn("what happened is not taken into the event log", "events", len(batch), "err", err)
				err = nil
			}
			if b.betweenBatches(err) != nil {
				return
			}
			if err == nil {
				break
			}
		}
		number++
	}
}

// betweenBatches waits until the next batch, or the same one again: not for long once the
// node is about to stop.
func (b *Broker) betweenBatches(failed error) error {
	timer := time.NewTimer(tellEvery)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-b.serving.Done():
	case <-b.events.last:
		if failed != nil {
			return pauseFor(b.serving, agentPause)
		}
	}
	return b.serving.Err()
}

// tellBatch has the metadata log write a batch down. The same again is no other.
func (b *Broker) tellBatch(number uint64, batch []coordinator.Happening) error {
	ctx, cancel := context.WithTimeout(b.serving, agentCall)
	defer cancel()
	if b.agent == nil {
		return b.coord.AddEvents(ctx, coordinator.Batch{Node: b.cfg.Node, Boot: b.store.Boot(), Number: number, Events: batch})
	}
	req := &nodev1.HappenedRequest{Boot: b.store.Boot(), Batch: number}
	for _, h := range batch {
		req.Events = append(req.Events, &nodev1.HappenedEvent{
			Kind: string(h.Kind), Topic: h.Topic, Partition: h.Partition, Group: h.Group,
			Node: uint64(h.Node), Text: valid(h.Text), Count: h.Count,
		})
	}
	_, err := atMetadata(ctx, b, true, func(r *remote) (*nodev1.HappenedResponse, error) { return r.membership.Happened(ctx, req) })
	return err
}
