package client_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/client/strandmqtest"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A judge sees what handlers see. Each key's messages are numbered from 0, each is
// stored once, and a message is done when its handler returned nil.
type judge struct {
	t testing.TB

	mu   sync.Mutex
	busy map[string]bool
	done map[string]int    // so many were done
	seen map[string]uint32 // message → the latest attempt that a handler got
}

func newJudge(t testing.TB) *judge {
	return &judge{t: t, busy: map[string]bool{}, done: map[string]int{}, seen: map[string]uint32{}}
}

// begin takes a delivery, and finish its end.
func (j *judge) begin(d *client.Delivery) (number int) {
	_, _ = fmt.Sscan(string(d.Body), &number)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.busy[d.Key] {
		j.t.Errorf("two handlers of %s at once", d.Key)
	}
	j.busy[d.Key] = true
	name := fmt.Sprint(d.Key, "/", number)
	// The same attempt again was given back uncharged.
	if d.Attempt < j.seen[name] {
		j.t.Errorf("%s came with attempt %d after attempt %d", name, d.Attempt, j.seen[name])
	}
	j.seen[name] = d.Attempt
	// One that is done may come again only if its ack was lost, and here that is
	// remembered; one that is not done has to come before any later one.
	if number != j.done[d.Key] {
		j.t.Errorf("%s came, and %d is the next", name, j.done[d.Key])
	}
	return number
}

func (j *judge) finish(d *client.Delivery, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.busy, d.Key)
	if ok {
		j.done[d.Key]++
	}
}

// handler is done with every message.
func (j *judge) handler(_ context.Context, d *client.Delivery) error {
	j.begin(d)
	j.finish(d, true)
	return nil
}

func (j *judge) total() (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, d := range j.done {
		n += d
	}
	return n
}

// A publisher and a consumer go on through restarts of the broker and cut
// connections: nothing is lost, nothing is stored twice, and every key's messages
// are handled once, one at a time, in order.
func TestOrderThroughRestartsAndCuts(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 4)
	group(t, b.Client, "orders", "g", &strandmqv1.GroupPolicy{MaxAttempts: ptr(uint32(0)), BackoffMs: ptr(int64(1)), BackoffMaxMs: ptr(int64(50)), BreakerFailedPercent: ptr(uint32(0))})
	r := newRelay(t, b.URL)
	c, err := client.New([]string{r.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	j := newJudge(t)
	stop := runs(t, consumer(t, c, "orders", "g", client.WithConcurrency(8), client.WithPrefetch(64)), func(ctx context.Context, d *client.Delivery) error {
		number := j.begin(d)
		ok := false
		defer func() { j.finish(d, ok) }()
		if number%17 == 3 && d.Attempt == 1 {
			return fmt.Errorf("the first attempt fails")
		}
		ok = true // even if ctx ended meanwhile: it is done
		return nil
	})
	const keys, each = 25, 120
	p := publisher(t, c, "orders")
	var producing sync.WaitGroup
	producing.Go(func() {
		for i := range keys * each {
			p.PublishAsync(within(t), client.Message{Key: fmt.Sprint("k", i%keys), Body: fmt.Append(nil, i/keys)}, func(_ client.Receipt, err error) {
				if err != nil {
					t.Error(err)
				}
			})
			if i%10 == 0 {
				time.Sleep(time.Millisecond) // so that there is something to break for a while
			}
		}
	})
	for i, mark := range []int{200, 500, 800, 1200, 1600, 2000, 2400, 2800} {
		until(t, fmt.Sprint(mark, " handled"), func() bool { return j.total() >= mark })
		if i%3 != 1 {
			r.cut()
			continue
		}
		b.Restart(t)
		r.lead(t, b.URL)
		r.cut()
	}
	producing.Wait()
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	until(t, "all", func() bool { return counts(t, b.Client, "orders", "g").GetLag() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := counts(t, b.Client, "orders", "g"); n.GetLag() != 0 || n.GetDead() != 0 {
		t.Errorf("at the end: %v", n)
	}
	if n := stored(t, b.Client, "orders"); n != keys*each || j.total() != keys*each {
		t.Errorf("%d stored and %d handled of %d", n, j.total(), keys*each)
	}
}

// What a handler published because of a message is stored once, though the
// message comes again.
func TestDerivedIDs(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "in", 2)
	b.Topic(t, "out", 2)
	group(t, b.Client, "in", "g", &strandmqv1.GroupPolicy{BackoffMs: ptr(int64(1)), BreakerFailedPercent: ptr(uint32(0))})
	publishes(t, b.Client, "in", 20, 5)
	out := publisher(t, b.Client, "out")
	stop := runs(t, consumer(t, b.Client, "in", "g"), func(ctx context.Context, d *client.Delivery) error {
		for n := range 2 {
			r, err := out.Publish(ctx, client.Message{Key: d.Key, ID: d.DerivedID(n), Body: d.Body})
			if err != nil {
				return err
			}
			if r.Duplicate != (d.Attempt > 1) {
				t.Errorf("attempt %d: duplicate is %t", d.Attempt, r.Duplicate)
			}
		}
		if d.Attempt < 3 {
			return fmt.Errorf("fails after it published")
		}
		return nil
	})
	until(t, "all", func() bool { return counts(t, b.Client, "in", "g").GetLag() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := out.Close(within(t)); err != nil {
		t.Error(err)
	}
	if n := stored(t, b.Client, "out"); n != 40 {
		t.Errorf("%d messages came out, want 40", n)
	}
}
