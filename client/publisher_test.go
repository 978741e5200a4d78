package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/client/strandmqtest"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func publisher(t testing.TB, c *client.Client, topic string, opts ...client.PublisherOption) *client.Publisher {
	t.Helper()
	p, err := c.Publisher(within(t), topic, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Receipts tell where messages are; what one goroutine publishes for a key is
// stored in that order; ids and sequences keep it from being stored twice.
func TestPublish(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 4)
	p := publisher(t, b.Client, "orders")
	next := map[uint32]uint64{}
	for i := range 5 {
		r, err := p.Publish(within(t), client.Message{Key: "alice", ID: fmt.Sprint("a-", i), Headers: []client.Header{{"n", fmt.Sprint(i)}}, Body: []byte("x")})
		if err != nil || r.Duplicate || r.Offset != next[r.Partition] {
			t.Fatalf("message %d: %+v, %v; want offset %d", i, r, err, next[r.Partition])
		}
		next[r.Partition]++
	}
	again, err := p.Publish(within(t), client.Message{Key: "alice", ID: "a-0", Body: []byte("x")})
	if err != nil || !again.Duplicate || again.Offset != 0 {
		t.Errorf("an id again: %+v, %v", again, err)
	}
	if _, err := p.Publish(within(t), client.Message{Key: "alice", ID: "a-0", Body: []byte("other")}); !errors.Is(err, client.ErrIDReused) {
		t.Errorf("an id with another body: %v", err)
	}
	// Each key's messages, published without waiting, keep their order.
	var mu sync.Mutex
	offsets := map[string][]uint64{}
	for i := range 3000 {
		key := fmt.Sprint("k", i%30)
		p.PublishAsync(within(t), client.Message{Key: key, Body: fmt.Append(nil, i)}, func(r client.Receipt, err error) {
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			offsets[key] = append(offsets[key], r.Offset)
		})
	}
	if err := p.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	for key, list := range offsets {
		for i, o := range list {
			if len(list) != 100 || i > 0 && o <= list[i-1] {
				t.Fatalf("key %s: offsets %v", key, list)
			}
		}
	}
	mu.Unlock()
	for range 40 { // without a key: anywhere
		if _, err := p.Publish(within(t), client.Message{Body: []byte("loose")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if n := stored(t, b.Client, "orders"); n != 3045 {
		t.Errorf("%d messages are stored, want 3045", n)
	}
	if _, err := p.Publish(within(t), client.Message{}); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// What is wrong with a message is told with its reason, and stops no other.
func TestPublishRefusals(t *testing.T) {
	b := strandmqtest.Start(t)
	if _, err := b.Client.Publisher(within(t), "none"); !errors.Is(err, client.ErrUnknownTopic) || client.Retryable(err) {
		t.Errorf("no topic: %v", err)
	}
	if _, err := b.Client.Publisher(within(t), "a b"); !errors.Is(err, client.ErrBadName) {
		t.Errorf("a bad name: %v", err)
	}
	if _, err := b.Client.Admin().CreateTopic(within(t), &strandmqv1.CreateTopicRequest{Topic: "small", Partitions: 1, Config: &strandmqv1.TopicConfig{MaxBodyBytes: ptr(int64(100))}}); err != nil {
		t.Fatal(err)
	}
	p := publisher(t, b.Client, "small")
	if _, err := p.Publish(within(t), client.Message{ID: "taken"}); err != nil {
		t.Fatal(err)
	}
	// Each says what is wrong in the words of client.Message.
	for name, c := range map[string]struct {
		m    client.Message
		want client.Reason
		says string
	}{
		"key":             {client.Message{Key: strings.Repeat("k", 5000)}, client.ErrBadKey, "strandmq: Key: the key has 5000 bytes; at most 4096 are stored (BAD_KEY)"},
		"id":              {client.Message{ID: "a\nb"}, client.ErrBadID, "strandmq: ID: message id"},
		"headers[0].name": {client.Message{Headers: []client.Header{{"a b", ""}}}, client.ErrBadHeader, "strandmq: Headers[0].Name: header name"},
		"headers":         {client.Message{Headers: []client.Header{{"a", strings.Repeat("x", 20_000)}}}, client.ErrBadHeader, "strandmq: Headers: the header list has 20001 bytes"},
		"body":            {client.Message{Body: make([]byte, 101)}, client.ErrBodyTooLarge, "strandmq: Body: it has 101 bytes"},
		"i":               {client.Message{ID: "taken", Body: []byte("other")}, client.ErrIDReused, `strandmq: ID: message id "taken" is taken`},
	} {
		_, err := p.Publish(within(t), c.m)
		var e *client.Error
		if !errors.Is(err, c.want) || !errors.As(err, &e) || !strings.HasPrefix(e.Field, name) || !strings.HasPrefix(err.Error(), c.says) {
			t.Errorf("%s: %v, field %q", name, err, e.Field)
		}
		if _, err := p.Publish(within(t), client.Message{Key: "k", Body: []byte("fine")}); err != nil {
			t.Errorf("after a bad %s: %v", name, err)
		}
	}
	// A limit that is lowered meanwhile is found by the broker, which refuses the
	// batch; what comes behind it is stored.
	if _, err := b.Client.Admin().AlterTopic(within(t), &strandmqv1.AlterTopicRequest{Topic: "small", Config: &strandmqv1.TopicConfig{MaxBodyBytes: ptr(int64(10))}}); err != nil {
		t.Fatal(err)
	}
	before := stored(t, b.Client, "small")
	var refused, fine atomic.Int64
	for i := range 200 {
		m := client.Message{Key: "k", Body: []byte("short")}
		if i%20 == 7 {
			m.Body = make([]byte, 11)
		}
		// Each is a batch of its own, many on their way at once.
		p.PublishAsync(within(t), m, func(_ client.Receipt, err error) {
			switch {
			case err == nil:
				fine.Add(1)
			case errors.Is(err, client.ErrBodyTooLarge):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if n := stored(t, b.Client, "small") - before; refused.Load() < 10 || refused.Load()+fine.Load() != 200 || n != uint64(fine.Load()) {
		t.Errorf("%d refused, %d with receipts, %d stored", refused.Load(), fine.Load(), n)
	}
}

// Whatever breaks while messages are on their way, each is stored once, and each
// key's in the order sent.
func TestPublishThroughCuts(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 3)
	r := newRelay(t, b.URL)
	c, err := client.New([]string{r.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	p := publisher(t, c, "orders", client.WithBatchBytes(1<<10))
	const messages, keys = 4000, 20
	type receipt struct {
		partition uint32
		offset    uint64
	}
	got := make([]receipt, messages)
	var told atomic.Int64
	cuts := 0
	for i := range messages {
		p.PublishAsync(within(t), client.Message{Key: fmt.Sprint("k", i%keys), Body: fmt.Append(nil, i)}, func(at client.Receipt, err error) {
			if err != nil {
				t.Error(err)
			}
			got[i] = receipt{at.Partition, at.Offset}
			told.Add(1)
		})
		// Cut among what is on its way, and again only when more got through, or it would
		// never end.
		if i%400 == 399 {
			for told.Load() < int64(i-300) {
				time.Sleep(time.Millisecond) // between two looks
			}
			cuts += r.cut()
		}
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if n := stored(t, b.Client, "orders"); n != messages || told.Load() != messages {
		t.Errorf("%d stored and %d told of %d", n, told.Load(), messages)
	}
	seen := map[receipt]bool{}
	for i, at := range got {
		if seen[at] {
			t.Fatalf("two messages at %v", at)
		}
		seen[at] = true
		if i >= keys && (got[i-keys].partition != at.partition || got[i-keys].offset >= at.offset) {
			t.Fatalf("key k%d: message %d is at %v, the one before it at %v", i%keys, i, at, got[i-keys])
		}
	}
	t.Logf("%d connections cut", cuts)
	if cuts == 0 {
		t.Error("nothing was cut")
	}
}

// While the broker takes nothing, what waits here is bounded, and callers wait.
func TestBackpressure(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 2)
	r := newRelay(t, b.URL)
	c, err := client.New([]string{r.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	const most, body = 64 << 10, 1 << 10
	p := publisher(t, c, "orders", client.WithMaxInFlight(most))
	r.hold()
	var receipts atomic.Int64
	done := func(_ client.Receipt, err error) {
		if err == nil {
			receipts.Add(1)
		}
	}
	taken := 0
	for ; ; taken++ {
		ctx, cancel := context.WithTimeout(within(t), 2*time.Second) // what has room is taken within that
		var refused error
		p.PublishAsync(ctx, client.Message{Key: fmt.Sprint(taken), Body: make([]byte, body)}, func(at client.Receipt, err error) {
			if errors.Is(err, context.DeadlineExceeded) {
				refused = err // before PublishAsync returns
				return
			}
			done(at, err)
		})
		cancel()
		if refused != nil {
			break
		}
		if taken > most/body {
			t.Fatalf("%d messages of %d bytes were taken, with room for %d bytes", taken, body, most)
		}
	}
	if taken < most/body/2 {
		t.Errorf("only %d messages of %d bytes were taken, with room for %d bytes", taken, body, most)
	}
	ctx, cancel := context.WithTimeout(within(t), 10*time.Millisecond)
	defer cancel()
	if err := p.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Flush while nothing passes: %v", err)
	}
	if receipts.Load() > 0 {
		t.Errorf("%d receipts although nothing passed", receipts.Load())
	}
	r.pass()
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if n := stored(t, b.Client, "orders"); n != uint64(taken) || receipts.Load() != int64(taken) {
		t.Errorf("%d stored, %d receipts, of %d", n, receipts.Load(), taken)
	}
}

// Whoever does not wait to the end is told what is not known.
func TestPublishGivenUp(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	r := newRelay(t, b.URL)
	c, err := client.New([]string{r.URL})
	if err != nil {
		t.Fatal(err)
	}
	p := publisher(t, c, "orders")
	r.hold()
	// What was not sent yet when its time was over is known: it was not stored. A busy
	// machine takes longer until it is sent.
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		if wait > soon {
			t.Fatal("it is not sent")
		}
		ctx, cancel := context.WithTimeout(within(t), wait)
		_, err := p.Publish(ctx, client.Message{Key: "k"})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v", err)
		}
		if errors.Is(err, client.ErrOutcomeUnknown) {
			break
		}
	}
	var last error
	p.PublishAsync(within(t), client.Message{Key: "k"}, func(_ client.Receipt, err error) { last = err })
	if err := c.Close(); err != nil { // without Flush
		t.Fatal(err)
	}
	if !errors.Is(last, client.ErrClosed) {
		t.Errorf("a message on its way when the client was closed: %v", last)
	}
	if _, err := p.Publish(within(t), client.Message{}); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := c.Publisher(within(t), "orders"); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
