package consumer

import (
	"context"
	"fmt"
	"testing"
)

// A stream whose deliveries are settled by tokens beside it remembers what is
// out, and not all that it ever gave out; and what is settled on it goes at once.
func TestStreamForgets(t *testing.T) {
	w := newWorld(1)
	s := w.shell()
	if err := s.CreateGroup(context.Background(), 1, GroupSpec{ID: 1, Name: "G", Policy: Default()}); err != nil {
		t.Fatal(err)
	}
	st := opened(t, s, StreamRequest{Group: 1, Member: "A", Session: 1}, Share{Partition: 1})
	kept := func() (n int) {
		for _, k := range st.kept {
			n += k.left
		}
		return n
	}
	for i := range 50 {
		st.AddCredit(2)
		w.publish(1, fmt.Sprint("a", i), fmt.Sprint("b", i))
		for _, h := range streamed(t, st) {
			var acks []Settlement
			for k := range h.Deliveries {
				if i%2 == 0 {
					acks = append(acks, Settlement{Token: st.Token(&h, k), Action: Ack})
				} else if r := settleRuns(st, SettleRun{First: h.First + uint64(k), Action: Ack}); r[0].Err != nil {
					t.Fatal(r[0].Err)
				}
			}
			s.Settle(context.Background(), 1, acks)
		}
		w.advance(Default().AckDeadline / 4)
		if n := kept(); n > 12 || len(st.kept) > 12 {
			t.Fatalf("round %d: %d deliveries in %d blocks are remembered, none of them unsettled", i, n, len(st.kept))
		}
	}
	n := 0
	for _, k := range st.kept {
		if k.left == 0 {
			n++
		}
	}
	if n != st.empty {
		t.Errorf("%d blocks are empty, %d are counted", n, st.empty)
	}
}
