package broker

import (
	"testing"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// memberOf describes one member of a group; nil: there is none.
func (a api) memberOf(t testing.TB, topic, group, name string) *strandmqv1.Member {
	t.Helper()
	for _, m := range a.describe(t, topic, group).GetMembers() {
		if m.GetName() == name {
			return m
		}
	}
	return nil
}

// owners awaits that members have so many partitions.
func (m *member) owns(n int) {
	m.t.Helper()
	for len(m.assign.GetShares()) != n {
		if _, err := m.frame(); err != nil {
			m.t.Fatal(err)
		}
	}
}

// A member on a stream that drains gets nothing more, not what it gives back either.
// The others have its share of the keys at once, and what it holds stays its own.
func TestConsumeDrains(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	policy := patient()
	policy.MaxHoldMs = new(2 * policy.GetAckDeadlineMs())
	a.group(t, "t", "g", policy)
	open := opener(t, b)
	leaver := joins(t, open, opened("t", "g", "leaver"), 1000)
	a.fill(t, "t", 20, 20)
	held := leaver.take(20)
	a.store(t, "t", msg(held[0].key, "next"))
	other := joins(t, open, opened("t", "g", "other"), 1000)
	leaver.owns(1) // a half of it
	// It keeps one; 500 are open beside its credits of before.
	leaver.send(&strandmqv1.ConsumeRequest{Drain: true, Credits: 500, Settlements: []*strandmqv1.SettleRun{
		{First: held[1].number, Last: held[19].number, Action: release},
	}})
	for _, r := range leaver.results(19) {
		if r.GetProblem() != nil {
			t.Fatal(r)
		}
	}
	for _, d := range other.take(19) {
		if d.attempt != 1 || d.key == held[0].key {
			t.Errorf("given back, and out to the other member: %+v", d)
		}
	}
	leaver.owns(0)
	if x := a.memberOf(t, "t", "g", "leaver"); !x.GetDraining() || x.GetAway() || x.GetInFlight() != 1 || len(x.GetAssignment()) > 0 {
		t.Errorf("described as %v", x)
	}
	if x := a.memberOf(t, "t", "g", "other"); x.GetDraining() || len(x.GetAssignment()) != 1 || x.GetAssignment()[0].GetShares() != 1 {
		t.Errorf("described as %v", x)
	}
	a.store(t, "t", msg("fresh 1", ""), msg("fresh 2", ""), msg("fresh 3", ""))
	other.take(3)
	// It goes on extending and settling, and only then the key goes on.
	leaver.settle(extend, held[0].number, 0)
	if r := leaver.results(1)[0]; r.GetProblem() != nil || r.GetDeadline() == nil {
		t.Fatal(r)
	}
	leaver.settle(ack, held[0].number, 0)
	if r := leaver.results(1)[0]; r.GetProblem() != nil {
		t.Fatal(r)
	}
	if d := other.take(1)[0]; d.key != held[0].key || d.body != "next" {
		t.Fatalf("%+v", d)
	}
	leaver.send(&strandmqv1.ConsumeRequest{Drain: true, Leave: true})
	for {
		got, err := leaver.frame()
		if len(got) > 0 {
			t.Fatalf("after the drain: %+v", got)
		}
		if err != nil {
			break
		}
	}
	if x := a.memberOf(t, "t", "g", "leaver"); x != nil {
		t.Errorf("it left, and is %v", x)
	}
}

// What was on its way when the member began to drain is given back for it.
func TestConsumeDrainsWhatIsOnItsWay(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 4)
	a.group(t, "t", "g", patient())
	open := opener(t, b)
	const n = 400
	leaver := joins(t, open, opened("t", "g", "leaver"), 0)
	other := joins(t, open, opened("t", "g", "other"), n)
	leaver.owns(2)
	a.fill(t, "t", n, n)
	leaver.send(&strandmqv1.ConsumeRequest{Credits: n})
	leaver.send(&strandmqv1.ConsumeRequest{Drain: true})
	seen := map[uint32]map[uint64]bool{}
	come := func(ds []got) {
		for _, d := range ds {
			if seen[d.partition] == nil {
				seen[d.partition] = map[uint64]bool{}
			}
			if d.attempt != 1 || seen[d.partition][d.offset] {
				t.Errorf("%+v", d)
			}
			seen[d.partition][d.offset] = true
		}
	}
	leaver.assign = nil
	mine := 0 // sent before the broker had heard
	for leaver.assign == nil || len(leaver.assign.GetShares()) > 0 {
		ds, err := leaver.frame()
		if err != nil {
			t.Fatal(err)
		}
		mine += len(ds)
		come(ds)
	}
	come(other.take(n - mine))
	if x := a.memberOf(t, "t", "g", "leaver"); !x.GetDraining() || int(x.GetInFlight()) != mine {
		t.Errorf("described as %v, and holds %d", x, mine)
	}
}

// By calls it is the same: a Receive that waits is answered, those that follow give what
// the session holds, and who asks without a session wants more again.
func TestDrainByCalls(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", patient())
	j, err := a.consume.Join(ctx(t), &strandmqv1.JoinRequest{Topic: "t", Group: "g", Member: "leaver"})
	if err != nil {
		t.Fatal(err)
	}
	a.store(t, "t", msg("slow", "1"), msg("slow", "2"))
	take := func(session, id string, wait int64) *strandmqv1.ReceiveResponse {
		t.Helper()
		res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{
			Topic: "t", Group: "g", Member: "leaver", Session: session, RequestId: id, MaxMessages: 100, WaitMs: wait,
		})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	slow := take(j.GetSession(), "one", 10_000).GetDeliveries()
	if len(slow) != 1 {
		t.Fatal(slow)
	}
	waiting := make(chan *strandmqv1.ReceiveResponse, 1)
	go func() {
		// It waits for longer than the test may take.
		res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{
			Topic: "t", Group: "g", Member: "leaver", Session: j.GetSession(), RequestId: "two", WaitMs: 60_000,
		})
		if err != nil {
			t.Error(err)
		}
		waiting <- res
	}()
	drain := &strandmqv1.DrainRequest{Topic: "t", Group: "g", Member: "leaver", Session: j.GetSession()}
	for range 2 { // it may be said again
		if _, err := a.consume.Drain(ctx(t), drain); err != nil {
			t.Fatal(err)
		}
	}
	if res := <-waiting; len(res.GetDeliveries()) > 0 || res.GetIdleReason() == "" {
		t.Errorf("the one that waited: %v", res)
	}
	if x := a.memberOf(t, "t", "g", "leaver"); !x.GetDraining() || x.GetInFlight() != 1 || len(x.GetAssignment()) > 0 {
		t.Errorf("described as %v", x)
	}
	a.store(t, "t", msg("other", ""))
	d := a.one(t, "t", "g", "another")
	if d.GetMessage().GetKey() != "other" {
		t.Errorf("to another member: %v", d)
	}
	a.done(t, "t", "g", d, ack, "")
	if res := take(j.GetSession(), "three", 0); len(res.GetDeliveries()) > 0 || res.GetIdleReason() != drains {
		t.Errorf("while it drains: %v", res)
	}
	if res := take(j.GetSession(), "", 0); len(res.GetDeliveries()) != 1 || res.GetDeliveries()[0].GetToken() != slow[0].GetToken() {
		t.Errorf("what it holds: %v", res)
	}
	if r := a.done(t, "t", "g", slow[0], ack, ""); r.GetProblem() != nil {
		t.Fatal(r)
	}
	if d := a.one(t, "t", "g", "another"); d.GetMessage().GetText() != "2" {
		t.Errorf("the key's next: %v", d)
	}
	if res := take("", "", 0); res.GetSession() != j.GetSession() {
		t.Errorf("without a session: %v", res)
	}
	if x := a.memberOf(t, "t", "g", "leaver"); x.GetDraining() || len(x.GetAssignment()) != 1 {
		t.Errorf("back again: %v", x)
	}
	if _, err := a.consume.Leave(ctx(t), &strandmqv1.LeaveRequest{Topic: "t", Group: "g", Member: "leaver", Session: j.GetSession()}); err != nil {
		t.Fatal(err)
	}
	_, err = a.consume.Drain(ctx(t), drain)
	wantReason(t, err, "SESSION_ENDED")
	drain.Session = ""
	_, err = a.consume.Drain(ctx(t), drain)
	wantReason(t, err, "BAD_VALUE")
}

// A stream drains as well by a call beside it, which may come in at another node.
func TestSubscribeDrains(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	a.group(t, "t", "g", patient())
	stream, session := a.subscribe(t, ctx(t), &strandmqv1.SubscribeRequest{Topic: "t", Group: "g", Member: "leaver"})
	if _, err := a.consume.Drain(ctx(t), &strandmqv1.DrainRequest{Topic: "t", Group: "g", Member: "leaver", Session: session}); err != nil {
		t.Fatal(err)
	}
	for { // until it is told that nothing is assigned to it
		if !stream.Receive() {
			t.Fatal(stream.Err())
		}
		if n := len(stream.Msg().GetDeliveries()); n > 0 {
			t.Fatalf("%d deliveries", n)
		}
		if x := stream.Msg().GetAssignment(); x != nil && len(x.GetShares()) == 0 {
			break
		}
	}
	a.fill(t, "t", 10, 10)
	other := joins(t, opener(t, b), opened("t", "g", "other"), 100)
	other.take(10)
	if _, err := a.consume.Leave(ctx(t), &strandmqv1.LeaveRequest{Topic: "t", Group: "g", Member: "leaver", Session: session}); err != nil {
		t.Fatal(err)
	}
	for stream.Receive() {
		if n := len(stream.Msg().GetDeliveries()); n > 0 {
			t.Errorf("%d deliveries while it drained", n)
		}
	}
	if err := stream.Err(); err != nil {
		t.Error(err)
	}
}
