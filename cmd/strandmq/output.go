package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/table"
)

// marshal gives the API's JSON, on one line. protojson varies its spaces on
// purpose, so they are taken out again.
func marshal(m proto.Message) ([]byte, error) {
	raw, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = json.Compact(&b, raw)
	return b.Bytes(), err
}

// printJSON prints one message, indented.
func (a *app) printJSON(m proto.Message) error {
	raw, err := marshal(m)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err = a.out.Write(b.Bytes())
	return err
}

// printTable prints rows for people, or says in words that there are none.
func (a *app) printTable(t *table.Table, none string) error {
	if len(t.Rows) == 0 && none != "" {
		a.talk("%s", none)
		return nil
	}
	return t.Write(a.out, terminal(a.out))
}

// show prints an answer: as JSON for programs, else by fn. Then come the notes.
func (a *app) show(m proto.Message, fn func() error, notes ...func()) error {
	for _, note := range notes {
		defer note()
	}
	if r, ok := m.(interface{ GetBehind() string }); ok && r.GetBehind() != "" {
		defer func() { a.talk("note: %s", plain.Text(r.GetBehind())) }()
	}
	if a.json() {
		return a.printJSON(m)
	}
	return fn()
}

// facts prints name and value pairs.
func (a *app) facts(pairs ...string) {
	width := 0
	for i := 0; i < len(pairs); i += 2 {
		width = max(width, len(pairs[i]))
	}
	for i := 0; i < len(pairs); i += 2 {
		fmt.Fprintf(a.out, "%-*s  %s\n", width+1, pairs[i]+":", plain.Text(pairs[i+1]))
	}
}

// stamp prints a time, in UTC, to the millisecond.
func stamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().Format(stampForm)
}

// stampForm is how times are printed.
const stampForm = "2006-01-02T15:04:05.000Z"

// millis turns a span into the wire's milliseconds, refusing what would be lost.
func millis(flag string, d time.Duration) (*int64, error) {
	if d%time.Millisecond != 0 {
		return nil, usagef("--%s %v: whole milliseconds only", flag, d)
	}
	return proto.Int64(d.Milliseconds()), nil
}

func span(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// orDash stands in for nothing.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
