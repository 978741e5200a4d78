//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/retry"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// world is the brokers that a case is played on: one, or a cluster. What a case has happen
// to them is of topics, since it is who leads those that matters; it is over when they are
// led again, and others may come back later.
type world interface {
	// url is where clients call: whichever node takes the connection.
	url() string
	// crash ends who leads with kill -9.
	crash(topics ...string)
	// handOver has the lead go on to others in good order; of one broker there are none, and
	// it is stopped and started.
	handOver(topics ...string)
	// pause has who leads stand still until others lead, or one broker for a while, and then
	// go on as if nothing had been. Meanwhile, with others that lead, it calls do with who
	// stands still and with another; do may be nil.
	pause(topic string, do func(still, other *clients))
	// alone cuts who leads off from all others, calls do with it, and then ends it with
	// kill -9, so that only what others have is left of what it was told.
	alone(topic string, do func(leader *clients))
	// dark ends all with kill -9 and starts them again.
	dark(topics ...string)
	// nodes is how many there are.
	nodes() int
	showLogs()
}

// soloWorld is a world of one broker.
type soloWorld struct {
	t *testing.T
	p *process
}

func newSoloWorld(t *testing.T, binary string, args ...string) *soloWorld {
	return &soloWorld{t: t, p: startProcess(t, binary, args...)}
}

func (w *soloWorld) url() string { return w.p.url }
func (w *soloWorld) nodes() int  { return 1 }
func (w *soloWorld) showLogs()   { w.p.showLog() }

func (w *soloWorld) crash(...string) {
	w.p.kill()
	w.p.start()
	w.ready()
}

func (w *soloWorld) dark(topics ...string) { w.crash(topics...) }

func (w *soloWorld) handOver(...string) {
	if err := w.p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	<-w.p.ended
	if !w.p.cmd.ProcessState.Success() {
		w.t.Errorf("the broker did not stop in good order: %v", w.p.cmd.ProcessState)
	}
	w.p.start()
	w.ready()
}

func (w *soloWorld) pause(string, func(still, other *clients)) {
	if err := w.p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		w.t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // nobody is left to say that it took effect
	if err := w.p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		w.t.Fatal(err)
	}
	w.ready()
}

func (w *soloWorld) alone(_ string, do func(leader *clients)) {
	do(dial(w.p.url))
	w.crash()
}

func (w *soloWorld) ready() {
	until(w.t, "the broker is ready", func() bool {
		res, err := http.Get(w.p.url + "/readyz")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode == http.StatusOK
	})
}

// insist has a call made until it is answered, as clients do while a cluster changes: what
// is made so is harmless twice. What does not pass ends the test.
func insist[T any](t *testing.T, call func() (T, error)) T {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		v, err := call()
		if err == nil {
			return v
		}
		var p retry.Passing
		passes := false
		if errors.As(err, &p) {
			_, passes = p.Passes()
		} else {
			passes = retry.Broke(err)
		}
		// A node may not have heard yet of what was made by way of another.
		unheard := isReason(err, "UNKNOWN_TOPIC") || isReason(err, "UNKNOWN_GROUP")
		if !passes && !unheard && !errors.Is(err, errAgain) || time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // between two calls
	}
}

// errAgain tells insist that an answer was not what is to be relied on.
var errAgain = errors.New("the answer is not to be relied on")

// again tells whether a problem of a part of a call passes.
func again(p *strandmqv1.Problem) bool {
	return p.GetRetryAfterMs() > 0 || p.GetReason() == "OUTCOME_UNKNOWN" || p.GetReason() == "NOT_SENT"
}

// looks makes a call that only looks, until the answer comes from who leads.
func looks[Req, Res any](t *testing.T, call func(context.Context, *Req) (*Res, error), req *Req) *Res {
	t.Helper()
	return insist(t, func() (*Res, error) {
		res, err := once(t.Context(), call, req)
		if b, ok := any(res).(interface{ GetBehind() string }); err == nil && ok && b.GetBehind() != "" {
			return nil, errAgain
		}
		return res, err
	})
}
