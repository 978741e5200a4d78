package consumer

import "github.com/strandmq/strandmq/partition"

// Every settlement goes into the log before it is judged, so one that came too late is
// there, too: a trace tells it as refused, by the rules of group.settle. What it repeats
// of a settlement that took effect is a success, and not told again. What a stream
// refuses without its partition (a number that it does not know) is in no log.

// keptHands is how many hand-outs of a message a trace remembers for who comes late:
// whose it was is not in a settlement.
const keptHands = 32

// heldLongest is why an extend of what is still out is refused.
const heldLongest = "it was held as long as the group's policy allows"

// aHand is a hand-out that was told.
type aHand struct {
	epoch    uint64
	ordinal  uint32
	attempts uint32
	member   string
}

// hand remembers a hand-out.
func (g *traced) hand() {
	if len(g.hands) == keptHands {
		g.hands = append(g.hands[:0], g.hands[1:]...)
	}
	g.hands = append(g.hands, aHand{g.epoch, g.ordinal, g.attempts, g.member})
	g.ended, g.moved = "", false
}

// refused tells a settlement by a token that was not current, unless it was a repeat.
func (t *tracer) refused(at partition.Index, h header, g *traced, k Token, a Action) {
	if why := g.refuses(k, a); why != "" && a != bury {
		t.tellRefused(at, h, g, k, a, why)
	}
}

func (t *tracer) tellRefused(at partition.Index, h header, g *traced, k Token, a Action, why string) {
	e := TraceEvent{What: "refused", Detail: a.String() + ": " + why, Reason: why}
	for _, x := range g.hands {
		if x.epoch == k.Epoch && x.ordinal == k.Ordinal {
			e.Member, e.Attempt = x.member, x.attempts
		}
	}
	t.put(at, h, g, e)
}

// refuses is why a settlement by a token that is not current was refused; empty: it
// repeats what took effect.
func (g *traced) refuses(k Token, a Action) string {
	same := k.Ordinal == g.ordinal
	switch {
	case g.moved || k.Epoch != g.epoch:
		return "the group was reset since"
	case g.settled && g.ended == "discarded":
		return "the message was given up"
	case g.settled && !same:
		return "another hand-out of the message was acked"
	case g.settled && a == Ack:
		return ""
	case g.settled:
		return "it was acked"
	case g.dead && same && (a == Nack && g.ended == "nacked" || a == Reject && g.ended == "rejected"):
		return ""
	case g.dead:
		return "the message is a dead letter"
	case g.out || !same:
		return "the message was handed out again since"
	case a == Nack && g.ended == "nacked", a == Release && g.ended == "released":
		return ""
	}
	switch g.ended {
	case "nacked":
		return ended(byNack)
	case "lapsed":
		return ended(byLapse)
	case "session-lost":
		return ended(bySession)
	case "released":
		return ended(byRelease)
	case "rejected":
		return ended(byReject)
	}
	return ended(notEnded)
}
