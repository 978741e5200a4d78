package broker

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"connectrpc.com/connect"
)

var update = flag.Bool("update", false, "write docs/errors.md anew")

const errorsPage = "../../docs/errors.md"

// The page is the table: nobody has to keep them equal by hand.
func TestErrorsPage(t *testing.T) {
	want := errorsMarkdown()
	if *update {
		if err := os.WriteFile(errorsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(errorsPage)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Fatal("docs/errors.md is not what internal/broker/errors.go says: run go test ./internal/broker -run TestErrorsPage -update")
	}
}

func errorsMarkdown() string {
	var b strings.Builder
	b.WriteString(`# Errors

Every refusal has a **reason**: a stable name for programs. A refused call is an error with a code of
Connect and gRPC, a message for people, and one detail of type ` + "`strandmq.v1.Problem`" + ` with the reason, the
field at fault, ` + "`retry_after_ms`" + `, and the ` + "`request_id`" + ` under which the broker's log has what it says of the call
([request ids](protocol.md#request-ids)). A refused item of a batch (one message of a publish, one settlement)
carries the same Problem in its own result, and its neighbours are not touched. A [stream](streams.md)
that the broker ends has the error of a call; a batch of a publish stream that is refused as a whole has the
Problem in its answer. With ` + "`STALE_ROUTE`" + ` the present route comes along, as a second detail or in the answer.

` + "`retry_after_ms`" + ` above 0 says that the same request may succeed later; 0 says that it will not, unchanged.
A reason keeps its meaning and its code for good.

The commands of ` + "`strandmq`" + ` end with the message and the reason in parentheses; with ` + "`--output json`" + ` with
an object on standard error, ` + "`{\"error\":{\"reason\":\"...\",\"text\":\"...\",\"request_id\":\"...\"}}`" + `, whose reason is empty where no broker
said it, and which has no request id where none heard it.

With curl the Problem stands, readable, under ` + "`details[0].debug`" + `:

` + "```json" + `
{"code":"not_found","message":"there is no topic \"x\"; ...",
 "details":[{"type":"strandmq.v1.Problem","value":"...","debug":{"reason":"UNKNOWN_TOPIC","message":"...","field":"topic","requestId":"..."}}]}
` + "```" + `

Some errors come from the protocol before a reason can be attached: ` + "`deadline_exceeded`" + ` for a timeout that
passed before the request arrived, ` + "`resource_exhausted`" + ` for an uncompressed gRPC message that is larger
than the server reads, and in gRPC and gRPC-Web what their own headers say wrongly, such as an encoding that
is not known here. Before a request was read there is nobody to tell: a connection whose request headers do
not arrive within 5 seconds is closed, without an answer if nothing of them came, else with status 400 in plain
text and without a Problem. One beyond the 256 that one remote address may have (loopback is not bounded so)
is closed as it opens, without an answer. The broker warns of the latter in its log, at most once
a minute, and counts each in ` + "`strandmq_connections_refused_total`" + `. Beyond 4,096 in all,
connections wait until others close.

| reason | code | when | what to do |
|---|---|---|---|
`)
	for _, r := range table {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.reason, r.code, r.when, r.what)
	}
	b.WriteString("\nIn the [plain HTTP API](http.md) a refusal is a problem (RFC 9457), with reason and code as here.\n")
	b.WriteString("\nThis page is written from the table in `internal/broker/errors.go`.\n")
	return b.String()
}

func TestTable(t *testing.T) {
	seen := map[string]bool{}
	name := regexp.MustCompile(`^[A-Z][A-Z_]*[A-Z]$`)
	for _, r := range table {
		if seen[r.reason] || !name.MatchString(r.reason) {
			t.Errorf("%q: twice, or not in upper snake case", r.reason)
		}
		seen[r.reason] = true
		var code connect.Code
		if err := code.UnmarshalText([]byte(r.code)); err != nil {
			t.Errorf("%s: %v", r.reason, err)
		}
		if r.when == "" || r.what == "" {
			t.Errorf("%s: say when it comes and what to do", r.reason)
		}
	}
	// Every reason in the source is in the table, and the other way round.
	used := map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	plainly, err := filepath.Glob("../httpapi/*.go")
	if err != nil || len(plainly) == 0 {
		t.Fatal(plainly, err)
	}
	files = append(files, plainly...)
	literal := regexp.MustCompile(`(?:refuse\(|passes\(|reason: |reason = |reason, field = |reason, field := |return )"([A-Z][A-Z_]+)"`)
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") || f == "errors.go" {
			continue
		}
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range literal.FindAllStringSubmatch(string(src), -1) {
			used[m[1]] = true
			if !seen[m[1]] {
				t.Errorf("%s uses reason %s, which is not in the table", f, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`reason(?:, field)? :?= "([A-Z][A-Z_]+)"`).FindAllStringSubmatch(string(src), -1) {
			used[m[1]] = true
		}
	}
	for r := range seen {
		if !used[r] {
			t.Errorf("reason %s is in the table and nowhere used", r)
		}
	}
}

func TestUnknownErrorsShowNothing(t *testing.T) {
	b := &Broker{}
	r := b.explain(errors.New("open /secret/path: secret"))
	if r.reason != "INTERNAL" {
		t.Fatalf("got %v", r)
	}
	if p := b.itemProblem(ctx(t), "messages", 3, errors.New("secret")); strings.Contains(p.String(), "secret") || p.GetField() != "messages[3]" {
		t.Fatalf("an item shows the inside: %v", p)
	}
}
