package broker

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

var holesFlag = flag.Int("holes", 20_000, "how many holes TestAckHoles leaves: twice as many messages are published")

// TestAckHoles acks every other message of a partition, in any order, and gives the
// others back for a while: a group with as many holes as messages that wait. Memory
// does not grow with them. After a restart nothing that was acked comes back, its ack
// can be repeated, and every other message comes when its time has, once.
func TestAckHoles(t *testing.T) {
	holes := *holesFlag
	n := 2 * holes
	began := time.Now()
	due := began.Add(2*time.Second + time.Duration(holes)*200*time.Microsecond)
	all, stop := context.WithDeadline(context.Background(), due.Add(30*time.Minute))
	defer stop()
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(0), AckDeadlineMs: proto.Int64(600_000)})
	const batch = 1000
	for i := 0; i < n; i += batch {
		ms := make([]*strandmqv1.Message, min(batch, n-i))
		for j := range ms {
			ms[j] = msg(fmt.Sprint("key-", i+j), "x")
		}
		res, err := a.publish.Publish(all, &strandmqv1.PublishRequest{Topic: "t", Messages: ms})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range res.GetResults() {
			if r.GetProblem() != nil {
				t.Fatal(r.GetProblem())
			}
		}
	}
	published := time.Since(began)

	acked := make([]bool, n)
	var again []*strandmqv1.Settlement // some of the acks
	random := rand.New(rand.NewPCG(1, 2))
	receive := func(a api) []*strandmqv1.Delivery {
		res, err := a.consume.Receive(all, &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", MaxMessages: batch, WaitMs: 500})
		if err != nil {
			t.Fatal(err)
		}
		ds := res.GetDeliveries()
		random.Shuffle(len(ds), func(i, j int) { ds[i], ds[j] = ds[j], ds[i] })
		return ds
	}
	settle := func(a api, ss []*strandmqv1.Settlement) {
		if len(ss) == 0 {
			return // all of them wait
		}
		res, err := a.consume.Settle(all, &strandmqv1.SettleRequest{Topic: "t", Group: "g", Settlements: ss})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range res.GetResults() {
			if r.GetProblem() != nil {
				t.Fatal(r.GetProblem())
			}
		}
	}
	handled, before := 0, uint64(0)
	for handled < n {
		var ss []*strandmqv1.Settlement
		for _, d := range receive(a) {
			s := &strandmqv1.Settlement{Token: d.GetToken(), Action: nack, DelayMs: max(1, time.Until(due).Milliseconds())}
			switch {
			case acked[d.GetOffset()]:
				t.Fatalf("offset %d was acked and comes again", d.GetOffset())
			case d.GetAttempt() > 1: // slower than its wait
				s.DelayMs = 5000
			case d.GetOffset()%2 == 1:
				s.Action, s.DelayMs, acked[d.GetOffset()] = ack, 0, true
				if len(again) < 1000 {
					again = append(again, s)
				}
				handled++
			default:
				handled++
			}
			ss = append(ss, s)
		}
		settle(a, ss)
		if before == 0 && handled >= n/2 {
			before = heap()
		}
	}
	after := heap()
	consumed := time.Since(began) - published
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = start(t, dir)
	a = newAPI(t, b.URL())
	restarted := heap()
	c := a.describe(t, "t", "g").GetCounts()
	if c.GetAcked() != uint64(holes) || c.GetLag() != uint64(holes) || c.GetDead() != 0 {
		t.Fatalf("after a restart: %v", c)
	}
	settle(a, again)
	for left := holes; left > 0; {
		var ss []*strandmqv1.Settlement
		for _, d := range receive(a) {
			if acked[d.GetOffset()] || d.GetAttempt() < 2 {
				t.Fatalf("offset %d comes as attempt %d, acked %v", d.GetOffset(), d.GetAttempt(), acked[d.GetOffset()])
			}
			acked[d.GetOffset()] = true
			ss = append(ss, &strandmqv1.Settlement{Token: d.GetToken(), Action: ack})
			left--
		}
		settle(a, ss)
	}
	if c := a.describe(t, "t", "g").GetCounts(); c.GetAcked() != uint64(n) || c.GetLag() != 0 {
		t.Fatalf("in the end: %v", c)
	}
	t.Logf("%d holes: published in %v, handled in %v; heap %.1f MiB with half of them, %.1f with all, %.1f after a restart",
		holes, published.Round(time.Millisecond), consumed.Round(time.Millisecond), mib(before), mib(after), mib(restarted))
	// A tenth, and a memory table of the store that is being filled.
	if most := before + before/10 + 16<<20; !raced && (after > most || restarted > most) {
		t.Errorf("memory grew: %.1f MiB, then %.1f, and %.1f after a restart", mib(before), mib(after), mib(restarted))
	}
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }

// heap is what is in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what finalizers let go of
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
