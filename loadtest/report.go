package loadtest

import (
	"context"
	"time"

	"github.com/strandmq/strandmq/internal/check"
)

// Report is what a run found. Its JSON is for programs and stays compatible.
type Report struct {
	Broker      string    `json:"broker_version"`
	Topic       string    `json:"topic"`
	Shape       string    `json:"shape,omitempty"`
	Began       time.Time `json:"began"`
	Load        Load      `json:"load"`
	Interrupted bool      `json:"interrupted"` // publishing was ended before its time
	Measured    float64   `json:"measured_ms"` // the time of the figures, without warm-up
	Drained     bool      `json:"drained"`     // the broker says that the groups have nothing left
	Drain       float64   `json:"drain_ms"`    // from the end of publishing to that
	Publish     Published `json:"publish"`
	Groups      []Group   `json:"groups"`
	Verdict     Verdict   `json:"verdict"`
}

// Load is what was asked for, defaults filled in.
type Load struct {
	Partitions  uint32  `json:"partitions"`
	Producers   int     `json:"producers"`
	Groups      int     `json:"groups"`
	Members     int     `json:"members"`
	Keys        uint32  `json:"keys"`
	Zipf        float64 `json:"zipf"`
	Size        int     `json:"size_bytes"`
	Rate        int     `json:"rate"` // 0: as fast as possible
	Batch       int     `json:"batch"`
	Take        int     `json:"take"`
	Ahead       int     `json:"ahead"` // 0: without limit
	Work        float64 `json:"work_ms"`
	Workers     int     `json:"workers"`
	Warmup      float64 `json:"warmup_ms"`
	Duration    float64 `json:"duration_ms"`
	Nack        float64 `json:"nack_percent"`
	Lapse       float64 `json:"lapse_percent"`
	Crash       float64 `json:"crash_ms"`
	Leave       float64 `json:"leave_ms"`
	AckDeadline float64 `json:"ack_deadline_ms"`
	Backoff     float64 `json:"backoff_ms"`
	MaxAttempts uint32  `json:"max_attempts"`
	IDs         bool    `json:"ids"`
	Seed        uint64  `json:"seed"`
}

// Published is the producers' side. Rates are over the time of the figures.
type Published struct {
	Messages   uint64  `json:"messages"`   // with a receipt, warm-up included
	Rate       float64 `json:"rate"`       // of those, a second
	Bytes      float64 `json:"bytes_rate"` // bodies, a second
	Calls      uint64  `json:"calls"`
	Duplicates uint64  `json:"duplicates"` // sent again after a lost answer, and recognised
	Unknown    uint64  `json:"unknown"`    // nobody knows whether they were stored
	Unsent     uint64  `json:"unsent"`     // due, and never sent: the broker was too slow
	Latency    Latency `json:"latency"`    // from due to receipt
}

// Group is one group's side.
type Group struct {
	Name        string  `json:"name"`
	Messages    uint64  `json:"messages"` // that were delivered
	Acked       uint64  `json:"acked"`
	Rate        float64 `json:"rate"` // of those, a second
	Redelivered uint64  `json:"redelivered"`
	Nacked      uint64  `json:"nacked"`
	Lapsed      uint64  `json:"lapsed"`
	Stale       uint64  `json:"stale"` // settlements that came too late
	Crashes     uint64  `json:"crashes"`
	Leaves      uint64  `json:"leaves"`
	Gap         float64 `json:"longest_gap_ms"` // without a confirmed ack, between the first and the last of the figures
	Dead        uint64  `json:"dead"`
	Foreign     uint64  `json:"foreign"` // deliveries of messages that are not of this run
	Latency     Latency `json:"latency"` // from due to first delivery
	Verdict     Verdict `json:"verdict"`
}

// Verdict counts broken promises.
type Verdict struct {
	Outcome     string   `json:"outcome"` // see the constants
	Lost        uint64   `json:"lost"`
	Duplicated  uint64   `json:"duplicated"`
	Disordered  uint64   `json:"out_of_order"`
	Overlapping uint64   `json:"overlapping"`
	Altered     uint64   `json:"altered"`
	Other       uint64   `json:"other"`
	Left        uint64   `json:"left"`     // still with the broker when waiting ended
	Unjudged    uint64   `json:"unjudged"` // came too late to be told from a repeat
	Examples    []string `json:"examples,omitempty"`
}

// The outcomes.
const (
	Kept       = "kept"       // everything was judged, and nothing is wrong
	Broken     = "broken"     // a promise was broken
	Incomplete = "incomplete" // nothing is wrong, and not everything could be judged
	NotJudged  = "not-judged" // there were no groups
)

// Broken counts the violations.
func (v Verdict) Broken() uint64 {
	return v.Lost + v.Duplicated + v.Disordered + v.Overlapping + v.Altered + v.Other
}

func (v *Verdict) outcome() {
	switch {
	case v.Broken() > 0:
		v.Outcome = Broken
	case v.Left+v.Unjudged > 0:
		v.Outcome = Incomplete
	default:
		v.Outcome = Kept
	}
}

func (g *Group) judged(v check.Verdict) {
	g.Verdict = Verdict{
		Lost: v.Lost, Duplicated: v.Duplicated, Disordered: v.Disordered, Overlapping: v.Overlapping,
		Altered: v.Altered, Other: v.Other, Left: v.Left, Unjudged: v.Unjudged,
	}
	for _, x := range v.Examples {
		g.Verdict.Examples = append(g.Verdict.Examples, x.String())
	}
	g.Verdict.outcome()
}

// conclude sums the groups' verdicts up.
func (r *Report) conclude() {
	v := &r.Verdict
	for i := range r.Groups {
		g := &r.Groups[i]
		if g.Verdict.Outcome == Kept && !r.Drained {
			g.Verdict.Outcome = Incomplete
		}
		v.Lost += g.Verdict.Lost
		v.Duplicated += g.Verdict.Duplicated
		v.Disordered += g.Verdict.Disordered
		v.Overlapping += g.Verdict.Overlapping
		v.Altered += g.Verdict.Altered
		v.Other += g.Verdict.Other
		v.Left += g.Verdict.Left
		v.Unjudged += g.Verdict.Unjudged
		v.Examples = append(v.Examples, g.Verdict.Examples...)
	}
	switch v.outcome(); {
	case len(r.Groups) == 0:
		v.Outcome = NotJudged
	case v.Outcome == Kept && !r.Drained:
		v.Outcome = Incomplete
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// report gathers the figures. The judges speak later.
func (r *run) report(began time.Time, version string) *Report {
	c := &r.c
	rep := &Report{
		Broker: version, Topic: r.topic, Began: began.UTC(), Groups: []Group{},
		Load: Load{
			Partitions: c.Partitions, Producers: c.Producers, Groups: c.Groups, Members: c.Members,
			Keys: c.Keys, Zipf: c.Zipf, Size: c.Size, Rate: c.Rate, Batch: c.Batch, Take: c.Take,
			Ahead: c.Ahead, Work: milliseconds(c.Work), Workers: c.Workers,
			Warmup: milliseconds(c.Warmup), Duration: milliseconds(c.Duration), Nack: c.Nack, Lapse: c.Lapse,
			Crash: milliseconds(c.Crash), Leave: milliseconds(c.Leave), AckDeadline: milliseconds(c.AckDeadline), Backoff: milliseconds(c.Backoff),
			MaxAttempts: c.MaxAttempts, IDs: !c.NoIDs, Seed: c.Seed,
		},
		Publish: Published{Latency: r.publish.total()},
	}
	span := max(time.Duration(r.end.Load())-c.Warmup, time.Millisecond).Seconds()
	rep.Measured = span * 1000
	for _, p := range r.producers {
		rep.Publish.Messages += p.published.Load()
		rep.Publish.Rate += float64(p.measured.Load()) / span
		rep.Publish.Calls += p.calls.Load()
		rep.Publish.Duplicates += p.duplicates.Load()
		rep.Publish.Unknown += uint64(len(p.maybe))
		rep.Publish.Unsent += p.unsent
	}
	rep.Publish.Bytes = rep.Publish.Rate * float64(c.Size)
	for _, g := range r.groups {
		g.mu.Lock()
		gap := time.Duration(g.gap)
		g.mu.Unlock()
		rep.Groups = append(rep.Groups, Group{
			Name: g.name, Messages: g.arrived.Load(), Acked: g.acked.Load(), Rate: float64(g.measured.Load()) / span,
			Redelivered: g.repeated.Load(), Nacked: g.nacked.Load(), Lapsed: g.lapsed.Load(), Stale: g.stale.Load(),
			Crashes: g.crashes.Load(), Leaves: g.leaves.Load(), Gap: milliseconds(gap), Foreign: g.foreign.Load(), Latency: g.latency.total(),
		})
	}
	return rep
}

// Progress is a look at a run while it goes on. Rates and latencies are since
// the look before.
type Progress struct {
	At         time.Duration // since the start
	Total      time.Duration // warm-up and time of the figures
	Publishing bool          // else it waits for the groups
	Published  uint64
	Rate       float64
	Publish    Latency
	Groups     []GroupProgress
}

// GroupProgress is a group in a Progress.
type GroupProgress struct {
	Name       string
	Ended      uint64 // acked or dead
	Rate       float64
	Latency    Latency
	Violations uint64
}

// tell calls Tell at each tick.
func (r *run) tell(ctx context.Context, over <-chan struct{}) {
	if r.c.Tell == nil {
		return
	}
	tick := time.NewTicker(r.c.Tick)
	defer tick.Stop()
	before := time.Now()
	var published uint64
	ended := make([]uint64, len(r.groups))
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		span := now.Sub(before).Seconds()
		before = now
		p := Progress{
			At: time.Duration(r.since()), Total: r.c.Warmup + r.c.Duration, Publishing: true,
			Published: r.stored(), Publish: r.publish.look(),
		}
		select {
		case <-over:
			p.Publishing = false
		default:
		}
		p.Rate = float64(p.Published-published) / span
		published = p.Published
		for i, g := range r.groups {
			n := g.acked.Load() + g.dead.Load()
			p.Groups = append(p.Groups, GroupProgress{
				Name: g.name, Ended: n, Rate: float64(n-ended[i]) / span,
				Latency: g.latency.look(), Violations: g.violations.Load(),
			})
			ended[i] = n
		}
		r.c.Tell(p)
	}
}
