package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/internal/broker"
	"github.com/strandmq/strandmq/internal/heldport"
)

// Who follows events sees those that are there and those that come, over a restart of
// the broker, until it is interrupted, which is no failure.
func TestEventsAreFollowed(t *testing.T) {
	listen, dir := heldport.Address(t), t.TempDir()
	start := func() *broker.Broker {
		b, err := broker.Start(t.Context(), broker.Config{DataDir: dir, Listen: listen, Logger: slog.New(slog.DiscardHandler), Version: "test"})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := start()
	parks := func(topic string) {
		t.Helper()
		for _, args := range [][]string{
			{"topic", "create", topic, "--partitions", "1"}, {"publish", topic, "--key", "k", "--body", "x"},
			{"group", "create", topic, "g", "--max-attempts", "1", "--on-exhaustion", "park"},
			{"consume", topic, "--group", "g", "--max", "1", "--exec", "exit 1"},
		} {
			if code, _, talk := strandmq(t, b.URL(), "", args...); code != 0 && args[0] != "consume" {
				t.Fatal(talk)
			}
		}
	}
	parks("first")
	out, done := &lockedBuffer{}, make(chan error, 1)
	root := (&app{in: strings.NewReader(""), out: out, err: &lockedBuffer{}}).root()
	root.SetArgs([]string{"--server", "http://" + listen, "events", "--follow", "--kind", "KEY_PARKED"})
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	go func() { done <- root.ExecuteContext(ctx) }()
	waitFor(t, func() bool { return strings.Contains(out.String(), "KEY_PARKED ×1  first/0 g  ") })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = start()
	defer func() { _ = b.Close() }()
	parks("second")
	waitFor(t, func() bool { return strings.Contains(out.String(), "KEY_PARKED ×1  second/0 g  ") })
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d lines:\n%s", n, out)
	}
	interrupt()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
