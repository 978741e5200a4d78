package doctor

import (
	"fmt"
	"slices"
	"time"

	"github.com/strandmq/strandmq/internal/quantity"
)

// fails tells why deliveries of a group come to nothing. It is true if that explains what
// waits.
func (d *ofGroup) fails() bool {
	if d.blamed == "session-lost" {
		return d.crashes()
	}
	return d.deadline() || d.crashes() || d.handler()
}

// ended lists recent attempts that ended one way, with the messages that they were of.
func (d *ofGroup) ended(outcomes ...string) (attempts []Attempt, messages int) {
	for _, l := range slices.Concat(d.g.Suspects, d.g.Dead) {
		any := false
		for _, a := range l.History {
			if slices.Contains(outcomes, a.Outcome) && d.ago(a.Ended) < recently {
				attempts, any = append(attempts, a), true
			}
		}
		if any {
			messages++
		}
	}
	return attempts, messages
}

// since is how much a counter grew between two looks.
func (d *ofGroup) since(of func(Counts) uint64) uint64 {
	if !d.g.Compared {
		return 0
	}
	return of(d.g.Now) - min(of(d.g.Before), of(d.g.Now))
}

// deadline: the work is done, and the ack comes when the delivery has lapsed.
func (d *ofGroup) deadline() bool {
	g := d.g
	lapses, _ := d.ended("lapse")
	lapsed := d.since(func(c Counts) uint64 { return c.Lapsed })
	late := d.since(func(c Counts) uint64 { return c.Late })
	if g.Now.Late < tried || late == 0 && lapsed == 0 && len(lapses) == 0 {
		return false
	}
	if d.blamed != "" && d.blamed != "lapse" {
		return false // some were late, and it is not that which opened the circuit
	}
	took := g.late()
	f := d.warn(DeadlineTooShort, "the ack deadline of group %s of topic %s is too short: handlers finish, and by then the message has lapsed and gone to somebody else", g.Name, g.Topic)
	f.say("%d acks came too late, after %s on average or more, and the deadline is %s", g.Now.Late, rough(took), rough(g.Deadline))
	f.say("%s lapsed so far", quantity.Some(g.Now.Lapsed, "delivery"))
	d.open(d.lag(f))
	f.longer(g, d.longest(g))
	d.firstSuspect(d.describe(f))
	return true
}

// late is after how long acks came that came too late, on average; 0: none did.
func (g *Group) late() time.Duration {
	if g.Now.Late == 0 {
		return 0
	}
	return time.Duration(g.Now.LateMs) * time.Millisecond / time.Duration(g.Now.Late)
}

// longest is after how long an ack came that came too late, the latest that is known of;
// 0: none is. All findings go by it, so that they advise one deadline.
func (d *diagnosis) longest(g *Group) time.Duration {
	took := g.late()
	for _, l := range slices.Concat(g.Suspects, g.Dead) {
		took = max(took, latest(l.History))
	}
	for _, m := range d.facts.Messages {
		for _, c := range m.Courses {
			if m.Place.Topic == g.Topic && c.Group == g.Name {
				took = max(took, latest(c.Failed))
			}
		}
	}
	return took
}

// latest is after how long the last of these was acked that was acked too late.
func latest(attempts []Attempt) (took time.Duration) {
	for _, a := range attempts {
		took = max(took, a.Late)
	}
	return took
}

// longer advises a deadline with room for handlers that take so long.
func (f *Finding) longer(g *Group, took time.Duration) {
	f.next("strandmq group alter %s %s --ack-deadline %s    # or have handlers extend, or do less at a time", g.Topic, g.Name, rough(roomy(took, g.Deadline)))
}

// roomy is a deadline that leaves room: twice what was seen, in whole seconds.
func roomy(took, now time.Duration) time.Duration {
	return max(2*took, 2*now, time.Second).Round(time.Second)
}

// crashes: members go, or never answer, with more than one message.
func (d *ofGroup) crashes() bool {
	g := d.g
	lost, of := d.ended("session-lost")
	gone := d.since(func(c Counts) uint64 { return c.Lost })
	how := "loses its consumers: sessions end while they hold messages"
	if d.blamed == "lapse" || d.blamed == "" && len(lost) < 2 && gone < 2 {
		lost, of = d.ended("lapse")
		gone = d.since(func(c Counts) uint64 { return c.Lapsed })
		how = "has consumers that take messages and never answer: they crash, hang, or forget to ack"
	}
	switch {
	case d.blamed == "session-lost" || d.blamed == "lapse": // a circuit opens over many keys
	case d.blamed != "" || len(lost) < 2 && gone < 2:
		return false
	case of == 1 && gone < 2:
		return false // one message that kills whoever takes it
	}
	f := d.warn(ConsumerCrashes, "group %s of topic %s %s", g.Name, g.Topic, how)
	nodes := d.with(lost)
	gone -= min(gone, uint64(len(lost)))
	ofNodes := len(nodes) > 0 && gone < 2 && lost[0].Outcome == "session-lost" && d.blamed == ""
	if ofNodes {
		f.Severity = Note
		f.Text = fmt.Sprintf("consumers of group %s of topic %s lost their sessions as %s stopped or was cut off: what they held comes again, and nobody need have crashed", g.Name, g.Topic, nodeNames(nodes))
	}
	who := map[string]int{}
	var order []string
	for _, a := range lost {
		if who[a.Member]++; who[a.Member] == 1 {
			order = append(order, a.Member)
		}
	}
	slices.SortStableFunc(order, func(a, b string) int { return who[b] - who[a] })
	if !ofNodes {
		d.crashed = order
	}
	for _, m := range order[:min(most, len(order))] {
		f.say("member %s: %s of messages that were looked at came to nothing", m, quantity.Some(who[m], "delivery"))
	}
	f.say("so far %s with a session that was lost, and %s lapsed; the deadline is %s", quantity.Some(g.Now.Lost, "delivery"), quantity.Some(g.Now.Lapsed, "delivery"), rough(g.Deadline))
	if d.blamed != "" && d.there() == 0 {
		f.say("no member is there now")
	}
	d.open(d.lag(f))
	d.firstSuspect(d.describe(f))
	return !ofNodes
}

// handler: many messages are nacked, not just one.
func (d *ofGroup) handler() bool {
	g := d.g
	nacked := d.since(func(c Counts) uint64 { return c.Nacked + c.Rejected })
	out := d.since(func(c Counts) uint64 { return c.HandedOut })
	_, of := d.ended("nack", "reject")
	if nacked < 5 || nacked*5 < out || of < tried {
		return false
	}
	f := d.warn(HandlerFails, "the handlers of group %s of topic %s refuse a large part of what they get", g.Name, g.Topic)
	f.say("within %s %d of %d deliveries were nacked or rejected", rough(d.facts.Apart), nacked, out)
	d.reasons(f, slices.Concat(g.Suspects, g.Dead))
	d.firstSuspect(d.describe(d.lag(f)))
	return true
}

// keys tells of messages that fail again and again. It is true if one of them explains
// what waits.
func (d *ofGroup) keys() (explains bool) {
	g := d.g
	for i := range g.Suspects {
		l := &g.Suspects[i]
		if len(g.Circuits) > 0 && d.blamed == "one" {
			l.Attempts = max(l.Attempts, uint32(len(l.History))) // no charge is made while it is open
		} else if len(g.Circuits) > 0 {
			continue
		}
		if l.Attempts < tried || g.Paused {
			continue
		}
		outcome := ""
		if n := len(l.History); n > 0 {
			outcome = l.History[n-1].Outcome
		}
		what := "fails"
		switch outcome {
		case "session-lost":
			what = "loses its consumer each time"
		case "lapse":
			what = "is never answered"
		}
		var f *Finding
		if l.Waiting > 0 {
			f = d.warn(BlockedKey, "key %s of group %s, topic %s, waits behind a message that %s: it was tried %d times", keyName(l.Key), g.Name, g.Topic, what, l.Attempts)
			f.say("%s behind offset %d of partition %d; other keys go on", quantity.Many(l.Waiting, "message of the key waits", "messages of the key wait"), l.Offset, l.Partition)
		} else {
			f = d.warn(PoisonMessage, "a message of group %s, topic %s, %s: it was tried %d times", g.Name, g.Topic, what, l.Attempts)
			f.say("offset %d of partition %d, key %s", l.Offset, l.Partition, keyName(l.Key))
		}
		f.weigh(l.Waiting)
		explains = explains || l.Waiting >= g.Now.Lag/2
		if l.Reason != "" {
			f.say("last: %q", l.Reason)
		}
		d.open(f)
		if g.MaxAttempts == 0 {
			f.say("the group never gives up: max_attempts is 0")
			f.next("strandmq group alter %s %s --max-attempts 5    # makes a dead letter of it", g.Topic, g.Name)
		} else {
			f.say("after %s it is a dead letter", quantity.Some(g.MaxAttempts, "attempt"))
		}
		d.trace(f, l.Partition, l.Offset)
	}
	return explains
}

func waits(n uint64) string { return quantity.Many(n, "message waits", "messages wait") }

// missing tells of messages that a group did not get, or will not.
func (d *ofGroup) missing() {
	g := d.g
	if s, _, ok := d.stall("HOLD_LIMIT"); ok {
		d.held(HoldLimit, s, "is at the limit of what is held for it")
	} else if s, _, ok := d.stall("HOLD_ALARM"); ok {
		d.held(HoldLimit, s, "is near the limit of what is held for it")
	}
	if g.Now.Parked > 0 {
		s, _, _ := d.stall("PARKED")
		f := d.warn(Parked, "%s of group %s, topic %s, %s behind a dead letter of %s key", quantity.Some(g.Now.Parked, "message"), g.Name, g.Topic,
			number(g.Now.Parked, "waits", "wait"), number(g.Now.Parked, "its", "their")).weigh(g.Now.Parked)
		f.say("key %s, behind the dead letter at offset %d of partition %d", keyName(s.Key), s.Offset, s.Partition)
		d.reasons(f, g.Dead)
		f.next("strandmq dead get %s %s --partition %d --offset %d", g.Topic, g.Name, s.Partition, s.Offset)
		f.next("strandmq dead replay %s %s --partition %d --offset %d    # or discard: then the key goes on", g.Topic, g.Name, s.Partition, s.Offset)
	} else if g.Now.Dead > 0 {
		f := d.warn(DeadLetters, "group %s of topic %s has %s: %s", g.Name, g.Topic, quantity.Some(g.Now.Dead, "dead letter"),
			number(g.Now.Dead, "it used up its attempts, or was rejected", "they used up their attempts, or were rejected")).weigh(g.Now.Dead)
		d.reasons(f, g.Dead)
		f.next("strandmq dead list %s %s", g.Topic, g.Name)
		f.next("strandmq dead replay %s %s --all    # when the cause is gone; or discard them", g.Topic, g.Name)
	}
	d.losses()
	if left, soon := d.mayExpire(g); soon && g.Now.Lag > 0 {
		f := d.warn(ExpiresSoon, "group %s of topic %s will lose messages to retention in %s unless it settles them", g.Name, g.Topic, rough(left))
		d.lag(f).next("strandmq group alter %s %s --retention hold    # keeps for it what it needs", g.Topic, g.Name)
		f.next("strandmq topic alter %s --retention 30d    # keeps more, for all groups", g.Topic)
	}
}

func (d *ofGroup) held(c Cause, s Stall, how string) {
	g := d.g
	f := d.warn(c, "group %s of topic %s %s", g.Name, g.Topic, how)
	f.say("partition %d: %s", s.Partition, s.Text)
	d.lag(f)
	d.describe(f).next("strandmq group alter %s %s --hold-limit-bytes 10GiB    # holds more, if the disk has room", g.Topic, g.Name)
	for i := range d.facts.Topics {
		if t := &d.facts.Topics[i]; t.Name == g.Topic && t.Refuses && s.Reason == "HOLD_LIMIT" {
			f.Severity, f.Cause = Critical, PublishRefused
			f.Text = fmt.Sprintf("publishes to topic %s are refused: group %s is at the limit of what is held for it, and the topic would rather refuse than lose", g.Topic, g.Name)
		}
	}
}

// forgotten is from when on a loss is only a note: everybody who asks will have been told.
const forgotten = 7 * 24 * time.Hour

func (d *ofGroup) losses() {
	g := d.g
	if len(g.Losses) == 0 {
		return
	}
	all, last := uint64(0), g.Losses[0]
	for _, l := range g.Losses {
		if all += l.Count; l.Until > last.Until {
			last = l
		}
	}
	causes := map[string]string{"age": "the topic's retention", "size": "the topic's retention by size", "hold-limit": "the group's limit of what is held for it"}
	why := causes[last.Cause]
	if why == "" {
		why = last.Cause
	}
	f := d.warn(Expired, "group %s of topic %s lost %s to %s before it had settled them", g.Name, g.Topic, quantity.Some(all, "message"), why).weigh(all)
	f.say("the last loss: %s of offsets %d to %d of partition %d, %s ago", quantity.Some(last.Count, "message"), last.First, last.Last, last.Partition, rough(d.ago(last.Until)))
	if d.ago(last.Until) > forgotten {
		f.Severity = Note
	}
	d.describe(f).next("strandmq group alter %s %s --retention hold    # keeps for it what it needs from now on", g.Topic, g.Name)
}
