package consumer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestTwin drives one or two groups with random scripts.
func TestTwin(t *testing.T) {
	checkTwin(t, 2, 80, func(ops []twinOp) error {
		return inBubble(t, func() error { return newTwinWorld().run(ops) })
	})
}

// TestTwinGroupsIndependent runs scripts of two groups, and then each group's
// part alone: what its clients saw must be the same (P4, I27).
func TestTwinGroupsIndependent(t *testing.T) {
	checkTwin(t, 2, 40, func(ops []twinOp) error { return independent(t, ops) })
}

func independent(t *testing.T, script []twinOp) error {
	var ops []twinOp
	for _, o := range script {
		// At rest between the steps; otherwise the order in the log of what was
		// proposed at one time would differ, as it may.
		ops = append(ops, o, twinOp{do: "drain"})
	}
	var both *twinWorld
	if err := inBubble(t, func() error { both = newTwinWorld(); both.patient = true; return both.run(ops) }); err != nil {
		return err
	}
	// The clock is the same for both: what one group waited for, all waited.
	for i, n := 0, 0; i < len(ops) && n < len(both.dues); i++ {
		if ops[i].do == "due" {
			ops[i] = twinOp{do: "wait", a: int(both.dues[n])}
			n++
		}
	}
	for n := range both.groups {
		var mine []twinOp
		for _, o := range ops {
			if twinShared[o.do] || o.g == n {
				mine = append(mine, o)
			}
		}
		var alone *twinWorld
		if err := inBubble(t, func() error { alone = newTwinWorld(); alone.patient = true; return alone.run(mine) }); err != nil {
			return fmt.Errorf("group %d alone: %w", n, err)
		}
		if alone.groupOf(n) == nil {
			continue
		}
		if a, b := alone.groupOf(n).seen(), both.groupOf(n).seen(); a != b {
			return fmt.Errorf("I27: group %d saw something else alone than beside the other group:\n%s", n, firstDifference(a, b))
		}
	}
	return nil
}

// seen is what a group's clients saw in the script.
func (g *twinGroup) seen() string { return strings.Join(g.lines[:g.script], "\n") }

// checkTwin draws scripts until one fails, and cuts that one short. The cutting
// is done here because a script knows what may be left out of it; rapid, asked
// to shrink it again, is told the same each time.
func checkTwin(t *testing.T, groups, most int, run func([]twinOp) error) {
	found := ""
	rapid.Check(t, func(rt *rapid.T) {
		ops := drawTwinScript(rt, rapid.IntRange(1, groups).Draw(rt, "groups"), most)
		if found == "" {
			if err := run(ops); err != nil {
				ops, err = cutShort(ops, err, run)
				found = fmt.Sprintf("%v\nscript:\n%s", err, twinScriptText(ops))
			}
		}
		if found != "" {
			rt.Fatal(found)
		}
	})
}

// cutShort leaves out steps, and makes numbers smaller, as long as the script
// still fails.
func cutShort(ops []twinOp, err error, run func([]twinOp) error) ([]twinOp, error) {
	for n := len(ops) / 2; n > 0; {
		cut := false
		for i := 0; i+n <= len(ops); {
			try := slices.Delete(slices.Clone(ops), i, i+n)
			if e := run(try); e != nil {
				ops, err, cut = try, e, true
			} else {
				i += n
			}
		}
		if !cut || n > 1 {
			n /= 2
		}
	}
	for i := range ops {
		for _, field := range []func(*twinOp) *int{
			func(o *twinOp) *int { return &o.a }, func(o *twinOp) *int { return &o.b }, func(o *twinOp) *int { return &o.c },
		} {
			for _, v := range []int{0, 1, 2, 3, 4} {
				try := slices.Clone(ops)
				if p := field(&try[i]); v < *p {
					*p = v
					if e := run(try); e != nil {
						ops, err = try, e
						break
					}
				}
			}
		}
	}
	return ops, err
}

func twinScriptText(ops []twinOp) string {
	var b strings.Builder
	for _, o := range ops {
		b.WriteString(o.String() + "\n")
	}
	return b.String()
}
