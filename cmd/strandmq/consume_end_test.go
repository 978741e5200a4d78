package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A consumer that ends while a command runs, or that has all that it was to take, keeps
// what the command works on and nothing else: the other member has the rest at once.
func TestConsumeEndsWithoutItsKeys(t *testing.T) {
	for name, args := range map[string][]string{"Ctrl-C": {}, "max": {"--max", "1"}} {
		t.Run(name, func(t *testing.T) {
			url, dir := scriptBroker(t), t.TempDir()
			do := func(args ...string) string {
				t.Helper()
				code, out, talk := strandmq(t, url, "", args...)
				if code != 0 {
					t.Fatalf("%v: code %d\n%s", args, code, talk)
				}
				return out
			}
			do("topic", "create", "t", "--partitions", "1")
			do("publish", "t", "--key", "slow", "--body", "first")

			type consumer struct {
				out, talk *lockedBuffer
				signal    context.CancelFunc // as the first Ctrl-C
				over      chan error
			}
			consume := func(args ...string) *consumer {
				c := &consumer{out: &lockedBuffer{}, talk: &lockedBuffer{}, over: make(chan error, 1)}
				a := &app{in: strings.NewReader(""), out: c.out, err: c.talk}
				root := a.root()
				root.SetArgs(append([]string{"--server", url, "consume", "t", "--group", "g"}, args...))
				var ctx context.Context
				ctx, c.signal = context.WithCancel(context.Background())
				go func() { c.over <- root.ExecuteContext(ctx) }()
				return c
			}
			// The command runs until there is a file, or the test is over.
			started, end := filepath.Join(dir, "started"), filepath.Join(dir, "end")
			slow := consume(append(args, "--member", "A", "--exec",
				fmt.Sprintf("touch %s; until [ -e %s ] || [ ! -d %s ]; do sleep 0.05; done", started, end, dir))...)
			waitFor(t, func() bool { _, err := os.Stat(started); return err == nil })
			other := consume("--member", "B")
			waitFor(t, func() bool { return strings.Contains(do("group", "describe", "t", "g"), "\nB ") })

			if name == "Ctrl-C" {
				slow.signal()
			}
			waitFor(t, func() bool { return strings.Contains(do("group", "describe", "t", "g"), "\nA       draining") })
			do("publish", "t", "--key", "slow", "--body", "second")
			const keys = 8
			for k := range keys {
				do("publish", "t", "--key", fmt.Sprint("k", k), "--body", "x")
			}
			waitFor(t, func() bool { return strings.Count(other.out.String(), "\n") >= keys })
			if got := other.out.String(); strings.Contains(got, "slow") {
				t.Errorf("beside the command that has the key:\n%s", got)
			}
			if err := os.WriteFile(end, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := <-slow.over; err != nil || !strings.Contains(slow.talk.String(), "1 taken, 1 acked") {
				t.Errorf("%v\n%s", err, slow.talk)
			}
			waitFor(t, func() bool { return strings.Contains(other.out.String(), "slow\tsecond") })
			other.signal()
			if err := <-other.over; err != nil {
				t.Error(err)
			}
			if out := do("group", "describe", "t", "g"); !strings.Contains(out, "members: none") {
				t.Errorf("in the end:\n%s", out)
			}
		})
	}
}
