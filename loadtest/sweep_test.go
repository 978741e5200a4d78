package loadtest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSweepLines(t *testing.T) {
	s := Sweep{Nodes: []int{0}, Partitions: []uint32{1, 4}, Members: []int{2, 8}}
	spots, err := s.Spots()
	want := []Spot{{0, 1, 2}, {0, 1, 8}, {0, 4, 2}, {0, 4, 8}}
	if d := cmp.Diff(want, spots); err != nil || d != "" {
		t.Fatal(err, d)
	}
	var points []Point
	for i, x := range spots {
		points = append(points, Point{Spot: x, Rate: []float64{100, 350, 0, 50}[i]})
	}
	got := s.Lines(points)
	if d := cmp.Diff([]Line{
		{"1 partition", []Point{{Spot: want[0], Rate: 100, SpeedUp: 1, Linear: 1}, {Spot: want[1], Rate: 350, SpeedUp: 3.5, Linear: 4}}},
		// Of a first point without a rate nothing is said.
		{"4 partitions", []Point{{Spot: want[2], Linear: 1}, {Spot: want[3], Rate: 50, Linear: 4}}},
	}, got); d != "" {
		t.Error(d)
	}
}

func TestSweepNames(t *testing.T) {
	for _, c := range []struct {
		s          Sweep
		axis, line string
	}{
		{Sweep{[]int{0}, []uint32{8}, []int{1, 2}}, "members", "8 partitions"},
		{Sweep{[]int{1, 3}, []uint32{8}, []int{1, 2}}, "members", "1 node"},
		{Sweep{[]int{3, 1}, []uint32{8, 1}, []int{1, 2}}, "members", "3 nodes, 8 partitions"},
		{Sweep{[]int{0}, []uint32{1, 8}, []int{1}}, "partitions", "1 member"},
		{Sweep{[]int{1, 3}, []uint32{1, 8}, []int{4}}, "partitions", "1 node, 4 members"},
		{Sweep{[]int{1, 3}, []uint32{8}, []int{4}}, "nodes", "8 partitions, 4 members"},
	} {
		spots, err := c.s.Spots()
		if err != nil {
			t.Fatal(err)
		}
		if got := c.s.line(c.s.Axis(), spots[0]); c.s.Axis() != c.axis || got != c.line {
			t.Errorf("%+v: along %s, %q; want %s, %q", c.s, c.s.Axis(), got, c.axis, c.line)
		}
	}
}

func TestSweepRefuses(t *testing.T) {
	for range 50 { // of several faults always the first is named
		if _, err := (Sweep{}).Spots(); err == nil || !strings.HasPrefix(err.Error(), "nodes: ") {
			t.Fatal(err)
		}
	}
	for _, s := range []Sweep{{}, {Nodes: make([]int, 10), Partitions: make([]uint32, 10), Members: make([]int, 3)}} {
		if _, err := s.Spots(); err == nil {
			t.Errorf("%+v is run", s)
		}
	}
}

func TestSpotAt(t *testing.T) {
	s := Spot{1, 4, 8}
	if c := s.At(Config{Work: time.Second, Workers: 2}); c.Ahead != 228 || c.Partitions != 4 || c.Members != 8 {
		t.Errorf("%+v", c)
	}
	for _, c := range []Config{{}, {Work: time.Second, Rate: 5}} {
		if at := s.At(c); at.Ahead != 0 {
			t.Errorf("%+v", at)
		}
	}
	r := &Report{Publish: Published{Rate: 5, Latency: Latency{P50: 1, P99: 2}}, Verdict: Verdict{Outcome: Kept}}
	if p := s.Point(r); p != (Point{Spot: s, Rate: 5, P50: 1, P99: 2, Outcome: Kept}) {
		t.Errorf("%+v", p)
	}
	r.Groups = []Group{{Rate: 3, Latency: Latency{P50: 7, P99: 8}}, {Rate: 4, Latency: Latency{P50: 6, P99: 9}}}
	if p := s.Point(r); p != (Point{Spot: s, Rate: 7, P50: 7, P99: 9, Outcome: Kept}) {
		t.Errorf("%+v", p)
	}
}
