package coordinator

import (
	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// expiry is where the leader notes who was heard of when. It lives as long as
// the leadership: a new leader knows nothing and so grants every session a full
// timeout. It decides nothing either: the sessions it found silent go through
// the log, where a member that has another session by then keeps it.
//
// It trusts its own clock no further than it was awake. A process that was
// stopped, or a clock that jumped, leaves a gap between two turns in which
// signs of life could not be heard; after such a gap everybody gets a full
// timeout anew.
type expiry struct {
	timeout partition.Millis
	seen    map[uint64]partition.Millis // session → when it was last heard of
	fresh   []sign                      // heard of, or missed, since the last turn
	last    partition.Millis            // the last turn; 0: none yet
	next    partition.Millis            // no session runs out before; 0: there are none
}

// sign is what is new about a session.
type sign struct {
	session uint64
	missed  bool
}

// again is how long a session that was proposed to end is left alone before it
// is proposed once more, in case the proposal got lost.
const again partition.Millis = 1_000

func newExpiry(timeout partition.Millis) *expiry {
	return &expiry{timeout: timeout, seen: make(map[uint64]partition.Millis)}
}

// hear notes a sign of life, or a session just opened. It counts from the next
// turn's time, which comes right after.
func (e *expiry) hear(session uint64) { e.fresh = append(e.fresh, sign{session: session}) }

// miss notes that a session was silent for long enough, however short that was. A sign of
// life that comes behind it counts more.
func (e *expiry) miss(session uint64) { e.fresh = append(e.fresh, sign{session, true}) }

// turn returns the sessions that were silent for the timeout, and those that are
// away and hold nothing any more, and when it wants
// its next turn at the latest (0: not before something is heard).
func (e *expiry) turn(now partition.Millis, m *Map) (silent []*storagev1.SessionRef, wake partition.Millis) {
	gap := now - e.last
	slept := e.last == 0 || gap < 0 || gap > e.timeout/2
	e.last = now
	if slept {
		clear(e.seen)
		e.next = now // look at all sessions below: each is new here
	}
	for _, s := range e.fresh {
		if s.missed {
			e.seen[s.session] = now - e.timeout
			e.next = now
			continue
		}
		e.seen[s.session] = now
	}
	// What is known already may want nothing for long, as members that are away.
	if len(e.fresh) > 0 && (e.next == 0 || now+e.timeout < e.next) {
		e.next = now + e.timeout
	}
	e.fresh = e.fresh[:0]
	if e.next != 0 && now >= e.next {
		silent = e.look(now, m)
	}
	if e.next == 0 {
		return silent, 0
	}
	// Turns often enough to tell a gap from silence.
	return silent, min(e.next, now+max(e.timeout/4, 1))
}

// look goes through all sessions and sets next.
func (e *expiry) look(now partition.Millis, m *Map) (silent []*storagev1.SessionRef) {
	seen := make(map[uint64]partition.Millis, m.sessions)
	e.next = 0
	for g := range m.Groups() {
		for _, mb := range g.Members {
			at, ok := e.seen[mb.Session]
			if !ok {
				at = now
			}
			seen[mb.Session] = at
			end := at + e.timeout
			if mb.Away {
				// By then all that it held has lapsed: it was given nothing since
				// it fell silent, and nothing is held for longer.
				end += partition.Millis(g.Policy.GetMaxHoldMs())
			}
			if end <= now {
				silent = append(silent, &storagev1.SessionRef{GroupId: uint64(g.ID), Member: mb.Name, Session: mb.Session, Away: mb.Away})
				end = now + again
			}
			if e.next == 0 || end < e.next {
				e.next = end
			}
		}
	}
	e.seen = seen
	return silent
}
