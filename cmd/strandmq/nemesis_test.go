//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/check"
	"github.com/strandmq/strandmq/internal/nemesis"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

var (
	nemesisFaults     = flag.Int("nemesis.faults", 0, "how many faults TestNemesis has; 0: it is skipped")
	nemesisKinds      = flag.String("nemesis.kinds", "all", "which kinds of faults it has, such as kill,cut")
	nemesisSeed       = flag.Uint64("nemesis.seed", 0, "which faults, in which order; 0: by the clock")
	nemesisPartitions = flag.Int("nemesis.partitions", 4, "how many partitions the topic has")
	nemesisProbes     = flag.Int("nemesis.probes", 12, "how many publishers wait for one message at a time, to see who answers when")
	nemesisGroups     = flag.Bool("nemesis.groups", true, "also consume, in two groups")
	nemesisJSON       = flag.String("nemesis.json", "", "write what was measured to this file")
)

// trial is one run: a squadron under load, a plan of faults, and what came of it.
type trial struct {
	t      *testing.T
	f      *squadron
	s      *storm
	ledger nemesis.Ledger
	began  time.Time
	// strike does what a step says, and returns when it is healed; false: it knows no
	// such fault.
	strike     func(nemesis.Step) bool
	partitions int
	probes     int
	groups     bool
}

// run loads the squadron, has every step happen, drains and judges.
func (tr *trial) run(steps []nemesis.Step) {
	t, s := tr.t, tr.s
	tr.began = time.Now()
	// What is published has to be consumed while the faults go on, not after them.
	s.keys, s.pause = 64, 60*time.Millisecond
	s.acked = func(p uint32) { tr.ledger.Ack(p, time.Since(tr.began)) }
	s.setUp(uint32(tr.partitions))
	if !tr.groups {
		s.groups = nil
	}
	publishing, stopPublishing := context.WithCancel(t.Context())
	consuming, stopConsuming := context.WithCancel(t.Context())
	var publishers, members sync.WaitGroup
	defer members.Wait()
	defer publishers.Wait()
	defer stopConsuming()
	defer stopPublishing()
	keys := s.keysOf(tr.partitions, tr.probes)
	for i := range 2 {
		publishers.Go(func() { s.publisher(publishing, i) })
	}
	for i := range tr.probes {
		publishers.Go(func() { tr.probe(publishing, i, keys[i]) })
	}
	for _, g := range s.groups {
		for i := range 2 {
			members.Go(func() { s.member(consuming, g, i) })
		}
	}
	tr.flows(0)
	for _, step := range steps {
		time.Sleep(step.Quiet) // the load between two faults
		led := tr.led(step)
		from := time.Since(tr.began)
		call := s.begin(check.Event{Kind: check.KillCall})
		if !tr.strike(step) {
			t.Fatalf("no way to have %v", step)
		}
		s.end(check.Event{Kind: check.KillReturn, Call: call})
		healed := time.Since(tr.began)
		tr.f.until("the cluster is whole", func() error {
			tr.f.mend()
			return tr.f.healthy()
		})
		tr.flows(healed)
		until := time.Since(tr.began)
		tr.ledger.Fault(nemesis.Span{Step: step, From: from, Until: until, Led: led})
		if n := s.unseen.ask(s.handOuts); n > 0 {
			t.Logf("%d attempts that no member saw cannot be told yet: they are asked for again", n)
		}
		t.Logf("%-50s whole %5.1f s after it was healed", step, (until - healed).Seconds())
	}
	stopPublishing()
	publishers.Wait()
	over := time.Now()
	s.drain()
	t.Logf("drained in %.1f s", time.Since(over).Seconds())
	stopConsuming()
	members.Wait()
	tr.judge()
	tr.report(steps)
}

// led are the partitions that a step's node leads now; of one that strikes all, all.
func (tr *trial) led(step nemesis.Step) (led []uint32) {
	tr.t.Helper()
	node := tr.f.nodes[step.Node]
	tr.f.until("somebody says who leads", func() error {
		info, err := look(tr.t.Context(), node.api.node.NodeInfo, &strandmqv1.NodeInfoRequest{})
		if err != nil {
			return err
		}
		res, err := look(tr.t.Context(), node.api.topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: stormTopic})
		led = nil
		for _, p := range res.GetPartitions() {
			if step.Kind.All() || p.GetLeader() == uint64(info.GetNode()) {
				led = append(led, p.GetPartition())
			}
		}
		return err
	})
	return led
}

// flows waits until every partition acknowledges something since a moment.
func (tr *trial) flows(since time.Duration) {
	tr.t.Helper()
	tr.f.until("every partition takes messages", func() error {
		for p := range uint32(tr.partitions) {
			if tr.ledger.Acks(p, since) == 0 {
				return fmt.Errorf("partition %d acknowledged nothing since", p)
			}
		}
		return nil
	})
}

// probe publishes one message after the other to one partition, each until it is
// answered, by one node until that fails it and then by the next.
func (tr *trial) probe(ctx context.Context, n int, keys []string) {
	at := n / tr.partitions
	for count := 0; ctx.Err() == nil; count++ {
		m := []check.Message{{Key: keys[count%len(keys)], ID: fmt.Sprintf("p%d-%d", n, count), Body: fmt.Sprintf("probe %d of %d", count, n)}}
		for ctx.Err() == nil && !tr.s.publish(tr.f.nodes[at%len(tr.f.nodes)].api, m, time.Second) {
			at++
			time.Sleep(5 * time.Millisecond) // a node that is away refuses at once
		}
		if tr.groups {
			time.Sleep(20 * time.Millisecond) // leaves room for those who consume
		}
	}
}

// mend starts what ended by itself, which only a disk excuses. It may take seconds until
// a broker whose store stopped has ended.
func (f *squadron) mend() {
	f.t.Helper()
	for _, s := range f.nodes {
		if !s.gone() {
			continue
		}
		b, _ := os.ReadFile(s.log)
		b = b[max(0, len(b)-4000):]
		if !s.hurt || !bytes.Contains(b, []byte("the store stopped")) {
			f.t.Errorf("node %d ended by itself: %v\n%s", s.number+1, s.cmd.ProcessState, b)
		}
		f.start(s, "")
	}
}

// judge holds the whole history against the promises.
func (tr *trial) judge() {
	t := tr.t
	h := tr.s.history()
	h.Routed = true
	t.Logf("%d events, %d messages in the log", len(h.Events), len(h.Log))
	if len(h.Log) < 100 {
		t.Errorf("too little happened for the run to prove anything")
	}
	over := time.Now()
	violations := check.Promises(h)
	t.Logf("judged in %.1f s", time.Since(over).Seconds())
	for _, v := range violations[:min(20, len(violations))] {
		t.Error(v)
	}
	if len(violations) > 20 {
		t.Errorf("and %d more", len(violations)-20)
	}
	for _, s := range tr.f.nodes {
		if b, err := os.ReadFile(s.log); err != nil || bytes.Contains(b, []byte("\npanic: ")) || bytes.Contains(b, []byte("\nfatal error: ")) {
			t.Errorf("node %d broke down: its log has a panic, or cannot be read: %v", s.number+1, err)
		}
	}
	if t.Failed() {
		tr.f.showLogs()
	}
}

// report prints how long each kind of fault kept publishers waiting.
func (tr *trial) report(steps []nemesis.Step) {
	outages := tr.ledger.Outages(uint32(tr.partitions))
	figures := nemesis.Summary(outages)
	tb := table.Table{Head: []string{"FAULT", "TIMES", "P50", "P99", "MAX", "LED", "P50", "P99", "MAX"}, Right: []int{1, 2, 3, 4, 5, 6, 7, 8}}
	seconds := func(s float64) string { return fmt.Sprintf("%.2f", s) }
	for _, f := range figures {
		led := []any{0, "-", "-", "-"}
		if f.Led != nil {
			led = []any{f.Led.Count, seconds(f.Led.P50), seconds(f.Led.P99), seconds(f.Led.Max)}
		}
		tb.Add(append([]any{string(f.Kind), f.Faults, seconds(f.All.P50), seconds(f.All.P99), seconds(f.All.Max)}, led...)...)
	}
	var text strings.Builder
	if err := tb.Write(&text, false); err != nil {
		tr.t.Fatal(err)
	}
	tr.t.Logf("the longest time without an acknowledgement, in seconds, over faults and partitions, and of those that the struck node led\n%s", text.String())
	if *nemesisJSON == "" {
		return
	}
	raw, err := json.MarshalIndent(map[string]any{
		"seed": tr.s.seed, "steps": steps, "figures": figures, "outages": outages,
	}, "", "  ")
	if err == nil {
		err = os.WriteFile(*nemesisJSON, append(raw, '\n'), 0o644)
	}
	if err != nil {
		tr.t.Error(err)
	}
}

// simply strikes what needs nothing but signals.
func (f *squadron) simply(step nemesis.Step) bool {
	s := f.nodes[step.Node]
	switch step.Kind {
	case nemesis.Kill:
		s.kill()
		time.Sleep(step.Lasts) // the load without it
		f.start(s, "")
	case nemesis.Crash:
		for _, s := range f.nodes {
			s.signal(syscall.SIGKILL)
		}
		for _, s := range f.nodes {
			s.kill()
		}
		time.Sleep(step.Lasts) // as long as they are away
		for _, s := range f.nodes {
			f.start(s, "")
		}
	case nemesis.Pause:
		s.signal(syscall.SIGSTOP)
		time.Sleep(step.Lasts) // the load without it
		s.signal(syscall.SIGCONT)
	case nemesis.Roll:
		for i := range f.nodes {
			s := f.nodes[(step.Node+i)%len(f.nodes)]
			if err := s.stop(); err != nil {
				f.t.Errorf("node %d: %v", s.number+1, err)
			}
			f.start(s, "")
			f.serves(s)
			f.whole()
		}
	default:
		return false
	}
	return true
}

// TestKillNode kills nodes of a cluster of three real processes with kill -9, and stops
// them for a while, as publishers and members of two groups work through all of them,
// lets it drain, and judges the whole history: P1 to P9. It is the small form of
// TestNemesis, which needs no root.
//
// STRANDMQ_NODE_KILLS says how many faults there are (default 2), STRANDMQ_SEED which.
func TestKillNode(t *testing.T) {
	if testing.Short() {
		t.Skip("three processes; TestClusterOfThree has the same in one")
	}
	t.Parallel()
	faults := envNumber(t, "STRANDMQ_NODE_KILLS", 2)
	seed := envNumber(t, "STRANDMQ_SEED", int(time.Now().UnixNano()%1_000_000))
	t.Logf("STRANDMQ_NODE_KILLS=%d STRANDMQ_SEED=%d", faults, seed)
	f := startSquadron(t, loopback(t, 3))
	tr := &trial{
		t: t, f: f, s: &storm{t: t, api: f.any, seed: uint64(seed), ctx: t.Context()},
		strike: f.simply, partitions: 4, probes: 4, groups: true,
	}
	tr.run(nemesis.Plan(uint64(seed), nemesis.Simple, 3, faults))
}

// nemesisPlan is what the flags ask for, or a skip.
func nemesisPlan(t *testing.T) (seed uint64, steps []nemesis.Step) {
	if *nemesisFaults <= 0 {
		t.Skip("it takes minutes, root and Linux: make nemesis runs it; TestKillNode is its small form")
	}
	kinds, err := nemesis.KindsOf(*nemesisKinds)
	if err != nil {
		t.Fatal(err)
	}
	if seed = *nemesisSeed; seed == 0 {
		seed = uint64(time.Now().UnixNano() % 1_000_000)
	}
	t.Logf("the same faults again: make nemesis SEED=%d FAULTS=%d KINDS=%s", seed, *nemesisFaults, *nemesisKinds)
	return seed, nemesis.Plan(seed, kinds, 3, *nemesisFaults)
}
