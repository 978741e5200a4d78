package broker

import (
	"strings"
	"testing"
)

// Spans are told as spans.
func TestWaitIsToldAsSpan(t *testing.T) {
	if r := checkWait(7_200_000); r == nil || !strings.HasPrefix(r.text, "2h is not 0 to 1m") {
		t.Errorf("%v", r)
	}
	for _, ms := range []int64{0, 60_000} {
		if r := checkWait(ms); r != nil {
			t.Errorf("%d: %v", ms, r)
		}
	}
}

// How many lines of a publish were refused is told as it is.
func TestRefusedLines(t *testing.T) {
	p := newPlainly(t, start(t, t.TempDir()))
	p.do("PUT", "/v1/topics/t", asJSON, `{"partitions":1}`).ok(201, nil)
	const bad, good = `{"key":"k","value":"x","headers":[{"name":"a b","value":"c"}]}`, `{"key":"k","value":"x"}`
	for lines, want := range map[string]string{
		bad + "\n" + bad:  "all 2 messages were refused; the first is line 1: ",
		good + "\n" + bad: "refused: 1 of 2 messages, and the others are stored; the first refused is line 2: ",
		bad:               "line 1: ",
	} {
		if got := p.do("POST", "/v1/topics/t/messages", ndlines, lines); got.status < 400 || !strings.Contains(string(got.body), `"detail":"`+want) {
			t.Errorf("%s\n%s\nwant %s", lines, got.body, want)
		}
	}
}
