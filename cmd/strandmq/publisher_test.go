package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// grumpy is a publish service that stores as asked, refuses as planned, and can
// lose its answer after storing: what a real broker does too rarely for a test.
type grumpy struct {
	strandmqv1connect.UnimplementedPublishServiceHandler
	strandmqv1connect.UnimplementedTopicServiceHandler
	mu     sync.Mutex
	plan   []func(req *strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) // for the first calls
	stored []string                                                                    // bodies, once per id
	ids    map[string]int
	calls  int
	times  []time.Time
}

func (g *grumpy) DescribeTopic(context.Context, *strandmqv1.DescribeTopicRequest) (*strandmqv1.DescribeTopicResponse, error) {
	return &strandmqv1.DescribeTopicResponse{}, nil
}

func (g *grumpy) Publish(_ context.Context, req *strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls++
	g.times = append(g.times, time.Now())
	if g.calls <= len(g.plan) {
		return g.plan[g.calls-1](req)
	}
	return g.store(req), nil
}

func (g *grumpy) store(req *strandmqv1.PublishRequest) *strandmqv1.PublishResponse {
	res := &strandmqv1.PublishResponse{}
	for _, m := range req.GetMessages() {
		at, known := g.ids[m.GetId()]
		if !known {
			at = len(g.stored)
			g.ids[m.GetId()] = at
			g.stored = append(g.stored, m.GetText())
		}
		res.Results = append(res.Results, &strandmqv1.PublishResult{Receipt: &strandmqv1.Receipt{Offset: uint64(at), Duplicate: known}})
	}
	return res
}

// refusal is an error with the typed detail that brokers send.
func refusal(t *testing.T, code connect.Code, reason string, after time.Duration) error {
	err := connect.NewError(code, errors.New(reason))
	d, derr := connect.NewErrorDetail(&strandmqv1.Problem{Reason: reason, Message: "no: " + reason, RetryAfterMs: after.Milliseconds()})
	if derr != nil {
		t.Fatal(derr)
	}
	err.AddDetail(d)
	return err
}

// answer is what the broker says to one call.
type answer = func(*strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error)

// first stores the first line, which goes alone.
func (g *grumpy) first(req *strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
	return g.store(req), nil
}

func (g *grumpy) serve(t *testing.T) string {
	g.ids = map[string]int{}
	mux := http.NewServeMux()
	mux.Handle(strandmqv1connect.NewPublishServiceHandler(g))
	mux.Handle(strandmqv1connect.NewTopicServiceHandler(g))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// strandmq runs a command line in this process.
func strandmq(t *testing.T, server, stdin string, args ...string) (code int, out, talk string) {
	t.Helper()
	var o, e bytes.Buffer
	a := &app{in: strings.NewReader(stdin), out: &o, err: &e}
	code = run(a, append([]string{"--server", server}, args...))
	return code, o.String(), e.String()
}

func TestPublishWaitsAsLongAsTold(t *testing.T) {
	const wait = 150 * time.Millisecond
	g := &grumpy{}
	g.plan = []func(*strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error){
		func(*strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
			return nil, refusal(t, connect.CodeResourceExhausted, "QUEUE_FULL", wait)
		},
	}
	code, _, talk := strandmq(t, g.serve(t), "1\n2\n", "publish", "t")
	if code != 0 || strings.Join(g.stored, " ") != "1 2" {
		t.Fatalf("code %d, stored %q\n%s", code, g.stored, talk)
	}
	if got := g.times[1].Sub(g.times[0]); got < wait {
		t.Errorf("tried again after %v instead of %v", got, wait)
	}
	if !strings.Contains(talk, "waiting 150ms: no: QUEUE_FULL") || !strings.Contains(talk, "2 published, 0 stored before") {
		t.Errorf("talk: %s", talk)
	}
}

// A call in which some messages are refused for now: those alone go again, in
// their order.
func TestPublishSendsRefusedOnesAgain(t *testing.T) {
	g := &grumpy{}
	g.plan = []func(*strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error){
		func(req *strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
			keep := req.Messages
			req.Messages = []*strandmqv1.Message{keep[0], keep[3]}
			res := g.store(req)
			no := func(reason string, ms int64) *strandmqv1.PublishResult {
				return &strandmqv1.PublishResult{Problem: &strandmqv1.Problem{Reason: reason, RetryAfterMs: ms}}
			}
			res.Results = []*strandmqv1.PublishResult{res.Results[0], no("QUEUE_FULL", 1), no("NOT_SENT", 0), res.Results[1]}
			return res, nil
		},
	}
	g.plan = append([]answer{g.first}, g.plan...)
	code, out, talk := strandmq(t, g.serve(t), "0\n1\n2\n3\n4\n", "publish", "t", "--output", "json")
	if code != 0 || strings.Join(g.stored, " ") != "0 1 4 2 3" || g.calls != 3 {
		t.Fatalf("code %d, %d calls, stored %q\n%s", code, g.calls, g.stored, talk)
	}
	if strings.Count(out, "\n") != 5 || !strings.Contains(out, `{"line":3,`) {
		t.Errorf("receipts:\n%s", out)
	}
}

// The answer is lost after the batch was stored: sent again, counted once.
func TestPublishAfterALostAnswer(t *testing.T) {
	g := &grumpy{}
	g.plan = []func(*strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error){
		func(req *strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
			g.store(req)
			return nil, connect.NewError(connect.CodeUnavailable, errors.New("gone"))
		},
	}
	code, _, talk := strandmq(t, g.serve(t), "1\n2\n", "publish", "t")
	if code != 0 || strings.Join(g.stored, " ") != "1 2" || !strings.Contains(talk, "1 published, 1 stored before") {
		t.Errorf("code %d, stored %q\n%s", code, g.stored, talk)
	}
}

func TestPublishGivesUpInTime(t *testing.T) {
	t.Parallel() // it waits
	g := &grumpy{}
	for range 100 {
		g.plan = append(g.plan, func(*strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
			return nil, refusal(t, connect.CodeResourceExhausted, "QUEUE_FULL", time.Second)
		})
	}
	code, _, talk := strandmq(t, g.serve(t), "1\n", "publish", "t", "--retry-for", "4s")
	// A second is waited for after each call, so there are about five: more where the
	// process stood still, which does not count.
	if code != exitFailed || g.calls < 2 || g.calls == len(g.plan) || !strings.Contains(talk, "run the same command again") {
		t.Errorf("code %d, %d calls\n%s", code, g.calls, talk)
	}
}

// What trying again would not change is not tried again.
func TestPublishTakesNoForAnAnswer(t *testing.T) {
	for _, reason := range []string{"REQUEST_TOO_LARGE", "UNKNOWN_TOPIC"} {
		g := &grumpy{}
		g.plan = []func(*strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error){
			func(*strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
				return nil, refusal(t, connect.CodeResourceExhausted, reason, 0)
			},
		}
		code, _, talk := strandmq(t, g.serve(t), "1\n", "publish", "t")
		if code != exitFailed || g.calls != 1 || !strings.Contains(talk, "no: "+reason) {
			t.Errorf("%s: code %d, %d calls\n%s", reason, code, g.calls, talk)
		}
	}
}

// A refused line is named; what was stored before stays; after mending the line
// only what is missing is added, in the order of the lines.
func TestPublishNamesTheRefusedLine(t *testing.T) {
	g := &grumpy{}
	g.plan = []func(*strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error){
		func(req *strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
			bad := &strandmqv1.PublishResult{Problem: &strandmqv1.Problem{Reason: "BODY_TOO_LARGE", Message: "too large"}}
			behind := &strandmqv1.PublishResult{Problem: &strandmqv1.Problem{Reason: "NOT_SENT", Message: "not sent"}}
			if !req.GetInOrder() || len(req.GetMessages()) != 2 {
				t.Errorf("asked for %v", req)
			}
			return &strandmqv1.PublishResponse{Results: []*strandmqv1.PublishResult{bad, behind}}, nil
		},
	}
	g.plan = append([]answer{g.first}, g.plan...)
	url := g.serve(t)
	file := filepath.Join(t.TempDir(), "in.ndjson")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1\n\n2222\n3\n")
	code, _, talk := strandmq(t, url, "", "publish", "t", "--file", file)
	if code != exitFailed || !strings.Contains(talk, fmt.Sprintf("line 3 of %s was refused: too large", file)) {
		t.Fatalf("code %d\n%s", code, talk)
	}
	write("1\n\n2\n3\n")
	code, _, talk = strandmq(t, url, "", "publish", "t", "--file", file)
	if code != 0 || strings.Join(g.stored, " ") != "1 2 3" || !strings.Contains(talk, "2 published, 1 stored before") {
		t.Errorf("code %d, stored %q\n%s", code, g.stored, talk)
	}
}

// A call in which a line is refused for good, others before and behind it for now,
// and one is stored: what is before it is stored yet, what is behind it is not, and
// what is stored has its receipt.
func TestPublishBeforeTheRefusedLine(t *testing.T) {
	g := &grumpy{}
	no := func(reason string, ms int64) *strandmqv1.PublishResult {
		return &strandmqv1.PublishResult{Problem: &strandmqv1.Problem{Reason: reason, RetryAfterMs: ms}}
	}
	g.plan = []answer{g.first, func(req *strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
		all := req.GetMessages()
		req.Messages = all[3:4]
		res := g.store(req)
		res.Results = []*strandmqv1.PublishResult{no("QUEUE_FULL", 1), no("NOT_SENT", 1), no("ID_REUSED", 0), res.Results[0], no("QUEUE_FULL", 1), no("NOT_SENT", 0)}
		return res, nil
	}}
	code, out, talk := strandmq(t, g.serve(t), "0\n1\n2\n3\n4\n5\n6\n", "publish", "t", "--output", "json")
	if code != exitFailed || strings.Join(g.stored, " ") != "0 4 1 2" || !strings.Contains(talk, "4 published, 0 stored before") || !strings.Contains(talk, "line 4 of standard input was refused") {
		t.Errorf("code %d, stored %q\n%s", code, g.stored, talk)
	}
	if strings.Count(out, "\n") != 4 || !strings.Contains(out, `{"line":5,`) {
		t.Errorf("receipts:\n%s", out)
	}
}

// When the command gives up on a batch, what was stored of it is counted.
func TestPublishCountsWhatItGivesUp(t *testing.T) {
	g := &grumpy{}
	g.plan = []answer{g.first, func(req *strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
		req.Messages = req.Messages[:1]
		res := g.store(req)
		res.Results = append(res.Results, &strandmqv1.PublishResult{Problem: &strandmqv1.Problem{Reason: "DISK_FULL", RetryAfterMs: 3_600_000}})
		return res, nil
	}}
	code, out, talk := strandmq(t, g.serve(t), "0\n1\n2\n", "publish", "t", "--output", "json", "--retry-for", "1s")
	if code != exitFailed || strings.Count(out, "\n") != 2 || !strings.Contains(talk, "2 published, 0 stored before") {
		t.Errorf("code %d\n%s\n%s", code, out, talk)
	}
}

// A pipe that stays open does not hold back what came.
func TestPublishDoesNotWaitForAFullBatch(t *testing.T) {
	g := &grumpy{}
	url := g.serve(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan int)
	go func() {
		a := &app{in: r, out: &bytes.Buffer{}, err: &bytes.Buffer{}}
		done <- run(a, []string{"--server", url, "publish", "t"})
	}()
	if _, err := w.WriteString("1\n"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.stored) == 1
	})
	w.Close()
	if code := <-done; code != 0 {
		t.Errorf("code %d", code)
	}
}

// waitFor waits until a condition holds.
func waitFor(t *testing.T, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatal("waited too long")
		}
		time.Sleep(5 * time.Millisecond) // between two looks at the condition
	}
}
