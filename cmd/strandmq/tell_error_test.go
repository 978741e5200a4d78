package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/strandmq/strandmq/internal/broker"
)

// An error is named, once, whoever says it.
func TestErrorsHaveTheirReasons(t *testing.T) {
	token := fmt.Errorf("x: %w", &broker.StartError{Reason: broker.JoinRefused, Text: "the token was used (TOKEN_USED)"})
	for _, c := range []struct {
		err          error
		reason, want string
	}{
		{&failure{&apiError{reason: "NO_QUORUM", text: "too few"}}, "NO_QUORUM", "strandmq: too few (NO_QUORUM)"},
		{&usageError{text: "bad", err: &apiError{reason: "BAD_NAME", text: "bad"}}, "BAD_NAME", "strandmq: bad (BAD_NAME)"},
		{startFailure(&broker.StartError{Reason: broker.NotLoopback, Text: "no TLS"}), "NOT_LOOPBACK", "strandmq: no TLS (NOT_LOOPBACK)"},
		{&failure{token}, "JOIN_REFUSED", "strandmq: x: the token was used (TOKEN_USED, JOIN_REFUSED)"},
		{&failure{&apiError{reason: "NODE_HOLDS", text: "it holds (NODE_HOLDS)"}}, "NODE_HOLDS", "strandmq: it holds (NODE_HOLDS)"},
		{usagef("no such flag"), "", "strandmq: no such flag"},
		{&failure{&apiError{text: "nobody answers (refused)"}}, "", "strandmq: nobody answers (refused)"},
	} {
		reason := reasonOf(c.err)
		var people, programs bytes.Buffer
		(&app{err: &people, output: "table"}).tellError(reason, c.err.Error())
		(&app{err: &programs, output: "json"}).tellError(reason, c.err.Error())
		if reason != c.reason || people.String() != c.want+"\n" {
			t.Errorf("%v: reason %q, and it says %q; want %q and %q", c.err, reason, people.String(), c.reason, c.want)
		}
		var got struct{ Error struct{ Reason, Text string } }
		if err := json.Unmarshal(programs.Bytes(), &got); err != nil || got.Error.Reason != c.reason || got.Error.Text != c.err.Error() {
			t.Errorf("%s: %+v, %v", programs.Bytes(), got, err)
		}
	}
}
