package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A timeline has a line for each hand-out, from when it began until it ended, group by
// group, and is as wide for a week as for a second.
func TestTimeline(t *testing.T) {
	for _, unit := range []time.Duration{time.Millisecond, time.Hour} {
		at := func(n int) *timestamppb.Timestamp {
			return timestamppb.New(time.UnixMilli(1_700_000_000_000).Add(time.Duration(n) * unit))
		}
		m := &strandmqv1.MessageTrace{Message: &strandmqv1.Message{}, Events: []*strandmqv1.TraceEvent{
			{Time: at(0), What: "published", Node: 2},
			{Time: at(0), What: "handed-out", Group: "b", Member: "m1", Attempt: 1, Node: 2, Until: at(30)},
			{Time: at(10), What: "handed-out", Group: "a", Member: "m2", Attempt: 1, Detail: "for 30000 ms", Node: 2, Until: at(40)},
			{Time: at(10), What: "handed-out", Group: "d", Member: "m4", Attempt: 1, Detail: "at most once", Node: 2, Settled: true},
			{Time: at(47), What: "nacked", Group: "b", Member: "m1", Attempt: 1, Detail: "no price", Node: 3},
			{Time: at(50), What: "extended", Group: "a", Member: "m2", Attempt: 1, Node: 3, Until: at(100)},
			{Time: at(94), What: "replayed", Group: "b", Node: 3},
			{Time: at(-5), What: "reset", Group: "c"}, // by the clock of another leader
		}}
		var out, notes bytes.Buffer
		if err := (&app{out: &out, err: &notes, output: "timeline"}).lives(&strandmqv1.TraceResponse{Messages: []*strandmqv1.MessageTrace{m, m}}); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(notes.String(), timelineLegend); n != 1 {
			t.Errorf("the legend of two is told %d times", n)
		}
		var got []string
		for _, l := range strings.Split(out.String(), "\n") {
			if f := strings.Fields(l); strings.HasPrefix(l, "-") || len(f) > 3 && f[1][0] == '+' {
				got = append(got, f[0]+" "+strings.Join(f[2:], " "))
			}
		}
		// 94 units are 48 columns: two for each.
		for i, want := range []string{
			"- P" + strings.Repeat(".", 47) + " 2 - - published",
			"b " + strings.Repeat("=", 23) + "N" + strings.Repeat(".", 24) + " 2, 3 1 m1 nacked after " + (47 * unit).String() + ": no price",
			"b " + strings.Repeat(".", 47) + "R 3 - - replayed",
			"a " + strings.Repeat(".", 5) + strings.Repeat("=", 42) + "> 2 1 m2 handed-out, until +" + (100 * unit).String(),
			"d " + strings.Repeat(".", 5) + "A" + strings.Repeat(".", 42) + " 2 1 m4 handed out at most once",
			"c *" + strings.Repeat(".", 47) + " - - - reset",
		} {
			if i >= len(got) || got[i] != want {
				t.Fatalf("line %d is not %q:\n%s", i, want, out.String())
			}
		}
	}
	if got := (&bar{mark: 'P'}).drawn(0); got != "P"+strings.Repeat(".", 47) {
		t.Errorf("of no time at all: %q", got)
	}
}

// A moment is typed as a time or so long ago, with the @ of positions or without.
func TestMoment(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"5m": now.Add(-5 * time.Minute), "@-5m": now.Add(-5 * time.Minute), "2026-11-29T08:00:00Z": now.Add(-28 * time.Hour), "@2026-11-29T09:00:00+01:00": now.Add(-28 * time.Hour),
	} {
		var f momentFlag
		if err := f.Set(text); err != nil || !f.at(now).Equal(want) {
			t.Errorf("%s is %v, %v, and not %v", text, f.at(now), err, want)
		}
	}
	for _, text := range []string{"", "0s", "@", "yesterday", "12"} {
		if err := new(momentFlag).Set(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
