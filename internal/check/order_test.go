package check

import (
	"strings"
	"testing"
)

var input = []Item{
	{"DTW", "d1", "01"}, {"HNL", "h1", "01"}, {"DTW", "d2", "02"}, {"DTW", "d3", "03"}, {"HNL", "h2", "02"},
}

// run feeds steps: "3" hands out item 3 (from 0) and settles it, "3?" only hands
// it out, "3!" takes the settlement back.
func run(steps string) *Order {
	o := NewOrder(input)
	for _, s := range strings.Fields(steps) {
		i := int(s[0] - '0')
		switch s[1:] {
		case "!":
			o.Undone(i)
			continue
		}
		o.HandedOut(i, input[i].Key, input[i].Body)
		if s[1:] == "" {
			o.Done(i)
		}
	}
	return o
}

func TestOrderKept(t *testing.T) {
	for _, steps := range []string{
		"0 1 2 3 4",
		"1 4 0 2 3",          // keys run in parallel
		"0? 1 0? 0 2? 2 4 3", // attempts
		"0 0! 0? 0 2 3 1 4",  // a settlement was refused
	} {
		o := run(steps)
		if o.Count() != 0 || o.Missing() != 0 {
			t.Errorf("%s: %v, %d missing", steps, o.Violations(), o.Missing())
		}
	}
}

func TestOrderBroken(t *testing.T) {
	for steps, want := range map[string]string{
		"0 3 2 1 4":  "number 3 arrived when number 2 was due", // reversal
		"0? 2":       "number 2 arrived when number 1 was due", // overtaken
		"2":          "number 2 arrived when number 1 was due", // passed over
		"0 2 0?":     "number 1 arrived when number 3 was due", // came back
		"0 2 3 2?":   "went back from 03 to 02",
		"0 2? 0! 0?": "went back from 02 to 01",
	} {
		o := run(steps)
		var all strings.Builder
		for _, v := range o.Violations() {
			all.WriteString(v.Text + "\n")
		}
		if o.Count() == 0 || !strings.Contains(all.String(), want) {
			t.Errorf("%s: %d violations %q; want %q", steps, o.Count(), all.String(), want)
		}
	}
}

func TestOrderContent(t *testing.T) {
	o := NewOrder(input)
	o.HandedOut(0, "DTW", "d1 changed")
	o.HandedOut(0, "HNL", "d1")
	if o.Count() != 2 || o.Missing() != len(input) {
		t.Errorf("%d violations, %d missing: %v", o.Count(), o.Missing(), o.Violations())
	}
}

// What is kept in words is bounded; the count is not.
func TestOrderBounded(t *testing.T) {
	o := NewOrder(input)
	for range 1000 {
		o.HandedOut(3, "DTW", "d3")
	}
	if o.Count() != 1000 || len(o.Violations()) != keepViolations {
		t.Errorf("%d counted, %d kept", o.Count(), len(o.Violations()))
	}
}
