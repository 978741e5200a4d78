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
		{&failure{&apiError{reason: "NO_QUORUM", requestID: "r-1", text: "too few"}}, "NO_QUORUM", "strandmq: too few (NO_QUORUM)"},
		{&failure{&apiError{reason: "INTERNAL", requestID: "r-1", text: "it failed"}}, "INTERNAL", "strandmq: it failed, under request id r-1 (INTERNAL)"},
		{&failure{&apiError{reason: "INTERNAL", requestID: "r-1", text: "see request id r-1"}}, "INTERNAL", "strandmq: see request id r-1 (INTERNAL)"},
		{&failure{&apiError{reason: "INTERNAL", text: "an older broker's"}}, "INTERNAL", "strandmq: an older broker's (INTERNAL)"},
	} {
		reason := reasonOf(c.err)
		var people, programs bytes.Buffer
		(&app{err: &people, output: "table"}).tellError(reason, requestOf(c.err), c.err.Error())
		(&app{err: &programs, output: "json"}).tellError(reason, requestOf(c.err), c.err.Error())
		if reason != c.reason || people.String() != c.want+"\n" {
			t.Errorf("%v: reason %q, and it says %q; want %q and %q", c.err, reason, people.String(), c.reason, c.want)
		}
		var got struct {
			Error struct {
				Reason, Text string
				RequestID    string `json:"request_id"`
			}
		}
		if err := json.Unmarshal(programs.Bytes(), &got); err != nil || got.Error.Reason != c.reason || got.Error.Text != c.err.Error() || got.Error.RequestID != requestOf(c.err) {
			t.Errorf("%s: %+v, %v", programs.Bytes(), got, err)
		}
	}
}
