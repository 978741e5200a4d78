package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/doctor"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/internal/table"
)

func (a *app) topCommand() *cobra.Command {
	var s scope
	var onlyOnce bool
	interval, rows := spanFlag{2 * time.Second}, countFlag{n: 20, least: 1, most: 10_000}
	c := command(&cobra.Command{
		Use:   "top",
		Short: "Watch groups, those furthest behind first, and nodes",
		Long: `Shows the groups with the most before them, how fast each goes, and the nodes, and
looks again every two seconds. With --topic and --group it shows the group's
partitions. Rates are what changed between two looks. At a terminal it draws in place,
and q or Ctrl-C ends it; elsewhere it prints each look.`,
		Example: `  strandmq top
  strandmq top --topic orders --group billing
  strandmq top --once --output json | jq '.groups[0].lag'`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		if err := s.check(); err != nil {
			return err
		}
		if interval.d < 100*time.Millisecond {
			return usagef("--interval %s: use 100ms or more", quantity.FormatSpan(interval.d))
		}
		q, err := a.newInquiry(cmd.Context(), s.topic, s.group, answerTime)
		if err != nil {
			return err
		}
		t := &top{a: a, q: q, rows: int(rows.n), interval: interval.d}
		if onlyOnce {
			return t.once(cmd.Context(), &s)
		}
		return t.run(cmd.Context())
	})
	s.flags(c)
	c.Flags().BoolVar(&onlyOnce, "once", false, "look twice, print the second look, and end")
	c.Flags().Var(&interval, "interval", "how long to wait between two looks")
	c.Flags().Var(&rows, "rows", "how many groups or partitions are shown at most")
	return c
}

// top is a live view.
type top struct {
	a        *app
	q        *inquiry
	rows     int
	interval time.Duration

	before topLook // the look before
	drawn  int     // lines on the screen
	raw    bool    // the terminal ends lines by \r\n only
}

// topLook is what one look saw, with rates by the look before. Rates that are not known
// are left out.
type topLook struct {
	At         time.Time          `json:"at"`
	Groups     []topRow           `json:"groups"`
	Partitions []topRow           `json:"partitions,omitempty"` // of the group that was asked for
	Nodes      []topNode          `json:"nodes"`
	More       int                `json:"more,omitempty"` // rows that are not shown
	Unreached  []doctor.Unreached `json:"unreached"`
}

// topRow is a group, or a partition of one.
type topRow struct {
	Topic     string   `json:"topic"`
	Group     string   `json:"group"`
	Partition *uint32  `json:"partition,omitempty"`
	Paused    bool     `json:"paused,omitempty"`
	Lag       uint64   `json:"lag"`
	Oldest    float64  `json:"oldestSeconds"`
	InFlight  uint64   `json:"inFlight"`
	Dead      uint64   `json:"dead"`
	LagRate   *float64 `json:"lagPerSecond,omitempty"`
	AckRate   *float64 `json:"ackedPerSecond,omitempty"`
	FailRate  *float64 `json:"failedPerSecond,omitempty"`

	counts doctor.Counts
}

// topNode is a node.
type topNode struct {
	Node     string `json:"node"`
	There    bool   `json:"there"`
	Replicas int    `json:"replicas"`
	Free     uint64 `json:"diskFreeBytes"`
	Total    uint64 `json:"diskTotalBytes"`
	Words    string `json:"fault,omitempty"`
}

// once looks twice and prints the second look.
func (t *top) once(ctx context.Context, s *scope) error {
	t.look()
	if err := s.known(&t.q.facts); err != nil {
		return err
	}
	select {
	case <-time.After(t.interval):
	case <-ctx.Done():
		return ctx.Err()
	}
	l := t.look()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if t.a.json() {
		return t.a.printValue(l)
	}
	_, err := io.WriteString(t.a.out, t.text(&l))
	return err
}

// run looks and draws until somebody ends it.
func (t *top) run(ctx context.Context) error {
	live := terminal(t.a.out) && !t.a.json()
	quit := make(chan struct{})
	if in, ok := t.a.in.(*os.File); ok && live && term.IsTerminal(in.Fd()) {
		state, err := term.MakeRaw(in.Fd())
		if err != nil {
			return err
		}
		defer func() { _ = term.Restore(in.Fd(), state) }()
		t.raw = true
	}
	tick := time.NewTicker(t.interval)
	defer tick.Stop()
	for first := true; ; first = false {
		l := t.look()
		if ctx.Err() != nil {
			return nil // which is how it is to end
		}
		if err := t.show(&l, live); err != nil {
			return err
		}
		if first && t.raw {
			go t.keys(quit) // it waits in a read, and ends with the process
		}
		select {
		case <-tick.C:
		case <-quit:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// keys waits for q, Ctrl-C or the end of the input.
func (t *top) keys(quit chan<- struct{}) {
	defer close(quit)
	one := make([]byte, 1)
	for {
		n, err := t.a.in.Read(one)
		if err != nil || n == 1 && (one[0] == 'q' || one[0] == 3) {
			return
		}
	}
}

// show prints a look, on a terminal in place of the one before.
func (t *top) show(l *topLook, live bool) error {
	if t.a.json() {
		return json.NewEncoder(t.a.out).Encode(l)
	}
	text := t.text(l)
	if !live {
		_, err := io.WriteString(t.a.out, text+"\n")
		return err
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if f, ok := t.a.out.(*os.File); ok {
		// A line that goes round, or more lines than there are, could not be taken back.
		if width, height, err := term.GetSize(f.Fd()); err == nil && width > 0 && height > 1 {
			lines = lines[:min(len(lines), height-1)]
			for i, line := range lines {
				if r := []rune(line); len(r) >= width {
					lines[i] = string(r[:width-1])
				}
			}
		}
	}
	var b strings.Builder
	if t.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", t.drawn)
	}
	b.WriteString("\r\x1b[J")
	end := "\n"
	if t.raw {
		end = "\r\n"
	}
	for _, line := range lines {
		b.WriteString(line + end)
	}
	t.drawn = len(lines)
	_, err := io.WriteString(t.a.out, b.String())
	return err
}

// text is a look in words and columns.
func (t *top) text(l *topLook) string {
	var b strings.Builder
	rows, what := l.Groups, "group"
	if l.Partitions != nil {
		rows, what = l.Partitions, "partition"
	}
	fmt.Fprintf(&b, "%s   %s, %s   q ends\n\n", l.At.UTC().Format("2006-01-02 15:04:05"), quantity.Some(len(l.Nodes), "node"), quantity.Some(len(rows)+l.More, what))
	head := []string{"TOPIC", "GROUP", "LAG", "LAG/S", "OLDEST", "IN FLIGHT", "ACKED/S", "FAILED/S", "DEAD"}
	groups := table.Table{Head: head, Right: []int{2, 3, 4, 5, 6, 7, 8}}
	for _, r := range rows {
		name := r.Group
		if r.Partition != nil {
			name = fmt.Sprintf("%s #%d", name, *r.Partition)
		}
		if r.Paused {
			name += " (paused)"
		}
		oldest := "-"
		if r.Lag > 0 {
			oldest = quantity.FormatSpan(time.Duration(r.Oldest) * time.Second)
		}
		groups.Add(r.Topic, name, quantity.Count(r.Lag), rateWords(r.LagRate), oldest, r.InFlight, rateWords(r.AckRate), rateWords(r.FailRate), r.Dead)
	}
	_ = groups.Write(&b, false) // a builder takes everything
	if l.More > 0 {
		fmt.Fprintf(&b, "and %d more\n", l.More)
	}
	b.WriteByte('\n')
	nodes := table.Table{Head: []string{"NODE", "THERE", "REPLICAS", "DISK FREE", "FAULT"}, Right: []int{2}}
	for _, n := range l.Nodes {
		there, free := "yes", "-"
		if !n.There {
			there = "no"
		}
		if n.Total > 0 {
			free = quantity.RoughSize(n.Free) + " of " + quantity.RoughSize(n.Total)
		}
		nodes.Add(n.Node, there, n.Replicas, free, orDash(n.Words))
	}
	_ = nodes.Write(&b, false)
	for _, u := range l.Unreached {
		b.WriteString("not asked: " + plain.Text(u.What+": "+u.Why) + "\n")
	}
	return b.String()
}

func rateWords(r *float64) string {
	if r == nil {
		return "-"
	}
	if *r == 0 {
		return "0"
	}
	return fmt.Sprintf("%.1f", *r)
}

// furthest are the rows with the most before them, as many as are shown.
func (t *top) furthest(rows []topRow) (shown []topRow, more int) {
	slices.SortStableFunc(rows, func(a, b topRow) int {
		return cmp.Or(cmp.Compare(b.Lag, a.Lag), cmp.Compare(b.Oldest, a.Oldest), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Group, b.Group))
	})
	if more = len(rows) - t.rows; more > 0 {
		return rows[:t.rows], more
	}
	return rows, 0
}
