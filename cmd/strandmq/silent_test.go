//go:build unix

package main

import (
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A program with the Go client that stands still, with its connections open, loses what it
// holds when the session timeout is over, though its deadlines are far. When it goes on its
// handler is told, and it handles messages again.
func TestStoppedMember(t *testing.T) {
	p := startMeasured(t, buildBroker(t), filepath.Join(t.TempDir(), "data"), "--session-timeout", "3s")
	t.Cleanup(p.stop)
	api := p.dial()
	if _, err := api.topics.CreateTopic(t.Context(), &strandmqv1.CreateTopicRequest{Topic: "t", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.groups.CreateGroup(t.Context(), &strandmqv1.CreateGroupRequest{Topic: "t", Group: "g", Policy: &strandmqv1.GroupPolicy{
		AckDeadlineMs: proto.Int64(600_000), BackoffMs: proto.Int64(1), BreakerFailedPercent: proto.Uint32(0),
	}}); err != nil {
		t.Fatal(err)
	}
	publishes := func(id string) {
		t.Helper()
		if _, err := api.publish.Publish(t.Context(), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{{KeyKind: &strandmqv1.Message_Key{Key: "k"}, Id: id}}}); err != nil {
			t.Fatal(err)
		}
	}
	begins := func() (*program, func() handled) {
		t.Helper()
		m, err := startProgram(t, "member-of-a-user", p.url, "t", "g", "1")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.kill)
		return m, func() (h handled) {
			t.Helper()
			if err := m.hear(&h); err != nil {
				t.Fatal(m.fault(err))
			}
			return h
		}
	}
	publishes("a")
	stopped, tells := begins()
	if h := tells(); h.ID != "a" || h.Gone {
		t.Fatalf("%+v", h)
	}
	stopped.signal(syscall.SIGSTOP)
	other, _ := begins()
	again := make(chan uint32, 100)
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			var h handled
			if other.hear(&h) != nil {
				return
			}
			if !h.Gone { // whose session may have been lost, too, on a busy machine
				again <- h.Attempt
				_ = other.tell(handlerEnds{h.Call, "ack"})
			}
		}
	})
	t.Cleanup(listening.Wait)
	t.Cleanup(other.kill)
	until(t, "the ack", func() bool {
		res, err := api.groups.DescribeGroup(t.Context(), &strandmqv1.DescribeGroupRequest{Topic: "t", Group: "g"})
		return err == nil && res.GetCounts().GetLag() == 0
	})
	if n := <-again; n < 2 {
		t.Errorf("it came to the other as attempt %d", n)
	}
	other.kill()
	stopped.signal(syscall.SIGCONT)
	if h := tells(); h.ID != "a" || !h.Gone {
		t.Errorf("%+v, want that the delivery is gone", h)
	}
	publishes("b")
	if h := tells(); h.ID != "b" || h.Gone {
		t.Errorf("%+v, want b", h)
	}
}
