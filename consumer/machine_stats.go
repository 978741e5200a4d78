package consumer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/partition"
)

// MaxStalls is how many things that wait a state names at most.
const MaxStalls = 20

// state is the group at one position of its log.
func (g *group) state(at partition.Position, now partition.Millis) GroupState {
	count := g.tally(now)
	s := GroupState{
		Name: g.name, Policy: g.policy, Paused: g.paused, Position: at,
		Start: g.start, Floor: g.floor(), Oldest: g.oldest(), Scanned: g.scanned, Epoch: g.epoch,
		Counts: Counts{
			Ready: count[ready], Blocked: count[deferred], InFlight: count[inFlight],
			BackingOff: count[failed], Parked: count[parked],
			Dead: g.dead, Acked: g.acked, Skipped: g.skipped, Expired: g.expired, Replaying: g.replaying,
			HandedOut: g.handedOut, Retried: g.retried, OnDisk: g.onDisk(),
			Nacked: g.outcomes.nacked, Rejected: g.outcomes.rejected, Lapsed: g.outcomes.lapsed, Lost: g.outcomes.lost,
			HandledMs: g.outcomes.handled, Stale: g.refused.stale, Late: g.refused.late, LateMs: g.refused.lateFor,
		},
	}
	s.Counts.NotScanned = g.unseen(at)
	s.Circuit = Circuit{Open: g.breaker.open, Opened: g.breaker.opened}
	if g.breaker.open && g.breaker.probe == 0 {
		s.Circuit.Until = g.shown(g.breaker.until)
	}
	for i := range g.members {
		if m := &g.members[i]; m.held > 0 {
			s.Members = append(s.Members, MemberHold{Member: m.name, InFlight: uint64(m.held)})
		}
	}
	slices.SortFunc(s.Members, func(a, b MemberHold) int { return cmp.Compare(a.Member, b.Member) })
	s.Stalls = g.stalls(at, now)
	return s
}

// tally counts where the unsettled messages stand at the present time: the end
// of a backoff is no log entry, so the group's own counts do not know of it.
func (g *group) tally(now partition.Millis) [standings]uint64 {
	count := g.count
	for s := range count {
		count[s] += g.disk[s]
	}
	if count[failed] == 0 {
		return count
	}
	t := g.time(now)
	if g.disk[failed] > 0 {
		g.tallyDisk(t, &count)
	}
	for i := range g.entries {
		if g.entries[i].at == failed {
			count[failed]--
			count[g.standing(int32(i), t)]++
		}
	}
	return count
}

// standing is where an entry stands at a time of the group.
func (g *group) standing(i int32, t partition.Millis) standing {
	e := &g.entries[i]
	if e.at != failed || e.until > t {
		return e.at
	}
	if e.key == none {
		return ready
	}
	switch ks := &g.keys[e.key]; {
	case ks.blocked(e.offset):
		return parked
	case ks.head != i || ks.inFlight > 0:
		return deferred
	}
	return ready
}

// unseen counts what the group has yet to look at.
func (g *group) unseen(at partition.Position) uint64 {
	if at.End <= g.scanned {
		return 0
	}
	return uint64(at.End-g.scanned) - g.ahead
}

// stalls says what waits and why: first what holds the whole group, then keys
// beyond their alarm, then the other keys, the oldest first.
func (g *group) stalls(at partition.Position, now partition.Millis) []Stall {
	var all []Stall
	p := &g.policy
	t := g.time(now)
	lag := uint64(g.inMemory()) + g.onDisk() + g.unseen(at)
	whole := func(reason string, from partition.Offset, text string) {
		all = append(all, Stall{Reason: reason, Offset: from, Waiting: lag, Text: text})
	}
	if lag > 0 {
		switch {
		case g.breaker.open && !g.paused:
			whole("CIRCUIT_OPEN", g.firstWaiting(), fmt.Sprintf("at least %d %% of the deliveries of the last %d ms failed, over %d keys or more: one message at a time is tried, and nothing is charged, until one is handled; pausing and resuming the group tries the next one at once", p.BreakerPercent, p.BreakerWindow, p.BreakerKeys))
			all[0].Until = g.shown(g.breaker.until)
		case g.paused:
			whole("PAUSED", g.firstWaiting(), "the group is paused: resume it to go on")
		case !g.room() && at.End > g.scanned:
			whole("DEFERRED_LIMIT", g.scanned, deferredLimit(g.waiting(), g.policy.MaxDeferred))
		case g.count[inFlight] >= uint64(p.MaxInFlightPartition):
			whole("IN_FLIGHT_LIMIT", g.firstWaiting(), fmt.Sprintf("%s, and the group's max_in_flight_partition is %d: settle some", outNow(g.count[inFlight]), p.MaxInFlightPartition))
		case g.hand != nil:
			all = append(all, g.unasked(at, now, lag)...)
		}
	}
	if s, ok := g.unreadStall(at); ok {
		all = slices.Insert(all, 0, s)
	}
	heads := make([]Stall, 0, 8)
	for i := range g.keys {
		ks := &g.keys[i]
		if ks.head == none {
			continue
		}
		h := ks.head
		if ks.inFlight > 0 {
			for g.entries[h].at != inFlight {
				h = g.entries[h].next
			}
		}
		e := &g.entries[h]
		s := Stall{OfKey: true, KeyHash: e.keyHash, Offset: e.offset, Attempts: e.attempts, Waiting: ks.all() - 1}
		switch {
		case ks.blocked(e.offset) && e.at != inFlight:
			s.Reason, s.Offset, s.Waiting = "PARKED", ks.blockers[0], ks.all()
			s.Text = "the key waits behind its dead letter: replay or discard it"
			if row, dead, err := g.rows.dead(s.Offset); err == nil && dead {
				s.Attempts = row.attempts
			}
		case e.at == inFlight && ks.all() > 1:
			s.Reason, s.Until, s.Member = "IN_FLIGHT", g.shown(e.until), g.members[e.member].name
			s.Text = "the key waits for the delivery that is out"
		case e.at == failed && e.until > t:
			s.Reason, s.Until = "BACKING_OFF", g.shown(e.until)
			s.Text = "the message failed and waits for its next attempt"
		case g.alarmed(ks):
			s.Text = "the key's next message can go"
		default:
			continue
		}
		heads = append(heads, g.alarm(ks, s))
	}
	heads = append(heads, g.coldStalls(t)...)
	if p.Mode == NoOrder && g.count[failed] > 0 {
		for i := range g.entries {
			if e := &g.entries[i]; e.at == failed && e.until > t {
				heads = append(heads, Stall{
					OfKey: true, KeyHash: e.keyHash, Offset: e.offset, Attempts: e.attempts,
					Reason: "BACKING_OFF", Until: g.shown(e.until), Text: "the message failed and waits for its next attempt",
				})
			}
		}
	}
	slices.SortFunc(heads, func(a, b Stall) int {
		if (a.Reason == keyAlarm) != (b.Reason == keyAlarm) {
			if a.Reason == keyAlarm { // never cut off below
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Offset, b.Offset)
	})
	all = append(all, heads...)
	return all[:min(len(all), MaxStalls)]
}

// keyAlarm is the reason of a key behind which more waits than max_deferred_key.
const keyAlarm = "DEFERRED_KEY_LIMIT"

// alarmed tells whether so many messages of a key wait that it is worth an alarm.
func (g *group) alarmed(ks *keyState) bool {
	return ks.all()-uint64(ks.inFlight) >= uint64(g.policy.MaxDeferredKey)
}

// alarm makes a key's stall one, if it is.
func (g *group) alarm(ks *keyState, s Stall) Stall {
	if g.alarmed(ks) {
		s.Reason = keyAlarm
		s.Text = fmt.Sprintf("%d messages of this key wait, and the group's max_deferred_key is %d: an alarm, the other keys flow; %s",
			ks.all()-uint64(ks.inFlight), g.policy.MaxDeferredKey, s.Text)
	}
	return s
}

// coldStalls tells of keys on the shelf, those with the oldest messages.
func (g *group) coldStalls(t partition.Millis) (ss []Stall) {
	if g.cold == 0 {
		return nil
	}
	var hashes []uint64
	rows := 0
	g.fault(g.rows.Scan(g.rows.prefix(rowQueue), nil, func(k, v []byte) bool {
		if r, err := decodeQueueRow(k, v); err == nil && !slices.Contains(hashes, r.key) {
			hashes = append(hashes, r.key)
		}
		rows++
		return len(hashes) < MaxStalls && rows < shelfSeen
	}))
	for _, hash := range hashes {
		ks, ok := g.onShelf(hash)
		if !ok || ks.queue.n == 0 {
			continue
		}
		s := Stall{OfKey: true, KeyHash: hash, Offset: ks.queue.first, Waiting: ks.queue.n - 1}
		e, whole := g.unsettledOnDisk(s.Offset)
		if whole {
			s.KeyHash, s.Attempts = e.keyHash, e.attempts
		}
		switch {
		case ks.blocked(s.Offset):
			s.Reason, s.Offset, s.Waiting = "PARKED", ks.blockers[0], ks.queue.n
			s.Text = "the key waits behind its dead letter: replay or discard it"
			if row, dead, err := g.rows.dead(s.Offset); err == nil && dead {
				s.Attempts = row.attempts
			}
		case whole && e.at == failed && e.until > t:
			s.Reason, s.Until = "BACKING_OFF", g.shown(e.until)
			s.Text = "the message failed and waits for its next attempt"
		case g.alarmed(&ks):
			s.Text = "the key's next message can go"
		default:
			continue
		}
		ss = append(ss, g.alarm(&ks, s))
	}
	return ss
}

// whyIdle says in words why a member got nothing.
func (g *group) whyIdle(at partition.Position, now partition.Millis, explain func(GroupID, *partition.ErrUnreadable) string) string {
	c := g.tally(now)
	unseen := g.unseen(at)
	behind := c[deferred] + c[parked]
	switch {
	case g.paused:
		return "the group is paused: resume it to go on"
	case g.breaker.open:
		return "the group's circuit is open, as nearly everything failed: " + g.nextTry(now)
	case c[ready] == 0 && unseen == 0 && behind == 0 && c[failed] == 0 && c[inFlight] == 0:
		return ""
	case c[inFlight] >= uint64(g.policy.MaxInFlightPartition):
		return fmt.Sprintf("%s, and the group allows %d in a partition", outNow(c[inFlight]), g.policy.MaxInFlightPartition)
	case !g.room() && unseen > 0:
		return deferredLimit(g.waiting(), g.policy.MaxDeferred)
	case g.policy.Mode == ByPartition && c[inFlight] > 0:
		return "one message of the partition is out, and the group takes one at a time"
	case g.policy.Mode == ByPartition && c[failed] > 0:
		return "the partition's next message failed and waits for its next attempt"
	case c[ready] == 0 && g.unreadable() != nil:
		return explain(g.id, g.unreadable())
	case c[ready]+unseen > 0:
		return quantity.Many(c[ready]+unseen, "message can go, but not to this member: it belongs to another member's share, or that one", "messages can go, but not to this member: they belong to another member's share, or it") +
			" holds all that it may" + g.holders()
	case behind > 0:
		all := "the waiting message is blocked by its key"
		if behind > 1 {
			all = fmt.Sprintf("all %d waiting messages are blocked by their key", behind)
		}
		return fmt.Sprintf("%s: %s%s, %s, %s behind dead letters", all, outNow(c[inFlight]), g.holders(),
			quantity.Many(c[failed], "message backs off", "messages back off"), quantity.Many(c[parked], "waits", "wait"))
	case c[failed] > 0:
		return quantity.Many(c[failed], "message failed and waits for its next attempt", "messages failed and wait for their next attempt")
	default:
		return fmt.Sprintf("%s%s and nothing else is there", outNow(c[inFlight]), g.holders())
	}
}

func outNow(n uint64) string { return quantity.Many(n, "delivery is out", "deliveries are out") }

// nextTry says when the circuit lets a message go.
func (g *group) nextTry(now partition.Millis) string {
	if g.breaker.probe != 0 {
		return "one message is out to be tried, and its ack lets the others go"
	}
	wait := g.breaker.until - g.time(now)
	if wait <= 0 {
		return "the next message that does not back off is tried, and its ack lets the others go"
	}
	return fmt.Sprintf("the next message is tried in %d s, and its ack lets the others go; pausing and resuming the group tries one at once", (wait+999)/1000)
}

// holders names who holds deliveries, in brackets.
func (g *group) holders() string {
	var names []string
	for i := range g.members {
		if m := &g.members[i]; m.held > 0 {
			names = append(names, m.name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	const few = 3
	more := ""
	if len(names) > few {
		more = fmt.Sprintf(" and %d more", len(names)-few)
		names = names[:few]
	}
	return " (with " + strings.Join(names, ", ") + more + ")"
}

// where tells where one message, of a key hash, stands.
func (g *group) where(o partition.Offset, hash uint64, now partition.Millis) MessageInGroup {
	res := MessageInGroup{Group: g.id, Name: g.name}
	t := g.time(now)
	if e, at, ok := g.lookup(o, hash, t); ok {
		res.Attempts = e.attempts
		var ks *keyState
		if key, keyed := g.keyOf(hash); keyed {
			ks = g.keyAnywhere(key)
		}
		switch at {
		case inFlight:
			res.State = "in-flight"
			res.Detail = fmt.Sprintf("held by %s, for %d ms more", g.members[e.member].name, max(e.until-t, 0))
		case failed:
			res.State, res.Detail = "backing-off", fmt.Sprintf("next attempt in %d ms at the earliest", max(e.until-t, 0))
		case ready:
			res.State = "ready"
		case parked:
			res.State, res.Detail = "parked", fmt.Sprintf("behind the dead letter at offset %d", ks.blockers[0])
		default:
			res.State = "blocked"
			if h := g.headOf(ks); h != o {
				res.Detail = fmt.Sprintf("behind offset %d of its key", h)
			} else {
				res.Detail = "another delivery of its key is out"
			}
		}
		if e.replayed {
			if res.Detail != "" {
				res.Detail += "; "
			}
			res.Detail += "replayed"
		}
		return res
	}
	row, dead, err := g.rows.dead(o)
	if err == nil && dead && !row.replaying {
		res.State, res.Attempts = "dead", row.attempts
		if n := len(row.history); n > 0 {
			res.Detail = row.history[n-1].Reason
		}
		return res
	}
	why, skipped, err := g.rows.skippedAt(o)
	switch {
	case err != nil:
		res.State, res.Detail = "unknown", err.Error()
	case o < g.start:
		res.State, res.Detail = "skipped", "before the group's start"
	case o >= g.scanned && !skipped:
		res.State = "not-scanned"
		if dead {
			res.Detail = "a dead letter, to be delivered again"
		}
	case skipped:
		res.State = "skipped"
		switch why {
		case byDiscard:
			res.Detail = "discarded"
		default:
			res.Detail = "passed over by a reset"
		}
	default:
		res.State = "acked"
	}
	return res
}

// deferredLimit says why a group looks no further. What was out when the limit was
// reached, and failed since, waits beyond it.
func deferredLimit(waiting uint64, most uint32) string {
	beyond := ""
	if waiting > uint64(most) {
		beyond = ", and what was out and failed since comes on top"
	}
	return fmt.Sprintf("%d messages wait behind blocked or slow keys, and the group's max_deferred is %d%s: it looks no further until fewer wait", waiting, most, beyond)
}
