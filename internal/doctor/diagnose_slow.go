package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/strandmq/strandmq/internal/quantity"
)

// soon is how long a group may take for what it has before it, and needs nobody's help.
const soon = 10 * time.Minute

// pace is how a group gets on.
type pace struct {
	took        time.Duration // from hand-out to ack, on average; 0: nothing was acked yet
	acked, came uint64        // between two looks
	change      int64         // of the backlog
	// known tells whether the looks were so far apart that this says something: of what
	// takes 15 s each, one ack within 3 s, or none, is chance.
	known bool
	left  time.Duration // until the backlog is done; 0: never, or not known
}

func (d *ofGroup) pace() pace {
	g := d.g
	p := pace{took: d.handling()}
	out := max(g.Now.InFlight, 1)
	if g.Compared && d.facts.Apart > 0 {
		p.acked = d.since(func(c Counts) uint64 { return c.Acked })
		p.change = int64(g.Now.Lag) - int64(g.Before.Lag)
		done := p.acked + d.since(func(c Counts) uint64 { return c.Dead }) + d.since(func(c Counts) uint64 { return c.Expired })
		p.came = uint64(max(0, p.change+int64(done)))
		p.known = p.acked >= 5 || p.took > 0 && time.Duration(out)*d.facts.Apart >= 2*p.took
	}
	switch {
	case p.known && p.change < 0:
		p.left = time.Duration(float64(g.Now.Lag) / float64(-p.change) * float64(d.facts.Apart))
	case !p.known && p.took > 0 && g.Now.InFlight > 0:
		p.left = time.Duration(float64(g.Now.Lag) / float64(g.Now.InFlight) * float64(p.took))
	}
	return p
}

// slow tells why a group is behind that nothing stops.
func (d *ofGroup) slow() {
	g := d.g
	// What waits behind a dead letter waits for somebody to decide.
	if d.age < d.behind || !g.Looked || g.Now.Lag == g.Now.Parked {
		return
	}
	p := d.pace()
	if p.known && p.change < 0 && p.left < soon {
		d.lag(d.add(Note, CatchingUp, d.about, fmt.Sprintf("group %s of topic %s catches up: at this rate it is done in %s", g.Name, g.Topic, rough(p.left)))).
			say("%s acked a second", rate(p.acked, d.facts.Apart))
		return
	}
	hot, of := d.hottest()
	switch {
	case g.Mode == "partition" && d.there() > g.Partitions:
		f := d.warn(TooFewPartitions, "group %s of topic %s takes one message of a partition at a time, so %d of its %d members have nothing to do", g.Name, g.Topic, d.there()-g.Partitions, d.there())
		f.say("%s, mode partition", quantity.Some(g.Partitions, "partition"))
		d.describe(d.figures(f, p))
		f.next("strandmq topic create NAME --partitions N    # more of them; or a group of mode key, which works on keys in parallel")
	case of > 0 && of >= g.Now.Lag/2 && g.Now.Lag > 1:
		f := d.warn(HotKey, "most of what group %s of topic %s has before it is of one key, %s, and a key goes one message at a time", g.Name, g.Topic, keyName(hot.Key))
		f.say("%s of %s wait behind offset %d of partition %d", quantity.Count(of), quantity.Count(g.Now.Lag), hot.Offset, hot.Partition)
		d.figures(f, p)
		if p.took > 0 {
			f.say("so of this key no more than %s a second can go", perSecond(p.took))
		}
		d.trace(d.describe(f), hot.Partition, hot.Offset)
	case g.Now.InFlight > 0 || p.took > 0:
		how := "work off slowly what waits"
		switch {
		case p.known && p.came > 0 && p.change > 0:
			how = "are slower than messages come"
		case p.known && p.came > 0 && p.change == 0:
			how = "are no faster than messages come, so that what waits stays"
		}
		f := d.warn(SlowHandlers, "the handlers of group %s of topic %s %s", g.Name, g.Topic, how)
		if s, _, ok := d.stall("IN_FLIGHT_LIMIT"); ok {
			f.say("partition %d: %s", s.Partition, s.Text)
		}
		d.figures(f, p)
		if g.Mode == "partition" {
			f.say("%s, mode partition: one message of each at a time", quantity.Some(g.Partitions, "partition"))
		}
		d.describe(f.next("strandmq consume %s --group %s --exec 'COMMAND'    # one more member; or make the handlers faster", g.Topic, g.Name))
	default:
		f := d.figures(d.warn(FallingBehind, "group %s of topic %s is behind, and nothing that is known stops all of it", g.Name, g.Topic), p)
		if i := slices.IndexFunc(g.Stalls, func(s Stall) bool { return s.Text != "" && s.Waiting > 0 }); i >= 0 {
			f.say("%s in partition %d: %s", waits(g.Stalls[i].Waiting), g.Stalls[i].Partition, g.Stalls[i].Text)
		}
		d.describe(f)
	}
}

// figures adds how a group gets on.
func (d *ofGroup) figures(f *Finding, p pace) *Finding {
	g := d.g
	d.lag(f)
	if p.took > 0 {
		f.say("from hand-out to ack it takes %s on average", rough(p.took))
	}
	f.say("held by %s: %s", quantity.Some(d.there(), "member"), quantity.Some(g.Now.InFlight, "delivery"))
	if g.Compared && d.facts.Apart > 0 {
		word := "stays"
		switch {
		case p.change > 0:
			word = "grows"
		case p.change < 0:
			word = "shrinks"
		}
		f.say("within %s %s acked, %s new, and the backlog %s", rough(d.facts.Apart), quantity.Some(p.acked, "message"), quantity.Count(p.came), word)
	}
	if p.left > 0 {
		f.say("at this rate it takes %s more, if nothing comes", rough(p.left))
	}
	return f
}

// handling is how long a message takes from hand-out to ack, lately if something was acked.
func (d *ofGroup) handling() time.Duration {
	b, n := d.g.Before, d.g.Now
	if d.g.Compared && n.Acked > b.Acked && n.HandledMs >= b.HandledMs {
		return time.Duration(n.HandledMs-b.HandledMs) * time.Millisecond / time.Duration(n.Acked-b.Acked)
	}
	if n.Acked > 0 {
		return time.Duration(n.HandledMs) * time.Millisecond / time.Duration(n.Acked)
	}
	return 0
}

func rate(n uint64, in time.Duration) string {
	if in <= 0 {
		return "0"
	}
	a := float64(n) / in.Seconds()
	if a < 1 {
		return strconv.FormatFloat(a, 'g', 2, 64) // slow is not nothing
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", a), ".0")
}

// perSecond is how many go in a second, one after the other.
func perSecond(took time.Duration) string { return rate(1, took) }

// hottest is the key behind which most waits while its head is being handled.
func (d *ofGroup) hottest() (hot Stall, waiting uint64) {
	for _, s := range d.g.Stalls {
		if (s.Reason == "IN_FLIGHT" || s.Reason == "DEFERRED_KEY_LIMIT") && s.Attempts < tried && s.Waiting > waiting {
			hot, waiting = s, s.Waiting
		}
	}
	return hot, waiting
}
