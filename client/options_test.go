package client_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/client/strandmqtest"
)

// refusedFor checks that an error is a bad value of an option, with its range.
func refusedFor(t *testing.T, err error, option, says string) {
	t.Helper()
	var e *client.Error
	if !errors.Is(err, client.ErrBadValue) || !errors.As(err, &e) || e.Field != option || !strings.Contains(e.Message, says) || client.Retryable(err) {
		t.Errorf("%s: %v", option, err)
	}
}

// A value of an option that is out of its range is refused, and its range told. 0 is the
// default, or says so in the option's words.
func TestOptionsOutOfRange(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	c := b.Client
	for option, of := range map[string]struct {
		says string
		with func(int) client.ConsumerOption
	}{
		"WithPrefetch":     {"1 to 1000000", client.WithPrefetch},
		"WithConcurrency":  {"1 to 1000000", client.WithConcurrency},
		"WithDrainTimeout": {"0 to 24h", func(n int) client.ConsumerOption { return client.WithDrainTimeout(time.Duration(n)) }},
	} {
		for _, n := range []int{-1, math.MinInt, math.MaxInt} {
			_, err := c.Consumer("orders", "g", of.with(n))
			refusedFor(t, err, option, of.says)
		}
		if _, err := c.Consumer("orders", "g", of.with(0)); err != nil {
			t.Errorf("%s(0): %v", option, err)
		}
	}
	for option, of := range map[string]struct {
		says string
		with func(int) client.PublisherOption
	}{
		"WithLinger":      {"0 to 1m", func(n int) client.PublisherOption { return client.WithLinger(time.Duration(n)) }},
		"WithBatchBytes":  {"1024 to 1048576", client.WithBatchBytes},
		"WithMaxInFlight": {"1 to 1073741824", client.WithMaxInFlight},
	} {
		for _, n := range []int{-1, math.MinInt, math.MaxInt} {
			_, err := c.Publisher(within(t), "orders", of.with(n))
			refusedFor(t, err, option, of.says)
		}
		p := publisher(t, c, "orders", of.with(0))
		if _, err := p.Publish(within(t), client.Message{Key: "k"}); err != nil {
			t.Errorf("%s(0): %v", option, err)
		}
	}
	for _, d := range []time.Duration{-1, math.MaxInt64} {
		_, err := client.New([]string{b.URL}, client.WithRetryFor(d))
		refusedFor(t, err, "WithRetryFor", "0 to 24h")
	}
	// All faults are told at once, names too.
	_, err := c.Consumer("a b", "g", client.WithPrefetch(-1), client.WithConcurrency(-1))
	for _, want := range []string{"WithPrefetch", "WithConcurrency", "topic"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in %v", want, err)
		}
	}
	if !errors.Is(err, client.ErrBadName) || !errors.Is(err, client.ErrBadValue) {
		t.Errorf("%v", err)
	}
}

// Addresses that are none are refused in words that say how they are written.
func TestBadAddresses(t *testing.T) {
	for _, s := range []string{
		"", "127.0.0.1:7171", "localhost:7171", "http://", "http://:7171", "\x00", "https://127.0.0.1:7171", "unix:///tmp/x",
		"http://127.0.0.1:7171/v1", "http://127.0.0.1:7171?a=b", "http://127.0.0.1:7171#a", "http://127.0.0.1:7171?",
		"http://127.0.0.1:99999", "http://127.0.0.1:0", "http://127.0.0.1:x", "http://[::1", "ftp://127.0.0.1:7171",
		"http://user:hidden@127.0.0.1:7171", "user:hidden@127.0.0.1:7171", "http://user:hidden@127.0.0.1:x",
	} {
		_, err := client.New([]string{"http://127.0.0.1:1", s})
		refusedFor(t, err, "servers[1]", "write it as http://host:port")
		if err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("a password is told: %v", err)
		}
		if _, err := client.Dial(within(t), []string{"http://127.0.0.1:1", s}); !errors.Is(err, client.ErrBadValue) {
			t.Errorf("Dial: %v", err)
		}
	}
	_, err := client.New(nil)
	refusedFor(t, err, "servers", "give at least one")
	for _, s := range []string{"http://127.0.0.1:7171/", "http://broker", "http://[::1]:7171"} {
		c, err := client.New([]string{s}, client.WithLogger(nil))
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Nobody has to be told of a message, and observers need not look at its end.
func TestNilFunctions(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	group(t, b.Client, "orders", "g", nil)
	c, err := client.New([]string{b.URL}, client.WithObserver(client.Observer{
		Publish: func(context.Context, string, *client.Message) func(client.Receipt, error) { return nil },
		Handle:  func(ctx context.Context, _ *client.Delivery) (context.Context, func(error)) { return ctx, nil },
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	p := publisher(t, c, "orders")
	p.PublishAsync(within(t), client.Message{Key: "k"}, nil)
	p.PublishAsync(within(t), client.Message{ID: "bad\n"}, nil)
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	p.PublishAsync(within(t), client.Message{Key: "k"}, nil) // after Close
	stop := runs(t, consumer(t, c, "orders", "g"), func(context.Context, *client.Delivery) error { return nil })
	until(t, "the ack", func() bool { return counts(t, b.Client, "orders", "g").GetLag() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := stored(t, b.Client, "orders"); n != 1 {
		t.Errorf("%d are stored", n)
	}
}
