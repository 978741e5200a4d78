package check

import (
	"cmp"
	"slices"
	"strings"
)

// handOut is one token of one message as the clients saw it.
type handOut struct {
	token    string
	attempt  uint32
	member   string
	replayed bool
	released bool // a release was asked for, or its session left
	begin    int  // where the first receive that brought it began
	end      int  // and ended
}

// life is one message in one group.
type life struct {
	place   Place
	message Message
	outs    []*handOut
	doneAt  int // where the settlement began that may have ended it; never: none
	acked   int // where a confirmed ack returned; never: none
	maybe   bool
	dead    *Dead
}

// group judges P1, P3, P5, P6, P7 and P8 in one group.
func (j *judge) group(g Group) {
	lives := map[Place]*life{}
	for _, s := range j.h.Log {
		lives[s.Place] = &life{place: s.Place, message: s.Message, doneAt: never, acked: never}
	}
	tokens := j.handOuts(g, lives)
	j.settlements(g, lives, tokens)
	j.deadLetters(g, lives)
	for _, s := range j.h.Log {
		l := lives[s.Place]
		j.attempts(g, l)
		if g.Drained && l.acked == never && !l.maybe && l.dead == nil {
			j.say("P1", "group %s: %v at %v is neither acked nor dead in the end", g.Name, l.message, l.place)
		}
	}
	if g.Keyed {
		j.strands(g, lives)
	}
}

// owner finds a token's message and hand-out.
type owner struct {
	life *life
	out  *handOut
}

func (j *judge) handOuts(g Group, lives map[Place]*life) map[string]owner {
	tokens := map[string]owner{}
	for i := range j.h.Events {
		e := &j.h.Events[i]
		if e.Group != g.Name {
			continue
		}
		switch e.Kind {
		case SessionLeft:
			for _, o := range tokens {
				if o.out.member == e.Member {
					o.out.released = true
				}
			}
		case SettleCall:
			for _, s := range e.Settlements {
				if o, ok := tokens[s.Token]; ok && s.Action == Release {
					o.out.released = true
				}
			}
		case ReceiveReturn:
			c := j.calls[e.Call]
			if c == nil || c.last == nil {
				continue
			}
			for _, d := range e.Deliveries {
				l := lives[d.Place]
				if l == nil || l.message != d.Message {
					j.say("P1", "group %s was handed %v at %v, which the log does not hold", g.Name, d.Message, d.Place)
					continue
				}
				if o, ok := tokens[d.Token]; ok {
					if o.life != l || o.out.attempt != d.Attempt || o.out.member != c.first.Member {
						j.say("P8", "group %s: token %s stands for attempt %d of %v by %s, and for attempt %d of %v by %s",
							g.Name, d.Token, o.out.attempt, o.life.place, o.out.member, d.Attempt, d.Place, c.first.Member)
					}
					if l.acked < c.begin {
						j.say("P6", "group %s: %v was delivered again after its confirmed ack", g.Name, l.place)
					}
					continue
				}
				o := &handOut{
					token: d.Token, attempt: d.Attempt, member: c.first.Member, replayed: d.Replayed,
					begin: c.begin, end: i,
				}
				if l.acked < c.begin && !d.Replayed {
					j.say("P6", "group %s: %v was handed out again after its confirmed ack", g.Name, l.place)
				}
				l.outs = append(l.outs, o)
				tokens[d.Token] = owner{l, o}
			}
		case SettleReturn:
			// Confirmed acks are needed above as they happen.
			c := j.calls[e.Call]
			if c == nil || c.last == nil || len(e.Settled) != len(c.first.Settlements) {
				continue
			}
			for n, s := range c.first.Settlements {
				if o, ok := tokens[s.Token]; ok && s.Action == Ack && !e.Settled[n].Refused {
					o.life.acked = min(o.life.acked, i)
				}
			}
		}
	}
	return tokens
}

func (j *judge) settlements(g Group, lives map[Place]*life, tokens map[string]owner) {
	acked := map[string]int{} // by token: where its ack was confirmed
	for _, c := range j.order {
		if c.first.Kind != SettleCall || c.first.Group != g.Name {
			continue
		}
		if c.last != nil && len(c.last.Settled) != len(c.first.Settlements) {
			j.say("P6", "group %s: call %d settled %d deliveries and got %d results",
				g.Name, c.first.Call, len(c.first.Settlements), len(c.last.Settled))
			continue
		}
		for n, s := range c.first.Settlements {
			o, ok := tokens[s.Token]
			if !ok {
				continue
			}
			known := c.last != nil
			if known && c.last.Settled[n].Refused {
				if at, was := acked[s.Token]; was && s.Action == Ack && at < c.begin && !replayed(o.life) {
					j.say("P6", "group %s: the ack that settled %v was refused when it was repeated", g.Name, o.life.place)
				}
				continue
			}
			if known && s.Action == Ack {
				if at, was := acked[s.Token]; !was || c.end < at {
					acked[s.Token] = c.end
				}
			}
			ends := s.Action == Ack || s.Action == Reject ||
				s.Action == Nack && g.MaxAttempts > 0 && o.out.attempt >= g.MaxAttempts
			if ends {
				o.life.doneAt = min(o.life.doneAt, c.begin)
			}
			if s.Action == Ack && !known {
				o.life.maybe = true
			}
			if !known {
				continue
			}
			for _, later := range o.life.outs {
				if later.attempt > o.out.attempt && !later.replayed && later.end < c.begin {
					j.say("P6", "group %s: a token of attempt %d of %v was accepted after attempt %d was handed out",
						g.Name, o.out.attempt, o.life.place, later.attempt)
				} else if s.Action == Ack && later.attempt > o.out.attempt && !later.replayed {
					j.say("P6", "group %s: attempt %d of %v was acked, and attempt %d was handed out",
						g.Name, o.out.attempt, o.life.place, later.attempt)
				}
			}
			if c.last.Settled[n].Dead && !slices.ContainsFunc(g.Dead, func(d Dead) bool { return d.Place == o.life.place }) {
				j.say("P7", "group %s: %v became a dead letter by the answer, and is not among them", g.Name, o.life.place)
			}
		}
	}
}

// replayed tells whether a message was handed out again from dead letters.
func replayed(l *life) bool {
	return slices.ContainsFunc(l.outs, func(o *handOut) bool { return o.replayed })
}

func (j *judge) deadLetters(g Group, lives map[Place]*life) {
	for i := range g.Dead {
		d := &g.Dead[i]
		l := lives[d.Place]
		switch {
		case l == nil || l.message != d.Message:
			j.say("P7", "group %s: the dead letter %v at %v is not what the log holds", g.Name, d.Message, d.Place)
			continue
		case l.dead != nil:
			j.say("P7", "group %s: %v is dead twice", g.Name, d.Place)
		case l.acked != never:
			j.say("P7", "group %s: %v is both acked and dead", g.Name, d.Place)
		}
		if g.MaxAttempts > 0 && d.Attempts > g.MaxAttempts {
			j.say("P7", "group %s: %v died after %d attempts of %d", g.Name, d.Place, d.Attempts, g.MaxAttempts)
		}
		for _, o := range l.outs {
			if !o.replayed && o.attempt > d.Attempts {
				j.say("P5", "group %s: %v died with %d attempts, and attempt %d was handed out", g.Name, d.Place, d.Attempts, o.attempt)
			}
		}
		l.dead = d
	}
}

// attempts judges P5 and P7 for one message.
func (j *judge) attempts(g Group, l *life) {
	outs := slices.Clone(l.outs)
	slices.SortStableFunc(outs, func(a, b *handOut) int { return cmp.Compare(a.attempt, b.attempt) })
	var last *handOut
	for _, o := range outs {
		if o.replayed {
			continue
		}
		if g.MaxAttempts > 0 && o.attempt > g.MaxAttempts {
			j.say("P7", "group %s: attempt %d of %v is beyond the limit of %d", g.Name, o.attempt, l.place, g.MaxAttempts)
		}
		before, since := uint32(0), -1
		if last != nil {
			before, since = last.attempt, last.begin
			if o.attempt == last.attempt && !last.released && !o.released {
				j.say("P5", "group %s: attempt %d of %v was handed out twice", g.Name, o.attempt, l.place)
			}
			if o.attempt > last.attempt && o.end < last.begin {
				j.say("P5", "group %s: attempt %d of %v came before attempt %d", g.Name, o.attempt, l.place, last.attempt)
			}
		}
		if o.attempt == 0 {
			j.say("P5", "group %s: %v was handed out with attempt 0", g.Name, l.place)
		} else if o.attempt > before+1 {
			j.skipped(g, l, before, o.attempt, since, o.end)
		}
		last = o
	}
}

// skipped judges the attempts between two that members saw, of which the first was
// received after the event from, and the second by the event to.
func (j *judge) skipped(g Group, l *life, before, attempt uint32, from, to int) {
	if j.h.Logged == nil {
		if skipped, lost := int(attempt-before-1), j.lost(g.Name, "", from, to); skipped > lost {
			j.say("P5", "group %s: %v went from attempt %d to %d, with %d lost answers between", g.Name, l.place, before, attempt, lost)
		}
		return
	}
	logged := j.h.Logged(g.Name, l.place)
	excused := map[string]int{} // by member
	for unseen := before + 1; unseen < attempt; unseen++ {
		var members []string
		lost := false
		for _, h := range logged {
			if h.Attempt != unseen || lost {
				continue
			}
			members = append(members, h.Member)
			// One answer brings one attempt of a message.
			if lost = excused[h.Member] < j.lost(g.Name, h.Member, from, to); lost {
				excused[h.Member]++
			}
		}
		switch {
		case len(members) == 0:
			j.say("P5", "group %s: attempt %d of %v was charged, and the log has no hand-out of it", g.Name, unseen, l.place)
		case !lost:
			j.say("P5", "group %s: attempt %d of %v was handed out to %s, and came in no answer, although none was lost with it",
				g.Name, unseen, l.place, strings.Join(members, " and "))
		}
	}
}

// lost counts the receives that overlap a span and that may not have brought what
// was handed out to them: of a group those without an answer, of one of its members
// also those that were open as a node was killed.
func (j *judge) lost(group, member string, from, to int) (n int) {
	for _, c := range j.takes[group].around(from, to) {
		if !c.overlaps(from, to) {
			continue
		}
		if c.last == nil && (member == "" || c.first.Member == member) || c.first.Member == member && j.cutOff(c, from, to) {
			n++
		}
	}
	return n
}

// cutOff tells whether a call was open as a node was killed, in a span.
func (j *judge) cutOff(c *call, from, to int) bool {
	return slices.ContainsFunc(j.kills, func(kill *call) bool {
		return kill.overlaps(from, to) && kill.overlaps(c.begin, c.end)
	})
}

// overlaps tells whether a call had begun before an event and had not ended before
// another one. An event is a place in the history; -1 as the later one is its end.
func (c *call) overlaps(from, to int) bool {
	return (to < 0 || c.begin < to) && (c.end < 0 || c.end > from)
}

// strands judges P3: each key's messages in the order of their offsets.
func (j *judge) strands(g Group, lives map[Place]*life) {
	keys := map[string][]*life{}
	var names []string
	for _, s := range j.h.Log {
		if s.Message.Key == "" {
			continue
		}
		if keys[s.Message.Key] == nil {
			names = append(names, s.Message.Key)
		}
		keys[s.Message.Key] = append(keys[s.Message.Key], lives[s.Place])
	}
	for _, key := range names {
		strand := keys[key]
		slices.SortFunc(strand, func(a, b *life) int { return cmp.Compare(a.place.Offset, b.place.Offset) })
		// Forward: everything before is done when a message arrives.
		done, blocker := -1, (*life)(nil)
		for _, l := range strand {
			for _, o := range l.outs {
				if o.end < done && !o.replayed {
					j.say("P3", "group %s, key %q: %v was delivered while %v was not done", g.Name, key, l.place, blocker.place)
					break
				}
			}
			at := l.doneAt
			if l.dead != nil {
				at = min(at, 0) // by a lapse at a time that nobody saw
			}
			if at > done {
				done, blocker = at, l
			}
		}
		// Backward: nothing comes back after a later one arrived.
		first, later := never, (*life)(nil)
		for _, l := range slices.Backward(strand) {
			for _, o := range l.outs {
				if o.begin > first && !o.replayed {
					j.say("P3", "group %s, key %q: %v was handed out after %v", g.Name, key, l.place, later.place)
					break
				}
			}
			for _, o := range l.outs {
				if o.end < first {
					first, later = o.end, l
				}
			}
		}
	}
}
