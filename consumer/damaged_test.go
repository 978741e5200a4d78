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
				hs, err := st.Poll(DefaultMaxBytes)
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

// What cannot be read says nothing of the consumers: the circuit breaker does not
// count it, and as a probe it neither closes the circuit nor draws the wait out.
func TestDamagedIsNoFailure(t *testing.T) {
	w := newWorld(1)
	s := w.shell()
	p := Default()
	p.BreakerKeys, p.BreakerPercent = 3, 50
	if err := s.CreateGroup(context.Background(), 1, GroupSpec{ID: 1, Name: "G", Policy: p}); err != nil {
		t.Fatal(err)
	}
	w.publish(1, "a", "b", "c", "d", "e")
	w.parts[1].damaged = map[partition.Offset]bool{0: true, 1: true, 2: true, 3: true}
	take := func() []Delivery {
		ds, _, err := s.Receive(context.Background(), ReceiveRequest{Group: 1, Member: "A", Session: 1, Shares: []Share{{Partition: 1}}, Max: 10, MaxBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return ds
	}
	if ds := take(); len(ds) != 1 || string(ds[0].Message.Record.Key) != "e" {
		t.Fatalf("got %v", ds)
	}
	st, err := s.Stats(context.Background(), 1, 1)
	if err != nil || st.Counts.Dead != 4 || st.Circuit.Open || st.Circuit.Opened != 0 {
		t.Fatalf("four dead letters and a closed circuit: %+v, %v", st, err)
	}
}

// What an at-most-once group was handed and nobody can read is lost to it, and told.
func TestDamagedOfAtMostOnce(t *testing.T) {
	w := newWorld(1)
	s := w.shell()
	var lost []string
	s.Lost = func(g GroupID, bad *partition.ErrUnreadable) { lost = append(lost, g.String()+" "+bad.What()) }
	p := Default()
	p.AtMostOnce = true
	if err := s.CreateGroup(context.Background(), 1, GroupSpec{ID: 1, Name: "G", Policy: p}); err != nil {
		t.Fatal(err)
	}
	w.publish(1, "a", "b", "c")
	w.parts[1].damaged = map[partition.Offset]bool{1: true}
	ds, _, err := s.Receive(context.Background(), ReceiveRequest{Group: 1, Member: "A", Session: 1, Shares: []Share{{Partition: 1}}, Max: 10, MaxBytes: 1 << 20})
	if err != nil || len(ds) != 2 {
		t.Fatalf("got %v, %v", ds, err)
	}
	if got := strings.Join(lost, "; "); got != "g1 the message at offset 1" {
		t.Errorf("lost: %s", got)
	}
	if st, err := s.Stats(context.Background(), 1, 1); err != nil || st.Counts.Acked != 3 || st.Counts.Dead != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}
