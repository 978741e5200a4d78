package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strandmq/strandmq/loadtest"
)

func TestSteps(t *testing.T) {
	for _, c := range []struct {
		to   float64
		want []float64
	}{
		{0, []float64{0}},
		{0.3, []float64{0, 1}},
		{4, []float64{0, 1, 2, 3, 4}},
		{16, []float64{0, 5, 10, 15, 20}},
		{1_465, []float64{0, 500, 1000, 1500}},
		{100, []float64{0, 20, 40, 60, 80, 100}},
	} {
		if d := cmp.Diff(c.want, steps(c.to)); d != "" {
			t.Errorf("%v: %s", c.to, d)
		}
	}
}

// The rate is drawn in its place, beside what it would be if it grew as the axis does.
func TestPicture(t *testing.T) {
	s := loadtest.Sweep{Nodes: []int{0}, Partitions: []uint32{1}, Members: []int{1, 4}}
	lines := s.Lines([]loadtest.Point{
		{Spot: loadtest.Spot{Partitions: 1, Members: 1}, Rate: 100, P99: 4},
		{Spot: loadtest.Spot{Partitions: 1, Members: 4}, Rate: 300, P99: 0},
	})
	p := newPicture("a title", s.Axis(), lines)
	rate := p.Panels[0]
	if d := cmp.Diff([]curve{
		{Ideal: true, Points: "150.0,160.0 600.0,-80.0 ", Dots: [][2]float64{{150, 160}, {600, -80}}},
		{Color: lineColors[0], Points: "150.0,160.0 600.0,0.0 ", Dots: [][2]float64{{150, 160}, {600, 0}}},
	}, rate.Curves); d != "" {
		t.Error(d)
	}
	if up := rate.Up; len(up) != 7 || up[0] != (tick{240, "0"}) || up[2] != (tick{160, "100"}) || up[6] != (tick{0, "300"}) {
		t.Errorf("%+v", up)
	}
	if !slices.Contains(p.Panels[1].Across, tick{600, "4"}) || len(p.Rows) != 2 || p.Names[0].Name != "1 partition" {
		t.Errorf("%+v", p)
	}
	// Nothing at all is a picture, too.
	if p := newPicture("", "members", nil); len(p.Panels) != 2 {
		t.Errorf("%+v", p)
	}
}
