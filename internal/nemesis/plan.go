package nemesis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is a kind of fault.
type Kind string

// The kinds.
const (
	Kill    Kind = "kill"    // kill -9 of one node, started again
	Crash   Kind = "crash"   // kill -9 of all nodes at once, started again
	Pause   Kind = "pause"   // SIGSTOP of one node, SIGCONT
	Roll    Kind = "roll"    // every node is told to stop and started again, one after the other
	Cut     Kind = "cut"     // one node hears nobody and is heard by nobody
	Deaf    Kind = "deaf"    // one node hears nobody, and is heard
	Mute    Kind = "mute"    // one node is heard by nobody, and hears
	Partial Kind = "partial" // one node and the next are cut from each other; the third sees both
	Flap    Kind = "flap"    // one node is cut off and healed again and again
	Slow    Kind = "slow"    // what one node sends goes through a narrow link with a queue
	Lossy   Kind = "lossy"   // a share of what one node sends gets lost
	Full    Kind = "full"    // the disk of one node is filled to the last block
	Stall   Kind = "stall"   // the disk of one node hangs
	Power   Kind = "power"   // one node loses power: what it has not synced is gone
	Dark    Kind = "dark"    // all nodes lose power at once
	Replace Kind = "replace" // one node is lost with its disk; a new one joins instead
)

// Kinds are all kinds, in the order of their description.
var Kinds = []Kind{Kill, Crash, Pause, Roll, Cut, Deaf, Mute, Partial, Flap, Slow, Lossy, Full, Stall, Power, Dark, Replace}

// Simple are those that need neither root nor Linux.
var Simple = []Kind{Kill, Pause}

// All tells whether a fault strikes every node, so that no majority is left.
func (k Kind) All() bool { return k == Crash || k == Dark }

// Kills tells whether processes end without a word.
func (k Kind) Kills() bool { return slices.Contains([]Kind{Kill, Crash, Power, Dark, Replace}, k) }

// KindsOf reads a list such as kill,cut; "" and "all" are every kind.
func KindsOf(list string) ([]Kind, error) {
	if list == "" || list == "all" {
		return Kinds, nil
	}
	var out []Kind
	for word := range strings.SplitSeq(list, ",") {
		k := Kind(strings.TrimSpace(word))
		if !slices.Contains(Kinds, k) {
			names := make([]string, len(Kinds))
			for i, k := range Kinds {
				names[i] = string(k)
			}
			return nil, fmt.Errorf("there is no fault %q: choose of %s", word, strings.Join(names, ", "))
		}
		if !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out, nil
}

// Step is one fault.
type Step struct {
	Number int           // from 1
	Kind   Kind          // what
	Node   int           // whom, from 0; what strikes all begins with it
	Quiet  time.Duration // how long nothing happens before
	Lasts  time.Duration // how long until it is healed
	Turns  int           // how often a flapping link is cut
	Loss   float64       // the share that gets lost
	Rate   int           // of a slow link, in bits a second
}

// String is a step in words.
func (s Step) String() string {
	text := fmt.Sprintf("%d: %s", s.Number, s.Kind)
	switch {
	case s.Kind == Partial:
		text += fmt.Sprintf(" of node %d and the next", s.Node+1)
	case s.Kind.All():
	case s.Kind == Roll:
		text += fmt.Sprintf(" from node %d on", s.Node+1)
	default:
		text += fmt.Sprintf(" of node %d", s.Node+1)
	}
	text += fmt.Sprintf(" for %v", s.Lasts)
	switch s.Kind {
	case Flap:
		text += fmt.Sprintf(", %d times", s.Turns)
	case Lossy:
		text += fmt.Sprintf(", %.0f %% lost", 100*s.Loss)
	case Slow:
		text += fmt.Sprintf(", %d kbit/s", s.Rate/1000)
	}
	return text
}

// Plan is the faults that a seed stands for: count of the kinds given, each kind once
// before any comes again, in an order and on nodes that the seed picks.
func Plan(seed uint64, kinds []Kind, nodes, count int) []Step {
	r := rand.New(rand.NewPCG(seed, 0x6e656d65))
	var steps []Step
	var bag []Kind
	for len(steps) < count && len(kinds) > 0 {
		if len(bag) == 0 {
			bag = slices.Clone(kinds)
			r.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
		}
		k := bag[0]
		bag = bag[1:]
		s := Step{
			Number: len(steps) + 1, Kind: k, Node: r.IntN(nodes),
			Quiet: between(r, 500*time.Millisecond, 2*time.Second),
		}
		// Every number is drawn for every kind, so that a kind that is left out does
		// not change what the others do more than it must.
		short, long := between(r, 300*time.Millisecond, 3*time.Second), between(r, 2*time.Second, 8*time.Second)
		turns, loss, rate := 3+r.IntN(8), 0.02+0.2*r.Float64(), 40_000+r.IntN(460_000)
		switch k {
		case Kill, Crash, Power, Dark:
			s.Lasts = short
		case Roll, Replace:
			s.Lasts = 0
		case Flap:
			s.Lasts, s.Turns = long, turns
		case Slow:
			s.Lasts, s.Rate = long, rate
		case Lossy:
			s.Lasts, s.Loss = long, loss
		case Cut, Deaf, Mute, Partial, Pause, Full, Stall:
			s.Lasts = long
		}
		steps = append(steps, s)
	}
	return steps
}

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return (least + time.Duration(r.Int64N(int64(most-least)))).Round(time.Millisecond)
}

// Way is one direction of a pair of nodes.
type Way struct{ From, To int }

// Severed are the directions on which nothing arrives during a step.
func (s Step) Severed(nodes int) (ways []Way) {
	for other := range nodes {
		if other == s.Node {
			continue
		}
		in, out := Way{other, s.Node}, Way{s.Node, other}
		switch s.Kind {
		case Cut, Flap:
			ways = append(ways, in, out)
		case Deaf:
			ways = append(ways, in)
		case Mute:
			ways = append(ways, out)
		case Partial:
			if other == (s.Node+1)%nodes {
				ways = append(ways, in, out)
			}
		}
	}
	return ways
}
