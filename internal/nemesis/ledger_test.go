package nemesis

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLongestGap(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name        string
		acks        []time.Duration
		from, until time.Duration
		want        time.Duration
		open        bool
	}{
		{"nothing ever", nil, 2 * s, 5 * s, 3 * s, true},
		{"nothing happened", []time.Duration{1 * s, 2 * s, 3 * s, 4 * s}, 2 * s, 3 * s, s, false},
		{"it began before the fault", []time.Duration{1 * s, 5 * s, 6 * s}, 2 * s, 6 * s, 4 * s, false},
		{"it ended after all was whole", []time.Duration{1 * s, 2 * s, 9 * s, 20 * s}, 2 * s, 3 * s, 7 * s, false},
		{"what is before does not count", []time.Duration{1 * s, 9 * s, 10 * s, 11 * s}, 10 * s, 11 * s, s, false},
		{"what is after does not count", []time.Duration{1 * s, 2 * s, 3 * s, 30 * s}, 1 * s, 3 * s, s, false},
		{"never again", []time.Duration{1 * s, 2 * s}, 2 * s, 7 * s, 5 * s, true},
	} {
		if got, open := longestGap(c.acks, c.from, c.until); got != c.want || open != c.open {
			t.Errorf("%s: %v open %t, want %v open %t", c.name, got, open, c.want, c.open)
		}
	}
}

func TestLedger(t *testing.T) {
	var l Ledger
	for i := range 100 {
		l.Ack(0, time.Duration(i)*time.Second)
		if i < 10 || i > 14 {
			l.Ack(1, time.Duration(i)*time.Second)
		}
	}
	// Out of order, as two callers do.
	l.Ack(0, 98500*time.Millisecond)
	l.Fault(Span{Step{Number: 1, Kind: Kill, Node: 0}, 9500 * time.Millisecond, 20 * time.Second, []uint32{1}})
	l.Fault(Span{Step{Number: 2, Kind: Kill, Node: 1}, 30500 * time.Millisecond, 40 * time.Second, nil})
	l.Fault(Span{Step{Number: 3, Kind: Cut, Node: 2}, 98 * time.Second, 110 * time.Second, []uint32{0, 1}})
	got := l.Outages(2)
	want := []Outage{
		{1, Kill, 1, 0, false, 1, false},
		{1, Kill, 1, 1, true, 6, false},
		{2, Kill, 2, 0, false, 1, false},
		{2, Kill, 2, 1, false, 1, false},
		{3, Cut, 3, 0, true, 11, true},
		{3, Cut, 3, 1, true, 11, true},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
	figures := []Figures{
		{Kind: Kill, Faults: 2, All: Spread{4, 1, 6, 6}, Led: &Spread{1, 6, 6, 6}},
		{Kind: Cut, Faults: 1, All: Spread{2, 11, 11, 11}, Led: &Spread{2, 11, 11, 11}, Open: 2},
	}
	if d := cmp.Diff(figures, Summary(got)); d != "" {
		t.Fatal(d)
	}
	if n := l.Acks(0, 98*time.Second); n != 3 {
		t.Errorf("%d acks since, want 3", n)
	}
	if n := l.Acks(7, 0); n != 0 {
		t.Errorf("%d acks of a partition that never was", n)
	}
}
