package broker

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// A topic that refuses publishes at a hold limit cannot do so from one look at
// its partitions to the next: at full speed, a second is many times the limit.
// So each look tells the host how far the log may grow, and a publish is refused
// by its bytes:
//
//	the group needs this          the topic keeps so much
//	      │◄── hold_limit_bytes ──►│◄── retention_bytes ──►│
//	──────┴────────────────────────┴───────────────────────┴── here publishes are refused
//
// What groups settle moves it on, with the next look, which the first publish
// near the bound asks for, too. A limit of age moves the point from where on a
// group holds without any publish: it is looked at, as before.

// nearEvery is how often one partition is looked at because publishes ask for it.
const nearEvery = 50 * time.Millisecond

// bound is what was told of a partition.
type bound struct {
	end   partition.Offset // the log's, at that look
	asked time.Time        // when a publish last had it looked at
}

// binds tells whether a partition has to be bound anew: something was published
// since, or it is not to be bound any more.
func (r *retention) binds(t *coordinator.Topic, id partition.PartitionID) bool {
	r.mu.Lock()
	was, is := r.bound[id]
	r.mu.Unlock()
	if !t.Config.RefuseAtHold || t.Config.RetentionBytes == 0 {
		return is
	}
	pos, err := r.b.host.Position(id)
	return err == nil && (!is || pos.End != was.end)
}

// bind tells the host how far a partition's log may grow: until the first group
// that holds is at its limit.
func (r *retention) bind(ctx context.Context, t *coordinator.Topic, id partition.PartitionID) {
	r.mu.Lock()
	was, is := r.bound[id]
	r.mu.Unlock()
	keeps := uint64(t.Config.RetentionBytes)
	if !t.Config.RefuseAtHold || keeps == 0 {
		if is && r.b.host.BoundTo(id, nil) == nil {
			r.mu.Lock()
			delete(r.bound, id)
			r.mu.Unlock()
		}
		return
	}
	kept, err := r.b.groups.Kept(ctx, id)
	if err != nil {
		return // it stopped, or the node stops; a bound that there is goes on
	}
	info, err := r.b.host.Info(id)
	if err != nil {
		return
	}
	pos := info.Position
	var first *partition.Bound
	var nearest coordinator.GroupID
	var h hold      // of the nearest, with what waits to be stored
	var last uint64 // bytes of the log up to the bound, from its start on
	for gid, k := range kept {
		if !k.Holds || k.HoldBytes == 0 {
			continue
		}
		from := max(k.Needs, pos.Start)
		before, _, err := r.b.host.Between(id, pos.Start, from)
		if err != nil {
			return
		}
		if end := before + keeps + k.HoldBytes; first == nil || end < last {
			first, last = r.boundOf(t, id, gid, k, from), end
			used := info.Bytes + uint64(max(info.Queued, 0))
			nearest, h = coordinator.GroupID(gid), hold{bytes: used - min(before+keeps, used), limit: limitBytes(k)}
			h.part = float64(h.bytes) / float64(k.HoldBytes)
		}
	}
	if err := r.b.host.BoundTo(id, first); err != nil {
		return // it was dropped: nothing is left to bind
	}
	r.mu.Lock()
	r.bound[id] = bound{end: pos.End, asked: was.asked}
	r.mu.Unlock()
	if first != nil {
		r.nearest(t, id, nearest, h)
	}
}

func limitBytes(k consumer.Kept) string { return "hold_limit_bytes of " + size(k.HoldBytes) }

func (r *retention) boundOf(t *coordinator.Topic, id partition.PartitionID, gid consumer.GroupID, k consumer.Kept, from partition.Offset) *partition.Bound {
	keeps := uint64(t.Config.RetentionBytes)
	return &partition.Bound{
		From: from, Bytes: keeps + k.HoldBytes, Spare: uint64(float64(k.HoldBytes) * (1 - holdAlarm)),
		Why: &refusal{reason: "HOLD_LIMIT", retryAfter: time.Second, text: fmt.Sprintf(
			"%s takes no messages: with them group %s would hold more beyond the topic's retention of %s than its hold_limit_bytes of %s, and the topic loses nothing: let the group catch up, raise its limit, or delete it",
			r.b.partitionName(id), r.b.groupName(coordinator.GroupID(gid)), size(keeps), size(k.HoldBytes))},
		Near: func() {
			select {
			case r.nears <- id:
			default: // many are near theirs: the next look is for all
			}
		},
	}
}

// near looks at a partition that is soon as long as it may be: what its groups
// settled moves the bound on, and the alarm comes before the limit.
func (r *retention) near(ctx context.Context, id partition.PartitionID, now partition.Millis) {
	p, ok := r.b.coord.View().Place(id)
	if !ok || p.Topic.Phase != coordinator.Ready {
		return
	}
	r.mu.Lock()
	was := r.bound[id]
	soon := time.Since(was.asked) < nearEvery
	if !soon {
		was.asked = time.Now()
		r.bound[id] = was
	}
	r.mu.Unlock()
	if soon {
		return
	}
	if l, ok := r.todo(p.Topic, id, now); ok {
		r.tell(p.Topic, p.Number, id, now, r.trim(ctx, p.Topic, p.Number, id, l))
	}
	r.bind(ctx, p.Topic, id)
}

// nearest notes what the group nearest to its limit holds as publishes are
// refused by it: what is held of whole batches lags behind that.
func (r *retention) nearest(t *coordinator.Topic, id partition.PartitionID, g coordinator.GroupID, h hold) {
	r.mu.Lock()
	was := r.held[id]
	if h.part >= holdAlarm && h.part > was.groups[g].part {
		groups := maps.Clone(was.groups)
		if groups == nil {
			groups = map[coordinator.GroupID]hold{}
		}
		groups[g] = h
		was.groups = groups
		r.held[id] = was
	}
	for in := range r.alarmed {
		if in.partition == id && h.part < holdAlarm {
			delete(r.alarmed, in)
		}
	}
	r.mu.Unlock()
	if h.part >= holdAlarm {
		r.alarm(t, id, g, h)
	}
}
