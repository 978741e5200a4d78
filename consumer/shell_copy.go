package consumer

import (
	"context"
	"errors"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// read reads messages of a group, at sorted offsets: from the log, or what the
// group copied of it. Those of neither are empty and have an offset that no
// message has: retention removed them.
func (s *Shell) read(pid partition.PartitionID, gid GroupID, offsets []partition.Offset) ([]partition.Message, error) {
	msgs, err := s.host.ReadAt(pid, offsets)
	var gone *partition.ErrExpired
	for err != nil && errors.As(err, &gone) {
		n, _ := slices.BinarySearch(offsets, gone.Start)
		var copies []partition.RawMessage
		if copies, err = s.copies(pid, gid, offsets[:n]); err != nil {
			return nil, err
		}
		var kept []partition.Message
		if kept, err = s.host.ReadAt(pid, offsets[n:]); err != nil {
			continue // more may be gone by now
		}
		msgs = make([]partition.Message, 0, len(offsets))
		for _, m := range copies {
			x := partition.Message{Offset: m.Offset, PublishTime: m.PublishTime}
			if m.Offset != noOffset {
				x.Record = m.Record.Record()
			}
			msgs = append(msgs, x)
		}
		msgs = append(msgs, kept...)
	}
	return msgs, err
}

// noOffset is that of no message.
const noOffset = ^partition.Offset(0)

// copies reads what a group copied of messages: one for each offset, and noOffset
// where there is none.
func (s *Shell) copies(pid partition.PartitionID, gid GroupID, offsets []partition.Offset) ([]partition.RawMessage, error) {
	out := make([]partition.RawMessage, len(offsets))
	err := s.view(context.Background(), pid, gid, func(g *group, _ partition.Position) error {
		for i, o := range offsets {
			m, ok, err := g.rows.copyAt(o)
			if err != nil {
				return err
			}
			if !ok {
				m.Offset = noOffset
			}
			out[i] = m
		}
		return nil
	})
	return out, err
}

// CopiesOf finds the dead letters of a group that have a message id and whose
// message is no longer in the log.
func (s *Shell) CopiesOf(ctx context.Context, pid partition.PartitionID, gid GroupID, id string) (os []partition.Offset, err error) {
	err = s.view(ctx, pid, gid, func(g *group, _ partition.Position) (err error) {
		os, err = g.rows.copiesOf(id)
		return err
	})
	return os, err
}

// Kept tells what retention left of every group of a partition.
func (s *Shell) Kept(ctx context.Context, pid partition.PartitionID) (map[GroupID]Kept, error) {
	out := make(map[GroupID]Kept)
	var bad error
	err := s.host.View(ctx, pid, func(app partition.App, _ partition.Position) {
		a, ok := app.(*App)
		if !ok {
			return
		}
		for _, g := range a.groups {
			k, err := g.keptState()
			bad = errors.Join(bad, err)
			out[g.id] = k
		}
	})
	return out, errors.Join(err, bad)
}

func (g *group) keptState() (Kept, error) {
	row, err := g.rows.keeping()
	need, bad := g.needs()
	k := Kept{
		Needs: need, Copies: row.copies, CopyBytes: row.bytes, Expired: g.expired,
		Holds: g.policy.Retention == Hold, HoldBytes: g.policy.HoldBytes, HoldAge: g.policy.HoldAge,
	}
	for _, l := range row.losses {
		k.Losses = append(k.Losses, Loss{l.first, l.last, l.count, l.cause.String(), l.from, l.until})
	}
	return k, errors.Join(err, bad)
}
