package broker

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A strand is what a group has seen of one key: the checker of order and of one
// at a time.
type strands struct {
	mu   sync.Mutex
	next map[string]int // key → number of the next message that was not acked
	held map[string]string
	bad  []string
}

func (s *strands) take(key string, i int, who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if holder, ok := s.held[key]; ok {
		s.bad = append(s.bad, fmt.Sprintf("%s got %s/%d while %s holds the key", who, key, i, holder))
	}
	s.held[key] = who
	if i != s.next[key] {
		s.bad = append(s.bad, fmt.Sprintf("%s got %s/%d, and %d is next", who, key, i, s.next[key]))
	}
}

// give ends a hold, before the settlement is sent: from then on the key may be
// elsewhere.
func (s *strands) give(key string, acked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, key)
	if acked {
		s.next[key]++
	}
}

func (s *strands) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.next {
		n += i
	}
	return n
}

// Members of two groups come and go while messages are published; some attempts
// fail. Every message is acked once, every key in order and one at a time.
func TestMembersComeAndGo(t *testing.T) {
	const keys, per, groups = 40, 25, 2
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 4)
	for g := range groups {
		a.group(t, "t", fmt.Sprint("g", g), &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(1), MaxAttempts: proto.Uint32(0)})
	}
	c, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	var wg sync.WaitGroup
	seen := make([]*strands, groups)
	for g := range groups {
		seen[g] = &strands{next: map[string]int{}, held: map[string]string{}}
		for m := range 6 {
			wg.Go(func() { work(c, t, a, fmt.Sprint("g", g), fmt.Sprintf("m%d", m), int64(m), seen[g], keys*per) })
		}
	}
	for i := range per {
		var ms []*strandmqv1.Message
		for k := range keys {
			ms = append(ms, msg(fmt.Sprintf("key-%d", k), fmt.Sprint(i)))
		}
		a.store(t, "t", ms...)
	}
	wg.Wait()
	for g, s := range seen {
		for i, bad := range s.bad {
			if i == 10 {
				break
			}
			t.Errorf("group %d: %s", g, bad)
		}
		if n := s.total(); n != keys*per {
			t.Errorf("group %d: %d of %d acked: %v", g, n, keys*per, a.describe(t, "t", fmt.Sprint("g", g)))
			continue
		}
		counts := a.describe(t, "t", fmt.Sprint("g", g)).GetCounts()
		if counts.GetAcked() != keys*per || counts.GetLag() != 0 {
			t.Errorf("group %d ends with %v", g, counts)
		}
	}
}

// work is one member: it handles what it gets until all is acked, and leaves
// now and then to come back as a new session.
func work(ctx context.Context, t *testing.T, a api, group, member string, seed int64, s *strands, until int) {
	rnd := rand.New(rand.NewSource(seed))
	session := ""
	for round := 0; s.total() < until; round++ {
		res, err := a.consume.Receive(ctx, &strandmqv1.ReceiveRequest{Topic: "t", Group: group, Member: member, Session: session, MaxMessages: 8, WaitMs: 200, RequestId: fmt.Sprintf("%s-%d", member, round)})
		if err != nil {
			t.Errorf("%s of %s: %v", member, group, err)
			return
		}
		session = res.GetSession()
		var settle []*strandmqv1.Settlement
		for _, d := range res.GetDeliveries() {
			var i int
			key := d.GetMessage().GetKey()
			_, _ = fmt.Sscan(d.GetMessage().GetText(), &i)
			s.take(key, i, group+"/"+member)
			out := &strandmqv1.Settlement{Token: d.GetToken(), Action: ack}
			switch rnd.Intn(10) {
			case 0:
				out.Action = nack
			case 1:
				out.Action = release
			}
			s.give(key, out.Action == ack)
			settle = append(settle, out)
		}
		if len(settle) > 0 {
			done, err := a.consume.Settle(ctx, &strandmqv1.SettleRequest{Topic: "t", Group: group, Member: member, Session: session, Settlements: settle})
			if err != nil {
				t.Errorf("%s of %s settles: %v", member, group, err)
				return
			}
			for i, r := range done.GetResults() {
				if r.GetProblem() != nil {
					t.Errorf("%s of %s: %v of %v", member, group, r.GetProblem(), settle[i])
				}
			}
		}
		if rnd.Intn(15) == 0 {
			if _, err := a.consume.Leave(ctx, &strandmqv1.LeaveRequest{Topic: "t", Group: group, Member: member, Session: session}); err != nil {
				t.Errorf("%s of %s leaves: %v", member, group, err)
				return
			}
			session = ""
		}
	}
}

// Deleting a group or a topic with members at work is nothing to warn of: what
// they hold goes with it.
func TestDeletingWithOpenSessions(t *testing.T) {
	t.Parallel() // it waits for clocks
	log := &lockedBuffer{}
	b := start(t, t.TempDir(), func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	a := newAPI(t, b.URL())
	for round := range 5 {
		for _, topic := range []string{"t", "u"} {
			a.topic(t, topic, 3)
			a.group(t, topic, "g", nil)
			for key := range 30 { // some for every partition
				a.store(t, topic, msg(fmt.Sprint(key), "x"))
			}
			if _, err := a.consume.Join(ctx(t), &strandmqv1.JoinRequest{Topic: topic, Group: "g", Member: "other"}); err != nil {
				t.Fatal(err)
			}
			a.receive(t, topic, "g", fmt.Sprintf("m%d", round), 1)
		}
		if _, err := a.groups.DeleteGroup(ctx(t), &strandmqv1.DeleteGroupRequest{Topic: "t", Group: "g", Confirm: "g"}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.topics.DeleteTopic(ctx(t), &strandmqv1.DeleteTopicRequest{Topic: "u", Confirm: "u"}); err != nil {
			t.Fatal(err)
		}
	}
	// The watcher of sessions has seen all of it when it sees what comes after.
	a.topic(t, "last", 1)
	a.group(t, "last", "g", nil)
	first, err := a.consume.Join(ctx(t), &strandmqv1.JoinRequest{Topic: "last", Group: "g", Member: "m"})
	if err != nil {
		t.Fatal(err)
	}
	a.store(t, "last", msg("k", "1"))
	if res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "last", Group: "g", Member: "m", Session: first.GetSession(), WaitMs: 40_000}); err != nil || len(res.GetDeliveries()) != 1 {
		t.Fatal(res, err)
	}
	if _, err := a.consume.Join(ctx(t), &strandmqv1.JoinRequest{Topic: "last", Group: "g", Member: "m"}); err != nil {
		t.Fatal(err)
	}
	a.one(t, "last", "g", "m")
	if said := log.String(); said != "" {
		t.Errorf("warned of:\n%s", said)
	}
}

// lockedBuffer takes a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
