package consumer

import (
	"context"
	"fmt"
	"testing"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
)

// What is handed out here and what comes from elsewhere take turns, however much of
// either is there, and First tells what Poll gives.
func TestStreamTakesTurns(t *testing.T) {
	w := newWorld(1)
	s := w.shell()
	if err := s.CreateGroup(context.Background(), 1, GroupSpec{ID: 1, Name: "G", Policy: Default()}); err != nil {
		t.Fatal(err)
	}
	st := opened(t, s, StreamRequest{Group: 1, Member: "A", Session: 1}, Share{Partition: 1})
	size := 0
	far := func(n int) {
		b, _, err := record.Parse(record.Append(nil, record.Meta{}, []record.Record{{Body: []byte("far away")}}))
		if err != nil {
			t.Fatal(err)
		}
		var raw record.Raw
		b.Each(func(_ int, r record.Raw) bool { raw = r; return true })
		size = raw.Size()
		st.Take(Handed{Partition: 2, Deliveries: []StreamDelivery{{Message: partition.RawMessage{Offset: partition.Offset(n), Record: raw}, Fence: uint64(n)}}})
	}
	const n = 5
	for i := range n {
		far(i + 1)
		w.publish(1, fmt.Sprint("k", i))
	}
	st.AddCredit(n)
	seen := map[bool]int{}
	for i := range 2 * n {
		_, elsewhere := st.First()
		far(100 + i) // it comes between, and changes nothing
		hs, err := st.Poll(1)
		if err != nil || len(offsetsOf(hs)) != 1 || elsewhere != (hs[0].Partition == 2) {
			t.Fatalf("poll %d: %+v, %v; from elsewhere: %v", i, hs, err, elsewhere)
		}
		seen[elsewhere]++
	}
	if seen[true] != n || seen[false] != n {
		t.Errorf("%d came from elsewhere and %d are of here", seen[true], seen[false])
	}
	if got, want := st.Waiting(), int64(2*n*size); got != want {
		t.Errorf("%d bytes wait, want %d", got, want)
	}
	st.Detach()
	if st.Waiting() != 0 {
		t.Errorf("%d bytes wait where nothing is given out any more", st.Waiting())
	}
}
