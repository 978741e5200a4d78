package consumer

import (
	"context"
	"errors"

	"github.com/strandmq/strandmq/partition"
)

// Life is what happened to a message in the groups of its partition, and where
// it stands in each, as of one entry of the log.
type Life struct {
	Events []TraceEvent // in the order of the log
	States []MessageInGroup
	Cut    uint64 // so many events were left out, behind the first
}

// Trace tells a message's life, read back from its partition's log. Of many events it
// keeps those that the window shows, however many there are.
func (s *Shell) Trace(ctx context.Context, pid partition.PartitionID, o partition.Offset, show Window) (Life, error) {
	from, err := s.host.IndexOf(pid, o)
	if err != nil {
		return Life{}, err
	}
	t := newTracer(o, show)
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
	err = s.host.Commands(ctx, pid, from, func(e partition.LogEntry) bool {
		if e.Index > until {
			return false // the states above know nothing of it
		}
		t.term = e.Term
		bad = t.command(e.Index, e.Data)
		return bad == nil
	})
	if err = errors.Join(err, bad); err != nil {
		return Life{}, stored(pid, err)
	}
	led, err := s.host.Led(pid)
	if err != nil {
		return Life{}, stored(pid, err)
	}
	life.Events, life.Cut = t.events.Told()
	for i := range life.Events {
		life.Events[i].Node = led.By(life.Events[i].Term)
	}
	for i := range life.States {
		// What is settled has no state; its attempts are in the log alone.
		if x := &life.States[i]; x.State == "acked" || x.State == "skipped" {
			x.Attempts = t.groups[x.Group].attempts
		}
	}
	return life, nil
}
