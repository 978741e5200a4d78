package client

import (
	"fmt"
	"slices"
	"time"

	"github.com/strandmq/strandmq/internal/record"
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
	ackIt     = verdict{action: strandmqv1.SettleAction_SETTLE_ACTION_ACK}
	releaseIt = verdict{action: strandmqv1.SettleAction_SETTLE_ACTION_RELEASE}
)

// task is a delivery in this member's hands. Its fields are the hand's; the
// handler has the Delivery.
type task struct {
	*Delivery
	number    uint64 // on its stream
	firstSeen int64  // milliseconds by the broker's clock, as it was sent
	state     taskState
	verdict   verdict
	told      bool  // its settlement was sent
	againAt   int64 // when a settlement that was refused for now is sent again; 0: it was not
	every     int64 // the ack deadline, in milliseconds
	renewAt   int64 // milliseconds by our clock
	lapsesAt  int64
	lost      bool // it is this member's no longer; the handler may still run
}

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

// remembered is a delivery that was handled, and whose ack got lost.
type remembered struct {
	attempt   uint32
	firstSeen int64
}

// hand decides for a consumer: which delivery a handler may have, what is settled,
// how many more may come, and what a lost session leaves behind. It is a value
// without lock, clock and network: the goroutine of Consumer.Run owns it.
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
type hand struct {
	topic, group string
	prefetch     int
	most         int // handlers at once
	draining     bool

	held    map[uint64]*task // of the session, by number, until confirmed
	places  map[place]*task  // the same by message
	waiting []*task          // in the order in which they came
	running int              // handlers, of lost deliveries too
	credits int              // to be given
	settle  []*task          // to be told
	renew   []*task          // to be extended

	keys       map[string][]*task // that handlers have, lost ones too, by key
	lostPlaces map[place]int      // lost ones that handlers have, by message
	acked      map[place]remembered
	oldest     []place // of acked, in the order in which they were remembered

	every int64 // the shortest ack deadline seen, in milliseconds
	late  int   // settlements that came too late
}

func newHand(topic, group string, prefetch, most int) *hand {
	return &hand{
		topic: topic, group: group, prefetch: prefetch, most: most,
		held: map[uint64]*task{}, places: map[place]*task{}, keys: map[string][]*task{}, lostPlaces: map[place]int{}, acked: map[place]remembered{},
	}
}

// arrive takes the deliveries and results of one frame. gone are those whose
// handlers should stop. An error means that the broker does not keep to the
// protocol.
func (h *hand) arrive(f *strandmqv1.ConsumeResponse, now int64) (gone []*task, err error) {
	for _, r := range f.GetSettled() {
		out, err := h.confirm(r, now)
		gone = append(gone, out...)
		if err != nil {
			return gone, err
		}
	}
	for _, b := range f.GetBatches() {
		out, err := h.batch(b, now)
		gone = append(gone, out...)
		if err != nil {
			return gone, err
		}
	}
	return gone, nil
}

// batch takes the deliveries of one partition.
func (h *hand) batch(b *strandmqv1.DeliveryBatch, now int64) (gone []*task, err error) {
	records, rest, err := record.Parse(b.GetRecords())
	if err != nil || len(rest) > 0 {
		return nil, &Error{Message: fmt.Sprintf("the broker sent deliveries that cannot be read: %v", err), err: err}
	}
	every := max(1, b.GetDeadlineMs()-b.GetHandedMs())
	if h.every == 0 || every < h.every {
		h.every = every
	}
	offset := b.GetFirstOffset()
	records.Each(func(i int, r record.Raw) bool {
		if i > 0 {
			offset += uint64(at(b.GetOffsetSteps(), i-1, 1))
		}
		t := &task{
			Delivery: deliveryOf(b, i, offset, records.PublishTime(), r),
			number:   b.GetFirstNumber() + uint64(i), firstSeen: at(b.GetFirstSeenMs(), i, b.GetHandedMs()),
			every: every, renewAt: now + every/2, lapsesAt: now + every,
		}
		t.Topic, t.Group = h.topic, h.group
		if h.held[t.number] != nil {
			err = &Error{Message: fmt.Sprintf("the broker gave two deliveries the number %d", t.number)}
			return false
		}
		if old := h.places[t.place()]; old != nil && h.lose(old) { // it lapsed
			gone = append(gone, old)
		}
		h.held[t.number], h.places[t.place()] = t, t
		switch {
		case h.recall(t):
			h.decide(t, ackIt)
		case h.draining:
			h.decide(t, releaseIt)
		default:
			h.waiting = append(h.waiting, t)
		}
		return true
	})
	return gone, err
}

// recall tells whether a handler was done with the message and its ack got lost. If
// the group has begun anew with the message since, it was first seen later. The
// attempt is the same when the broker took the message back uncharged.
func (h *hand) recall(t *task) bool {
	p := t.place()
	r, ok := h.acked[p]
	if !ok {
		return false
	}
	delete(h.acked, p)
	h.oldest = slices.DeleteFunc(h.oldest, func(x place) bool { return x == p })
	return r.firstSeen == t.firstSeen && r.attempt <= t.Attempt
}

func (t *task) place() place { return place{t.Partition, t.Offset} }

// start gives the next delivery that a handler may have; nil: none.
func (h *hand) start(now int64) *task {
	if h.running >= h.most {
		return nil
	}
	for i := 0; i < len(h.waiting); i++ {
		t := h.waiting[i]
		if h.lostPlaces[t.place()] > 0 || slices.ContainsFunc(h.keys[t.Key], func(r *task) bool { return r.doubtful(now) }) {
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
		t.state = taskRuns
		h.running++
		if t.Key != "" {
			h.keys[t.Key] = append(h.keys[t.Key], t)
		}
		return t
	}
	return nil
}

// doubtful tells whether the broker may have given the delivery up.
func (t *task) doubtful(now int64) bool { return t.lost || t.lapsesAt-now < t.every/4 }

// finish takes what a handler decided.
func (h *hand) finish(t *task, v verdict) {
	h.running--
	if list := slices.DeleteFunc(h.keys[t.Key], func(x *task) bool { return x == t }); len(list) > 0 {
		h.keys[t.Key] = list
	} else {
		delete(h.keys, t.Key)
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
func (h *hand) decide(t *task, v verdict) {
	t.state, t.verdict = taskSettling, v
	h.settle = append(h.settle, t)
	if !h.draining {
		h.credits++
	}
}

// remember keeps an ack that the broker may not have heard of. What asks for
// another attempt has it, and a reject that was heard of may be replayed.
func (h *hand) remember(t *task, v verdict) {
	if v != ackIt {
		return
	}
	p := t.place()
	if _, ok := h.acked[p]; !ok {
		h.oldest = append(h.oldest, p)
	}
	h.acked[p] = remembered{t.Attempt, t.firstSeen}
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
		t := h.held[n]
		switch {
		case t == nil: // an extend that was overtaken by the settlement
		case r.GetDeadline() != nil: // extended
			t.lapsesAt = now + t.every
		case passing(r.GetProblem()): // nothing changed, or nobody knows yet
			h.putOff(t, now+max(leastPutOff, r.GetProblem().GetRetryAfterMs()))
		case t.told && r.GetProblem().GetReason() != "HELD_TOO_LONG": // which is of an extend
			h.drop(t)
			if r.GetProblem() != nil {
				h.late++
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
	h.drop(t)
	switch t.state {
	case taskWaits:
		h.waiting = slices.DeleteFunc(h.waiting, func(x *task) bool { return x == t })
	case taskSettling:
		h.settle = slices.DeleteFunc(h.settle, func(x *task) bool { return x == t })
		h.remember(t, t.verdict)
		return false
	case taskRuns:
		t.lost = true
		count(h.lostPlaces, t.place(), 1)
	}
	if !h.draining {
		h.credits++
	}
	return t.state == taskRuns
}

func (h *hand) drop(t *task) {
	delete(h.held, t.number)
	if p := t.place(); h.places[p] == t {
		delete(h.places, p)
	}
}

// tick extends what is half way to its deadline, gives up what is beyond, and tells again
// what was refused for now.
func (h *hand) tick(now int64) (gone []*task) {
	for _, t := range h.held {
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
		case now >= t.renewAt:
			t.renewAt = now + t.every/2
			h.renew = append(h.renew, t)
		}
	}
	return gone
}

// closed ends a session: whatever was in hand is lost.
func (h *hand) closed() (gone []*task) {
	for _, t := range h.held {
		if h.lose(t) {
			gone = append(gone, t)
		}
	}
	h.waiting, h.settle, h.renew, h.credits = nil, nil, nil, 0
	return gone
}

// drain stops taking: what no handler has goes back.
func (h *hand) drain() {
	h.draining, h.credits = true, 0
	waiting := h.waiting
	h.waiting = nil
	for _, t := range waiting {
		h.decide(t, releaseIt)
	}
}

// idle tells whether all that handlers did is settled.
func (h *hand) idle() bool { return h.running == 0 && len(h.held) == 0 }

// frame gives the next frame to send; nil: there is nothing to tell.
func (h *hand) frame() *strandmqv1.ConsumeRequest {
	renew := slices.DeleteFunc(h.renew, func(t *task) bool { return t.lost || t.state == taskSettling || h.held[t.number] != t })
	h.renew = nil
	if len(h.settle) == 0 && len(renew) == 0 && h.credits == 0 {
		return nil
	}
	f := &strandmqv1.ConsumeRequest{Credits: uint32(h.credits)}
	h.credits = 0
	n := min(len(h.settle), frameSettled/2)
	told := h.settle[:n:n]
	slices.SortFunc(told, byNumber)
	left := runs(f, told, func(t *task) verdict { return t.verdict })
	for _, t := range told[:len(told)-len(left)] {
		t.told = true
	}
	h.settle = append(slices.Clone(left), h.settle[n:]...)
	if len(f.Settlements) < frameRuns {
		renew = renew[:min(len(renew), frameSettled/2)]
		slices.SortFunc(renew, byNumber)
		runs(f, renew, func(*task) verdict { return verdict{action: strandmqv1.SettleAction_SETTLE_ACTION_EXTEND} })
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
func runs(f *strandmqv1.ConsumeRequest, ts []*task, of func(*task) verdict) (left []*task) {
	for i := 0; i < len(ts); {
		if len(f.Settlements) == frameRuns {
			return ts[i:]
		}
		v, k := of(ts[i]), i+1
		for k < len(ts) && ts[k].number == ts[k-1].number+1 && of(ts[k]) == v {
			k++
		}
		f.Settlements = append(f.Settlements, &strandmqv1.SettleRun{
			First: ts[i].number, Last: ts[k-1].number, Action: v.action, DelayMs: v.delay.Milliseconds(), Reason: v.reason,
		})
		i = k
	}
	return nil
}
