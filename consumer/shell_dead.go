package consumer

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"github.com/strandmq/strandmq/partition"
)

// chunk is how many dead letters one command replays or discards, and how many
// one look at them takes: it keeps a partition's turn short.
const chunk = 1000

// Stats gives a group's state in a partition, taken at one position of its log.
func (s *Shell) Stats(ctx context.Context, pid partition.PartitionID, gid GroupID) (GroupState, error) {
	var st GroupState
	now := s.Now()
	err := s.view(ctx, pid, gid, func(g *group, at partition.Position) error {
		st = g.state(at, now)
		var err error
		st.Kept, err = g.keptState()
		return err
	})
	if err != nil {
		return GroupState{}, err
	}
	var offsets []partition.Offset
	for i := range st.Stalls {
		if bad := st.Stalls[i].Unreadable; bad != nil {
			st.Stalls[i].Text = s.Explain(gid, bad)
		}
		if st.Stalls[i].OfKey {
			offsets = append(offsets, st.Stalls[i].Offset)
		}
	}
	slices.Sort(offsets)
	offsets = slices.Compact(offsets)
	if len(offsets) == 0 {
		return st, nil
	}
	msgs, _, err := s.read(pid, gid, offsets)
	if err != nil {
		return GroupState{}, err
	}
	for i := range st.Stalls {
		x := &st.Stalls[i]
		if n, ok := slices.BinarySearch(offsets, x.Offset); ok && x.OfKey {
			x.HasKey, x.Key = msgs[n].Record.HasKey, bytes.Clone(msgs[n].Record.Key)
		}
	}
	return st, nil
}

// DeadLetters lists a group's dead letters from an offset on, without history.
func (s *Shell) DeadLetters(ctx context.Context, pid partition.PartitionID, gid GroupID, from partition.Offset, max int) ([]DeadLetter, error) {
	ds, err := s.deadRows(ctx, pid, gid, from, min(max, chunk))
	if err != nil {
		return nil, err
	}
	for i := range ds {
		ds[i].History = nil
	}
	return ds, s.fillDead(pid, gid, ds)
}

// DeadLetter gives one dead letter with its history, or *ErrNotDead.
func (s *Shell) DeadLetter(ctx context.Context, pid partition.PartitionID, gid GroupID, o partition.Offset) (DeadLetter, error) {
	ds, err := s.deadRows(ctx, pid, gid, o, 1)
	if err != nil {
		return DeadLetter{}, err
	}
	if len(ds) == 0 || ds[0].Offset != o {
		return DeadLetter{}, &ErrNotDead{Partition: pid, Offset: o}
	}
	if err := s.fillDead(pid, gid, ds); err != nil {
		return DeadLetter{}, err
	}
	return ds[0], nil
}

// IsDead tells whether a message is a dead letter of a group.
func (s *Shell) IsDead(ctx context.Context, pid partition.PartitionID, gid GroupID, o partition.Offset) (bool, error) {
	ds, err := s.deadRows(ctx, pid, gid, o, 1)
	return len(ds) == 1 && ds[0].Offset == o, err
}

func (s *Shell) deadRows(ctx context.Context, pid partition.PartitionID, gid GroupID, from partition.Offset, max int) (ds []DeadLetter, err error) {
	err = s.view(ctx, pid, gid, func(g *group, _ partition.Position) error {
		if max <= 0 {
			return nil
		}
		return g.eachDead(from, func(o partition.Offset, d deadRow) bool {
			x := DeadLetter{
				Partition: pid, Offset: o, KeyHash: d.keyHash, Attempts: d.attempts,
				FirstSeen: d.firstSeen, DeadSince: d.deadSince, History: d.history, Replaying: d.replaying,
			}
			if n := len(d.history); n > 0 {
				x.Reason = d.history[n-1].Reason
			}
			ds = append(ds, x)
			return len(ds) < max
		})
	})
	return ds, err
}

func (s *Shell) fillDead(pid partition.PartitionID, gid GroupID, ds []DeadLetter) error {
	if len(ds) == 0 {
		return nil
	}
	offsets := make([]partition.Offset, len(ds))
	for i := range ds {
		offsets[i] = ds[i].Offset
	}
	msgs, bad, err := s.read(pid, gid, offsets)
	if err != nil {
		return err
	}
	for i := range ds {
		ds[i].Message = msgs[i]
		ds[i].Message.Offset = ds[i].Offset
	}
	for _, b := range bad {
		if n, ok := slices.BinarySearch(offsets, b.Offset); ok && !strings.HasPrefix(ds[n].Reason, Damaged) {
			ds[n].Reason = Damaged + b.Why() + "; it died of: " + ds[n].Reason
		}
	}
	return nil
}

// Replay sets dead letters to be delivered to their group again: original id,
// offset and headers, in key order, with fresh attempts. It returns how many
// were newly set, and how many already were: asking twice adds nothing.
func (s *Shell) Replay(ctx context.Context, pid partition.PartitionID, gid GroupID, which Selector) (replayed, already int, err error) {
	missing := 0
	err = s.eachSelected(ctx, pid, gid, which, func(os []partition.Offset) error {
		res, err := s.deadCommand(ctx, pid, gid, cmdReplay, os)
		replayed, already, missing = replayed+res.done, already+res.already, missing+res.missing
		if err == nil && res.limited {
			return s.view(ctx, pid, gid, func(g *group, _ partition.Position) error {
				return &ErrReplayLimit{Partition: pid, Limit: g.policy.MaxDeferred}
			})
		}
		return err
	})
	if err == nil && missing > 0 && replayed+already == 0 && len(which.Offsets) > 0 {
		err = &ErrNotDead{Partition: pid, Offset: which.Offsets[0]}
	}
	return replayed, already, err
}

// Discard gives dead letters up; a parked key flows on. It returns how many.
// What is being replayed is left alone.
func (s *Shell) Discard(ctx context.Context, pid partition.PartitionID, gid GroupID, which Selector) (int, error) {
	var sum deadResult
	err := s.eachSelected(ctx, pid, gid, which, func(os []partition.Offset) error {
		res, err := s.deadCommand(ctx, pid, gid, cmdDiscard, os)
		sum.done, sum.already, sum.missing = sum.done+res.done, sum.already+res.already, sum.missing+res.missing
		return err
	})
	if err == nil && sum.done == 0 && len(which.Offsets) > 0 {
		switch {
		case sum.already > 0:
			err = &ErrReplaying{Partition: pid, Offset: which.Offsets[0]}
		case sum.missing > 0:
			err = &ErrNotDead{Partition: pid, Offset: which.Offsets[0]}
		}
	}
	return sum.done, err
}

func (s *Shell) deadCommand(ctx context.Context, pid partition.PartitionID, gid GroupID, kind command, os []partition.Offset) (deadResult, error) {
	res, err := s.propose(ctx, pid, encodeOffsets(kind, s.stamp(ctx, pid, gid), gid, os))
	if err != nil {
		return deadResult{}, err
	}
	d, ok := res.(deadResult)
	if !ok {
		return deadResult{}, &partition.ErrOutcomeUnknown{Partition: pid, Why: "no result came back"}
	}
	return d, nil
}

// eachSelected calls fn with the offsets that a selector picks, in order, chunk
// by chunk. A key is compared byte by byte: other keys can have its hash.
func (s *Shell) eachSelected(ctx context.Context, pid partition.PartitionID, gid GroupID, which Selector, fn func([]partition.Offset) error) error {
	switch {
	case which.All:
		for from := partition.Offset(0); ; {
			ds, err := s.deadRows(ctx, pid, gid, from, chunk)
			if err != nil || len(ds) == 0 {
				return err
			}
			os := make([]partition.Offset, len(ds))
			for i := range ds {
				os[i] = ds[i].Offset
			}
			if err := fn(os); err != nil {
				return err
			}
			if len(ds) < chunk {
				return nil
			}
			from = os[len(os)-1] + 1
		}
	case which.ByKey:
		var all []partition.Offset
		err := s.view(ctx, pid, gid, func(g *group, _ partition.Position) (err error) {
			all, err = g.deadOfKey(which.KeyHash)
			return err
		})
		if err != nil {
			return err
		}
		for os := range slices.Chunk(all, chunk) {
			msgs, _, err := s.read(pid, gid, os) // whose key is damaged is picked by its offset
			if err != nil {
				return err
			}
			var same []partition.Offset
			for i, m := range msgs {
				if m.Record.HasKey == which.HasKey && bytes.Equal(m.Record.Key, which.Key) {
					same = append(same, os[i])
				}
			}
			if len(same) == 0 {
				continue
			}
			if err := fn(same); err != nil {
				return err
			}
		}
		return nil
	default:
		os := slices.Clone(which.Offsets)
		slices.Sort(os)
		for part := range slices.Chunk(slices.Compact(os), chunk) {
			if err := fn(part); err != nil {
				return err
			}
		}
		return nil
	}
}
