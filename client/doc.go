// Package client is the Go client of StrandMQ: what programs import to publish
// messages, to handle them as a member of a group, and to make topics and groups.
//
//	c, err := client.New([]string{"http://127.0.0.1:7171"})
//
//	p, err := c.Publisher(ctx, "orders")
//	receipt, err := p.Publish(ctx, client.Message{Key: "alice", Body: body})
//
//	x, err := c.Consumer("orders", "billing")
//	err = x.Run(ctx, func(ctx context.Context, d *client.Delivery) error { return bill(ctx, d) })
//
// What happens to a message on its way:
//
//	Publish ─► batch of a partition ─► stream ─► broker ─► stream ─► hand ─► handler
//	   ▲            │                    │                  │ ▲                 │
//	   │            └─ again, in order ◄─┘ broke            │ └─ ack, nack, ◄───┘
//	   └─ receipt: on disk                                  └─── extend, release
//
// It owns the streams (docs/streams.md), what is sent again when they break, and
// which handler may run when. It promises:
//
//   - What one goroutine publishes for one key is stored in that order, each
//     message once, through broken connections, other leaders and restarts. A
//     receipt means on disk.
//   - A consumer has one handler at a time for a key, also when a message comes
//     again while its first handler still runs here.
//   - What is kept in memory is bounded: WithMaxInFlight, WithPrefetch. At the
//     bound, publishing waits.
//   - Close and the end of a context leave no goroutine behind, but for handlers
//     that do not return.
//
// It does not promise that side effects of a handler happen once: a member that is
// cut off cannot know that its message was given to another. Delivery.Fence and
// Delivery.DerivedID are there to make them idempotent.
//
// Every error of a broker is an *Error with a Reason of docs/errors.md:
//
//	if errors.Is(err, client.ErrUnknownTopic) { … }
//
// What passes with time is tried again by itself; Retryable tells of the rest.
// Package strandmqtest starts a broker inside a test.
//
// The files machine_publish.go and machine_consume.go decide, as values without
// lock, clock or network; publisher.go, consumer.go and session.go act.
package client
