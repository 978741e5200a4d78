package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// withGroup is a coordinator with topic t of n partitions and group g, in use.
func withGroup(t testing.TB, n int) (*memHost, *Coordinator, *Group) {
	t.Helper()
	h, c := newMemHost(t, 10_000)
	ctx := context.Background()
	if _, err := c.Bootstrap(ctx, "c1"); err != nil {
		t.Fatal(err)
	}
	topic, _, err := c.CreateTopic(ctx, TopicSpec{Name: "t", Partitions: n})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.FinishTopic(ctx, topic.ID); err != nil {
		t.Fatal(err)
	}
	g, _, err := c.CreateGroup(ctx, GroupSpec{Topic: "t", Name: "g"})
	if err != nil {
		t.Fatal(err)
	}
	if g, err = c.FinishGroup(ctx, g.ID, g.Revision); err != nil {
		t.Fatal(err)
	}
	return h, c, g
}

// Who was answered sees it in the next map, and who waits is woken.
func TestWatch(t *testing.T) {
	_, c, _ := withGroup(t, 2)
	m, changed := c.Watch()
	select {
	case <-changed:
		t.Fatal("changed before anything happened")
	default:
	}
	j, err := c.Join(context.Background(), "t", "g", "a")
	if err != nil {
		t.Fatal(err)
	}
	<-changed
	if _, g, err := c.View().Group("t", "g"); err != nil || g.Members[0].Session != j.Member.Session {
		t.Errorf("the map after the answer: %v, %v", g, err)
	}
	if _, g, _ := m.Group("t", "g"); len(g.Members) != 0 {
		t.Error("the earlier map changed")
	}
	// A refusal wakes nobody.
	_, changed = c.Watch()
	if err := c.Leave(context.Background(), j.Group.ID, "a", 99); err == nil {
		t.Error("a foreign session left")
	}
	select {
	case <-changed:
		t.Error("a refusal changed the map")
	default:
	}
}

// A lost answer is the host's error, and asking again finds what was done.
func TestLostAnswers(t *testing.T) {
	h, c, _ := withGroup(t, 2)
	ctx := context.Background()
	lost := &partition.ErrOutcomeUnknown{Why: "test"}
	h.fail = lost
	if _, _, err := c.CreateTopic(ctx, TopicSpec{Name: "x"}); !errors.Is(err, error(lost)) {
		t.Fatalf("got %v", err)
	}
	x, existed, err := c.CreateTopic(ctx, TopicSpec{Name: "x"})
	if err != nil || !existed || len(x.Partitions) != DefaultPartitions {
		t.Fatalf("%+v, %v, %v", x, existed, err)
	}
	h.fail = lost
	if _, err := c.Join(ctx, "t", "g", "a"); !errors.Is(err, error(lost)) {
		t.Fatalf("got %v", err)
	}
	j, err := c.Join(ctx, "t", "g", "a")
	if err != nil || j.Replaced != 1 || j.Member.Session != 2 {
		t.Fatalf("%+v, %v", j, err)
	}
	h.fail = lost
	if err := c.Leave(ctx, j.Group.ID, "a", 2); !errors.Is(err, error(lost)) {
		t.Fatalf("got %v", err)
	}
	var ended *ErrSessionEnded
	if err := c.Leave(ctx, j.Group.ID, "a", 2); !errors.As(err, &ended) {
		t.Fatalf("leaving twice: %v", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.Join(gone, "t", "g", "a"); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

// A change is made from the policy as it is when the change is applied: one
// that is overtaken starts over, and gives up at last.
func TestAlterOvertaken(t *testing.T) {
	_, c, _ := withGroup(t, 1)
	ctx := context.Background()
	tries := 0
	overtake := func(times int) func(*strandmqv1.GroupPolicy) error {
		return func(p *strandmqv1.GroupPolicy) error {
			if tries++; tries <= times {
				_, err := c.AlterGroup(ctx, "t", "g", func(p *strandmqv1.GroupPolicy) error {
					p.BackoffMs = proto.Int64(int64(tries))
					return nil
				})
				if err != nil {
					return err
				}
			}
			p.MaxAttempts = proto.Uint32(9)
			return nil
		}
	}
	g, err := c.AlterGroup(ctx, "t", "g", overtake(3))
	if err != nil || tries != 4 || g.Policy.GetBackoffMs() != 3 || g.Policy.GetMaxAttempts() != 9 || g.Revision != 5 {
		t.Errorf("after %d tries: %v, %v", tries, g, err)
	}
	tries = 0
	var conflict *ErrConflict
	if _, err := c.AlterGroup(ctx, "t", "g", overtake(100)); !errors.As(err, &conflict) || tries != alterTries {
		t.Errorf("after %d tries: %v", tries, err)
	}
	mine := errors.New("mine")
	if _, err := c.AlterGroup(ctx, "t", "g", func(*strandmqv1.GroupPolicy) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("got %v", err)
	}
	if edited, _ := c.View().GroupByID(g.ID); edited.Policy.GetMaxAttempts() != 9 {
		t.Error("an edit that failed left a trace")
	}
}

// Of many signs of life a few reach the log's owner; none is needed in vain.
func TestHeartbeatsAreThinned(t *testing.T) {
	h, c, g := withGroup(t, 1)
	j, err := c.Join(context.Background(), "t", "g", "a")
	if err != nil {
		t.Fatal(err)
	}
	before := h.posts
	for range 100_000 / 10 {
		h.pass(10)
		if _, err := c.Heartbeat(context.Background(), g.ID, "a", j.Member.Session); err != nil {
			t.Fatalf("after %d posts: %v", h.posts-before, err)
		}
	}
	// Ten timeouts, ten signs in each.
	if n := h.posts - before; n < 90 || n > 110 {
		t.Errorf("%d signs of life in 10 timeouts", n)
	}
	if got := c.LastHeard(j.Member.Session); got != h.now {
		t.Errorf("last heard at %d, it is %d", got, h.now)
	}
	if c.LastHeard(99) != 0 {
		t.Error("a session that never was, was heard of")
	}
	// A last sign that was not passed on counts in full.
	last := h.now
	h.pass(c.app.cfg.SessionTimeout - 1)
	if _, err := c.Heartbeat(context.Background(), g.ID, "a", j.Member.Session); err != nil {
		t.Errorf("%d ms after the last sign: %v", h.now-last, err)
	}
	h.pass(2 * c.app.cfg.SessionTimeout)
	var ended *ErrSessionEnded
	if _, err := c.Heartbeat(context.Background(), g.ID, "a", j.Member.Session); !errors.As(err, &ended) {
		t.Errorf("after two timeouts of silence: %v", err)
	}
}

// A sign of life that comes while its member is on the way to be away is heard all the
// same: it comes behind that in the log, once, and also if that got lost.
func TestHeartbeatBesideExpire(t *testing.T) {
	for _, lost := range []bool{false, true} {
		h, c, g := withGroup(t, 1)
		j, err := c.Join(context.Background(), "t", "g", "a")
		if err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		for end := h.now + 2*c.app.cfg.SessionTimeout; len(h.onWay) == 0 && h.now < end; {
			h.now += 500
			h.onWay, _ = h.app.Drive(h.now, nil)
		}
		if len(h.onWay) != 1 {
			t.Fatalf("%d commands after two timeouts of silence", len(h.onWay))
		}
		if lost {
			h.onWay = nil
		}
		h.mu.Unlock()
		m, err := c.Heartbeat(context.Background(), g.ID, "a", j.Member.Session)
		if err != nil || m.Away || len(m.Shares) == 0 {
			t.Fatalf("lost %v: %+v, %v", lost, m, err)
		}
		if _, err := c.Join(context.Background(), "t", "g", "b"); err != nil { // all before it is applied
			t.Fatal(err)
		}
		entries := len(h.log)
		if _, err := c.Heartbeat(context.Background(), g.ID, "a", j.Member.Session); err != nil || len(h.log) != entries {
			t.Errorf("lost %v: %d entries for a member that is there, %v", lost, len(h.log)-entries, err)
		}
		if now, err := c.View().SessionOf(g.ID, "a", j.Member.Session); err != nil || now.Away {
			t.Errorf("lost %v: %+v, %v", lost, now, err)
		}
	}
}

// The table of signs of life follows the number of sessions, not of joins.
func TestEarIsBounded(t *testing.T) {
	_, c, _ := withGroup(t, 1)
	for range 2_000 {
		if _, err := c.Join(context.Background(), "t", "g", "a"); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(c.heartbeats.heard); n > 200 {
		t.Errorf("%d entries for one session", n)
	}
}

// A proposal to end a session that got lost is made again.
func TestExpiryAsksAgain(t *testing.T) {
	h, _, _ := withGroup(t, 1)
	must(t, h.app.mach, join(1, "a"))
	m := h.app.mach.m
	v := newExpiry(10_000)
	now := partition.Millis(5)
	count := 0
	for range 100 {
		silent, wake := v.turn(now, m)
		count += len(silent)
		if len(silent) > 0 && now < 10_005 {
			t.Fatalf("silent at %d", now)
		}
		if wake <= now {
			t.Fatalf("at %d it wants to wake at %d", now, wake)
		}
		now = min(wake, now+500)
		if now > 15_000 {
			break
		}
	}
	if count < 3 || count > 6 {
		t.Errorf("proposed %d times in 5 seconds", count)
	}
}

// A member that is away, which has its place until all it may hold has lapsed, does
// not keep one that comes later from being found silent.
func TestExpiryBesideAway(t *testing.T) {
	h, _, g := withGroup(t, 1)
	const timeout partition.Millis = 10_000
	must(t, h.app.mach, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_AlterGroup{AlterGroup: &storagev1.AlterGroup{
		GroupId: uint64(g.ID), Revision: g.Revision, Policy: &strandmqv1.GroupPolicy{MaxHoldMs: proto.Int64(600_000)},
	}}})
	must(t, h.app.mach, join(1, "a"))
	v := newExpiry(timeout)
	now := partition.Millis(5)
	until := func(end partition.Millis) (names []string) {
		for now < end && len(names) == 0 {
			silent, _ := v.turn(now, h.app.mach.m)
			for _, s := range silent {
				names = append(names, s.Member)
			}
			must(t, h.app.mach, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Expire{Expire: &storagev1.Expire{Sessions: silent}}})
			now += timeout / 4
		}
		return names
	}
	if names := until(2 * timeout); !slices.Equal(names, []string{"a"}) {
		t.Fatalf("silent: %v", names)
	}
	if now, _ := h.app.mach.m.GroupByID(g.ID); !now.Members[0].Away {
		t.Fatalf("%+v is not away", now.Members[0])
	}
	until(now + timeout/2)
	must(t, h.app.mach, join(1, "b"))
	b, _ := h.app.mach.m.GroupByID(g.ID)
	m, _ := b.Member("b")
	v.hear(m.Session)
	if names := until(now + 2*timeout); !slices.Equal(names, []string{"b"}) {
		t.Fatalf("silent: %v", names)
	}
}

func TestConfig(t *testing.T) {
	var bad *ErrInvalid
	if _, err := NewApp(memRows{}, Config{SessionTimeout: -1}); !errors.As(err, &bad) {
		t.Errorf("got %v", err)
	}
	a, err := NewApp(memRows{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := New(nil, a)
	if c.app.cfg.SessionTimeout != 30_000 || a.cfg.Now() <= 0 {
		t.Errorf("defaults: %d, %d", c.app.cfg.SessionTimeout, a.cfg.Now())
	}
}

func TestBadMember(t *testing.T) {
	_, c, _ := withGroup(t, 1)
	var bad *names.Error
	for _, name := range []string{"", "a b", "\xff", ".x"} {
		if _, err := c.Join(context.Background(), "t", "g", name); !errors.As(err, &bad) || bad.Kind != names.KindMember {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Readers take maps while members come and go.
func TestConcurrentReaders(t *testing.T) {
	_, c, g := withGroup(t, 8)
	ctx := context.Background()
	stop := make(chan struct{})
	var readers, members sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				m, changed := c.Watch()
				for _, e := range EndedSessions(m, c.View()) {
					_ = e
				}
				now, _ := m.GroupByID(g.ID)
				held := crew{}
				for _, mb := range now.Members {
					held[mb.Name] = mb.Shares
				}
				if err := covers(8, held); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-changed:
				case <-stop:
					return
				}
			}
		})
	}
	for i := range 8 {
		members.Go(func() {
			name := fmt.Sprint("m", i)
			for range 50 {
				j, err := c.Join(ctx, "t", "g", name)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := c.Heartbeat(context.Background(), g.ID, name, j.Member.Session); err != nil {
					t.Error(err)
				}
				if err := c.Leave(ctx, g.ID, name, j.Member.Session); err != nil {
					t.Error(err)
				}
			}
		})
	}
	members.Wait()
	close(stop)
	readers.Wait()
}

func TestPartitionPlaces(t *testing.T) {
	_, c, _ := withGroup(t, 3)
	between, _, err := c.CreateTopic(t.Context(), TopicSpec{Name: "between", Partitions: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.CreateTopic(t.Context(), TopicSpec{Name: "w", Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteTopic(t.Context(), "between", "between"); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveTopic(t.Context(), between.ID); err != nil {
		t.Fatal(err)
	}
	m := c.View()
	for topic := range m.Topics() {
		for i, p := range topic.Partitions {
			if got, ok := m.Place(p.ID); !ok || got.Topic != topic || got.Number != i {
				t.Errorf("%v is at %+v, %v", p.ID, got, ok)
			}
		}
	}
	first, _ := m.FindTopic("t")
	last, _ := m.FindTopic("w")
	for _, id := range []partition.PartitionID{0, first.Partitions[0].ID - 1, first.Partitions[2].ID + 1, last.Partitions[1].ID + 1, math.MaxUint64} {
		if at, ok := m.Place(id); ok {
			t.Errorf("%v is at %+v and belongs to nobody", id, at)
		}
	}
}

// A join into a large group costs what changed, not what there is: the other
// members' rows stay as they are.
func TestCheckpointIsIncremental(t *testing.T) {
	h, c, _ := withGroup(t, 100)
	ctx := context.Background()
	for i := range 50 {
		if _, err := c.Join(ctx, "t", "g", fmt.Sprint("m", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.checkpoint(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Join(ctx, "t", "g", "m7"); err != nil {
		t.Fatal(err)
	}
	// Its own row, its group's and the cluster's.
	if n := len(h.app.mach.dirty); n != 3 {
		t.Errorf("%d rows: %v", n, h.app.mach.dirty)
	}
}

func BenchmarkJoin(b *testing.B) {
	for _, members := range []int{10, 1_000} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			mc := newMachine()
			must(b, mc, createTopic("a", 64))
			must(b, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishTopic{FinishTopic: &storagev1.FinishTopic{TopicId: 1}}})
			must(b, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_CreateGroup{CreateGroup: &storagev1.CreateGroup{TopicId: 1, Name: "g"}}})
			must(b, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishGroup{FinishGroup: &storagev1.FinishGroup{GroupId: 1, Revision: 1}}})
			for i := range members - 1 {
				must(b, mc, join(1, fmt.Sprint("m", i)))
			}
			for b.Loop() {
				r := must(b, mc, join(1, "x"))
				must(b, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Leave{Leave: &storagev1.Leave{GroupId: 1, Member: "x", Session: r.member.Session}}})
			}
		})
	}
}
