package placement

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/strandmq/strandmq/partition"
)

// TestScenarios runs testdata: pictures before and after.
//
//	picture              the lines are the picture:
//	                       n1 [zone=a] [draining] [silent=MS]
//	                       p1 t1 n1,n2,n3 [want=3] [leaving=n4] [erasing=n5] [moving]
//	plan [moves=N] [leads=N] [dead-after=MS]
//	                     what should be done now; nothing is changed
//	run [...]            plans are made and carried out until there is nothing more to
//	                     do; then the picture, and what each node has
//	new topic=2 partitions=4 replicas=3
//	                     a topic is placed, and is in the picture from then on
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var pic Picture
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var opt Options
			var topic, partitions, replicas int
			d.MaybeScanArgs(t, "moves", &opt.Moves)
			d.MaybeScanArgs(t, "leads", &opt.Leads)
			d.MaybeScanArgs(t, "topic", &topic)
			d.MaybeScanArgs(t, "partitions", &partitions)
			d.MaybeScanArgs(t, "replicas", &replicas)
			if d.HasArg("dead-after") {
				var ms int64
				d.ScanArgs(t, "dead-after", &ms)
				opt.DeadAfter = partition.Millis(ms)
			}
			switch d.Cmd {
			case "picture":
				pic = parse(t, d.Input)
				return ""
			case "plan":
				return planText(Make(pic, opt))
			case "run":
				return runText(t, &pic, opt)
			case "new":
				out, err := Initial(pic, uint64(topic), partitions, replicas)
				if err != nil {
					return fmt.Sprintf("refused: %v\n", err)
				}
				next := partition.PartitionID(1)
				for _, p := range pic.Partitions {
					next = max(next, p.ID+1)
				}
				var b strings.Builder
				for _, nodes := range out {
					pic.Partitions = append(pic.Partitions, Partition{ID: next, Topic: uint64(topic), Replicas: nodes, Want: replicas})
					fmt.Fprintf(&b, "%v %s\n", next, list(nodes))
					next++
				}
				return b.String() + tallyText(pic)
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func node(t *testing.T, text string) partition.NodeID {
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "n"), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return partition.NodeID(n)
}

func parse(t *testing.T, text string) (pic Picture) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		nodes := func(v string) (out []partition.NodeID) {
			for _, n := range strings.Split(v, ",") {
				out = append(out, node(t, n))
			}
			return out
		}
		n := Node{}
		p := Partition{}
		for _, word := range words {
			key, value, _ := strings.Cut(word, "=")
			num, _ := strconv.ParseUint(strings.TrimLeft(value, "nt"), 10, 64)
			switch {
			case key == "zone":
				n.Zone = value
			case key == "draining":
				n.Draining = true
			case key == "silent":
				n.Silent = partition.Millis(num)
			case key == "want":
				p.Want = int(num)
			case key == "leaving":
				p.Leaving = nodes(value)
			case key == "erasing":
				p.Erasing = nodes(value)
			case key == "moving":
				p.Moving = true
			case word[0] == 't':
				p.Topic, _ = strconv.ParseUint(word[1:], 10, 64)
			case word[0] == 'p':
				id, _ := strconv.ParseUint(word[1:], 10, 64)
				p.ID = partition.PartitionID(id)
			case word[0] == 'n' && words[0][0] == 'p':
				p.Replicas = nodes(word)
			case word[0] == 'n':
				n.ID = node(t, word)
			default:
				t.Fatalf("what is %q?", word)
			}
		}
		if words[0][0] == 'n' {
			pic.Nodes = append(pic.Nodes, n)
			continue
		}
		if p.Want == 0 {
			p.Want = len(p.Replicas)
		}
		pic.Partitions = append(pic.Partitions, p)
	}
	return pic
}

func list(nodes []partition.NodeID) string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.String())
	}
	return strings.Join(out, ",")
}

func planText(plan Plan) string {
	var b strings.Builder
	for _, m := range plan.Moves {
		fmt.Fprintf(&b, "%v %s -> %s: %s\n", m.Partition, list(m.From), list(m.To), m.Why)
	}
	for _, s := range plan.Stuck {
		fmt.Fprintf(&b, "%v stuck, %s: %s\n", s.Partition, s.Why, s.Needs)
	}
	return b.String()
}

// carryOut does all of a plan.
func carryOut(pic *Picture, plan Plan) (copied int) {
	for i := range pic.Partitions {
		p := &pic.Partitions[i]
		for _, m := range plan.Moves {
			if m.Partition == p.ID {
				for _, n := range m.To {
					if !slices.Contains(holders(p), n) {
						copied++
					}
				}
				p.Replicas, p.Leaving, p.Moving = m.To, nil, false
			}
		}
	}
	return copied
}

func runText(t *testing.T, pic *Picture, opt Options) string {
	copied, plans := 0, 0
	var last Plan
	for {
		if last = Make(*pic, opt); len(last.Moves) == 0 {
			break
		}
		if plans++; plans > 10_000 {
			t.Fatal("it does not come to an end")
		}
		copied += carryOut(pic, last)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "plans %d, copies %d\n", plans, copied)
	for _, p := range pic.Partitions {
		fmt.Fprintf(&b, "%v t%d %s\n", p.ID, p.Topic, list(p.Replicas))
	}
	return b.String() + planText(last) + tallyText(*pic)
}

// tallyText prints what each node has.
func tallyText(pic Picture) string {
	w := newWork(pic, Options{})
	var b strings.Builder
	nodes := map[partition.NodeID]bool{}
	for _, n := range w.nodes {
		nodes[n.ID] = true
	}
	for n := range w.load {
		nodes[n] = true
	}
	for _, n := range slices.Sorted(maps.Keys(nodes)) {
		fmt.Fprintf(&b, "%v replicas %d, leads %d\n", n, w.load[n], w.lead[n])
	}
	return b.String()
}
