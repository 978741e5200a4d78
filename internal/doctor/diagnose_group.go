package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/strandmq/strandmq/internal/quantity"
)

// group looks at one group: first what stands still, then what fails, then what is slow,
// then what is missing. What explains the backlog is told once: a group that is paused is
// not slow, too.
func (d *diagnosis) group(g *Group) {
	if !g.Counted {
		return // what kept it from being counted is told of its topic
	}
	of := &ofGroup{diagnosis: d, g: g, about: fmt.Sprintf("group %s of topic %s", g.Name, g.Topic)}
	if g.Oldest != 0 && g.Now.Lag > 0 {
		of.age = d.ago(g.Oldest)
	}
	of.blamed = of.blame()
	first := len(d.found)
	held := of.stands()
	// Where many fail, those that do so most often are not the cause.
	explained := of.fails() || of.keys()
	of.circuitFollows(first)
	of.silenceFollows(first)
	if !held && !explained {
		of.slow()
	}
	of.missing()
	of.stale()
}

// ofGroup is a diagnosis of one group.
type ofGroup struct {
	*diagnosis
	g     *Group
	about string
	age   time.Duration // of the oldest message that is not settled
	// blamed is how nearly all ended that opened a circuit: see blame.
	blamed string
	// crashed are the members of attempts that came to nothing, and hushed the one that
	// does not ask for messages and has a name.
	crashed []string
	hushed  string
}

// silenceFollows makes a note of members that do not ask for messages, where that follows:
// one that did not answer for those that it had is gone, and its session is only not over
// yet; where deliveries lapse before they are handled, it is at work on what it has not any
// more.
func (d *ofGroup) silenceFollows(first int) {
	cause := Cause("")
	if slices.ContainsFunc(d.found[first:], func(f Finding) bool { return f.Cause == DeadlineTooShort }) {
		cause = DeadlineTooShort
	} else if d.hushed != "" && slices.Contains(d.crashed, d.hushed) {
		cause = ConsumerCrashes
	}
	for i := range d.found[first:] {
		if f := &d.found[first+i]; f.Cause == MemberSilent && cause != "" {
			f.Severity, f.Text = Note, f.Text+", which follows from "+string(cause)
		}
	}
}

func (d *ofGroup) warn(c Cause, format string, args ...any) *Finding {
	return d.add(Warning, c, d.about, fmt.Sprintf(format, args...)).weigh(d.g.Now.Lag)
}

// lag adds how much waits.
func (d *ofGroup) lag(f *Finding) *Finding {
	if d.g.Now.Lag == 0 {
		return f
	}
	text := quantity.Some(d.g.Now.Lag, "message") + " neither settled nor dead"
	if d.age > 0 {
		text += ", the oldest published " + rough(d.age) + " ago"
	}
	return f.say("%s", text)
}

func (d *ofGroup) describe(f *Finding) *Finding {
	return f.next("strandmq group describe %s %s", d.g.Topic, d.g.Name)
}

func (d *ofGroup) trace(f *Finding, partition uint32, offset uint64) *Finding {
	return f.next("strandmq trace %s --partition %d --offset %d", d.g.Topic, partition, offset)
}

// there counts the members that are there and take messages.
func (d *ofGroup) there() (n int) {
	for _, m := range d.g.Members {
		if !m.Away && !m.Draining {
			n++
		}
	}
	return n
}

func (d *ofGroup) stall(reason string) (first Stall, waiting uint64, found bool) {
	for _, s := range d.g.Stalls {
		if s.Reason != reason {
			continue
		}
		if !found {
			first = s
		}
		found, waiting = true, waiting+s.Waiting
	}
	return first, waiting, found
}

// stands tells what keeps a whole group, or a partition of it, from going on.
func (d *ofGroup) stands() bool {
	g := d.g
	if g.Now.Lag == 0 || !g.Looked {
		return false
	}
	// What waits behind dead letters goes to no member, there or not, until somebody
	// decides on those.
	parked := g.Now.Lag == g.Now.Parked
	switch {
	case g.Paused:
		f := d.warn(Paused, "group %s of topic %s is paused: nothing is handed out until it is resumed", g.Name, g.Topic)
		d.lag(f).next("strandmq group resume %s %s", g.Topic, g.Name)
		return true
	case len(g.Circuits) > 0:
		f := d.warn(CircuitOpen, "the circuit of group %s of topic %s is open, as nearly every delivery failed: one message at a time is tried, until one is handled", g.Name, g.Topic)
		d.lag(f).say("open in %d of %s", len(g.Circuits), quantity.Some(g.Partitions, "partition"))
		d.reasons(f, g.Suspects)
		f.next("strandmq group resume %s %s    # after a pause: tries one message at once, when what they all need is back", g.Topic, g.Name)
		d.firstSuspect(f)
		return true
	case parked:
		return false
	case d.there() == 0:
		f := d.warn(NoMembers, "group %s of topic %s has no member: nobody takes its messages", g.Name, g.Topic)
		drain := uint64(0)
		for _, m := range g.Members {
			if !m.Away {
				drain++
			}
		}
		if n := uint64(len(g.Members)) - drain; n > 0 {
			f.say("%s made no call for the session timeout and lost %s partitions", quantity.Some(n, "member"), number(n, "its", "their"))
		}
		if drain > 0 {
			f.say("%s about to leave, finishing what %s", quantity.Some(drain, "member"), number(drain, "it holds", "they hold"))
		}
		d.lag(f)
		if g.Now.InFlight > 0 {
			f.say("held until the deadline, by who left: %s", quantity.Some(g.Now.InFlight, "message"))
		}
		d.describe(f.next("strandmq consume %s --group %s --exec 'COMMAND'    # or start its consumers again", g.Topic, g.Name))
		return true
	}
	told := false
	if s, waiting, ok := d.stall("DEFERRED_LIMIT"); ok {
		f := d.warn(DeferredLimit, "group %s of topic %s looks no further: as many messages wait behind blocked keys as it may set aside", g.Name, g.Topic)
		f.say("partition %d, %s: %s", s.Partition, waits(waiting), s.Text)
		d.blockers(f)
		d.describe(f).next("strandmq group alter %s %s --max-deferred N    # lets it look further meanwhile", g.Topic, g.Name)
		told = true
	}
	if s, waiting, ok := d.silent(); ok && d.age >= d.behind {
		who := "the member that it belongs to"
		if s.Member != "" {
			who, d.hushed = "member "+s.Member, s.Member
		}
		f := d.warn(MemberSilent, "%s has a session in group %s of topic %s and does not ask for messages", who, g.Name, g.Topic)
		f.say("partition %d, %s from offset %d on: %s", s.Partition, waits(waiting), s.Offset, s.Text)
		d.describe(d.lag(f))
		told = true
	}
	return told
}

// silent finds what waits for a member that does not ask for it and holds nothing either.
// One that holds deliveries is at work on them until they lapse, and asks when it has room.
func (d *ofGroup) silent() (first Stall, waiting uint64, found bool) {
	for _, s := range d.g.Stalls {
		if s.Reason != "NO_MEMBER" || slices.ContainsFunc(d.g.Members, func(m Member) bool {
			return !m.Away && m.InFlight > 0 && (s.Member == "" || s.Member == m.Name)
		}) {
			continue
		}
		if !found {
			first = s
		}
		found, waiting = true, waiting+s.Waiting
	}
	return first, waiting, found
}

// blockers names the keys behind which most waits.
func (d *ofGroup) blockers(f *Finding) {
	heads := slices.Clone(d.g.Stalls)
	heads = slices.DeleteFunc(heads, func(s Stall) bool { return !ofKey(s) })
	slices.SortStableFunc(heads, func(a, b Stall) int { return cmp.Compare(b.Waiting, a.Waiting) })
	for _, s := range heads[:min(most, len(heads))] {
		f.say("key %s: %s behind offset %d of partition %d, which was tried %s", keyName(s.Key), quantity.Some(s.Waiting, "message"), s.Offset, s.Partition, quantity.Some(s.Attempts, "time"))
	}
	if len(heads) > 0 {
		d.trace(f, heads[0].Partition, heads[0].Offset)
	}
}

// ofKey tells whether a stall is of one key.
func ofKey(s Stall) bool {
	switch s.Reason {
	case "IN_FLIGHT", "BACKING_OFF", "PARKED", "DEFERRED_KEY_LIMIT":
		return true
	}
	return false
}

func keyName(key string) string {
	if key == "" {
		return "(none)"
	}
	return key
}

// reasons adds the reasons that failures gave, the most frequent first.
func (d *ofGroup) reasons(f *Finding, of []Letter) {
	count := map[string]int{}
	var order []string
	for _, l := range of {
		if l.Reason == "" {
			continue
		}
		if count[l.Reason]++; count[l.Reason] == 1 {
			order = append(order, l.Reason)
		}
	}
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(count[b], count[a]) })
	for _, r := range order[:min(most, len(order))] {
		f.say("%q", r)
	}
}

func (d *ofGroup) firstSuspect(f *Finding) {
	if len(d.g.Suspects) > 0 {
		d.trace(f, d.g.Suspects[0].Partition, d.g.Suspects[0].Offset)
	}
}
