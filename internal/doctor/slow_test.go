package doctor

import (
	"strings"
	"testing"
	"time"
)

// A rate is one of messages, whatever unit a span is kept in.
func TestPerSecond(t *testing.T) {
	for took, want := range map[time.Duration]string{
		211 * time.Millisecond: "4.7",
		15 * time.Second:       "0.067",
		time.Millisecond:       "1000",
		2 * time.Minute:        "0.0083",
	} {
		if got := perSecond(took); got != want {
			t.Errorf("%v: %s a second, want %s", took, got, want)
		}
	}
	f := three()
	g := &f.Groups[0]
	behind(g)
	g.Now.HandledMs, g.Before.HandledMs = 2110, 0
	g.Stalls = []Stall{{Reason: "IN_FLIGHT", Key: "a", Offset: 7, Waiting: 900, Attempts: 1}}
	found := Diagnose(f, Options{})
	if len(found) != 1 || found[0].Cause != HotKey || !strings.Contains(strings.Join(found[0].Evidence, "\n"), "no more than 4.7 a second") {
		t.Errorf("%+v", found)
	}
}
