//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// seen is one hand-out as a member saw it.
type seen struct {
	*strandmqv1.Delivery
	name, key string
	at        time.Time // when the member had it
	desk      *desk     // the member
}

// nameOf reads the name that a message carries in its first header.
func nameOf(m *strandmqv1.Message) string {
	if len(m.GetHeaders()) == 0 {
		return "?"
	}
	return m.GetHeaders()[0].GetValue()
}

// ledger is what the members of one group saw. It judges as it goes: one of a
// key at a time, in the order of offsets but for replays, and nothing again
// that was acked.
type ledger struct {
	t     *testing.T
	group string

	mu     sync.Mutex
	tokens map[string]bool
	all    []seen
	open   map[string]seen      // the key's message that is out or failed
	done   map[string]time.Time // messages acked, and when
	dead   map[string]bool
	last   map[string]uint64 // the key's highest offset
}

func newLedger(t *testing.T, group string) *ledger {
	return &ledger{
		t: t, group: group, tokens: make(map[string]bool), open: make(map[string]seen),
		done: make(map[string]time.Time), dead: make(map[string]bool), last: make(map[string]uint64),
	}
}

// add notes a hand-out, unless it was seen before: asking again is no news.
func (l *ledger) add(x seen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tokens[x.GetToken()] {
		return
	}
	l.tokens[x.GetToken()] = true
	l.all = append(l.all, x)
	if _, acked := l.done[x.name]; acked {
		l.t.Errorf("%s: %s was acked and came again", l.group, x.name)
	}
	if l.dead[x.name] && !x.GetReplayed() {
		l.t.Errorf("%s: %s is a dead letter and came again without a replay", l.group, x.name)
	}
	if x.key == "" {
		return // without a key there is no order
	}
	if other, ok := l.open[x.key]; ok && other.name != x.name {
		l.t.Errorf("%s: %s came while %s was unsettled", l.group, x.name, other.name)
	}
	if !x.GetReplayed() && x.GetOffset() < l.last[x.key] {
		l.t.Errorf("%s: %s at offset %d came after offset %d of its key", l.group, x.name, x.GetOffset(), l.last[x.key])
	}
	l.last[x.key] = max(l.last[x.key], x.GetOffset())
	l.open[x.key] = x
	delete(l.dead, x.name)
}

// acking is noted before an ack is sent, since the next message may be with
// another member before the answer comes; a refused one is taken back.
func (l *ledger) acking(x seen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, x.key)
}

func (l *ledger) acked(x seen, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok {
		l.done[x.name] = time.Now()
	}
}

// died notes that a message became a dead letter.
func (l *ledger) died(x seen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, x.key)
	l.dead[x.name] = true
}

// of gives a key's hand-outs, or with a name's number a message's.
func (l *ledger) of(name string) (out []seen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.all {
		if x.key == name || x.name == name {
			out = append(out, x)
		}
	}
	return out
}

// want says what was seen of a key or a message, as name/attempt, and with an r
// where it was a replay.
func (l *ledger) want(name string, want ...string) {
	l.t.Helper()
	var got []string
	for _, x := range l.of(name) {
		got = append(got, x.String())
	}
	if !slices.Equal(got, want) {
		l.t.Errorf("%s: what came of %s was %v, want %v", l.group, name, got, want)
	}
}

func (x seen) String() string {
	s := x.name + "/" + strconv.Itoa(int(x.GetAttempt()))
	if x.GetReplayed() {
		s += "r"
	}
	return s
}

// first says of every message that it came once, as attempt 1.
func first(names ...string) (out []string) {
	for _, n := range names {
		out = append(out, n+"/1")
	}
	return out
}

// handled tells whether the members know that messages were acked.
func (l *ledger) handled(names ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range names {
		if _, ok := l.done[n]; !ok {
			return false
		}
	}
	return true
}

// notBefore says which of some messages were not done before a moment.
func (l *ledger) notBefore(at time.Time, names ...string) (late []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range names {
		if done, ok := l.done[n]; !ok || done.After(at) {
			late = append(late, fmt.Sprintf("%s: %s was not done by then (%v after)", l.group, n, done.Sub(at)))
		}
	}
	return late
}

// desk is one member with connections and a session of its own.
type desk struct {
	y         *scene
	l         *ledger
	transport *http.Transport
	consume   strandmqv1connect.ConsumeServiceClient
	name      string
	session   string
}

// desk opens a session. One of the same name ends by it, as when a consumer
// that crashed is started again.
func (y *scene) desk(l *ledger, name string) *desk {
	y.t.Helper()
	d := &desk{y: y, l: l, name: name, transport: &http.Transport{}}
	d.consume = strandmqv1connect.NewConsumeServiceClient(&http.Client{Transport: d.transport}, y.s.url(), connect.WithAcceptCompression("gzip", nil, nil))
	y.t.Cleanup(d.transport.CloseIdleConnections)
	d.session = looks(y.t, said(d.consume.Join), &strandmqv1.JoinRequest{Topic: y.topic, Group: l.group, Member: name}).GetSession()
	return d
}

// said gives a call's errors the words and the meaning that they have to a client.
func said[Req, Res any](call func(context.Context, *Req) (*Res, error)) func(context.Context, *Req) (*Res, error) {
	return func(ctx context.Context, req *Req) (*Res, error) {
		res, err := call(ctx, req)
		if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			err = explain(err, "the case's broker")
		}
		return res, err
	}
}

// unchanged tells whether a delivery that is asked for again is as it was. Who leads since
// may give it more time than the one before said, and never less: the time that passed while
// nobody led is not taken from it.
func unchanged(now, was seen) bool {
	a, b := proto.CloneOf(now.Delivery), proto.CloneOf(was.Delivery)
	later := !a.GetDeadline().AsTime().Before(b.GetDeadline().AsTime().Add(-millisecond))
	a.Deadline, b.Deadline = nil, nil
	return later && proto.Equal(a, b)
}

// at is the member by another way to the brokers.
func (d *desk) at(by *clients) *desk {
	e := *d
	e.consume = by.consume
	return &e
}

// vanish cuts the member's connections. It says nothing more.
func (d *desk) vanish() { d.transport.CloseIdleConnections() }

// ask receives under a new request id: only what no earlier call was given.
// Without fresh it gets what is outstanding again.
func (d *desk) ask(ctx context.Context, n uint32, wait time.Duration, fresh bool) ([]seen, error) {
	id := ""
	if fresh {
		id = newRequestID()
	}
	return d.askAs(ctx, id, n, wait)
}

func (d *desk) askAs(ctx context.Context, id string, n uint32, wait time.Duration) ([]seen, error) {
	req := &strandmqv1.ReceiveRequest{
		Topic: d.y.topic, Group: d.l.group, Member: d.name, Session: d.session, MaxMessages: n, WaitMs: wait.Milliseconds(),
		BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES, RequestId: id,
	}
	res, err := said(d.consume.Receive)(ctx, req)
	if err != nil {
		return nil, err
	}
	var got []seen
	for _, x := range res.GetDeliveries() {
		key, _ := messageKey(x.GetMessage())
		s := seen{Delivery: x, name: nameOf(x.GetMessage()), key: string(key), at: time.Now(), desk: d}
		d.l.add(s)
		got = append(got, s)
	}
	return got, nil
}

func (d *desk) receive(n uint32, wait time.Duration) []seen {
	d.y.t.Helper()
	id := newRequestID() // the same when it is asked again: a lost answer costs nothing
	return insist(d.y.t, func() ([]seen, error) { return d.askAs(d.y.t.Context(), id, n, wait) })
}

// held is what the member holds.
func (d *desk) held() []seen {
	d.y.t.Helper()
	return insist(d.y.t, func() ([]seen, error) { return d.askAs(d.y.t.Context(), "", 1000, 0) })
}

// take waits for one delivery, which must be a certain message and attempt,
// written name/attempt.
func (d *desk) take(want string) seen {
	d.y.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		got := d.receive(1, time.Second)
		if len(got) == 0 {
			continue
		}
		if got[0].String() != want {
			d.y.t.Fatalf("%s: %s came, want %s", d.l.group, got[0], want)
		}
		return got[0]
	}
	d.y.t.Fatalf("%s: %s did not come: %v", d.l.group, want, d.y.group(d.l.group))
	return seen{}
}

// nothing says that there is nothing for the member at the moment.
func (d *desk) nothing(why string) {
	d.y.t.Helper()
	if got := d.receive(10, 0); len(got) > 0 {
		d.y.t.Fatalf("%s: %v came, although %s", d.l.group, got, why)
	}
}

// settle settles one delivery.
func (d *desk) settle(x seen, action strandmqv1.SettleAction, reason string, delay time.Duration) (*strandmqv1.SettleResult, error) {
	return d.settleIn(d.y.t.Context(), x, action, reason, delay)
}

func (d *desk) settleIn(ctx context.Context, x seen, action strandmqv1.SettleAction, reason string, delay time.Duration) (*strandmqv1.SettleResult, error) {
	if action == ack {
		d.l.acking(x)
	}
	res, err := said(d.consume.Settle)(ctx, &strandmqv1.SettleRequest{
		Topic: d.y.topic, Group: d.l.group, Member: d.name,
		Settlements: []*strandmqv1.Settlement{{Token: x.GetToken(), Action: action, Reason: reason, DelayMs: delay.Milliseconds()}},
	})
	if err != nil {
		return nil, err
	}
	r := res.GetResults()[0]
	if action == ack {
		d.l.acked(x, r.GetProblem() == nil)
	}
	if r.GetDeadLettered() {
		d.l.died(x)
	}
	return r, nil
}

// settled settles one delivery, until it is known what became of that.
func (d *desk) settled(x seen, action strandmqv1.SettleAction, reason string, delay time.Duration) *strandmqv1.SettleResult {
	d.y.t.Helper()
	return insist(d.y.t, func() (*strandmqv1.SettleResult, error) {
		r, err := d.settle(x, action, reason, delay)
		if err == nil && again(r.GetProblem()) {
			return nil, errAgain
		}
		return r, err
	})
}

// done settles one delivery, which must succeed.
func (d *desk) done(x seen, action strandmqv1.SettleAction, reason string) *strandmqv1.SettleResult {
	d.y.t.Helper()
	r := d.settled(x, action, reason, 0)
	if r.GetProblem() != nil {
		d.y.t.Fatalf("%s: %s of %s: %v", d.l.group, action, x, r.GetProblem())
	}
	return r
}

// doneAll acks many deliveries in one call, which must succeed.
func (d *desk) doneAll(list []seen) {
	d.y.t.Helper()
	if len(list) == 0 {
		return
	}
	req := &strandmqv1.SettleRequest{Topic: d.y.topic, Group: d.l.group, Member: d.name}
	for _, x := range list {
		req.Settlements = append(req.Settlements, &strandmqv1.Settlement{Token: x.GetToken(), Action: ack})
		d.l.acking(x)
	}
	res := insist(d.y.t, func() (*strandmqv1.SettleResponse, error) {
		res, err := said(d.consume.Settle)(d.y.t.Context(), req)
		if slices.ContainsFunc(res.GetResults(), func(r *strandmqv1.SettleResult) bool { return again(r.GetProblem()) }) {
			return nil, errAgain
		}
		return res, err
	})
	for i, r := range res.GetResults() {
		if r.GetProblem() != nil {
			d.y.t.Fatalf("%s: the ack of %s: %v", d.l.group, list[i], r.GetProblem())
		}
		d.l.acked(list[i], true)
	}
}

// lapse has the deadline of a delivery come at once, as that of a member that hangs does
// in time, and gives it.
func (d *desk) lapse(x seen) time.Time {
	d.y.t.Helper()
	r := d.settled(x, extend, "", millisecond)
	if r.GetProblem().GetReason() == "STALE_DELIVERY" && d.y.s.nodes() > 1 {
		// A node that did not hear what became of it asked again, and it had lapsed.
		return time.Now()
	}
	if r.GetProblem() != nil {
		d.y.t.Fatalf("%s: the deadline of %s: %v", d.l.group, x, r.GetProblem())
	}
	return r.GetDeadline().AsTime()
}

// handle takes and acks messages one after the other, each with its first
// attempt.
func (d *desk) handle(names ...string) {
	d.y.t.Helper()
	for _, x := range first(names...) {
		d.done(d.take(x), ack, "")
	}
}

// die nacks a message until it is a dead letter.
func (d *desk) die(name string, attempts int) {
	d.y.t.Helper()
	for i := 1; i <= attempts; i++ {
		x := d.take(name + "/" + strconv.Itoa(i))
		if r := d.done(x, nack, "broken "+x.String()); r.GetDeadLettered() != (i == attempts) {
			d.y.t.Fatalf("nack of %s: dead is %v", x, r.GetDeadLettered())
		}
	}
}

// work handles what comes, by a rule that gives the action or false to leave
// the delivery lying, until the context ends. An extend brings the deadline near. What
// is settled after its deadline is refused and comes again: that is no fault.
func (d *desk) work(ctx context.Context, rule func(seen) (strandmqv1.SettleAction, bool)) {
	for ctx.Err() == nil {
		got, err := d.ask(ctx, 10, 200*time.Millisecond, true)
		if err != nil && ctx.Err() == nil {
			d.y.t.Errorf("%s: receive: %v", d.l.group, err)
			return
		}
		for _, x := range got {
			action, answer := rule(x)
			if !answer {
				continue
			}
			delay := time.Duration(0)
			if action == extend {
				delay = millisecond
			}
			r, err := d.settle(x, action, "the test says so", delay)
			late := r.GetProblem().GetReason() == "STALE_DELIVERY" && time.Now().After(x.GetDeadline().AsTime())
			if err != nil || r.GetProblem() != nil && !late {
				d.y.t.Errorf("%s: %s of %s: %v %v", d.l.group, action, x, err, r)
			}
		}
	}
}

// ackAll is the rule of a member without faults.
func ackAll(seen) (strandmqv1.SettleAction, bool) { return ack, true }
