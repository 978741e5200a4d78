package main

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/loadtest"
)

// drawSweep writes the picture of a sweep, and says where it is.
type drawSweep = func(title string, s loadtest.Sweep, lines []loadtest.Line) (string, error)

// pictureOf gives what writes a picture to a file, by the ending of its name; nil for
// no name. The file is made at once: a sweep takes long, and is not to end with a
// name that cannot be written to.
func pictureOf(path string) (drawSweep, error) {
	if path == "" {
		return nil, nil
	}
	page, ok := map[string]string{".svg": "picture", ".html": "page"}[strings.ToLower(filepath.Ext(path))]
	if !ok {
		return nil, usagef("--plot %s: a name that ends in .svg or .html is wanted", path)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, usagef("--plot: %v", err)
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return func(title string, s loadtest.Sweep, lines []loadtest.Line) (string, error) {
		var b bytes.Buffer
		if err := sweepPages.ExecuteTemplate(&b, page, newPicture(title, s.Axis(), lines)); err != nil {
			return "", err
		}
		return path, os.WriteFile(path, b.Bytes(), 0o644)
	}, nil
}

// picture is a sweep as the pages want it: panels one below the other.
type picture struct {
	Title, Axis string
	Panels      []panel
	Names       []legendRow // of the lines
	Head        []string
	Rows        [][]string
}

type legendRow struct {
	Y           float64
	Name, Color string
}

// panel is one figure over the axis. Coordinates are those of the drawing.
type panel struct {
	Y      float64 // where it begins
	Label  string
	Across []tick
	Up     []tick
	Curves []curve
}

type tick struct {
	At   float64
	Text string
}

type curve struct {
	Color  string
	Points string // of a polyline
	Ideal  bool
	Dots   [][2]float64
}

// The drawing: a panel's field is wide by high, with room for the ticks on its left.
const wide, high, panelStep = 600.0, 240.0, 300.0

var lineColors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"} // told apart by everybody

func newPicture(title, axis string, lines []loadtest.Line) picture {
	p := picture{Title: title, Axis: axis}
	rate := func(x loadtest.Point) float64 { return x.Rate }
	p.Panels = []panel{
		newPanel(0, "a second", axis, lines, rate, true),
		newPanel(panelStep, "p99, ms", axis, lines, func(x loadtest.Point) float64 { return x.P99 }, false),
	}
	var points []loadtest.Point
	for i, l := range lines {
		p.Names = append(p.Names, legendRow{float64(i) * 18, cmp.Or(l.Name, "all"), lineColors[i%len(lineColors)]})
		points = append(points, l.Points...)
	}
	t := sweepTable(points)
	p.Head, p.Rows = t.Head, t.Rows
	return p
}

func newPanel(y float64, label, axis string, lines []loadtest.Line, value func(loadtest.Point) float64, ideal bool) panel {
	p := panel{Y: y, Label: label}
	var far, most float64
	for _, l := range lines {
		for _, x := range l.Points {
			far, most = max(far, x.Along(axis)), max(most, value(x))
		}
	}
	// A line that stays far below its ideal is not pressed to the ground by it: what
	// goes beyond the field is cut off.
	across, up := steps(far), steps(most)
	right, top := max(far, 1), max(up[len(up)-1], 1)
	place := func(x, v float64) [2]float64 { return [2]float64{x / right * wide, high - v/top*high} }
	for _, v := range across {
		if v <= right {
			p.Across = append(p.Across, tick{place(v, 0)[0], quantity.Count(int64(v))})
		}
	}
	for _, v := range up {
		p.Up = append(p.Up, tick{place(0, v)[1], quantity.Count(int64(v))})
	}
	for i, l := range lines {
		c := curve{Color: lineColors[i%len(lineColors)]}
		grey := curve{Ideal: true}
		for _, x := range l.Points {
			c.add(place(x.Along(axis), value(x)))
			grey.add(place(x.Along(axis), value(l.Points[0])*x.Linear))
		}
		if ideal && !fixedRate(l.Points) {
			p.Curves = append(p.Curves, grey)
		}
		p.Curves = append(p.Curves, c)
	}
	return p
}

func (c *curve) add(at [2]float64) {
	c.Dots = append(c.Dots, at)
	c.Points += fmt.Sprintf("%.1f,%.1f ", at[0], at[1])
}

// steps are round numbers from 0 that reach up to a value.
func steps(to float64) []float64 {
	step := 1.0
	if to > 5 {
		power := math.Pow(10, math.Floor(math.Log10(to/5)))
		for _, k := range []float64{1, 2, 5, 10} {
			if step = k * power; to/step <= 6 {
				break
			}
		}
	}
	out := []float64{0}
	for v := 0.0; v < to; {
		v = float64(len(out)) * step
		out = append(out, v)
	}
	return out
}

var sweepPages = template.Must(template.New("").Parse(`
{{define "picture"}}<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 660" font-family="sans-serif" font-size="13" fill="#222">
<rect width="920" height="660" fill="#fff"/>
<text x="90" y="24" font-size="15">{{.Title}}</text>
<clipPath id="field"><rect x="-6" y="-6" width="612" height="252"/></clipPath>
{{range .Panels}}<g transform="translate(90 50)"><g transform="translate(0 {{.Y}})">
{{range .Up}}<path d="M0 {{.At}}H600" stroke="#ddd"/><text x="-8" y="{{.At}}" dy="4" text-anchor="end">{{.Text}}</text>
{{end}}{{range .Across}}<path d="M{{.At}} 0V240" stroke="#ddd"/><text x="{{.At}}" y="258" text-anchor="middle">{{.Text}}</text>
{{end}}<text transform="translate(-72 120) rotate(-90)" text-anchor="middle">{{.Label}}</text>
<g clip-path="url(#field)">{{range .Curves}}{{if .Ideal}}<polyline points="{{.Points}}" fill="none" stroke="#999" stroke-dasharray="5 5"/>
{{else}}<polyline points="{{.Points}}" fill="none" stroke="{{.Color}}" stroke-width="2"/>
{{$c := .Color}}{{range .Dots}}<circle cx="{{index . 0}}" cy="{{index . 1}}" r="4" fill="{{$c}}"/>
{{end}}{{end}}{{end}}</g></g></g>
{{end}}<text x="390" y="640" text-anchor="middle">{{.Axis}}</text>
<g transform="translate(715 60)">{{range .Names}}<path d="M0 {{.Y}}h22" stroke="{{.Color}}" stroke-width="3"/><text x="30" y="{{.Y}}" dy="4">{{.Name}}</text>
{{end}}<path d="M0 -18h22" stroke="#999" stroke-dasharray="5 5"/><text x="30" y="-18" dy="4">linear</text></g>
</svg>
{{end}}
{{define "page"}}<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>StrandMQ: {{.Title}}</title>
<style>
body { font: 15px sans-serif; margin: 2em auto; max-width: 60em; }
svg { width: 100%; height: auto; }
table { border-collapse: collapse; }
td, th { padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd; }
</style></head><body>
{{template "picture" .}}
<table><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr>
{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>
</body></html>
{{end}}`))
