package loadtest

import (
	"context"
	"errors"
	"testing"
	"time"
)

// quick is a shape that is over soon.
func quick(t testing.TB, name string) (Shape, Config) {
	t.Helper()
	s, ok := ShapeOf(name)
	if !ok {
		t.Fatalf("there is no shape %s", name)
	}
	s.Keys, s.Warmup, s.Time = 50, 50*time.Millisecond, 200*time.Millisecond
	if s.Sync > 4 {
		s.Sync = 4
	}
	if s.Rate > 0 {
		s.Rate = 1000
	}
	if s.Backlog > 0 {
		s.Backlog, s.Time = 300, hour // published as long as it takes, and no longer
	}
	return s, Config{Partitions: 1, InFlight: 64, DrainFor: 3 * time.Minute, AckDeadline: 3 * time.Minute}
}

// hour is a time that no shape is measured for here: it is cut short, or the test hangs.
const hour = time.Hour

// wholeHour tells whether a shape went on until the end of its hour.
func wholeHour(rep *Report) bool { return rep.Measured >= float64(hour.Milliseconds()) }

func TestShapes(t *testing.T) {
	for _, named := range Shapes {
		t.Run(named.Name, func(t *testing.T) {
			t.Parallel()
			var b *textbook
			var w *wired
			var rep *Report
			var begins, ends, looks int
			s, c := quick(t, named.Name)
			c.Tick, c.Tell = 20*time.Millisecond, func(Progress) { looks++ }
			for again := true; again; s.Time *= 2 {
				b = newTextbook()
				b.pace = time.Millisecond
				w = &wired{b: b}
				begins, ends, looks = 0, 0, 0
				var err error
				rep, err = RunShape(t.Context(), serve(t, w), s, c, func(begin bool) {
					if begin {
						begins++
					} else {
						ends++
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				// A machine that did nothing in all that time has no figures either.
				again = s.Backlog == 0 && s.Time < time.Minute && (looks == 0 || rep.Publish.Rate == 0 || s.Consume && rep.Groups[0].Rate == 0)
			}
			s.Time /= 2
			if rep.Shape != named.Name || rep.Publish.Messages == 0 || rep.Publish.Unknown != 0 || begins != 1 || ends != 1 || looks == 0 && s.Backlog == 0 || rep.Interrupted {
				t.Errorf("%d and %d times measured, %d looks: %+v", begins, ends, looks, rep)
			}
			if len(b.created) != 1 || len(b.deleted) != 1 || b.created[0] != b.deleted[0] {
				t.Errorf("made %v, deleted %v", b.created, b.deleted)
			}
			if n := uint64(len(b.log)); n != rep.Publish.Messages {
				t.Errorf("%d messages are stored, and %d have receipts", n, rep.Publish.Messages)
			}
			if w.messages > 0 != s.Unary {
				t.Errorf("%d readable messages", w.messages)
			}
			if s.Backlog == 0 && (rep.Publish.Rate == 0 || rep.Publish.Latency.Count == 0) {
				t.Errorf("%+v", rep.Publish)
			}
			if !s.Consume && s.Backlog == 0 {
				if rep.Verdict.Outcome != NotJudged {
					t.Errorf("%+v", rep.Verdict)
				}
				return
			}
			g := rep.Groups[0]
			if rep.Verdict.Outcome != Kept || g.Messages != rep.Publish.Messages || g.Acked != g.Messages || g.Rate == 0 || !rep.Drained {
				t.Errorf("%+v, verdict %+v", g, rep.Verdict)
			}
			if n := rep.Publish.Messages + rep.Publish.Unsent; s.Rate > 0 && n != uint64((s.Warmup+s.Time).Milliseconds()) {
				t.Errorf("%d messages by schedule, one a millisecond of %v", n, s.Warmup+s.Time)
			}
			if s.Backlog > 0 && rep.Publish.Messages != 300 {
				t.Errorf("a backlog of %d, want 300", rep.Publish.Messages)
			}
		})
	}
}

func TestShapeMessages(t *testing.T) {
	b := newTextbook()
	b.pace = time.Millisecond
	w := &wired{b: b}
	s, c := quick(t, "w3max")
	c.Messages, c.Members = true, 2
	rep, err := RunShape(t.Context(), serve(t, w), s, c, nil)
	if err != nil || rep.Verdict.Outcome != Kept || w.records != 0 || w.messages != len(b.log) {
		t.Fatalf("%v, %d of records, %d readable: %+v", err, w.records, w.messages, rep)
	}
}

// Extreme sizes and windows still flow, within the limits of a frame.
func TestShapeExtremes(t *testing.T) {
	for name, change := range map[string]func(*Shape, *Config){
		"large bodies":        func(s *Shape, _ *Config) { s.Size = 1 << 20 },
		"large and paced":     func(s *Shape, _ *Config) { s.Size, s.Rate = 1<<20, 50 },
		"one in flight":       func(_ *Shape, c *Config) { c.InFlight = 1 },
		"very many in flight": func(_ *Shape, c *Config) { c.InFlight = 100_000 },
		"a window of one":     func(s *Shape, _ *Config) { s.Window = 1 },
		"one key":             func(s *Shape, _ *Config) { s.Keys = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTextbook()
			b.pace = time.Millisecond
			s, c := quick(t, "w3max")
			change(&s, &c)
			rep, err := RunShape(t.Context(), serve(t, &wired{b: b}), s, c, nil)
			if err != nil || rep.Verdict.Outcome != Kept || rep.Publish.Messages == 0 {
				t.Fatalf("%v: %+v", err, rep)
			}
		})
	}
}

// Each fault of a broker is found at full speed, too.
func TestShapeFindsFaults(t *testing.T) {
	for plant, count := range map[string]func(Verdict) uint64{
		"lose":        func(v Verdict) uint64 { return v.Lost },
		"store twice": func(v Verdict) uint64 { return v.Duplicated },
		"repeat":      func(v Verdict) uint64 { return v.Duplicated },
		"swap":        func(v Verdict) uint64 { return v.Disordered },
		"overlap":     func(v Verdict) uint64 { return v.Overlapping },
		"alter":       func(v Verdict) uint64 { return v.Altered },
	} {
		t.Run(plant, func(t *testing.T) {
			t.Parallel()
			b := newTextbook()
			b.plant, b.pace = plant, time.Millisecond
			s, c := quick(t, "w3max")
			s.Keys, s.Time = 5, hour
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			c.Tick, c.Tell = 5*time.Millisecond, func(Progress) {
				if b.done() {
					stop()
				}
			}
			rep, err := RunShape(ctx, serve(t, &wired{b: b}), s, c, nil)
			if err != nil {
				t.Fatal(err)
			}
			if b.planted == 0 || rep.Verdict.Outcome != Broken || count(rep.Verdict) == 0 || len(rep.Verdict.Examples) == 0 {
				t.Errorf("planted: %d: %+v", b.planted, rep.Verdict)
			}
		})
	}
}

// A refusal ends the run, is told, and the topic is removed.
func TestShapeRefused(t *testing.T) {
	for _, name := range []string{"w1", "w2", "w3", "w4"} {
		b := newTextbook()
		b.pace = time.Millisecond
		s, c := quick(t, name)
		s.Time = hour
		rep, err := RunShape(t.Context(), serve(t, &wired{b: b, refuse: "3/DISK_FULL"}), s, c, nil)
		if rep == nil || !rep.Interrupted || wholeHour(rep) && s.Backlog == 0 {
			t.Fatalf("%s: %+v", name, rep)
		}
		for _, g := range rep.Groups {
			if g.Verdict.Outcome != Incomplete || rep.Verdict.Outcome != Incomplete {
				t.Errorf("%s was refused, and its verdict is %s, %s", name, g.Verdict.Outcome, rep.Verdict.Outcome)
			}
		}
		var r *Refusal
		if !errors.As(err, &r) || r.Reason != "DISK_FULL" || len(b.deleted) != 1 {
			t.Errorf("%s: %v, deleted %v", name, err, b.deleted)
		}
		b = newTextbook()
		b.pace = time.Millisecond
		_, err = RunShape(t.Context(), serve(t, &wired{b: b, breakAt: 3}), s, c, nil)
		if !errors.As(err, &r) || r.Reason != "SHUTTING_DOWN" || len(b.deleted) != 1 {
			t.Errorf("%s: %v, deleted %v", name, err, b.deleted)
		}
	}
}

// A schedule that cannot be kept: what went out is answered, the rest is unsent,
// and both are in the latencies.
func TestShapeOverloaded(t *testing.T) {
	t.Parallel()
	b := newTextbook()
	b.slow = 1500 * time.Millisecond
	s, c := quick(t, "w3")
	s.Warmup, s.Time, c.InFlight = 0, 300*time.Millisecond, 10
	rep, err := RunShape(t.Context(), serve(t, &wired{b: b}), s, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p := rep.Publish; p.Unsent == 0 || p.Messages+p.Unsent != 300 || p.Latency.Count != 300 || p.Latency.P50 < 1000 || rep.Verdict.Outcome != Kept {
		t.Errorf("%+v, verdict %+v", p, rep.Verdict)
	}
}

// A shape that is interrupted publishes no more; what it has published is still
// consumed and judged, and nothing is left behind.
func TestShapeInterrupted(t *testing.T) {
	for _, named := range Shapes {
		b := newTextbook()
		b.pace = time.Millisecond
		s, c := quick(t, named.Name)
		s.Warmup, s.Time = 0, hour
		if s.Backlog > 0 {
			s.Backlog = 1_000_000
		}
		ctx, cancel := context.WithCancel(t.Context())
		c.Tick, c.Tell = 20*time.Millisecond, func(p Progress) {
			if p.Published > 100 {
				cancel()
			}
		}
		rep, err := RunShape(ctx, serve(t, &wired{b: b}), s, c, nil)
		cancel()
		if err != nil || !rep.Interrupted || rep.Publish.Messages < 100 || wholeHour(rep) || len(b.deleted) != 1 {
			t.Errorf("%s: %v, deleted %v: %+v", s.Name, err, b.deleted, rep)
			continue
		}
		for _, g := range rep.Groups {
			if rep.Verdict.Outcome != Kept || g.Acked != rep.Publish.Messages {
				t.Errorf("%s: %+v of %d, verdict %+v", s.Name, g, rep.Publish.Messages, rep.Verdict)
			}
		}
	}
}

func TestShapeIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Shape, *Config){
		"size":      func(s *Shape, _ *Config) { s.Size = MinSize - 1 },
		"sync":      func(s *Shape, _ *Config) { s.Sync = 1001 },
		"window":    func(s *Shape, _ *Config) { s.Window = -1 },
		"count":     func(s *Shape, _ *Config) { s.Backlog = -1 },
		"mixed":     func(s *Shape, _ *Config) { s.Sync, s.Rate = 1, 1 },
		"in-flight": func(_ *Shape, c *Config) { c.InFlight = -1 },
		"sequences": func(_ *Shape, c *Config) { c.Sequences, c.Messages = true, true },
	} {
		s, c := quick(t, "w1")
		change(&s, &c)
		if _, err := RunShape(t.Context(), "http://127.0.0.1:1", s, c, nil); err == nil {
			t.Errorf("%s is taken", name)
		} else if r := (*Refusal)(nil); errors.As(err, &r) {
			t.Errorf("%s: it asked the broker: %v", name, err)
		}
	}
	s, c := quick(t, "w1")
	b := newTextbook()
	b.existing = true
	if _, err := RunShape(t.Context(), serve(t, &wired{b: b}), s, c, nil); err == nil || len(b.deleted) > 0 {
		t.Errorf("a topic that was there is used: %v, deleted %v", err, b.deleted)
	}
}

// The same by the Go client, whose publisher always has a sequence.
func TestShapesByClient(t *testing.T) {
	for _, name := range []string{"w1", "w3max", "w4"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTextbook()
			b.pace = time.Millisecond
			w := &wired{b: b}
			s, c := quick(t, name)
			c.GoClient, c.NoIDs, c.Sequences, c.Members = true, true, true, 2
			rep, err := RunShape(t.Context(), serve(t, w), s, c, nil)
			if err != nil {
				t.Fatal(err)
			}
			if n := uint64(len(b.log)); n != rep.Publish.Messages || n == 0 || w.messages > 0 {
				t.Errorf("%d messages are stored, %d of them readable, and %d have receipts", n, w.messages, rep.Publish.Messages)
			}
			if name == "w1" {
				return
			}
			if g := rep.Groups[0]; rep.Verdict.Outcome != Kept || g.Messages != rep.Publish.Messages || g.Acked != g.Messages || !rep.Drained {
				t.Errorf("%+v, verdict %+v", g, rep.Verdict)
			}
		})
	}
}
