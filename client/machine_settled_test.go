package client

import (
	"testing"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// over is a frame of deliveries that the hand-out settled.
func over(f *strandmqv1.ConsumeResponse) *strandmqv1.ConsumeResponse {
	for _, b := range f.GetBatches() {
		b.Settled = true
	}
	return f
}

// What the hand-out settled does not lapse and is not told of; of one key one runs at a
// time, in order.
func TestHandSettledTurns(t *testing.T) {
	h := newHand("t", "g", 10, 4)
	arrives(t, h, 0, over(gives(t, 1, 1, 0, "0:a", "1:b", "2:a", "3:a", "4:c")))
	first, keys := starts(h, 0)
	wants(t, "started", keys, "abc")
	if gone := h.tick(3600 * second); len(gone) > 0 {
		t.Errorf("%d lapsed", len(gone))
	}
	h.finish(first[0], ackIt)
	h.finish(first[1], ackIt)
	wants(t, "the frame", said(h.frame()), "+2")
	again, keys := starts(h, 3600*second)
	wants(t, "started next", keys, "a")
	if again[0].Offset != 2 {
		t.Errorf("offset %d of a came after 0", again[0].Offset)
	}
	h.finish(again[0], ackIt)
	last, keys := starts(h, 3600*second)
	wants(t, "started last", keys, "a")
	h.finish(last[0], ackIt)
	h.finish(first[2], ackIt)
	if !h.idle() || len(h.turns.behind) > 0 {
		t.Errorf("idle %v, %d keys are kept", h.idle(), len(h.turns.behind))
	}
	wants(t, "the last frame", said(h.frame()), "+3")
}

// It outlives its session, whose successor gets credits for what is left.
func TestHandSettledOutlives(t *testing.T) {
	h := newHand("t", "g", 10, 1)
	arrives(t, h, 0, over(gives(t, 1, 1, 0, "0:a", "1:b", "2:a", "3:d")))
	ts, _ := starts(h, 0)
	if gone := h.closed(); len(gone) > 0 || h.busy() != 4 {
		t.Errorf("%d handlers were stopped, %d are left", len(gone), h.busy())
	}
	if h.opens() != 6 {
		t.Errorf("the next session begins with %d credits", h.opens())
	}
	h.finish(ts[0], ackIt)
	wants(t, "the frame", said(h.frame()), "+1")
}

// A drain has it handled, since nobody else gets it; only what has no time left is lost.
func TestHandSettledDrains(t *testing.T) {
	h := newHand("t", "g", 10, 1)
	arrives(t, h, 0, over(gives(t, 1, 1, 0, "0:a", "1:b", "2:a", "3:d")))
	ts, _ := starts(h, 0)
	h.drain()
	wants(t, "the frame", said(h.frame()), "+0 DRAIN")
	h.finish(ts[0], ackIt)
	arrives(t, h, 0, over(gives(t, 5, 1, 0, "4:e"))) // was on its way
	if ts, keys := starts(h, 0); keys != "b" || h.idle() {
		t.Errorf("%q started, idle %v", keys, h.idle())
	} else {
		if lost := h.giveUp(); lost != 3 {
			t.Errorf("%d are lost", lost)
		}
		h.finish(ts[0], ackIt)
	}
	if !h.idle() {
		t.Error("something is left")
	}
	wants(t, "the last frame", said(h.frame()), "nothing")
}
