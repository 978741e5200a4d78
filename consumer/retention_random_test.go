package consumer

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/partition"
)

// drawTrim is retention at work: to somewhere behind the start, in one of its
// ways.
func drawTrim(t *rapid.T) step {
	return drawTrimOf(t, rapid.IntRange(0, 8).Draw(t, "trim ahead"))
}

func drawTrimOf(t *rapid.T, ahead int) step {
	to := partition.TrimTo{
		Why:  rapid.SampledFrom([]partition.TrimReason{partition.ByAge, partition.BySize}).Draw(t, "why"),
		Done: rapid.Bool().Draw(t, "done"), Firm: rapid.Bool().Draw(t, "firm"),
	}
	return func(w *world, _ *Shell, _ *[]Delivery) {
		w.mu.Lock()
		defer w.mu.Unlock()
		p := w.parts[1]
		to := to
		to.To, to.Now = p.start+partition.Offset(ahead), w.now
		if _, err := p.trim(to); err != nil {
			panic(err)
		}
		w.turn(p)
	}
}

// fates is what became of each message of a group, by the answers that its
// members and operators got.
type fates struct {
	acked, gone, lost, dead, replayed map[partition.Offset]bool
}

// TestRetentionLosesWhatItSays publishes, handles and trims at random, and holds
// the group against a ledger of answers: every message is handled, dead, given
// up or lost, and none of them twice; the loss records add up to those that were
// lost; what is dead keeps its message; nothing that is gone is delivered.
func TestRetentionLosesWhatItSays(t *testing.T) {
	for range 4 { // what is rare, a whole key on disk, say, takes some hundred runs
		rapid.Check(t, retentionScript)
	}
}

func retentionScript(t *rapid.T) {
	ctx := context.Background()
	w := newWorldOf(1, drawBounds(t))
	s := NewShellOver(w, 1)
	s.Now = func() partition.Millis { return w.now }
	pol := drawPolicy(t)
	pol.AtMostOnce, pol.MaxAttempts = false, rapid.Uint32Range(1, 3).Draw(t, "max attempts")
	pol.MaxDeferred, pol.MaxDeferredKey = 1000, 1000
	pol.Retention = rapid.SampledFrom([]Retention{Expire, Hold}).Draw(t, "retention")
	pol.HoldBytes = rapid.SampledFrom([]uint64{0, 25, 60}).Draw(t, "hold")
	if err := s.CreateGroup(ctx, 1, GroupSpec{ID: 1, Name: "g", Policy: pol}); err != nil {
		t.Fatal(err)
	}
	p := w.parts[1]
	f := fates{map[partition.Offset]bool{}, map[partition.Offset]bool{}, map[partition.Offset]bool{}, map[partition.Offset]bool{}, map[partition.Offset]bool{}}
	var out []Delivery
	var all []partition.Message // as published
	take := func(n int) {
		ds, _, err := s.Receive(ctx, ReceiveRequest{Group: 1, Member: "A", Session: 1, Max: n, Shares: []Share{{Partition: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			o := d.Message.Offset
			switch {
			case f.acked[o], f.gone[o], f.lost[o], f.dead[o] && !f.replayed[o]:
				t.Fatalf("offset %d is delivered: acked %v, given up %v, lost %v, dead %v", o, f.acked[o], f.gone[o], f.lost[o], f.dead[o])
			case o < p.start && !f.replayed[o]:
				t.Fatalf("offset %d is delivered, and the log begins at %d", o, p.start)
			}
			if diff := cmp.Diff(all[o].Record, d.Message.Record); diff != "" {
				t.Fatalf("offset %d is another message: %s", o, diff)
			}
		}
		out = append(out, ds...)
	}
	settle := func(d Delivery, a Action) {
		o := d.Message.Offset
		r := s.Settle(ctx, 1, []Settlement{{Token: d.Token, Action: a}})[0]
		var stale *ErrStale
		switch {
		case errors.As(r.Err, &stale):
		case r.Err != nil:
			t.Fatal(r.Err)
		case a == Ack:
			if f.acked[o] = true; f.lost[o] {
				t.Fatalf("offset %d was lost, and its ack is a success", o)
			}
			delete(f.dead, o)
			delete(f.replayed, o)
		case r.Dead:
			f.dead[o] = true
			delete(f.replayed, o)
		}
	}
	dead := func() []partition.Offset { return slices.Sorted(maps.Keys(f.dead)) }
	check := func() {
		t.Helper()
		st, err := s.Stats(ctx, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		var sum uint64
		for i, l := range st.Kept.Losses {
			if sum += l.Count; l.First > l.Last || l.Last >= p.start || i > 0 && l.First <= st.Kept.Losses[i-1].Last {
				t.Fatalf("losses %+v, the log begins at %d", st.Kept.Losses, p.start)
			}
			n := 0
			for o := l.First; o <= l.Last; o++ {
				if f.lost[o] {
					n++
				}
			}
			if uint64(n) != l.Count {
				t.Fatalf("loss %+v: %d were lost there", l, n)
			}
		}
		if int(sum) != len(f.lost) || st.Counts.Expired != sum {
			t.Fatalf("%d were lost, the records say %d, the counts %d", len(f.lost), sum, st.Counts.Expired)
		}
		copies := 0
		for o := range f.dead {
			if o < p.start {
				copies++
			}
		}
		if int(st.Kept.Copies) != copies || (copies == 0) != (st.Kept.CopyBytes == 0) {
			t.Fatalf("%d dead letters are before the log, of which there are %d copies, %d bytes", copies, st.Kept.Copies, st.Kept.CopyBytes)
		}
		c := st.Counts
		if total := c.Ready + c.Blocked + c.InFlight + c.BackingOff + c.Parked + c.Dead + c.Acked + c.Skipped + c.NotScanned; total != uint64(len(all)) {
			t.Fatalf("the counts add up to %d of %d: %+v", total, len(all), c)
		}
		if int(c.Dead+c.Replaying) != len(f.dead) {
			t.Fatalf("%d are dead, the counts say %d and %d on their way again", len(f.dead), c.Dead, c.Replaying)
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"publish": func(t *rapid.T) {
			w.publish(1, rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "-"}), 1, 6).Draw(t, "keys")...)
			all = slices.Clone(p.msgs)
		},
		"receive": func(t *rapid.T) { take(rapid.IntRange(1, 5).Draw(t, "max")) },
		"settle": func(t *rapid.T) {
			if len(out) > 0 {
				i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
				settle(out[i], rapid.SampledFrom([]Action{Ack, Ack, Ack, Nack, Reject, Reject, Release}).Draw(t, "action"))
			}
		},
		"advance": func(t *rapid.T) { w.advance(rapid.SampledFrom([]partition.Millis{1, 1100}).Draw(t, "ms")); f.lapsed(p) },
		"replay": func(t *rapid.T) {
			if os := dead(); len(os) > 0 {
				o := rapid.SampledFrom(os).Draw(t, "which")
				if _, _, err := s.Replay(ctx, 1, 1, Selector{Offsets: []partition.Offset{o}}); err != nil {
					t.Fatal(err)
				}
				f.replayed[o] = true
			}
		},
		"discard": func(t *rapid.T) {
			if os := dead(); len(os) > 0 {
				o := rapid.SampledFrom(os).Draw(t, "which")
				if n, err := s.Discard(ctx, 1, 1, Selector{Offsets: []partition.Offset{o}}); err == nil && n == 1 {
					f.gone[o] = true
					delete(f.dead, o)
				}
			}
		},
		"find": func(t *rapid.T) {
			for _, o := range dead() {
				d, err := s.DeadLetter(ctx, 1, 1, o)
				if err != nil || cmp.Diff(all[o].Record, d.Message.Record) != "" || d.Message.Offset != o {
					t.Fatalf("dead letter %d is %+v, %v", o, d, err)
				}
				os, err := s.CopiesOf(ctx, 1, 1, all[o].Record.ID)
				if want := o < p.start; err != nil || slices.Contains(os, o) != want {
					t.Fatalf("the copy of %d is found at %v, %v; the log begins at %d", o, os, err, p.start)
				}
			}
		},
		"trim": func(t *rapid.T) {
			was, ahead := p.start, rapid.IntRange(0, 8).Draw(t, "trim ahead")
			drawTrimOf(t, ahead)(w, s, nil)
			for o := was; o < p.start; o++ {
				if !f.acked[o] && !f.gone[o] && !f.dead[o] {
					if f.lost[o] = true; o >= was+partition.Offset(ahead) {
						t.Fatalf("offset %d was lost, and the topic's limits keep it", o)
					}
				}
			}
			if pol.Retention == Hold && pol.HoldBytes == 0 && len(f.lost) > 0 {
				t.Fatalf("a group that holds without limit lost %v", f.lost)
			}
		},
		"restart": func(*rapid.T) { p.restart() },
		"save":    func(*rapid.T) { p.save() },
		"": func(t *rapid.T) {
			check()
			if diff := p.replayed(); diff != "" {
				t.Fatal(diff)
			}
		},
	})
	// What is left can all be handled.
	for range 1000 {
		for _, o := range dead() {
			if _, _, err := s.Replay(ctx, 1, 1, Selector{Offsets: []partition.Offset{o}}); err != nil {
				t.Fatal(err)
			}
			f.replayed[o] = true
		}
		n := len(out)
		take(100)
		for _, d := range out[n:] {
			settle(d, Ack)
		}
		w.advance(1500)
		f.lapsed(p)
		if len(f.acked)+len(f.gone)+len(f.lost) == len(all) {
			check()
			return
		}
	}
	t.Fatalf("%d of %d messages are neither handled nor lost", len(all)-len(f.acked)-len(f.gone)-len(f.lost), len(all))
}

// lapsed learns which messages died of a lapse, whom nobody told.
func (f *fates) lapsed(p *memPart) {
	g := p.app.groups[0]
	err := g.eachDead(0, func(o partition.Offset, d deadRow) bool {
		f.dead[o] = true
		if !d.replaying {
			delete(f.replayed, o)
		}
		return true
	})
	if err != nil {
		panic(err)
	}
}
