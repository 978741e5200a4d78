package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/quantity"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// outcome is how one command ended.
type outcome struct {
	d      *strandmqv1.Delivery
	out    []byte // what it printed
	reason string // why it failed; empty: it did not
}

// keepOutput bounds what is kept of a command's output until it ends.
const keepOutput = 1 << 20

// runCommands hands deliveries to workers. The broker never hands out two of a
// key at once, so workers run in parallel across keys by themselves.
//
//	receive ─► work ─► workers ─► done ─► settle, print
//
// This goroutine alone receives, settles and prints; it takes no more than
// there are idle workers, so that nothing waits with its deadline running. A first
// signal ends ctx, and commands that run go on; a second one kills them.
func (c *consumption) runCommands(ctx context.Context) error {
	life, settling, end := untilSecondSignal(ctx)
	defer end()
	workers := int(c.f.workers.n)
	if c.f.max.n > 0 {
		workers = min(workers, int(c.f.max.n))
	}
	workers = min(workers, 1000)
	work := make(chan *strandmqv1.Delivery, workers)
	done := make(chan outcome, workers)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for d := range work {
				done <- c.runCommand(life, d)
			}
		})
	}
	defer all.Wait()
	defer close(work)

	// Receiving waits for messages, and settling must not wait for that.
	type answer struct {
		got []*strandmqv1.Delivery
		err error
	}
	answers := make(chan answer, 1)
	stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	busy, asking := 0, false
	ended := ctx.Done()
	ends := &ending{c: c, cancel: cancel, over: make(chan error, 1)}
	defer ends.calls.Wait()
	var failed error
	for {
		if ctx.Err() != nil || failed != nil || c.room(1) == 0 {
			ends.begin(busy)
		}
		if n := c.room(workers - busy); n > 0 && !asking && !ends.begun {
			asking = true
			wait := c.pollTime()
			go func() {
				got, err := c.m.receive(stop, newRequestID(), n, wait)
				answers <- answer{got, err}
			}()
		}
		if busy == 0 && !asking {
			if failed == nil && c.killed > 0 {
				failed = fmt.Errorf("killed %s that had not ended; the messages are nacked", quantity.Some(c.killed, "command"))
			}
			return failed
		}
		select {
		case err := <-ends.over:
			if err != nil {
				cancel() // an old broker, or none: what is asked for is given back by leaving
			}
		case o := <-done:
			busy--
			// As many as have ended go in one call.
			list := []outcome{o}
			for len(done) > 0 {
				list = append(list, <-done)
				busy--
			}
			if err := c.settleOutcomes(settling, list); err != nil && failed == nil {
				failed = err
				cancel()
			}
		case <-ended:
			ended = nil
			if busy > 0 {
				c.a.talk("waiting for %s; again to kill them", quantity.Some(busy, "command"))
			}
		case got := <-answers:
			asking = false
			if ends.begun {
				ends.giveBack(got.got)
				break
			}
			if got.err != nil {
				if failed == nil {
					failed = got.err
				}
				break
			}
			c.took(len(got.got))
			for _, d := range got.got {
				busy++
				work <- d
			}
			if len(got.got) == 0 && busy == 0 {
				if finished, err := c.finished(ctx); finished || err != nil {
					return err
				}
				c.sayIdle()
			}
		}
	}
}

// errKilled is why a command ends that a second signal killed.
var errKilled = errors.New("killed by a second signal to consume")

// untilSecondSignal gives the life of the commands, which a second signal ends, and the
// time to settle what they did, which ends a little later: who kills does not wait for a
// broker that is away. The first signal is what ended ctx. A third ends the process.
func untilSecondSignal(ctx context.Context) (life, settling context.Context, end func()) {
	ctx = context.WithoutCancel(ctx)
	life, kill := context.WithCancelCause(ctx)
	settling, giveUp := context.WithCancel(ctx)
	heard := make(chan os.Signal, 2)
	signal.Notify(heard, os.Interrupt, syscall.SIGTERM)
	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for n := 0; n < 2; {
			select {
			case <-heard:
				n++
			case <-over:
				return
			}
		}
		signal.Stop(heard)
		kill(errKilled)
		wait := time.NewTimer(5 * time.Second)
		defer wait.Stop()
		select {
		case <-wait.C:
			giveUp()
		case <-over:
		}
	}()
	return life, settling, func() {
		signal.Stop(heard)
		close(over)
		<-gone
		kill(nil)
		giveUp()
	}
}

// settleOutcomes settles and prints what ended.
func (c *consumption) settleOutcomes(ctx context.Context, list []outcome) error {
	settlements := make([]*strandmqv1.Settlement, len(list))
	for i, o := range list {
		if o.reason == errKilled.Error() {
			c.killed++
		}
		settlements[i] = &strandmqv1.Settlement{Token: o.d.GetToken(), Action: strandmqv1.SettleAction_SETTLE_ACTION_ACK}
		if o.reason != "" {
			settlements[i].Action = strandmqv1.SettleAction_SETTLE_ACTION_NACK
			settlements[i].Reason = o.reason
		}
	}
	results, err := c.m.settle(ctx, settlements)
	if err != nil {
		return err
	}
	for i, r := range results {
		o, what, told := list[i], "acked", ""
		switch {
		case o.reason != "" && c.m.once && r.GetProblem().GetReason() == "STALE_DELIVERY":
			// The hand-out settled it, so nothing was there to fail.
			c.lost++
			what, told = "lost", "failed, and is not repeated since the group is at-most-once"
		case r.GetProblem() != nil:
			c.stale++
			what = "stale"
			c.a.talk("%d/%d: %s", o.d.GetPartition(), o.d.GetOffset(), r.GetProblem().GetMessage())
		case o.reason == "":
			c.acked++
		case r.GetDeadLettered():
			c.failed++
			c.dead++
			what = "dead"
		default:
			c.failed++
			what = "failed"
		}
		if o.reason != "" {
			if told == "" {
				told = what
			}
			c.a.talk("%d/%d: attempt %d %s: %s", o.d.GetPartition(), o.d.GetOffset(), o.d.GetAttempt(), told, plain.Short(o.reason, 200))
		}
		if err := c.printOutcome(o, what); err != nil {
			return err
		}
	}
	return c.out.Flush()
}

func (c *consumption) printOutcome(o outcome, what string) error {
	if !c.a.json() {
		_, err := c.out.Write(o.out)
		return err
	}
	if _, err := c.a.err.Write(o.out); err != nil {
		return err
	}
	if text := o.d.GetMessage().GetBytes(); c.f.bodyFormat == "text" && utf8.Valid(text) {
		o.d.Message.Body = &strandmqv1.Message_Text{Text: string(text)}
	}
	d, err := marshal(o.d)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(struct {
		Outcome  string          `json:"outcome"`
		Reason   string          `json:"reason,omitempty"`
		Delivery json.RawMessage `json:"delivery"`
	}{what, o.reason, d})
	if err != nil {
		return err
	}
	_, err = c.out.Write(append(raw, '\n'))
	return err
}

// runCommand runs the command for one delivery and keeps the delivery alive
// meanwhile. A lapse kills it, and the end of all.
func (c *consumption) runCommand(all context.Context, d *strandmqv1.Delivery) outcome {
	life, kill := context.WithCancelCause(all)
	defer kill(nil)
	cmd := exec.CommandContext(life, "/bin/sh", "-c", c.f.exec)
	// A group of its own: killing reaches what the shell started, and Ctrl-C in
	// the terminal does not.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// What the command left running may hold its streams: nobody waits long for that.
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(), c.environment(d)...)
	cmd.Stdin = bytes.NewReader(body(d.GetMessage()))
	out, errs := &tail{limit: keepOutput}, &tail{limit: 64 << 10}
	cmd.Stdout, cmd.Stderr = out, errs
	keeping := make(chan struct{})
	go func() {
		defer close(keeping)
		c.keep(life, kill, d)
	}()
	err := cmd.Run()
	cause := context.Cause(life)
	kill(nil)
	<-keeping
	o := outcome{d: d, out: out.bytes()}
	// The exit code alone says how it went. An error beside exit code 0 is of what
	// the command left running (exec.ErrWaitDelay), or of a kill that came too late.
	if err == nil || cmd.ProcessState != nil && cmd.ProcessState.Success() {
		return o
	}
	o.reason = lastLine(errs.bytes())
	switch {
	case cause != nil:
		o.reason = cause.Error()
	case o.reason == "":
		o.reason = err.Error()
	}
	return o
}

// keep extends a delivery at half of its remaining time until life ends. A
// refusal kills the command: someone else may have the message.
func (c *consumption) keep(life context.Context, kill context.CancelCauseFunc, d *strandmqv1.Delivery) {
	deadline := d.GetDeadline().AsTime()
	for {
		wait := max(time.Until(deadline)/2, 50*time.Millisecond)
		timer := time.NewTimer(wait)
		select {
		case <-life.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		results, err := c.m.settle(life, []*strandmqv1.Settlement{{Token: d.GetToken(), Action: strandmqv1.SettleAction_SETTLE_ACTION_EXTEND}})
		switch {
		case life.Err() != nil:
			return
		case err != nil:
			kill(fmt.Errorf("the delivery could not be extended: %w", err))
			return
		case c.m.once && results[0].GetProblem().GetReason() == "STALE_DELIVERY":
			return // the hand-out settled it: nobody else gets the message
		case results[0].GetProblem() != nil:
			kill(errors.New("killed: " + results[0].GetProblem().GetMessage()))
			return
		}
		deadline = results[0].GetDeadline().AsTime()
	}
}

// environment describes a delivery to its command. What the environment cannot
// carry (a NUL) is left out of the plain variables.
func (c *consumption) environment(d *strandmqv1.Delivery) []string {
	m := d.GetMessage()
	key, has := messageKey(m)
	var headers [][2]string
	for _, h := range m.GetHeaders() {
		headers = append(headers, [2]string{h.GetName(), headerValue(h)})
	}
	list, err := json.Marshal(headers)
	if err != nil || headers == nil {
		list = []byte("[]")
	}
	env := []string{
		"STRANDMQ_TOPIC=" + d.GetTopic(),
		"STRANDMQ_GROUP=" + c.m.group,
		"STRANDMQ_MEMBER=" + c.m.name,
		fmt.Sprintf("STRANDMQ_PARTITION=%d", d.GetPartition()),
		fmt.Sprintf("STRANDMQ_OFFSET=%d", d.GetOffset()),
		fmt.Sprintf("STRANDMQ_ATTEMPT=%d", d.GetAttempt()),
		fmt.Sprintf("STRANDMQ_REPLAYED=%v", d.GetReplayed()),
		fmt.Sprintf("STRANDMQ_FENCE=%d", d.GetFence()),
		"STRANDMQ_HEADERS=" + string(list),
		"STRANDMQ_PUBLISH_TIME=" + stamp(m.GetPublishTime()),
		"STRANDMQ_FIRST_SEEN=" + stamp(d.GetFirstSeen()),
		"STRANDMQ_DEADLINE=" + stamp(d.GetDeadline()),
	}
	if !strings.ContainsRune(m.GetId(), 0) {
		env = append(env, "STRANDMQ_ID="+m.GetId())
	}
	if has {
		env = append(env, "STRANDMQ_KEY_BASE64="+base64.StdEncoding.EncodeToString(key))
		if utf8.Valid(key) && bytes.IndexByte(key, 0) < 0 {
			env = append(env, "STRANDMQ_KEY="+string(key))
		}
	}
	return env
}

// lastLine is the last line that says something, as valid text within the limit
// of a reason.
func lastLine(b []byte) string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(b), "\uFFFD"))
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	text = strings.TrimSpace(text)
	const most = 1024
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "")
	}
	return text
}

// tail keeps the last bytes that were written to it.
type tail struct {
	limit int
	buf   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*t.limit {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-t.limit:]...)
	}
	return len(p), nil
}

func (t *tail) bytes() []byte {
	return t.buf[max(0, len(t.buf)-t.limit):]
}
