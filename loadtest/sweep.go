package loadtest

import (
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/internal/quantity"
)

// Sweep is a scaling experiment: the same load at every combination of what is
// varied. Each list begins with what the others are compared with.
type Sweep struct {
	Nodes      []int
	Partitions []uint32
	Members    []int
}

// Spot is one combination.
type Spot struct {
	Nodes      int    `json:"nodes"` // 0: the broker that is there
	Partitions uint32 `json:"partitions"`
	Members    int    `json:"members"`
}

// Point is what was measured at a combination.
type Point struct {
	Spot
	// Rate is of acks a second, of all groups; of receipts when there are none.
	Rate float64 `json:"rate"`
	// P50 and P99 are end to end, of the group that waited longest; to the receipt
	// when there are none. Milliseconds.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	// SpeedUp is the rate over that of the first point of its line, and Linear what it
	// would be if the rate grew as much as what is varied along the line.
	SpeedUp float64 `json:"speed_up"`
	Linear  float64 `json:"linear"`
	Outcome string  `json:"outcome"` // of the verdict
}

// MaxSpots bounds a sweep.
const MaxSpots = 200

// Spots lists the combinations, in the order in which they are run: what costs most
// to set up changes least.
func (s Sweep) Spots() ([]Spot, error) {
	for _, list := range []struct {
		what string
		n    int
	}{{"nodes", len(s.Nodes)}, {"partitions", len(s.Partitions)}, {"members", len(s.Members)}} {
		if list.n == 0 {
			return nil, fmt.Errorf("%s: at least one number is wanted", list.what)
		}
	}
	if n := len(s.Nodes) * len(s.Partitions) * len(s.Members); n > MaxSpots {
		return nil, fmt.Errorf("nodes, partitions and members: %d combinations; at most %d", n, MaxSpots)
	}
	var out []Spot
	for _, n := range s.Nodes {
		for _, p := range s.Partitions {
			for _, m := range s.Members {
				out = append(out, Spot{n, p, m})
			}
		}
	}
	return out, nil
}

// Axis is what a sweep's lines run along: members if there are several numbers of
// them, else partitions, else nodes.
func (s Sweep) Axis() string {
	switch {
	case len(s.Members) > 1:
		return "members"
	case len(s.Partitions) > 1:
		return "partitions"
	default:
		return "nodes"
	}
}

// Along is a spot's place on an axis.
func (s Spot) Along(axis string) float64 {
	switch axis {
	case "members":
		return float64(s.Members)
	case "partitions":
		return float64(s.Partitions)
	default:
		return float64(s.Nodes)
	}
}

// Line is the points that differ along the axis only.
type Line struct {
	Name   string
	Points []Point
}

// Lines fills in what compares the points with each other, and sorts them into lines
// in the order of their coming.
func (s Sweep) Lines(points []Point) []Line {
	axis := s.Axis()
	var lines []Line
	for _, p := range points {
		name := s.line(axis, p.Spot)
		at := slices.IndexFunc(lines, func(l Line) bool { return l.Name == name })
		if at < 0 {
			at = len(lines)
			lines = append(lines, Line{Name: name})
		}
		l := &lines[at]
		first := p
		if len(l.Points) > 0 {
			first = l.Points[0]
		}
		if first.Rate > 0 {
			p.SpeedUp = p.Rate / first.Rate
		}
		p.Linear = 1
		if from := first.Along(axis); from > 0 {
			p.Linear = p.Along(axis) / from
		}
		l.Points = append(l.Points, p)
	}
	return lines
}

// line names what is the same along a line and differs between lines.
func (s Sweep) line(axis string, p Spot) string {
	name := ""
	add := func(n int, what string) {
		if name != "" {
			name += ", "
		}
		name += quantity.Some(n, what)
	}
	if axis != "nodes" && len(s.Nodes) > 1 {
		add(p.Nodes, "node")
	}
	if axis != "partitions" && (len(s.Partitions) > 1 || axis == "nodes" || len(s.Nodes) == 1) {
		add(int(p.Partitions), "partition")
	}
	if axis != "members" && len(s.Members) == 1 {
		add(p.Members, "member")
	}
	return name
}

// At is the load of a spot. A load with handlers that take time, and without a rate,
// is kept a little ahead of them, so that a point ends soon after its time.
func (s Spot) At(c Config) Config {
	c.Partitions, c.Members = s.Partitions, s.Members
	if c.Work > 0 && c.Rate == 0 && c.Ahead == 0 {
		c.Ahead = 100 + 8*s.Members*max(c.Workers, 1)
	}
	return c
}

// Point sums a report up.
func (s Spot) Point(r *Report) Point {
	p := Point{Spot: s, Rate: r.Publish.Rate, P50: r.Publish.Latency.P50, P99: r.Publish.Latency.P99, Outcome: r.Verdict.Outcome}
	for i, g := range r.Groups {
		if i == 0 {
			p.Rate, p.P50, p.P99 = 0, 0, 0
		}
		p.Rate += g.Rate
		p.P50, p.P99 = max(p.P50, g.Latency.P50), max(p.P99, g.Latency.P99)
	}
	return p
}
