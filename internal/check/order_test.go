package check

import (
	"slices"
	"strings"
	"testing"
)

var input = []Item{
	{"DTW", "d1", "01"}, {"HNL", "h1", "01"}, {"DTW", "d2", "02"}, {"DTW", "d3", "03"}, {"HNL", "h2", "02"},
}

// run feeds steps: "3" hands out item 3 (from 0) and settles it, "3?" only hands
// it out, "3+" only settles it, "3!" takes the settlement back.
func run(steps string) *Order {
	o := NewOrder(input)
	for _, s := range strings.Fields(steps) {
		i := int(s[0] - '0')
		switch s[1:] {
		case "!":
			o.Undone(i)
			continue
		case "+":
			o.Done(i)
			continue
		}
		o.HandedOut(i, input[i].Key, input[i].Body)
		if s[1:] == "" {
			o.Done(i)
		}
	}
	return o
}

// finish ends a run in which the items of a list died.
func finish(o *Order, dead ...int) (missing int) {
	return o.Finish(func(i int) bool { return slices.Contains(dead, i) })
}

func TestOrderKept(t *testing.T) {
	for _, c := range []struct {
		steps string
		dead  []int
	}{
		{"0 1 2 3 4", nil},
		{"1 4 0 2 3", nil},              // keys run in parallel
		{"0? 1 0? 0 2? 2 4 3", nil},     // attempts
		{"0 0! 0? 0 2 3 1 4", nil},      // a settlement was refused
		{"0? 0? 0+ 0+ 0! 2 3 1 4", nil}, // two settled it, and the slow one was refused
		{"0 3 1 4", []int{2}},           // one died, told to nobody
		{"0 2 1", []int{3, 4}},          // the last ones died
	} {
		o := run(c.steps)
		if missing := finish(o, c.dead...); o.Count() != 0 || missing != 0 {
			t.Errorf("%s: %v, %d missing", c.steps, o.Violations(), missing)
		}
	}
}

func TestOrderBroken(t *testing.T) {
	for steps, want := range map[string]string{
		"0 3 2 1 4":  "number 2 arrived when number 4 was due", // reversal
		"0? 2":       "number 1 was passed over, and is no dead letter",
		"2":          "number 1 was passed over, and is no dead letter",
		"0 2 0?":     "number 1 arrived when number 3 was due", // came back
		"0 2 3 2?":   "went back from 03 to 02",
		"0 2? 0! 0?": "went back from 02 to 01",
	} {
		o := run(steps)
		finish(o)
		var all strings.Builder
		for _, v := range o.Violations() {
			all.WriteString(v.Text + "\n")
		}
		if o.Count() == 0 || !strings.Contains(all.String(), want) {
			t.Errorf("%s: %d violations %q; want %q", steps, o.Count(), all.String(), want)
		}
	}
}

// A dead item that arrives after a later one is a reversal all the same.
func TestOrderDeadDoesNotExcuseReversal(t *testing.T) {
	o := run("0 3 2")
	if finish(o, 2); o.Count() == 0 {
		t.Error("the reversal was excused")
	}
}

func TestOrderMissing(t *testing.T) {
	o := run("0 1")
	if o.Left() != 3 || finish(o, 4) != 2 {
		t.Errorf("%d left, %d missing", o.Left(), finish(o, 4))
	}
}

func TestOrderContent(t *testing.T) {
	o := NewOrder(input)
	o.HandedOut(0, "DTW", "d1 changed")
	o.HandedOut(0, "HNL", "d1")
	if o.Count() != 2 || o.Left() != len(input) {
		t.Errorf("%d violations, %d left: %v", o.Count(), o.Left(), o.Violations())
	}
}

// What is kept in words is bounded; the count is not.
func TestOrderBounded(t *testing.T) {
	o := NewOrder(input)
	for range 1000 {
		o.HandedOut(3, "DTW", "changed")
	}
	if o.Count() != 1000 || len(o.Violations()) != keepViolations {
		t.Errorf("%d counted, %d kept", o.Count(), len(o.Violations()))
	}
}
