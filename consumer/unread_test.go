package consumer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// A group that comes to messages that cannot be read stands there and says so. It
// looks again once a minute, and goes on when a reset, retention or a repair of
// the disk lets it. Another group of the partition notices nothing.
func TestGroupStandsBeforeDamage(t *testing.T) {
	ctx := context.Background()
	for name, on := range map[string]struct {
		past func(t *testing.T, w *world, s *Shell)
		from partition.Offset // the first that comes then
	}{
		"a reset": {func(t *testing.T, _ *world, s *Shell) {
			if _, err := s.Reset(ctx, 1, 1, 5); err != nil {
				t.Fatal(err)
			}
		}, 5},
		"a reset to the middle of it, and behind": {func(t *testing.T, _ *world, s *Shell) {
			for _, o := range []partition.Offset{3, 5} {
				if _, err := s.Reset(ctx, 1, 1, o); err != nil {
					t.Fatal(err)
				}
			}
		}, 5},
		"retention": {func(t *testing.T, w *world, _ *Shell) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if to, err := w.parts[1].trim(partition.TrimTo{To: 5, Why: partition.BySize, Now: w.now}); to != 5 || err != nil {
				t.Fatalf("trimmed to %d, %v", to, err)
			}
			w.turn(w.parts[1])
		}, 5},
		"a repair": {func(_ *testing.T, w *world, _ *Shell) {
			w.mu.Lock()
			w.parts[1].hole = nil
			w.mu.Unlock()
			w.advance(unreadPatience)
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1)
			p, s := w.parts[1], w.shell()
			for id := range GroupID(2) {
				if err := s.CreateGroup(ctx, 1, GroupSpec{ID: id + 1, Name: fmt.Sprint("G", id+1), Policy: Default()}); err != nil {
					t.Fatal(err)
				}
			}
			w.publish(1, "a", "b", "c", "d", "e", "f", "a")
			other := opened(t, s, StreamRequest{Group: 2, Member: "B", Session: 1}, Share{Partition: 1})
			other.AddCredit(100)
			if got := offsetsOf(streamed(t, other)); len(got) != 6 {
				t.Fatalf("the other group got %v", got)
			}
			p.hole = &partition.ErrUnreadable{Offset: 2, Last: 4, Err: &partition.ErrDamaged{Partition: 1, Why: "a checksum"}}
			st := opened(t, s, StreamRequest{Group: 1, Member: "A", Session: 1}, Share{Partition: 1})
			st.AddCredit(100)
			if got := offsetsOf(streamed(t, st)); !slices.Equal(got, []partition.Offset{0, 1}) {
				t.Fatalf("before the damage comes %v", got)
			}
			settleRuns(st, SettleRun{First: 1, Last: 2, Action: Ack})
			stands := func() {
				t.Helper()
				state, err := s.Stats(ctx, 1, 1)
				if err != nil || len(state.Stalls) != 1 {
					t.Fatalf("stalls %+v, %v", state.Stalls, err)
				}
				x := state.Stalls[0]
				if x.Reason != "PARTITION_DAMAGED" || x.Offset != 2 || x.Waiting != state.Counts.NotScanned || x.Unreadable.End() != 5 || !strings.Contains(x.Text, "offset 5") {
					t.Fatalf("stall %+v", x)
				}
				if why := st.WhyIdle(ctx); why != x.Text {
					t.Fatalf("the member is told %q, the operator %q", why, x.Text)
				}
			}
			stands()
			// Whatever happens in the partition, it does not look again at once.
			w.publish(1, "f", "g")
			if got := offsetsOf(streamed(t, other)); !slices.Equal(got, []partition.Offset{8}) {
				t.Fatalf("the other group goes on with %v", got)
			}
			// Nor does a member that asks in vain again and again.
			for range 3 {
				ds, why, err := s.Receive(ctx, ReceiveRequest{Group: 1, Member: "C", Session: 1, Shares: []Share{{Partition: 1}}, Max: 3, MaxBytes: 1 << 20})
				if len(ds) != 0 || err != nil || !strings.Contains(why, "offsets 2 to 4") {
					t.Fatalf("a call gives %v, %q, %v", ds, why, err)
				}
			}
			if p.fell != 1 {
				t.Fatalf("it looked %d times at once", p.fell)
			}
			w.advance(3 * unreadPatience)
			if p.fell != 4 {
				t.Fatalf("it looked %d times in three minutes", p.fell)
			}
			stands()
			if err := s.SetPaused(ctx, 1, 1, true); err != nil {
				t.Fatal(err)
			}
			if err := s.SetPaused(ctx, 1, 1, false); err != nil {
				t.Fatal(err)
			}
			on.past(t, w, s)
			var want []partition.Offset
			for o := on.from; o < 9; o++ {
				if o != 7 { // behind offset 5, of its key
					want = append(want, o)
				}
			}
			if got := offsetsOf(streamed(t, st)); !slices.Equal(got, want) {
				t.Fatalf("behind it comes %v, want %v", got, want)
			}
			if state, err := s.Stats(ctx, 1, 1); err != nil || slices.ContainsFunc(state.Stalls, func(x Stall) bool { return x.Unreadable != nil }) {
				t.Fatalf("stalls %+v, %v", state.Stalls, err)
			}
			if err := s.DeleteGroup(ctx, 1, 1); err != nil {
				t.Fatal(err)
			}
		})
	}
}
