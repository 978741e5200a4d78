// Command go publishes, consumes and settles with the Go client.
//
//	STRANDMQ_SERVER ──► topic ──► publish three, twice ──► handler, acked ──► topic deleted
//
// The topic is made anew each time and deleted at the end. What comes out is three
// receipts, three that say duplicate since the ids were the same, and the messages in
// the order of their keys. The client goes on by itself when a connection breaks or a
// node stops; what it gives up is an error with a reason of docs/errors.md. See
// docs/client.md for what else it does.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync/atomic"

	"github.com/strandmq/strandmq/client"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	server := os.Getenv("STRANDMQ_SERVER")
	if server == "" {
		server = "http://127.0.0.1:7171"
	}
	c, err := client.New([]string{server})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	topic := fmt.Sprintf("example-go-%d", os.Getpid())
	if _, err := c.Admin().CreateTopic(ctx, &strandmqv1.CreateTopicRequest{Topic: topic, Partitions: 2}); err != nil {
		return err
	}

	p, err := c.Publisher(ctx, topic)
	if err != nil {
		return err
	}
	messages := []client.Message{
		{Key: "alice", ID: "a-1", Body: []byte("twelve apples")},
		{Key: "alice", ID: "a-2", Body: []byte("seven pears")},
		{Key: "bob", ID: "b-1", Body: []byte{0xff}},
	}
	for _, what := range []string{"stored", "sent again"} { // under the same ids nothing is stored twice
		for _, m := range messages {
			r, err := p.Publish(ctx, m)
			if err != nil {
				return err
			}
			fmt.Println(what, r.Partition, r.Offset, "duplicate:", r.Duplicate)
		}
	}
	if err := p.Close(ctx); err != nil {
		return err
	}

	x, err := c.Consumer(topic, "billing", client.WithCreateGroup())
	if err != nil {
		return err
	}
	// In a program that runs on: signal.NotifyContext.
	running, stop := context.WithCancel(ctx)
	defer stop()
	var handled atomic.Int64
	err = x.Run(running, func(_ context.Context, d *client.Delivery) error {
		fmt.Printf("got %s %q\n", d.Key, d.Body)
		if handled.Add(1) == int64(len(messages)) {
			stop() // what the handlers return still counts
		}
		return nil // acked
	})
	if err != nil {
		return err
	}
	if err := c.Admin().DeleteTopic(ctx, topic, topic); err != nil { // the name is given twice
		return err
	}
	fmt.Printf("done: %d acked\n", handled.Load())
	return nil
}
