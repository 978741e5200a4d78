package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/strandmq/strandmq/internal/broker"
	"github.com/strandmq/strandmq/internal/plain"
)

// reasonOf is the stable name of why a command failed: a broker's refusal
// (docs/errors.md), or what kept one from starting (docs/cluster.md). Empty: it has none.
func reasonOf(err error) string {
	var refused *apiError
	var start *broker.StartError
	switch {
	case errors.As(err, &refused):
		return refused.reason
	case errors.As(err, &start):
		return string(start.Reason)
	}
	return ""
}

// requestOf is the request id of the call that a command failed with; empty: no broker
// heard one.
func requestOf(err error) string {
	if refused := (*apiError)(nil); errors.As(err, &refused) {
		return refused.requestID
	}
	return ""
}

// tellError prints what a command ended with: a line for people, an object for programs.
// Of a fault of the broker's people are told the request id too, to search its log by.
func (a *app) tellError(reason, request, text string) {
	if !a.json() {
		if reason == "INTERNAL" && !strings.Contains(text, request) {
			text += ", under request id " + request
		}
		fmt.Fprintln(a.err, "strandmq: "+plain.Lines(withReason(text, reason)))
		return
	}
	var out struct {
		Error struct {
			Reason    string `json:"reason"` // empty: it has none
			Text      string `json:"text"`
			RequestID string `json:"request_id,omitempty"` // absent: no broker heard it
		} `json:"error"`
	}
	out.Error.Reason, out.Error.Text, out.Error.RequestID = reason, text, request
	b, err := json.Marshal(out)
	must(err) // two texts
	fmt.Fprintln(a.err, string(b))
}

// endsNamed matches a text that ends with a reason already, as of the node that was asked.
var endsNamed = regexp.MustCompile(`\(([A-Z][A-Z_]+)\)$`) //nolint:gochecknoglobals // compiled once

// withReason ends a text with its reason.
func withReason(text, reason string) string {
	switch {
	case reason == "":
		return text
	case strings.HasSuffix(text, "("+reason+")"):
		return text
	case endsNamed.MatchString(text):
		return strings.TrimSuffix(text, ")") + ", " + reason + ")"
	}
	return text + " (" + reason + ")"
}
