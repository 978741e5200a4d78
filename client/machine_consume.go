package client

import (
	"fmt"
	"slices"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// The most that one frame of settlements carries, and how many messages are
// remembered whose ack was lost.
const (
	frameRuns     = 1000
	frameSettled  = 65_536
	mostAcked     = 10_000
	longestReason = 1024
)

// verdict is what becomes of a delivery.
type verdict struct {
	action strandmqv1.SettleAction
	delay  time.Duration
	reason string
}

// The verdicts without words.
var (
	ackIt     = &verdict{action: strandmqv1.SettleAction_SETTLE_ACTION_ACK}
	releaseIt = &verdict{action: strandmqv1.SettleAction_SETTLE_ACTION_RELEASE}
	extendIt  = &verdict{action: strandmqv1.SettleAction_SETTLE_ACTION_EXTEND}
)

// task is a delivery in this member's hands. Its fields are the hand's; the
// handler has the Delivery.
type task struct {
	Delivery
	handling handling // the handler's context; not the hand's
	number   uint64   // on its stream
	verdict  *verdict
	againAt  int64 // when a settlement that was refused for now is sent again; 0: it was not
	every    int64 // the ack deadline, in milliseconds
	renewAt  int64 // milliseconds by our clock
	lapsesAt int64
	at       int32 // in hand.running, while a handler has it
	state    taskState
	told     bool // its settlement was sent
	lost     bool // it is this member's no longer; the handler may still run
	settled  bool // by the hand-out: the group is at-most-once

	nextNumber, nextPlace *task // of held
}

// firstSeen is when the group had the message first, as the broker said.
func (t *task) firstSeen() int64 { return t.FirstSeen.UnixMilli() }

type taskState uint8

const (
	taskWaits    taskState = iota // for a handler
	taskRuns                      // a handler has it
	taskSettling                  // its settlement is on the way, or waits to be
)

// place names a message.
type place struct {
	partition uint32
	offset    uint64
}

// remembered is a delivery that was handled, and whose ack got lost or came too late.
type remembered struct {
	attempt   uint32
	firstSeen int64
}

// hand decides for a consumer: which delivery a handler may have, what is settled,
// how many more may come, and what a lost session leaves behind. It is a value
// without lock, clock and network: it belongs to who has the lock of the consumer.
// Time passes for it by arrive and tick, which comes eight times in an ack deadline.
//
//	frame ─► arrive ─► waiting ─start─► running ─finish─► settling ─frame─► broker
//	             │                         │ lost           ▲ confirm ◄──┘
//	             │ acked before            ▼                │
//	             └───────────────────► acked ───────────────┘
//
// The broker gives out one message of a key at a time, unless the group's mode is
// none. But when a session is lost, or a delivery lapses, the message, or the next
// of its key, may come while the handler still runs here; and the broker may know
// of a lapse before we do. So nothing starts while a handler of the same key, or of
// the same message, runs whose delivery is lost or near its deadline; and when a
// lost handler was done with the message, it is acked when it comes again, instead
// of a second run.
//
// What the hand-out settled is nobody's but ours: it does not lapse, it outlives the
// session, and there is nothing to tell of it. The next message of its key may be here
// already, and waits.
type hand struct {
	topic, group string
	prefetch     int
	most         int // handlers at once
	draining     bool
	unheard      bool // the broker was not told that it drains

	held    held    // of the session, until confirmed
	waiting []*task // in the order in which they came
	running []*task // that handlers have, lost ones too, in no order
	turns   turns   // of keys whose hand-out settles
	credits int     // to be given
	settle  []*task // to be told
	renew   []*task // to be extended

	now        int64         // when time last passed, in milliseconds by our clock
	doubts     bool          // some of running were doubtful then
	lostPlaces map[place]int // lost ones that handlers have, by message
	acked      map[place]remembered
	oldest     []place // of acked, in the order in which they were remembered

	every int64 // the shortest ack deadline seen, in milliseconds
	late  int   // settlements that came too late

	refused []refusal // settlements that were refused for good, to be logged
}

func newHand(topic, group string, prefetch, most int) *hand {
	return &hand{
		topic: topic, group: group, prefetch: prefetch, most: most,
		held: newHeld(), turns: newTurns(), lostPlaces: map[place]int{}, acked: map[place]remembered{},
	}
}

// arrive takes the deliveries and results of one frame. gone are those whose
// handlers should stop. An error means that the broker does not keep to the
// protocol.
func (h *hand) arrive(u unpacked, now int64) (gone []*task, err error) {
	defer h.pass(now)
	for _, r := range u.settled {
		out, err := h.confirm(r, now)
		gone = append(gone, out...)
		if err != nil {
			return gone, err
		}
	}
	if u.every > 0 && (h.every == 0 || u.every < h.every) {
		h.every = u.every
	}
	for _, t := range u.tasks {
		if t.settled {
			if h.turns.first(t) {
				h.waiting = append(h.waiting, t)
			}
			continue
		}
		if h.held.number(t.number) != nil {
			return gone, &Error{Message: fmt.Sprintf("the broker gave two deliveries the number %d", t.number)}
		}
		if old := h.held.place(t.place()); old != nil && h.lose(old) { // it lapsed
			gone = append(gone, old)
		}
		h.held.put(t)
		switch {
		case h.recall(t):
			h.decide(t, ackIt)
		case h.draining:
			h.decide(t, releaseIt)
		default:
			h.waiting = append(h.waiting, t)
		}
	}
	return gone, nil
}

// pass notes how late it is.
func (h *hand) pass(now int64) {
	h.now = now
	h.doubts = slices.ContainsFunc(h.running, h.doubtful)
}

// recall tells whether a handler was done with the message and its ack got lost, or came
// too late. If the group has begun anew with the message since, it was first seen later.
// One that was replayed from the dead letters is to be handled again: somebody wants that.
// The attempt is the same when the broker took the message back uncharged.
func (h *hand) recall(t *task) bool {
	p := t.place()
	r, ok := h.acked[p]
	if !ok {
		return false
	}
	delete(h.acked, p)
	h.oldest = slices.DeleteFunc(h.oldest, func(x place) bool { return x == p })
	return r.firstSeen == t.firstSeen() && r.attempt <= t.Attempt && !t.Replayed
}

func (t *task) place() place { return place{t.Partition, t.Offset} }

// ready tells whether there is work for one more handler, as far as can be told without
// looking for doubts.
func (h *hand) ready() bool { return len(h.waiting) > 0 && len(h.running) < h.most }

// start gives the next delivery that a handler may have; nil: none.
func (h *hand) start() *task {
	if len(h.running) >= h.most {
		return nil
	}
	for i := 0; i < len(h.waiting); i++ {
		t := h.waiting[i]
		if h.doubts && h.inDoubt(t) {
			continue
		}
		if i == 0 {
			h.waiting[0] = nil
			h.waiting = h.waiting[1:]
		} else {
			h.waiting = slices.Delete(h.waiting, i, i+1)
		}
		// It may have waited for a lost handler that was done with it.
		if h.recall(t) {
			h.decide(t, ackIt)
			i--
			continue
		}
		t.state, t.at = taskRuns, int32(len(h.running))
		h.running = append(h.running, t)
		return t
	}
	return nil
}

// inDoubt tells whether a handler has the message, or one of its key, whose delivery may
// be somebody else's by now.
func (h *hand) inDoubt(t *task) bool {
	return h.lostPlaces[t.place()] > 0 || t.Key != "" && slices.ContainsFunc(h.running, func(r *task) bool { return r.Key == t.Key && h.doubtful(r) })
}

// behindLost tells whether a handler whose delivery is lost has the message, or one of its key.
func (h *hand) behindLost(t *task) bool {
	return h.lostPlaces[t.place()] > 0 || t.Key != "" && slices.ContainsFunc(h.running, func(r *task) bool { return r.lost && r.Key == t.Key })
}

// doubtful tells whether the broker may have given the delivery up: by now, or before
// time passes the next time.
func (h *hand) doubtful(t *task) bool { return t.lost || t.lapsesAt-h.now < t.every*3/8 }

// finish takes what a handler decided.
func (h *hand) finish(t *task, v *verdict) {
	last := len(h.running) - 1
	h.running[t.at], h.running[last].at = h.running[last], t.at
	h.running[last] = nil
	h.running = h.running[:last]
	if t.settled {
		if next := h.turns.next(t); next != nil {
			h.waiting = append(h.waiting, next)
		}
		if !h.draining {
			h.credits++
		}
		return
	}
	if !t.lost {
		h.decide(t, v)
		return
	}
	count(h.lostPlaces, t.place(), -1)
	h.remember(t, v)
}

// count changes a counter, which is there while it is not 0.
func count[K comparable](m map[K]int, k K, n int) {
	if m[k] += n; m[k] == 0 {
		delete(m, k)
	}
}

// decide settles a delivery of the session that is open.
func (h *hand) decide(t *task, v *verdict) {
	t.state, t.verdict = taskSettling, v
	h.settle = append(h.settle, t)
	if !h.draining {
		h.credits++
	}
}

// remember keeps an ack that the broker may not have heard of, or has refused. What asks
// for another attempt has it, and a reject that was heard of may be replayed.
func (h *hand) remember(t *task, v *verdict) {
	if v != ackIt {
		return
	}
	p := t.place()
	if _, ok := h.acked[p]; !ok {
		h.oldest = append(h.oldest, p)
	}
	h.acked[p] = remembered{t.Attempt, t.firstSeen()}
	if len(h.oldest) > mostAcked {
		delete(h.acked, h.oldest[0])
		h.oldest = h.oldest[1:]
	}
}

// confirm takes what became of a run of settlements.
func (h *hand) confirm(r *strandmqv1.SettleRunResult, now int64) (gone []*task, err error) {
	first, last := r.GetFirst(), max(r.GetFirst(), r.GetLast())
	if last-first > frameSettled {
		return nil, &Error{Message: fmt.Sprintf("the broker settled deliveries %d to %d at once", first, last)}
	}
	for n := first; n <= last; n++ {
		t := h.held.number(n)
		switch {
		case t == nil: // an extend that was overtaken by the settlement
		case r.GetDeadline() != nil && r.GetProblem() == nil: // extended
			t.lapsesAt = now + t.every
		case passing(r.GetProblem()): // nothing changed, or nobody knows yet
			h.putOff(t, now+max(leastPutOff, r.GetProblem().GetRetryAfterMs()))
		case t.told && forGood(r.GetProblem()):
			h.refused = append(h.refused, refusal{t, t.verdict, r.GetProblem()})
			if v := t.verdict.plainer(); v != nil {
				t.verdict, t.told = v, false
				h.settle = append(h.settle, t)
				break
			}
			h.held.drop(t)
			h.late++
			h.remember(t, t.verdict)
		case t.told && r.GetProblem().GetReason() != "HELD_TOO_LONG": // which is of an extend
			h.held.drop(t)
			if r.GetProblem() != nil {
				h.late++
				h.remember(t, t.verdict) // it comes again
			}
		case r.GetProblem() == nil:
		case r.GetProblem().GetReason() == "HELD_TOO_LONG":
			t.renewAt = 1<<63 - 1 // it lapses when it does
			if t.state == taskWaits {
				h.waiting = slices.DeleteFunc(h.waiting, func(x *task) bool { return x == t })
				h.decide(t, releaseIt)
			}
		default: // it is another's, or nobody's
			if h.lose(t) {
				gone = append(gone, t)
			}
		}
	}
	return gone, nil
}

// leastPutOff is how soon, in milliseconds, what was refused for now is told again.
const leastPutOff = 100

// putOff has what was refused for now told again: the delivery is still this member's, as
// where its partition is between two leaders. To give it up would have the message wait
// for its deadline, and then be handled a second time.
func (h *hand) putOff(t *task, at int64) {
	if t.told {
		t.told, t.againAt = false, at
		return
	}
	t.renewAt = at
}

// lose takes a delivery out of this member's hands, and tells whether a handler
// still has it.
func (h *hand) lose(t *task) bool {
	h.held.drop(t)
	switch t.state {
	case taskWaits:
		h.waiting = slices.DeleteFunc(h.waiting, func(x *task) bool { return x == t })
	case taskSettling:
		h.settle = slices.DeleteFunc(h.settle, func(x *task) bool { return x == t })
		h.remember(t, t.verdict)
		return false
	case taskRuns:
		t.lost, h.doubts = true, true
		count(h.lostPlaces, t.place(), 1)
	}
	if !h.draining {
		h.credits++
	}
	return t.state == taskRuns
}

// tick extends what is half way to its deadline, gives up what is beyond, and tells again
// what was refused for now.
func (h *hand) tick(now int64) (gone []*task) {
	defer h.pass(now)
	for _, t := range h.held.all() {
		switch {
		case t.state == taskSettling:
			if t.againAt > 0 && now >= t.againAt {
				t.againAt = 0
				h.settle = append(h.settle, t)
			}
		case now >= t.lapsesAt:
			if h.lose(t) {
				gone = append(gone, t)
			}
		case now >= t.renewAt && t.state == taskWaits && h.behindLost(t):
			// Its turn does not come before a handler ends that nobody can end. Another
			// member may have it, uncharged; given back at once, it would be here again at once.
			h.waiting = slices.DeleteFunc(h.waiting, func(x *task) bool { return x == t })
			h.decide(t, releaseIt)
		case now >= t.renewAt:
			t.renewAt = now + t.every/2
			h.renew = append(h.renew, t)
		}
	}
	return gone
}

// closed ends a session: whatever was in hand is lost.
func (h *hand) closed() (gone []*task) {
	for _, t := range h.held.all() {
		if h.lose(t) {
			gone = append(gone, t)
		}
	}
	h.waiting = slices.DeleteFunc(h.waiting, func(t *task) bool { return !t.settled })
	h.settle, h.renew, h.credits = nil, nil, 0
	return gone
}

// drain stops taking: what no handler has goes back, and the broker hears of it in the
// same frame, so that it goes to others.
func (h *hand) drain() {
	h.draining, h.unheard, h.credits = true, true, 0
	waiting := h.waiting
	h.waiting = nil
	for _, t := range waiting {
		if t.settled {
			h.waiting = append(h.waiting, t) // nobody else gets it
			continue
		}
		h.decide(t, releaseIt)
	}
}

// idle tells whether all that handlers did is settled, and nothing is left for them.
func (h *hand) idle() bool { return h.busy() == 0 && h.held.n == 0 }

// unsaid tells whether there is something for a frame.
func (h *hand) unsaid() bool { return len(h.settle) > 0 || len(h.renew) > 0 || h.credits > 0 }

// pressing tells whether a frame should go out now, and not gather more: somebody waits
// for it, or there is enough.
func (h *hand) pressing() bool {
	return h.draining || len(h.renew) > 0 || len(h.waiting) == 0 || len(h.settle) >= max(1, h.prefetch/4)
}

// frame gives the next frame to send; nil: there is nothing to tell.
func (h *hand) frame() *strandmqv1.ConsumeRequest {
	renew := slices.DeleteFunc(h.renew, func(t *task) bool { return t.lost || t.state == taskSettling || h.held.number(t.number) != t })
	h.renew = nil
	drain := h.unheard && !h.idle() // else there is nothing that keeps it from leaving
	if len(h.settle) == 0 && len(renew) == 0 && h.credits == 0 && !drain {
		return nil
	}
	f := &strandmqv1.ConsumeRequest{Credits: uint32(h.credits), Drain: drain}
	h.credits, h.unheard = 0, h.unheard && !drain
	n := min(len(h.settle), frameSettled/2)
	told := h.settle[:n:n]
	slices.SortFunc(told, byNumber)
	left := runs(f, told, func(t *task) *verdict { return t.verdict })
	for _, t := range told[:len(told)-len(left)] {
		t.told = true
	}
	if len(left) == 0 && n == len(h.settle) {
		clear(h.settle)
		h.settle = h.settle[:0]
	} else {
		h.settle = append(slices.Clone(left), h.settle[n:]...)
	}
	if len(f.Settlements) < frameRuns {
		renew = renew[:min(len(renew), frameSettled/2)]
		slices.SortFunc(renew, byNumber)
		runs(f, renew, func(*task) *verdict { return extendIt })
	}
	return f
}

func byNumber(a, b *task) int {
	switch {
	case a.number < b.number:
		return -1
	case a.number > b.number:
		return 1
	}
	return 0
}

// runs adds settlements to a frame, those of neighbours that fare alike as one,
// and gives back what has no room.
func runs(f *strandmqv1.ConsumeRequest, ts []*task, of func(*task) *verdict) (left []*task) {
	for i := 0; i < len(ts); {
		if len(f.Settlements) == frameRuns {
			return ts[i:]
		}
		v, k := of(ts[i]), i+1
		for k < len(ts) && ts[k].number == ts[k-1].number+1 && *of(ts[k]) == *v {
			k++
		}
		f.Settlements = append(f.Settlements, &strandmqv1.SettleRun{
			First: ts[i].number, Last: ts[k-1].number, Action: v.action, DelayMs: v.delay.Milliseconds(), Reason: v.reason,
		})
		i = k
	}
	return nil
}
