package consumer

import (
	"context"
	"errors"

	"github.com/strandmq/strandmq/partition"
)

// Trace tells what happened to a message in every group, read back from its
// partition's log, in order. It stops at max events and says so.
func (s *Shell) Trace(ctx context.Context, pid partition.PartitionID, o partition.Offset, max int) (events []TraceEvent, truncated bool, err error) {
	from, err := s.host.IndexOf(pid, o)
	if err != nil {
		return nil, false, err
	}
	t := NewTracer(o)
	var until partition.Index
	var bad error
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
		}
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, false, err
	}
	err = s.host.Scan(ctx, pid, from, func(e partition.LogEntry) bool {
		if e.Index > until {
			return false // the state above knows nothing of it
		}
		if e.Kind == partition.Command {
			bad = t.Command(e.Index, e.Data)
		}
		truncated = len(t.events) > max
		return bad == nil && !truncated
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, false, err
	}
	events = t.Events()
	return events[:min(len(events), max)], truncated, nil
}
