package consumer

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/partition"
	"pgregory.net/rapid"
)

func drawPolicy(t *rapid.T) Policy {
	p := Default()
	p.Mode = rapid.SampledFrom([]Mode{ByKey, ByKey, ByKey, ByPartition, NoOrder}).Draw(t, "mode")
	p.AckDeadline, p.MaxHold = 1000, 3000
	p.Backoff = rapid.SampledFrom([]partition.Millis{0, 100, 1000}).Draw(t, "backoff")
	p.BackoffMax = 1500 // shorter than what a new leader takes for time that passed
	p.MaxAttempts = rapid.Uint32Range(0, 3).Draw(t, "attempts")
	p.OnExhaustion = rapid.SampledFrom([]Exhaustion{Skip, Park}).Draw(t, "exhaustion")
	p.MaxInFlightMember = rapid.SampledFrom([]uint32{1, 3, 1000}).Draw(t, "member")
	p.MaxInFlightPartition = rapid.SampledFrom([]uint32{1, 4, 1000}).Draw(t, "partition")
	p.MaxDeferred = rapid.SampledFrom([]uint32{2, 10, 1000}).Draw(t, "deferred")
	p.MaxDeferredKey = rapid.SampledFrom([]uint32{1, 5, 1000}).Draw(t, "deferred key")
	p.BreakerPercent = rapid.SampledFrom([]uint32{0, 0, 50, 90}).Draw(t, "breaker")
	p.BreakerKeys = rapid.Uint32Range(1, 3).Draw(t, "breaker keys")
	p.BreakerWindow = rapid.SampledFrom([]partition.Millis{100, 1000, 30_000}).Draw(t, "breaker window")
	if p.OnExhaustion == Skip && rapid.IntRange(0, 9).Draw(t, "amo") == 0 {
		p.AtMostOnce = true
	}
	return p
}

// drawBounds makes memory small enough, mostly, that messages go to disk.
func drawBounds(t *rapid.T) bounds {
	return rapid.SampledFrom([]bounds{
		{messages: 3, ofKey: 1, row: 2}, {messages: 1, ofKey: 1, row: 1}, {messages: 6, ofKey: 2, row: 3}, {messages: memoryMessages, ofKey: 2, row: 3}, {},
	}).Draw(t, "memory")
}

// step is one thing that members, operators or time do to a world.
type step func(w *world, s *Shell, got *[]Delivery)

func drawStep(t *rapid.T, changed *bool) step {
	ctx := context.Background()
	member := rapid.SampledFrom([]string{"A", "B", "C"})
	switch rapid.IntRange(0, 16).Draw(t, "step") {
	case 0, 1:
		keys := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d", "-"}), 1, 6).Draw(t, "keys")
		return func(w *world, s *Shell, got *[]Delivery) { w.publish(1, keys...) }
	case 2, 3, 4:
		req := ReceiveRequest{
			Group: 1, Member: member.Draw(t, "member"), Session: rapid.Uint64Range(1, 3).Draw(t, "session"),
			Max: rapid.IntRange(1, 6).Draw(t, "max"), RequestID: rapid.SampledFrom([]string{"", "", "r1", "r2"}).Draw(t, "request"),
			Shares: []Share{{Partition: 1, Share: rapid.Uint32Range(0, 1).Draw(t, "share"), Shares: rapid.Uint32Range(1, 3).Draw(t, "shares")}},
		}
		return func(w *world, s *Shell, got *[]Delivery) {
			ds, _, _ := s.Receive(ctx, req)
			*got = append(*got, ds...)
		}
	case 5, 6, 7, 8, 9:
		pick := rapid.Float64Range(0, 1).Draw(t, "pick")
		action := rapid.SampledFrom([]Action{Ack, Ack, Ack, Nack, Nack, Reject, Extend, Release}).Draw(t, "action")
		n := rapid.IntRange(1, 4).Draw(t, "settle")
		return func(w *world, s *Shell, got *[]Delivery) {
			var ss []Settlement
			for i := range n {
				if len(*got) == 0 {
					return
				}
				at := max(0, len(*got)-1-int(pick*float64(min(len(*got), 12)))-i)
				ss = append(ss, Settlement{Token: (*got)[at].Token, Action: action, Reason: "why"})
			}
			s.Settle(ctx, 1, ss)
		}
	case 10, 11:
		d := rapid.SampledFrom([]partition.Millis{1, 120, 1000, 2000}).Draw(t, "advance")
		return func(w *world, s *Shell, got *[]Delivery) { w.advance(d) }
	case 12:
		name, below, leave := member.Draw(t, "member"), rapid.Uint64Range(1, 3).Draw(t, "below"), rapid.Bool().Draw(t, "leave")
		return func(w *world, s *Shell, got *[]Delivery) {
			if leave {
				_ = s.LeaveSession(ctx, 1, 1, name, below-1)
			} else {
				_ = s.EndSession(ctx, 1, 1, name, below)
			}
		}
	case 13:
		sel := rapid.SampledFrom([]Selector{
			{All: true}, {ByKey: true, HasKey: true, Key: []byte("a"), KeyHash: keyspace.Hash(7, []byte("a"))}, {Offsets: []partition.Offset{0, 3, 4}},
		}).Draw(t, "which")
		discard := rapid.IntRange(0, 3).Draw(t, "discard") == 0
		return func(w *world, s *Shell, got *[]Delivery) {
			if discard {
				_, _ = s.Discard(ctx, 1, 1, sel)
			} else {
				_, _, _ = s.Replay(ctx, 1, 1, sel)
			}
		}
	case 14:
		to := rapid.Uint64Range(0, 60).Draw(t, "to")
		return func(w *world, s *Shell, got *[]Delivery) { _, _ = s.Reset(ctx, 1, 1, partition.Offset(to)) }
	case 15:
		return drawTrim(t)
	default:
		switch rapid.IntRange(0, 2).Draw(t, "admin") {
		case 0:
			paused := rapid.Bool().Draw(t, "paused")
			return func(w *world, s *Shell, got *[]Delivery) { _ = s.SetPaused(ctx, 1, 1, paused) }
		case 1:
			mode := rapid.SampledFrom([]Mode{ByKey, ByPartition, NoOrder, 0}).Draw(t, "mode")
			exhaustion := rapid.SampledFrom([]Exhaustion{Skip, Park}).Draw(t, "exhaustion")
			return func(w *world, s *Shell, got *[]Delivery) {
				var p Policy
				_ = s.view(ctx, 1, 1, func(g *group, _ partition.Position) error { p = g.policy; return nil })
				p.OnExhaustion = exhaustion
				if mode != 0 {
					*changed = *changed || mode != p.Mode
					p.Mode = mode
				}
				_ = s.SetPolicy(ctx, 1, 1, p)
			}
		default:
			return func(w *world, s *Shell, got *[]Delivery) { _ = s.SetPaused(ctx, 1, 1, false) }
		}
	}
}

// TestRestartAnywhere runs the same steps in two worlds, of which one takes
// checkpoints and is killed at random: both end in the same state, in memory
// and in rows, and every step leaves it sound.
func TestRestartAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := drawBounds(t)
		plain, killed := newWorldOf(1, most), newWorldOf(1, most)
		p, k := plain.shell(), killed.shell()
		spec := GroupSpec{ID: 1, Name: "G", Policy: drawPolicy(t)}
		for _, s := range []*Shell{p, k} {
			if err := s.CreateGroup(context.Background(), 1, spec); err != nil {
				t.Fatal(err)
			}
		}
		var gotP, gotK []Delivery
		changed := false
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			do := drawStep(t, &changed)
			do(plain, p, &gotP)
			do(killed, k, &gotK)
			for _, s := range []*Shell{p, k} {
				// A new leader gives what is timed the time since the last command
				// again, so there is one.
				if _, err := s.propose(context.Background(), 1, encodeSettle(s.stamp(context.Background(), 1, 1), 1, nil)); err != nil {
					t.Fatal(err)
				}
			}
			part := killed.parts[1]
			if err := sound(part.app, partition.Offset(len(part.msgs)), changed); err != nil {
				t.Fatalf("%v\n%s", err, part.app.dump())
			}
			switch rapid.IntRange(0, 6).Draw(t, "then") {
			case 0:
				part.save()
			case 1:
				part.restart()
			case 2:
				part.app.Lead(false)
				part.app.Lead(true)
			}
			if part.wake == 0 || part.wake > killed.now {
				killed.mu.Lock()
				killed.turn(part)
				killed.mu.Unlock()
			}
		}
		if diff := cmp.Diff(plain.parts[1].app.dump(), killed.parts[1].app.dump()); diff != "" {
			t.Fatalf("state: %s", diff)
		}
		plain.parts[1].save()
		killed.parts[1].save()
		if diff := cmp.Diff(plain.parts[1].rows.String(), killed.parts[1].rows.String()); diff != "" {
			t.Fatalf("rows: %s", diff)
		}
		if len(gotP) != len(gotK) {
			t.Fatalf("%d deliveries, %d with restarts", len(gotP), len(gotK))
		}
	})
}

// tally is a taker that counts.
type tally struct {
	t interface {
		Fatalf(format string, args ...any)
	}
	credit   int
	reserved int
	open     bool
	got      []handOut
	ended    error
}

func (y *tally) Room() (now, open bool) { return y.open && y.credit > 0, y.open }
func (y *tally) Reserve(size int) bool {
	if !y.open || y.credit == 0 {
		return false
	}
	y.credit--
	y.reserved++
	return true
}
func (y *tally) Return(n, bytes int) {
	y.credit += n
	y.reserved -= n
	if y.reserved < 0 || bytes < 0 {
		y.t.Fatalf("gave back more than was taken: %d left, %d bytes", y.reserved, bytes)
	}
}
func (y *tally) Handed(_ partition.PartitionID, hs []handOut) {
	y.got = append(y.got, hs...)
	y.reserved -= len(hs)
	if y.reserved < 0 {
		y.t.Fatalf("handed out more than was taken")
	}
}
func (y *tally) Ended(_ partition.PartitionID, why error) {
	y.ended = why
}

// TestSlowLog lets commands wait in the log, several plans at once, while
// settlements, restarts and changes of leader come between. What a plan
// proposed is void or right when it is applied; the state stays sound, every
// reservation comes back, and nothing gets stuck.
func TestSlowLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorldOf(1, drawBounds(t))
		p := w.parts[1]
		policy := drawPolicy(t)
		p.apply(encodeCreate(w.now, GroupSpec{ID: 1, Name: "G", Policy: policy}))
		var queue [][]byte
		var takers []*tally
		live := make(map[uint64]handOut)
		drive := func() {
			cmds, _ := p.app.Drive(w.now, p)
			queue = append(queue, cmds...)
		}
		commit := func(n int) {
			for ; n > 0 && len(queue) > 0; n-- {
				p.apply(queue[0])
				queue = queue[1:]
				if err := sound(p.app, partition.Offset(len(p.msgs)), false); err != nil {
					t.Fatalf("%v\n%s", err, p.app.dump())
				}
			}
		}
		demand := func(member string, session uint64, credit int, share, shares uint32) {
			y := &tally{t: t, credit: credit, open: true}
			takers = append(takers, y)
			p.app.Event(demand{
				Group: 1, Member: member, Session: session, Request: rapid.Uint64Range(0, 2).Draw(t, "request"),
				Share: share, Shares: shares, Taker: y,
			})
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "step") {
			case 0, 1:
				p.at++
				w.publishOnly(1, rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "-"}), 1, 8).Draw(t, "keys")...)
			case 2, 3:
				demand(rapid.SampledFrom([]string{"A", "B"}).Draw(t, "member"), rapid.Uint64Range(1, 2).Draw(t, "session"),
					rapid.IntRange(1, 5).Draw(t, "credit"), rapid.Uint32Range(0, 2).Draw(t, "share"), rapid.Uint32Range(1, 3).Draw(t, "shares"))
			case 4, 5, 6:
				drive()
				commit(rapid.IntRange(0, 3).Draw(t, "commit"))
			case 7, 8:
				var ss []Settlement
				for _, y := range takers {
					for _, h := range y.got {
						live[h.Number] = h
					}
				}
				for n := uint64(0); n <= p.app.groups[0].handOuts; n++ {
					h, ok := live[n]
					if ok && rapid.Bool().Draw(t, "settle") {
						ss = append(ss, Settlement{
							Token:  Token{Epoch: h.Epoch, Offset: h.Offset, HandOut: h.Number, Ordinal: h.Ordinal},
							Action: rapid.SampledFrom([]Action{Ack, Ack, Nack, Reject, Release}).Draw(t, "action"),
						})
						delete(live, n)
					}
				}
				queue = append(queue, encodeSettle(w.now, 1, ss))
			case 9:
				w.now += rapid.SampledFrom([]partition.Millis{1, 500, 1200, 6000, 31_000}).Draw(t, "time")
			case 10:
				switch rapid.IntRange(0, 4).Draw(t, "admin") {
				case 0:
					queue = append(queue, encodeSessions(cmdSessions, w.now, 1, "A", 2))
				case 1:
					queue = append(queue, encodeReset(w.now, 1, partition.Offset(rapid.Uint64Range(0, 40).Draw(t, "to"))))
				case 2:
					queue = append(queue, encodePause(w.now, 1, rapid.Bool().Draw(t, "paused")))
				case 3:
					queue = append(queue, encodeOffsets(cmdReplay, w.now, 1, []partition.Offset{0, 1, 2, 3, 4, 5, 6, 7, 8}))
				default:
					for i := range takers {
						takers[i].open = false
					}
				}
			default:
				// A new leader has applied all that was committed before; what was
				// only proposed may be lost.
				if rapid.Bool().Draw(t, "lost") {
					queue = nil
				}
				commit(len(queue))
				if rapid.Bool().Draw(t, "restart") {
					p.restart()
				} else {
					p.app.Lead(false)
					p.app.Lead(true)
				}
			}
		}
		// All comes to rest: every reservation is back, and a member that acks
		// whatever it gets gets everything that is not parked.
		queue = append(queue, encodePause(w.now, 1, false))
		for range 10_000 {
			drive()
			if len(queue) == 0 {
				break
			}
			commit(len(queue))
		}
		for i, y := range takers {
			if y.reserved != 0 {
				t.Fatalf("taker %d has %d reservations left", i, y.reserved)
			}
			y.open = false
		}
		g := p.app.groups[0]
		for round := 0; ; round++ {
			if round == 2000 {
				t.Fatalf("messages are stuck\n%s", p.app.dump())
			}
			if g.count[inFlight]+g.count[ready]+g.count[failed]+g.count[deferred] == 0 &&
				(g.scanned == partition.Offset(len(p.msgs)) || g.parking > 0) {
				break
			}
			demand("Z", 9, 5, 0, 1)
			for range 100 {
				drive()
				if len(queue) == 0 {
					break
				}
				commit(len(queue))
			}
			y := takers[len(takers)-1]
			y.open = false
			var ss []Settlement
			for _, h := range y.got {
				ss = append(ss, Settlement{Token: Token{Epoch: h.Epoch, Offset: h.Offset, HandOut: h.Number, Ordinal: h.Ordinal}, Action: Ack})
			}
			if !policy.AtMostOnce {
				for i, r := range p.apply(encodeSettle(w.now, 1, ss)).([]SettleResult) {
					if r.Err != nil {
						t.Fatalf("ack of %+v: %v", ss[i].Token, r.Err)
					}
				}
			}
			w.now += 700
		}
	})
}

func (w *world) publishOnly(id partition.PartitionID, keys ...string) {
	p := w.parts[id]
	for _, k := range keys {
		w.add(p, k)
	}
}
