package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/strandmq/strandmq/loadtest"
)

// A report with violations: in the table, in words, and in the exit code.
func TestLoadReport(t *testing.T) {
	var out, talk bytes.Buffer
	a := &app{out: &out, err: &talk, output: "table"}
	broken := loadtest.Verdict{Outcome: loadtest.Broken, Lost: 2, Disordered: 1, Altered: 1, Other: 1, Examples: []string{"P1: key 3 \x1b[31mis gone"}}
	rep := &loadtest.Report{
		Topic: "t", Measured: 1000, Drained: true, Drain: 1234,
		Publish: loadtest.Published{
			Messages: 12345, Rate: 1234.5, Bytes: 2 << 20, Calls: 1000, Duplicates: 3, Unknown: 4, Unsent: 5,
			Latency: loadtest.Latency{P50: 0.5, P90: 9.994, P99: 99.94, P999: 999.5, Max: 12345},
		},
		Groups:  []loadtest.Group{{Name: "g", Messages: 12000, Acked: 11998, Verdict: broken}},
		Verdict: broken,
	}
	if err := a.showLoad(rep, true); err != nil {
		t.Fatal(err)
	}
	want := `WHAT                 MESSAGES  PER SECOND  P50      P90      P99      P99.9     MAX
publish              12,345    1,235       0.50 ms  9.99 ms  99.9 ms  1,000 ms  12,345 ms
end to end, group 1  12,000    -           -        -        -        -         -

GROUP  ACKED   NACKED  LAPSED  CRASHES  LEFT  AGAIN  DEAD  LONGEST GAP
1      11,998  0       0       0        0     0      0     -

GROUP  LOST  DUPLICATED  OUT OF ORDER  OVERLAPPING  OTHER  VERDICT
1      2     0           1             0            2      broken
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	wantTalk := `2.0 MiB of bodies a second, 12.3 messages a call; figures of 1.0 s after 0.0 s of warm-up.
The groups were through 1,234 ms after the last receipt.
5 messages were due and never sent: the rate was too high. They are in the publish latencies with the time that they had waited.
3 receipts were lost on their way; the messages were sent again and recognised.
4 messages have no receipt, and nobody knows whether they were stored.
`
	said, ok := strings.CutPrefix(talk.String(), wantTalk)
	if !ok || !strings.HasPrefix(said, "VIOLATION P1: key 3 ") || strings.Contains(said, "\x1b") ||
		!strings.Contains(said, "Topic t stays on the broker") || strings.Contains(said, "Checked") {
		t.Errorf("it says\n%s\nand not\n%s", talk.String(), wantTalk)
	}
	for outcome, want := range map[string]string{
		loadtest.Kept: "", loadtest.NotJudged: "", loadtest.Broken: "5 violations", loadtest.Incomplete: "not everything could be checked",
	} {
		rep.Verdict.Outcome = outcome
		err := verdictError(rep)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", outcome, err, want)
		}
	}
	rep.Verdict = loadtest.Verdict{Outcome: loadtest.Incomplete, Left: 1000}
	if err := verdictError(rep); !strings.Contains(err.Error(), "1,000 messages were still with the broker") {
		t.Error(err)
	}
}

func TestLoadProgress(t *testing.T) {
	var talk bytes.Buffer
	show := (&app{err: &talk}).newLoadProgress()
	show.tell(loadtest.Progress{
		At: 3 * time.Second, Total: 31 * time.Second, Publishing: true, Published: 3000, Rate: 1000.4, Publish: loadtest.Latency{P99: 3},
		Groups: []loadtest.GroupProgress{{Name: "long", Ended: 2990, Rate: 990, Violations: 2}},
	})
	show.tell(loadtest.Progress{At: 40 * time.Second, Total: 31 * time.Second})
	want := `  3 of 31 s: published 3,000, 1,000/s, p99 3.00 ms | group 1: done 2,990, 990/s, end to end p99 -, VIOLATIONS 2
  published; waiting for the groups: published 0, 0/s, p99 -
`
	if diff := cmp.Diff(want, talk.String()); diff != "" {
		t.Error(diff)
	}
}
