package table

import (
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	tb := Table{Head: []string{"TOPIC", "COUNT"}, Right: []int{1}}
	tb.Add("orders", 12)
	tb.Add("x\x1b[2Jy\nz", 3456)
	var pipe, terminal strings.Builder
	if err := tb.Write(&pipe, false); err != nil {
		t.Fatal(err)
	}
	want := "TOPIC         COUNT\norders        12\nx\\x1b[2Jy\\nz  3456\n"
	if pipe.String() != want {
		t.Errorf("got\n%s\nwant\n%s", pipe.String(), want)
	}
	if err := tb.Write(&terminal, true); err != nil {
		t.Fatal(err)
	}
	// A buffer is no terminal, so the styles are stripped and the lines stay.
	want = "╭──────────────┬───────╮\n│ TOPIC        │ COUNT │\n├──────────────┼───────┤\n│ orders       │    12 │\n│ x\\x1b[2Jy\\nz │  3456 │\n╰──────────────┴───────╯\n"
	if terminal.String() != want {
		t.Errorf("got\n%s\nwant\n%s", terminal.String(), want)
	}
}
