package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/client/strandmqtest"
	"github.com/strandmq/strandmq/internal/heldport"
)

// anew deletes a topic and makes another one of its name.
func anew(t testing.TB, b *strandmqtest.Broker, topic string, partitions uint32) {
	t.Helper()
	if err := b.Client.Admin().DeleteTopic(within(t), topic, topic); err != nil {
		t.Fatal(err)
	}
	b.Topic(t, topic, partitions)
}

// A topic is deleted and made anew beneath a publisher: what has no receipt goes to the new
// one, in the order of each key, each message once. What has one keeps it.
func TestPublishToATopicMadeAnew(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 3)
	r := newRelay(t, b.URL)
	c, err := client.New([]string{r.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	p := publisher(t, c, "orders", client.WithBatchBytes(1<<10))
	var told atomic.Int64
	const messages, keys = 500, 10
	publish := func(first int) {
		for i := range messages {
			m := client.Message{Key: fmt.Sprint("k", i%keys), Body: fmt.Append(nil, first+i)}
			switch i % 4 {
			case 1:
				m.ID = fmt.Sprint("id ", first+i)
			case 2:
				m.Key = ""
			}
			p.PublishAsync(within(t), m, func(_ client.Receipt, err error) {
				if err != nil {
					t.Errorf("message %d: %v", first+i, err)
				}
				told.Add(1)
			})
		}
	}
	publish(0)
	if err := p.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	for round, partitions := range []uint32{2, 5} {
		r.hold()
		publish(1000 * (round + 1))
		anew(t, b, "orders", partitions)
		publish(1000*(round+1) + messages)
		r.pass()
		if err := p.Flush(within(t)); err != nil {
			t.Fatal(err)
		}
		if n := stored(t, b.Client, "orders"); n != 2*messages {
			t.Errorf("the topic with %d partitions has %d messages, want %d", partitions, n, 2*messages)
		}
		last := map[string]int{}
		for at := range partitions {
			page, err := b.Client.Read(within(t), client.Place{Topic: "orders", Partition: at}, 1000, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range page.Messages {
				var n int
				_, _ = fmt.Sscan(string(m.Body), &n)
				if m.Key != "" && n <= last[m.Key] {
					t.Errorf("message %d of %s stands behind %d", n, m.Key, last[m.Key])
				}
				last[m.Key] = n
			}
		}
	}
	if n := told.Load(); n != 5*messages {
		t.Errorf("%d were told of %d", n, 5*messages)
	}
	// While there is none of the name, messages are refused, and the publisher lives.
	if err := b.Client.Admin().DeleteTopic(within(t), "orders", "orders"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish(within(t), client.Message{Key: "k"}); !errors.Is(err, client.ErrUnknownTopic) {
		t.Errorf("no topic: %v", err)
	}
	b.Topic(t, "orders", 1)
	if _, err := p.Publish(within(t), client.Message{Key: "k"}); err != nil {
		t.Error(err)
	}
}

// Run ends when its topic is deleted, whether another one takes the name or not. A consumer
// that was away meanwhile goes on with the one that it finds, and takes no message of it for one
// that it handled before.
func TestConsumeATopicMadeAnew(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 2)
	r := newRelay(t, b.URL)
	c, err := client.New([]string{r.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	var handled atomic.Int64
	count := func(context.Context, *client.Delivery) error { handled.Add(1); return nil }

	over := make(chan error, 1)
	go func() {
		over <- consumer(t, b.Client, "orders", "g", client.WithCreateGroup()).Run(within(t), count)
	}()
	publishes(t, b.Client, "orders", 20, 5)
	until(t, "the first topic's messages", func() bool { return handled.Load() == 20 })
	anew(t, b, "orders", 2)
	select {
	case err := <-over:
		if !errors.Is(err, client.ErrUnknownTopic) {
			t.Errorf("its topic was deleted: %v", err)
		}
	case <-time.After(soon):
		t.Fatal("Run goes on without its topic")
	}

	handled.Store(0)
	stop := runs(t, consumer(t, c, "orders", "g", client.WithCreateGroup()), count)
	publishes(t, b.Client, "orders", 20, 5)
	until(t, "the second topic's messages", func() bool { return handled.Load() == 20 })
	r.lead(t, "http://"+heldport.Address(t)) // a port that nothing listens on
	r.cut()
	anew(t, b, "orders", 2)
	publishes(t, b.Client, "orders", 20, 5)
	r.lead(t, b.URL)
	until(t, "the third topic's messages", func() bool { return handled.Load() == 40 })
	if err := stop(); err != nil {
		t.Error(err)
	}
}
