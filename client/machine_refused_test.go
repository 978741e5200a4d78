package client

import (
	"errors"
	"testing"
	"time"
)

// What is refused for good is told to whoever logs, and a nack goes out again with less,
// until there is nothing left to refuse. It takes no credit a second time.
func TestHandTellsPlainerWhatIsRefusedForGood(t *testing.T) {
	h := newHand("t", "g", 100, 3)
	arrives(t, h, 0, gives(t, 1, 1, 50, "0:a", "1:b", "2:c"))
	ts, _ := starts(h, 0)
	h.finish(ts[0], judge(nil, RetryAfter(time.Hour, errors.New("no"))))
	f := h.frame()
	wants(t, "the nack", said(f), "+1 NACK 1-1")
	for i, want := range []struct {
		delay  int64
		reason string
	}{{0, "no"}, {0, ""}} {
		arrives(t, h, 0, settled(1, 1, "BAD_VALUE"))
		f = h.frame()
		wants(t, "the nack again", said(f), "+0 NACK 1-1")
		if s := f.GetSettlements()[0]; s.GetDelayMs() != want.delay || s.GetReason() != want.reason || len(h.refused) != i+1 {
			t.Errorf("%v, %d refusals", s, len(h.refused))
		}
	}
	arrives(t, h, 0, settled(1, 1, "BAD_VALUE"))
	wants(t, "a plain one that is refused", said(h.frame()), "nothing")
	h.finish(ts[1], ackIt)
	_ = h.frame()
	arrives(t, h, 0, settled(2, 2, "BAD_VALUE"))
	wants(t, "an ack that is refused", said(h.frame()), "nothing")
	h.finish(ts[2], ackIt)
	_ = h.frame()
	arrives(t, h, 0, settled(3, 3, "STALE_DELIVERY"))
	if len(h.refused) != 4 || h.refused[0].verdict.delay != time.Hour || h.held.n != 0 {
		t.Errorf("%d refusals, %d held", len(h.refused), h.held.n)
	}
}

// What waits behind a handler whose delivery is lost, and which does not end, is given
// back uncharged when half of its time is over, and not extended.
func TestHandGivesBackBehindALostHandler(t *testing.T) {
	h := newHand("t", "g", 100, 3)
	arrives(t, h, 0, gives(t, 1, 1, 50, "0:a", "1:b"))
	ts, _ := starts(h, 0)
	arrives(t, h, 0, gives(t, 3, 2, 60, "0:a")) // it lapsed
	if !ts[0].lost {
		t.Fatal("the handler's delivery is not lost")
	}
	_ = h.frame()
	h.tick(14 * second)
	wants(t, "early", said(h.frame()), "nothing")
	h.tick(15 * second)
	wants(t, "half way", said(h.frame()), "+1 RELEASE 3-3 EXTEND 2-2")
	arrives(t, h, 15*second, settled(3, 3, ""))
	arrives(t, h, 15*second, gives(t, 4, 2, 60, "0:a")) // and comes straight back
	if _, keys := starts(h, 15*second); keys != "" {
		t.Errorf("%s was started beside its first handler", keys)
	}
	h.finish(ts[0], judge(nil, errors.New("at last")))
	_, keys := starts(h, 16*second)
	wants(t, "started when it had ended", keys, "a")
}

// The broker tells the deadline with the refusal of an extend: it is none all the same.
func TestHandIsNotExtendedByARefusal(t *testing.T) {
	h := newHand("t", "g", 100, 1)
	arrives(t, h, 0, gives(t, 1, 1, 50, "0:a", "1:b"))
	ts, _ := starts(h, 0)
	h.tick(15 * second)
	wants(t, "half way", said(h.frame()), "+0 EXTEND 1-2")
	f := settled(1, 2, "HELD_TOO_LONG")
	f.Settled[0].Deadline = deadlineOf(30 * second)
	arrives(t, h, 16*second, f)
	wants(t, "what waits goes back", said(h.frame()), "+1 RELEASE 2-2")
	if gone := h.tick(30 * second); len(gone) != 1 || gone[0] != ts[0] {
		t.Errorf("%d handlers were told that their delivery lapsed", len(gone))
	}
}
