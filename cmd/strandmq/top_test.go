//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/doctor"
)

// For programs: two looks, sorted, cut off, with rates.
func TestTopOnce(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir()).URL()
	at(t, url, "small", nil).store(1, "a")
	big := at(t, url, "big", nil)
	big.store(3, "a", "b")
	at(t, url, "none", nil)
	once := func(want int, args ...string) string {
		t.Helper()
		var out, talk bytes.Buffer
		code := run(&app{in: strings.NewReader(""), out: &out, err: &talk}, append([]string{"top", "--server", url, "--once", "--interval", "100ms"}, args...))
		if code != want {
			t.Errorf("top %v: exit code %d, want %d: %s", args, code, want, talk.String())
		}
		return out.String()
	}
	var got topLook
	if err := json.Unmarshal([]byte(once(exitDone, "--output", "json", "--rows", "2")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Groups) != 2 || got.Groups[0].Topic != "big" || got.Groups[1].Topic != "small" || got.More != 1 || got.Groups[0].Lag != 6 || len(got.Nodes) != 1 || !got.Nodes[0].There {
		t.Errorf("%+v", got)
	}
	if r := got.Groups[0].AckRate; r == nil || *r != 0 {
		t.Errorf("nothing was acked, and the rate is %v", r)
	}
	if text := once(exitDone); !strings.Contains(text, "1 node, 3 groups") || strings.Index(text, "big ") > strings.Index(text, "small ") {
		t.Errorf("it prints:\n%s", text)
	}
	if err := json.Unmarshal([]byte(once(exitDone, "--topic", "big", "--group", "g", "-o", "json")), &got); err != nil || len(got.Partitions) != 1 || got.Partitions[0].Lag != 6 {
		t.Errorf("%+v, %v", got, err)
	}
	once(exitFailed, "--topic", "big", "--group", "nobody")
	once(exitUsage, "--group", "g")
	once(exitUsage, "--interval", "1ms")
	url = "http://127.0.0.1:1"
	once(exitFailed)
}

// Rates are by what changed; what was made anew has none.
func TestTopRates(t *testing.T) {
	t.Parallel()
	row := func(topic string, lag, acked, nacked uint64) topRow {
		return rowOf(topic, "g", doctor.Counts{Lag: lag, Acked: acked, Nacked: nacked}, 0, 0, false)
	}
	before := []topRow{row("a", 10, 100, 1), row("b", 5, 50, 0)}
	now := []topRow{row("b", 5, 20, 0), row("a", 4, 110, 2), row("c", 1, 0, 0)}
	rates(now, before, 2*time.Second)
	if a := now[1]; *a.LagRate != -3 || *a.AckRate != 5 || *a.FailRate != .5 {
		t.Errorf("%v %v %v", *a.LagRate, *a.AckRate, *a.FailRate)
	}
	if now[0].AckRate != nil || now[2].AckRate != nil {
		t.Error("a rate of what was not there before, or counts from further back")
	}
}
