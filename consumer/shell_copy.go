package consumer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/strandmq/strandmq/partition"
)

// readRaw reads messages of a group, at sorted offsets: from the log, or what the
// group copied of it. It appends one for each to out. Those that there are none
// of have an offset that no message has: retention removed them, or they are
// damaged, which bad tells.
func (s *Shell) readRaw(pid partition.PartitionID, gid GroupID, offsets []partition.Offset, out []partition.RawMessage) (_ []partition.RawMessage, bad []*partition.ErrUnreadable, err error) {
	base := len(out)
	for {
		rest := offsets[len(out)-base:]
		if len(rest) == 0 {
			return out, bad, nil
		}
		before := len(out)
		out, err = s.host.ReadRawAt(pid, rest, out)
		rest = rest[len(out)-before:]
		var gone *partition.ErrExpired
		var one *partition.ErrUnreadable
		switch {
		case errors.As(err, &one) && len(rest) > 0 && one.Offset == rest[0]:
			bad = append(bad, one)
			out = append(out, partition.RawMessage{Offset: noOffset})
		case errors.As(err, &gone):
			// Where what is gone was read before it went, the rest is read again.
			n, _ := slices.BinarySearch(rest, gone.Start)
			copies, err := s.copies(pid, gid, rest[:n])
			if err != nil {
				return out, bad, err
			}
			out = append(out, copies...)
		case err != nil:
			return out, bad, err
		}
	}
}

// read is readRaw for who keeps the messages.
func (s *Shell) read(pid partition.PartitionID, gid GroupID, offsets []partition.Offset) ([]partition.Message, []*partition.ErrUnreadable, error) {
	raws, bad, err := s.readRaw(pid, gid, offsets, make([]partition.RawMessage, 0, len(offsets)))
	if err != nil {
		return nil, nil, err
	}
	msgs := make([]partition.Message, len(raws))
	for i := range raws {
		msgs[i] = partition.Message{Offset: raws[i].Offset, PublishTime: raws[i].PublishTime}
		if raws[i].Offset != noOffset {
			msgs[i].Record = raws[i].Record.Record()
		}
	}
	return msgs, bad, nil
}

// Damaged begins the reason of a dead letter whose message could not be read.
const Damaged = "damaged: "

// bury rejects hand-outs, sorted by offset, whose messages are damaged: they are
// charged to nobody's handling, come again to nobody, and are dead letters, which
// can be replayed when they read again. Where this fails they lapse, and come
// here once more. What an at-most-once group was handed is settled, and lost to it,
// which Lost hears.
func (s *Shell) bury(pid partition.PartitionID, gid GroupID, hs []handOut, bad []*partition.ErrUnreadable) {
	var what []Settlement
	for _, b := range bad {
		n, ok := slices.BinarySearchFunc(hs, b.Offset, func(h handOut, o partition.Offset) int { return cmp.Compare(h.Offset, o) })
		if !ok {
			continue
		}
		if hs[n].Settled {
			s.Lost(gid, b)
			continue
		}
		reason := Damaged + b.Why()
		what = append(what, Settlement{
			Token:  Token{Partition: pid, Group: gid, Epoch: hs[n].Epoch, Offset: b.Offset, HandOut: hs[n].Number, Ordinal: hs[n].Ordinal},
			Action: bury, Reason: strings.ToValidUTF8(reason[:min(len(reason), MaxReason)], ""),
		})
	}
	ctx := context.Background()
	for part := range slices.Chunk(what, maxSettleCommand/16) { // every one has a reason
		_ = s.host.ProposeAsync(pid, encodeSettle(s.stamp(ctx, pid, gid), gid, part), func(any, error) {})
	}
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
