package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// stuck is what retention cannot do on a partition. It is tried again each second
// and told once.
type stuck struct {
	why     string
	damaged *partition.ErrUnreadable     // a dead letter that cannot be copied
	groups  map[coordinator.GroupID]bool // whose dead letter it is
}

// stick notes what retention could not do.
func (r *retention) stick(ctx context.Context, t *coordinator.Topic, number int, id partition.PartitionID, err error) {
	x := stuck{why: err.Error(), groups: map[coordinator.GroupID]bool{}}
	r.mu.Lock()
	was := r.stuck[id]
	r.mu.Unlock()
	attrs := []any{"topic", t.Name, "partition", number, "err", err}
	if errors.As(err, &x.damaged) {
		var names []string
		for g := range r.b.coord.View().Groups() {
			if g.Topic != t.ID {
				continue
			}
			if dead, bad := r.b.groups.IsDead(ctx, id, consumer.GroupID(g.ID), x.damaged.Offset); bad == nil && dead {
				x.groups[g.ID] = true
				names = append(names, g.Name)
			}
		}
		attrs = append(attrs, "offset", uint64(x.damaged.Offset), "deadLetterOf", names)
	}
	r.mu.Lock()
	r.stuck[id] = x
	r.mu.Unlock()
	if was.why != x.why {
		r.b.log.Warn("retention could not do its work on a partition", attrs...)
	}
}

// unstick notes that it could.
func (r *retention) unstick(id partition.PartitionID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.stuck, id)
}

// deadDamaged names a group's dead letter that retention cannot copy.
func (r *retention) deadDamaged(id partition.PartitionID, g coordinator.GroupID) []consumer.Stall {
	r.mu.Lock()
	x := r.stuck[id]
	r.mu.Unlock()
	if !x.groups[g] {
		return nil
	}
	return []consumer.Stall{{
		Reason: "DEAD_DAMAGED", Offset: x.damaged.Offset,
		Text: fmt.Sprintf("the dead letter at offset %d cannot be read (%s), so retention can neither copy it nor remove what comes after it: discard it, or restore the data folder from a copy",
			x.damaged.Offset, x.damaged.Why()),
	}}
}

// stall is what a group has to be told of retention, before its own stalls: a dead
// letter that cannot be copied, a hold that is near its limit.
func (r *retention) stall(id partition.PartitionID, g coordinator.GroupID, s consumer.GroupState) []consumer.Stall {
	s.Stalls = append(r.deadDamaged(id, g), s.Stalls...)
	x := r.of(id, g)
	if x.part < holdAlarm {
		return s.Stalls
	}
	y := consumer.Stall{
		Reason: "HOLD_ALARM", Offset: s.Kept.Needs, Waiting: s.Counts.Lag(),
		Text: fmt.Sprintf("the group holds %s beyond the topic's retention, %.0f %% of its %s: at the limit it loses the oldest, or publishes are refused; let it catch up, or raise the limit",
			size(x.bytes), 100*x.part, x.limit),
	}
	if x.part >= 1 {
		y.Reason = "HOLD_LIMIT"
		y.Text = fmt.Sprintf("the group holds %s beyond the topic's retention, its %s: let it catch up, raise the limit, or delete it",
			size(x.bytes), x.limit)
	}
	return slices.Insert(s.Stalls, 0, y)
}
