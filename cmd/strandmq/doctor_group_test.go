//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/broker"
	"github.com/strandmq/strandmq/internal/doctor"
	"github.com/strandmq/strandmq/partition/logstore"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// drains has a member work its way through a backlog that is made anew before it ends,
// until the test ends.
func (p *patient) drains() {
	backlog := &strandmqv1.PublishRequest{Topic: p.topic}
	for i := range 1000 {
		backlog.Messages = append(backlog.Messages, &strandmqv1.Message{KeyKind: &strandmqv1.Message_Key{Key: fmt.Sprint("k", i%100)}, Body: &strandmqv1.Message_Text{Text: "x"}})
	}
	granted(p.t, p.api.publish.Publish, backlog)
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for left := len(backlog.Messages); ctx.Err() == nil; time.Sleep(10 * time.Millisecond) { // how long the work takes
			res, err := p.api.consume.Receive(ctx, &strandmqv1.ReceiveRequest{Topic: p.topic, Group: "g", Member: "m", MaxMessages: 2, WaitMs: 100})
			if err != nil {
				continue // the test ends, or it goes on
			}
			req := &strandmqv1.SettleRequest{Topic: p.topic, Group: "g"}
			for _, d := range res.GetDeliveries() {
				req.Settlements = append(req.Settlements, &strandmqv1.Settlement{Token: d.GetToken(), Action: ack})
			}
			if _, err := p.api.consume.Settle(ctx, req); err == nil {
				left -= len(req.Settlements)
			}
			if left < 300 {
				if _, err := p.api.publish.Publish(ctx, backlog); err == nil {
					left += len(backlog.Messages)
				}
			}
		}
	}()
	p.t.Cleanup(func() { cancel(); <-done })
}

// A group works through its backlog: a note, and no fault. Where retention is quicker,
// that is told first.
func TestDoctorSeesCatchingUp(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir(), func(c *broker.Config) { c.RetentionEvery = time.Hour }).URL() // what is to expire stays
	p := at(t, url, "catching_up", nil)
	p.drains()
	names(t, url, doctor.CatchingUp, exitDone, "--topic", p.topic, "--behind", "1ms", "--watch", "500ms") // so that some are acked meanwhile on any machine
	p = at(t, url, "expires_soon", nil, &strandmqv1.TopicConfig{RetentionMs: proto.Int64(1000)})
	p.drains()
	diagnoses(t, url, doctor.ExpiresSoon, "--topic", p.topic, "--behind", "1ms")
}

// A member is there and asks, and gets nothing, since all waits for one message to be
// tried again.
func TestDoctorSeesFallingBehind(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir()).URL()
	p := at(t, url, "falling_behind", nil)
	p.store(5, "a")
	p.settle(nack, time.Hour.Milliseconds(), "come back later", p.take("m", 1)...)
	diagnoses(t, url, doctor.FallingBehind, "--behind", "1ms")
}

// What opened a circuit is told before the circuit, which is a note then; also when each
// message failed but once, and none backs off any more.
func TestDoctorSeesWhatOpenedACircuit(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir()).URL()
	policy := func(keys uint32, deadline int64) *strandmqv1.GroupPolicy {
		return &strandmqv1.GroupPolicy{
			BreakerKeys: &keys, AckDeadlineMs: &deadline, MaxAttempts: proto.Uint32(0), BackoffMs: proto.Int64(1), BackoffMaxMs: proto.Int64(1),
			BreakerWindowMs: proto.Int64(time.Hour.Milliseconds()),
		}
	}
	open := func(p *patient) {
		t.Helper()
		until(t, "the circuit is open, and nothing backs off", func() bool {
			res := granted(t, p.api.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: p.topic, Group: "g"})
			return res.GetPartitions()[0].GetCircuit().GetOpen() && res.GetCounts().GetBackingOff() == 0
		})
	}
	keys := strings.Split("abcdefghij", "")

	p := at(t, url, "crashes", policy(10, time.Hour.Milliseconds()))
	p.store(1, keys...)
	p.take("m", 10)
	p.join("m") // it came back, and what it held is lost
	open(p)
	diagnoses(t, url, doctor.ConsumerCrashes, "--topic", p.topic)

	p = at(t, url, "late", policy(10, 100))
	p.store(1, keys...)
	var ds []*strandmqv1.Delivery
	until(t, "each message was out", func() bool {
		ds = append(ds, granted(t, p.api.consume.Receive, &strandmqv1.ReceiveRequest{Topic: p.topic, Group: "g", Member: "m", MaxMessages: 10, WaitMs: 100}).GetDeliveries()...)
		seen := map[uint64]bool{}
		for _, d := range ds {
			seen[d.GetOffset()] = true
		}
		return len(seen) == len(keys)
	})
	open(p) // when the last of them has lapsed
	p.settle(ack, 0, "", ds...)
	diagnoses(t, url, doctor.DeadlineTooShort, "--topic", p.topic)

	p = at(t, url, "poison", policy(1, time.Hour.Milliseconds()))
	p.store(1, "a")
	for range 3 {
		p.settle(nack, 0, "cannot parse it", p.take("m", 1)...)
		granted(t, p.api.groups.PauseGroup, &strandmqv1.PauseGroupRequest{Topic: p.topic, Group: "g"})
		granted(t, p.api.groups.ResumeGroup, &strandmqv1.ResumeGroupRequest{Topic: p.topic, Group: "g"}) // tries the next one at once
	}
	diagnoses(t, url, doctor.PoisonMessage, "--topic", p.topic)
	if _, whole, _ := examine(t, url, "--topic", p.topic); !strings.Contains(whole, "NOTE CIRCUIT_OPEN: ") || !strings.Contains(whole, "follows from POISON_MESSAGE") {
		t.Errorf("the circuit is not told as what follows:\n%s", whole)
	}
}

// A group that holds comes near to its limit.
func TestDoctorSeesHoldLimit(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir(), func(c *broker.Config) { c.RetentionEvery = 10 * time.Millisecond }).URL()
	p := at(t, url, "hold_limit", &strandmqv1.GroupPolicy{Retention: strandmqv1.GroupRetention_GROUP_RETENTION_HOLD, HoldLimitBytes: proto.Uint64(64 << 10)},
		&strandmqv1.TopicConfig{RetentionBytes: proto.Int64(1)})
	p.join("m")
	body := strings.Repeat("x", 1000)
	until(t, "the group holds nearly what it may", func() bool {
		granted(t, p.api.publish.Publish, &strandmqv1.PublishRequest{Topic: p.topic, Messages: []*strandmqv1.Message{
			{KeyKind: &strandmqv1.Message_Key{Key: "a"}, Body: &strandmqv1.Message_Text{Text: body}},
		}})
		for _, part := range granted(t, p.api.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: p.topic, Group: "g"}).GetPartitions() {
			for _, s := range part.GetStalls() {
				if s.GetReason() == "HOLD_ALARM" || s.GetReason() == "HOLD_LIMIT" {
					return true
				}
			}
		}
		return false
	})
	diagnoses(t, url, doctor.HoldLimit, "--behind", "1h")
}

// What a newer version wrote is not damage.
func TestDoctorSeesNewerFormat(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := ward(t, dir)
	at(t, b.URL(), "orders", nil).store(1, "a")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	laterVersion(t, dir)
	b = ward(t, dir)
	diagnoses(t, b.URL(), doctor.NewerFormat)
	if _, whole, _ := examine(t, b.URL()); strings.Contains(whole, "DAMAGED") || !strings.Contains(whole, "topic orders, partition 0: ") {
		t.Errorf("and besides:\n%s", whole)
	}
}

// laterVersion makes the row of a group in a data folder that of a later version.
func laterVersion(t *testing.T, dir string) {
	t.Helper()
	s, err := logstore.Open(logstore.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	batch, n := s.NewBatch(), 0
	for id := range uint64(10) { // the metadata log is 0, and has no such rows
		err := s.Iterate(logstore.AppRows, id+1, []byte{'g'}, []byte{'g' + 1}, func(k, v []byte) bool {
			v = bytes.Clone(v)
			v[0]++ // the row's version
			n++
			err = batch.Set(logstore.AppRows, id+1, bytes.Clone(k), v)
			return err == nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err != nil || n != 1 {
		t.Fatal(n, err)
	}
	if err := s.CommitNoSync(batch); err != nil {
		t.Fatal(err)
	}
}
