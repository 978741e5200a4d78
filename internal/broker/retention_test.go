package broker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func often(c *Config) { c.RetentionEvery = 5 * time.Millisecond }

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("it never came to this: %s", what)
		}
		time.Sleep(2 * time.Millisecond) // it is asked again and again, over the API
	}
}

func (a api) topicOf(t testing.TB, name string, c *strandmqv1.TopicConfig) {
	t.Helper()
	if _, err := a.topics.CreateTopic(ctx(t), &strandmqv1.CreateTopicRequest{Topic: name, Partitions: 1, Config: c}); err != nil {
		t.Fatal(err)
	}
}

func (a api) alter(t testing.TB, name string, c *strandmqv1.TopicConfig) {
	t.Helper()
	if _, err := a.topics.AlterTopic(ctx(t), &strandmqv1.AlterTopicRequest{Topic: name, Config: c}); err != nil {
		t.Fatal(err)
	}
}

// part is the only partition of a topic.
func (a api) part(t testing.TB, topic string) *strandmqv1.PartitionInfo {
	t.Helper()
	res, err := a.topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetPartitions()[0]
}

func (a api) publishMany(t testing.TB, topic string, n int) {
	t.Helper()
	ms := make([]*strandmqv1.Message, n)
	for i := range ms {
		ms[i] = msg(fmt.Sprint("k", i%7), strings.Repeat("x", 500))
		ms[i].Id = fmt.Sprint(topic, i)
	}
	for len(ms) > 0 { // each is a batch, for limits cut at batches
		a.store(t, topic, ms[0])
		ms = ms[1:]
	}
}

// A limit of bytes takes the oldest, and what a group had not settled of it is
// in its loss record; a dead letter among it lives on.
func TestRetentionBySize(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir, often)
	a := newAPI(t, b.URL())
	a.topicOf(t, "t", nil)
	a.group(t, "t", "g", nil)
	a.group(t, "t", "idle", nil)
	a.publishMany(t, "t", 60)
	ds := a.receive(t, "t", "g", "m", 3)
	if len(ds) != 3 {
		t.Fatalf("got %d", len(ds))
	}
	a.done(t, "t", "g", ds[0], ack, "")
	a.done(t, "t", "g", ds[1], reject, "never")
	whole := a.part(t, "t")
	if whole.GetStartOffset() != 0 || whole.GetOldest() == nil {
		t.Fatalf("without a limit: %v", whole)
	}
	most := int64(whole.GetBytes() / 2)
	a.alter(t, "t", &strandmqv1.TopicConfig{RetentionBytes: &most})
	until(t, "half of it is gone", func() bool { return a.part(t, "t").GetStartOffset() > 0 })
	p := a.part(t, "t")
	if p.GetStartOffset() > 30 || p.GetStartOffset() < 28 || p.GetBytes() < uint64(most) || p.GetEndOffset() != 60 || p.GetHeldBy() != "" {
		t.Fatalf("half of 60 is kept, and no less than the limit: %v", p)
	}
	if r := a.settle(t, "t", "g", ds[2].GetToken(), ack, ""); r.GetProblem().GetReason() != "STALE_DELIVERY" || !strings.Contains(r.GetProblem().GetMessage(), "expired") {
		t.Errorf("settling what is gone: %v", r)
	}
	if r := a.settle(t, "t", "g", ds[0].GetToken(), ack, ""); r.GetProblem() != nil {
		// The loss covers it, so the group cannot tell any more.
		if r.GetProblem().GetReason() != "STALE_DELIVERY" {
			t.Errorf("acking again: %v", r)
		}
	}
	for name, n := range map[string]uint64{"g": p.GetStartOffset() - 2, "idle": p.GetStartOffset()} {
		g := a.describe(t, "t", name)
		var lost uint64
		for _, l := range g.GetPartitions()[0].GetLosses() {
			if lost += l.GetCount(); l.GetCause() != "size" || l.GetLast() >= p.GetStartOffset() || l.GetFrom() == nil {
				t.Errorf("%s: %v", name, l)
			}
		}
		if lost != n || g.GetCounts().GetExpired() != n || g.GetCounts().GetSkipped() != n {
			t.Errorf("%s lost %d, and counts %v; want %d", name, lost, g.GetCounts(), n)
		}
	}
	if g := a.describe(t, "t", "g").GetPartitions()[0]; g.GetCopiedDead() != 1 || g.GetCopiedDeadBytes() < 500 {
		t.Errorf("copies: %v", g)
	}
	_, metrics := get(t, b.URL()+"/metrics")
	for _, want := range []string{
		fmt.Sprintf(`strandmq_group_expired_total{group="g",topic="t"} %d`, p.GetStartOffset()-2),
		`strandmq_group_dead_copies{group="g",topic="t"} 1`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s", want)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	// After a restart all of it is as it was, and the dead letter can be found,
	// read, replayed and delivered.
	b = start(t, dir, often)
	a = newAPI(t, b.URL())
	if again := a.part(t, "t"); again.GetStartOffset() != p.GetStartOffset() || again.GetBytes() != p.GetBytes() {
		t.Errorf("after a restart %v, before %v", again, p)
	}
	id := ds[1].GetMessage().GetId()
	byID := &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Id{Id: id}}
	d, err := a.dead.GetDeadLetter(ctx(t), &strandmqv1.GetDeadLetterRequest{Topic: "t", Group: "g", Which: byID})
	if err != nil || !proto.Equal(d.GetDeadLetter().GetMessage(), ds[1].GetMessage()) || d.GetDeadLetter().GetReason() != "never" {
		t.Fatalf("%v, %v\nwant %v", d, err, ds[1].GetMessage())
	}
	list, err := a.dead.ListDeadLetters(ctx(t), &strandmqv1.ListDeadLettersRequest{Topic: "t", Group: "g"})
	if err != nil || len(list.GetDeadLetters()) != 1 || !proto.Equal(list.GetDeadLetters()[0].GetMessage(), ds[1].GetMessage()) {
		t.Fatalf("%v, %v", list, err)
	}
	_, err = a.trace.Trace(ctx(t), &strandmqv1.TraceRequest{Topic: "t", Which: &strandmqv1.TraceRequest_Place{Place: &strandmqv1.MessagePlace{Offset: ds[1].GetOffset()}}})
	wantReason(t, err, "UNKNOWN_MESSAGE")
	if !strings.Contains(err.Error(), "retention") {
		t.Errorf("a trace of what is gone: %v", err)
	}
	if r, err := a.dead.ReplayDeadLetters(ctx(t), &strandmqv1.ReplayDeadLettersRequest{Topic: "t", Group: "g", Which: byID}); err != nil || r.GetReplayed() != 1 {
		t.Fatalf("%v, %v", r, err)
	}
	found := false
	for !found {
		for _, x := range a.receive(t, "t", "g", "m", 10) {
			if x.GetOffset() == ds[1].GetOffset() {
				found = true
				if !proto.Equal(x.GetMessage(), ds[1].GetMessage()) || !x.GetReplayed() {
					t.Errorf("replayed as %v", x)
				}
			} else if x.GetOffset() < p.GetStartOffset() {
				t.Errorf("offset %d is delivered", x.GetOffset())
			}
			a.done(t, "t", "g", x, ack, "")
		}
	}
	if g := a.describe(t, "t", "g").GetPartitions()[0]; g.GetCopiedDead() != 0 || g.GetCopiedDeadBytes() != 0 {
		t.Errorf("the copy of what was handled is there: %v", g)
	}
	// Its id is free, as that of anything that is gone.
	m := msg("k0", "other")
	m.Id = "t0"
	if r := a.store(t, "t", m)[0]; r.GetDuplicate() || r.GetOffset() != 60 {
		t.Errorf("the id of a message that is gone: %v", r)
	}
}

// A limit that is smaller than a batch keeps the batch, not nothing; one that a
// batch lies across keeps that, too.
func TestRetentionKeepsTheLimit(t *testing.T) {
	b := start(t, t.TempDir(), often)
	a := newAPI(t, b.URL())
	batchOf := func(n int) (ms []*strandmqv1.Message) {
		for range n {
			ms = append(ms, msg("k", strings.Repeat("x", 1000)))
		}
		return ms
	}
	a.topicOf(t, "t", &strandmqv1.TopicConfig{RetentionBytes: proto.Int64(100)})
	a.group(t, "t", "g", nil)
	a.store(t, "t", batchOf(300)...)
	a.store(t, "t", batchOf(200)...)
	until(t, "the first batch is gone", func() bool { return a.part(t, "t").GetStartOffset() > 0 })
	if p := a.part(t, "t"); p.GetStartOffset() != 300 || p.GetBytes() < 200_000 {
		t.Errorf("a limit of 100 bytes keeps %v", p)
	}
	if c := a.describe(t, "t", "g").GetCounts(); c.GetExpired() != 300 {
		t.Errorf("the group lost %v", c)
	}

	// A group that holds 10,000 bytes needs the batch that they are in.
	a.topicOf(t, "u", &strandmqv1.TopicConfig{RetentionBytes: proto.Int64(100)})
	a.group(t, "u", "g", &strandmqv1.GroupPolicy{Retention: strandmqv1.GroupRetention_GROUP_RETENTION_HOLD, HoldLimitBytes: proto.Uint64(10_000)})
	for _, n := range []int{30, 20, 10} {
		a.store(t, "u", batchOf(n)...)
	}
	until(t, "the first batch is gone", func() bool { return a.part(t, "u").GetStartOffset() > 0 })
	if p := a.part(t, "u"); p.GetStartOffset() != 30 {
		t.Errorf("a hold limit of 10,000 bytes keeps %v", p)
	}
}

// A limit of age takes what is older, and new groups begin at what is kept.
func TestRetentionByAge(t *testing.T) {
	b := start(t, t.TempDir(), often)
	a := newAPI(t, b.URL())
	a.topicOf(t, "t", &strandmqv1.TopicConfig{RetentionMs: proto.Int64(200)})
	a.group(t, "t", "g", nil)
	a.publishMany(t, "t", 5)
	until(t, "all of it is old", func() bool { return a.part(t, "t").GetStartOffset() == 5 })
	p := a.part(t, "t")
	if p.GetBytes() != 0 || p.GetOldest() != nil {
		t.Errorf("an empty partition: %v", p)
	}
	if l := a.describe(t, "t", "g").GetPartitions()[0].GetLosses(); len(l) == 0 || l[0].GetCause() != "age" || l[0].GetFirst() != 0 {
		t.Errorf("losses: %v", l)
	}
	if _, err := a.groups.ResetGroup(ctx(t), &strandmqv1.ResetGroupRequest{Topic: "t", Group: "g", To: &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Offset{Offset: 1}}}); err != nil {
		t.Fatal(err)
	}
	a.alter(t, "t", &strandmqv1.TopicConfig{RetentionMs: proto.Int64(0)})
	a.store(t, "t", msg("k", "kept"))
	a.group(t, "t", "late", nil)
	for _, g := range []string{"g", "late"} {
		if d := a.one(t, "t", g, "m"); d.GetOffset() != 5 {
			t.Errorf("%s begins at %d", g, d.GetOffset())
		}
	}
}

// A group that holds keeps what it needs. At its limit it loses the oldest, or
// the topic refuses publishes, whichever was asked for.
func TestRetentionHold(t *testing.T) {
	b := start(t, t.TempDir(), often)
	a := newAPI(t, b.URL())
	one := proto.Int64(600) // about a message
	hold := &strandmqv1.GroupPolicy{Retention: strandmqv1.GroupRetention_GROUP_RETENTION_HOLD, HoldLimitBytes: proto.Uint64(20_000)}
	a.topicOf(t, "t", &strandmqv1.TopicConfig{RetentionBytes: one, RefusePublishesAtHoldLimit: proto.Bool(true)})
	a.group(t, "t", "slow", hold)
	a.group(t, "t", "other", nil)
	a.publishMany(t, "t", 10)
	until(t, "the group holds them", func() bool { p := a.part(t, "t"); return p.GetHeldBy() == "slow" && p.GetHeldBytes() > 4000 })
	if p := a.part(t, "t"); p.GetStartOffset() != 0 {
		t.Fatalf("held: %v", p)
	}
	// To its limit, and a batch further.
	var err error
	stored := 10
	for err == nil && stored < 2000 {
		_, err = a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("k", strings.Repeat("x", 500))}})
		if err == nil {
			stored++
		}
	}
	wantReason(t, err, "HOLD_LIMIT")
	if !strings.Contains(err.Error(), "slow") || !strings.Contains(err.Error(), "partition 0 of topic t") {
		t.Errorf("the refusal names nobody: %v", err)
	}
	until(t, "the stall says so", func() bool {
		g := a.describe(t, "t", "slow").GetPartitions()[0]
		return len(g.GetStalls()) > 0 && g.GetStalls()[0].GetReason() == "HOLD_LIMIT" && g.GetHeldBytes() >= 20_000
	})
	if e := a.awaitEvent(t, coordinator.HoldLimit, anyEvent); e.GetTopic() != "t" || e.GetGroup() != "slow" || e.Partition == nil || e.GetNode() != 0 ||
		!strings.Contains(e.GetText(), "hold_limit_bytes of") || e.GetAdvice() != "strandmq group describe t slow" {
		t.Errorf("%v", e)
	}
	until(t, "a metric tells of the limit", func() bool { // what was counted for it may be a moment old
		_, metrics := get(t, b.URL()+"/metrics")
		return strings.Contains(metrics, `strandmq_group_hold_limit_ratio{group="slow",topic="t"} 1`)
	})
	// It catches up, and publishing goes on by itself; nothing was lost.
	for n := 0; n < stored; {
		for _, d := range a.receive(t, "t", "slow", "m", 100) {
			a.done(t, "t", "slow", d, ack, "")
			n++
		}
	}
	until(t, "publishes go on", func() bool {
		_, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "x")}})
		return err == nil
	})
	if c := a.describe(t, "t", "slow").GetCounts(); c.GetExpired() != 0 || c.GetAcked() != uint64(stored) {
		t.Errorf("slow: %v of %d", c, stored)
	}
	if c := a.describe(t, "t", "other").GetCounts(); c.GetExpired() == 0 {
		t.Errorf("the group that expires lost nothing: %v", c)
	}

	// Without the topic's word, the group loses what is beyond its limit.
	a.topicOf(t, "u", &strandmqv1.TopicConfig{RetentionBytes: one})
	hold.HoldLimitBytes = proto.Uint64(5000)
	a.group(t, "u", "slow", hold)
	a.publishMany(t, "u", 30)
	until(t, "what is beyond 5,000 bytes and two messages is gone", func() bool { return a.part(t, "u").GetBytes() < 5000+3*600 })
	p := a.part(t, "u")
	if p.GetBytes() < 5000+600 {
		t.Errorf("more than the limits ask for is gone: %v", p)
	}
	part := a.describe(t, "u", "slow").GetPartitions()[0]
	if l := part.GetLosses(); len(l) != 1 || l[0].GetCause() != "hold-limit" || l[0].GetFirst() != 0 || l[0].GetLast() != p.GetStartOffset()-1 || l[0].GetCount() != p.GetStartOffset() {
		t.Errorf("losses %v of %v", l, p)
	}
	if s := part.GetStalls(); len(s) == 0 || s[0].GetReason() != "HOLD_ALARM" && s[0].GetReason() != "HOLD_LIMIT" {
		t.Errorf("no alarm: %v", s)
	}
	a.awaitEvent(t, coordinator.HoldLimit, func(e *strandmqv1.ClusterEvent) bool { return e.GetTopic() == "u" && e.GetGroup() == "slow" })
}

// What all groups of a work queue settled goes, and nothing else.
func TestRetentionWorkQueue(t *testing.T) {
	b := start(t, t.TempDir(), often)
	a := newAPI(t, b.URL())
	a.topicOf(t, "t", &strandmqv1.TopicConfig{Kind: strandmqv1.TopicKind_TOPIC_KIND_WORK_QUEUE, RetentionMs: proto.Int64(0)})
	a.publishMany(t, "t", 5)
	a.group(t, "t", "g", nil)
	a.group(t, "t", "h", nil)
	take := func(group string, n int) {
		for n > 0 {
			for _, d := range a.receive(t, "t", group, "m", uint32(n)) {
				a.done(t, "t", group, d, ack, "")
				n--
			}
		}
	}
	take("g", 5)
	take("h", 3)
	until(t, "what both settled is gone", func() bool { return a.part(t, "t").GetStartOffset() >= 3 })
	if p := a.part(t, "t"); p.GetStartOffset() != 3 {
		t.Fatalf("h has 2 to go: %v", p)
	}
	take("h", 2)
	until(t, "all of it is gone", func() bool { return a.part(t, "t").GetStartOffset() == 5 })
	for _, g := range []string{"g", "h"} {
		if c := a.describe(t, "t", g).GetCounts(); c.GetExpired() != 0 || c.GetAcked() != 5 {
			t.Errorf("%s: %v", g, c)
		}
	}
}

// Settings that cannot be meant are refused.
func TestRetentionSettings(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	for name, c := range map[string]*strandmqv1.TopicConfig{
		"a negative age":   {RetentionMs: proto.Int64(-1)},
		"a thousand years": {RetentionMs: proto.Int64(1000 * 365 * 24 * 60 * 60 * 1000)},
		"negative bytes":   {RetentionBytes: proto.Int64(-1)},
		"absurd bytes":     {RetentionBytes: proto.Int64(1 << 60)},
		"an unknown kind":  {Kind: 9},
	} {
		_, err := a.topics.AlterTopic(ctx(t), &strandmqv1.AlterTopicRequest{Topic: "t", Config: c})
		if p := problemOf(err); p.GetReason() != "BAD_POLICY" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, p := range map[string]*strandmqv1.GroupPolicy{
		"an unknown retention": {Retention: 9},
		"absurd bytes":         {HoldLimitBytes: proto.Uint64(1 << 60)},
		"a negative age":       {HoldLimitMs: proto.Int64(-1)},
		"an absurd age":        {HoldLimitMs: proto.Int64(1 << 60)},
	} {
		_, err := a.groups.CreateGroup(ctx(t), &strandmqv1.CreateGroupRequest{Topic: "t", Group: "g", Policy: p})
		if x := problemOf(err); x.GetReason() != "BAD_POLICY" {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A work queue with a group that holds, and limits of one, are as good as any.
	a.alter(t, "t", &strandmqv1.TopicConfig{Kind: strandmqv1.TopicKind_TOPIC_KIND_WORK_QUEUE, RetentionMs: proto.Int64(1), RetentionBytes: proto.Int64(1)})
	a.group(t, "t", "g", &strandmqv1.GroupPolicy{Retention: strandmqv1.GroupRetention_GROUP_RETENTION_HOLD, HoldLimitBytes: proto.Uint64(0), HoldLimitMs: proto.Int64(1)})
	if c := a.describe(t, "t", "g").GetGroup().GetPolicy(); c.GetRetention() != strandmqv1.GroupRetention_GROUP_RETENTION_HOLD || c.GetHoldLimitMs() != 1 || c.HoldLimitBytes == nil {
		t.Errorf("policy %v", c)
	}
}

// A wall clock that leaps forward makes nothing old at once; one that goes back
// is followed.
func TestSteadyClock(t *testing.T) {
	var c steadyClock
	at := time.Now() // with a monotonic reading, which is what counts
	begin := c.read(at)
	pass := func(d time.Duration) {
		at = at.Add(d)
		c.read(at)
	}
	pass(time.Second)
	if c.at != begin+1000 {
		t.Fatalf("a second later it is %d later", c.at-begin)
	}
	// As if the wall clock stood an hour ahead: it is followed by an eighth more
	// than the time that passes.
	c.at -= 60 * 60 * 1000
	was := c.at
	pass(8 * time.Second)
	if c.at != was+9000 {
		t.Fatalf("in eight seconds it moved by %d ms", c.at-was)
	}
	// And as if it went back.
	c.at += 2 * 60 * 60 * 1000
	if pass(time.Second); c.at != partition.Millis(at.UnixMilli()) {
		t.Fatalf("it is %d, the wall clock %d", c.at, at.UnixMilli())
	}
}

// A dead letter that rotted keeps retention from its partition, and nothing else:
// publishing and consuming go on, before and after a restart, its group is told
// which one it is, and with its discard retention goes on.
func TestRetentionOverDamagedDeadLetter(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir, func(c *Config) { c.RetentionEvery = time.Hour })
	a := newAPI(t, b.URL())
	a.topicOf(t, "t", &strandmqv1.TopicConfig{Kind: strandmqv1.TopicKind_TOPIC_KIND_WORK_QUEUE})
	for _, g := range []string{"g", "other"} {
		a.group(t, "t", g, nil)
	}
	a.store(t, "t", msg("k", strings.Repeat("0123456789", 50_000)))
	a.store(t, "t", msg("k", "after")) // a log's last entry is read at the start
	a.done(t, "t", "g", a.receive(t, "t", "g", "m", 1)[0], reject, "never")
	a.done(t, "t", "g", a.receive(t, "t", "g", "m", 1)[0], ack, "")
	for range 2 {
		a.done(t, "t", "other", a.receive(t, "t", "other", "m", 1)[0], ack, "")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	rot(t, dir)
	for i := range 2 {
		b = start(t, dir, often)
		a = newAPI(t, b.URL())
		var stalls []*strandmqv1.Stall
		until(t, "the group is told", func() bool {
			stalls = a.describe(t, "t", "g").GetPartitions()[0].GetStalls()
			return len(stalls) > 0
		})
		if s := stalls[0]; s.GetReason() != "DEAD_DAMAGED" || s.GetOffset() != 0 || !strings.Contains(s.GetText(), "discard it") {
			t.Fatalf("stalls %v", stalls)
		}
		if s := a.describe(t, "t", "other").GetPartitions()[0].GetStalls(); len(s) != 0 {
			t.Fatalf("the other group has stalls: %v", s)
		}
		a.store(t, "t", msg("k", "on"))
		for _, g := range []string{"g", "other"} {
			if ds := a.receive(t, "t", g, "m", 1); len(ds) != 1 || ds[0].GetOffset() != uint64(2+i) {
				t.Fatalf("%s got %v", g, ds)
			} else {
				a.done(t, "t", g, ds[0], ack, "")
			}
		}
		if i == 0 {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if p := a.part(t, "t"); p.GetStartOffset() != 0 {
		t.Fatalf("the damaged dead letter was removed: %v", p)
	}
	if _, err := a.dead.DiscardDeadLetters(ctx(t), &strandmqv1.DiscardDeadLettersRequest{Topic: "t", Group: "g", Confirm: "g", Which: &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_All{All: true}}}); err != nil {
		t.Fatal(err)
	}
	until(t, "the rest is removed", func() bool {
		return a.part(t, "t").GetStartOffset() == 4 && len(a.describe(t, "t", "g").GetPartitions()[0].GetStalls()) == 0
	})
}

// On a work queue a message is removed when it is handled. Its producer may still
// not know that it was stored: the repeat gets the first receipt, and stores nothing.
func TestRepeatOfAHandledMessage(t *testing.T) {
	b := start(t, t.TempDir(), often)
	a := newAPI(t, b.URL())
	a.topicOf(t, "t", &strandmqv1.TopicConfig{Kind: strandmqv1.TopicKind_TOPIC_KIND_WORK_QUEUE})
	a.group(t, "t", "g", nil)
	send := func(first uint64, bodies ...string) []*strandmqv1.PublishResult {
		t.Helper()
		req := &strandmqv1.PublishRequest{Topic: "t", ProducerId: "p", FirstSequence: first}
		for _, body := range bodies {
			req.Messages = append(req.Messages, msg("k", body))
		}
		res, err := a.publish.Publish(ctx(t), req)
		if err != nil {
			t.Fatal(err)
		}
		return res.GetResults()
	}
	first := send(1, "1", "2", "3")
	for range first {
		a.done(t, "t", "g", a.receive(t, "t", "g", "m", 1)[0], ack, "")
	}
	until(t, "what was handled is removed", func() bool { return a.part(t, "t").GetStartOffset() == 3 })
	for i, r := range send(2, "2", "3", "4") {
		if i < 2 {
			if got, was := r.GetReceipt(), first[1+i].GetReceipt(); got.GetOffset() != was.GetOffset() || !got.GetDuplicate() {
				t.Errorf("repeat of sequence %d: %v, first %v", 2+i, r, was)
			}
			continue
		}
		if got := r.GetReceipt(); got.GetOffset() != 3 || got.GetDuplicate() {
			t.Errorf("the next one: %v", r)
		}
	}
	if ds := a.receive(t, "t", "g", "m", 10); len(ds) != 1 || ds[0].GetOffset() != 3 {
		t.Errorf("delivered after the repeat: %v", ds)
	}
}
