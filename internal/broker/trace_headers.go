package broker

import (
	"regexp"
	"strings"

	"github.com/strandmq/strandmq/internal/record"
)

// parentForm is a traceparent as W3C Trace Context has it: version 00, or a later one,
// which may say more behind.
var parentForm = regexp.MustCompile(`^(?:00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}|[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-[!-~]{0,200})?)$`)

// traceOf is the trace id of a traceparent; empty: it is not valid.
func traceOf(parent string) string {
	m := parentForm.FindStringSubmatch(parent)
	if m == nil || strings.HasPrefix(parent, "ff") || strings.HasPrefix(parent, "00") && m[1] == "" {
		return ""
	}
	trace, span := m[1]+m[3], m[2]+m[4]
	if strings.Trim(trace, "0") == "" || strings.Trim(span, "0") == "" {
		return ""
	}
	return trace
}

// calledBy is what a message's headers say of the call that it came with: its trace, and
// what its caller named it. Of two headers of a name the first counts.
func calledBy(headers []record.Header) (trace, request string) {
	first := func(name string) string {
		for _, h := range headers {
			if strings.EqualFold(h.Name, name) {
				return string(h.Value)
			}
		}
		return ""
	}
	return traceOf(first("traceparent")), valid(first("x-request-id"))
}
