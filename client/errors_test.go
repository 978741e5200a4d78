package client_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/client/strandmqtest"
	"github.com/strandmq/strandmq/internal/heldport"
)

// Every reason that has a name here is in the table of errors.
func TestReasonsAreReal(t *testing.T) {
	page, err := os.ReadFile("../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	f, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	ast.Inspect(f, func(x ast.Node) bool {
		call, ok := x.(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			return true
		}
		if id, ok := call.Fun.(*ast.Ident); !ok || id.Name != "Reason" {
			return true
		}
		if lit, ok := call.Args[0].(*ast.BasicLit); ok {
			n++
			if name := strings.Trim(lit.Value, `"`); !strings.Contains(string(page), "\n| "+name+" |") {
				t.Errorf("%s is not in docs/errors.md", name)
			}
		}
		return true
	})
	if n < 10 {
		t.Errorf("only %d reasons were found", n)
	}
}

// What is no broker, and what is not there, is told in words.
func TestNobodyThere(t *testing.T) {
	nobody := "http://" + heldport.Address(t) // a port that nothing listens on
	r := newRelay(t, nobody)
	_, err := client.Dial(within(t), []string{r.URL}, client.WithRetryFor(50*time.Millisecond))
	if err == nil || !client.Retryable(err) {
		t.Errorf("a connection that breaks: %v", err)
	}
	_, err = client.Dial(within(t), []string{nobody}, client.WithRetryFor(0))
	var e *client.Error
	if !errors.As(err, &e) || !strings.Contains(e.Message, "no broker answers at "+nobody) {
		t.Errorf("nobody listens: %v", err)
	}
}

// When the caller does not wait to the end, what kept the broker from answering is told
// with it.
func TestDialGivenUp(t *testing.T) {
	nobody := "http://" + heldport.Address(t)
	ctx, cancel := context.WithCancelCause(within(t))
	defer cancel(nil)
	// It has asked at least once when it says that it asks again.
	log := slog.New(tells(func(string) { cancel(errors.New("enough")) }))
	_, err := client.Dial(ctx, []string{nobody}, client.WithRetryFor(time.Hour), client.WithLogger(log))
	var e *client.Error
	if !errors.Is(err, context.Canceled) || !errors.As(err, &e) || !strings.Contains(e.Message, "no broker answers at "+nobody) || !client.Retryable(err) {
		t.Errorf("%v", err)
	}
	// A broker that takes the connection and says nothing.
	b := strandmqtest.Start(t)
	r := newRelay(t, b.URL)
	r.hold()
	short, done := context.WithTimeout(within(t), 50*time.Millisecond)
	defer done()
	_, err = client.Dial(short, []string{r.URL})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || !strings.Contains(e.Message, r.URL) {
		t.Errorf("%v", err)
	}
}

// What errors.md says to send again is said to be worth it, but for what is closed.
func TestRetryable(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	r := newRelay(t, b.URL)
	c, err := client.New([]string{r.URL})
	if err != nil {
		t.Fatal(err)
	}
	p := publisher(t, c, "orders")
	r.hold()
	ctx, cancel := context.WithTimeout(within(t), 50*time.Millisecond)
	defer cancel()
	m := client.Message{Key: "k", ID: "i"}
	if _, err := p.Publish(ctx, m); !errors.Is(err, client.ErrOutcomeUnknown) || !client.Retryable(err) {
		t.Errorf("%v, retryable: %t", err, client.Retryable(err))
	}
	r.pass()
	if _, err := p.Publish(within(t), m); err != nil {
		t.Error(err)
	}
	if n := stored(t, b.Client, "orders"); n != 1 {
		t.Errorf("%d are stored", n)
	}
	r.hold()
	var last error
	p.PublishAsync(within(t), client.Message{Key: "k"}, func(_ client.Receipt, err error) { last = err })
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(last, client.ErrClosed) || client.Retryable(last) {
		t.Errorf("of a client that was closed: %v, retryable: %t", last, client.Retryable(last))
	}
}

// An error says by which id the broker's log is searched, and in words where that is
// what there is to do.
func TestErrorsHaveRequestIDs(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	_, err := b.Client.Admin().DescribeTopic(within(t), "nowhere")
	var e *client.Error
	if !errors.As(err, &e) || e.Reason != client.ErrUnknownTopic || e.RequestID == "" || strings.Contains(err.Error(), e.RequestID) {
		t.Errorf("%v, %+v", err, e)
	}
	for _, x := range []struct {
		err  client.Error
		want string
	}{
		{client.Error{Reason: "INTERNAL", Message: "it failed", RequestID: "r-1"}, "strandmq: it failed (INTERNAL, request id r-1)"},
		{client.Error{Reason: "INTERNAL", Message: "see request id r-1", RequestID: "r-1"}, "strandmq: see request id r-1 (INTERNAL)"},
		{client.Error{Reason: "INTERNAL", Message: "it failed"}, "strandmq: it failed (INTERNAL)"},
	} {
		if x.err.Error() != x.want {
			t.Errorf("%q, not %q", x.err.Error(), x.want)
		}
	}
}
