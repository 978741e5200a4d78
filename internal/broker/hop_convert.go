package broker

import (
	"errors"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// What nodes say to each other, to and from the packages' own values.

func positionTo(p partition.Position) *nodev1.Position {
	return &nodev1.Position{Index: uint64(p.Index), Start: uint64(p.Start), End: uint64(p.End)}
}

func positionFrom(p *nodev1.Position) partition.Position {
	return partition.Position{Index: partition.Index(p.GetIndex()), Start: partition.Offset(p.GetStart()), End: partition.Offset(p.GetEnd())}
}

func infoTo(i partitionInfo) *nodev1.InfoResponse {
	return &nodev1.InfoResponse{
		Position: positionTo(i.Position), Bytes: i.Bytes, OldestMs: int64(i.Oldest), Duplicates: i.Duplicates, Leader: uint64(i.Leader), Term: i.Term,
		Fault: valid(i.Fault), FirstIndex: uint64(i.FirstIndex), LastIndex: uint64(i.LastIndex), Checkpoint: uint64(i.Checkpoint), Queued: i.Queued,
		HeldBy: uint64(i.heldBy), HeldBytes: i.heldBytes, Newer: i.Fault != "" && !i.Damaged,
	}
}

func infoFrom(i *nodev1.InfoResponse) partitionInfo {
	return partitionInfo{
		Info: partition.Info{
			Position: positionFrom(i.GetPosition()), Bytes: i.GetBytes(), Oldest: partition.Millis(i.GetOldestMs()), Duplicates: i.GetDuplicates(),
			Leader: partition.NodeID(i.GetLeader()), Term: i.GetTerm(), Fault: i.GetFault(), Damaged: i.GetFault() != "" && !i.GetNewer(), FirstIndex: partition.Index(i.GetFirstIndex()),
			LastIndex: partition.Index(i.GetLastIndex()), Checkpoint: partition.Index(i.GetCheckpoint()), Queued: i.GetQueued(),
		},
		heldBy: coordinator.GroupID(i.GetHeldBy()), heldBytes: i.GetHeldBytes(),
	}
}

func offsetsTo(os []partition.Offset) []uint64 {
	out := make([]uint64, len(os))
	for i, o := range os {
		out[i] = uint64(o)
	}
	return out
}

func offsetsFrom(os []uint64) []partition.Offset {
	out := make([]partition.Offset, len(os))
	for i, o := range os {
		out[i] = partition.Offset(o)
	}
	return out
}

// messageTo packs a message. One that cannot be read has an empty record.
func messageTo(m partition.Message) *nodev1.Message {
	return &nodev1.Message{
		Offset: uint64(m.Offset), PublishMs: int64(m.PublishTime),
		Record: record.Append(nil, record.Meta{PublishTime: int64(m.PublishTime)}, []record.Record{m.Record}),
	}
}

func messageFrom(m *nodev1.Message) (partition.Message, error) {
	out := partition.Message{Offset: partition.Offset(m.GetOffset()), PublishTime: partition.Millis(m.GetPublishMs())}
	raws, err := rawsOf([][]byte{m.GetRecord()}, 1)
	if err == nil {
		out.Record = raws[0].Record()
	}
	return out, err
}

var errNotWhole = errors.New("another node's answer is not whole")

// rawsOf are the records of batches, which must be so many.
func rawsOf(batches [][]byte, n int) ([]record.Raw, error) {
	out := make([]record.Raw, 0, n)
	for _, b := range batches {
		parsed, rest, err := record.Parse(b)
		if err != nil {
			return nil, err
		}
		if len(rest) > 0 {
			return nil, errNotWhole
		}
		parsed.Each(func(_ int, r record.Raw) bool {
			out = append(out, r)
			return true
		})
	}
	if len(out) != n {
		return nil, errNotWhole
	}
	return out, nil
}

func lifeTo(l life) *nodev1.LifeResponse {
	return &nodev1.LifeResponse{
		Message: messageTo(l.message), Publishes: lifeEvents(l.publishes), Truncated: l.truncated,
		Events: lifeEvents(l.groups.Events), EventsTruncated: l.groups.Cut > 0, Cut: l.cut + l.groups.Cut,
		States: lifeStates(l.groups.States),
	}
}

func lifeEvents(list []consumer.TraceEvent) (out []*nodev1.LifeEvent) {
	for _, e := range list {
		out = append(out, &nodev1.LifeEvent{
			TimeMs: int64(e.Time), Index: uint64(e.Index), Term: e.Term, Node: uint64(e.Node), Group: uint64(e.Group), What: e.What,
			Member: e.Member, Attempt: e.Attempt, Detail: valid(e.Detail), Reason: valid(e.Reason),
			UntilMs: int64(e.Until), NextAttemptMs: int64(e.NextAttempt), Uncharged: e.Uncharged, Settled: e.Settled, Again: e.Again,
		})
	}
	return out
}

func lifeStates(list []consumer.MessageInGroup) (out []*nodev1.LifeState) {
	for _, s := range list {
		out = append(out, &nodev1.LifeState{Group: uint64(s.Group), Name: s.Name, State: s.State, Attempts: s.Attempts, Detail: valid(s.Detail)})
	}
	return out
}

func lifeFrom(r *nodev1.LifeResponse) (life, error) {
	m, err := messageFrom(r.GetMessage())
	if err != nil {
		return life{}, err
	}
	out := life{
		message: m, publishes: traceEvents(r.GetPublishes()), truncated: r.GetTruncated() || r.GetEventsTruncated(), cut: r.GetCut(),
		groups: consumer.Life{Events: traceEvents(r.GetEvents())},
	}
	for _, s := range r.GetStates() {
		out.groups.States = append(out.groups.States, consumer.MessageInGroup{
			Group: consumer.GroupID(s.GetGroup()), Name: s.GetName(), State: s.GetState(), Attempts: s.GetAttempts(), Detail: s.GetDetail(),
		})
	}
	return out, nil
}

func traceEvents(list []*nodev1.LifeEvent) (out []consumer.TraceEvent) {
	for _, e := range list {
		out = append(out, consumer.TraceEvent{
			Time: partition.Millis(e.GetTimeMs()), Index: partition.Index(e.GetIndex()), Term: e.GetTerm(), Node: partition.NodeID(e.GetNode()),
			Group: consumer.GroupID(e.GetGroup()), What: e.GetWhat(), Member: e.GetMember(), Attempt: e.GetAttempt(), Detail: e.GetDetail(),
			Reason: e.GetReason(), Until: partition.Millis(e.GetUntilMs()), NextAttempt: partition.Millis(e.GetNextAttemptMs()),
			Uncharged: e.GetUncharged(), Settled: e.GetSettled(), Again: e.GetAgain(),
		})
	}
	return out
}

func groupTo(g consumer.GroupSpec) *nodev1.Group {
	return &nodev1.Group{Id: uint64(g.ID), Name: g.Name, Policy: policyProto(g.Policy), Start: uint64(g.Start), Paused: g.Paused}
}

func groupFrom(g *nodev1.Group) consumer.GroupSpec {
	return consumer.GroupSpec{ID: consumer.GroupID(g.GetId()), Name: g.GetName(), Policy: policyOf(g.GetPolicy()), Start: partition.Offset(g.GetStart()), Paused: g.GetPaused()}
}

// countsOf lists the counts in their one order on the wire. A count that an older
// node does not send is 0.
func countsOf(c *consumer.Counts) []*uint64 {
	return []*uint64{
		&c.Ready, &c.Blocked, &c.InFlight, &c.BackingOff, &c.Parked, &c.Dead, &c.Acked, &c.Skipped, &c.NotScanned,
		&c.Expired, &c.Replaying, &c.HandedOut, &c.Retried, &c.OnDisk,
		&c.Nacked, &c.Rejected, &c.Lapsed, &c.Lost, &c.Stale, &c.Late, &c.HandledMs, &c.LateMs,
	}
}

func stateTo(s groupState) *nodev1.GroupState {
	out := &nodev1.GroupState{
		Name: s.Name, Policy: policyProto(s.Policy), Paused: s.Paused, Position: positionTo(s.Position), Start: uint64(s.Start), Floor: uint64(s.Floor),
		Oldest: uint64(s.Oldest), Scanned: uint64(s.Scanned), Epoch: s.Epoch,
		CircuitOpen: s.Circuit.Open, CircuitOpened: s.Circuit.Opened, CircuitUntilMs: int64(s.Circuit.Until),
		HeldBytes: s.held.bytes, HeldPart: s.held.part, HeldLimit: s.held.limit, OldestMs: int64(s.oldestAt),
		Kept: &nodev1.Kept{
			Needs: uint64(s.Kept.Needs), Copies: s.Kept.Copies, CopyBytes: s.Kept.CopyBytes, Expired: s.Kept.Expired,
			Holds: s.Kept.Holds, HoldBytes: s.Kept.HoldBytes, HoldAgeMs: int64(s.Kept.HoldAge),
		},
	}
	for _, n := range countsOf(&s.Counts) {
		out.Counts = append(out.Counts, *n)
	}
	for _, l := range s.Kept.Losses {
		out.Kept.Losses = append(out.Kept.Losses, &nodev1.Loss{First: uint64(l.First), Last: uint64(l.Last), Count: l.Count, Cause: l.Cause, FromMs: int64(l.From), UntilMs: int64(l.Until)})
	}
	for _, x := range s.Stalls {
		out.Stalls = append(out.Stalls, &nodev1.Stall{
			Reason: x.Reason, OfKey: x.OfKey, KeyHash: x.KeyHash, HasKey: x.HasKey, Key: x.Key, Offset: uint64(x.Offset), UntilMs: int64(x.Until),
			Waiting: x.Waiting, Attempts: x.Attempts, Member: x.Member, Share: x.Share, Shares: x.Shares, Text: valid(x.Text),
		})
	}
	for _, m := range s.Members {
		out.Members = append(out.Members, &nodev1.MemberHold{Member: m.Member, InFlight: m.InFlight})
	}
	return out
}

func stateFrom(s *nodev1.GroupState) groupState {
	k := s.GetKept()
	out := groupState{oldestAt: partition.Millis(s.GetOldestMs()), held: hold{bytes: s.GetHeldBytes(), part: s.GetHeldPart(), limit: s.GetHeldLimit()}, GroupState: consumer.GroupState{
		Name: s.GetName(), Policy: policyOf(s.GetPolicy()), Paused: s.GetPaused(), Position: positionFrom(s.GetPosition()), Start: partition.Offset(s.GetStart()),
		Floor: partition.Offset(s.GetFloor()), Oldest: partition.Offset(s.GetOldest()), Scanned: partition.Offset(s.GetScanned()), Epoch: s.GetEpoch(),
		Circuit: consumer.Circuit{Open: s.GetCircuitOpen(), Opened: s.GetCircuitOpened(), Until: partition.Millis(s.GetCircuitUntilMs())},
		Kept: consumer.Kept{
			Needs: partition.Offset(k.GetNeeds()), Copies: k.GetCopies(), CopyBytes: k.GetCopyBytes(), Expired: k.GetExpired(),
			Holds: k.GetHolds(), HoldBytes: k.GetHoldBytes(), HoldAge: partition.Millis(k.GetHoldAgeMs()),
		},
	}}
	for i, n := range countsOf(&out.Counts) {
		if i < len(s.GetCounts()) {
			*n = s.GetCounts()[i]
		}
	}
	for _, l := range k.GetLosses() {
		out.Kept.Losses = append(out.Kept.Losses, consumer.Loss{
			First: partition.Offset(l.GetFirst()), Last: partition.Offset(l.GetLast()), Count: l.GetCount(), Cause: l.GetCause(),
			From: partition.Millis(l.GetFromMs()), Until: partition.Millis(l.GetUntilMs()),
		})
	}
	for _, x := range s.GetStalls() {
		out.Stalls = append(out.Stalls, consumer.Stall{
			Reason: x.GetReason(), OfKey: x.GetOfKey(), KeyHash: x.GetKeyHash(), HasKey: x.GetHasKey(), Key: x.GetKey(), Offset: partition.Offset(x.GetOffset()),
			Until: partition.Millis(x.GetUntilMs()), Waiting: x.GetWaiting(), Attempts: x.GetAttempts(), Member: x.GetMember(),
			Share: x.GetShare(), Shares: x.GetShares(), Text: x.GetText(),
		})
	}
	for _, m := range s.GetMembers() {
		out.Members = append(out.Members, consumer.MemberHold{Member: m.GetMember(), InFlight: m.GetInFlight()})
	}
	return out
}

func deadTo(d consumer.DeadLetter) *nodev1.DeadLetter {
	out := &nodev1.DeadLetter{
		Message: messageTo(d.Message), KeyHash: d.KeyHash, Attempts: d.Attempts, FirstSeenMs: int64(d.FirstSeen), DeadSinceMs: int64(d.DeadSince),
		Reason: valid(d.Reason), Replaying: d.Replaying,
	}
	for _, h := range d.History {
		out.History = append(out.History, &nodev1.Attempt{
			Attempt: h.Attempt, Member: h.Member, HandedMs: int64(h.HandedOut), EndedMs: int64(h.Ended), Outcome: h.Outcome, Reason: valid(h.Reason),
		})
	}
	return out
}

func deadFrom(id partition.PartitionID, d *nodev1.DeadLetter) (consumer.DeadLetter, error) {
	m, err := messageFrom(d.GetMessage())
	if err != nil {
		return consumer.DeadLetter{}, err
	}
	out := consumer.DeadLetter{
		Partition: id, Offset: m.Offset, KeyHash: d.GetKeyHash(), Message: m, Attempts: d.GetAttempts(), FirstSeen: partition.Millis(d.GetFirstSeenMs()),
		DeadSince: partition.Millis(d.GetDeadSinceMs()), Reason: d.GetReason(), Replaying: d.GetReplaying(),
	}
	for _, h := range d.GetHistory() {
		out.History = append(out.History, consumer.Attempt{
			Attempt: h.GetAttempt(), Member: h.GetMember(), HandedOut: partition.Millis(h.GetHandedMs()), Ended: partition.Millis(h.GetEndedMs()),
			Outcome: h.GetOutcome(), Reason: h.GetReason(),
		})
	}
	return out, nil
}

func selectorTo(s consumer.Selector) *nodev1.Selector {
	return &nodev1.Selector{All: s.All, ByKey: s.ByKey, KeyHash: s.KeyHash, HasKey: s.HasKey, Key: s.Key, Offsets: offsetsTo(s.Offsets)}
}

func selectorFrom(s *nodev1.Selector) consumer.Selector {
	return consumer.Selector{All: s.GetAll(), ByKey: s.GetByKey(), KeyHash: s.GetKeyHash(), HasKey: s.GetHasKey(), Key: s.GetKey(), Offsets: offsetsFrom(s.GetOffsets())}
}
