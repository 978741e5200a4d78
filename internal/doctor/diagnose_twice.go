package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/strandmq/strandmq/internal/quantity"
)

// message tells why one came twice: it was stored twice, or handed out again.
func (d *diagnosis) message(m *Message) {
	at := fmt.Sprintf("offset %d of partition %d of topic %s", m.Offset, m.Place.Number, m.Place.Topic)
	about := "the message at " + at
	if len(m.Copies) > 0 {
		d.copies(m, about)
	}
	if m.Repeats > 0 {
		d.add(Note, RepeatDropped, about, fmt.Sprintf("%s was published %s more under its id, and those stored nothing: one that had the same body got the first receipt, and another body was refused", about, quantity.Some(m.Repeats, "time"))).
			next("strandmq trace %s --partition %d --offset %d", m.Place.Topic, m.Place.Number, m.Offset)
	}
	for i := range m.Courses {
		d.course(m, &m.Courses[i], about)
	}
}

// copies tells of a message that is stored more than once.
func (d *diagnosis) copies(m *Message, about string) {
	ids := []string{m.ID}
	for _, c := range m.Copies {
		if !slices.Contains(ids, c.ID) {
			ids = append(ids, c.ID)
		}
	}
	why := "each with an id of its own: a publisher that tries again has to use the first one"
	switch {
	case len(ids) == 1 && m.ID == "":
		why = "and without an id, as when a publisher tries again: then it is stored anew"
	case slices.Contains(ids, ""):
		why = "and not each with an id, as when a publisher tries again: then it is stored anew"
	}
	f := d.add(Warning, PublishedTwice, about, fmt.Sprintf("%s is stored %s, with the same key and body, %s", about, quantity.Some(1+len(m.Copies), "time"), why))
	for _, c := range m.Copies[:min(most, len(m.Copies))] {
		apart, word := time.Duration(m.Published-c.Published)*time.Millisecond, "before"
		if apart < 0 {
			apart, word = -apart, "after"
		}
		when := rough(apart) + " " + word
		if apart == 0 {
			when = "in the same moment"
		}
		f.say("offset %d, published %s, %s", c.Offset, when, idWord(c.ID))
		f.next("strandmq trace %s --partition %d --offset %d", m.Place.Topic, m.Place.Number, c.Offset)
	}
	f.say("this one has key %s, %s", keyName(m.Key), idWord(m.ID))
	f.next("strandmq publish %s --key KEY --id ID --body BODY    # with an id, a repeat gets the first receipt and stores nothing", m.Place.Topic)
}

func idWord(id string) string {
	if id == "" {
		return "no id"
	}
	return "id " + id
}

// course tells why a group was handed a message more than once.
func (d *diagnosis) course(m *Message, c *Course, about string) {
	if c.HandedOut < 2 {
		return
	}
	unsettled := slices.ContainsFunc(c.Failed, func(a Attempt) bool { return a.Outcome == "lapse" && a.Late == 0 })
	var how []string
	for _, a := range c.Failed {
		word := endings[a.Outcome]
		if a.Late > 0 && !unsettled {
			word = "its ack came too late"
		}
		if word != "" && !slices.Contains(how, word) {
			how = append(how, word)
		}
	}
	for _, a := range c.Again {
		if !slices.Contains(how, a.What) {
			how = append(how, a.What)
		}
	}
	times := quantity.Some(c.HandedOut, "time")
	if m.Cut > 0 {
		times = "at least " + times
	}
	text := fmt.Sprintf("group %s of topic %s was handed %s %s", c.Group, m.Place.Topic, about, times)
	if len(how) > 0 {
		text += ", since " + names(how)
	}
	f := d.add(Warning, DeliveredAgain, about, text)
	for _, a := range c.Failed[:min(most, len(c.Failed))] {
		line := fmt.Sprintf("member %s had it for %s, until %s: %s", a.Member, rough(a.Took), clock(a.Ended), endings[a.Outcome])
		if a.Late > 0 {
			line = fmt.Sprintf("member %s had it for %s, until %s, and acked it after %s, too late", a.Member, rough(a.Took), clock(a.Ended), rough(a.Late))
		}
		if a.Reason != "" {
			line += fmt.Sprintf(" (%q)", a.Reason)
		}
		f.say("%s", line)
	}
	for _, a := range c.Again[max(0, len(c.Again)-most):] {
		f.say("at %s %s", clock(a.When), strings.TrimSuffix(a.What+" "+a.How, " "))
	}
	f.say("it stands there as %s", c.State)
	lapsed := slices.ContainsFunc(c.Failed, func(a Attempt) bool { return a.Outcome == "lapse" })
	for i := range d.facts.Groups {
		g := &d.facts.Groups[i]
		if g.Topic != m.Place.Topic || g.Name != c.Group {
			continue
		}
		if g.Now.Stale > 0 {
			f.say("%s of the group came when the message had gone to somebody else, acks after the deadline of %s among them: %d, since the partitions have their leaders",
				quantity.Some(g.Now.Stale, "settlement"), rough(g.Deadline), g.Now.Late)
		}
		switch took := d.longest(g); {
		case took > 0 && lapsed:
			f.longer(g, took)
		case lapsed:
			f.next("strandmq doctor --topic %s --group %s    # while it works: it measures by how much acks are late", g.Topic, g.Name)
		}
	}
	f.next("strandmq trace %s --partition %d --offset %d", m.Place.Topic, m.Place.Number, m.Offset)
}

// endings are how attempts end, as a cause of another one.
var endings = map[string]string{
	"nack":         "its handler gave it back",
	"reject":       "its handler rejected it",
	"lapse":        "its ack came too late, or never",
	"session-lost": "its consumer was lost",
}

// stale tells of settlements that come when the message has gone to somebody else: what
// they were for is handled twice. Where that is for the deadline, it is told as such.
func (d *ofGroup) stale() {
	g := d.g
	n := d.since(func(c Counts) uint64 { return c.Stale })
	if n == 0 || slices.ContainsFunc(d.found, func(f Finding) bool { return f.About == d.about && f.Cause == DeadlineTooShort }) {
		return
	}
	f := d.warn(StaleAcks, "consumers of group %s of topic %s settle what is not theirs any more: it went to somebody else meanwhile, and is handled twice", g.Name, g.Topic)
	if n < tried {
		f.Severity = Note // as happens when a consumer is replaced
	}
	var why []string
	if g.Now.Late > 0 {
		why = append(why, quantity.Some(g.Now.Late, "ack")+" after the deadline of "+rough(g.Deadline))
	}
	if g.Now.Lost > 0 {
		why = append(why, quantity.Some(g.Now.Lost, "delivery")+" with a session that was lost, as when two processes have one member's name")
	}
	f.say("within %s %s refused as stale, %d since the partitions have their leaders", rough(d.facts.Apart), quantity.Some(n, "settlement"), g.Now.Stale)
	if len(why) > 0 {
		f.say("so far %s", strings.Join(why, ", and "))
	}
	d.firstSuspect(d.describe(f))
}
