package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/internal/broker"
	"github.com/strandmq/strandmq/internal/check"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func TestSample(t *testing.T) {
	f, err := readFlights()
	if err != nil {
		t.Fatal(err)
	}
	hopeless, some := 0, 0
	last := map[string]string{}
	for i, it := range f.items {
		switch {
		case f.fails[i] == always:
			hopeless++
		case f.fails[i] > 0:
			some++
		}
		if it.Stamp < last[it.Key] {
			t.Errorf("line %d: %s goes back to %s", i+1, it.Key, it.Stamp)
		}
		last[it.Key] = it.Stamp
	}
	if len(f.items) != 20000 || len(last) != 220 || len(f.index) != 20000 || hopeless != 8 || some < 300 {
		t.Errorf("%d flights of %d airports with %d ids, %d hopeless, %d failing", len(f.items), len(last), len(f.index), hopeless, some)
	}
}

// The demo on the first flights of its sample, twice in one folder: the second
// run publishes nothing, and both end with the same figures.
func TestDemoTwice(t *testing.T) {
	const size = 3000 // the first flight that can never be billed is number 2697
	dir := t.TempDir()
	for round := 1; round <= 2; round++ {
		whole, err := readFlights()
		if err != nil {
			t.Fatal(err)
		}
		whole.items = whole.items[:size]
		for id, i := range whole.index {
			if i >= size {
				delete(whole.index, id)
			}
		}
		b, err := broker.Start(t.Context(), broker.Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		var out, talk bytes.Buffer
		a := &app{out: &out, err: &talk, output: "json"}
		d := &demo{a: a, api: dial(b.URL()), failed: b.Failed(), sample: whole}
		err = d.run(t.Context())
		if cerr := b.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, talk.String())
		}
		var res demoResult
		if err := json.Unmarshal(out.Bytes(), &res); err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
		published, duplicates := size, 0
		if round == 2 {
			published, duplicates = 0, size
		}
		if res.Messages != size || res.Published != published || res.Duplicates != duplicates || len(res.Groups) != 2 {
			t.Errorf("round %d: %+v", round, res)
		}
		board, billing := res.Groups[0], res.Groups[1]
		if board.Acked != size || board.Retried != 0 || board.Dead != 0 || board.Violations != 0 {
			t.Errorf("round %d: %+v", round, board)
		}
		if billing.Acked != size-1 || billing.Dead != 1 || billing.Retried < 50 || billing.Violations != 0 {
			t.Errorf("round %d: %+v", round, billing)
		}
		if !strings.Contains(talk.String(), "crashes with") {
			t.Errorf("round %d: no member crashed", round)
		}
		if round == 2 && !strings.Contains(talk.String(), "nothing was published twice") {
			t.Errorf("the second run does not say that nothing was published twice:\n%s", talk.String())
		}
	}
}

// Half way through, the first member that holds a few messages crashes, and no other one,
// whoever did most of the work before.
func TestDemoCrashesOnce(t *testing.T) {
	f, err := readFlights()
	if err != nil {
		t.Fatal(err)
	}
	g := newDemoGroup(&demo{sample: f}, "billing", 4, nil)
	few := make([]*strandmqv1.Delivery, 2)
	for _, step := range []struct {
		failing bool
		acked   int
		name    string
		got     []*strandmqv1.Delivery
		want    bool
	}{
		{true, len(f.items)/2 - 1, "billing-1", few, false},
		{false, len(f.items) / 2, "billing-1", few, false},
		{true, len(f.items) / 2, "billing-1", few[:1], false},
		{true, len(f.items) / 2, "billing-4", few, true},
		{true, len(f.items), "billing-2", few, false},
	} {
		g.failing, g.acked = step.failing, step.acked
		if got := g.crash(step.name, step.got); got != step.want {
			t.Errorf("%+v: %v", step, got)
		}
	}
	if len(g.news) != 1 || !strings.HasPrefix(g.news[0], "billing-4 crashes with 2 ") {
		t.Errorf("it tells %q", g.news)
	}
}

// The judge of a demo group finds a planted reversal: a member is handed the
// second flight of an airport before the first.
func TestDemoFindsAReversal(t *testing.T) {
	f, err := readFlights()
	if err != nil {
		t.Fatal(err)
	}
	var first, second int = -1, -1
	for i, it := range f.items {
		if it.Key != "DFW" {
			continue
		}
		if first < 0 {
			first = i
		} else {
			second = i
			break
		}
	}
	o := check.NewOrder(f.items)
	for _, i := range []int{second, first} {
		o.HandedOut(i, f.items[i].Key, f.items[i].Body)
		o.Done(i)
	}
	o.Finish(func(int) bool { return false })
	if o.Count() < 2 {
		t.Errorf("the reversal was not found: %v", o.Violations())
	}
}
