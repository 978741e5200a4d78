package broker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Publish, receive, settle: the least that a broker does.
func TestPublishReceiveSettle(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	r := a.store(t, "t", msg("k", "one"), msg("k", "two"))
	if r[0].GetOffset() != 0 || r[1].GetOffset() != 1 {
		t.Fatalf("offsets %v", r)
	}
	a.group(t, "t", "g", nil)
	d := a.receive(t, "t", "g", "m", 10)
	if len(d) != 1 || d[0].GetMessage().GetText() != "one" || d[0].GetAttempt() != 1 {
		t.Fatalf("got %v, want the first message only: its key is busy", d)
	}
	a.done(t, "t", "g", d[0], ack, "")
	d = a.receive(t, "t", "g", "m", 10)
	if len(d) != 1 || d[0].GetMessage().GetText() != "two" {
		t.Fatalf("got %v, want the second", d)
	}
	a.done(t, "t", "g", d[0], ack, "")
	a.none(t, "t", "g", "m")
	if c := a.describe(t, "t", "g").GetCounts(); c.GetAcked() != 2 || c.GetLag() != 0 {
		t.Fatalf("counts %v", c)
	}
}

// The whole main job, with restarts between its steps: two groups, several
// members, failures, dead letters, replay; nothing lost, every key in order.
func TestMainJob(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	restart := func() {
		t.Helper()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = start(t, dir)
		a = newAPI(t, b.URL())
	}
	const topic, keys, per = "flights", 12, 10
	a.topic(t, topic, 4)
	quick := &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(2), BackoffMs: proto.Int64(1)}
	a.group(t, topic, "good", quick)
	a.group(t, topic, "bad", quick)

	// Half, a restart, then everything again: ids make the first half repeats.
	send := func(upTo int) (duplicates int) {
		for i := range upTo {
			var ms []*strandmqv1.Message
			for k := range keys {
				m := msg(fmt.Sprintf("key-%d", k), fmt.Sprintf("%d/%d", k, i))
				m.Id = fmt.Sprintf("id-%d-%d", k, i)
				ms = append(ms, m)
			}
			for _, r := range a.store(t, topic, ms...) {
				if r.GetDuplicate() {
					duplicates++
				}
			}
		}
		return duplicates
	}
	if n := send(per / 2); n != 0 {
		t.Fatalf("%d duplicates in the first run", n)
	}
	restart()
	if n := send(per); n != keys*per/2 {
		t.Fatalf("%d duplicates in the second run, want %d", n, keys*per/2)
	}

	// consume handles everything with three members; fail tells which messages
	// never succeed. It checks the order of every key, and gives what was acked.
	consume := func(group string, until int, fail func(text string) bool) map[string]int {
		t.Helper()
		acked, next := map[string]int{}, map[string]int{}
		for end := time.Now().Add(soon); ; {
			if time.Now().After(end) {
				t.Fatalf("group %s: %d acked: %v", group, len(acked), a.describe(t, topic, group))
			}
			for _, member := range []string{"m1", "m2", "m3"} {
				res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: topic, Group: group, Member: member, MaxMessages: 5, WaitMs: 20})
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range res.GetDeliveries() {
					key, text := d.GetMessage().GetKey(), d.GetMessage().GetText()
					var k, i int
					if _, err := fmt.Sscanf(text, "%d/%d", &k, &i); err != nil || key != fmt.Sprintf("key-%d", k) {
						t.Fatalf("key %q has body %q", key, text)
					}
					if i < next[key] && !d.GetReplayed() {
						t.Fatalf("group %s, key %s: %d after %d", group, key, i, next[key])
					}
					next[key] = max(next[key], i)
					if fail(text) {
						a.done(t, topic, group, d, nack, "no luck with "+text)
						continue
					}
					a.done(t, topic, group, d, ack, "")
					acked[text]++
				}
			}
			if len(acked) == until {
				if c := a.describe(t, topic, group).GetCounts(); c.GetLag() == 0 {
					return acked
				}
			}
		}
	}
	if got := consume("good", keys*per, func(string) bool { return false }); len(got) != keys*per {
		t.Fatalf("group good acked %d", len(got))
	}
	restart()
	poison := func(text string) bool { return strings.HasSuffix(text, "/3") }
	consume("bad", keys*(per-1), poison)
	restart()

	list, err := a.dead.ListDeadLetters(ctx(t), &strandmqv1.ListDeadLettersRequest{Topic: topic, Group: "bad", PageSize: 5})
	if err != nil {
		t.Fatal(err)
	}
	if list.GetTotal() != keys || len(list.GetDeadLetters()) != 5 || list.GetNextPageToken() == "" {
		t.Fatalf("dead letters: %d of %d, next %q; want 5 of %d", len(list.GetDeadLetters()), list.GetTotal(), list.GetNextPageToken(), keys)
	}
	all := list.GetDeadLetters()
	for list.GetNextPageToken() != "" {
		list, err = a.dead.ListDeadLetters(ctx(t), &strandmqv1.ListDeadLettersRequest{Topic: topic, Group: "bad", PageSize: 5, PageToken: list.GetNextPageToken()})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, list.GetDeadLetters()...)
	}
	if len(all) != keys {
		t.Fatalf("the pages have %d dead letters, want %d", len(all), keys)
	}
	for _, d := range all {
		if !poison(d.GetMessage().GetText()) || d.GetAttempts() != 2 || d.GetReason() != "no luck with "+d.GetMessage().GetText() {
			t.Fatalf("dead letter %v", d)
		}
	}
	one, err := a.dead.GetDeadLetter(ctx(t), &strandmqv1.GetDeadLetterRequest{Topic: topic, Group: "bad",
		Which: &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Id{Id: "id-0-3"}}})
	if err != nil {
		t.Fatal(err)
	}
	if h := one.GetDeadLetter().GetHistory(); len(h) != 2 || h[0].GetOutcome() != "nack" || h[1].GetAttempt() != 2 {
		t.Fatalf("history %v", h)
	}
	if n, err := a.dead.ListDeadLetters(ctx(t), &strandmqv1.ListDeadLettersRequest{Topic: topic, Group: "good"}); err != nil || n.GetTotal() != 0 {
		t.Fatalf("group good has dead letters: %v, %v", n, err)
	}

	// Replay: one by key, the rest by all; asking again adds nothing.
	replay := func(which *strandmqv1.DeadLetterSelector) *strandmqv1.ReplayDeadLettersResponse {
		t.Helper()
		res, err := a.dead.ReplayDeadLetters(ctx(t), &strandmqv1.ReplayDeadLettersRequest{Topic: topic, Group: "bad", Which: which})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	byKey := &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Key{Key: "key-0"}}
	everything := &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_All{All: true}}
	if r := replay(byKey); r.GetReplayed() != 1 {
		t.Fatalf("replay by key: %v", r)
	}
	if r := replay(byKey); r.GetReplayed() != 0 || r.GetAlready() != 1 {
		t.Fatalf("replay by key again: %v", r)
	}
	if r := replay(everything); r.GetReplayed() != keys-1 || r.GetAlready() != 1 {
		t.Fatalf("replay of all: %v", r)
	}
	restart()
	if got := consume("bad", keys, func(string) bool { return false }); len(got) != keys {
		t.Fatalf("%d replayed messages were acked, want %d", len(got), keys)
	}
	for _, g := range []string{"good", "bad"} {
		c := a.describe(t, topic, g).GetCounts()
		if c.GetAcked() != keys*per || c.GetDead() != 0 || c.GetLag() != 0 {
			t.Fatalf("group %s ends with %v", g, c)
		}
	}

	// The life of one message, from the log.
	tr, err := a.trace.Trace(ctx(t), &strandmqv1.TraceRequest{Topic: topic, Which: &strandmqv1.TraceRequest_Id{Id: "id-0-3"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.GetMessages()) != 1 {
		t.Fatalf("trace found %d messages", len(tr.GetMessages()))
	}
	var what []string
	for _, e := range tr.GetMessages()[0].GetEvents() {
		if e.GetGroup() != "good" {
			what = append(what, e.GetWhat())
		}
	}
	got := strings.Join(what, " ")
	if want := "published duplicate handed-out nacked handed-out nacked dead-lettered replayed handed-out acked"; got != want {
		t.Fatalf("events of group bad:\n got %s\nwant %s", got, want)
	}
	for _, s := range tr.GetMessages()[0].GetStates() {
		if s.GetState() != "acked" {
			t.Fatalf("group %s: %s", s.GetGroup(), s.GetState())
		}
	}
}

// The textbook broker is a special case: one partition, one message at a time.
func TestTextbookBroker(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	p := &strandmqv1.GroupPolicy{Mode: strandmqv1.GroupMode_GROUP_MODE_PARTITION, MaxAttempts: proto.Uint32(3), BackoffMs: proto.Int64(1)}
	a.group(t, "t", "g1", p)
	a.group(t, "t", "g2", p)
	a.store(t, "t", msg("", "one"), msg("", "two"), msg("", "three"))

	// Polled twice: the same delivery, one attempt.
	first := a.one(t, "t", "g1", "m")
	again := a.one(t, "t", "g1", "m")
	if first.GetToken() != again.GetToken() || again.GetAttempt() != 1 || first.GetMessage().GetText() != "one" {
		t.Fatalf("polled twice: %v, then %v", first, again)
	}
	if ds := a.receive(t, "t", "g1", "m", 10); len(ds) != 1 {
		t.Fatalf("%d outstanding, want one", len(ds))
	}
	// The other group does not notice.
	other := a.one(t, "t", "g2", "m")
	if other.GetMessage().GetText() != "one" || other.GetAttempt() != 1 {
		t.Fatalf("group g2 got %v", other)
	}
	// Its token is not good here, and what is made up is good nowhere.
	if p := a.settle(t, "t", "g1", other.GetToken(), ack, "").GetProblem(); p.GetReason() != "BAD_TOKEN" && p.GetReason() != "STALE_DELIVERY" {
		t.Fatalf("the other group's token: %v", p)
	}
	for _, token := range []string{"", "x", first.GetToken()[1:], first.GetToken() + "A", strings.Repeat("A", 5000)} {
		if p := a.settle(t, "t", "g1", token, ack, "").GetProblem(); p.GetReason() != "BAD_TOKEN" || p.GetField() != "settlements[0].token" {
			t.Fatalf("token %.20q: %v", token, p)
		}
	}
	// Rejected three times it is dead, and the next follows.
	for i := range 3 {
		d := a.one(t, "t", "g1", "m")
		if d.GetMessage().GetText() != "one" || d.GetAttempt() != uint32(i+1) {
			t.Fatalf("attempt %d is %v", i+1, d)
		}
		r := a.done(t, "t", "g1", d, nack, fmt.Sprint("no ", i))
		if r.GetDeadLettered() != (i == 2) {
			t.Fatalf("attempt %d: dead %v", i+1, r.GetDeadLettered())
		}
	}
	next := a.one(t, "t", "g1", "m")
	if next.GetMessage().GetText() != "two" {
		t.Fatalf("after the dead letter came %v", next)
	}
	dead, err := a.dead.ListDeadLetters(ctx(t), &strandmqv1.ListDeadLettersRequest{Topic: "t", Group: "g1"})
	if err != nil {
		t.Fatal(err)
	}
	if len(dead.GetDeadLetters()) != 1 || dead.GetDeadLetters()[0].GetMessage().GetText() != "one" || dead.GetDeadLetters()[0].GetReason() != "no 2" {
		t.Fatalf("dead letters %v", dead)
	}
	// A stale token changes nothing; the settling one can be repeated.
	if p := a.settle(t, "t", "g1", first.GetToken(), ack, "").GetProblem(); p.GetReason() != "STALE_DELIVERY" {
		t.Fatalf("the first token again: %v", p)
	}
	a.done(t, "t", "g1", next, ack, "")
	a.done(t, "t", "g1", next, ack, "")
	if d := a.one(t, "t", "g2", "m"); d.GetToken() != other.GetToken() {
		t.Fatalf("group g2 now has %v", d)
	}
	// Extend moves the deadline, release is not charged.
	three := a.one(t, "t", "g1", "m")
	if r := a.done(t, "t", "g1", three, extend, ""); !r.GetDeadline().AsTime().After(three.GetDeadline().AsTime().Add(-time.Second)) {
		t.Fatalf("extended to %v from %v", r.GetDeadline().AsTime(), three.GetDeadline().AsTime())
	}
	a.done(t, "t", "g1", three, release, "")
	if d := a.one(t, "t", "g1", "m"); d.GetMessage().GetText() != "three" || d.GetAttempt() != 1 {
		t.Fatalf("after a release: %v", d)
	}
}

// A message published while a member waits reaches it at once, and a member
// that joins while another waits takes its part.
func TestLongPoll(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	a.group(t, "t", "g", nil)
	got := make(chan *strandmqv1.ReceiveResponse, 1)
	go func() {
		res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m1", WaitMs: 60_000})
		if err != nil {
			t.Error(err)
		}
		got <- res
	}()
	waitFor(t, func() bool { return len(a.describe(t, "t", "g").GetMembers()) == 1 })
	if _, err := a.consume.Join(ctx(t), &strandmqv1.JoinRequest{Topic: "t", Group: "g", Member: "m2"}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for i := range 40 { // some of them fall to the one that waits
		a.store(t, "t", msg(fmt.Sprint(i), "x"))
	}
	select {
	case res := <-got:
		if len(res.GetDeliveries()) == 0 {
			t.Fatalf("nothing came: %v", res)
		}
	case <-time.After(soon):
		t.Fatal("the waiting member got nothing")
	}
	if took := time.Since(began); took > 40*time.Second {
		t.Fatalf("it took %v, as long as the call waits", took)
	}
}

// Closing the broker answers those who wait, in time.
func TestCloseAnswersLongPolls(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", nil)
	got := make(chan error, 1)
	go func() {
		_, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", WaitMs: 60_000})
		got <- err
	}()
	waitFor(t, func() bool { return len(a.describe(t, "t", "g").GetMembers()) == 1 })
	began := time.Now()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	wantReason(t, <-got, "NOT_READY")
	if took := time.Since(began); took > 40*time.Second {
		t.Fatalf("closing took %v, as long as the call waits", took)
	}
}

// A second session of a member's name ends the first: its delivery lapses at
// once, charged, and its calls are refused.
func TestSessions(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(1)})
	a.store(t, "t", msg("k", "x"))
	join := func() string {
		t.Helper()
		res, err := a.consume.Join(ctx(t), &strandmqv1.JoinRequest{Topic: "t", Group: "g", Member: "m"})
		if err != nil {
			t.Fatal(err)
		}
		if len(res.GetAssignment()) != 1 || res.GetSessionTimeoutMs() != 30_000 {
			t.Fatalf("joined: %v", res)
		}
		return res.GetSession()
	}
	receive := func(session string) ([]*strandmqv1.Delivery, error) {
		res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", Session: session, WaitMs: 40_000})
		return res.GetDeliveries(), err
	}
	s1 := join()
	d1, err := receive(s1)
	if err != nil || len(d1) != 1 {
		t.Fatalf("%v, %v", d1, err)
	}
	s2 := join()
	if _, err := receive(s1); err == nil {
		t.Fatal("the first session still receives")
	} else {
		wantReason(t, err, "SESSION_ENDED")
	}
	d2, err := receive(s2)
	if err != nil || len(d2) != 1 || d2[0].GetAttempt() != 2 {
		t.Fatalf("the second session got %v, %v; want attempt 2", d2, err)
	}
	if p := a.settle(t, "t", "g", d1[0].GetToken(), ack, "").GetProblem(); p.GetReason() != "STALE_DELIVERY" {
		t.Fatalf("the first session's token: %v", p)
	}
	_, err = a.consume.Heartbeat(ctx(t), &strandmqv1.HeartbeatRequest{Topic: "t", Group: "g", Member: "m", Session: s1})
	wantReason(t, err, "SESSION_ENDED")
	// Leaving releases: not charged. Leaving twice is success.
	for range 2 {
		if _, err := a.consume.Leave(ctx(t), &strandmqv1.LeaveRequest{Topic: "t", Group: "g", Member: "m", Session: s2}); err != nil {
			t.Fatal(err)
		}
	}
	d3, err := receive("")
	if err != nil || len(d3) != 1 || d3[0].GetAttempt() != 2 {
		t.Fatalf("after leaving: %v, %v; want attempt 2 again", d3, err)
	}
}

// A member without a stream that says nothing for the session timeout loses its
// partitions, and nothing that it holds: a deadline that was told is kept. Any
// call brings it back, with the same session and the same deliveries.
func TestSessionTimeout(t *testing.T) {
	t.Parallel() // it waits for clocks
	dir := t.TempDir()
	change := func(c *Config) { c.SessionTimeout = 3 * time.Second }
	b := start(t, dir, change)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(1)})
	a.store(t, "t", msg("k", "1"), msg("k", "2"), msg("l", "1"), msg("m", "1"))
	first := a.receive(t, "t", "g", "slow", 2)
	if len(first) != 2 || first[0].GetMessage().GetKey() != "k" || first[1].GetMessage().GetKey() != "l" {
		t.Fatalf("got %v, want the first of k and the one of l", first)
	}
	away := func() *strandmqv1.Member {
		for _, m := range a.describe(t, "t", "g").GetMembers() {
			if m.GetName() == "slow" && m.GetAway() {
				return m
			}
		}
		return nil
	}
	// The other member waits longer than a session lasts, and its waiting keeps
	// it alive. What is new comes to it at once, what is held does not.
	d := a.one(t, "t", "g", "quick")
	if d.GetMessage().GetKey() != "m" {
		t.Fatalf("got %v, want m", d)
	}
	a.done(t, "t", "g", d, ack, "")
	waitFor(t, func() bool { return away() != nil })
	if m := away(); m.GetInFlight() != 2 || len(m.GetAssignment()) != 0 {
		t.Fatalf("away: %v, want no partitions and 2 in flight", m)
	}
	a.none(t, "t", "g", "quick")

	// A restart in between changes nothing.
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = start(t, dir, change)
	a = newAPI(t, b.URL())
	if m := away(); m.GetInFlight() != 2 {
		t.Fatalf("after a restart: %v", m)
	}
	// The token alone says enough.
	a.done(t, "t", "g", first[1], ack, "")
	// Asking again, without a session as a shell script does, shows what is held.
	var again []*strandmqv1.Delivery
	eventually(t, "it asked, and is not away", func() bool { // at once; but it is away again after a while
		again = a.receive(t, "t", "g", "slow", 2)
		if len(again) != 1 || again[0].GetToken() != first[0].GetToken() || again[0].GetAttempt() != 1 {
			t.Fatalf("came back to %v, want %v again", again, first[0])
		}
		return away() == nil
	})
	a.done(t, "t", "g", again[0], nack, "card declined")
	if d := a.one(t, "t", "g", "slow"); d.GetAttempt() != 2 {
		t.Fatalf("got %v, want attempt 2", d)
	}
}

// Each call with a session brings its member back, and a new session of the name
// ends it, charged, away or not.
func TestBackFromAway(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir(), func(c *Config) { c.SessionTimeout = time.Second })
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(1)})
	join := func(member string) string {
		res, err := a.consume.Join(ctx(t), &strandmqv1.JoinRequest{Topic: "t", Group: "g", Member: member})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetSession()
	}
	isAway := func(member string) bool {
		for _, m := range a.describe(t, "t", "g").GetMembers() {
			if m.GetName() == member {
				return m.GetAway()
			}
		}
		return false
	}
	calls := map[string]func(member, session string) error{
		"heartbeat": func(m, s string) error {
			res, err := a.consume.Heartbeat(ctx(t), &strandmqv1.HeartbeatRequest{Topic: "t", Group: "g", Member: m, Session: s})
			if err == nil && len(res.GetAssignment()) == 0 {
				t.Error("a heartbeat brought it back without partitions")
			}
			return err
		},
		"receive": func(m, s string) error {
			_, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: m, Session: s})
			return err
		},
		"settle": func(m, s string) error {
			_, err := a.consume.Settle(ctx(t), &strandmqv1.SettleRequest{Topic: "t", Group: "g", Member: m, Session: s, Settlements: []*strandmqv1.Settlement{{Token: "none", Action: ack}}})
			return err
		},
		"settle by name": func(m, _ string) error {
			_, err := a.consume.Settle(ctx(t), &strandmqv1.SettleRequest{Topic: "t", Group: "g", Member: m, Settlements: []*strandmqv1.Settlement{{Token: "none", Action: ack}}})
			return err
		},
	}
	sessions := map[string]string{}
	for name := range calls {
		sessions[name] = join(strings.ReplaceAll(name, " ", "-"))
	}
	for name, call := range calls {
		member := strings.ReplaceAll(name, " ", "-")
		waitFor(t, func() bool { return isAway(member) })
		eventually(t, name+" brings it back", func() bool { // at once; but it is away again after a second
			if err := call(member, sessions[name]); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return !isAway(member)
		})
	}
	a.store(t, "t", msg("k", "x"))
	held := a.one(t, "t", "g", "heartbeat")
	waitFor(t, func() bool { return isAway("heartbeat") })
	join("heartbeat") // started again
	if p := a.settle(t, "t", "g", held.GetToken(), ack, "").GetProblem(); p.GetReason() != "STALE_DELIVERY" {
		t.Errorf("after a new session of the name: %v", p)
	}
	if d := a.one(t, "t", "g", "heartbeat"); d.GetAttempt() != 2 {
		t.Errorf("got %v, want attempt 2", d)
	}
}

// A caller that hangs up while it waits is noticed at once, over HTTP/1.1 and
// HTTP/2.
func TestHangUp(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", nil)
	for i, h2 := range []bool{false, true} {
		member := fmt.Sprint("m", i)
		c, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			_, err := apiOver(httpClient(t, h2), b.URL()).consume.Receive(c, &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: member, WaitMs: 30_000})
			done <- err
		}()
		waitFor(t, func() bool { return len(a.describe(t, "t", "g").GetMembers()) == i+1 })
		cancel()
		<-done
		waitFor(t, func() bool {
			_, body := get(t, b.URL()+"/metrics")
			return strings.Contains(body, fmt.Sprintf(`rpc_method="strandmq.v1.ConsumeService/Receive",rpc_response_status_code="canceled",rpc_system_name="connect"} %d`, i+1))
		})
	}
}
