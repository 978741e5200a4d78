//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/strandmq/strandmq/client"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// handled is what a member's program tells of a handler: that it began, or that its
// delivery is the member's no longer.
type handled struct {
	Call      int
	Gone      bool `json:",omitempty"`
	Key, ID   string
	Partition uint32
	Offset    uint64
	Attempt   uint32
	Fence     uint64
	Replayed  bool
}

// handlerEnds is what a handler is told to do: ack or nack.
type handlerEnds struct {
	Call int
	Do   string
}

// memberOfAUser is a program as users write them, with the Go client: a member at SERVER, of
// TOPIC and GROUP, with so many HANDLERS. Its handlers tell what they have, and wait until they
// are told what to do.
func memberOfAUser() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	handlers, err := strconv.Atoi(os.Args[4])
	if err != nil {
		panic(err)
	}
	c, err := client.New([]string{os.Args[1]})
	if err != nil {
		panic(err)
	}
	x, err := c.Consumer(os.Args[2], os.Args[3], client.WithConcurrency(handlers), client.WithPrefetch(handlers))
	if err != nil {
		panic(err)
	}
	out := &teller{out: json.NewEncoder(os.Stdout)}
	var mu sync.Mutex
	calls, waits := 0, map[int]chan handlerEnds{}
	go func() {
		_ = listen(func(o handlerEnds) {
			mu.Lock()
			defer mu.Unlock()
			if w := waits[o.Call]; w != nil {
				w <- o
				delete(waits, o.Call)
			}
		})
	}()
	err = x.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
		w := make(chan handlerEnds, 1)
		mu.Lock()
		calls++
		h := handled{
			Call: calls, Key: d.Key, ID: d.ID, Partition: d.Partition, Offset: d.Offset, Attempt: d.Attempt, Fence: d.Fence, Replayed: d.Replayed,
		}
		waits[h.Call] = w
		mu.Unlock()
		out.tell(h)
		select {
		case o := <-w:
			if o.Do == "nack" {
				return errors.New("the test says so")
			}
			return nil
		case <-ctx.Done():
			h.Gone = true
			out.tell(h)
			return ctx.Err()
		}
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// play is a scene on three nodes whose members and publishers are processes: actors, and
// strandmq itself.
type play struct {
	*scene
	w *clusterWorld

	mu   sync.Mutex
	turn sync.Cond
	only *actor // guarded by mu: nobody else is heard; nil: everybody is
}

// newPlay sets a scene on a squadron that other plays use at the same time.
func newPlay(t *testing.T, f *squadron, topic string, p1, p2 *strandmqv1.GroupPolicy) *play {
	t.Helper()
	own := *f
	w := newClusterWorld(t, &own)
	p := &play{w: w, scene: newStage(t, w).scene(t, topic, 1, p1, p2)}
	p.turn.L = &p.mu
	for _, s := range f.nodes { // the processes may ask any
		for _, g := range []string{"g1", "g2"} {
			if err := heard(t.Context(), s.api.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: topic, Group: g}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return p
}

// moves has another node lead.
func (p *play) moves() {
	p.t.Helper()
	p.w.move(p.w.means(p.topic))
}

// command is strandmq as a process, which asks whichever node takes the connection.
func (p *play) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(p.t.Context(), p.w.f.binary, args...)
	cmd.Env = append(os.Environ(), "STRANDMQ_SERVER="+p.w.door)
	cmd.WaitDelay = 10 * time.Second // what a command of consume left running has its streams
	return cmd
}

// runs runs strandmq to its end, which must be a good one, and gives what it printed.
func (p *play) runs(in string, args ...string) string {
	p.t.Helper()
	cmd := p.command(args...)
	cmd.Stdin = strings.NewReader(in)
	var out, says bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &says
	if err := cmd.Run(); err != nil {
		p.t.Fatalf("strandmq %v: %v\n%s", args, err, says.Bytes())
	}
	return out.String()
}

// published has strandmq publish lines, one for each name.
func (p *play) published(names ...string) {
	p.t.Helper()
	var lines strings.Builder
	for _, n := range names {
		fmt.Fprintf(&lines, "{\"key\":%q,\"id\":%q}\n", strings.TrimRight(n, "0123456789"), n)
	}
	p.runs(lines.String(), "publish", p.topic, "--key-field", "key", "--id-field", "id")
}

// consumed has strandmq consume all that is left for a group, and gives what was acked, as
// name/attempt.
func (p *play) consumed(group string) (names []string) {
	p.t.Helper()
	for line := range strings.Lines(p.runs("", "consume", p.topic, "--group", group, "--until-empty", "--output", "json")) {
		d := &strandmqv1.Delivery{}
		if err := protojson.Unmarshal([]byte(line), d); err != nil {
			p.t.Fatal(err)
		}
		names = append(names, fmt.Sprintf("%s/%d", d.GetMessage().GetId(), d.GetAttempt()))
	}
	return names
}

// actor is a member's process.
type actor struct {
	p    *play
	l    *ledger
	prog *program
	rule func(line) string // ack, nack, or "": an answer comes later, or never
	over chan struct{}     // closed when nothing comes from it any more
}

// line is what an actor says, which began a handler.
type line struct {
	seen
	by   *actor
	call int
}

// actor starts a member's process.
func (p *play) actor(l *ledger, handlers int, rule func(line) string) *actor {
	p.t.Helper()
	prog, err := startProgram(p.t, "member-of-a-user", p.w.door, p.topic, l.group, strconv.Itoa(handlers))
	if err != nil {
		p.t.Fatal(err)
	}
	a := &actor{p: p, l: l, prog: prog, rule: rule, over: make(chan struct{})}
	go a.listen()
	p.t.Cleanup(func() {
		prog.kill()
		<-a.over
	})
	return a
}

// listen hears what the process says until it ends.
func (a *actor) listen() {
	defer close(a.over)
	for {
		var h handled
		if a.prog.hear(&h) != nil {
			return
		}
		if h.Gone {
			continue
		}
		x := line{by: a, call: h.Call, seen: seen{name: h.ID, key: h.Key, at: time.Now(), Delivery: &strandmqv1.Delivery{
			Partition: h.Partition, Offset: h.Offset, Attempt: h.Attempt, Replayed: h.Replayed, Token: fmt.Sprint(h.Partition, "/", h.Fence),
		}}}
		a.p.mu.Lock()
		for a.p.only != nil && a.p.only != a {
			a.p.turn.Wait()
		}
		a.l.add(x.seen)
		a.p.mu.Unlock()
		if do := a.rule(x); do != "" {
			x.answer(do)
		}
	}
}

// answer has the handler end.
func (x line) answer(do string) {
	if do == "ack" {
		x.by.l.acking(x.seen)
	}
	_ = x.by.prog.tell(handlerEnds{x.call, do}) // the process may have ended
}

// kill ends the process. What it had said is heard before what others say then.
func (a *actor) kill() {
	a.p.mu.Lock()
	a.p.only = a
	a.p.mu.Unlock()
	a.prog.kill()
	<-a.over
	a.p.mu.Lock()
	a.p.only = nil
	a.p.mu.Unlock()
	a.p.turn.Broadcast()
}

// stop has the process end in good order.
func (a *actor) stop() {
	a.p.t.Helper()
	a.prog.signal(syscall.SIGTERM)
	select {
	case <-a.over:
	case <-time.After(patience):
		a.p.t.Fatalf("a member does not end within %v", patience)
	}
	<-a.prog.ended
	if !a.prog.cmd.ProcessState.Success() {
		a.p.t.Errorf("a member did not end in good order: %v", a.prog.fault(errors.New("it failed")))
	}
}

// comes waits for a line that a rule passed on.
func (p *play) comes(what string, from <-chan line) line {
	p.t.Helper()
	select {
	case x := <-from:
		return x
	case <-time.After(patience):
		p.t.Fatalf("%s did not come within %v", what, patience)
		return line{}
	}
}
