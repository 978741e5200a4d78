package broker

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Everything is delivered, in the order of each key, and settled by runs, with
// every client, readable and as record batches.
func TestConsume(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	for name, open := range consumings(t, b) {
		for _, raw := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/raw=%v", name, raw), func(t *testing.T) {
				topic := fmt.Sprintf("t-%s-%v", name, raw)
				a.topic(t, topic, 3)
				a.group(t, topic, "g", patient())
				const n = 120
				a.fill(t, topic, n, 12)
				what := opened(topic, "g", "m")
				what.RecordBatches = raw
				m := joins(t, open, what, 40)
				if len(m.assign.GetShares()) != 3 {
					t.Fatalf("assigned %v", m.assign)
				}
				at := map[string]int{}
				numbers := map[uint64]bool{}
				for done := 0; done < n; {
					ds, err := m.frame()
					if err != nil {
						t.Fatal(err)
					}
					if len(ds) == 0 {
						continue
					}
					for _, d := range ds {
						i := 0
						if _, err := fmt.Sscan(d.body, &i); err != nil || d.key != fmt.Sprint("k", i%12) || d.attempt != 1 || numbers[d.number] || d.fence == 0 {
							t.Fatalf("delivery %+v", d)
						}
						if was, ok := at[d.key]; ok && was >= i {
							t.Fatalf("key %s: %d after %d", d.key, i, was)
						}
						at[d.key], numbers[d.number] = i, true
						if (d.token == "") != raw {
							t.Fatalf("token %q", d.token)
						}
					}
					m.send(&strandmqv1.ConsumeRequest{Credits: uint32(len(ds)), Settlements: ackRuns(ds)})
					done += len(ds)
				}
				for _, r := range m.results(n) {
					if r.GetProblem() != nil {
						t.Fatalf("settled: %v", r)
					}
				}
				m.send(&strandmqv1.ConsumeRequest{Leave: true})
				m.end("")
				if c := a.describe(t, topic, "g").GetCounts(); c.GetAcked() != n || c.GetLag() != 0 {
					t.Fatalf("counts %v", c)
				}
				labels := fmt.Sprintf(`{group="g",topic=%q}`, topic)
				// Behind an edge, some are counted there, and some where partitions are led.
				for _, name := range []string{"messages_delivered_total", "delivery_latency_seconds_count", "messages_acked_total", "ack_latency_seconds_count", "message_hand_outs_count", "message_hand_outs_sum"} {
					if got := metricOfAll(t, b, "strandmq_"+name+labels); got != n {
						t.Errorf("%s is %v", name, got)
					}
				}
			})
		}
	}
}

// Nothing is handed out beyond the credit, and credits have bounds.
func TestConsumeCredits(t *testing.T) {
	t.Parallel()                                                                       // it waits for clocks
	b := start(t, t.TempDir(), func(c *Config) { c.SessionTimeout = 6 * time.Second }) // it is told three times in that why nothing comes
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	a.group(t, "t", "g", patient())
	a.fill(t, "t", 40, 40)
	open := opener(t, b)
	m := joins(t, open, opened("t", "g", "m"), 0)
	for m.idle == "" {
		if ds, err := m.frame(); err != nil || len(ds) > 0 {
			t.Fatalf("without credit: %v, %v", ds, err)
		}
	}
	if !strings.Contains(m.idle, "credit") {
		t.Errorf("idle since %q", m.idle)
	}
	total := 0
	for _, n := range []int{1, 5, 7} {
		m.send(&strandmqv1.ConsumeRequest{Credits: uint32(n)})
		m.take(n)
		total += n
		if c := a.describe(t, "t", "g").GetCounts(); c.GetInFlight() != uint64(total) {
			t.Fatalf("%d are in flight after %d credits", c.GetInFlight(), total)
		}
	}
	m.send(&strandmqv1.ConsumeRequest{Credits: 1_000_000})
	m.take(27)
	m.send(&strandmqv1.ConsumeRequest{Credits: 28})
	m.end("BAD_VALUE")
	m = joins(t, open, opened("t", "g", "m"), 1_000_000)
	m.send(&strandmqv1.ConsumeRequest{Credits: 1<<32 - 1})
	m.end("BAD_VALUE")
}

// A stream that breaks is a member that crashed: charged, at once. One that ends
// in good order is not charged.
func TestConsumeEnds(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	p := patient()
	p.MaxAttempts = new(uint32(50))
	a.group(t, "t", "g", p)
	a.fill(t, "t", 4, 4)
	open := opener(t, b)
	attempt := uint32(1)
	for _, c := range []struct {
		name    string
		end     func(m *member)
		charged bool
	}{
		{"leave", func(m *member) { m.send(&strandmqv1.ConsumeRequest{Leave: true}); m.end("") }, false},
		{"half-close", func(m *member) { _ = m.CloseRequest(); m.end("") }, false},
		{"Leave beside it", func(m *member) {
			if _, err := a.consume.Leave(ctx(t), &strandmqv1.LeaveRequest{Topic: "t", Group: "g", Member: "m", Session: m.session}); err != nil {
				t.Fatal(err)
			}
			m.end("")
		}, false},
		{"cut", func(m *member) { m.cut() }, true},
		{"the same member again", func(m *member) {
			again := joins(t, open, opened("t", "g", "m"), 0)
			m.end("SESSION_ENDED")
			again.send(&strandmqv1.ConsumeRequest{Leave: true})
			again.end("")
		}, true},
		{"a bad frame", func(m *member) {
			m.send(&strandmqv1.ConsumeRequest{Open: opened("t", "g", "other")})
			m.end("BAD_VALUE")
		}, true},
		{"a bad run", func(m *member) { m.settle(ack, 5, 3); m.end("BAD_VALUE") }, true},
		{"a huge run", func(m *member) { m.settle(ack, 1, 1<<63); m.end("BAD_VALUE") }, true},
		{"too many runs", func(m *member) {
			m.send(&strandmqv1.ConsumeRequest{Settlements: make([]*strandmqv1.SettleRun, 1001)})
			m.end("BATCH_TOO_LARGE")
		}, true},
		{"the same delivery in two runs", func(m *member) {
			m.send(&strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{{First: 3, Action: ack}, {First: 1, Last: 3, Action: ack}}})
			m.end("BAD_VALUE")
		}, true},
		{"too many deliveries", func(m *member) {
			m.send(&strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{
				{First: 1, Last: maxSettled, Action: ack}, {First: maxSettled + 1, Action: ack},
			}})
			m.end("BATCH_TOO_LARGE")
		}, true},
		{"a huge frame", func(m *member) {
			m.send(&strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{{Reason: strings.Repeat("x", 5<<20)}}})
			m.end("REQUEST_TOO_LARGE")
		}, true},
		{"a settlement and leave", func(m *member) {
			m.send(&strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{{First: 1, Last: 4, Action: release}}, Leave: true})
			if rs := m.results(4); rs[0].GetProblem() != nil {
				t.Errorf("released: %v", rs)
			}
			m.end("")
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := joins(t, open, opened("t", "g", "m"), 100)
			for _, d := range m.take(4) {
				if d.attempt != attempt {
					t.Fatalf("attempt %d, want %d", d.attempt, attempt)
				}
			}
			c.end(m)
			if c.charged {
				attempt++
			}
			eventually(t, "the session is gone", func() bool {
				_, g, err := b.group("t", "g")
				return err == nil && len(g.Members) == 0
			})
		})
	}
}

// A member's stream that is cut at any stage leaves no session and settles all of a
// frame or nothing of it; what it had comes again, in the order of each key.
func TestConsumeCut(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	p := patient()
	p.MaxAttempts = new(uint32(50))
	a.group(t, "t", "g", p)
	const n = 8
	a.fill(t, "t", n, 2)
	opens := connectFrame(t, &strandmqv1.ConsumeRequest{Open: opened("t", "g", "m"), Credits: 4})
	both := append(slices.Clone(opens), connectFrame(t, &strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{{First: 1, Last: 2, Action: release}}})...)
	for _, c := range []struct {
		name string
		send []byte
		read bool
	}{
		{"at once", nil, false}, {"in the prefix", opens[:3], false}, {"behind the prefix", opens[:5], false},
		{"in the opening", opens[:len(opens)-1], false}, {"behind the opening", opens, false}, {"behind its answer", opens, true},
		{"in a settlement", both[:len(both)-1], false}, {"behind a settlement", both, false}, {"all of it and an answer", both, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cutStream(t, b.URL()+"/strandmq.v1.ConsumeService/Consume", c.send, c.read)
			eventually(t, "the session is gone", func() bool {
				_, g, err := b.group("t", "g")
				return err == nil && len(g.Members) == 0
			})
			if c := a.describe(t, "t", "g").GetCounts(); c.GetAcked() != 0 || c.GetDead() != 0 || c.GetLag() != n {
				t.Fatalf("counts %v", c)
			}
		})
	}
	eventually(t, "everything is let go of", func() bool { return b.flight.held.Load() == 0 })
	m := joins(t, opener(t, b), opened("t", "g", "m"), n)
	at := map[string]uint64{}
	for done := 0; done < n; {
		ds, err := m.frame()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			if was, ok := at[d.key]; ok && was >= d.offset {
				t.Fatalf("key %s: offset %d after %d", d.key, d.offset, was)
			}
			at[d.key] = d.offset
		}
		done += len(ds)
		if len(ds) > 0 {
			m.send(&strandmqv1.ConsumeRequest{Settlements: ackRuns(ds)})
		}
	}
	m.results(n)
	if c := a.describe(t, "t", "g").GetCounts(); c.GetAcked() != n || c.GetLag() != 0 {
		t.Fatalf("counts %v", c)
	}
}

// What is settled on a stream has results of its own for what does not fit.
func TestConsumeSettles(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	p := patient()
	p.MaxAttempts = new(uint32(2))
	a.group(t, "t", "g", p)
	a.fill(t, "t", 10, 10)
	m := joins(t, opener(t, b), opened("t", "g", "m"), 10)
	m.take(10)
	m.send(&strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{
		{First: 1, Last: 2, Action: ack}, {First: 3, Action: extend, DelayMs: 1000}, {First: 4, Action: reject, Reason: "no"},
		{First: 5, Action: release}, {First: 6, Action: nack, Reason: "first", DelayMs: 1},
		{First: 7}, {First: 8, Action: 99}, {First: 9, Action: ack, DelayMs: 5}, {First: 10, Action: nack, DelayMs: -1}, {First: 11, Action: nack, Reason: strings.Repeat("x", 1025)},
		{First: 0, Action: ack}, {First: 100, Last: 200, Action: ack},
	}})
	var said []string
	fields := map[uint64]string{7: "settlements[5].action", 8: "settlements[6].action", 9: "settlements[7].delay_ms", 11: "settlements[9].reason", 0: "settlements[10].first", 100: "settlements[11].first"}
	for _, r := range m.results(13 + 100) {
		if want := fields[r.GetFirst()]; want != "" && r.GetProblem().GetField() != want {
			t.Errorf("%d: field %s, want %s", r.GetFirst(), r.GetProblem().GetField(), want)
		}
		if r.GetFirst() == 7 && !strings.HasPrefix(r.GetProblem().GetMessage(), "action must be ack") {
			t.Errorf("of what? %s", r.GetProblem().GetMessage())
		}
		said = append(said, fmt.Sprintf("%d-%d %s %v %v", r.GetFirst(), r.GetLast(), r.GetProblem().GetReason(), r.GetDeadLettered(), r.GetDeadline() != nil))
	}
	want := []string{
		"1-2  false false", "3-3  false true", "4-4  true false", "5-5  false false", "6-6  false false",
		"7-7 BAD_VALUE false false", "8-8 BAD_VALUE false false", "9-9 BAD_VALUE false false", "10-10 BAD_VALUE false false", "11-11 BAD_VALUE false false",
		"0-0 BAD_VALUE false false", "100-200 STALE_DELIVERY false false",
	}
	if !slices.Equal(said, want) {
		t.Fatalf("results\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
	}
	// Settled once is settled; a delivery token remembers, a number does not.
	m.settle(ack, 1, 0)
	if r := m.results(1)[0]; r.GetProblem().GetReason() != "STALE_DELIVERY" {
		t.Fatalf("again: %v", r)
	}
	m.send(&strandmqv1.ConsumeRequest{Credits: 2})
	again := m.take(2)
	slices.SortFunc(again, func(x, y got) int { return int(x.attempt) - int(y.attempt) })
	if again[0].attempt != 1 || again[1].attempt != 2 {
		t.Fatalf("given again: %v", again)
	}
	// Unary Settle takes the tokens of a stream.
	if r := a.settle(t, "t", "g", again[1].token, nack, "second"); !r.GetDeadLettered() {
		t.Fatalf("beside the stream: %v", r)
	}
	m.settle(ack, again[1].number, 0)
	if r := m.results(1)[0]; r.GetProblem().GetReason() != "STALE_DELIVERY" {
		t.Fatalf("after it was settled beside the stream: %v", r)
	}
	if c := a.describe(t, "t", "g").GetCounts(); c.GetDead() != 2 || c.GetAcked() != 2 {
		t.Fatalf("counts %v", c)
	}
}

// What a stream must begin with.
func TestConsumeOpens(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	open := opener(t, b)
	for name, c := range map[string]struct {
		req    *strandmqv1.ConsumeRequest
		reason string
	}{
		"no open":      {&strandmqv1.ConsumeRequest{Credits: 1}, "BAD_VALUE"},
		"no topic":     {&strandmqv1.ConsumeRequest{Open: opened("nowhere", "g", "m")}, "UNKNOWN_TOPIC"},
		"no group":     {&strandmqv1.ConsumeRequest{Open: opened("t", "g", "m")}, "UNKNOWN_GROUP"},
		"no member":    {&strandmqv1.ConsumeRequest{Open: opened("t", "g", "")}, "BAD_NAME"},
		"bad format":   {&strandmqv1.ConsumeRequest{Open: &strandmqv1.ConsumeOpen{Topic: "t", Group: "g", Member: "m", CreateGroup: true, BodyFormat: 99}}, "BAD_VALUE"},
		"nothing":      {nil, "BAD_VALUE"},
		"many credits": {&strandmqv1.ConsumeRequest{Open: &strandmqv1.ConsumeOpen{Topic: "t", Group: "made", Member: "m", CreateGroup: true}, Credits: 1_000_001}, "BAD_VALUE"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &member{consuming: open(ctx(t)), t: t}
			if c.req != nil {
				m.send(c.req)
			} else if err := m.CloseRequest(); err != nil {
				t.Fatal(err)
			}
			m.end(c.reason)
		})
	}
}

// Members that come and go are told of live, and a group that is deleted ends
// its streams.
func TestConsumeAssignment(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	a.group(t, "t", "g", patient())
	open := opener(t, b)
	m := joins(t, open, opened("t", "g", "m1"), 1000)
	if len(m.assign.GetShares()) != 2 {
		t.Fatalf("alone: %v", m.assign)
	}
	other := joins(t, open, opened("t", "g", "m2"), 1000)
	for len(m.assign.GetShares()) != 1 {
		if _, err := m.frame(); err != nil {
			t.Fatal(err)
		}
	}
	if len(other.assign.GetShares()) != 1 || other.assign.GetShares()[0].GetPartition() == m.assign.GetShares()[0].GetPartition() {
		t.Fatalf("two: %v, %v", m.assign, other.assign)
	}
	a.fill(t, "t", 40, 40)
	mine, theirs := 0, 0
	for _, d := range a.describe(t, "t", "g").GetPartitions() {
		if d.GetPartition() == m.assign.GetShares()[0].GetPartition() {
			mine = int(d.GetEnd())
		} else {
			theirs = int(d.GetEnd())
		}
	}
	for _, d := range m.take(mine) {
		if d.partition != m.assign.GetShares()[0].GetPartition() {
			t.Fatalf("of a partition that is not assigned: %v", d)
		}
	}
	other.take(theirs)
	other.cut()
	for _, d := range m.take(theirs) {
		if d.attempt != 2 {
			t.Fatalf("from a member that was lost: %v", d)
		}
	}
	if len(m.assign.GetShares()) != 2 {
		t.Fatalf("alone again: %v", m.assign)
	}
	if _, err := a.groups.DeleteGroup(ctx(t), &strandmqv1.DeleteGroupRequest{Topic: "t", Group: "g", Confirm: "g"}); err != nil {
		t.Fatal(err)
	}
	m.end("UNKNOWN_GROUP")
}

// A member that never settles loses what it holds at the deadline, and a member
// that does not read loses its session.
func TestConsumersThatStall(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir(), func(c *Config) { c.SessionTimeout = 3 * time.Second })
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "hurry", &strandmqv1.GroupPolicy{AckDeadlineMs: new(int64(3000)), BackoffMs: new(int64(1)), MaxAttempts: new(uint32(2))})
	a.fill(t, "t", 3, 3)
	m := joins(t, opener(t, b), opened("t", "hurry", "m"), 1000)
	m.take(3)
	for _, d := range m.take(3) {
		if d.attempt != 2 {
			t.Fatalf("after its deadline: %v", d)
		}
	}
	eventually(t, "all are dead letters", func() bool { return a.describe(t, "t", "hurry").GetCounts().GetDead() == 3 })
	m.cut()

	a.topic(t, "big", 1)
	a.group(t, "big", "g", patient())
	body := strings.Repeat("x", 1<<20-100)
	for i := range 12 {
		a.store(t, "big", msg(fmt.Sprint(i), body))
	}
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	small := &http.Transport{Protocols: &p, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 1 << 16, MaxReceiveBufferPerConnection: 1 << 17}}
	defer small.CloseIdleConnections()
	slow, err := apiOver(&http.Client{Transport: small}, b.URL()).consume.Consume(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := slow.Send(&strandmqv1.ConsumeRequest{Open: opened("big", "g", "slow"), Credits: 1_000_000}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is handed out", func() bool { return a.describe(t, "big", "g").GetCounts().GetHandedOut() >= 12 })
	d := a.one(t, "big", "g", "other")
	if d.GetAttempt() != 2 {
		t.Fatalf("the attempt of a member that took nothing: %d", d.GetAttempt())
	}
	eventually(t, "the slow session is gone", func() bool {
		_, g, err := b.group("big", "g")
		if err != nil {
			return false
		}
		_, there := g.Member("slow")
		return !there
	})
}

// A broker that stops gives back what its streams hold, uncharged.
func TestConsumeWhileStopping(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", patient())
	a.fill(t, "t", 2, 2)
	m := joins(t, opener(t, b), opened("t", "g", "m"), 10)
	m.take(2)
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	m.end("NOT_READY")
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	a = newAPI(t, start(t, dir).URL())
	if ds := a.receive(t, "t", "g", "n", 10); len(ds) != 2 || ds[0].GetAttempt() != 1 {
		t.Fatalf("after the restart: %v", ds)
	}
}
