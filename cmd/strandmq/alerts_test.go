//go:build unix

package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/strandmq/strandmq/internal/broker"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// One real disk that is slow, then hangs, then fails: each is told by its alert, and by no
// other.
func TestAlertsSeeDisks(t *testing.T) {
	t.Parallel()
	tool := alertsTool(t)
	var slow, stuck, broken atomic.Bool
	back := make(chan struct{})
	disk := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileSyncData && op.Kind != errorfs.OpFileSyncTo {
			return nil
		}
		if slow.Load() {
			time.Sleep(250 * time.Millisecond) // what a slow disk is: over the limit of 0.1 s
		}
		if stuck.Load() {
			<-back
		}
		if broken.Load() {
			return errorfs.ErrInjected
		}
		return nil
	}))
	b := ward(t, t.TempDir(), func(c *broker.Config) {
		c.Store.FS, c.Store.StallAfter, c.Store.StallStop = disk, time.Second, time.Hour
	})
	api := dial(b.URL())
	granted(t, api.topics.CreateTopic, &strandmqv1.CreateTopicRequest{Topic: "orders", Partitions: 1})
	ctx, stop := context.WithCancel(t.Context())
	published := make(chan struct{})
	go func() {
		defer close(published)
		for i := 0; ctx.Err() == nil; i++ {
			// It may be refused: the disk is stuck, or gone.
			_, _ = api.publish.Publish(ctx, &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{named(fmt.Sprint("a", i))}})
		}
	}()
	release := sync.OnceFunc(func() { close(back) })
	defer func() { stop(); release(); <-published }()

	sees := func(alert string, before, after map[string]string) {
		t.Helper()
		if got := strings.Join(firing(t, tool, before, after), ", "); got != alert {
			t.Errorf("these fire: %s; this should: %s", got, alert)
		}
	}
	well := calm(scrape(t, b.URL()))
	counted := func(text string) int {
		m := regexp.MustCompile(`(?m)^strandmq_fsync_duration_seconds_count (\d+)$`).FindStringSubmatch(text)
		if m == nil {
			t.Fatal("no fsyncs are told")
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	only := func(text string) string { return changed(roomy(text), "strandmq_store_stuck_seconds", "", 0) }
	slow.Store(true)
	begun := counted(scrape(t, b.URL()))
	var first, then string
	until(t, "the first fsync that is slow", func() bool { first = only(scrape(t, b.URL())); return counted(first) >= begun+2 })
	until(t, "some more", func() bool { then = only(scrape(t, b.URL())); return counted(then) >= counted(first)+4 })
	sees("after StrandMQFsyncSlow", map[string]string{"n1": first}, map[string]string{"n1": then})

	stuck.Store(true)
	var hangs string
	until(t, "the disk hangs", func() bool {
		hangs = smooth(roomy(scrape(t, b.URL())))
		return regexp.MustCompile(`(?m)^strandmq_store_stuck_seconds [1-9]`).MatchString(hangs)
	})
	sees("after StrandMQDiskStuck", map[string]string{"n1": well}, map[string]string{"n1": hangs})

	broken.Store(true)
	release()
	var failed string
	until(t, "the node has failed", func() bool {
		// How long it hung goes on being told, until the process ends.
		failed = calm(scrape(t, b.URL()))
		return strings.Contains(failed, "\nstrandmq_ready 0\n")
	})
	sees("after StrandMQNodeNotReady", map[string]string{"n1": well}, map[string]string{"n1": failed})
}

// A bit flips in what is stored.
func TestAlertsSeeDamage(t *testing.T) {
	t.Parallel()
	tool := alertsTool(t)
	b, before := rotten(t)
	var after string
	until(t, "the damage is found", func() bool {
		after = calm(scrape(t, b.URL()))
		return strings.Contains(after, "\nstrandmq_store_damaged_places 1\n")
	})
	if got := strings.Join(firing(t, tool, map[string]string{"n1": before}, map[string]string{"n1": after}), ", "); got != "after StrandMQDamaged" {
		t.Errorf("these fire: %s", got)
	}
}
