package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/loadtest"
)

// notForShapes are the flags that mean nothing with a shape, which says them, or
// has no failures.
var notForShapes = []string{
	"producers", "groups", "zipf", "batch", "take", "ahead", "work", "workers", "nack", "lapse", "crash", "leave", "away", "ack-deadline", "backoff", "max-attempts", "retry-for", "transport", "topic",
}

// runShape runs a load of a name.
func (a *app) runShape(cmd *cobra.Command, f *loadFlags) error {
	s, ok := loadtest.ShapeOf(f.shape)
	if !ok {
		return usagef("--shape %q: there is no such shape; there are %s", f.shape, loadtest.ShapeNames())
	}
	fl := cmd.Flags()
	for _, name := range notForShapes {
		if fl.Changed(name) {
			return usagef("--%s: it means nothing with --shape, which says what is published and lets nothing fail", name)
		}
	}
	c := f.c
	c.Partitions, c.DrainFor = f.partitions.n, f.drainFor.d
	c.NoIDs = !fl.Changed("ids") || !f.ids // ids cost a row each; a shape has them only when asked
	if !fl.Changed("members") {
		c.Members = 1
	}
	given := map[string]func() error{
		"size":     func() error { s.Size = int(f.size.n); return nil },
		"keys":     func() error { s.Keys = f.keys.n; return nil },
		"warmup":   func() error { s.Warmup = f.warmup.d; return nil },
		"duration": func() error { s.Time = f.duration.d; return nil },
		"rate": func() error {
			if s.Sync > 0 || s.Backlog > 0 {
				return usagef("--rate: shape %s has none", s.Name)
			}
			s.Rate = c.Rate
			return nil
		},
		"window": func() error {
			if !s.Consume {
				return usagef("--window: nothing is consumed while shape %s publishes", s.Name)
			}
			s.Window = int(f.window.n)
			return nil
		},
		"count": func() error {
			if s.Backlog == 0 || f.count.n == 0 {
				return usagef("--count %d: it needs a shape with a backlog (w4), and at least 1", f.count.n)
			}
			s.Backlog = int(f.count.n)
			return nil
		},
	}
	var err error
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if fl.Changed(name) {
			err = errors.Join(err, given[name]())
		}
	}
	if err != nil {
		return err
	}
	for name, n := range map[string]int{"members": c.Members, "in-flight": c.InFlight} {
		if n < 1 {
			return usagef("--%s %d: at least 1", name, n)
		}
	}
	if s.Size < loadtest.MinSize || s.Size > 1<<20 {
		return usagef("--size %s: from %d bytes, which the checker needs, to 1MiB", quantity.FormatSize(int64(s.Size)), loadtest.MinSize)
	}
	if s.Time <= 0 || f.drainFor.d <= 0 {
		return usagef("--duration and --drain-for: they must take some time")
	}
	if err := s.Validate(c); err != nil {
		return usagef("this load cannot be run:\n%v", err)
	}
	show := a.newLoadProgress()
	c.Tick, c.Tell = show.every, show.tell
	server, err := a.server(cmd.Context())
	if err != nil {
		return err
	}
	rep, err := loadtest.RunShape(cmd.Context(), server, s, c, nil)
	show.board.settle()
	if rep == nil {
		return cannotRun(err)
	}
	if perr := a.showLoad(rep, c.Keep); perr != nil {
		err = errors.Join(err, perr)
	}
	if err != nil {
		return fmt.Errorf("the run ended early: %w", err)
	}
	return verdictError(rep)
}
