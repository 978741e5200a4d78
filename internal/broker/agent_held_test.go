package broker

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// What a member holds when the node dies that it is at comes to it at another node at
// once, however far its deadline is: on a stream anew and charged, since the loss of
// a stream is a crash; to one that receives call by call as it was, with the same
// token.
func TestHeldThroughDeadNode(t *testing.T) {
	t.Parallel()
	c := startThree(t)
	c.awaitVoters()
	c.api(0).topic(t, "orders", 4)
	for _, g := range []string{"stream", "calls"} {
		c.api(0).group(t, "orders", g, &strandmqv1.GroupPolicy{AckDeadlineMs: proto.Int64(10 * 60_000), BackoffMs: proto.Int64(1)})
	}
	const n = 12
	for i := range n {
		c.api(0).store(t, "orders", msg(fmt.Sprintf("k%d", i), fmt.Sprint(i)))
	}
	dies := c.leaderOf(c.partitionsOf(0, "orders")[0].ID)
	other := (dies + 1) % 3
	open := func(i int) *member {
		return joins(t, opener(t, c.nodes[i].b), opened("orders", "stream", "m"), 100)
	}
	first := open(dies)
	if got := first.take(n); len(got) != n {
		t.Fatalf("%d deliveries", len(got))
	}
	tokens := map[string]string{}
	receive := func(i int) {
		res, err := c.api(i).consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "orders", Group: "calls", Member: "m", MaxMessages: 100, WaitMs: 200})
		if err != nil {
			return // a leader is being found
		}
		for _, d := range res.GetDeliveries() {
			key := d.GetMessage().GetKey()
			if was, ok := tokens[key]; ok && (was != d.GetToken() || d.GetAttempt() != 1) {
				t.Errorf("key %s comes again in attempt %d, and another token", key, d.GetAttempt())
			}
			tokens[key] = d.GetToken()
		}
	}
	inTime(t, "all by calls", func() bool { receive(dies); return len(tokens) == n })

	c.nodes[dies].crash()
	first.cut()
	// The new stream opens when the metadata are led again.
	c.leaderOf(partition.Metadata)
	again := open(other).take(n)
	if len(again) != n {
		t.Fatalf("%d deliveries come again", len(again))
	}
	for _, d := range again {
		if d.attempt != 2 {
			t.Errorf("key %s comes again in attempt %d", d.key, d.attempt)
		}
	}
	seen := map[string]bool{}
	inTime(t, "the same by calls", func() bool {
		res, err := c.api(other).consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "orders", Group: "calls", Member: "m", MaxMessages: 100, WaitMs: 200})
		for _, d := range res.GetDeliveries() {
			seen[d.GetMessage().GetKey()] = true
			if d.GetAttempt() != 1 || d.GetToken() != tokens[d.GetMessage().GetKey()] {
				t.Errorf("key %s comes again in attempt %d", d.GetMessage().GetKey(), d.GetAttempt())
			}
		}
		return err == nil && len(seen) == n
	})
}
