package coordinator

import (
	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// vigil is the leader's ear for signs of life. It lives as long as the
// leadership: a new leader knows nothing and so grants every session a full
// timeout. It decides nothing either: the sessions it found silent go through
// the log, where a member that has another session by then keeps it.
//
// It trusts its own clock no further than it was awake. A process that was
// stopped, or a clock that jumped, leaves a gap between two turns in which
// signs of life could not be heard; after such a gap everybody gets a full
// timeout anew.
type vigil struct {
	timeout partition.Millis
	seen    map[uint64]partition.Millis // session → when it was last heard of
	fresh   []uint64                    // heard of since the last turn
	last    partition.Millis            // the last turn; 0: none yet
	next    partition.Millis            // no session runs out before; 0: there are none
}

// again is how long a session that was proposed to end is left alone before it
// is proposed once more, in case the proposal got lost.
const again partition.Millis = 1_000

func newVigil(timeout partition.Millis) *vigil {
	return &vigil{timeout: timeout, seen: make(map[uint64]partition.Millis)}
}

// hear notes a sign of life, or a session just opened. It counts from the next
// turn's time, which comes right after.
func (v *vigil) hear(session uint64) { v.fresh = append(v.fresh, session) }

// turn returns the sessions that were silent for the timeout, and when it wants
// its next turn at the latest (0: not before something is heard).
func (v *vigil) turn(now partition.Millis, m *Map) (silent []*storagev1.SessionRef, wake partition.Millis) {
	gap := now - v.last
	slept := v.last == 0 || gap < 0 || gap > v.timeout/2
	v.last = now
	if slept {
		clear(v.seen)
		v.next = now // look at all sessions below: each is new here
	}
	for _, s := range v.fresh {
		v.seen[s] = now
	}
	if len(v.fresh) > 0 && v.next == 0 {
		v.next = now + v.timeout
	}
	v.fresh = v.fresh[:0]
	if v.next != 0 && now >= v.next {
		silent = v.look(now, m)
	}
	if v.next == 0 {
		return silent, 0
	}
	// Turns often enough to tell a gap from silence.
	return silent, min(v.next, now+max(v.timeout/4, 1))
}

// look goes through all sessions and sets next.
func (v *vigil) look(now partition.Millis, m *Map) (silent []*storagev1.SessionRef) {
	seen := make(map[uint64]partition.Millis, m.sessions)
	v.next = 0
	for s := range m.Sessions() {
		at, ok := v.seen[s.Number]
		if !ok {
			at = now
		}
		seen[s.Number] = at
		end := at + v.timeout
		if end <= now {
			silent = append(silent, &storagev1.SessionRef{GroupId: uint64(s.Group), Member: s.Member, Session: s.Number})
			end = now + again
		}
		if v.next == 0 || end < v.next {
			v.next = end
		}
	}
	v.seen = seen
	return silent
}
