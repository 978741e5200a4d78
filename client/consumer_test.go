package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/client/strandmqtest"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func consumer(t testing.TB, c *client.Client, topic, group string, opts ...client.ConsumerOption) *client.Consumer {
	t.Helper()
	x, err := c.Consumer(topic, group, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// publishes publishes n messages over some keys: message i has key k(i mod keys)
// and its number as body.
func publishes(t testing.TB, c *client.Client, topic string, n, keys int) {
	t.Helper()
	p := publisher(t, c, topic)
	for i := range n {
		p.PublishAsync(within(t), client.Message{Key: fmt.Sprint("k", i%keys), Body: fmt.Append(nil, i)}, func(_ client.Receipt, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
}

// What was published comes as it was.
func TestConsume(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 4)
	group(t, b.Client, "orders", "g", nil)
	p := publisher(t, b.Client, "orders")
	sent := client.Message{Key: "\xffkey", ID: "i-1", Headers: []client.Header{{"a", "1"}, {"a", "\xfe"}, {"b", ""}}, Body: []byte("body")}
	before := time.Now().Add(-time.Second)
	at, err := p.Publish(within(t), sent)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *client.Delivery, 1)
	stop := runs(t, consumer(t, b.Client, "orders", "g"), func(_ context.Context, d *client.Delivery) error {
		got <- d
		return nil
	})
	d := <-got
	if fmt.Sprint(d.Message) != fmt.Sprint(sent) || d.Topic != "orders" || d.Group != "g" || d.Partition != at.Partition || d.Offset != at.Offset ||
		d.Attempt != 1 || d.Replayed || d.PublishTime.Before(before) || d.FirstSeen.Before(before) || d.Fence == 0 {
		t.Errorf("%+v", d)
	}
	until(t, "the ack", func() bool { return counts(t, b.Client, "orders", "g").GetLag() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// Different keys are handled beside each other, as many as there are handlers;
// one key's messages never, and in order.
func TestConcurrencyAcrossKeys(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 4)
	group(t, b.Client, "orders", "g", nil)
	const keys, each = 8, 50
	publishes(t, b.Client, "orders", keys*each, keys)
	var mu sync.Mutex
	busy, last, most, all := map[string]bool{}, map[string]int{}, 0, 0
	together := make(chan struct{}) // closed when all keys are handled at once
	stop := runs(t, consumer(t, b.Client, "orders", "g", client.WithConcurrency(keys)), func(_ context.Context, d *client.Delivery) error {
		var n int
		_, _ = fmt.Sscan(string(d.Body), &n)
		mu.Lock()
		if busy[d.Key] {
			t.Errorf("two messages of %s at once", d.Key)
		}
		if n < last[d.Key] {
			t.Errorf("%s: %d after %d", d.Key, n, last[d.Key])
		}
		busy[d.Key], last[d.Key] = true, n
		if most = max(most, len(busy)); len(busy) == keys {
			select {
			case <-together:
			default:
				close(together)
			}
		}
		mu.Unlock()
		select {
		case <-together:
		case <-time.After(soon):
		}
		mu.Lock()
		defer mu.Unlock()
		delete(busy, d.Key)
		all++
		return nil
	})
	until(t, "all", func() bool { return counts(t, b.Client, "orders", "g").GetLag() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if most != keys || all != keys*each {
		t.Errorf("at most %d keys at once, %d messages", most, all)
	}
}

// What a handler returns decides.
func TestVerdicts(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	group(t, b.Client, "orders", "g", &strandmqv1.GroupPolicy{MaxAttempts: ptr(uint32(3)), BackoffMs: ptr(int64(1)), BreakerFailedPercent: ptr(uint32(0))})
	p := publisher(t, b.Client, "orders")
	for _, key := range []string{"fine", "fails", "panics", "rejected", "later", "goes", "leaves"} {
		if _, err := p.Publish(within(t), client.Message{Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	attempts := map[string]uint32{}
	stop := runs(t, consumer(t, b.Client, "orders", "g"), func(ctx context.Context, d *client.Delivery) error {
		mu.Lock()
		attempts[d.Key] = d.Attempt
		mu.Unlock()
		switch d.Key {
		case "fails":
			return errors.New("no funds")
		case "panics":
			panic("no hands")
		case "rejected":
			return fmt.Errorf("wrapped: %w", client.Reject(errors.New("no such account")))
		case "later":
			if d.Attempt == 1 {
				return client.RetryAfter(time.Millisecond, errors.New("busy"))
			}
		case "goes":
			if d.Attempt == 1 {
				panic(nil) //nolint:govet // as a handler might
			}
		case "leaves":
			if d.Attempt == 1 {
				runtime.Goexit()
			}
		}
		return nil
	})
	until(t, "all", func() bool {
		n := counts(t, b.Client, "orders", "g")
		return n.GetLag() == 0 && n.GetDead() == 3
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
	want := map[string]uint32{"fine": 1, "fails": 3, "panics": 3, "rejected": 1, "later": 2, "goes": 2, "leaves": 2}
	if fmt.Sprint(attempts) != fmt.Sprint(want) {
		t.Errorf("attempts %v, want %v", attempts, want)
	}
}

// What is settled is told, also while every handler is busy, more waits, and nothing comes.
func TestSettlesWhileHandlersRun(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	group(t, b.Client, "orders", "g", &strandmqv1.GroupPolicy{AckDeadlineMs: ptr((10 * time.Minute).Milliseconds())}) // nothing has to be extended
	publishes(t, b.Client, "orders", 5, 5)
	var handled atomic.Int32
	settled := make(chan struct{})
	stop := runs(t, consumer(t, b.Client, "orders", "g", client.WithConcurrency(1)), func(context.Context, *client.Delivery) error {
		if handled.Add(1) == 2 {
			<-settled
		}
		return nil
	})
	until(t, "the ack of the first", func() bool { return counts(t, b.Client, "orders", "g").GetLag() == 4 })
	close(settled)
	until(t, "all", func() bool { return counts(t, b.Client, "orders", "g").GetLag() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A handler may take longer than the ack deadline: its delivery is extended, and
// so are those that wait for a handler.
func TestExtend(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	const deadline = 6 * time.Second // half of it is slack for a machine under load
	group(t, b.Client, "orders", "g", &strandmqv1.GroupPolicy{AckDeadlineMs: ptr(deadline.Milliseconds())})
	publishes(t, b.Client, "orders", 3, 3)
	var attempts atomic.Uint32
	stop := runs(t, consumer(t, b.Client, "orders", "g", client.WithConcurrency(1)), func(ctx context.Context, d *client.Delivery) error {
		attempts.Add(d.Attempt)
		if string(d.Body) != "0" {
			return nil
		}
		select {
		case <-time.After(2 * deadline): // the time that passes is what is tested
		case <-ctx.Done():
			t.Errorf("the handler's context ended: %v", context.Cause(ctx))
		}
		return nil
	})
	until(t, "all", func() bool { return counts(t, b.Client, "orders", "g").GetLag() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if attempts.Load() != 3 {
		t.Errorf("%d attempts for three messages", attempts.Load())
	}
}

// A handler may ask for more than the broker takes: it has as much as there is, and the
// log tells.
func TestRetryAfterTooLong(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	group(t, b.Client, "orders", "g", &strandmqv1.GroupPolicy{AckDeadlineMs: ptr(time.Hour.Milliseconds()), MaxHoldMs: ptr(time.Hour.Milliseconds())}) // nothing lapses
	publishes(t, b.Client, "orders", 1, 1)
	var told atomic.Bool
	c, err := client.New([]string{b.URL}, client.WithLogger(slog.New(tells(func(line string) {
		if strings.Contains(line, "asked=192h0m0s") {
			told.Store(true)
		}
	}))))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	handled := make(chan struct{}, 10)
	stop := runs(t, consumer(t, c, "orders", "g"), func(context.Context, *client.Delivery) error {
		handled <- struct{}{}
		return client.RetryAfter(8*24*time.Hour, errors.New("next week"))
	})
	<-handled
	until(t, "the nack", func() bool { return counts(t, b.Client, "orders", "g").GetInFlight() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if !told.Load() || len(handled) > 0 {
		t.Errorf("the log tells of it: %t; handled %d times more", told.Load(), len(handled))
	}
}

// Beyond the group's max hold a delivery lapses, and its handler is told.
func TestMaxHold(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	group(t, b.Client, "orders", "g", &strandmqv1.GroupPolicy{AckDeadlineMs: ptr(int64(200)), MaxHoldMs: ptr(int64(400)), BackoffMs: ptr(int64(1))})
	publishes(t, b.Client, "orders", 1, 1)
	var running, most atomic.Int32
	stop := runs(t, consumer(t, b.Client, "orders", "g"), func(ctx context.Context, d *client.Delivery) error {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		if d.Attempt > 1 {
			return nil
		}
		select {
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), client.ErrLapsed) {
				t.Errorf("the handler's context ended: %v", context.Cause(ctx))
			}
		case <-time.After(soon):
			t.Error("the handler was not told that its delivery lapsed")
		}
		return ctx.Err()
	})
	until(t, "all", func() bool { return counts(t, b.Client, "orders", "g").GetLag() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if most.Load() != 1 {
		t.Errorf("%d handlers of one message at once", most.Load())
	}
}

// A handler that ended well when its delivery had lapsed for the last time left a dead
// letter. When that is replayed, it is handled again.
func TestReplayIsHandledAgain(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	group(t, b.Client, "orders", "g", &strandmqv1.GroupPolicy{
		AckDeadlineMs: ptr(int64(200)), MaxHoldMs: ptr(int64(400)), MaxAttempts: ptr(uint32(1)), BreakerFailedPercent: ptr(uint32(0)),
	})
	publishes(t, b.Client, "orders", 1, 1)
	var replayed atomic.Int32
	stop := runs(t, consumer(t, b.Client, "orders", "g"), func(ctx context.Context, d *client.Delivery) error {
		if d.Replayed {
			replayed.Add(1)
			return nil
		}
		<-ctx.Done() // and it is done all the same
		return nil
	})
	until(t, "the dead letter", func() bool { return counts(t, b.Client, "orders", "g").GetDead() == 1 })
	// The next time nothing lapses.
	if _, err := b.Client.Admin().AlterGroup(within(t), &strandmqv1.AlterGroupRequest{Topic: "orders", Group: "g", Policy: &strandmqv1.GroupPolicy{
		AckDeadlineMs: ptr(time.Hour.Milliseconds()), MaxHoldMs: ptr(time.Hour.Milliseconds()),
	}}); err != nil {
		t.Fatal(err)
	}
	replays(t, b.URL, "orders", "g")
	until(t, "all", func() bool {
		n := counts(t, b.Client, "orders", "g")
		return n.GetLag() == 0 && n.GetDead() == 0
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := replayed.Load(); n != 1 {
		t.Errorf("what was replayed was handled %d times", n)
	}
}

// A consumer that ends keeps what its handlers have, and nothing else: another member
// has the rest of its keys while they run. What it gives back does not come to it again.
func TestDrainMovesTheKeys(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	group(t, b.Client, "orders", "g", &strandmqv1.GroupPolicy{AckDeadlineMs: ptr(time.Hour.Milliseconds()), MaxHoldMs: ptr(time.Hour.Milliseconds())})
	const before, after = 50, 10
	publishes(t, b.Client, "orders", before, before)
	handling, finish := make(chan struct{}), make(chan struct{})
	ctx, end := context.WithCancel(within(t))
	over := make(chan error, 1)
	go func() {
		over <- consumer(t, b.Client, "orders", "g", client.WithConcurrency(1), client.WithPrefetch(10*before)).Run(ctx, func(context.Context, *client.Delivery) error {
			close(handling) // once
			<-finish
			return nil
		})
	}()
	<-handling
	until(t, "all are handed out", func() bool { return counts(t, b.Client, "orders", "g").GetInFlight() == before })
	var handled, last atomic.Uint64
	stop := runs(t, consumer(t, b.Client, "orders", "g", client.WithConcurrency(1)), func(_ context.Context, d *client.Delivery) error {
		if d.Attempt != 1 {
			t.Errorf("attempt %d of %s", d.Attempt, d.Key)
		}
		last.Store(max(last.Load(), d.Fence))
		handled.Add(1)
		return nil
	})
	until(t, "the other member is there", func() bool { return len(members(t, b.Client, "orders", "g")) == 2 })
	end()
	until(t, "the other has what no handler had", func() bool { return handled.Load() == before-1 })
	publishes(t, b.Client, "orders", after, after)
	// All but those of the one key, of which the first is not handled.
	until(t, "the other has what is new", func() bool { return handled.Load() >= before-1+after-1 })
	drains := 0
	for _, m := range members(t, b.Client, "orders", "g") {
		if m.GetDraining() {
			drains++
			if m.GetInFlight() != 1 || len(m.GetAssignment()) > 0 {
				t.Errorf("the one that drains: %v", m)
			}
		}
	}
	if drains != 1 {
		t.Errorf("%d members drain", drains)
	}
	// Each was handed out once to the one and once to the other.
	if n := last.Load(); n > 2*before+after {
		t.Errorf("%d hand-outs", n)
	}
	close(finish)
	if err := <-over; err != nil {
		t.Error(err)
	}
	until(t, "all", func() bool { return counts(t, b.Client, "orders", "g").GetLag() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A consumer that ends gives back what no handler has, at once, and its handlers
// finish.
func TestDrainReleases(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 2)
	group(t, b.Client, "orders", "g", &strandmqv1.GroupPolicy{MaxAttempts: ptr(uint32(1))})
	const messages = 50
	publishes(t, b.Client, "orders", messages, messages)
	handling, finish := make(chan struct{}), make(chan struct{})
	ctx, end := context.WithCancel(within(t))
	over := make(chan error, 1)
	go func() {
		over <- consumer(t, b.Client, "orders", "g", client.WithConcurrency(1), client.WithPrefetch(messages)).Run(ctx, func(ctx context.Context, d *client.Delivery) error {
			close(handling)
			<-finish
			return ctx.Err() // which has not ended
		})
	}()
	<-handling
	until(t, "all are handed out", func() bool { return counts(t, b.Client, "orders", "g").GetInFlight() == messages })
	end()
	until(t, "what no handler has is given back", func() bool { return counts(t, b.Client, "orders", "g").GetInFlight() == 1 })
	close(finish)
	if err := <-over; err != nil {
		t.Error(err)
	}
	if n := counts(t, b.Client, "orders", "g"); n.GetLag() != messages-1 || n.GetInFlight() != 0 || n.GetDead() != 0 {
		t.Errorf("after the drain: %v", n)
	}
	var first atomic.Int32
	stop := runs(t, consumer(t, b.Client, "orders", "g"), func(_ context.Context, d *client.Delivery) error {
		if d.Attempt == 1 {
			first.Add(1)
		}
		return nil
	})
	until(t, "all", func() bool { return counts(t, b.Client, "orders", "g").GetLag() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if first.Load() != messages-1 {
		t.Errorf("%d of %d came as first attempts", first.Load(), messages-1)
	}
}

// A handler that does not end in the time of the drain is told to; what it then
// gives up costs no attempt.
func TestDrainTimeout(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	group(t, b.Client, "orders", "g", &strandmqv1.GroupPolicy{MaxAttempts: ptr(uint32(1))})
	publishes(t, b.Client, "orders", 1, 1)
	ctx, end := context.WithCancel(within(t))
	err := consumer(t, b.Client, "orders", "g", client.WithDrainTimeout(10*time.Millisecond)).Run(ctx, func(ctx context.Context, _ *client.Delivery) error {
		end()
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), client.ErrDraining) {
			t.Errorf("the handler's context ended: %v", context.Cause(ctx))
		}
		return ctx.Err()
	})
	if err != nil {
		t.Error(err)
	}
	if n := counts(t, b.Client, "orders", "g"); n.GetLag() != 1 || n.GetInFlight() != 0 || n.GetDead() != 0 {
		t.Errorf("after the drain: %v", n)
	}
}

// Going on makes no sense: Run says so.
func TestRunEnds(t *testing.T) {
	b := strandmqtest.Start(t)
	none := func(context.Context, *client.Delivery) error { return nil }
	if err := consumer(t, b.Client, "orders", "g").Run(within(t), none); !errors.Is(err, client.ErrUnknownTopic) {
		t.Errorf("no topic: %v", err)
	}
	b.Topic(t, "orders", 1)
	if err := consumer(t, b.Client, "orders", "g").Run(within(t), none); !errors.Is(err, client.ErrUnknownGroup) {
		t.Errorf("no group: %v", err)
	}
	members := func() int {
		res, err := b.Client.Admin().DescribeGroup(within(t), "orders", "g")
		if err != nil {
			return 0
		}
		return len(res.GetMembers())
	}
	first := consumer(t, b.Client, "orders", "g", client.WithMember("m"), client.WithCreateGroup())
	over := make(chan error, 1)
	go func() { over <- first.Run(within(t), none) }()
	until(t, "the member joins", func() bool { return members() == 1 })
	if err := first.Run(within(t), none); !errors.As(err, new(*client.Error)) {
		t.Errorf("a consumer ran twice at once: %v", err)
	}
	stop := runs(t, consumer(t, b.Client, "orders", "g", client.WithMember("m")), none)
	if err := <-over; !errors.Is(err, client.ErrSessionEnded) {
		t.Errorf("another process of the same name: %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	stop = runs(t, consumer(t, b.Client, "orders", "g"), none)
	until(t, "the member joins", func() bool { return members() == 1 })
	if err := b.Client.Admin().DeleteGroup(within(t), "orders", "g", "h"); !errors.Is(err, client.ErrNotConfirmed) {
		t.Errorf("not confirmed: %v", err)
	}
	if err := b.Client.Admin().DeleteGroup(within(t), "orders", "g", "g"); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil && !errors.Is(err, client.ErrUnknownGroup) {
		t.Errorf("the group was deleted: %v", err)
	}
	if _, err := b.Client.Consumer("orders", "a b"); !errors.Is(err, client.ErrBadName) {
		t.Errorf("a bad name: %v", err)
	}
	// Closing the client ends what it made.
	c, err := client.New([]string{b.URL})
	if err != nil {
		t.Fatal(err)
	}
	x := consumer(t, c, "orders", "h", client.WithCreateGroup())
	go func() { over <- x.Run(within(t), none) }()
	until(t, "the member joins", func() bool {
		res, err := b.Client.Admin().DescribeGroup(within(t), "orders", "h")
		return err == nil && len(res.GetMembers()) == 1
	})
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-over; !errors.Is(err, client.ErrClosed) {
		t.Errorf("Run of a client that was closed: %v", err)
	}
	if _, err := c.Consumer("orders", "h"); !errors.Is(err, client.ErrClosed) {
		t.Errorf("a consumer of a client that was closed: %v", err)
	}
	if err := x.Run(within(t), none); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Run after Close: %v", err)
	}
	if err := x.Run(within(t), nil); !errors.Is(err, client.ErrBadValue) {
		t.Errorf("Run without a handler: %v", err)
	}
}

// The hand-out settles what an at-most-once group gets: a handler may take longer than the
// ack deadline, the messages of one key come one after the other, and those that came are
// handled although the consumer is told to end.
func TestAtMostOnce(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 2)
	group(t, b.Client, "orders", "g", &strandmqv1.GroupPolicy{AtMostOnce: proto.Bool(true), AckDeadlineMs: proto.Int64(1000)})
	const keys, each = 3, 2
	publishes(t, b.Client, "orders", keys*each, keys)
	var mu sync.Mutex
	running, done := map[string]bool{}, map[string]int{}
	begun := make(chan struct{}, keys*each)
	stop := runs(t, consumer(t, b.Client, "orders", "g"), func(ctx context.Context, d *client.Delivery) error {
		begun <- struct{}{}
		mu.Lock()
		if want := fmt.Sprint(d.Key[1:], ":", done[d.Key]); running[d.Key] || fmt.Sprint(number(d)%keys, ":", number(d)/keys) != want {
			t.Errorf("%s came with key %s, after %d; another runs: %v", d.Body, d.Key, done[d.Key], running[d.Key])
		}
		running[d.Key] = true
		mu.Unlock()
		time.Sleep(1500 * time.Millisecond) // longer than the deadline
		if ctx.Err() != nil {
			t.Errorf("%s: the handler is told to end: %v", d.Body, context.Cause(ctx))
		}
		mu.Lock()
		defer mu.Unlock()
		running[d.Key] = false
		done[d.Key]++
		return nil
	})
	<-begun
	until(t, "the hand-outs", func() bool { return counts(t, b.Client, "orders", "g").GetLag() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if got := counts(t, b.Client, "orders", "g"); fmt.Sprint(done) != "map[k0:2 k1:2 k2:2]" || got.GetStale() != 0 {
		t.Errorf("handled %v; %v", done, got)
	}
}

func number(d *client.Delivery) (n int) {
	_, _ = fmt.Sscan(string(d.Body), &n)
	return n
}
