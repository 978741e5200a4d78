package broker

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// What was made at one node is known at every other one, from the moment that the call
// which made it is answered. Calls may fail for other reasons while leaders are elected.
func TestMadeIsKnownEverywhere(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	apis := []api{c.api(0), c.api(1), c.api(2)}
	known := func(what string, err error) {
		if err != nil && missing(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range 12 {
		topic := fmt.Sprintf("t%d", i)
		apis[i%3].topic(t, topic, 1)
		var all sync.WaitGroup
		for n, a := range apis {
			all.Go(func() {
				_, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: topic, Messages: []*strandmqv1.Message{msg("k", "x")}})
				known(fmt.Sprintf("publish to %s at node %d", topic, n+1), err)
			})
			all.Go(func() {
				s := streamAPI(t, c.nodes[n].b).publishStream(t, ctx(t))
				_ = s.Send(&strandmqv1.PublishStreamRequest{Batches: []*strandmqv1.PublishBatch{{Topic: topic, Messages: []*strandmqv1.Message{msg("k", "x")}}}})
				_ = s.CloseRequest()
				got, _, err := rest(s)
				known(fmt.Sprintf("stream to %s at node %d", topic, n+1), err)
				if reason := got[1].GetProblem().GetReason(); reason == "UNKNOWN_TOPIC" {
					t.Errorf("stream to %s at node %d: %s", topic, n+1, reason)
				}
			})
		}
		all.Wait()
		for n, a := range apis {
			group := fmt.Sprint("g", n)
			if _, err := apis[(n+1)%3].groups.CreateGroup(ctx(t), &strandmqv1.CreateGroupRequest{Topic: topic, Group: group}); err != nil {
				known("create a group", err)
				continue
			}
			all.Go(func() {
				_, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: topic, Group: group, Member: "m", MaxMessages: 1})
				known(fmt.Sprintf("receive of %s at node %d", topic, n+1), err)
			})
			all.Go(func() {
				ctx, cancel := context.WithTimeout(ctx(t), 5*time.Second) // the other may have all
				defer cancel()
				s, err := apis[(n+2)%3].consume.Subscribe(ctx, &strandmqv1.SubscribeRequest{Topic: topic, Group: group, Member: "s"})
				if err == nil {
					s.Receive()
					err = s.Err()
				}
				known(fmt.Sprintf("subscribe to %s at node %d", topic, (n+2)%3+1), err)
			})
		}
		all.Wait()
	}
}

// A map that became newer by itself, after a call had looked into it, is looked into again.
func TestMapBecameNewerMeanwhile(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	for i, n := range c.nodes {
		seen := n.b.revision()
		c.api(i).topic(t, fmt.Sprint("t", i), 1)
		inTime(t, "a newer map", func() bool { return n.b.revision() > seen })
		if !n.b.caughtUp(ctx(t), seen) {
			t.Errorf("node %d: its map is newer than the one that was seen, and it says no", i+1)
		}
	}
}
