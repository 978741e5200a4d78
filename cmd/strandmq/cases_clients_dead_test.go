//go:build unix

package main

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// twoAttempts is the policy of C10, C12 and C13.
func twoAttempts() *strandmqv1.GroupPolicy {
	return &strandmqv1.GroupPolicy{
		MaxAttempts: proto.Uint32(2), BackoffMs: proto.Int64(20), AckDeadlineMs: proto.Int64(never), MaxHoldMs: proto.Int64(6 * never),
		BreakerFailedPercent: proto.Uint32(0),
	}
}

// fails has consume fail everything that is left for g1, until it is dead.
func (p *play) fails() {
	p.t.Helper()
	p.runs("", "consume", p.topic, "--group", "g1", "--member", "m", "--until-empty", "--exec", `echo "cannot $STRANDMQ_ATTEMPT" >&2; exit 1`)
}

// C10: what dies in the hands of consume is there to the byte, with its history, also
// after the lead moved, and dead in its group only.
func deadByConsume(t *testing.T, f *squadron) {
	p := newPlay(t, f, "c10-by-consume", twoAttempts(), nil)
	value := func(v string) *strandmqv1.Header_Value { return &strandmqv1.Header_Value{Value: v} }
	var sent []*strandmqv1.Message
	for i, key := range [][]byte{[]byte("plain"), {0, 255, 1}, {0xff, 0xfe}, bytes.Repeat([]byte{7}, 4096), nil} {
		for n := range 4 {
			m := &strandmqv1.Message{
				Id: fmt.Sprintf("m%d-%d", i, n),
				Headers: []*strandmqv1.Header{
					{Name: "tag", ValueKind: value("second")}, {Name: "tag", ValueKind: value("first")},
					{Name: "TAG", ValueKind: &strandmqv1.Header_ValueBytes{ValueBytes: []byte{0, byte(i), 255}}}, {Name: "empty", ValueKind: value("")},
				},
				Body: &strandmqv1.Message_Bytes{Bytes: bytes.Repeat([]byte{byte(i), 0, 255, '\n'}, n*n*1000)},
			}
			if key != nil {
				m.KeyKind = &strandmqv1.Message_KeyBytes{KeyBytes: key}
			}
			sent = append(sent, m)
		}
	}
	receipts := p.publish(sent...)
	p.fails()
	if n := len(p.consumed("g2")); n != len(sent) {
		t.Errorf("g2 had %d of %d", n, len(sent))
	}
	for range 2 {
		list := p.deadLetters("g1")
		if len(list) != len(sent) {
			t.Fatalf("%d dead letters, want %d", len(list), len(sent))
		}
		at := map[uint64]*strandmqv1.DeadLetter{}
		for _, d := range list {
			at[d.GetOffset()] = d
		}
		for i, m := range sent {
			d := at[receipts[i].GetOffset()]
			sameMessage(t, m.GetId(), d.GetMessage(), m)
			if d.GetAttempts() != 2 || d.GetReason() != "cannot 2" {
				t.Errorf("%s: %d attempts, reason %q", m.GetId(), d.GetAttempts(), d.GetReason())
			}
			h := p.deadLetter("g1", m.GetId()).GetHistory()
			if len(h) != 2 || h[0].GetReason() != "cannot 1" || h[1].GetReason() != "cannot 2" || h[1].GetMember() != "m" || h[1].GetOutcome() != "nack" {
				t.Errorf("%s: its history is %v", m.GetId(), h)
			}
		}
		p.moves()
	}
	p.wantDead("g2")
	if c := p.counts("g2"); c.GetAcked() != uint64(len(sent)) || c.GetRetried() != 0 {
		t.Errorf("g2 counts %v", c)
	}
}

// C12: dead letters that an operator replays, again and again, come to a process of their
// group once, in order, one at a time with what flows; another group's do not move.
func replayToProcesses(t *testing.T, f *squadron) {
	p := newPlay(t, f, "c12-by-processes", twoAttempts(), twoAttempts())
	p.published(numbered("a", 1, 5)...)
	p.fails()
	p.published(numbered("a", 6, 10)...)
	if other := p.consumed("g2"); !slices.Equal(other, first(numbered("a", 1, 10)...)) {
		t.Errorf("g2 had %v", other)
	}
	calm := p.counts("g2")
	held := make(chan line, 1)
	a := p.actor(p.g1, 8, func(x line) string {
		switch {
		case x.name == "a7":
			held <- x
			return ""
		case x.name == "a2":
			if x.GetAttempt() == 2 {
				p.g1.died(x.seen)
			}
			return "nack"
		}
		return "ack"
	})
	seven := p.comes("a7", held)
	p.runs("", "dead", "replay", p.topic, "g1", "--key", "a")
	p.replay("a", 0, 5)
	p.moves()
	p.replay("a", 0, 5)
	if c := p.counts("g1"); c.GetInFlight() != 1 || c.GetAcked() != 1 {
		t.Errorf("while a7 is out: %v", c)
	}
	seven.answer("ack")
	until(t, "all is handled", func() bool { c := p.counts("g1"); return c.GetLag() == 0 && c.GetDead() == 1 })
	a.stop()
	p.g1.want("a", "a6/1", "a7/1", "a1/1r", "a2/1r", "a2/2r", "a3/1r", "a4/1r", "a5/1r", "a8/1", "a9/1", "a10/1")
	p.wantHistory("g1", "a2", "nack", "nack", "nack", "nack")
	p.moves()
	p.same("g2", "g1's replay", calm)
}

// C13: a dead letter parks its key, past the limit, until an operator replays or discards it.
func parkedForProcesses(t *testing.T, f *squadron, how string) {
	policy := twoAttempts()
	policy.OnExhaustion, policy.MaxDeferredKey = strandmqv1.OnExhaustion_ON_EXHAUSTION_PARK, proto.Uint32(100)
	p := newPlay(t, f, "c13-by-"+how, policy, nil)
	p.published("a1")
	p.fails()
	p.published(append(numbered("a", 2, 5), numbered("b", 1, 5)...)...)
	p.moves()
	var mended atomic.Bool
	a := p.actor(p.g1, 8, func(x line) string {
		if x.key == "a" && !mended.Load() {
			t.Errorf("%s came, and its key is parked", x)
		}
		return "ack"
	})
	until(t, "b is handled", func() bool { c := p.counts("g1"); return c.GetAcked() == 5 && c.GetParked() == 4 })
	p.published(numbered("a", 6, 205)...)
	until(t, "the rest is parked", func() bool { return p.counts("g1").GetParked() == 204 })
	p.moves()
	wantStall(p.scene, "DEFERRED_KEY_LIMIT", 204)
	mended.Store(true)
	p.runs("", "dead", how, p.topic, "g1", "--key", "a")
	dwindles(t, "the key goes on", func() uint64 { return p.counts("g1").GetLag() })
	a.stop()
	want := first(numbered("a", 2, 205)...)
	if how == "replay" {
		want = append([]string{"a1/1r"}, want...)
	}
	p.g1.want("a", want...)
	p.g1.want("b", first(numbered("b", 1, 5)...)...)
	if c := p.counts("g1"); c.GetDead() != 0 || c.GetAcked() != uint64(5+len(want)) {
		t.Errorf("g1 ends with %v", c)
	}
}

// C14: three processes hold everything when who leads stands still, and then is killed; in
// the middle of it two of them are killed. Everything is handled, by whoever is there, and
// nothing stays in flight.
func processesOverElections(t *testing.T, f *squadron) {
	const keys = 120
	p := newPlay(t, f, "c14-by-processes", &strandmqv1.GroupPolicy{
		MaxAttempts: proto.Uint32(0), BackoffMs: proto.Int64(0), AckDeadlineMs: proto.Int64(20_000), MaxHoldMs: proto.Int64(6 * never),
		BreakerFailedPercent: proto.Uint32(0),
	}, nil)
	var names []string
	for i := range keys {
		names = append(names, fmt.Sprintf("k%c%c1", 'a'+i/20, 'a'+i%20))
	}
	var mu sync.Mutex
	var goes bool
	var waits []line // guarded by mu, as goes is
	rule := func(x line) string {
		mu.Lock()
		defer mu.Unlock()
		if goes {
			return "ack"
		}
		waits = append(waits, x)
		return ""
	}
	var members []*actor
	for range 3 {
		members = append(members, p.actor(p.g1, keys, rule))
	}
	p.published(names...)
	p.allOut(keys)
	p.w.pause(p.topic, func(_, other *clients) {
		for i := range 2 {
			members[i].kill()
			members[i] = p.actor(p.g1, keys, rule)
		}
	})
	p.allOut(keys)
	p.w.crash(p.topic)
	p.allOut(keys)
	mu.Lock()
	goes = true
	mu.Unlock()
	for _, x := range waits {
		x.answer("ack") // where it is the member's no longer, nobody hears it
	}
	dwindles(t, "everything is handled", func() uint64 { return p.counts("g1").GetLag() })
	for _, a := range members {
		a.stop()
	}
	if c := p.counts("g1"); c.GetInFlight() != 0 || c.GetAcked() != keys || c.GetDead() != 0 {
		t.Errorf("g1 ends with %v", c)
	}
	for _, n := range names {
		var attempts []uint32
		for _, x := range p.g1.of(n) {
			attempts = append(attempts, x.GetAttempt())
		}
		if len(attempts) == 0 || attempts[0] != 1 {
			t.Errorf("%s came with the attempts %v", n, attempts)
		}
	}
}

// allOut waits until so many are in flight, all with members that are there.
func (p *play) allOut(keys uint64) {
	p.t.Helper()
	until(p.t, "all keys are out, with members that are there", func() bool {
		g := p.group("g1")
		var held uint64
		for _, m := range g.GetMembers() {
			held += m.GetInFlight()
		}
		return g.GetCounts().GetInFlight() == keys && held == keys
	})
}
