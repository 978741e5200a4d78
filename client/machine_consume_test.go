package client

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

const second = int64(1000)

// gives makes a frame of one partition's deliveries: offsets and keys like 5:a.
func gives(t *testing.T, number uint64, attempt uint32, handed int64, list ...string) *strandmqv1.ConsumeResponse {
	t.Helper()
	b := &strandmqv1.DeliveryBatch{FirstNumber: number, HandedMs: handed, DeadlineMs: handed + 30*second}
	var recs []record.Record
	last := uint64(0)
	for i, x := range list {
		var offset uint64
		var key string
		if _, err := fmt.Sscanf(x, "%d:%s", &offset, &key); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			b.FirstOffset = offset
		} else {
			b.OffsetSteps = append(b.OffsetSteps, uint32(offset-last))
		}
		last = offset
		b.Attempts = append(b.Attempts, attempt)
		b.FirstSeenMs = append(b.FirstSeenMs, 1) // all messages were first seen then
		recs = append(recs, record.Record{HasKey: true, Key: []byte(key)})
	}
	b.Records = record.Append(nil, record.Meta{}, recs)
	return &strandmqv1.ConsumeResponse{Batches: []*strandmqv1.DeliveryBatch{b}}
}

func arrives(t *testing.T, h *hand, now int64, f *strandmqv1.ConsumeResponse) (gone []*task) {
	t.Helper()
	u, err := unpack(f, h.topic, h.group, now)
	if err == nil {
		gone, err = h.arrive(u, now)
	}
	if err != nil {
		t.Fatal(err)
	}
	return gone
}

// starts starts what may be started, and tells the keys.
func starts(h *hand, now int64) (out []*task, keys string) {
	h.pass(now)
	for x := h.start(); x != nil; x = h.start() {
		out, keys = append(out, x), keys+x.Key
	}
	return out, keys
}

// said is a frame in short: 3 credits, ack 1-2, extend 5.
func said(f *strandmqv1.ConsumeRequest) string {
	if f == nil {
		return "nothing"
	}
	out := fmt.Sprint("+", f.GetCredits())
	if f.GetDrain() {
		out += " DRAIN"
	}
	for _, s := range f.GetSettlements() {
		out += fmt.Sprintf(" %s %d-%d", s.GetAction().String()[len("SETTLE_ACTION_"):], s.GetFirst(), s.GetLast())
	}
	return out
}

func settled(first, last uint64, reason string) *strandmqv1.ConsumeResponse {
	r := &strandmqv1.SettleRunResult{First: first, Last: last}
	if reason != "" {
		r.Problem = problemOf(reason, 0)
	}
	return &strandmqv1.ConsumeResponse{Settled: []*strandmqv1.SettleRunResult{r}}
}

func wants(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// Settlements gather, neighbours that fare alike are one run, and each gives a
// credit back.
func TestHandSettles(t *testing.T) {
	h := newHand("t", "g", 100, 4)
	arrives(t, h, 0, gives(t, 1, 1, 50, "0:a", "1:b", "2:c", "3:d", "4:e"))
	ts, keys := starts(h, 0)
	wants(t, "started", keys, "abcd")
	h.finish(ts[1], ackIt)
	h.finish(ts[0], ackIt)
	h.finish(ts[3], judge(nil, errors.New("no")))
	wants(t, "the frame", said(h.frame()), "+3 ACK 1-2 NACK 4-4")
	wants(t, "another frame", said(h.frame()), "nothing")
	arrives(t, h, 0, settled(1, 2, ""))
	arrives(t, h, 0, settled(4, 4, "STALE_DELIVERY"))
	if h.late != 1 || h.held.n != 2 {
		t.Errorf("%d late, %d held", h.late, h.held.n)
	}
	_, keys = starts(h, 0)
	wants(t, "started", keys, "e")
	h.drain()
	wants(t, "draining", said(h.frame()), "+0 DRAIN")
	wants(t, "draining", said(h.frame()), "nothing")
	arrives(t, h, 0, gives(t, 6, 1, 50, "5:f", "6:g"))
	wants(t, "what comes while draining", said(h.frame()), "+0 RELEASE 6-7")
}

// What is in hand, running or not, is extended when half of its time is over; what
// the broker does not extend goes back, or its handler is told.
func TestHandExtends(t *testing.T) {
	h := newHand("t", "g", 100, 1)
	arrives(t, h, 0, gives(t, 1, 1, 50, "0:a", "1:b", "2:c"))
	ts, _ := starts(h, 0)
	h.tick(14 * second)
	wants(t, "early", said(h.frame()), "nothing")
	h.tick(15 * second)
	wants(t, "half way", said(h.frame()), "+0 EXTEND 1-3")
	f := settled(1, 3, "")
	f.Settled[0].Deadline = deadlineOf(45 * second)
	arrives(t, h, 16*second, f)
	h.tick(29 * second)
	wants(t, "extended", said(h.frame()), "nothing")
	h.tick(30 * second)
	wants(t, "half way again", said(h.frame()), "+0 EXTEND 1-3")
	arrives(t, h, 31*second, settled(1, 2, "HELD_TOO_LONG"))
	if gone := arrives(t, h, 31*second, settled(3, 3, "STALE_DELIVERY")); len(gone) > 0 {
		t.Errorf("%d handlers should stop", len(gone))
	}
	wants(t, "what is held too long", said(h.frame()), "+2 RELEASE 2-2")
	if gone := h.tick(45 * second); len(gone) > 0 {
		t.Error("the handler was told too early")
	}
	if gone := h.tick(46 * second); len(gone) != 1 || gone[0] != ts[0] {
		t.Errorf("%d handlers were told that their delivery lapsed", len(gone))
	}
}

// What is refused for now is told again after a while: the delivery is still this member's.
// Until it is known, nothing is given up: no handler is told to stop, and none runs twice.
func TestHandTellsAgainWhatWasRefusedForNow(t *testing.T) {
	for _, reason := range []string{"NOT_LEADER", "OUTCOME_UNKNOWN", "QUEUE_FULL"} {
		h := newHand("t", "g", 100, 2)
		arrives(t, h, 0, gives(t, 1, 1, 50, "0:a", "1:b", "2:c"))
		ts, _ := starts(h, 0)
		h.finish(ts[0], ackIt)
		wants(t, "the ack", said(h.frame()), "+1 ACK 1-1")
		passes := func(first, last uint64) *strandmqv1.ConsumeResponse {
			f := settled(first, last, reason)
			f.Settled[0].Problem.RetryAfterMs = 500
			return f
		}
		arrives(t, h, 0, passes(1, 1))
		h.tick(499)
		wants(t, "too early", said(h.frame()), "nothing")
		h.tick(500)
		wants(t, "the ack again", said(h.frame()), "+0 ACK 1-1")
		h.tick(2 * second)
		wants(t, "while it is on its way", said(h.frame()), "nothing")
		arrives(t, h, 0, settled(1, 1, ""))
		if h.late != 0 || h.held.n != 2 || h.idle() {
			t.Errorf("%s: %d late, %d held", reason, h.late, h.held.n)
		}
		// The same of an extend, of what runs and of what waits.
		h.tick(15 * second)
		wants(t, "half way", said(h.frame()), "+0 EXTEND 2-3")
		if gone := arrives(t, h, 15*second, passes(2, 3)); len(gone) > 0 {
			t.Errorf("%s: %d handlers should stop", reason, len(gone))
		}
		h.tick(15*second + 499)
		wants(t, "too early", said(h.frame()), "nothing")
		h.tick(15*second + 500)
		wants(t, "the extend again", said(h.frame()), "+0 EXTEND 2-3")
		// Refused until its session is lost: what was handled is not handled again.
		h.finish(ts[1], ackIt)
		wants(t, "the other ack", said(h.frame()), "+1 ACK 2-2")
		arrives(t, h, 16*second, passes(2, 2))
		h.closed()
		arrives(t, h, 17*second, gives(t, 1, 2, 50, "1:b"))
		wants(t, "when it comes again", said(h.frame()), "+1 ACK 1-1")
	}
}

// When a session is lost, nothing of a key starts while its handler still runs,
// and what that one decided is told when the message comes again.
func TestHandAfterALostSession(t *testing.T) {
	h := newHand("t", "g", 100, 8)
	arrives(t, h, 0, gives(t, 1, 1, 50, "0:a", "1:b", "2:c", "3:d"))
	ts, _ := starts(h, 0)
	h.finish(ts[2], ackIt)
	h.finish(ts[3], judge(nil, errors.New("no")))
	_ = h.frame() // and the answer is lost
	if gone := h.closed(); len(gone) != 2 {
		t.Fatalf("%d handlers should stop", len(gone))
	}
	wants(t, "without a session", said(h.frame()), "nothing")
	// Some are charged, others are given back by a broker that stops in good order.
	arrives(t, h, 0, gives(t, 1, 2, 60, "0:a", "1:b"))
	arrives(t, h, 0, gives(t, 3, 1, 60, "2:c", "3:d", "4:e"))
	wants(t, "what was done is acked", said(h.frame()), "+1 ACK 3-3")
	again, keys := starts(h, 0)
	wants(t, "started", keys, "de") // d failed, so it is tried again
	h.finish(ts[0], ackIt)
	h.finish(ts[1], judge(nil, errors.New("stopped")))
	_, keys = starts(h, 0)
	wants(t, "when the lost handlers ended", keys, "b")
	wants(t, "what they did", said(h.frame()), "+1 ACK 1-1")
	_ = again
}

// A handler ended well, and its ack came when the delivery had lapsed: when the message
// comes again it is acked, and not handled twice. What failed is tried again, what was
// replayed from the dead letters is handled again, and so is what a reset brings back.
func TestHandRemembersWhatCameTooLate(t *testing.T) {
	h := newHand("t", "g", 100, 8)
	arrives(t, h, 0, gives(t, 1, 1, 50, "0:a", "1:b", "2:c", "3:d"))
	ts, _ := starts(h, 0)
	for i, err := range []error{nil, nil, errors.New("no"), nil} {
		h.finish(ts[i], judge(nil, err))
	}
	wants(t, "the frame", said(h.frame()), "+4 ACK 1-2 NACK 3-3 ACK 4-4")
	arrives(t, h, 0, settled(1, 4, "STALE_DELIVERY"))
	if h.late != 4 || h.held.n != 0 {
		t.Errorf("%d late, %d held", h.late, h.held.n)
	}
	f := gives(t, 5, 2, 60, "0:a", "1:b", "2:c", "3:d")
	f.Batches[0].Replayed = []uint32{1}
	f.Batches[0].FirstSeenMs[3] = 60 // its time with the group begins anew
	arrives(t, h, 0, f)
	_, keys := starts(h, 0)
	wants(t, "handled again", keys, "bcd")
	wants(t, "told at once", said(h.frame()), "+1 ACK 5-5")
	// Once it is acked, nothing is remembered of it.
	arrives(t, h, 0, settled(5, 5, ""))
	arrives(t, h, 0, gives(t, 9, 1, 60, "0:a"))
	_, keys = starts(h, 0)
	wants(t, "handled after all", keys, "a")
	if len(h.acked) > 0 || len(h.oldest) > 0 {
		t.Errorf("still remembered: %v, %v", h.acked, h.oldest)
	}
}

// A group that begins anew with a message has it handled, whatever became of it
// before.
func TestHandAfterAReset(t *testing.T) {
	h := newHand("t", "g", 100, 8)
	arrives(t, h, 0, gives(t, 1, 1, 50, "0:a", "1:b"))
	ts, _ := starts(h, 0)
	h.finish(ts[0], ackIt)
	h.finish(ts[1], ackIt)
	_ = h.frame()
	h.closed()
	f := gives(t, 1, 1, 60, "0:a", "1:b")
	f.Batches[0].FirstSeenMs = []int64{60, 60} // its time with the group begins anew
	arrives(t, h, 0, f)
	_, keys := starts(h, 0)
	wants(t, "started", keys, "ab")
}

// The broker may know of a lapse before we do: a message that comes again waits
// for its handler here, and so does the next one of its key when the deadline is
// near. A group without order has two of a key at once.
func TestHandKnowsOfALapse(t *testing.T) {
	h := newHand("t", "g", 100, 8)
	arrives(t, h, 0, gives(t, 1, 1, 50, "0:a", "1:b", "2:b"))
	ts, keys := starts(h, 0)
	wants(t, "started", keys, "abb")
	if gone := arrives(t, h, 0, gives(t, 4, 2, 60, "0:a")); len(gone) != 1 || gone[0] != ts[0] {
		t.Fatalf("%d handlers should stop", len(gone))
	}
	arrives(t, h, 25*second, gives(t, 5, 1, 60, "3:b"))
	_, keys = starts(h, 25*second)
	wants(t, "started near the deadline", keys, "")
	for _, x := range ts {
		h.finish(x, ackIt)
	}
	_, keys = starts(h, 25*second)
	wants(t, "started then", keys, "b")
	wants(t, "the frame", said(h.frame()), "+4 ACK 2-4")
	if len(h.running) != 1 || len(h.lostPlaces)+len(h.acked) > 0 {
		t.Errorf("something was left behind: %d run, %v, %v", len(h.running), h.lostPlaces, h.acked)
	}
}

// What is remembered of lost settlements is bounded.
func TestHandForgets(t *testing.T) {
	h := newHand("t", "g", 100, 8)
	for i := range uint64(mostAcked + 500) {
		h.remember(&task{Delivery: Delivery{Offset: i}}, ackIt)
	}
	if len(h.acked) != mostAcked || len(h.oldest) != mostAcked || h.oldest[0].offset != 500 {
		t.Errorf("%d are remembered, from %v", len(h.acked), h.oldest[0])
	}
}

// Answers that no broker of this version gives are errors, not faults.
func TestHandRefusesNonsense(t *testing.T) {
	for name, f := range map[string]*strandmqv1.ConsumeResponse{
		"no records":    {Batches: []*strandmqv1.DeliveryBatch{{FirstNumber: 1}}},
		"cut":           {Batches: []*strandmqv1.DeliveryBatch{{FirstNumber: 1, Records: gives(t, 1, 1, 0, "0:a").Batches[0].Records[:20]}}},
		"number twice":  {Batches: append(gives(t, 1, 1, 0, "0:a").Batches, gives(t, 1, 1, 0, "1:b").Batches...)},
		"endless run":   settled(1, 1<<62, ""),
		"runs reversed": settled(9, 3, ""),
	} {
		h := newHand("t", "g", 100, 8)
		u, err := unpack(f, "t", "g", 0)
		if err == nil {
			_, err = h.arrive(u, 0)
		}
		if (err == nil) != (name == "runs reversed") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReason(t *testing.T) {
	long := make([]byte, 0, 2000)
	for len(long) < 1990 {
		long = append(long, "ä"...)
	}
	for _, s := range []string{"fine", "\xff", string(long), "x" + string(long)} {
		if got := reason(errors.New(s)); len(got) > longestReason || len(s) > 100 && len(got) < longestReason-1 {
			t.Errorf("%q became %q", s, got)
		}
	}
	if d := RetryAfter(0, nil); d.Error() == "" || judge(nil, d).delay != time.Millisecond {
		t.Errorf("%v", d)
	}
}

func deadlineOf(ms int64) *timestamppb.Timestamp { return timestamppb.New(time.UnixMilli(ms)) }
