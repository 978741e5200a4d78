package placement

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/partition"
)

// drawNodes draws a cluster of up to nine nodes.
func drawNodes(t *rapid.T, least int, zones bool) (nodes []Node) {
	for i := range rapid.IntRange(least, 9).Draw(t, "nodes") {
		n := Node{ID: partition.NodeID(i + 1)}
		if zones {
			n.Zone = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "zone")
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// drawPicture draws any cluster in any state.
func drawPicture(t *rapid.T) Picture {
	pic := Picture{Nodes: drawNodes(t, 1, true)}
	for i := range pic.Nodes {
		pic.Nodes[i].Draining = rapid.IntRange(0, 5).Draw(t, "draining") == 0
		pic.Nodes[i].Silent = rapid.SampledFrom([]partition.Millis{0, 0, 0, 0, 0, 1000, 600_001}).Draw(t, "silent")
	}
	ids := make([]partition.NodeID, 0, len(pic.Nodes)+1)
	for _, n := range pic.Nodes {
		ids = append(ids, n.ID)
	}
	ids = append(ids, 99) // of a node that does not belong to the cluster any more
	for i := range rapid.IntRange(0, 20).Draw(t, "partitions") {
		perm := rapid.Permutation(ids).Draw(t, "order")
		n := rapid.SampledFrom([]int{1, 3, 3, 3, 5}).Draw(t, "replicas")
		n = min(n, len(perm))
		p := Partition{
			ID: partition.PartitionID(i), Topic: rapid.Uint64Range(1, 3).Draw(t, "topic"), Replicas: perm[:n],
			Want: rapid.SampledFrom([]int{1, 3, 3, 3, 5}).Draw(t, "want"),
		}
		if rest := perm[n:]; len(rest) > 1 {
			if p.Moving = rapid.IntRange(0, 9).Draw(t, "moving") == 0; p.Moving {
				p.Leaving = rest[:1]
			}
			if rapid.IntRange(0, 9).Draw(t, "erasing") == 0 {
				p.Erasing = rest[1:2]
			}
		}
		pic.Partitions = append(pic.Partitions, p)
	}
	return pic
}

// Whatever the picture: a plan keeps every rule, following plans to the end
// takes few of them, and in the end nothing is left to do.
func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pic := drawPicture(t)
		opt := Options{Moves: rapid.IntRange(1, 4).Draw(t, "moves"), Leads: rapid.IntRange(1, 4).Draw(t, "leads")}
		before := fmt.Sprint(pic)
		for round := 0; ; round++ {
			plan := Make(pic, opt)
			if round == 0 && fmt.Sprint(pic) != before {
				t.Fatal("the picture was changed")
			}
			if again := Make(pic, opt); fmt.Sprint(again) != fmt.Sprint(plan) {
				t.Fatalf("two plans for one picture:\n%v\n%v", plan, again)
			}
			if err := sound(pic, opt, plan); err != nil {
				t.Fatalf("%v\n%s", err, planText(plan))
			}
			if len(plan.Moves) == 0 {
				break
			}
			if round > 40*(len(pic.Partitions)+1) {
				t.Fatalf("it does not come to an end:\n%s", planText(plan))
			}
			carryOut(&pic, plan)
		}
	})
}

// sound checks one plan against its picture.
func sound(pic Picture, opt Options, plan Plan) error {
	w := newWork(pic, opt)
	parts := map[partition.PartitionID]*Partition{}
	busy := 0
	for _, p := range w.parts {
		parts[p.ID] = p
		if p.Moving {
			busy++
		}
	}
	leads := 0
	seen := map[partition.PartitionID]bool{}
	for _, m := range plan.Moves {
		p := parts[m.Partition]
		if seen[m.Partition] {
			return fmt.Errorf("%v moves twice", m.Partition)
		}
		seen[m.Partition] = true
		if !slices.Equal(m.From, p.Replicas) {
			return fmt.Errorf("%v is not at %v", m.Partition, m.From)
		}
		nodes := map[partition.NodeID]bool{}
		for _, n := range m.To {
			if nodes[n] {
				return fmt.Errorf("%v has two replicas on %v", m.Partition, n)
			}
			nodes[n] = true
			if slices.Contains(m.From, n) {
				continue
			}
			if !w.takes(n) || slices.Contains(p.Erasing, n) {
				return fmt.Errorf("%v goes to %v, which takes none", m.Partition, n)
			}
		}
		has, was := len(m.To), len(m.From)
		switch {
		case has == 2 && was != 2:
			return fmt.Errorf("%v would have two voters", m.Partition)
		case has < was && has < p.Want:
			return fmt.Errorf("%v would have %d of %d replicas", m.Partition, has, p.Want)
		case has > was && has > p.Want:
			return fmt.Errorf("%v would have %d and %d are wanted", m.Partition, has, p.Want)
		case data(m) && (!w.majority(holders(p)) || !w.majority(m.To)):
			return fmt.Errorf("%v is moved without a majority", m.Partition)
		case !data(m) && (p.Moving || slices.Equal(m.From, m.To) || !w.mayLead(m.To[0])):
			return fmt.Errorf("%v: a lead changes from %v to %v", m.Partition, m.From, m.To)
		}
		if !data(m) {
			leads++
		} else if !p.Moving {
			busy++
		}
	}
	if opt := opt.WithDefaults(); leads > opt.Leads || busy > opt.Moves && len(plan.Moves) > leads+movingAgain(plan, parts) {
		return fmt.Errorf("%d leads and %d moves at once", leads, busy)
	}
	return nil
}

// data tells whether messages have to move, and not only the lead.
func data(m Move) bool {
	return len(m.From) != len(m.To) || slices.ContainsFunc(m.To, func(n partition.NodeID) bool { return !slices.Contains(m.From, n) })
}

// movingAgain counts the moves of partitions that were on the move already.
func movingAgain(plan Plan, parts map[partition.PartitionID]*Partition) (n int) {
	for _, m := range plan.Moves {
		if data(m) && parts[m.Partition].Moving {
			n++
		}
	}
	return n
}

// balancedPicture is a cluster of topics as Initial places them, with nothing
// left to do.
func balancedPicture(t *rapid.T, least int) Picture {
	pic := Picture{Nodes: drawNodes(t, least, false)}
	id := partition.PartitionID(1)
	for topic := range uint64(rapid.IntRange(1, 3).Draw(t, "topics")) {
		replicas := rapid.SampledFrom([]int{3, 3, 5}).Draw(t, "replicas")
		if replicas > len(pic.Nodes)-1 {
			replicas = 3
		}
		placed, err := Initial(pic, topic+1, rapid.IntRange(1, 8).Draw(t, "partitions"), replicas)
		if err != nil {
			t.Fatal(err)
		}
		for _, nodes := range placed {
			pic.Partitions = append(pic.Partitions, Partition{ID: id, Topic: topic + 1, Replicas: nodes, Want: replicas})
			id++
		}
	}
	settle(t, &pic)
	return pic
}

func settle(t *rapid.T, pic *Picture) (copied int) {
	for range 1000 {
		plan := Make(*pic, Options{})
		if len(plan.Moves) == 0 {
			return copied
		}
		copied += carryOut(pic, plan)
	}
	t.Fatal("it does not come to an end")
	return 0
}

// spread is the most and the fewest that nodes which take replicas have.
func spread(pic Picture, of func(*work, partition.NodeID) int) (most, fewest int) {
	w := newWork(pic, Options{})
	fewest = 1 << 30
	for _, n := range w.nodes {
		if w.takes(n.ID) {
			most, fewest = max(most, of(w, n.ID)), min(fewest, of(w, n.ID))
		}
	}
	return most, fewest
}

func loads(w *work, n partition.NodeID) int { return w.load[n] }

// A new topic is spread evenly at once, replicas and leads.
func TestInitialIsEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pic := Picture{Nodes: drawNodes(t, 3, false)}
		n := rapid.IntRange(1, 64).Draw(t, "partitions")
		placed, err := Initial(pic, 1, n, 3)
		if err != nil {
			t.Fatal(err)
		}
		for i, nodes := range placed {
			pic.Partitions = append(pic.Partitions, Partition{ID: partition.PartitionID(i + 1), Topic: 1, Replicas: nodes, Want: 3})
		}
		if most, fewest := spread(pic, loads); most > fewest+1 {
			t.Fatalf("from %d to %d replicas a node", fewest, most)
		}
		for _, m := range Make(pic, Options{}).Moves {
			if data(m) {
				t.Fatalf("what was just placed moves: %v", m)
			}
		}
	})
}

// A node that joins gets its share, and nothing else moves.
func TestJoinMovesAShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pic := balancedPicture(t, 3)
		total := 0
		for _, p := range pic.Partitions {
			total += len(p.Replicas)
		}
		pic.Nodes = append(pic.Nodes, Node{ID: 50})
		copied := settle(t, &pic)
		if most, fewest := spread(pic, loads); most > fewest+1 {
			t.Fatalf("from %d to %d replicas a node", fewest, most)
		}
		if share := total / len(pic.Nodes); copied > share+1 {
			t.Fatalf("%d copies for a share of %d of %d", copied, share, total)
		}
	})
}

// Of a node that dies or is drained exactly what it had is copied, and the rest
// is as even as before.
func TestLossMovesWhatWasThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pic := balancedPicture(t, 4)
		had := 0
		dead := rapid.Bool().Draw(t, "dead")
		for _, p := range pic.Partitions {
			if slices.Contains(p.Replicas, 1) {
				had++
			}
		}
		if dead {
			pic.Nodes[0].Silent = 600_001
		} else {
			pic.Nodes[0].Draining = true
		}
		copied := settle(t, &pic)
		for _, p := range pic.Partitions {
			if slices.Contains(p.Replicas, 1) {
				t.Fatalf("%v is still at %v", p.ID, p.Replicas)
			}
		}
		most, fewest := spread(pic, loads)
		if most > fewest+1 {
			t.Fatalf("from %d to %d replicas a node", fewest, most)
		}
		// Each goes to who has least of its topic first; evening out all topics
		// after that takes a few more.
		if copied < had || copied > had+had/2+2 {
			t.Fatalf("%d copies for %d replicas", copied, had)
		}
	})
}

// With three replicas on three nodes, leads differ by one at most.
func TestLeadsAreEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pic := Picture{Nodes: drawNodes(t, 3, false)[:3]}
		for i := range rapid.IntRange(1, 30).Draw(t, "partitions") {
			pic.Partitions = append(pic.Partitions, Partition{
				ID: partition.PartitionID(i + 1), Topic: rapid.Uint64Range(1, 3).Draw(t, "topic"), Want: 3,
				Replicas: rapid.Permutation([]partition.NodeID{1, 2, 3}).Draw(t, "order"),
			})
		}
		if copied := settle(t, &pic); copied != 0 {
			t.Fatalf("%d copies for leads", copied)
		}
		if most, fewest := spread(pic, func(w *work, n partition.NodeID) int { return w.lead[n] }); most > fewest+1 {
			t.Fatalf("from %d to %d leads a node", fewest, most)
		}
	})
}

func TestTooFew(t *testing.T) {
	var bad *ErrTooFew
	_, err := Initial(Picture{Nodes: []Node{{ID: 1}, {ID: 2}}}, 1, 1, 3)
	if !errors.As(err, &bad) || *bad != (ErrTooFew{Want: 3, Active: 2, There: 2}) {
		t.Errorf("got %v", err)
	}
}

func TestWanted(t *testing.T) {
	for _, c := range []struct{ asked, has, active, want int }{
		{0, 0, 1, 1}, {0, 0, 2, 1}, {0, 0, 3, 3}, {0, 1, 3, 3}, {0, 3, 2, 3}, {0, 1, 2, 1}, {0, 5, 7, 3}, {1, 3, 3, 1}, {5, 3, 3, 5},
	} {
		if got := Wanted(c.asked, c.has, c.active); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	for _, c := range []struct{ has, active, want int }{{1, 1, 1}, {1, 2, 1}, {1, 3, 3}, {3, 4, 3}, {3, 5, 5}, {5, 9, 5}, {5, 4, 3}, {3, 2, 3}, {5, 2, 5}} {
		if got := MetadataVoters(c.has, c.active); got != c.want {
			t.Errorf("voters %+v: %d", c, got)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	pic := Picture{}
	for i := range 9 {
		pic.Nodes = append(pic.Nodes, Node{ID: partition.NodeID(i + 1), Zone: string(rune('a' + i%3))})
	}
	for t := range uint64(20) {
		placed, err := Initial(pic, t, 1000, 3)
		if err != nil {
			b.Fatal(err)
		}
		for _, nodes := range placed {
			pic.Partitions = append(pic.Partitions, Partition{ID: partition.PartitionID(len(pic.Partitions) + 1), Topic: t, Replicas: nodes, Want: 3})
		}
	}
	for b.Loop() {
		Make(pic, Options{})
	}
}
