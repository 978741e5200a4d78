//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// TestCasesByClients plays the cases that are about members by processes of members: strandmq's
// own consume, and programs with the Go client, which are killed, hang, stand still and come
// too late, on three real brokers whose leads move meanwhile. All share one cluster, in lanes
// beside each other, since a lead that moves disturbs its own topic only; the case that kills
// brokers comes last.
func TestCasesByClients(t *testing.T) {
	if testing.Short() {
		t.Skip("dozens of processes, and race mode is ten times slower; TestCases plays the same on one node without them")
	}
	t.Parallel()
	f := startSquadron(t, loopback(t, 3), soonGone...)
	type client struct {
		name string
		play func(t *testing.T, f *squadron)
	}
	how := func(play func(t *testing.T, f *squadron, how string), how string) func(*testing.T, *squadron) {
		return func(t *testing.T, f *squadron) { play(t, f, how) }
	}
	var lanes sync.WaitGroup
	for _, lane := range [][]client{
		{
			{"c1_nack", how(leavesOff, "nack")},
			{"c1_killed", how(leavesOff, "killed")},
			{"c13_replay", how(parkedForProcesses, "replay")},
			{"c13_discard", how(parkedForProcesses, "discard")},
		}, {
			{"c3_hot_key", hotKeyOfProcesses},
			{"c12_replay", replayToProcesses},
			{"c10_dead_by_consume", deadByConsume},
			{"c8_poison_of_consume", poisonOfConsume},
		}, {
			{"c6_client_hangs", how(clientFails, "lapse")},
			{"c6_client_killed", how(clientFails, "session-lost")},
		}, {
			{"c7_stale_process", staleProcess},
			{"c6_consume_killed", consumeKilled},
		},
	} {
		lanes.Go(func() {
			for _, c := range lane {
				t.Run(c.name, func(t *testing.T) { c.play(t, f) })
			}
		})
	}
	lanes.Wait()
	t.Run("c14_processes_over_elections", func(t *testing.T) { processesOverElections(t, f) })
}

// C1: while the first message of a key is nacked, or has lost its process, none of its key
// passes it, and nothing else waits for it. See C6 for one that hangs, and C7 for a process
// that stands still.
func leavesOff(t *testing.T, f *squadron, how string) {
	p := newPlay(t, f, "c1-by-"+how, &strandmqv1.GroupPolicy{
		BackoffMs: proto.Int64(50), AckDeadlineMs: proto.Int64(never), MaxHoldMs: proto.Int64(6 * never), BreakerFailedPercent: proto.Uint32(0),
	}, nil)
	held := make(chan line, 10)
	rule := func(x line) string {
		if x.name == "a1" {
			held <- x
			return ""
		}
		return "ack"
	}
	members := []*actor{p.actor(p.g1, 10, rule), p.actor(p.g1, 10, rule)}
	all := append(numbered("a", 1, 5), numbered("b", 1, 5)...)
	p.published(all...)
	one := p.comes("a1", held)
	until(t, "b is handled", func() bool { return p.counts("g1").GetAcked() == 5 })
	other := p.consumed("g2")
	slices.Sort(other)
	if !slices.Equal(other, first(all...)) {
		t.Errorf("while a1 is out in g1, g2 had %v", other)
	}
	p.moves()
	switch how {
	case "nack":
		one.answer("nack")
	case "killed":
		one.by.kill()
		members = append(slices.DeleteFunc(members, func(a *actor) bool { return a == one.by }), p.actor(p.g1, 10, rule))
	}
	two := p.comes("a1 again", held)
	if c := p.counts("g1"); c.GetAcked() != 5 || c.GetInFlight() != 1 {
		t.Errorf("while a1 is out again, g1 counts %v", c)
	}
	p.moves()
	two.answer("ack")
	until(t, "all is handled", func() bool { return p.counts("g1").GetLag() == 0 })
	for _, a := range members {
		a.stop()
	}
	p.g1.want("a", append([]string{"a1/1", "a1/2"}, first(numbered("a", 2, 5)...)...)...)
	p.g1.want("b", first(numbered("b", 1, 5)...)...)
	p.wantDead("g1")
}

// C3: a key never flows, and its handlers hang, while processes come and go: the others do,
// the key is named, and goes on in order when it is cured.
func hotKeyOfProcesses(t *testing.T, f *squadron) {
	const rounds, each = 3, 40
	p := newPlay(t, f, "c3-by-processes", &strandmqv1.GroupPolicy{
		MaxAttempts: proto.Uint32(0), AckDeadlineMs: proto.Int64(2_000), MaxHoldMs: proto.Int64(2_000), BackoffMs: proto.Int64(50), BackoffMaxMs: proto.Int64(100),
		BreakerFailedPercent: proto.Uint32(0),
	}, nil)
	var cured atomic.Bool
	rule := func(x line) string {
		if x.key == "hot" && !cured.Load() {
			return ""
		}
		return "ack"
	}
	stays := p.actor(p.g1, 20, rule)
	for round := range rounds {
		comes := p.actor(p.g1, 20, rule)
		var names []string
		for i := 1; i <= each; i++ {
			n := round*each + i
			names = append(names, fmt.Sprintf("hot%d", n), fmt.Sprintf("k%c%d", 'a'+n%8, n))
		}
		p.published(names...)
		if round == 1 {
			p.moves()
		}
		dwindles(t, "all other keys are handled", func() uint64 { return uint64((round+1)*each) - p.counts("g1").GetAcked() })
		if round%2 == 0 {
			comes.kill()
		} else {
			comes.stop()
		}
	}
	var stall *strandmqv1.Stall
	until(t, "the key failed three times", func() bool {
		for _, st := range p.group("g1").GetPartitions()[0].GetStalls() {
			if st.GetKey() == "hot" {
				stall = st
			}
		}
		return stall.GetAttempts() >= 3 // of which processes that were killed are some
	})
	if stall.GetOffset() != 0 || stall.GetWaiting() != rounds*each-1 {
		t.Errorf("the stall is %v, its head is at offset 0 and %d wait behind it", stall, rounds*each-1)
	}
	cured.Store(true)
	dwindles(t, "the key goes on", func() uint64 { return p.counts("g1").GetLag() })
	stays.stop()
	var order []string
	for _, x := range p.g1.of("hot") {
		order = append(order, x.name)
	}
	if order = slices.Compact(order); !slices.Equal(order, numbered("hot", 1, rounds*each)) {
		t.Errorf("the key came as %v", order)
	}
	p.wantDead("g1")
}

// threeAttempts is the policy of C6 and C8.
func threeAttempts(deadline int64) *strandmqv1.GroupPolicy {
	return &strandmqv1.GroupPolicy{
		MaxAttempts: proto.Uint32(3), BackoffMs: proto.Int64(50), BackoffMaxMs: proto.Int64(50), AckDeadlineMs: proto.Int64(deadline),
		MaxHoldMs: proto.Int64(deadline), BreakerFailedPercent: proto.Uint32(0),
	}
}

// crashes starts a consume whose command kills it; killed waits for that.
func (p *play) crashes(more ...string) (killed func()) {
	p.t.Helper()
	cmd := p.command(append([]string{"consume", p.topic, "--group", "g1", "--member", "m"}, more...)...)
	out := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	return func() {
		p.t.Helper()
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
			p.t.Fatalf("consume was to be killed: %v\n%s", cmd.ProcessState, out)
		}
	}
}

// C6: a message whose command kills consume costs an attempt each time, and dies of the third.
func consumeKilled(t *testing.T, f *squadron) {
	p := newPlay(t, f, "c6-by-consume", threeAttempts(never), nil)
	p.published("a1", "a2")
	const command = `if [ "$STRANDMQ_ID" = a1 ]; then kill -9 $PPID; fi`
	for i := range 3 {
		p.crashes("--exec", command)()
		if i == 1 {
			p.moves()
		}
	}
	p.runs("", "consume", p.topic, "--group", "g1", "--member", "m", "--exec", command, "--until-empty")
	p.wantDeath("a1", "session-lost", 4)
}

// wantDeath says that one message is dead by three attempts, and what was handed out.
func (p *play) wantDeath(id, outcome string, handedOut uint64) {
	p.t.Helper()
	p.wantHistory("g1", id, outcome, outcome, outcome)
	if c := p.counts("g1"); c.GetDead() != 1 || c.GetLag() != 0 || c.GetHandedOut() != handedOut || c.GetRetried() != 3 {
		p.t.Errorf("counts %v, want %d hand-outs and 3 failures", c, handedOut)
	}
}

// C6: the same of programs with the Go client, which are killed, or never answer.
func clientFails(t *testing.T, f *squadron, outcome string) {
	deadline := int64(never)
	if outcome == "lapse" {
		deadline = 5_000 // it has to come by itself, and not before the member has the delivery
	}
	p := newPlay(t, f, "c6-client-"+outcome, threeAttempts(deadline), nil)
	held := make(chan line, 10)
	rule := func(x line) string {
		if x.name == "a1" {
			if x.GetAttempt() == 3 {
				p.g1.died(x.seen)
			}
			held <- x
			return ""
		}
		return "ack"
	}
	a := p.actor(p.g1, 4, rule)
	p.published("a1", "a2")
	for i := 1; i <= 3; i++ {
		p.comes("a1", held)
		if i == 2 {
			p.moves()
		}
		if outcome == "session-lost" {
			a.kill() // the broker sees it at once: the deadline is far
			a = p.actor(p.g1, 4, rule)
		}
	}
	until(t, "a2 is handled", func() bool { return p.counts("g1").GetLag() == 0 })
	a.stop()
	p.g1.want("a", "a1/1", "a1/2", "a1/3", "a2/1")
	p.wantDeath("a1", outcome, 4)
}

// C7: a consume stood still past its deadline, and settles what is another's by now: it is
// refused, and nothing moves, also after the lead did.
func staleProcess(t *testing.T, f *squadron) {
	p := newPlay(t, f, "c7-by-consume", &strandmqv1.GroupPolicy{
		BackoffMs: proto.Int64(0), AckDeadlineMs: proto.Int64(6_000), MaxHoldMs: proto.Int64(6 * never), BreakerFailedPercent: proto.Uint32(0),
	}, nil)
	p.published(numbered("a", 1, 3)...)
	dir := t.TempDir()
	began, goes := filepath.Join(dir, "began"), filepath.Join(dir, "goes")
	slow := p.command("consume", p.topic, "--group", "g1", "--output", "json", "--exec",
		fmt.Sprintf(`touch %q; until [ -e %q ]; do sleep 0.05; done`, began, goes))
	out, says := &lockedBuffer{}, &lockedBuffer{}
	slow.Stdout, slow.Stderr = out, says
	ended, err := startTied(slow, here)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = slow.Process.Kill()
		<-ended
	}()
	exists := func(file string) bool { _, err := os.Stat(file); return err == nil }
	until(t, "the slow one has a1", func() bool { return exists(began) })
	if err := slow.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	held := make(chan line, 1)
	a := p.actor(p.g1, 4, func(x line) string {
		if x.String() == "a1/2" {
			held <- x
			return ""
		}
		return "ack"
	})
	two := p.comes("a1 again", held)
	if err := os.WriteFile(goes, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := slow.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(t, "the slow one is told that it is too late\n"+says.String(), func() bool { return strings.Contains(out.String(), `"outcome":"stale"`) })
	if err := slow.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	for range 2 {
		if c := p.counts("g1"); c.GetAcked() != 0 || c.GetInFlight() != 1 || c.GetHandedOut() != 2 {
			t.Errorf("a late settlement changed something: %v", c)
		}
		p.moves()
	}
	two.answer("ack")
	until(t, "all is handled", func() bool { return p.counts("g1").GetLag() == 0 })
	a.stop()
	p.g1.want("a", "a1/2", "a2/1", "a3/1")
}

// C8: a poison message kills consume with others in its hands: only what was handed out is
// charged, and only the poison dies.
func poisonOfConsume(t *testing.T, f *squadron) {
	p := newPlay(t, f, "c8-by-consume", threeAttempts(never), nil)
	p.published(append(numbered("a", 1, 10), numbered("b", 1, 10)...)...)
	dir := t.TempDir()
	log, goes := filepath.Join(dir, "log"), filepath.Join(dir, "goes")
	// The first time it kills when all others that could be are acked.
	command := fmt.Sprintf(`echo "$STRANDMQ_ID/$STRANDMQ_ATTEMPT" >> %q
if [ "$STRANDMQ_ID" = a1 ]; then until [ -e %q ]; do sleep 0.05; done; kill -9 $PPID; fi`, log, goes)
	for i := range 3 {
		killed := p.crashes("--exec", command, "--workers", "20")
		if i == 0 {
			until(t, "b is handled", func() bool { return p.counts("g1").GetAcked() == 10 })
			p.moves()
			if err := os.WriteFile(goes, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		killed()
	}
	p.runs("", "consume", p.topic, "--group", "g1", "--member", "m", "--exec", command, "--workers", "20", "--until-empty")
	raw, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	came := map[byte][]string{}
	for n := range strings.FieldsSeq(string(raw)) {
		came[n[0]] = append(came[n[0]], n)
	}
	if want := append([]string{"a1/1", "a1/2", "a1/3"}, first(numbered("a", 2, 10)...)...); !slices.Equal(came['a'], want) {
		t.Errorf("of a came %v, want %v", came['a'], want)
	}
	if want := first(numbered("b", 1, 10)...); !slices.Equal(came['b'], want) {
		t.Errorf("of b came %v, want %v", came['b'], want)
	}
	p.wantDeath("a1", "session-lost", 22)
}
