package broker

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition/logstore"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func TestDiskReserve(t *testing.T) {
	var log bytes.Buffer
	var free uint64
	d := &disk{events: newHappenings(), reserve: 800, log: slog.New(slog.NewTextHandler(&log, nil)), room: func() (logstore.Room, error) {
		return logstore.Room{Total: 10_000, Free: free}, nil
	}}
	if d.refuse() != nil {
		t.Fatal("refused before anybody looked")
	}
	for _, step := range []struct {
		free uint64
		low  bool
	}{
		{800, false}, {799, true}, {0, true}, {800, true}, {899, true}, {900, false}, {800, false}, {10, true}, {9_000, false},
	} {
		free = step.free
		d.look()
		r := d.refuse()
		if (r != nil) != step.low || (d.warning() != "") != step.low {
			t.Errorf("%d free: %v", step.free, r)
		}
		if soon := d.next() == diskSoon; soon != (step.free < 1600) {
			t.Errorf("%d free: looks again in %v", step.free, d.next())
		}
		if r != nil && (r.reason != "DISK_FULL" || r.retryAfter == 0 || !strings.Contains(r.text, "free some room")) {
			t.Errorf("%+v", r)
		}
	}
	if n, m := strings.Count(log.String(), "publishes are refused"), strings.Count(log.String(), "has room again"); n != 2 || m != 2 {
		t.Errorf("told %d times that it is full and %d times that it is not:\n%s", n, m, log.String())
	}
	for _, unwatched := range []*disk{
		{reserve: 0, room: func() (logstore.Room, error) { return logstore.Room{Total: 10, Free: 0}, nil }},
		{reserve: 10, room: func() (logstore.Room, error) { return logstore.Room{}, errors.ErrUnsupported }},
	} {
		unwatched.look()
		if unwatched.refuse() != nil {
			t.Error("refused what nobody watches")
		}
	}
}

// While the disk is nearly full nothing is published, and all that can make room
// goes on. With room again, so does publishing, by itself.
func TestNearlyFullDisk(t *testing.T) {
	t.Parallel() // it waits for clocks
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", nil)
	a.store(t, "t", msg("k", "1"))
	var full atomic.Bool
	b.disk.mu.Lock()
	b.disk.room = func() (logstore.Room, error) {
		if full.Load() {
			return logstore.Room{Total: 1 << 40, Free: 1 << 20}, nil
		}
		return logstore.Room{Total: 1 << 40, Free: 1 << 39}, nil
	}
	b.disk.mu.Unlock()
	full.Store(true)
	b.disk.look()
	_, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "2")}})
	wantReason(t, err, "DISK_FULL")
	if p := problemOf(err); p.GetRetryAfterMs() == 0 {
		t.Errorf("no time to try again: %v", p)
	}
	a.done(t, "t", "g", a.one(t, "t", "g", "m"), ack, "")
	a.topic(t, "u", 1)
	if _, err := a.topics.DeleteTopic(ctx(t), &strandmqv1.DeleteTopicRequest{Topic: "u", Confirm: "u"}); err != nil {
		t.Error(err)
	}
	if code, body := get(t, b.URL()+"/readyz?verbose"); code != 200 || !strings.Contains(body, "[!] disk: ") {
		t.Errorf("readyz: %d %s", code, body)
	}
	if _, body := get(t, b.URL()+"/metrics"); !strings.Contains(body, "\nstrandmq_disk_low 1\n") || !strings.Contains(body, "\nstrandmq_disk_free_bytes 1.048576e+06\n") {
		t.Error("the metrics do not show it")
	}
	of := func(e *strandmqv1.ClusterEvent) bool { return e.GetNode() == 1 && e.GetCount() == 1 }
	if e := a.awaitEvent(t, coordinator.DiskLow, of); !strings.Contains(e.GetText(), "1.0 MiB are free, less than the reserve of") || e.GetAdvice() != "strandmq doctor" {
		t.Errorf("%v", e)
	}
	full.Store(false)
	deadline := time.Now().Add(soon)
	for {
		_, err = a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "2")}})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // between two tries: the broker looks every second
	}
	if e := a.awaitEvent(t, coordinator.DiskRoom, of); !strings.Contains(e.GetText(), "publishes are taken again") || e.GetAdvice() != "" {
		t.Errorf("%v", e)
	}
}
