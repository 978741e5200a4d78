package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/client/strandmqtest"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// example gives the examples a broker, with topics. Yours is at an address.
func example(topics ...string) (server string, end func()) {
	b, err := strandmqtest.Open()
	if err != nil {
		log.Fatal(err)
	}
	for _, topic := range topics {
		if _, err := b.Client.Admin().CreateTopic(context.Background(), &strandmqv1.CreateTopicRequest{Topic: topic}); err != nil {
			log.Fatal(err)
		}
	}
	return b.URL, func() {
		if err := b.Close(); err != nil {
			log.Fatal(err)
		}
	}
}

// Publish waits until the message is on disk.
func ExamplePublisher_Publish() {
	server, end := example("orders")
	defer end()
	ctx := context.Background()

	c, err := client.Dial(ctx, []string{server})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	p, err := c.Publisher(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		r, err := p.Publish(ctx, client.Message{Key: "alice", ID: "order-17", Body: []byte(`{"total": 12}`)})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("offset", r.Offset, "duplicate", r.Duplicate)
	}
	if err := p.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// offset 0 duplicate false
	// offset 0 duplicate true
}

// PublishAsync is for many: batches go out without waiting for the answers before.
func ExamplePublisher_PublishAsync() {
	server, end := example("orders")
	defer end()
	ctx := context.Background()
	c, err := client.New([]string{server})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	p, err := c.Publisher(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex
	stored := 0
	for i := range 10_000 {
		p.PublishAsync(ctx, client.Message{Key: fmt.Sprint("customer-", i%100), Body: []byte("…")}, func(_ client.Receipt, err error) {
			if err != nil {
				log.Print(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			stored++
		})
	}
	if err := p.Close(ctx); err != nil { // which flushes
		log.Fatal(err)
	}
	fmt.Println(stored, "stored")
	// Output: 10000 stored
}

// A handler's result decides: nil acks, an error tries again, Reject gives up.
func ExampleConsumer_Run() {
	server, end := example("orders")
	defer end()
	ctx := context.Background()
	c, err := client.New([]string{server})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	p, err := c.Publisher(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	for _, body := range []string{"first", "second", "bad", "last"} {
		if _, err := p.Publish(ctx, client.Message{Key: "alice", Body: []byte(body)}); err != nil {
			log.Fatal(err)
		}
	}

	x, err := c.Consumer("orders", "billing", client.WithCreateGroup(), client.WithConcurrency(32))
	if err != nil {
		log.Fatal(err)
	}
	// In a program: signal.NotifyContext. When it ends, Run drains and returns nil.
	run, stop := context.WithCancel(ctx)
	err = x.Run(run, func(_ context.Context, d *client.Delivery) error {
		fmt.Printf("%s, attempt %d\n", d.Body, d.Attempt)
		switch string(d.Body) {
		case "second":
			if d.Attempt == 1 {
				return errors.New("the bank is closed") // comes again, before "last"
			}
		case "bad":
			return client.Reject(errors.New("no amount")) // a dead letter
		case "last":
			stop()
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// first, attempt 1
	// second, attempt 1
	// second, attempt 2
	// bad, attempt 1
	// last, attempt 1
}

// A pipeline: what a handler publishes under derived ids is stored once, however
// often the handler runs.
func ExampleDelivery_DerivedID() {
	server, end := example("orders", "invoices")
	defer end()
	ctx := context.Background()
	c, err := client.New([]string{server})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	orders, err := c.Publisher(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := orders.Publish(ctx, client.Message{Key: "alice", Body: []byte("12")}); err != nil {
		log.Fatal(err)
	}

	invoices, err := c.Publisher(ctx, "invoices")
	if err != nil {
		log.Fatal(err)
	}
	x, err := c.Consumer("orders", "billing", client.WithCreateGroup())
	if err != nil {
		log.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	err = x.Run(run, func(ctx context.Context, d *client.Delivery) error {
		r, err := invoices.Publish(ctx, client.Message{Key: d.Key, ID: d.DerivedID(0), Body: []byte("pay " + string(d.Body))})
		if err != nil {
			return err
		}
		fmt.Println("attempt", d.Attempt, "invoice at offset", r.Offset, "duplicate", r.Duplicate)
		if d.Attempt == 1 {
			return errors.New("failed after the invoice was stored")
		}
		stop()
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// attempt 1 invoice at offset 0 duplicate false
	// attempt 2 invoice at offset 0 duplicate true
}

// What a partition keeps is read without a group, page by page.
func ExampleClient_Read() {
	server, end := example("orders")
	defer end()
	ctx := context.Background()
	c, err := client.New([]string{server})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	p, err := c.Publisher(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	var at client.Place
	for _, body := range []string{"12", "7"} {
		r, err := p.Publish(ctx, client.Message{Key: "alice", Body: []byte(body)})
		if err != nil {
			log.Fatal(err)
		}
		at = client.Place{Topic: "orders", Partition: r.Partition}
	}

	for {
		page, err := c.Read(ctx, at, 1, 0)
		if err != nil {
			log.Fatal(err)
		}
		if len(page.Messages) == 0 {
			break // its end, for now
		}
		for _, m := range page.Messages {
			fmt.Println(m.Offset, m.Key, string(m.Body))
		}
		at.Offset = page.Next
	}
	// Output:
	// 0 alice 12
	// 1 alice 7
}

// Every refusal has a reason, a field, and words for people.
func ExampleError() {
	server, end := example("orders")
	defer end()
	ctx := context.Background()
	c, err := client.New([]string{server})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	_, err = c.Publisher(ctx, "order")
	fmt.Println(errors.Is(err, client.ErrUnknownTopic), client.Retryable(err))

	p, err := c.Publisher(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	_, err = p.Publish(ctx, client.Message{ID: "two\nlines"})
	var e *client.Error
	if errors.As(err, &e) {
		fmt.Println(string(e.Reason), "in", e.Field)
	}
	// Output:
	// true false
	// BAD_ID in id
}
