package client_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/strandmq/strandmq/client"
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
	for _, servers := range [][]string{nil, {"127.0.0.1:7171"}, {"http://"}, {"\x00"}} {
		if _, err := client.New(servers); err == nil {
			t.Errorf("%q was taken for addresses", servers)
		}
	}
	r := newRelay(t, "http://127.0.0.1:1") // a port that nothing listens on
	_, err := client.Dial(within(t), []string{r.URL}, client.WithRetryFor(50*time.Millisecond))
	if err == nil || !client.Retryable(err) {
		t.Errorf("a connection that breaks: %v", err)
	}
	_, err = client.Dial(within(t), []string{"http://127.0.0.1:1"}, client.WithRetryFor(0))
	var e *client.Error
	if !errors.As(err, &e) || !strings.Contains(e.Message, "no broker answers at http://127.0.0.1:1") {
		t.Errorf("nobody listens: %v", err)
	}
}
