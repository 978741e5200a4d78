package coordinator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// crew is a group's members and what they hold, the way the machine keeps them.
type crew map[string][]Share

func (c crew) names() []string { return slices.Sorted(maps.Keys(c)) }

// reassign runs assign over the crew.
func (c crew) reassign(partitions int) crew {
	names := c.names()
	held := make([][]Share, len(names))
	for i, n := range names {
		held[i] = c[n]
	}
	out := make(crew)
	for i, shares := range assign(partitions, held) {
		out[names[i]] = shares
	}
	return out
}

func (c crew) String() string {
	var b strings.Builder
	for _, n := range c.names() {
		fmt.Fprintf(&b, "%s:", n)
		for _, s := range c[n] {
			fmt.Fprintf(&b, " %v", s)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// moved counts the shares in after that their holder did not have in before.
func moved(before, after crew) int {
	n := 0
	for name, shares := range after {
		for _, s := range shares {
			if !slices.Contains(before[name], s) {
				n++
			}
		}
	}
	return n
}

// TestAssign runs the before/after scenarios in testdata/assign.
//
//	topic N            start over with N partitions and nobody
//	join / leave A B   change the members, print the assignment and what moved
//	again              assign once more: nothing may move
func TestAssign(t *testing.T) {
	datadriven.Walk(t, "testdata/assign", func(t *testing.T, path string) {
		partitions, now := 0, crew{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			before := now
			now = maps.Clone(now)
			switch d.Cmd {
			case "topic":
				if _, err := fmt.Sscan(d.CmdArgs[0].Key, &partitions); err != nil {
					d.Fatalf(t, "%v", err)
				}
				now = crew{}
				return ""
			case "join":
				for _, a := range d.CmdArgs {
					now[a.Key] = nil
				}
			case "leave":
				for _, a := range d.CmdArgs {
					delete(now, a.Key)
				}
			case "again":
			default:
				d.Fatalf(t, "unknown command")
			}
			now = now.reassign(partitions)
			if err := covers(partitions, now); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return fmt.Sprintf("%smoved: %d\n", now, moved(before, now))
		})
	})
}

// covers checks that every partition's keys are given out exactly once.
func covers(partitions int, c crew) error {
	type part struct{ partition, share uint32 }
	given := make(map[part]string)
	shares := make(map[uint32]uint32)
	for _, name := range c.names() {
		last := -1
		for _, s := range c[name] {
			if int(s.Partition) >= partitions || s.Share >= s.Shares {
				return fmt.Errorf("%s holds %v of %d partitions", name, s, partitions)
			}
			if int(s.Partition) <= last {
				return fmt.Errorf("%s holds its shares out of order: %v", name, c[name])
			}
			last = int(s.Partition)
			if other, ok := given[part{s.Partition, s.Share}]; ok {
				return fmt.Errorf("%s and %s both hold %v", other, name, s)
			}
			given[part{s.Partition, s.Share}] = name
			if n, ok := shares[s.Partition]; ok && n != s.Shares {
				return fmt.Errorf("partition %d is in %d shares and in %d", s.Partition, n, s.Shares)
			}
			shares[s.Partition] = s.Shares
		}
	}
	total := 0
	for _, n := range shares {
		total += int(n)
	}
	if len(c) > 0 && (len(shares) != partitions || total != len(given)) {
		return fmt.Errorf("%d of %d partitions are given out, %d of %d shares", len(shares), partitions, len(given), total)
	}
	return nil
}

// balanced checks the promise of assign.
func balanced(partitions int, c crew) error {
	if len(c) <= partitions {
		least, most := partitions, 0
		for _, shares := range c {
			least, most = min(least, len(shares)), max(most, len(shares))
		}
		if len(c) > 0 && most-least > 1 {
			return fmt.Errorf("members hold from %d to %d partitions", least, most)
		}
		return nil
	}
	least, most := uint32(len(c)), uint32(0)
	for name, shares := range c {
		if len(shares) != 1 {
			return fmt.Errorf("%s holds %d shares", name, len(shares))
		}
		least, most = min(least, shares[0].Shares), max(most, shares[0].Shares)
	}
	if most-least > 1 {
		return fmt.Errorf("partitions are in %d to %d shares", least, most)
	}
	return nil
}

// Over any history of joins and leaves the assignment covers, is balanced and
// sticky, and moves no more than a naive count says it must.
func TestAssignProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.IntRange(1, 24).Draw(t, "partitions")
		now := crew{}
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			before := now
			now = maps.Clone(now)
			for range rapid.IntRange(1, 5).Draw(t, "at once") {
				name := fmt.Sprintf("m%02d", rapid.IntRange(0, 40).Draw(t, "member"))
				if _, ok := now[name]; ok {
					delete(now, name)
				} else {
					now[name] = nil
				}
			}
			held := maps.Clone(now)
			now = now.reassign(partitions)
			if err := cmp.Or(covers(partitions, now), balanced(partitions, now)); err != nil {
				t.Fatalf("%v\nbefore:\n%safter:\n%s", err, before, now)
			}
			if twice := now.reassign(partitions); twice.String() != now.String() {
				t.Fatalf("assigning again changed\n%sto\n%s", now, twice)
			}
			if kept, most := stayed(held, now), couldStay(partitions, held); kept != most {
				t.Fatalf("%d stayed where %d could\nbefore:\n%safter:\n%s", kept, most, before, now)
			}
		}
	})
}

// stayed counts, with whole partitions, the partitions that stayed with one of
// their holders; with shared ones, the members that stayed at a partition of
// theirs.
func stayed(before, after crew) int {
	n := 0
	for name, shares := range after {
		for _, s := range shares {
			if slices.ContainsFunc(before[name], func(b Share) bool { return b.Partition == s.Partition }) {
				n++
			}
		}
	}
	return n
}

// couldStay is the most that any balanced assignment lets stay where it is, by
// maximum flow: a naive twin that knows nothing of how assign goes about it. An
// arc leads from each member to each partition that it holds something of. With
// whole partitions each takes one member and members take floor(P/M) or one
// more; with shared ones each member takes one and partitions the like.
func couldStay(partitions int, held crew) int {
	names := held.names()
	left, right := len(names), partitions // left takes many, right takes one
	arcs := make([][]int, left)
	for i, n := range names {
		for _, s := range held[n] {
			arcs[i] = append(arcs[i], int(s.Partition))
		}
	}
	if left == 0 {
		return 0
	}
	if left > right {
		turned := make([][]int, right)
		for m, ps := range arcs {
			for _, p := range ps {
				turned[p] = append(turned[p], m)
			}
		}
		left, right, arcs = right, left, turned
	}
	lo, odd := right/left, right%left
	// First as many as fit under the floor, then let up to odd of the left take
	// one more. Augmenting paths never undo what was gained, and both steps are
	// matroids, so greedy is right.
	takes := make([]int, right)
	for r := range takes {
		takes[r] = none
	}
	load, cap := make([]int, left), make([]int, left)
	for l := range cap {
		cap[l] = lo
	}
	var augment func(l int, seen []bool) bool
	augment = func(l int, seen []bool) bool {
		for _, r := range arcs[l] {
			if seen[r] || takes[r] == l {
				continue
			}
			seen[r] = true
			if takes[r] == none || augment(takes[r], seen) {
				takes[r] = l
				return true
			}
		}
		return false
	}
	n := 0
	grow := func() {
		for again := true; again; {
			again = false
			for l := range load {
				for load[l] < cap[l] && augment(l, make([]bool, right)) {
					load[l]++
					n++
					again = true
				}
			}
		}
	}
	grow()
	for l := range load {
		if odd == 0 {
			break
		}
		cap[l]++
		was := n
		grow()
		if n == was {
			cap[l]--
		} else {
			odd--
		}
	}
	return n
}
