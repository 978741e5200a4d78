package consumer

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/partition"
)

const (
	// noMemberAfter is how long nobody must have asked: between two polls of a
	// busy member there is always a moment without one. Of those whose session
	// ended nothing is expected any more.
	noMemberAfter partition.Millis = 10_000
	// noShareAfter is the same for one share where others are asked for.
	noShareAfter partition.Millis = 3_000
)

// firstWaiting is the first message that is neither settled nor handed out.
func (g *group) firstWaiting() partition.Offset {
	f := g.scanned
	for i := range g.entries {
		if e := &g.entries[i]; e.at != vacant && e.at != inFlight && e.offset < f {
			f = e.offset
		}
	}
	if o, ok, err := g.oldestQueued(); err == nil && ok {
		f = min(f, o)
	}
	return f
}

// unasked says what can go and does not, since those who may have it hold all
// that they may, or do not ask. Only the leader knows.
func (g *group) unasked(at partition.Position, now partition.Millis, lag uint64) []Stall {
	h := g.hand
	ready, first := h.readyByLane(g.time(now))
	unseen := g.unseen(at)
	can := unseen
	for _, n := range ready {
		can += n
	}
	if !h.askedFor(now) && (can > 0 || g.count[inFlight] == 0) {
		s := Stall{Reason: "NO_MEMBER", Offset: g.firstWaiting(), Waiting: lag, Text: "no member asks for messages of this partition"}
		if g.count[inFlight] > 0 {
			s.Text += "; " + outNow(g.count[inFlight])
		}
		return []Stall{s}
	}
	if can == 0 {
		return nil
	}
	// A lane stands if nobody who may have its messages takes any.
	stands, flows := make([]bool, len(h.lanes)), false
	for i := range h.lanes {
		stands[i] = !h.flows(i, now)
		flows = flows || !stands[i]
	}
	told := make([]bool, len(h.lanes))
	var all []Stall
	for m := range g.members {
		ms := &g.members[m]
		if ms.name == "" || ms.held < g.policy.MaxInFlightMember {
			continue
		}
		s := Stall{Reason: "IN_FLIGHT_LIMIT", Offset: g.scanned, Member: ms.name,
			Text: fmt.Sprintf("the member holds %s, the group's max_in_flight_member is %d, and nobody else may have what waits: settle some", quantity.Some(ms.held, "delivery"), g.policy.MaxInFlightMember)}
		for i := range h.lanes {
			if !stands[i] || !ms.covers(i, len(h.lanes)) {
				continue
			}
			told[i] = true
			if s.Waiting += ready[i]; ready[i] > 0 {
				s.Offset = min(s.Offset, first[i])
			}
		}
		if !flows {
			s.Waiting += unseen
		}
		if s.Waiting > 0 {
			all = append(all, s)
		}
	}
	for i := range h.lanes {
		if !stands[i] || told[i] || ready[i] == 0 {
			continue
		}
		s := Stall{Reason: "NO_MEMBER", Offset: first[i], Waiting: ready[i], Share: uint32(i), Shares: uint32(len(h.lanes))}
		s.Text = fmt.Sprintf("share %d of %d of the partition's keys belongs to a member that does not ask for messages", i+1, len(h.lanes))
		for m := range g.members {
			if ms := &g.members[m]; ms.asked != 0 && ms.covers(i, len(h.lanes)) {
				s.Member = ms.name
				break
			}
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Stall) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Member, b.Member))
	})
	return all
}

// readyByLane counts what can go in each lane, and finds the first of each.
func (h *hand) readyByLane(t partition.Millis) (n []uint64, first []partition.Offset) {
	n, first = make([]uint64, len(h.lanes)), make([]partition.Offset, len(h.lanes))
	for i := range h.g.entries {
		e := &h.g.entries[i]
		if e.at == vacant || h.g.standing(int32(i), t) != ready {
			continue
		}
		l := shareOf(e.keyHash, uint32(len(h.lanes)))
		if n[l] == 0 || e.offset < first[l] {
			first[l] = e.offset
		}
		n[l]++
	}
	return n, first
}

// askedFor tells whether a member waits for work, or did a moment ago and may
// well be back.
func (h *hand) askedFor(now partition.Millis) bool {
	for i := range h.g.members {
		if ms := &h.g.members[i]; ms.askedWithin(noMemberAfter, now) {
			return true
		}
	}
	for _, w := range h.waiters {
		if _, open := w.Taker.Room(); open && !w.gone && !w.rests {
			return true
		}
	}
	return false
}

// flows tells whether somebody takes what can go in a lane.
func (h *hand) flows(i int, now partition.Millis) bool {
	for _, w := range h.lanes[i].queue {
		if _, open := w.Taker.Room(); open && !w.gone && h.canHold(w) {
			return true
		}
	}
	for m := range h.g.members {
		ms := &h.g.members[m]
		if ms.askedWithin(noShareAfter, now) && ms.covers(i, len(h.lanes)) &&
			ms.held+ms.planned < h.g.policy.MaxInFlightMember {
			return true
		}
	}
	return false
}

// askedWithin tells whether the member waited for work not longer ago than so. Of what
// was before the leader's clock was set back it is not known how long ago that is.
func (m *member) askedWithin(span, now partition.Millis) bool {
	return m.asked != 0 && m.asked <= now && now-m.asked <= span
}

// covers tells whether a lane is part of the share that a member last asked for.
// One that did not ask yet, and holds something, may have asked for anything.
func (m *member) covers(lane, lanes int) bool {
	if m.asked == 0 {
		return m.held > 0
	}
	first, end := lanesOf(m.share, m.of, lanes)
	return lane >= first && lane < end
}
