// Package table prints rows: with lines and a bold head on a terminal, as plain
// aligned columns anywhere else, so that what a person sees and what a script
// cuts up come from one value.
//
//	Table{Head, Rows} ─Write(terminal)─► ╭──────┬───╮
//	                 └─Write(pipe)────► TOPIC  PARTITIONS
//
// It promises one line per row: cells are made safe to print and never wrapped.
// Colours are the caller's writer's affair; this package only asks for bold.
package table

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"

	"github.com/strandmq/strandmq/internal/plain"
)

// Table is what to print.
type Table struct {
	Head  []string
	Rows  [][]string
	Right []int // columns aligned to the right: numbers
}

// Add appends a row; cells are printed with fmt.Sprint.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = plain.Text(fmt.Sprint(c))
	}
	t.Rows = append(t.Rows, row)
}

// Write prints the table. terminal tells that a person's terminal is behind w.
func (t *Table) Write(w io.Writer, terminal bool) error {
	if terminal {
		return t.drawn(w)
	}
	return t.columns(w)
}

func (t *Table) right(col int) bool {
	for _, c := range t.Right {
		if c == col {
			return true
		}
	}
	return false
}

func (t *Table) drawn(w io.Writer) error {
	cell := lipgloss.NewStyle().Padding(0, 1)
	drawn := table.New().
		Border(lipgloss.RoundedBorder()).
		Headers(t.Head...).
		Rows(t.Rows...).
		Wrap(false).
		StyleFunc(func(row, col int) lipgloss.Style {
			s := cell
			if row == table.HeaderRow {
				s = s.Bold(true)
			}
			if t.right(col) {
				s = s.Align(lipgloss.Right)
			}
			return s
		})
	_, err := lipgloss.Fprintln(w, drawn.Render())
	return err
}

func (t *Table) columns(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}
