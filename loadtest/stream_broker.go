package loadtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/strandmq/strandmq/internal/keyspace"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// streams is a Broker over streams: each producer publishes on one of its own,
// pipelined, and each session is one. What is no data goes by unary calls.
type streams struct {
	*unary
	c      Config
	run    string // in the ids of producers
	number atomic.Uint64
}

// Streams speaks to the broker at a URL, such as http://127.0.0.1:7171, over
// streams. Nothing is sent until the first call. close ends the connections that
// are left, but for those of publishers and sessions, which end by themselves.
func Streams(server string, c Config) (b Broker, close func()) {
	u, done := Unary(server, c)
	id := uuid.New()
	return &streams{unary: u.(*unary), c: c.withDefaults(), run: "loadtest-" + id.String()[:13]}, done
}

func (b *streams) Publisher(topic string) Publisher {
	p := &streamPublisher{b: b, topic: topic, numbers: map[uint64]*part{}}
	p.producer = fmt.Sprintf("%s-%d", b.run, b.number.Add(1))
	p.moved.L = &p.mu
	p.dial, p.hangUp = context.WithCancel(context.Background())
	return p
}

// routing is a topic's table for a publisher.
type routing struct {
	seed   uint64
	ranges []keyspace.Range
}

func newRouting(r *strandmqv1.RouteResponse) (*routing, error) {
	t := &routing{seed: r.GetSeed()}
	for i, p := range r.GetPartitions() {
		t.ranges = append(t.ranges, keyspace.Range{First: p.GetHashFirst(), Last: p.GetHashLast()})
		if p.GetPartition() != uint32(i) {
			return nil, fmt.Errorf("the broker's table of topic %s has partition %d in place %d", r.GetTopic(), p.GetPartition(), i)
		}
	}
	if err := keyspace.Check(t.ranges); err != nil {
		return nil, fmt.Errorf("the broker's table of topic %s: %w", r.GetTopic(), err)
	}
	return t, nil
}

// of finds the partition of a hash.
func (t *routing) of(hash uint64) uint32 {
	low, high := 0, len(t.ranges)-1
	for low < high {
		if mid := (low + high) / 2; t.ranges[mid].Last < hash {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return uint32(low)
}

// waitFor waits until a condition holds or ctx ends. c.L is locked.
func waitFor(ctx context.Context, c *sync.Cond, holds func() bool) error {
	defer context.AfterFunc(ctx, func() {
		c.L.Lock()
		defer c.L.Unlock()
		c.Broadcast()
	})()
	for !holds() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.Wait()
	}
	return nil
}

// ended is what a session says whose stream has ended.
func ended(err error, server string) error {
	err = explainStream(err, server)
	var r *Refusal
	if errors.As(err, &r) && !r.Passing && r.Reason != "SESSION_ENDED" {
		return err // another session would fare no better
	}
	return &Refusal{Reason: "SESSION_ENDED", Text: fmt.Sprintf("the session's stream ended: %v", err)}
}
