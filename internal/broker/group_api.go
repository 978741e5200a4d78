package broker

import (
	"context"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// groupAPI is strandmq.v1.GroupService.
type groupAPI struct{ b *Broker }

// CreateGroup creates a group in every partition of its topic.
func (a groupAPI) CreateGroup(ctx context.Context, req *strandmqv1.CreateGroupRequest) (*strandmqv1.CreateGroupResponse, error) {
	t, err := a.b.topic(req.GetTopic())
	if err != nil {
		return nil, err
	}
	if err := names.Group(req.GetGroup()); err != nil {
		return nil, inField(err, "group")
	}
	if err := checkPosition(req.GetStart(), "start"); err != nil {
		return nil, err
	}
	// A group that is there does not start any more.
	if _, _, err := a.b.group(req.GetTopic(), req.GetGroup()); err != nil && reasonOf(err) == "UNKNOWN_GROUP" {
		if err := a.b.reachable(ctx, t, nil, req.GetStart(), "start"); err != nil {
			return nil, err
		}
	}
	g, existed, left, err := a.b.createGroup(ctx, req.GetTopic(), req.GetGroup(), req.GetPolicy(), req.GetStart())
	if err != nil {
		return nil, err
	}
	return &strandmqv1.CreateGroupResponse{Group: groupProto(req.GetTopic(), g), Existed: existed, LeftOut: left}, nil
}

// ListGroups lists groups with their counts.
func (a groupAPI) ListGroups(ctx context.Context, req *strandmqv1.ListGroupsRequest) (*strandmqv1.ListGroupsResponse, error) {
	var list []*coordinator.Topic
	if req.GetTopic() != "" {
		t, err := a.b.topic(req.GetTopic())
		if err != nil {
			return nil, err
		}
		list = append(list, t.Topic)
	} else {
		for t := range a.b.coord.View().Topics() {
			if t.Phase == coordinator.Ready {
				list = append(list, t)
			}
		}
	}
	ctx, held := maybeBehind(ctx)
	res := &strandmqv1.ListGroupsResponse{}
	for _, t := range list {
		for g := range t.Groups() {
			if g.Phase != coordinator.Ready {
				continue
			}
			line := &strandmqv1.GroupSummary{Group: groupProto(t.Name, g), Members: uint32(len(g.Members))}
			// What cannot be asked leaves the counts out: a wrong sum is worse
			// than none.
			if states, r, err := a.b.statesOfRest(ctx, t, g); err == nil {
				line.Counts, line.LeftOut = sum(states, r), r.out
				line.OldestPublished = timestampOrNil(int64(oldestOf(states)))
			} else if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			res.Groups = append(res.Groups, line)
		}
	}
	res.Behind = held.words(a.b)
	return res, nil
}

// DescribeGroup gives all that is known of a group.
func (a groupAPI) DescribeGroup(ctx context.Context, req *strandmqv1.DescribeGroupRequest) (*strandmqv1.DescribeGroupResponse, error) {
	t, g, err := a.b.group(req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	ctx, held := maybeBehind(ctx)
	if len(a.b.missing(partition.Metadata)) > 0 {
		held.note(partition.Metadata)
	}
	states, r, err := a.b.statesOfRest(ctx, t.Topic, g)
	if err != nil {
		return nil, err
	}
	res := &strandmqv1.DescribeGroupResponse{Group: groupProto(t.Name, g), Counts: sum(states, r), LeftOut: r.out, Behind: held.words(a.b)}
	res.Assignment = &strandmqv1.GroupAssignment{Generation: g.Generation, Changed: timestampOrNil(int64(g.Changed)), Reason: g.Why}
	holds := map[string]uint64{}
	for i, s := range states {
		out := &strandmqv1.GroupPartition{
			Partition: uint32(i),
		}
		if !r.has(i) {
			out.OldestPublished = timestampOrNil(int64(s.oldestAt))
			out.LogIndex, out.Floor, out.Oldest, out.Scanned = new(uint64(s.Position.Index)), new(uint64(s.Floor)), new(uint64(s.Oldest)), new(uint64(s.Scanned))
			out.End, out.Start, out.Counts, out.ResetEpoch = new(uint64(s.Position.End)), new(uint64(s.Start)), countsProto(s.Counts), new(s.Epoch)
			out.Circuit = &strandmqv1.GroupCircuit{Open: s.Circuit.Open, Opened: s.Circuit.Opened, Until: timestampOrNil(int64(s.Circuit.Until))}
			out.HeldBytes = new(s.held.bytes)
			out.CopiedDead, out.CopiedDeadBytes = new(s.Kept.Copies), new(s.Kept.CopyBytes)
		}
		for _, l := range s.Kept.Losses {
			out.Losses = append(out.Losses, &strandmqv1.LossRecord{
				First: uint64(l.First), Last: uint64(l.Last), Count: l.Count, Cause: l.Cause,
				From: timestampOrNil(int64(l.From)), Until: timestampOrNil(int64(l.Until)),
			})
		}
		for _, st := range s.Stalls {
			line := &strandmqv1.Stall{
				Reason: st.Reason, Offset: uint64(st.Offset), Until: timestampOrNil(int64(st.Until)),
				Waiting: st.Waiting, Attempts: st.Attempts, Member: st.Member, Text: valid(st.Text),
			}
			if st.Reason == "NO_MEMBER" && line.Member == "" {
				line.Member = assigned(g, uint32(i), st)
			}
			if st.HasKey {
				line.Key = plain.Key(st.Key)
			}
			out.Stalls = append(out.Stalls, line)
		}
		for _, h := range s.Members {
			holds[h.Member] += h.InFlight
		}
		res.Partitions = append(res.Partitions, out)
	}
	for _, m := range g.Members {
		res.Members = append(res.Members, &strandmqv1.Member{
			Name: m.Name, Assignment: assignment(m), Joined: timestampOrNil(int64(m.Joined)),
			LastSeen: timestampOrNil(int64(a.b.coord.LastHeard(m.Session))), InFlight: holds[m.Name], Away: m.Away, Draining: m.Draining,
		})
	}
	return res, nil
}

// assigned is the member whose share of a partition nobody asks for, if there is
// one: the log knows only those that asked.
func assigned(g *coordinator.Group, number uint32, st consumer.Stall) string {
	name := ""
	for _, m := range g.Members {
		for _, s := range m.Shares {
			switch {
			case s.Partition != number:
			case st.Shares == 0 && name != "":
				return "" // several
			case st.Shares == 0 || s.Share == st.Share && max(1, s.Shares) == st.Shares:
				name = m.Name
			}
		}
	}
	return name
}

// AlterGroup changes a policy.
func (a groupAPI) AlterGroup(ctx context.Context, req *strandmqv1.AlterGroupRequest) (*strandmqv1.AlterGroupResponse, error) {
	t, _, err := a.b.group(req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	g, err := a.b.coord.AlterGroup(ctx, req.GetTopic(), req.GetGroup(), func(policy *strandmqv1.GroupPolicy) error {
		return withPolicy(policy, req.GetPolicy())
	})
	if err != nil {
		return nil, err
	}
	g, left, err := a.b.logged(ctx, t, g)
	if err != nil {
		return nil, err
	}
	return &strandmqv1.AlterGroupResponse{Group: groupProto(t.Name, g), LeftOut: left}, nil
}

// ResetGroup moves a group.
func (a groupAPI) ResetGroup(ctx context.Context, req *strandmqv1.ResetGroupRequest) (*strandmqv1.ResetGroupResponse, error) {
	t, g, err := a.b.group(req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	if req.GetTo().GetAt() == nil {
		return nil, refuse("BAD_VALUE", "to", "say where to: earliest, latest, offset, from_end or time")
	}
	if err := checkPosition(req.GetTo(), "to"); err != nil {
		return nil, err
	}
	if req.Partition != nil {
		if _, err := t.number(req.GetPartition()); err != nil {
			return nil, err
		}
	}
	// Before anything moves: all partitions do, or none.
	if err := a.b.reachable(ctx, t, req.Partition, req.GetTo(), "to"); err != nil {
		return nil, err
	}
	moved := make([]*strandmqv1.ResetPartition, len(t.Partitions))
	gid := consumer.GroupID(g.ID)
	r := &leftOut{b: a.b}
	err = r.each(ctx, t.Topic, func(ctx context.Context, i int, id partition.PartitionID) error {
		if req.Partition != nil && req.GetPartition() != uint32(i) {
			return nil
		}
		to, err := a.b.resolve(ctx, id, req.GetTo())
		if err != nil {
			return err
		}
		var from partition.Offset
		if req.GetDryRun() {
			s, err := a.b.parts.Stats(ctx, id, gid)
			if err != nil {
				return err
			}
			from = s.Oldest
		} else if from, err = a.b.parts.Reset(ctx, id, gid, to); err != nil {
			return err
		}
		moved[i] = &strandmqv1.ResetPartition{Partition: uint32(i), From: uint64(from), To: uint64(to)}
		return nil
	})
	if err != nil {
		return nil, err
	}
	res := &strandmqv1.ResetGroupResponse{LeftOut: r.out}
	for _, m := range moved {
		if m != nil {
			res.Partitions = append(res.Partitions, m)
		}
	}
	if len(res.GetPartitions()) == 0 {
		return nil, r.refusal()
	}
	return res, nil
}

// PauseGroup stops hand-outs.
func (a groupAPI) PauseGroup(ctx context.Context, req *strandmqv1.PauseGroupRequest) (*strandmqv1.PauseGroupResponse, error) {
	g, left, err := a.pause(ctx, req.GetTopic(), req.GetGroup(), true)
	if err != nil {
		return nil, err
	}
	return &strandmqv1.PauseGroupResponse{Group: g, LeftOut: left}, nil
}

// ResumeGroup starts them again.
func (a groupAPI) ResumeGroup(ctx context.Context, req *strandmqv1.ResumeGroupRequest) (*strandmqv1.ResumeGroupResponse, error) {
	g, left, err := a.pause(ctx, req.GetTopic(), req.GetGroup(), false)
	if err != nil {
		return nil, err
	}
	return &strandmqv1.ResumeGroupResponse{Group: g, LeftOut: left}, nil
}

func (a groupAPI) pause(ctx context.Context, topic, group string, paused bool) (*strandmqv1.Group, []*strandmqv1.LeftOut, error) {
	t, _, err := a.b.group(topic, group)
	if err != nil {
		return nil, nil, err
	}
	g, err := a.b.coord.SetPaused(ctx, topic, group, paused)
	if err != nil {
		return nil, nil, err
	}
	g, left, err := a.b.logged(ctx, t, g)
	if err != nil {
		return nil, nil, err
	}
	return groupProto(topic, g), left, nil
}

// DeleteGroup deletes a group and its dead letters.
func (a groupAPI) DeleteGroup(ctx context.Context, req *strandmqv1.DeleteGroupRequest) (*strandmqv1.DeleteGroupResponse, error) {
	t, err := a.b.topic(req.GetTopic())
	if err != nil {
		return nil, err
	}
	if err := names.Group(req.GetGroup()); err != nil {
		return nil, inField(err, "group")
	}
	g, err := a.b.coord.DeleteGroup(ctx, req.GetTopic(), req.GetGroup(), req.GetConfirm())
	if err != nil {
		return nil, err
	}
	left, err := a.b.removeGroup(ctx, t.Topic, g)
	if err != nil {
		return nil, err
	}
	a.b.metrics.forgetGroup(t.Name, g.Name)
	return &strandmqv1.DeleteGroupResponse{LeftOut: left}, nil
}

// oldestOf is when the oldest message was published that a group has neither settled nor
// given up; 0: there is none.
func oldestOf(states []groupState) (oldest partition.Millis) {
	for _, s := range states {
		if s.oldestAt != 0 && (oldest == 0 || s.oldestAt < oldest) {
			oldest = s.oldestAt
		}
	}
	return oldest
}

// sum is nil when all that it would be of is left out.
func sum(states []groupState, r *leftOut) *strandmqv1.GroupCounts {
	if len(r.out) == len(states) {
		return nil
	}
	out := &strandmqv1.GroupCounts{}
	for _, s := range states {
		c := countsProto(s.Counts)
		out.Ready += c.GetReady()
		out.Blocked += c.GetBlocked()
		out.InFlight += c.GetInFlight()
		out.BackingOff += c.GetBackingOff()
		out.Parked += c.GetParked()
		out.Dead += c.GetDead()
		out.Acked += c.GetAcked()
		out.Skipped += c.GetSkipped()
		out.NotScanned += c.GetNotScanned()
		out.Lag += c.GetLag()
		out.HandedOut += c.GetHandedOut()
		out.Retried += c.GetRetried()
		out.Expired += c.GetExpired()
		out.Nacked += c.GetNacked()
		out.Rejected += c.GetRejected()
		out.Lapsed += c.GetLapsed()
		out.SessionsLost += c.GetSessionsLost()
		out.Stale += c.GetStale()
		out.Late += c.GetLate()
		out.HandledMs += c.GetHandledMs()
		out.LateMs += c.GetLateMs()
	}
	return out
}

func countsProto(c consumer.Counts) *strandmqv1.GroupCounts {
	return &strandmqv1.GroupCounts{
		Ready: c.Ready, Blocked: c.Blocked, InFlight: c.InFlight, BackingOff: c.BackingOff, Parked: c.Parked, Dead: c.Dead,
		Acked: c.Acked, Skipped: c.Skipped, NotScanned: c.NotScanned, Lag: c.Lag(), HandedOut: c.HandedOut, Retried: c.Retried, Expired: c.Expired,
		Nacked: c.Nacked, Rejected: c.Rejected, Lapsed: c.Lapsed, SessionsLost: c.Lost, Stale: c.Stale, Late: c.Late, HandledMs: c.HandledMs, LateMs: c.LateMs,
	}
}

func groupProto(topic string, g *coordinator.Group) *strandmqv1.Group {
	return &strandmqv1.Group{Topic: topic, Name: g.Name, Policy: g.Policy, Paused: g.Paused, Created: timestampOrNil(int64(g.Created))}
}
