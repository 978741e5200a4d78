package main

import (
	"strings"
	"time"

	"github.com/strandmq/strandmq/internal/quantity"
)

// momentGrammar is how a moment is typed.
const momentGrammar = "5m (ago) or RFC 3339, such as 2026-11-29T08:00:00Z"

// momentFlag is a moment: a time, or so long ago. The @ of positions may stand before it.
type momentFlag struct {
	text string
	time time.Time
	ago  time.Duration
	set  bool
}

func (f *momentFlag) String() string { return f.text }
func (f *momentFlag) Type() string   { return "time" }

func (f *momentFlag) Set(s string) error {
	bare := strings.TrimPrefix(strings.TrimPrefix(s, "@"), "-")
	if t, err := time.Parse(time.RFC3339Nano, bare); err == nil && t.UTC().Year() >= 1 && t.UTC().Year() <= 9999 {
		*f = momentFlag{text: s, time: t.UTC(), set: true}
		return nil
	}
	d, err := quantity.ParseSpan(bare)
	if err != nil || d <= 0 {
		return usagef("%q is no time: use %s", s, momentGrammar)
	}
	*f = momentFlag{text: s, ago: d, set: true}
	return nil
}

// at is the moment, given the present one.
func (f *momentFlag) at(now time.Time) time.Time {
	if f.ago > 0 {
		return now.Add(-f.ago).UTC()
	}
	return f.time
}
