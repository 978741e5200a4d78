// Package strandmqtest starts a real broker inside a test: in this process, on a
// folder of the test's own, on a free port of loopback. What is tested against it
// is what runs in production; there is nothing to mock.
//
//	func TestBilling(t *testing.T) {
//		b := strandmqtest.Start(t)
//		b.Topic(t, "orders", 4)
//		p, err := b.Client.Publisher(t.Context(), "orders")
//		…
//	}
//
//	test ─► Start ─► broker ── data folder: t.TempDir()
//	          │         ▲ 127.0.0.1:0
//	          └─► Client┘          both end with the test
//
// It owns the broker's life: it ends with the test, after the client. A test that
// wants to see its program survive a restart calls Restart; one without a
// testing.TB, such as a TestMain, calls Open and Close. It promises what a broker
// promises, fsync included: a test that publishes thousands of messages one by one
// waits for thousands of fsyncs, and has PublishAsync. It refuses nothing else:
// what fails, fails the test.
package strandmqtest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/internal/broker"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Broker is a broker in this process.
type Broker struct {
	// URL is its address, such as http://127.0.0.1:40123. Restart changes it.
	URL string
	// Client speaks to it, and ends with it. After Restart it is a new one.
	Client *client.Client

	dir  string
	made bool // the folder is ours
	b    *broker.Broker
	log  *slog.Logger
}

// Option sets one thing of a broker.
type Option func(*Broker)

// WithLogger takes what broker and client have to tell. Default: nothing is told.
func WithLogger(l *slog.Logger) Option { return func(b *Broker) { b.log = l } }

// WithDir sets the data folder. Default: one of its own, which ends with it.
func WithDir(dir string) Option { return func(b *Broker) { b.dir = dir } }

// startTime bounds a start on a machine under load.
const startTime = time.Minute

// Start starts a broker that ends with the test.
func Start(t testing.TB, opts ...Option) *Broker {
	t.Helper()
	b, err := Open(append([]Option{WithDir(t.TempDir())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Open is Start without a test. Close it.
func Open(opts ...Option) (*Broker, error) {
	b := &Broker{log: slog.New(slog.DiscardHandler)}
	for _, o := range opts {
		o(b)
	}
	if b.dir == "" {
		dir, err := os.MkdirTemp("", "strandmqtest-")
		if err != nil {
			return nil, err
		}
		b.dir, b.made = dir, true
	}
	if err := b.start(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Broker) start() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	if b.b, err = broker.Start(ctx, broker.Config{DataDir: b.dir, Listen: "127.0.0.1:0", Logger: b.log}); err != nil {
		return err
	}
	b.URL = b.b.URL()
	b.Client, err = client.New([]string{b.URL}, client.WithLogger(b.log))
	return err
}

func (b *Broker) stop() (err error) {
	if b.Client != nil {
		err = b.Client.Close()
	}
	if b.b != nil {
		err = errors.Join(err, b.b.Close())
	}
	b.Client, b.b = nil, nil
	return err
}

// Close ends the client and the broker.
func (b *Broker) Close() error {
	err := b.stop()
	if b.made {
		err = errors.Join(err, os.RemoveAll(b.dir))
	}
	return err
}

// Restart stops the broker in good order and starts it again on the same folder,
// with another URL and another Client.
func (b *Broker) Restart(t testing.TB) {
	t.Helper()
	if err := errors.Join(b.stop(), b.start()); err != nil {
		t.Fatal(err)
	}
}

// Topic makes a topic.
func (b *Broker) Topic(t testing.TB, name string, partitions uint32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	if _, err := b.Client.Admin().CreateTopic(ctx, &strandmqv1.CreateTopicRequest{Topic: name, Partitions: partitions}); err != nil {
		t.Fatal(err)
	}
}
