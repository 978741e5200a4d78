package main

import (
	"fmt"
	"strings"

	"charm.land/bubbles/v2/progress"
	"charm.land/lipgloss/v2"

	"github.com/strandmq/strandmq/internal/plain"
)

// meter draws progress on one line of a person's terminal, and nothing at all
// elsewhere: there the summary at the end says it.
type meter struct {
	a     *app
	live  bool
	title string
	total int64 // 0: unknown
	bar   progress.Model
	drawn bool
}

func (a *app) newMeter(title string, total int64) *meter {
	return &meter{a: a, live: terminal(a.err), title: title, total: total, bar: progress.New(progress.WithWidth(30))}
}

// at redraws the line.
func (m *meter) at(done int64, text string) {
	if !m.live {
		return
	}
	m.drawn = true
	line := m.title
	if m.total > 0 {
		line += " " + m.bar.ViewAs(min(1, float64(done)/float64(m.total)))
	}
	lipgloss.Fprint(m.a.err, "\r"+line+"  "+plain.Text(text)+"\x1b[K")
}

// end leaves the line, wiped, so that what follows starts clean.
func (m *meter) end() {
	if m.drawn {
		fmt.Fprint(m.a.err, "\r\x1b[K")
		m.drawn = false
	}
}

// board draws several lines in place on a terminal; elsewhere it prints them
// as a plain line only when told that a step is worth one.
type board struct {
	a     *app
	live  bool
	lines int
}

func (a *app) newBoard() *board { return &board{a: a, live: terminal(a.err)} }

// draw shows the lines in place of those drawn before. The lines are this
// program's own words and numbers.
func (b *board) draw(lines []string) {
	if !b.live {
		return
	}
	var s strings.Builder
	if b.lines > 0 {
		fmt.Fprintf(&s, "\x1b[%dA", b.lines)
	}
	for _, l := range lines {
		s.WriteString("\r" + l + "\x1b[K\n")
	}
	b.lines = len(lines)
	lipgloss.Fprint(b.a.err, s.String())
}

// settle leaves the lines where they are; later ones go below.
func (b *board) settle() { b.lines = 0 }
