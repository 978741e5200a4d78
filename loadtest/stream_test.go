package loadtest

import (
	"context"
	"errors"
	"testing"
	"time"
)

// streamRun runs a load over streams against a textbook on the wire.
func streamRun(t *testing.T, c Config, w *wired) (*Report, error) {
	t.Helper()
	b, done := Streams(serve(t, w), c)
	defer done()
	return Run(t.Context(), c, b)
}

// streamRunUntil is the same, and publishes until there was enough.
func streamRunUntil(t *testing.T, c Config, w *wired, enough func(Progress) bool) (*Report, error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c.Duration = time.Hour // until then the test has timed out
	c.Tick, c.Tell = 5*time.Millisecond, func(p Progress) {
		if enough(p) {
			stop()
		}
	}
	b, done := Streams(serve(t, w), c)
	defer done()
	return Run(ctx, c, b)
}

func TestStreamsKept(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"record batches": func(*Config) {},
		"messages":       func(c *Config) { c.Messages = true },
		"sequences":      func(c *Config) { c.Sequences, c.NoIDs = true, true },
		"full speed": func(c *Config) {
			c.Rate, c.InFlight = 0, 30
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &wired{b: newTextbook()}
			w.b.pace = 20 * time.Millisecond
			c := short()
			c.Groups, c.Nack, c.Lapse, c.Crash, c.MaxAttempts = 2, 10, 7, 200*time.Millisecond, 2
			// What lapses holds up few keys of so many; and what a member has taken comes to
			// the judge long before it lapses.
			c.Keys, c.Rate, c.AckDeadline = 300, 300, 2*time.Second
			change(&c)
			// Of 300 none is nacked, or none lapses, less often than once in 10^9 runs;
			// crashes are waited for.
			rep, err := streamRunUntil(t, c, w, func(p Progress) bool { return p.Published >= 300 && w.b.crashed(c.Members) })
			if err != nil {
				t.Fatal(err)
			}
			if rep.Verdict.Outcome != Kept || !rep.Drained || rep.Publish.Unknown != 0 || rep.Publish.Messages != uint64(len(w.b.log)) {
				t.Errorf("%d are stored: %+v", len(w.b.log), rep)
			}
			if c.Messages != (w.messages > 0) || c.Messages == (w.records > 0) {
				t.Errorf("%d readable, %d of record batches", w.messages, w.records)
			}
			for _, g := range rep.Groups {
				if g.Nacked == 0 || g.Lapsed == 0 || g.Crashes == 0 || g.Redelivered == 0 {
					t.Errorf("a failure did not happen: %+v", g)
				}
			}
		})
	}
}

// A stream that breaks is opened again, and what has no answer is sent again.
func TestStreamBreaks(t *testing.T) {
	w := &wired{b: newTextbook(), breakAt: 5}
	c := short()
	c.Producers = 1
	rep, err := streamRun(t, c, w)
	if err != nil {
		t.Fatal(err)
	}
	if n := rep.Publish.Messages; !w.broken || rep.Verdict.Outcome != Kept || n+rep.Publish.Unsent != 300 || n != uint64(len(w.b.log)) {
		t.Errorf("%v, %d are stored: %+v", w.broken, len(w.b.log), rep)
	}
}

// A broker that stands still for 200 ms is felt by all that were due meanwhile,
// each for as long as it had to wait: over streams, which send on, and with a
// shape. Of 300 messages in 300 ms, 200 come due in the stall; half of those wait
// for 100 ms and more, a quarter of all for 130.
func TestStreamNoCoordinatedOmission(t *testing.T) {
	felt := func(t *testing.T, what string, l Latency, n int64) {
		if l.Count != n || l.Max < 190 || l.P90 < 150 || l.P50 < 30 {
			t.Errorf("%s: %+v", what, l)
		}
	}
	stalls := func() *textbook {
		b := newTextbook()
		b.slow = 200 * time.Millisecond
		return b
	}
	t.Run("streams", func(t *testing.T) {
		t.Parallel()
		c := short()
		c.Producers, c.Keys = 1, 300
		rep, err := streamRun(t, c, &wired{b: stalls()})
		if err != nil || rep.Publish.Messages+rep.Publish.Unsent != 300 {
			t.Fatalf("%v: %+v", err, rep)
		}
		felt(t, "publish", rep.Publish.Latency, 300)
		felt(t, "end to end", rep.Groups[0].Latency, int64(rep.Publish.Messages))
	})
	t.Run("shape", func(t *testing.T) {
		t.Parallel()
		s, c := quick(t, "w3")
		s.Keys, s.Warmup, s.Time, c.InFlight = 300, 0, 300*time.Millisecond, 1000
		rep, err := RunShape(t.Context(), serve(t, &wired{b: stalls()}), s, c, nil)
		if err != nil || rep.Publish.Messages+rep.Publish.Unsent != 300 {
			t.Fatalf("%v: %+v", err, rep)
		}
		felt(t, "publish", rep.Publish.Latency, 300)
		felt(t, "end to end", rep.Groups[0].Latency, int64(rep.Publish.Messages))
	})
	// Nothing more goes out while so many wait for their receipts: those wait too.
	t.Run("in flight", func(t *testing.T) {
		t.Parallel()
		s, c := quick(t, "w3")
		s.Keys, s.Warmup, s.Time, c.InFlight = 300, 0, 300*time.Millisecond, 10
		rep, err := RunShape(t.Context(), serve(t, &wired{b: stalls()}), s, c, nil)
		if err != nil || rep.Publish.Messages+rep.Publish.Unsent != 300 {
			t.Fatalf("%v: %+v", err, rep)
		}
		felt(t, "publish", rep.Publish.Latency, 300)
	})
}

// A refusal that does not pass ends the run and says so.
func TestStreamRefused(t *testing.T) {
	w := &wired{b: newTextbook(), refuse: "7/TOO_BIG"}
	c := short()
	c.Duration = time.Minute
	rep, err := streamRun(t, c, w)
	var r *Refusal
	if !errors.As(err, &r) || r.Reason != "TOO_BIG" || rep == nil || rep.Publish.Unknown == 0 || len(w.b.deleted) != 1 {
		t.Fatalf("%v: %+v", err, rep)
	}
}

// Each fault is found over streams, too. What is pushed comes when it comes, so
// one fault alone may be over before anybody can prove it; of a hundred, some are not.
func TestStreamsFindFaults(t *testing.T) {
	for plant, count := range map[string]func(Verdict) uint64{
		"lose":        func(v Verdict) uint64 { return v.Lost },
		"store twice": func(v Verdict) uint64 { return v.Duplicated },
		"repeat":      func(v Verdict) uint64 { return v.Duplicated },
		"swap":        func(v Verdict) uint64 { return v.Disordered },
		"overlap":     func(v Verdict) uint64 { return v.Overlapping },
		"hurry":       func(v Verdict) uint64 { return v.Overlapping },
		"alter":       func(v Verdict) uint64 { return v.Altered },
	} {
		t.Run(plant, func(t *testing.T) {
			t.Parallel()
			w := &wired{b: newTextbook()}
			w.b.plant, w.b.times, w.b.pace = plant, 100, time.Millisecond
			c := short()
			c.Members = 1
			c.Rate, c.InFlight, c.AckDeadline = 0, 30, time.Minute
			rep, err := streamRunUntil(t, c, w, func(Progress) bool { return w.b.done() })
			if err != nil {
				t.Fatal(err)
			}
			if rep.Verdict.Outcome != Broken || count(rep.Verdict) == 0 {
				t.Errorf("planted: %d: %+v", w.b.planted, rep.Verdict)
			}
		})
	}
}

// Nobody is there: the run says so, and does not wait for ever.
func TestStreamsNobodyThere(t *testing.T) {
	c := short()
	c.RetryFor = 100 * time.Millisecond
	b, done := Streams("http://127.0.0.1:1", c)
	defer done()
	p := b.Publisher("t")
	defer p.Close()
	told := make(chan error, 1)
	p.Send(context.Background(), []Message{{Key: "k"}}, func(_ []*Receipt, err error) { told <- err })
	var r *Refusal
	if err := <-told; !errors.As(err, &r) || !r.Passing {
		t.Errorf("%v", err)
	}
	if _, err := b.Join(t.Context(), "t", "g", "m"); !errors.As(err, &r) {
		t.Errorf("%v", err)
	}
}
