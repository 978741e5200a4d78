package consumer

import (
	"context"
	"errors"

	"github.com/strandmq/strandmq/partition"
)

// Life is what happened to a message in the groups of its partition, and where
// it stands in each, as of one entry of the log.
type Life struct {
	Events    []TraceEvent // in the order of the log
	States    []MessageInGroup
	Truncated bool // there were more events; states of what is settled tell no attempts then
}

// Trace tells a message's life, read back from its partition's log. It stops at
// max events and says so.
func (s *Shell) Trace(ctx context.Context, pid partition.PartitionID, o partition.Offset, max int) (Life, error) {
	from, err := s.host.IndexOf(pid, o)
	if err != nil {
		return Life{}, err
	}
	t := newTracer(o)
	var life Life
	var until partition.Index
	msgs, err := s.host.ReadAt(pid, []partition.Offset{o})
	if err != nil {
		return Life{}, err
	}
	var bad error
	now := s.Now()
	err = s.host.View(ctx, pid, func(app partition.App, at partition.Position) {
		a, ok := app.(*App)
		if !ok {
			return
		}
		until = at.Index
		for _, g := range a.groups {
			p, err := g.past(o)
			bad = errors.Join(bad, err)
			t.know(g.id, p)
			life.States = append(life.States, g.where(o, msgs[0].Record.KeyHash, now))
		}
	})
	if err = errors.Join(err, bad); err != nil {
		return Life{}, stored(pid, err)
	}
	err = s.host.Commands(ctx, pid, from, func(at partition.Index, cmd []byte) bool {
		if at > until {
			return false // the states above know nothing of it
		}
		bad = t.command(at, cmd)
		life.Truncated = len(t.events) > max
		return bad == nil && !life.Truncated
	})
	if err = errors.Join(err, bad); err != nil {
		return Life{}, stored(pid, err)
	}
	life.Events = t.told()
	life.Events = life.Events[:min(len(life.Events), max)]
	for i := range life.States {
		// What is settled has no state; its attempts are in the log alone.
		if x := &life.States[i]; !life.Truncated && (x.State == "acked" || x.State == "skipped") {
			x.Attempts = t.groups[x.Group].attempts
		}
	}
	return life, nil
}
