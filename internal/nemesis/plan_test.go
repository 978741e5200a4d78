package nemesis

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestPlanIsOfItsSeed(t *testing.T) {
	a, b := Plan(7, Kinds, 3, 64), Plan(7, Kinds, 3, 64)
	if !reflect.DeepEqual(a, b) {
		t.Fatal("one seed has two plans")
	}
	if reflect.DeepEqual(a, Plan(8, Kinds, 3, 64)) {
		t.Fatal("two seeds have one plan")
	}
	if !reflect.DeepEqual(a[:20], Plan(7, Kinds, 3, 20)) {
		t.Error("a shorter plan is not the beginning of a longer one")
	}
}

func TestPlanHasEveryKind(t *testing.T) {
	for seed := range uint64(50) {
		steps := Plan(seed, Kinds, 3, 2*len(Kinds))
		nodes := map[int]bool{}
		for round := range 2 {
			seen := map[Kind]bool{}
			for _, s := range steps[round*len(Kinds) : (round+1)*len(Kinds)] {
				seen[s.Kind] = true
				nodes[s.Node] = true
			}
			if len(seen) != len(Kinds) {
				t.Errorf("seed %d: a round has %d of %d kinds", seed, len(seen), len(Kinds))
			}
		}
		for i, s := range steps {
			if s.Number != i+1 || s.Node < 0 || s.Node > 2 || s.Quiet <= 0 {
				t.Errorf("seed %d: %+v", seed, s)
			}
			if (s.Lasts == 0) != (s.Kind == Roll || s.Kind == Replace) || (s.Turns > 0) != (s.Kind == Flap) ||
				(s.Loss > 0) != (s.Kind == Lossy) || (s.Rate > 0) != (s.Kind == Slow) {
				t.Errorf("seed %d: %+v has numbers of another kind, or lacks its own", seed, s)
			}
			if !strings.Contains(s.String(), string(s.Kind)) {
				t.Errorf("%q does not say what it is", s)
			}
		}
		if len(nodes) != 3 {
			t.Errorf("seed %d strikes %d nodes of 3", seed, len(nodes))
		}
	}
	if got := Plan(1, nil, 3, 5); len(got) != 0 {
		t.Errorf("a plan of no kinds: %v", got)
	}
}

func TestKindsOf(t *testing.T) {
	for list, want := range map[string][]Kind{"": Kinds, "all": Kinds, "kill": {Kill}, "cut, kill,cut": {Cut, Kill}} {
		if got, err := KindsOf(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
	for _, list := range []string{"kil", "kill,", ","} {
		if got, err := KindsOf(list); err == nil || !strings.Contains(err.Error(), "kill, crash") {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
}

func TestSevered(t *testing.T) {
	for kind, want := range map[Kind][]Way{
		Cut:     {{0, 1}, {1, 0}, {2, 1}, {1, 2}},
		Flap:    {{0, 1}, {1, 0}, {2, 1}, {1, 2}},
		Deaf:    {{0, 1}, {2, 1}},
		Mute:    {{1, 0}, {1, 2}},
		Partial: {{2, 1}, {1, 2}},
		Kill:    nil,
	} {
		if got := (Step{Kind: kind, Node: 1}).Severed(3); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", kind, got, want)
		}
	}
	if got := (Step{Kind: Partial, Node: 2}).Severed(3); !slices.Equal(got, []Way{{0, 2}, {2, 0}}) {
		t.Errorf("the last node's next is not the first: %v", got)
	}
}
