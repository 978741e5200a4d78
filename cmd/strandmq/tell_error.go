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

// tellError prints what a command ended with: a line for people, an object for programs.
func (a *app) tellError(reason, text string) {
	if !a.json() {
		fmt.Fprintln(a.err, "strandmq: "+plain.Lines(withReason(text, reason)))
		return
	}
	var out struct {
		Error struct {
			Reason string `json:"reason"` // empty: it has none
			Text   string `json:"text"`
		} `json:"error"`
	}
	out.Error.Reason, out.Error.Text = reason, text
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
