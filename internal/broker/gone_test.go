package broker

import (
	"log/slog"
	"strings"
	"sync"
	"testing"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Streams and polls whose topic or group is deleted end as that, at every node, and
// nobody asks partitions that are gone about their sessions.
func TestDeletedBeneathMembers(t *testing.T) {
	var log lockedBuffer
	c := startThree(t, func(cfg *Config) { cfg.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	for reason, remove := range map[string]func(topic string) error{
		"UNKNOWN_TOPIC": func(topic string) error {
			_, err := c.api(0).topics.DeleteTopic(ctx(t), &strandmqv1.DeleteTopicRequest{Topic: topic, Confirm: topic})
			return err
		},
		"UNKNOWN_GROUP": func(topic string) error {
			_, err := c.api(0).groups.DeleteGroup(ctx(t), &strandmqv1.DeleteGroupRequest{Topic: topic, Group: "g", Confirm: "g"})
			return err
		},
	} {
		topic := strings.ToLower(reason)
		c.api(0).topic(t, topic, 6)
		c.api(0).group(t, topic, "g", nil)
		var waiting sync.WaitGroup
		for i, n := range c.nodes {
			name := n.b.cfg.Node.String()
			m := joins(t, opener(t, n.b), opened(topic, "g", "stream-"+name), 10)
			waiting.Go(func() {
				for {
					if _, err := m.frame(); err != nil {
						if got := problemOf(err).GetReason(); got != reason {
							t.Errorf("a Consume at %s: %s, %v; want %s", name, got, err, reason)
						}
						return
					}
				}
			})
			s, _ := c.api(i).subscribe(t, ctx(t), &strandmqv1.SubscribeRequest{Topic: topic, Group: "g", Member: "window-" + name})
			waiting.Go(func() {
				for s.Receive() { // until it ends
				}
				if got := problemOf(s.Err()).GetReason(); got != reason {
					t.Errorf("a Subscribe at %s: %s, %v; want %s", name, got, s.Err(), reason)
				}
			})
			polls, a := ctx(t), c.api(i)
			join, err := a.consume.Join(polls, &strandmqv1.JoinRequest{Topic: topic, Group: "g", Member: "polls-" + name})
			if err != nil {
				t.Fatal(err)
			}
			waiting.Go(func() {
				for {
					_, err := a.consume.Receive(polls, &strandmqv1.ReceiveRequest{Topic: topic, Group: "g", Member: "polls-" + name, Session: join.GetSession(), WaitMs: 60_000})
					if got := problemOf(err).GetReason(); err != nil && got != "IN_PROGRESS" {
						if got != reason {
							t.Errorf("a Receive at %s: %s, %v; want %s", name, got, err, reason)
						}
						return
					}
				}
			})
		}
		if err := remove(topic); err != nil {
			t.Fatal(err)
		}
		waiting.Wait()
	}
	if text := log.String(); strings.Contains(text, "cannot end a stream's session") {
		t.Errorf("the nodes say:\n%s", text)
	}
}
