package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"charm.land/bubbles/v2/progress"

	"github.com/strandmq/strandmq/internal/quantity"
)

// demoProgress shows the demo while it runs: bars on a terminal, a line now and
// then elsewhere.
type demoProgress struct {
	d         *demo
	groups    []*demoGroup
	published atomic.Int64
	bar       progress.Model
	board     *board
}

func (d *demo) newProgress(groups []*demoGroup) *demoProgress {
	return &demoProgress{d: d, groups: groups, bar: progress.New(progress.WithWidth(40)), board: d.a.newBoard()}
}

// stallTime is how long nothing may happen before the demo gives up.
const stallTime = 90 * time.Second

// watch draws until every group is through, or ctx ends.
func (p *demoProgress) watch(ctx context.Context) error {
	every := 2 * time.Second
	if p.board.live {
		every = 100 * time.Millisecond
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var drawn, moved, asked time.Time
	moved = time.Now()
	last := int64(-1)
	total := len(p.d.sample.items)
	for {
		lines := []string{p.line("published", int(p.published.Load()), total, "")}
		sum, missing := p.published.Load(), total-int(p.published.Load())
		for _, g := range p.groups {
			acked, nacked, dead, left, news := g.state()
			for _, n := range news {
				p.board.settle()
				p.d.a.talk("  %s", n)
			}
			sum += int64(acked + nacked)
			missing += left
			lines = append(lines, p.line(g.name, total-left, total, fmt.Sprintf("%s acked, %s failed, %s dead",
				quantity.Count(acked), quantity.Count(nacked), quantity.Count(dead))))
		}
		if sum != last {
			last, moved = sum, time.Now()
		}
		if time.Since(drawn) >= every || missing == 0 {
			drawn = time.Now()
			p.board.draw(lines)
			if !p.board.live {
				p.plain(lines)
			}
		}
		quiet := time.Since(moved) > time.Second
		if quiet && time.Since(asked) > time.Second {
			asked = time.Now()
			quiet = p.published.Load() == int64(total)
			for _, g := range p.groups {
				quiet = quiet && g.empty(ctx)
			}
			if quiet {
				return nil
			}
		}
		switch {
		case missing == 0:
			return nil
		case time.Since(moved) > stallTime:
			return fmt.Errorf("nothing moved for %v with %d flights to go: 'strandmq group describe flights billing' says what waits", stallTime, missing)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (p *demoProgress) line(name string, done, total int, more string) string {
	if !p.board.live {
		return fmt.Sprintf("%s %s of %s%s", name, quantity.Count(done), quantity.Count(total), prefixed("; ", more))
	}
	return fmt.Sprintf("  %-10s %s  %s of %s  %s", name, p.bar.ViewAs(float64(done)/float64(total)), quantity.Count(done), quantity.Count(total), more)
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// plain prints the state as one line.
func (p *demoProgress) plain(lines []string) {
	text := ""
	for i, l := range lines {
		if i > 0 {
			text += " | "
		}
		text += l
	}
	p.d.a.talk("  %s", text)
}
