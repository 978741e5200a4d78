package broker

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// lines is a log that a test looks into.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Publishes are refused at the hold limit by their bytes, however fast they come
// between two looks, and the alarm comes before.
func TestHoldLimitBetweenLooks(t *testing.T) {
	var log lines
	dir := t.TempDir()
	b := start(t, dir, func(c *Config) {
		c.RetentionEvery = time.Hour // no look comes by itself
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	a := newAPI(t, b.URL())
	const keeps, limit = 10_000, 50_000
	a.topicOf(t, "t", &strandmqv1.TopicConfig{RetentionBytes: proto.Int64(keeps), RefusePublishesAtHoldLimit: proto.Bool(true)})
	a.group(t, "t", "slow", &strandmqv1.GroupPolicy{Retention: strandmqv1.GroupRetention_GROUP_RETENTION_HOLD, HoldLimitBytes: proto.Uint64(limit)})
	b.retention.pass(ctx(t), b.retention.now.read(time.Now())) // and its own goroutine has had nothing to do
	sent := 0
	publish := func() error {
		sent++
		_, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg(fmt.Sprint(sent), strings.Repeat("x", 1000))}})
		return err
	}
	var err error
	for n := 0; err == nil && n < 1000; n++ {
		if strings.Contains(log.String(), "near its limit") && a.part(t, "t").GetBytes() < keeps+limit*8/10-1200 {
			t.Fatal("the alarm comes too early")
		}
		err = publish()
	}
	wantReason(t, err, "HOLD_LIMIT")
	if s := err.Error(); !strings.Contains(s, "slow") || !strings.Contains(s, "48.8 KiB") || strings.Contains(s, "50000B") {
		t.Errorf("the refusal: %v", err)
	}
	p := a.part(t, "t")
	if n := p.GetBytes(); n < keeps+limit || n > keeps+limit+2000 {
		t.Errorf("the log has %d bytes, and may have %d and a batch", n, keeps+limit)
	}
	until(t, "the alarm is told", func() bool { return strings.Contains(log.String(), "near its limit") })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	// Looks that come by themselves say it once, and move the bound on: by what the
	// group settles, by another limit, and where none is to be.
	var later lines
	b = start(t, dir, often, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&later, nil)) })
	a = newAPI(t, b.URL())
	full := func() {
		t.Helper()
		until(t, "publishes are refused", func() bool { err = publish(); return err != nil })
		wantReason(t, err, "HOLD_LIMIT")
		until(t, "the stall says so", func() bool {
			s := a.describe(t, "t", "slow").GetPartitions()[0].GetStalls()
			return len(s) > 0 && s[0].GetReason() == "HOLD_LIMIT"
		})
	}
	opens := func(what string) {
		t.Helper()
		until(t, "publishes go on after "+what, func() bool { return publish() == nil })
	}
	full()
	if n := strings.Count(later.String(), "near its limit"); n != 1 {
		t.Errorf("the alarm was told %d times:\n%s", n, later.String())
	}
	for _, d := range a.receive(t, "t", "slow", "m", 20) {
		a.done(t, "t", "slow", d, ack, "")
	}
	opens("20 acks")
	full()
	if _, err := a.groups.AlterGroup(ctx(t), &strandmqv1.AlterGroupRequest{Topic: "t", Group: "slow", Policy: &strandmqv1.GroupPolicy{HoldLimitBytes: proto.Uint64(2 * limit)}}); err != nil {
		t.Fatal(err)
	}
	opens("a higher limit")
	full()
	a.alter(t, "t", &strandmqv1.TopicConfig{RefusePublishesAtHoldLimit: proto.Bool(false)})
	opens("the topic's word that it does not refuse")
	until(t, "the group loses the oldest", func() bool { return a.part(t, "t").GetStartOffset() > 20 || publish() != nil })
	if err := publish(); err != nil {
		t.Error(err)
	}
}
