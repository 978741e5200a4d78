package loadtest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/strandmq/strandmq/internal/check"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// textbook is a broker in memory: one partition, each group one message of a key
// at a time. A fault can be planted.
type textbook struct {
	plant string        // what to do wrong
	times int           // how often; 0: once
	slow  time.Duration // how long the third publish takes
	pace  time.Duration // how long each takes
	think time.Duration // how long settling takes
	stop  int64         // refuse everything after so many publishes; 0: never

	mu        sync.Mutex
	planted   int
	log       []Message
	groups    map[string]*bookGroup
	publishes int64
	created   []string
	deleted   []string
	existing  bool
	sessions  int
}

type bookGroup struct {
	p     Policy
	state []bookMessage
	dead  []int
	from  int
	todo  []int // messages to look at
	joins int   // sessions so far
}

type bookMessage struct {
	out, done bool
	attempt   uint32
	session   int
	deadline  time.Time
	notBefore time.Time
}

func newTextbook() *textbook { return &textbook{groups: map[string]*bookGroup{}} }

// done tells whether the planted fault was done as often as it shall be.
func (b *textbook) done() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.planted >= max(b.times, 1)
}

// crashed tells whether a member of each group has come back after a crash.
func (b *textbook) crashed(members int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.groups {
		if g.joins <= members {
			return false
		}
	}
	return true
}

// once tells whether to do a planted fault now.
func (b *textbook) once(fault string) bool {
	if b.plant != fault || b.planted >= max(b.times, 1) {
		return false
	}
	b.planted++
	return true
}

func (b *textbook) Publisher(string) Publisher { return bookPublisher{b} }

type bookPublisher struct{ b *textbook }

func (p bookPublisher) Flush(context.Context) error { return nil }

func (p bookPublisher) Close() {}

func (p bookPublisher) Send(ctx context.Context, batch []Message, done func([]*Receipt, error)) {
	n := atomic.AddInt64(&p.b.publishes, 1)
	if p.b.stop > 0 && n > p.b.stop {
		done(nil, &Refusal{Reason: "STORE_FAILED", Text: "the disk is full"})
		return
	}
	if p.b.slow > 0 && n == 3 {
		time.Sleep(p.b.slow) // the stall that the test is about
	}
	time.Sleep(p.b.pace) // as a disk would
	receipts := make([]*Receipt, len(batch))
	p.b.mu.Lock()
	for i, m := range batch {
		receipts[i] = &Receipt{Place: check.Place{Offset: uint64(len(p.b.log))}}
		m.Body = slices.Clone(m.Body)
		if len(p.b.log) > 50 && p.b.once("alter") {
			m.Body[len(m.Body)-1]++
		}
		if len(p.b.log) > 50 && p.b.once("lose") {
			continue
		}
		p.b.log = append(p.b.log, m)
		if len(p.b.log) > 50 && p.b.once("store twice") {
			p.b.log = append(p.b.log, m)
		}
	}
	p.b.mu.Unlock()
	done(receipts, nil)
}

type bookSession struct {
	b      *textbook
	g      *bookGroup
	number int
}

func (b *textbook) Join(_ context.Context, _, group, _ string) (Session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions++
	b.groups[group].joins++
	return &bookSession{b, b.groups[group], b.sessions}, nil
}

// Leave gives back what the session holds, without a charge. What nobody asked for
// again lapses by its deadline.
func (s *bookSession) Leave(context.Context) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for i := range s.g.state {
		if m := &s.g.state[i]; m.out && m.session == s.number {
			m.out = false
			m.attempt--
		}
	}
	return nil
}

func (s *bookSession) Drop() {}

func (s *bookSession) Receive(ctx context.Context, most int, wait time.Duration) ([]Delivery, error) {
	for end := time.Now().Add(wait); ; {
		if got := s.take(most); len(got) > 0 || time.Now().After(end) {
			return got, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (s *bookSession) take(most int) (out []Delivery) {
	b, g := s.b, s.g
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(g.state); i < len(b.log); i++ {
		g.state = append(g.state, bookMessage{})
		if i >= g.from {
			g.todo = append(g.todo, i)
		}
	}
	if b.plant != "repeat" { // what is done is looked at no more
		g.todo = slices.DeleteFunc(g.todo, func(i int) bool { return g.state[i].done })
	}
	now := time.Now()
	busy, given := map[string]bool{}, map[string]bool{}
	give := func(i int) {
		m := &g.state[i]
		given[b.log[i].Key] = true
		m.out, m.session, m.deadline = true, s.number, now.Add(g.p.AckDeadline).Truncate(time.Millisecond)
		m.attempt++
		out = append(out, Delivery{
			Key: b.log[i].Key, Body: b.log[i].Body, Place: check.Place{Offset: uint64(i)}, Attempt: m.attempt,
			Token: strconv.Itoa(i) + "/" + strconv.Itoa(int(m.attempt)), Deadline: m.deadline.UnixMilli(),
		})
	}
	for _, i := range g.todo {
		if len(out) >= most {
			break
		}
		m, key := &g.state[i], b.log[i].Key
		if m.out && now.After(m.deadline.Add(time.Millisecond)) {
			m.out = false
			g.fail(i, now)
		}
		switch {
		case m.done:
			if m.attempt > 0 && i > 50 && !slices.Contains(g.dead, i) && b.once("repeat") {
				give(i)
			}
			continue
		case m.out && i > 20 && b.once("hurry"):
			give(i) // to another, long before it lapses
		case m.out && busy[key]:
		case !busy[key] && !m.out && !now.Before(m.notBefore):
			// The next of its key instead, when there is one.
			j := i + 1
			for j < len(b.log) && b.log[j].Key != key {
				j++
			}
			if i > 50 && j < len(b.log) && b.once("swap") {
				give(j)
			} else {
				give(i)
			}
		case given[key] && !m.out && i > 20 && b.once("overlap"): // both come at once: whoever gets them sees it
			give(i)
		}
		busy[key] = busy[key] || !m.done
	}
	return out
}

func (g *bookGroup) fail(i int, now time.Time) (buried bool) {
	m := &g.state[i]
	m.notBefore = now.Add(g.p.Backoff)
	if g.p.MaxAttempts > 0 && m.attempt >= g.p.MaxAttempts {
		m.done = true
		g.dead = append(g.dead, i)
		return true
	}
	return false
}

func (s *bookSession) Settle(_ context.Context, list []Settlement) ([]check.Outcome, error) {
	time.Sleep(s.b.think) // as a broker that is busy
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	out := make([]check.Outcome, len(list))
	for n, x := range list {
		place, attempt, _ := strings.Cut(x.Token, "/")
		i, _ := strconv.Atoi(place)
		m := &s.g.state[i]
		switch {
		case !m.out || attempt != strconv.Itoa(int(m.attempt)):
			out[n] = check.Stale
		case !x.Nack:
			m.out, m.done = false, true
			out[n] = check.Acked
		default:
			m.out = false
			out[n] = check.Failed
			if s.g.fail(i, time.Now()) {
				out[n] = check.Buried
			}
		}
	}
	return out, nil
}

func (b *textbook) CreateTopic(_ context.Context, topic string, _ uint32) (uint32, error) {
	b.created = append(b.created, topic)
	if b.existing {
		return 1, nil
	}
	return 0, nil
}

func (b *textbook) DeleteTopic(_ context.Context, topic string) error {
	b.deleted = append(b.deleted, topic)
	return nil
}

func (b *textbook) CreateGroup(_ context.Context, _, group string, p Policy) error {
	g := &bookGroup{p: p}
	if p.FromLatest {
		g.from = len(b.log)
	}
	b.groups[group] = g
	return nil
}

func (b *textbook) DeleteGroup(_ context.Context, _, group string) error {
	b.deleted = append(b.deleted, group)
	return nil
}

func (b *textbook) Lag(_ context.Context, _, group string) (n uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groups[group]
	for i := g.from; i < len(b.log); i++ {
		if i >= len(g.state) || !g.state[i].done {
			n++
		}
	}
	return n, nil
}

func (b *textbook) Dead(_ context.Context, _, group string, fn func(Delivery)) error {
	for _, i := range b.groups[group].dead {
		fn(Delivery{Key: b.log[i].Key, Body: b.log[i].Body})
	}
	return nil
}

func (b *textbook) Version(context.Context) (string, error) { return "textbook", nil }

// short is a load that is over soon.
func short() Config {
	return Config{
		Producers: 3, Groups: 1, Members: 3, Keys: 5, Rate: 1000, Batch: 10, Size: 60, Take: 5,
		Duration: 300 * time.Millisecond, AckDeadline: 200 * time.Millisecond, Backoff: 5 * time.Millisecond,
		DrainFor: time.Minute, Seed: 1, Name: "test", Away: 20 * time.Millisecond,
	}
}

// bubble runs a test on a clock of its own, which moves when everybody waits: 300 ms of
// a schedule are that, however busy the machine is. It is for loads without
// connections, which nobody waits for in a bubble.
func bubble(t *testing.T, run func(*testing.T)) {
	t.Helper()
	synctest.Test(t, run)
}

func run1(t *testing.T, c Config, b *textbook) *Report {
	t.Helper()
	rep, err := Run(t.Context(), c, b)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestRunKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newTextbook()
		c := short()
		// With two attempts of which each fails four times in ten, one message of six
		// dies: that none of 300 does, or that none lapses, is less likely than one in 10^13.
		c.Groups, c.Nack, c.Lapse, c.Crash, c.MaxAttempts = 2, 30, 10, 50*time.Millisecond, 2
		looks := 0
		c.Tick, c.Tell = 20*time.Millisecond, func(p Progress) {
			looks++
			if len(p.Groups) != 2 || p.Total != c.Duration {
				t.Errorf("%+v", p)
			}
		}
		rep := run1(t, c, b)
		if rep.Verdict.Outcome != Kept || !rep.Drained || rep.Publish.Messages != 300 || rep.Publish.Unsent != 0 || looks == 0 {
			t.Errorf("%d looks; %+v", looks, rep)
		}
		if rep.Publish.Latency.Count != 300 || rep.Publish.Rate < 990 || rep.Publish.Rate > 1000.1 {
			t.Errorf("%+v", rep.Publish)
		}
		for _, g := range rep.Groups {
			if g.Messages < 290 || g.Acked+g.Dead != 300 || g.Nacked == 0 || g.Lapsed == 0 || g.Crashes == 0 || g.Dead == 0 || g.Redelivered == 0 {
				t.Errorf("a failure did not happen: %+v", g)
			}
		}
		if diff := cmp.Diff([]string{"loadtest-test"}, b.created); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"loadtest-test"}, b.deleted); diff != "" {
			t.Error(diff)
		}
	})
}

// Handlers take their time, so many at once; members leave and come back, and give
// back what no handler has.
func TestRunWorks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := short()
		c.Rate, c.Ahead, c.Keys, c.Members, c.Duration = 0, 40, 1000, 2, 600*time.Millisecond
		c.Work, c.Workers, c.Take, c.AckDeadline = 10*time.Millisecond, 4, 0, time.Second
		c.Leave = 100 * time.Millisecond
		ahead := uint64(0)
		c.Tick, c.Tell = 5*time.Millisecond, func(p Progress) { ahead = max(ahead, p.Published-p.Groups[0].Ended) }
		rep := run1(t, c, newTextbook())
		g := rep.Groups[0]
		// Eight handlers of 10 ms do 800 a second, less while a member is away: 20 of
		// each 100 ms one of the two is.
		if rep.Verdict.Outcome != Kept || g.Leaves < 3 || g.Crashes > 0 || g.Rate > 800.1 || g.Rate < 400 || g.Nacked+g.Dead > 0 {
			t.Errorf("%+v", rep)
		}
		if g.Gap < 9 || g.Gap > 100 {
			t.Errorf("the longest time without an ack: %v ms", g.Gap)
		}
		if ahead > 60 || ahead < 20 { // three producers may see the same room
			t.Errorf("the producers were %d messages ahead", ahead)
		}
	})
}

// A crash drops what handlers have.
func TestRunCrashAtWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := short()
		c.Rate, c.Ahead, c.Keys, c.Duration = 0, 40, 1000, 600*time.Millisecond
		c.Work, c.Workers, c.Take, c.AckDeadline = 10*time.Millisecond, 4, 0, 300*time.Millisecond
		c.Crash = 100 * time.Millisecond
		rep := run1(t, c, newTextbook())
		if g := rep.Groups[0]; rep.Verdict.Outcome != Kept || g.Crashes < 3 || g.Redelivered == 0 {
			t.Errorf("%+v", rep)
		}
	})
}

// Each fault of a broker is found, and called by its name.
func TestRunFindsFaults(t *testing.T) {
	for plant, count := range map[string]func(Verdict) uint64{
		"lose":        func(v Verdict) uint64 { return v.Lost },
		"store twice": func(v Verdict) uint64 { return v.Duplicated },
		"repeat":      func(v Verdict) uint64 { return v.Duplicated },
		"swap":        func(v Verdict) uint64 { return v.Disordered },
		"overlap":     func(v Verdict) uint64 { return v.Overlapping },
		"hurry":       func(v Verdict) uint64 { return v.Overlapping },
		"alter":       func(v Verdict) uint64 { return v.Altered },
	} {
		t.Run(plant, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newTextbook()
				// Many, since two members may judge in another order than they were
				// given; and what is in hand is so for a while, so that it can be given
				// to another.
				b.plant, b.times, b.think = plant, 30, 3*time.Millisecond
				c := short()
				c.AckDeadline = 5 * time.Second
				rep := run1(t, c, b)
				if b.planted == 0 || rep.Verdict.Outcome != Broken || count(rep.Verdict) == 0 || len(rep.Verdict.Examples) == 0 {
					t.Errorf("planted: %d: %+v", b.planted, rep.Verdict)
				}
			})
		})
	}
}

// A stall is felt by all that were due in it, not only by the one call that
// stood still: the publisher is not let off for having waited.
func TestNoCoordinatedOmission(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newTextbook()
		b.slow = 200 * time.Millisecond
		c := short()
		c.Producers, c.Groups, c.Batch = 1, 0, 1000
		rep := run1(t, c, b)
		// 200 of 300 messages came due in the stall, evenly: half of them waited for
		// 100 ms and more.
		if rep.Publish.Messages != 300 || rep.Publish.Calls > 290 || rep.Publish.Latency.P50 < 30 || rep.Publish.Latency.Max < 190 {
			t.Errorf("%+v", rep.Publish)
		}
		if rep.Verdict.Outcome != NotJudged {
			t.Errorf("%+v", rep.Verdict)
		}
	})
}

// What was due and could not be sent counts with its wait.
func TestUnsentCounts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newTextbook()
		b.slow = 1500 * time.Millisecond
		c := short()
		c.Producers, c.Groups, c.Batch = 1, 0, 1
		rep := run1(t, c, b)
		if rep.Publish.Unsent == 0 || rep.Publish.Messages+rep.Publish.Unsent != 300 || rep.Publish.Latency.Count != 300 || rep.Publish.Latency.P50 < 1000 {
			t.Errorf("%+v", rep.Publish)
		}
	})
}

func TestAsFastAsPossible(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := short()
		c.Rate, c.Warmup, c.Duration = 0, 20*time.Millisecond, 50*time.Millisecond
		b := newTextbook()
		b.pace = 2 * time.Millisecond
		rep := run1(t, c, b)
		if rep.Verdict.Outcome != Kept || rep.Publish.Messages == 0 || rep.Publish.Messages != rep.Publish.Calls*10 {
			t.Errorf("%+v", rep)
		}
	})
}

// A topic that was there is used from its end and left alone.
func TestSharedTopic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newTextbook()
		b.existing = true
		b.log = []Message{{Key: "key-1", Body: []byte("somebody else's")}}
		b.plant = "foreign"
		c := short()
		c.Topic = "orders"
		c.Tick, c.Tell = 10*time.Millisecond, func(Progress) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.once("foreign") {
				b.log = append(b.log, Message{Key: "key-1", Body: []byte("somebody else's, later")})
			}
		}
		rep := run1(t, c, b)
		if rep.Verdict.Outcome != Kept || rep.Load.Partitions != 1 || rep.Groups[0].Foreign != 1 || rep.Publish.Messages != 300 {
			t.Errorf("%+v", rep)
		}
		if diff := cmp.Diff([]string{"loadtest-test-g1"}, b.deleted); diff != "" {
			t.Error(diff)
		}
	})
}

// A run that is interrupted waits for its groups, judges and cleans up.
func TestInterrupted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newTextbook()
		c := short()
		c.Duration = time.Minute
		ctx, cancel := context.WithCancel(t.Context())
		c.Tick, c.Tell = 50*time.Millisecond, func(Progress) { cancel() }
		rep, err := Run(ctx, c, b)
		if err != nil {
			t.Fatal(err)
		}
		if !rep.Interrupted || rep.Verdict.Outcome != Kept || len(b.deleted) != 1 || rep.Publish.Rate < 500 || rep.Measured > 30_000 {
			t.Errorf("%+v", rep)
		}
	})
}

// A refusal that does not pass ends the run and says so; it still cleans up.
func TestRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newTextbook()
		b.stop = 20
		c := short()
		c.Duration = time.Minute
		rep, err := Run(t.Context(), c, b)
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Reason != "STORE_FAILED" {
			t.Fatalf("%v", err)
		}
		if rep == nil || !rep.Interrupted || rep.Publish.Unknown == 0 || rep.Verdict.Outcome != Incomplete || len(b.deleted) != 1 {
			t.Errorf("%v %+v", b.deleted, rep)
		}
	})
}

func TestKeep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newTextbook()
		c := short()
		c.Keep = true
		if rep := run1(t, c, b); rep.Topic != "loadtest-test" || len(b.deleted) != 0 {
			t.Errorf("%s, deleted: %v", rep.Topic, b.deleted)
		}
	})
}

// The report's JSON is for programs: names stay.
func TestReportJSON(t *testing.T) {
	rep := Report{
		Broker: "1", Topic: "t", Began: time.Unix(0, 0).UTC(), Drained: true,
		Publish: Published{Messages: 2}, Groups: []Group{{Name: "g"}},
	}
	rep.Groups[0].judged(check.Verdict{Lost: 1, Examples: []check.Violation{{Promise: "P1", Text: "gone"}}})
	rep.conclude()
	raw, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	const latency = `"latency":{"count":0,"min_ms":0,"mean_ms":0,"p50_ms":0,"p90_ms":0,"p99_ms":0,"p999_ms":0,"p9999_ms":0,"max_ms":0}`
	const verdict = `"verdict":{"outcome":"broken","lost":1,"duplicated":0,"out_of_order":0,"overlapping":0,"altered":0,"other":0,"left":0,"unjudged":0,"examples":["P1: gone"]}`
	want := `{"broker_version":"1","topic":"t","began":"1970-01-01T00:00:00Z","load":{"partitions":0,"producers":0,"groups":0,"members":0,"keys":0,` +
		`"zipf":0,"size_bytes":0,"rate":0,"batch":0,"take":0,"ahead":0,"work_ms":0,"workers":0,"warmup_ms":0,"duration_ms":0,"nack_percent":0,"lapse_percent":0,"crash_ms":0,"leave_ms":0,` +
		`"ack_deadline_ms":0,"backoff_ms":0,"max_attempts":0,"ids":false,"seed":0},"interrupted":false,"measured_ms":0,"drained":true,"drain_ms":0,` +
		`"publish":{"messages":2,"rate":0,"bytes_rate":0,"calls":0,"duplicates":0,"unknown":0,"unsent":0,` + latency + `},` +
		`"groups":[{"name":"g","messages":0,"acked":0,"rate":0,"redelivered":0,"nacked":0,"lapsed":0,"stale":0,"crashes":0,"leaves":0,"longest_gap_ms":0,"dead":0,"foreign":0,` + latency + `,` + verdict + `}],` + verdict + `}`
	if diff := cmp.Diff(want, string(raw)); diff != "" {
		t.Error(diff)
	}
}

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		v       check.Verdict
		groups  int
		drained bool
		want    string
	}{
		{check.Verdict{}, 1, true, Kept},
		{check.Verdict{}, 0, true, NotJudged},
		{check.Verdict{}, 1, false, Incomplete},
		{check.Verdict{Left: 1}, 2, true, Incomplete},
		{check.Verdict{Unjudged: 1}, 2, true, Incomplete},
		{check.Verdict{Overlapping: 1, Left: 1}, 2, false, Broken},
		{check.Verdict{Other: 1}, 1, true, Broken},
	} {
		rep := Report{Drained: c.drained, Groups: make([]Group, c.groups)}
		for i := range rep.Groups {
			rep.Groups[i].judged(c.v)
		}
		rep.conclude()
		if rep.Verdict.Outcome != c.want {
			t.Errorf("%+v: %s, want %s", c.v, rep.Verdict.Outcome, c.want)
		}
	}
}
