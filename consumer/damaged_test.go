package consumer

import (
	"context"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// A message that cannot be read is a dead letter that says so, with one charge,
// and holds nobody up: neither its neighbours in the same read, nor what comes
// behind it. It can be replayed when it reads again, and given up when it does not.
func TestDamagedMessage(t *testing.T) {
	for name, take := range map[string]func(*testing.T, *world, *Shell) (keys string){
		"stream": func(t *testing.T, w *world, s *Shell) (keys string) {
			st := opened(t, s, StreamRequest{Group: 1, Member: "A", Session: 1}, Share{Partition: 1})
			st.AddCredit(100)
			for {
				hs, err := st.Poll()
				if err != nil {
					t.Fatal(err)
				}
				if len(hs) == 0 {
					return keys
				}
				for _, h := range hs {
					for i := range h.Deliveries {
						d := &h.Deliveries[i]
						if d.Attempt != 1 {
							t.Errorf("%s comes at attempt %d", d.Message.Record.Key(), d.Attempt)
						}
						keys += string(d.Message.Record.Key())
					}
					n := uint64(len(h.Deliveries))
					st.Settle(context.Background(), []SettleRun{{First: h.First, Last: h.First + n - 1, Action: Ack}}, func([]SettleRunResult) {})
				}
			}
		},
		"receive": func(t *testing.T, w *world, s *Shell) (keys string) {
			for range 10 {
				ds, _, err := s.Receive(context.Background(), ReceiveRequest{Group: 1, Member: "A", Session: 1, Shares: []Share{{Partition: 1}}, Max: 3, MaxBytes: 1 << 20})
				if err != nil {
					t.Fatal(err)
				}
				var acks []Settlement
				for _, d := range ds {
					if d.Attempt != 1 {
						t.Errorf("%s comes at attempt %d", d.Message.Record.Key, d.Attempt)
					}
					keys += string(d.Message.Record.Key)
					acks = append(acks, Settlement{Token: d.Token, Action: Ack})
				}
				s.Settle(context.Background(), 1, acks)
			}
			return keys
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1)
			s := w.shell()
			if err := s.CreateGroup(context.Background(), 1, GroupSpec{ID: 1, Name: "G", Policy: Default()}); err != nil {
				t.Fatal(err)
			}
			w.publish(1, "a", "b", "c", "b", "d")
			w.parts[1].damaged = map[partition.Offset]bool{1: true}
			got := strings.Split(take(t, w, s), "")
			if len(got) != 4 || strings.Count(strings.Join(got, ""), "b") != 1 {
				t.Fatalf("got %v, want a, c, d and the second b", got)
			}
			list, err := s.DeadLetters(context.Background(), 1, 1, 0, 10)
			if err != nil || len(list) != 1 || list[0].Offset != 1 || list[0].Attempts != 1 || !strings.HasPrefix(list[0].Reason, Damaged) || list[0].Message.Record.HasKey {
				t.Fatalf("dead letters %+v, %v", list, err)
			}
			if n, err := s.Discard(context.Background(), 1, 1, Selector{Offsets: []partition.Offset{1}}); n != 1 || err != nil {
				t.Fatalf("discarded %d, %v", n, err)
			}
		})
	}
}
