package broker

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
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
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = heapRate
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
	handled, before, first := 0, uint64(0), int64(0)
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
			before, first = heap(), inHeap()
		}
	}
	after, second := heap(), inHeap()
	consumed := time.Since(began) - published
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	closed := inHeap() // it is held for the end of the test
	b = start(t, dir)
	a = newAPI(t, b.URL())
	restarted, third := heap(), inHeap()-closed
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
	t.Logf("of these %.2f, %.2f and %.2f MiB are held by what is not the store's", mib(uint64(first)), mib(uint64(second)), mib(uint64(max(third, 0))))
	// What a buffer happens to have grown to, and the samples that the figures are made of.
	if most := first + int64(holes/2)*50 + 512<<10; second > most || third > most {
		t.Errorf("memory grew: %.2f MiB, then %.2f, and %.2f after a restart: %d and %d bytes a hole",
			mib(uint64(first)), mib(uint64(second)), mib(uint64(third)), (second-first)/int64(holes/2), (third-first)/int64(holes/2))
	}
}

// heapRate is one sample for so many bytes that are allocated.
const heapRate = 2048

// inHeap is what the broker's own code has allocated and still holds, by samples.
// Memory tables, caches and lists of the store are not in it: the store takes them
// from the heap or beside it, as it was built (with the race detector, or without
// a C compiler, from the heap), and they grow and shrink by rules of their own.
func inHeap() (size int64) {
	for range 3 {
		runtime.GC() // a profile is of the last but one
	}
	rs := make([]runtime.MemProfileRecord, 1000)
	n, ok := runtime.MemProfile(rs, false)
	for !ok {
		rs = make([]runtime.MemProfileRecord, n+n/4)
		n, ok = runtime.MemProfile(rs, false)
	}
	for _, r := range rs[:n] {
		if r.InUseBytes() == 0 || !ownHeap(r.Stack()) {
			continue
		}
		// A sample of small objects stands for many.
		each := float64(r.AllocBytes) / float64(r.AllocObjects)
		size += int64(float64(r.InUseBytes()) / (1 - math.Exp(-each/heapRate)))
	}
	return size
}

// ownHeap tells whether memory was allocated for the broker, and not for its store
// or for rows that wait to be written to it with the next checkpoint.
func ownHeap(stack []uintptr) (own bool) {
	for fs := runtime.CallersFrames(stack); ; {
		f, more := fs.Next()
		if strings.Contains(f.Function, "/pebble/") || strings.Contains(f.Function, "/partition.(*appRows).") {
			return false
		}
		own = own || strings.Contains(f.Function, "strandmq/strandmq/")
		if !more {
			return own
		}
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
