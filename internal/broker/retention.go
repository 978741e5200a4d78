package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/partition"
)

// retention sees to it that partitions keep what their topics' limits say, and no
// more. It looks at every partition once a second, which costs nothing where
// nothing is to do, and proposes what is to go; what becomes of it the log
// decides. What it learns of groups that hold is for those who ask.
//
//	Info: oldest, bytes ──beyond a limit?──► TrimPoint ──► Trim ──► the log
//	                                                        │ kept from an earlier offset
//	                                     held, refused ◄────┘ than the limits ask for
type retention struct {
	b     *Broker
	now   steadyClock
	nears chan partition.PartitionID // that are soon as long as they may be
	tells map[groupIn]uint64         // messages lost to a group when last told; the loop's

	mu      sync.Mutex
	held    map[partition.PartitionID]held  // guarded by mu: partitions that keep more than they should
	bound   map[partition.PartitionID]bound // guarded by mu: those that may not grow further than they may hold
	alarmed map[groupIn]bool                // guarded by mu: groups that are near their limit, and that was told; true: at it, too
	stuck   map[partition.PartitionID]stuck // guarded by mu: those whose retention meets something that it cannot do
}

// held is what a partition keeps beyond its topic's limits, for groups that hold.
type held struct {
	groups map[coordinator.GroupID]hold
}

// hold is one group's part.
type hold struct {
	bytes uint64  // from the first message that it needs to the point
	part  float64 // of its limit, the nearer one; 0: it has none
	limit string  // which
}

type groupIn struct {
	partition partition.PartitionID
	group     consumer.GroupID
}

const (
	// retentionEvery is how often the partitions are looked at, and so how far a
	// limit of bytes can be passed: by what is published meanwhile. A hold limit at
	// which publishes are refused is not: see bind.
	retentionEvery = time.Second
	// retentionCalls is how many trims are on their way at once.
	retentionCalls = 16
	// holdAlarm is the part of its limit from which on a group's hold is told.
	holdAlarm = 0.8
)

func newRetention(b *Broker) *retention {
	return &retention{
		b: b, nears: make(chan partition.PartitionID, 64), tells: map[groupIn]uint64{}, held: map[partition.PartitionID]held{},
		bound: map[partition.PartitionID]bound{}, alarmed: map[groupIn]bool{}, stuck: map[partition.PartitionID]stuck{},
	}
}

// run works as long as the node serves.
func (r *retention) run() {
	tick := time.NewTicker(r.b.cfg.RetentionEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.pass(r.b.serving, r.now.read(time.Now()))
		case id := <-r.nears:
			r.near(r.b.serving, id, r.now.read(time.Now()))
		case <-r.b.serving.Done():
			return
		}
	}
}

// pass looks at every partition once.
func (r *retention) pass(ctx context.Context, now partition.Millis) {
	m := r.b.coord.View()
	live := map[partition.PartitionID]bool{}
	var calls errgroup.Group
	calls.SetLimit(retentionCalls)
	var mu sync.Mutex // guards what the calls tell
	for t := range m.Topics() {
		if t.Phase != coordinator.Ready {
			continue
		}
		for i, p := range t.Partitions {
			live[p.ID] = true
			if b := r.b; b.far != nil && !b.far.here(p.ID) {
				continue // its leader does it
			}
			todo, ok := r.todo(t, p.ID, now)
			if !ok {
				r.release(t, p.ID)
				r.unstick(p.ID)
				if !r.binds(t, p.ID) {
					continue
				}
			}
			calls.Go(func() error {
				var losses map[consumer.GroupID]consumer.Kept
				if ok {
					losses = r.trim(ctx, t, i, p.ID, todo)
				}
				r.bind(ctx, t, p.ID)
				mu.Lock()
				defer mu.Unlock()
				r.tell(t, i, p.ID, now, losses)
				return nil
			})
		}
	}
	_ = calls.Wait() // each has logged what went wrong
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.held {
		if !live[id] {
			delete(r.held, id)
		}
	}
	for id := range r.bound {
		if !live[id] {
			delete(r.bound, id)
		}
	}
	for in := range r.alarmed {
		if !live[in.partition] {
			delete(r.alarmed, in)
		}
	}
	for id := range r.stuck {
		if !live[id] {
			delete(r.stuck, id)
		}
	}
	for in := range r.tells {
		if !live[in.partition] {
			delete(r.tells, in)
		}
	}
}

// limits is what one look found to be too much.
type limits struct {
	now    partition.Millis
	before partition.Millis // older messages may go
	bytes  uint64           // and those without which so many bytes stay; 0: any number stays
}

// maxBytesStep is the most bytes that wait to be cut off together.
const maxBytesStep = 64 << 20

// todo tells from what is in memory whether anything of a partition may have to
// go. Neither limit is cut a message at a time: a limit of age is passed by a
// sixty-fourth first, one of bytes by a sixteenth. What the limit says stays.
func (r *retention) todo(t *coordinator.Topic, id partition.PartitionID, now partition.Millis) (limits, bool) {
	info, err := r.b.host.Info(id)
	if err != nil || info.Fault != "" || info.Position.Start == info.Position.End {
		return limits{}, false
	}
	l := limits{now: now}
	some := t.Config.WorkQueue
	if keep := t.Config.Retention; keep > 0 {
		l.before = max(now-keep, 0)
		step := min(keep/64, 60*60*1000)
		some = some || info.Oldest < l.before-step
	}
	if least := uint64(t.Config.RetentionBytes); least > 0 {
		l.bytes = least
		step := min(least/16, maxBytesStep)
		if t.Config.RefuseAtHold {
			step = 0 // what is held is to be known from its first byte on
		}
		some = some || info.Bytes > least+step
	}
	return l, some
}

// trim cuts one partition and finds what is held beyond. It returns what the
// groups of the partition say of it.
func (r *retention) trim(ctx context.Context, t *coordinator.Topic, number int, id partition.PartitionID, l limits) map[consumer.GroupID]consumer.Kept {
	complain := func(err error) {
		if ctx.Err() == nil && reasonOf(err) != "NOT_LEADER" && reasonOf(err) != "QUEUE_FULL" {
			r.stick(ctx, t, number, id, err)
		}
	}
	point, why, err := r.b.host.TrimPoint(id, l.before, l.bytes)
	if err != nil {
		complain(err)
		return nil
	}
	was, err := r.b.host.Position(id)
	if err != nil {
		complain(err)
		return nil
	}
	start, err := r.b.host.Trim(ctx, id, partition.TrimTo{
		To: point, Why: why, Now: l.now, Done: t.Config.WorkQueue, Firm: t.Config.RefuseAtHold,
	})
	if err != nil {
		complain(err)
		if start == was.Start || !errors.As(err, new(*partition.ErrUnreadable)) {
			return nil
		}
	} else {
		r.unstick(id)
	}
	if start == was.Start && start >= point {
		r.release(t, id)
		return nil
	}
	kept, err := r.b.groups.Kept(ctx, id)
	if err != nil {
		complain(err)
		return nil
	}
	if start >= point {
		r.release(t, id)
		return kept
	}
	h := held{groups: map[coordinator.GroupID]hold{}}
	for gid, k := range kept {
		if !k.Holds || k.Needs >= point {
			continue
		}
		bytes, published, err := r.b.host.Between(id, k.Needs, point)
		if err != nil {
			complain(err)
			return kept
		}
		x := hold{bytes: bytes}
		if k.HoldBytes > 0 {
			x.part, x.limit = float64(bytes)/float64(k.HoldBytes), limitBytes(k)
		}
		if k.HoldAge > 0 && published > 0 {
			if part := float64(l.now-published) / float64(k.HoldAge); part > x.part {
				x.part, x.limit = part, "hold_limit of "+quantity.FormatSpan(time.Duration(k.HoldAge)*time.Millisecond)
			}
		}
		h.groups[coordinator.GroupID(gid)] = x
	}
	r.note(t, id, h)
	return kept
}

// note keeps what is held, and opens or shuts the partition for publishes.
func (r *retention) note(t *coordinator.Topic, id partition.PartitionID, h held) {
	r.mu.Lock()
	if len(h.groups) == 0 {
		delete(r.held, id)
	} else {
		r.held[id] = h
	}
	_, bound := r.bound[id]
	for in := range r.alarmed {
		if in.partition == id && !bound && h.groups[coordinator.GroupID(in.group)].part < holdAlarm {
			delete(r.alarmed, in)
		}
	}
	r.mu.Unlock()
	var refused error
	for gid, x := range h.groups {
		name := r.b.groupName(gid)
		if x.part >= holdAlarm {
			r.alarm(t, id, gid, x)
		}
		if x.part >= 1 && t.Config.RefuseAtHold {
			refused = &refusal{reason: "HOLD_LIMIT", retryAfter: 5 * time.Second, text: fmt.Sprintf(
				"%s takes no messages: group %s holds %s beyond the topic's retention, its %s, and the topic loses nothing: let the group catch up, raise its limit, or delete it",
				r.b.partitionName(id), name, size(x.bytes), x.limit)}
		}
	}
	if err := r.b.host.Refuse(id, refused); err != nil {
		return // it was dropped
	}
}

// alarm tells that a group is near its limit, and that it is at it, each once until it is
// not near any more.
func (r *retention) alarm(t *coordinator.Topic, id partition.PartitionID, g coordinator.GroupID, x hold) {
	in := groupIn{id, consumer.GroupID(g)}
	r.mu.Lock()
	at, near := r.alarmed[in]
	r.alarmed[in] = at || x.part >= 1
	r.mu.Unlock()
	if x.part >= 1 && !at {
		r.b.events.note(happening{kind: coordinator.HoldLimit, of: spot{id, true}, group: in.group,
			text: fmt.Sprintf("it holds %s beyond the topic's retention, its %s: what is older goes unread, or publishes are refused where the topic says so", size(x.bytes), x.limit)})
	}
	if near {
		return
	}
	r.b.log.Warn("a group that holds is near its limit", "topic", t.Name, "partition", r.b.partitionName(id), "group", r.b.groupName(g),
		"held", size(x.bytes), "limit", x.limit)
}

// release notes that nothing is held.
func (r *retention) release(t *coordinator.Topic, id partition.PartitionID) {
	r.mu.Lock()
	_, some := r.held[id]
	r.mu.Unlock()
	if some {
		r.note(t, id, held{})
	}
}

// tell logs what groups lost since they were last told of. What was lost before
// this broker started was told then.
func (r *retention) tell(t *coordinator.Topic, number int, id partition.PartitionID, now partition.Millis, kept map[consumer.GroupID]consumer.Kept) {
	for gid, k := range kept {
		in := groupIn{id, gid}
		was, known := r.tells[in]
		r.tells[in] = k.Expired
		if k.Expired == was || len(k.Losses) == 0 {
			continue
		}
		last := k.Losses[len(k.Losses)-1]
		if !known && last.Until < now {
			continue
		}
		attrs := []any{
			"topic", t.Name, "partition", number, "group", r.b.groupName(coordinator.GroupID(gid)), "cause", last.Cause,
			"lastOffset", last.Last, "inAll", k.Expired,
		}
		if known {
			attrs = append(attrs, "messages", k.Expired-was)
		}
		r.b.log.Log(context.Background(), slog.LevelWarn, "retention took messages that a group had not settled", attrs...)
	}
}

func (b *Broker) groupName(id coordinator.GroupID) string {
	if g, ok := b.coord.View().GroupByID(id); ok {
		return g.Name
	}
	return "(deleted)"
}

// of is what a group holds in a partition.
func (r *retention) of(id partition.PartitionID, g coordinator.GroupID) hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held[id].groups[g]
}

// holder is the group that holds most in a partition; 0: none.
func (r *retention) holder(id partition.PartitionID) (most coordinator.GroupID, bytes uint64) {
	r.mu.Lock()
	groups := r.held[id].groups
	r.mu.Unlock()
	for gid, x := range groups {
		if x.bytes > bytes || x.bytes == bytes && (most == 0 || gid < most) {
			most, bytes = gid, x.bytes
		}
	}
	return most, bytes
}

// steadyClock is the wall clock, but for leaps forward: a clock that is wrong for
// a moment must not make everything old. It follows the wall clock by an eighth
// more than the time that passed, and at once when that goes back, which removes
// nothing. What the clock says when the broker starts it has to believe.
type steadyClock struct {
	last time.Time
	at   partition.Millis
}

func (c *steadyClock) read(now time.Time) partition.Millis {
	wall := partition.Millis(now.UnixMilli())
	if c.last.IsZero() {
		c.last, c.at = now, wall
		return wall
	}
	passed := partition.Millis(now.Sub(c.last).Milliseconds()) // by the monotonic clock
	c.last = now
	c.at = min(wall, c.at+passed+passed/8)
	return c.at
}
