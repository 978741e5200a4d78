//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/broker"
	"github.com/strandmq/strandmq/internal/doctor"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// patient is a broker on which a test plants what is wrong.
type patient struct {
	t     *testing.T
	url   string
	api   *clients
	topic string
}

// ward starts a broker whose members are there as long as the test is.
func ward(t *testing.T, dir string, change ...func(*broker.Config)) *broker.Broker {
	t.Helper()
	c := broker.Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler), Version: "test", SessionTimeout: time.Hour}
	for _, f := range change {
		f(&c)
	}
	b, err := broker.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// at gives a patient with a topic of one partition and a group g.
func at(t *testing.T, url, topic string, policy *strandmqv1.GroupPolicy, config ...*strandmqv1.TopicConfig) *patient {
	t.Helper()
	p := &patient{t: t, url: url, api: dial(url), topic: topic}
	req := &strandmqv1.CreateTopicRequest{Topic: topic, Partitions: 1}
	for _, c := range config {
		req.Config = c
	}
	granted(t, p.api.topics.CreateTopic, req)
	granted(t, p.api.groups.CreateGroup, &strandmqv1.CreateGroupRequest{Topic: topic, Group: "g", Policy: policy})
	return p
}

func granted[Req, Res any](t *testing.T, call func(context.Context, *Req) (*Res, error), req *Req) *Res {
	t.Helper()
	res, err := ask(t.Context(), call, req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// store publishes n messages of each key.
func (p *patient) store(n int, keys ...string) {
	p.t.Helper()
	req := &strandmqv1.PublishRequest{Topic: p.topic}
	for range n {
		for _, k := range keys {
			req.Messages = append(req.Messages, &strandmqv1.Message{KeyKind: &strandmqv1.Message_Key{Key: k}, Body: &strandmqv1.Message_Text{Text: "x"}})
		}
	}
	for _, r := range granted(p.t, p.api.publish.Publish, req).GetResults() {
		if r.GetProblem() != nil {
			p.t.Fatal(r.GetProblem())
		}
	}
}

// take receives so many messages as a member.
func (p *patient) take(member string, n int) []*strandmqv1.Delivery {
	p.t.Helper()
	var out []*strandmqv1.Delivery
	until(p.t, "the deliveries", func() bool {
		res := granted(p.t, p.api.consume.Receive, &strandmqv1.ReceiveRequest{Topic: p.topic, Group: "g", Member: member, MaxMessages: uint32(n), WaitMs: 100})
		out = res.GetDeliveries()
		return len(out) == n
	})
	return out
}

func (p *patient) join(member string) {
	p.t.Helper()
	granted(p.t, p.api.consume.Join, &strandmqv1.JoinRequest{Topic: p.topic, Group: "g", Member: member})
}

// settle does the same with all, whether or not it is taken.
func (p *patient) settle(action strandmqv1.SettleAction, delay int64, reason string, ds ...*strandmqv1.Delivery) {
	p.t.Helper()
	req := &strandmqv1.SettleRequest{Topic: p.topic, Group: "g"}
	for _, d := range ds {
		req.Settlements = append(req.Settlements, &strandmqv1.Settlement{Token: d.GetToken(), Action: action, DelayMs: delay, Reason: reason})
	}
	granted(p.t, p.api.consume.Settle, req)
}

func (p *patient) counts() *strandmqv1.GroupCounts {
	p.t.Helper()
	return granted(p.t, p.api.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: p.topic, Group: "g"}).GetCounts()
}

// examine runs strandmq doctor and gives its first line and its exit code. What a busy
// machine did not answer in time is asked for a few times more, where time is not what is
// tested.
func examine(t *testing.T, url string, args ...string) (first, whole string, code int) {
	t.Helper()
	for range 5 {
		var out, talk bytes.Buffer
		code = run(&app{in: strings.NewReader(""), out: &out, err: &talk}, append([]string{"doctor", "--server", url, "--watch", "100ms", "--timeout", "30s"}, args...))
		first, _, _ = strings.Cut(out.String(), "\n")
		if whole = out.String() + talk.String(); !strings.Contains(whole, lateAnswer) || slices.Contains(args, "--timeout") {
			break
		}
	}
	return first, whole, code
}

// lateAnswer is what is said of whoever did not answer in time.
const lateAnswer = "did not answer in time"

// diagnoses waits until the first line names a cause, which is a fault.
func diagnoses(t *testing.T, url string, cause doctor.Cause, args ...string) {
	t.Helper()
	names(t, url, cause, exitFailed, args...)
}

// names waits until the first line names a cause. Nothing is asserted about when: what a
// test planted stays, and a cluster takes its time to see it.
func names(t *testing.T, url string, cause doctor.Cause, want int, args ...string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		first, whole, code := examine(t, url, args...)
		if strings.Contains(first, string(cause)+": ") && code == want {
			t.Log(whole)
			if strings.Contains(whole, " at the earliest") {
				t.Error("it quotes a wait that was told when a message failed")
			}
			commands(t, whole)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the first line does not name %s (exit code %d):\n%s", cause, code, whole)
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
}

// commands are those that strandmq takes, as they stand there.
func commands(t *testing.T, findings string) {
	t.Helper()
	for line := range strings.Lines(findings) {
		line, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(line), "next: "), "strandmq ")
		if !ok {
			continue
		}
		line, _, _ = strings.Cut(line, "    #")
		var args []string
		for _, m := range argument.FindAllStringSubmatch(strings.ReplaceAll(line, " N", " 9"), -1) {
			if m[1] != "" {
				m[0] = m[1]
			}
			args = append(args, m[0])
		}
		cmd, rest, err := testApp().root().Find(args)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil && cmd.Args != nil {
			err = cmd.Args(cmd, cmd.Flags().Args())
		}
		if err != nil || !cmd.Runnable() {
			t.Errorf("doctor names a command that there is not: %s: %v", line, err)
		}
	}
}

// TestDoctorNamesCauses plants one thing that is wrong at a time, each on a topic of its
// own, and wants it named in the first line.
func TestDoctorNamesCauses(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir(), func(c *broker.Config) { c.RetentionEvery = 10 * time.Millisecond }).URL()
	hour := proto.Int64((time.Hour).Milliseconds())
	keys := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprint("k", i))
		}
		return out
	}
	now := []string{"--behind", "1ms"}
	for _, c := range []struct {
		cause  doctor.Cause
		policy *strandmqv1.GroupPolicy
		config *strandmqv1.TopicConfig
		plant  func(p *patient)
		args   []string
	}{
		{cause: doctor.Paused, plant: func(p *patient) {
			p.store(1, "a")
			granted(p.t, p.api.groups.PauseGroup, &strandmqv1.PauseGroupRequest{Topic: p.topic, Group: "g"})
		}},
		{cause: doctor.NoMembers, plant: func(p *patient) { p.store(1, "a") }},
		{cause: doctor.MemberSilent, args: now, plant: func(p *patient) {
			p.join("idle")
			p.store(1, "a")
		}},
		{cause: doctor.CircuitOpen, policy: &strandmqv1.GroupPolicy{BreakerKeys: proto.Uint32(5), BackoffMs: hour, BackoffMaxMs: hour, BreakerWindowMs: hour}, plant: func(p *patient) {
			p.store(1, keys(10)...)
			p.settle(nack, 0, "the database is down", p.take("m", 10)...)
		}},
		{cause: doctor.DeferredLimit, policy: &strandmqv1.GroupPolicy{MaxDeferred: proto.Uint32(5)}, plant: func(p *patient) {
			p.store(20, "a")
			p.settle(nack, *hour, "no funds", p.take("m", 1)...)
		}},
		{cause: doctor.DeadlineTooShort, policy: &strandmqv1.GroupPolicy{AckDeadlineMs: proto.Int64(100), MaxAttempts: proto.Uint32(0)}, plant: func(p *patient) {
			p.store(1, keys(4)...)
			ds := p.take("m", 4)
			until(p.t, "the lapses", func() bool { return p.counts().GetLapsed() >= 4 })
			p.settle(ack, 0, "", ds...)
		}},
		{cause: doctor.ConsumerCrashes, policy: &strandmqv1.GroupPolicy{BackoffMs: hour, BackoffMaxMs: hour, AckDeadlineMs: hour}, plant: func(p *patient) {
			p.store(1, keys(3)...)
			p.take("m", 3)
			p.join("m") // it came back, and what it held is lost
		}},
		{cause: doctor.PoisonMessage, policy: &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(1), BackoffMaxMs: proto.Int64(1)}, plant: func(p *patient) {
			p.store(1, "a")
			for _, delay := range []int64{0, 0, *hour} {
				p.settle(nack, delay, "cannot parse it", p.take("m", 1)...)
			}
		}},
		{cause: doctor.BlockedKey, policy: &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(1), BackoffMaxMs: proto.Int64(1), MaxAttempts: proto.Uint32(0)}, plant: func(p *patient) {
			p.store(10, "a")
			for _, delay := range []int64{0, 0, *hour} {
				p.settle(nack, delay, "no such customer", p.take("m", 1)...)
			}
		}},
		{cause: doctor.HotKey, policy: &strandmqv1.GroupPolicy{AckDeadlineMs: hour}, args: now, plant: func(p *patient) {
			p.store(20, "a")
			p.take("m", 1)
		}},
		{cause: doctor.SlowHandlers, policy: &strandmqv1.GroupPolicy{AckDeadlineMs: hour, MaxInFlightMember: proto.Uint32(5)}, args: now, plant: func(p *patient) {
			p.store(1, keys(20)...)
			p.take("m", 5)
		}},
		{cause: doctor.TooFewPartitions, policy: &strandmqv1.GroupPolicy{AckDeadlineMs: hour, Mode: strandmqv1.GroupMode_GROUP_MODE_PARTITION}, args: now, plant: func(p *patient) {
			p.store(1, keys(20)...)
			p.take("m1", 1)
			p.join("m2")
		}},
		{cause: doctor.Parked, policy: &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(1), OnExhaustion: strandmqv1.OnExhaustion_ON_EXHAUSTION_PARK}, plant: func(p *patient) {
			p.store(3, "a")
			p.settle(nack, 0, "no funds", p.take("m", 1)...)
		}},
		{cause: doctor.DeadLetters, policy: &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(1)}, plant: func(p *patient) {
			p.store(1, "a", "b")
			p.settle(nack, 0, "no funds", p.take("m", 2)...)
		}},
		{cause: doctor.Expired, config: &strandmqv1.TopicConfig{RetentionBytes: proto.Int64(1)}, plant: func(p *patient) {
			p.store(1, "a")
			p.store(1, "b")
			until(p.t, "the loss", func() bool { return p.counts().GetExpired() > 0 })
			for n := p.counts(); n.GetLag() > 0; n = p.counts() {
				p.settle(ack, 0, "", p.take("m", 1)...)
			}
		}},
		{
			cause: doctor.PublishRefused, policy: &strandmqv1.GroupPolicy{Retention: strandmqv1.GroupRetention_GROUP_RETENTION_HOLD, HoldLimitBytes: proto.Uint64(1)},
			config: &strandmqv1.TopicConfig{RetentionBytes: proto.Int64(1), RefusePublishesAtHoldLimit: proto.Bool(true)},
			plant: func(p *patient) {
				n := 0
				until(p.t, "a refusal", func() bool {
					n++
					_, err := p.api.publish.Publish(p.t.Context(), &strandmqv1.PublishRequest{Topic: p.topic, Messages: []*strandmqv1.Message{named(fmt.Sprint("a", n))}})
					return isReason(err, "HOLD_LIMIT")
				})
			},
		},
	} {
		t.Run(string(c.cause), func(t *testing.T) {
			t.Parallel()
			p := at(t, url, strings.ToLower(string(c.cause)), c.policy, c.config)
			c.plant(p)
			if c.args == nil {
				c.args = []string{"--behind", "1h"} // however long the test takes
			}
			diagnoses(t, url, c.cause, append([]string{"--topic", p.topic}, c.args...)...)
		})
	}
}

// The handlers refuse nearly all that they get, while it looks.
func TestDoctorSeesHandlersFail(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir()).URL()
	p := at(t, url, "t", &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(0), BackoffMs: proto.Int64(200), BackoffMaxMs: proto.Int64(200), BreakerFailedPercent: proto.Uint32(0)})
	p.store(1, "a", "b", "c", "d", "e", "f", "g", "h")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			res, err := p.api.consume.Receive(t.Context(), &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", MaxMessages: 4, WaitMs: 100})
			if err != nil {
				continue // the test ends, or it goes on
			}
			req := &strandmqv1.SettleRequest{Topic: "t", Group: "g"}
			for _, d := range res.GetDeliveries() {
				req.Settlements = append(req.Settlements, &strandmqv1.Settlement{Token: d.GetToken(), Action: nack, Reason: "no such table"})
			}
			_, _ = p.api.consume.Settle(t.Context(), req)
		}
	}()
	defer func() { close(stop); <-done }()
	diagnoses(t, url, doctor.HandlerFails, "--topic", "t", "--behind", "1h", "--watch", "1s")
}

// A node whose disk is too full for publishes, and what fills it.
func TestDoctorSeesFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := ward(t, dir)
	p := at(t, b.URL(), "orders", nil)
	p.store(3, "a")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	full := ward(t, dir, func(c *broker.Config) { c.DiskReserve = 1 << 60 })
	until(t, "the disk is low", func() bool {
		return granted(t, dial(full.URL()).node.NodeInfo, &strandmqv1.NodeInfoRequest{}).GetDisk().GetLow()
	})
	diagnoses(t, full.URL(), doctor.DiskFull)
	until(t, "what fills it, and since when", func() bool {
		_, whole, _ := examine(t, full.URL())
		return strings.Contains(whole, "topic orders takes ") && strings.Contains(whole, "ago: strandmq events --kind DISK_LOW --node n1")
	})
}

// A node whose disk is nearly too full.
func TestDoctorSeesDiskFilling(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := ward(t, dir)
	at(t, b.URL(), "orders", nil).store(3, "a")
	free := granted(t, dial(b.URL()).node.NodeInfo, &strandmqv1.NodeInfoRequest{}).GetDisk().GetFreeBytes()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	filling := ward(t, dir, func(c *broker.Config) { c.DiskReserve = int64(free / 3 * 2) })
	diagnoses(t, filling.URL(), doctor.DiskFilling, "--behind", "1h")
	if _, whole, _ := examine(t, filling.URL(), "--behind", "1h"); !strings.Contains(whole, "topic orders takes ") {
		t.Errorf("nothing says what fills it:\n%s", whole)
	}
}

// A disk takes a second for each sync, does not come back from one, and is well again.
func TestDoctorSeesSlowDisk(t *testing.T) {
	t.Parallel()
	var slow, stuck atomic.Bool
	back := make(chan struct{})
	disk := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileSyncData && op.Kind != errorfs.OpFileSyncTo {
			return nil
		}
		if slow.Load() {
			time.Sleep(1100 * time.Millisecond) // what a slow disk is: a second or more
		}
		if stuck.Load() {
			<-back
		}
		return nil
	}))
	b := ward(t, t.TempDir(), func(c *broker.Config) { c.Store.FS, c.Store.StallStop = disk, time.Hour })
	p := at(t, b.URL(), "orders", nil)
	stop, published := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(published)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			// It may be refused: the disk is stuck.
			_, _ = p.api.publish.Publish(context.Background(), &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{named(fmt.Sprint("a", i))}})
		}
	}()
	release := sync.OnceFunc(func() {
		slow.Store(false)
		stuck.Store(false)
		close(back)
		close(stop)
		<-published
	})
	defer release()
	slow.Store(true)
	diagnoses(t, b.URL(), doctor.DiskSlow, "--behind", "1h", "--watch", "3s")
	stuck.Store(true)
	diagnoses(t, b.URL(), doctor.DiskStuck, "--behind", "1h")
	release()
	until(t, "nothing is wrong with the disk", func() bool {
		_, whole, _ := examine(t, b.URL(), "--behind", "1h")
		return !strings.Contains(whole, "DISK_")
	})
}

// A bit flips in what is stored.
func TestDoctorSeesDamage(t *testing.T) {
	t.Parallel()
	b, _ := rotten(t)
	diagnoses(t, b.URL(), doctor.Damaged)
}

// rotten gives a broker that looks for damage, with a flipped bit in a message, and what its
// metrics said before.
func rotten(t *testing.T) (b *broker.Broker, before string) {
	t.Helper()
	dir := t.TempDir()
	b = ward(t, dir)
	p := at(t, b.URL(), "orders", nil)
	granted(t, p.api.groups.DeleteGroup, &strandmqv1.DeleteGroupRequest{Topic: "orders", Group: "g", Confirm: "g"})
	granted(t, p.api.publish.Publish, &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{
		{KeyKind: &strandmqv1.Message_Key{Key: "a"}, Body: &strandmqv1.Message_Text{Text: strings.Repeat("0123456789", 50_000)}},
	}})
	p.store(1, "a")
	before = calm(scrape(t, b.URL()))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "pebble", "*.blob"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err == nil && len(data) > 400_000 {
			data[200_000] ^= 2
			err = os.WriteFile(f, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b = ward(t, dir, func(c *broker.Config) { c.Store.ScrubEvery, c.Store.ScrubBytesPerSecond = time.Millisecond, 1<<40 })
	return b, before
}

// On a broker at work nothing is wrong, and it says so with exit code 0.
func TestDoctorLeavesTheHealthyAlone(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir()).URL()
	well := func(first, whole string, code int) bool {
		return strings.HasPrefix(first, "nothing is wrong: 1 node, ") && code == exitDone
	}
	if first, whole, code := examine(t, url); !well(first, whole, code) {
		t.Errorf("a new broker (exit code %d):\n%s", code, whole)
	}
	p := at(t, url, "t", nil)
	if first, whole, code := examine(t, url); !well(first, whole, code) {
		t.Errorf("a group without messages (exit code %d):\n%s", code, whole)
	}
	p.join("m")
	stop, published, consumed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(published)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_, _ = p.api.publish.Publish(context.Background(), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{
				{KeyKind: &strandmqv1.Message_Key{Key: fmt.Sprint(i % 50)}, Body: &strandmqv1.Message_Text{Text: "x"}},
			}})
		}
	}()
	var acked int
	go func() {
		defer close(consumed)
		for idle := false; !idle; {
			select {
			case <-published:
				idle = true
			default:
			}
			res, err := p.api.consume.Receive(context.Background(), &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", MaxMessages: 100, WaitMs: 100})
			if err != nil || len(res.GetDeliveries()) == 0 {
				continue
			}
			idle = false
			req := &strandmqv1.SettleRequest{Topic: "t", Group: "g"}
			for _, d := range res.GetDeliveries() {
				req.Settlements = append(req.Settlements, &strandmqv1.Settlement{Token: d.GetToken(), Action: ack})
			}
			_, _ = p.api.consume.Settle(context.Background(), req)
			acked += len(req.GetSettlements())
		}
	}()
	// Whatever the machine does besides, nothing is as old as ten minutes.
	for range 5 {
		if first, whole, code := examine(t, url, "--behind", "10m"); !well(first, whole, code) {
			t.Errorf("under load (exit code %d):\n%s", code, whole)
		}
	}
	close(stop)
	<-published
	<-consumed
	if first, whole, code := examine(t, url); !well(first, whole, code) || acked == 0 {
		t.Errorf("after %d messages (exit code %d):\n%s", acked, code, whole)
	}
}

// For programs the findings are JSON; what is asked wrongly is refused.
func TestDoctorForPrograms(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir()).URL()
	at(t, url, "t", nil).store(2, "a")
	_, whole, code := examine(t, url, "--output", "json")
	var got struct {
		Findings []struct{ Severity, Cause, About, Text string }
		Groups   int
	}
	if err := json.Unmarshal([]byte(whole), &got); err != nil || code != exitFailed {
		t.Fatalf("%v (exit code %d): %s", err, code, whole)
	}
	if len(got.Findings) != 1 || got.Groups != 1 || got.Findings[0].Cause != "NO_MEMBERS" || got.Findings[0].Severity != "warning" {
		t.Errorf("%+v", got)
	}
	for want, args := range map[int][]string{
		exitUsage:  {"--group", "g"},
		exitFailed: {"--topic", "nothing"},
	} {
		if _, whole, code := examine(t, url, args...); code != want {
			t.Errorf("%v: exit code %d, want %d: %s", args, code, want, whole)
		}
	}
	if _, _, code := examine(t, url, "--topic", "t", "--group", "nobody"); code != exitFailed {
		t.Errorf("an unknown group: exit code %d", code)
	}
}

func TestCheckForMonitoring(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir()).URL()
	p := at(t, url, "t", &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(1)})
	check := func(want int, pattern string, args ...string) {
		t.Helper()
		var out, talk bytes.Buffer
		code := 0
		until(t, "all to be asked", func() bool {
			out.Reset()
			code = run(&app{in: strings.NewReader(""), out: &out, err: &talk}, append([]string{"check", "--server", url, "--timeout", "30s", "--age-warning", "0", "--age-critical", "0", "--disk-warning", "0", "--disk-critical", "0"}, args...))
			return !strings.Contains(out.String(), lateAnswer)
		})
		if code != want || !regexp.MustCompile(pattern).MatchString(out.String()) {
			t.Errorf("check %v: exit code %d, want %d, and %q:\n%s%s", args, code, want, pattern, out.String(), talk.String())
		}
	}
	check(0, `^OK: 1 node, 1 group, lag 0 \| nodes=1 groups=1 lag=0 oldest=0.000s dead=0\n$`)
	p.store(3, "a", "b")
	check(0, `lag=6 oldest=\d+\.\d+s`)
	check(1, `^WARNING: group g of topic t has a lag of 6 messages \|.*\nWARNING: `, "--lag-warning", "6", "--lag-critical", "7")
	check(2, `^CRITICAL: group g of topic t has a lag of 6 messages \|`, "--lag-warning", "1", "--lag-critical", "6")
	check(1, `^WARNING: group g of topic t is .* behind \|`, "--age-warning", "1ms")
	check(2, `^CRITICAL: .* \(and 1 more\) \|`, "--age-critical", "1ms", "--lag-warning", "1")
	p.settle(nack, 0, "", p.take("m", 2)...)
	check(1, `has 2 dead letters`, "--dead-warning", "1")
	check(2, `disk has \d+% free`, "--disk-critical", "100")
	check(0, `"state": "OK"`, "--output", "json")
	check(2, `"state": "CRITICAL"`, "--output", "json", "--dead-critical", "1")
	check(0, `OK`, "--topic", "t", "--group", "g", "--dead-warning", "3")
	check(3, `^UNKNOWN: topic t has no group x`, "--topic", "t", "--group", "x")
	check(3, `^UNKNOWN: .*nothing`, "--topic", "nothing")
	check(3, ``, "--lag-warning", "-1")
	check(3, ``, "and more")
	check(3, ``, "--group", "g")
	url = "http://127.0.0.1:1"
	check(3, `^UNKNOWN: no broker answers`)
}

// Every cause is in the page that goes from symptoms to causes.
func TestCausesAreExplained(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range doctor.Causes() {
		if !bytes.Contains(page, []byte("`"+string(c)+"`")) {
			t.Errorf("docs/troubleshooting.md does not explain %s", c)
		}
	}
}
