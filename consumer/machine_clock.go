package consumer

import "github.com/strandmq/strandmq/partition"

// The group's clock is in the log and only moves forward. Deadlines and backoffs
// are times of it. Its leader moves it as fast as time passes there, wherever
// its own clock stands: what is timed when a leader begins goes on from where
// the log left it. The two clocks come together by three rules:
//
//   - Nothing is timed: the group's clock is the leader's, unless it is ahead;
//     then it stands and waits.
//   - The group's clock is ahead (an earlier leader's was fast, or this one's was
//     set back): it runs at nine tenths of the speed until they meet.
//   - It is behind (the leader's clock is fast or was set forward, its node
//     slept, there was no leader): up to maxTurn are counted, and for the rest
//     the leader proposes a leap. A leap moves the clock, and with it all that is
//     timed: whatever is out or backs off keeps the time that it had left.
//
// So a clock that is wrong by hours costs what is timed two seconds, once, or
// makes it last a ninth longer; and a change of leader can give it again the
// time that passed since the group's last command, and no more.
const (
	// maxTurn is the most that one turn counts while anything is timed.
	maxTurn partition.Millis = 2_000
	// pulse is how often the leader has a turn while anything is timed, so that
	// what passed without one is no time but a step of its clock.
	pulse partition.Millis = 1_000
	// A clock that is ahead loses one part in so many.
	slower = 10
	// maxTime keeps sums of times from wrapping around.
	maxTime partition.Millis = 1 << 60
)

// pace is how a leader keeps the group's time, and its own: for what it proposed it
// waits by the latter. The group's stands where nothing is timed and the leader's clock
// was set back.
type pace struct {
	time   partition.Millis // of the group, at the last turn
	turn   partition.Millis // of the leader's own clock, at the last turn
	passed partition.Millis // by that clock since the first turn, steps back left out
	begun  bool             // there was a turn
	lost   partition.Millis // less than slower: so many parts of a millisecond are to be lost
	leapAt partition.Millis // when a leap was proposed that was not applied yet; 0: none
}

// timed tells whether there is anything whose time a step of the clock could
// cut short or draw out.
func (h *hand) timed() bool {
	return len(h.timers.items) > 0 && h.g.count[inFlight]+h.g.count[failed] > 0 || h.g.disk[failed] > 0 || h.waitsToProbe()
}

// waitsToProbe tells whether somebody waits for the breaker's next probe.
func (h *hand) waitsToProbe() bool {
	b := &h.g.breaker
	return b.open && b.probe == 0 && b.until > h.pace.time && len(h.waiters) > 0
}

// keepTime takes a turn of the leader's clock and tells the group's time.
func (h *hand) keepTime(now partition.Millis) partition.Millis {
	p := &h.pace
	if p.begun {
		p.passed += max(0, now-p.turn)
	}
	if !p.begun || h.g.clock-p.time > maxTurn {
		p.time, p.turn = h.g.clock, now // where the log left it, or leapt to
	}
	// Otherwise the log's clock is not looked at. The shell's commands may have
	// moved it since the last turn: by what has passed since, which is counted
	// below, and to count it twice would make a fast clock.
	if !h.timed() {
		*p = pace{time: max(h.g.clock, now), turn: now, passed: p.passed, begun: true}
		h.g.shared.set(0, maxTime)
		return p.time
	}
	if d := min(now-p.turn, maxTurn); p.begun && d > 0 {
		if p.time > p.turn {
			p.lost += d
			d -= p.lost / slower
			p.lost %= slower
		}
		p.time += d
	}
	p.turn, p.begun = now, true
	if p.time < now && now-p.time <= maxTurn {
		p.time = now
	}
	h.g.shared.set(p.time-now, p.time+maxTurn)
	return max(p.time, h.g.clock)
}

// ahead is how far the group's time is ahead of the leader's own clock.
func (h *hand) ahead() partition.Millis {
	if !h.pace.begun || !h.timed() {
		return 0
	}
	return h.pace.time - h.pace.turn
}

// catchUp proposes a leap when the group's clock is too far behind.
func (h *hand) catchUp(now partition.Millis, cmds [][]byte) [][]byte {
	p := &h.pace
	switch {
	case now-p.time <= maxTurn:
		p.leapAt = 0
	case p.leapAt == 0 || p.time-p.leapAt >= lapsePatience:
		p.leapAt = p.time
		cmds = append(cmds, encodeLeap(p.time, h.g.id, now))
	}
	return cmds
}

// wake is when the hand wants its next turn, by the leader's own clock.
func (h *hand) wake(now partition.Millis) partition.Millis {
	if !h.timed() {
		return h.wakeToLook(now) // what timers are left are those of what is settled
	}
	next := h.pace.time + pulse
	if len(h.timers.items) > 0 {
		next = min(next, partition.Millis(h.timers.items[0].rank))
	}
	if h.waitsToProbe() {
		next = min(next, h.g.breaker.until)
	}
	if at, ok := h.g.nextWake(); ok && at+h.g.leapt > h.pace.time {
		next = min(next, at+h.g.leapt) // what is overdue waits for room in memory
	}
	return now + min(max(next-h.pace.time, 1), pulse)
}

// wakeToLook is when something that was proposed may be taken for lost; 0: nothing is
// on its way.
func (h *hand) wakeToLook(now partition.Millis) partition.Millis {
	lost := maxTime
	if len(h.open) > 0 {
		lost = h.open[0].at + planPatience + 1
	}
	if h.waking != 0 {
		lost = min(lost, h.waking+lapsePatience)
	}
	if lost == maxTime {
		return 0
	}
	return now + max(lost-h.pace.passed, 1)
}

// leap moves the clock to a time, and all that is timed with it. It walks
// through what is unsettled, as only a step of the leader's clock or a change of
// leader can ask for.
func (g *group) leap(to partition.Millis) {
	d := to - g.clock
	if d <= 0 {
		return // it was made already
	}
	for i := range g.entries {
		e := &g.entries[i]
		if e.at != inFlight && (e.at != failed || e.until <= g.clock) {
			continue
		}
		e.until += d
		if e.at == inFlight {
			e.handedAt += d // what max hold counts from
		}
		g.touch(int32(i))
	}
	g.clock = to
	g.leapt += d // and with it what is timed on disk
	if g.breaker.open {
		g.breaker.until += d
	}
	if g.hand != nil {
		g.hand.rebuild()
	}
}

// time is the group's present time where the caller's clock says now.
func (g *group) time(now partition.Millis) partition.Millis {
	if g.hand == nil {
		return max(g.clock, now)
	}
	return max(g.clock, now+g.hand.ahead())
}

// shown turns a time to come of the group into one of the leader's own clock, at
// which it has not come yet: members know no other.
func (g *group) shown(t partition.Millis) partition.Millis {
	if g.hand == nil {
		return t
	}
	return t - max(0, g.hand.ahead())
}
