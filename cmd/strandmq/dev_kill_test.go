//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/check"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// devCluster is `strandmq dev` as a process.
type devCluster struct {
	t     *testing.T
	cmd   *exec.Cmd
	talk  lockedBuffer
	nodes []devRow
}

// startDev starts a cluster and waits until it is whole. It ends with the test.
func startDev(t *testing.T, binary, folder string, args ...string) *devCluster {
	d := &devCluster{t: t}
	d.cmd = exec.Command(binary, append([]string{"dev", "--data", folder, "--port", "0", "--output", "json"}, args...)...)
	d.cmd.Stderr = &d.talk
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.stop)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var shown struct{ Nodes []devRow }
	if err == nil {
		err = json.Unmarshal(line, &shown)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, d.talk.String())
	}
	d.nodes = shown.Nodes
	return d
}

// stop has it end, with all its nodes.
func (d *devCluster) stop() {
	if d.cmd.ProcessState != nil {
		return
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("strandmq dev: %v\n%s", err, d.talk.String())
	}
}

// showLogs shows the end of each node's log.
func (d *devCluster) showLogs() {
	d.t.Logf("strandmq dev says:\n%s", d.talk.String())
	for _, n := range d.nodes {
		b, _ := os.ReadFile(n.Log)
		d.t.Logf("node n%d:\n%s", n.Node, b[max(0, len(b)-6000):])
	}
}

// pidOf is the process that has a node's folder open now.
func (d *devCluster) pidOf(n devRow) int {
	pid := d.opener(n)
	if pid <= 0 {
		d.t.Fatalf("nobody has %s open", n.Data)
	}
	return pid
}

// opener is the process that has a node's folder open now; 0: none.
func (d *devCluster) opener(n devRow) int {
	f, err := os.Open(filepath.Join(n.Data, "LOCK"))
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	l := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart}
	if err := syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &l); err != nil {
		d.t.Fatal(err)
	}
	if l.Type == syscall.F_UNLCK {
		return 0
	}
	return int(l.Pid)
}

// awaitThere waits until every node is there for the others.
func (d *devCluster) awaitThere(api *clients) {
	deadline := time.Now().Add(patience)
	for {
		res, err := ask(d.t.Context(), api.cluster.DescribeCluster, &strandmqv1.DescribeClusterRequest{})
		there := 0
		for _, n := range res.GetNodes() {
			if n.SilentMs != nil && n.GetSilentMs() == 0 {
				there++
			}
		}
		if err == nil && there == len(d.nodes) {
			return
		}
		if time.Now().After(deadline) {
			d.showLogs()
			d.t.Fatalf("not every node is back: %d are, %v", there, err)
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
}

// anyNode is an address whose connections go to the nodes in turn, to those that
// take them.
func (d *devCluster) anyNode() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var turn atomic.Uint64
	carry := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		for range d.nodes {
			n := d.nodes[turn.Add(1)%uint64(len(d.nodes))]
			to, err := net.Dial("tcp", n.URL[len("http://"):])
			if err != nil {
				continue
			}
			stop := context.AfterFunc(ctx, func() { _ = c.Close(); _ = to.Close() })
			defer stop()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = io.Copy(to, c)
				_ = to.Close()
			}()
			_, _ = io.Copy(c, to)
			_ = c.Close()
			_ = to.Close()
			<-done
			return
		}
	}
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { carry(c) })
		}
	})
	d.t.Cleanup(func() {
		cancel()
		_ = l.Close()
		running.Wait()
	})
	return "http://" + l.Addr().String()
}

// TestKillNode kills one node of three after the other, with kill -9, while
// publishers and members of two groups work through all of them, lets it drain, and
// judges the whole history: P1 to P9.
//
// STRANDMQ_NODE_KILLS says how often (default 2), STRANDMQ_SEED which run.
func TestKillNode(t *testing.T) {
	if testing.Short() {
		t.Skip("three processes; TestClusterOfThree has the same in one")
	}
	t.Parallel()
	kills := envNumber(t, "STRANDMQ_NODE_KILLS", 2)
	seed := envNumber(t, "STRANDMQ_SEED", int(time.Now().UnixNano()%1_000_000))
	t.Logf("STRANDMQ_NODE_KILLS=%d STRANDMQ_SEED=%d", kills, seed)
	d := startDev(t, buildBroker(t), filepath.Join(t.TempDir(), "cluster"), "--restart-after", "500ms")
	api := dial(d.anyNode())
	s := &storm{t: t, api: api, seed: uint64(seed), ctx: t.Context()}
	s.setUp()
	publishing, stopPublishing := context.WithCancel(t.Context())
	consuming, stopConsuming := context.WithCancel(t.Context())
	defer stopConsuming()
	defer stopPublishing()
	var publishers, members sync.WaitGroup
	for i := range 2 {
		publishers.Go(func() { s.publisher(publishing, i) })
	}
	for _, g := range s.groups {
		for i := range 2 {
			members.Go(func() { s.member(consuming, g, i) })
		}
	}
	r := s.random(99)
	first := r.IntN(len(d.nodes))
	for k := range kills {
		s.goesOn()
		time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond) // so that kills come at any moment of the load
		n := d.nodes[(first+k)%len(d.nodes)]
		call := s.begin(check.Event{Kind: check.KillCall})
		pid := d.pidOf(n)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		s.end(check.Event{Kind: check.KillReturn, Call: call})
		s.goesOn() // without it
		until(t, "the node is started again", func() bool { again := d.opener(n); return again > 0 && again != pid })
		d.awaitThere(api)
	}
	stopPublishing()
	publishers.Wait()
	over := time.Now()
	s.drain()
	t.Logf("drained in %v", time.Since(over))
	stopConsuming()
	members.Wait()
	h := s.history()
	h.Routed = true
	t.Logf("%d events, %d messages in the log", len(h.Events), len(h.Log))
	if len(h.Log) < 100 {
		t.Errorf("too little happened for the run to prove anything")
	}
	violations := check.Promises(h)
	for _, v := range violations[:min(20, len(violations))] {
		t.Error(v)
	}
	if len(violations) > 20 {
		t.Errorf("and %d more", len(violations)-20)
	}
	if t.Failed() {
		d.showLogs()
	}
}

// A cluster of processes comes back in its folder, with what it holds.
func TestDevAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("three processes, twice")
	}
	t.Parallel()
	binary, folder := buildBroker(t), filepath.Join(t.TempDir(), "cluster")
	d := startDev(t, binary, folder)
	if _, err := ask(t.Context(), dial(d.nodes[1].URL).topics.CreateTopic, &strandmqv1.CreateTopicRequest{Topic: "kept", Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	was := d.nodes
	d.stop()
	d = startDev(t, binary, folder)
	for i, n := range d.nodes {
		if n.URL != was[i].URL || n.PID == was[i].PID {
			t.Errorf("node %d: %+v was %+v", n.Node, n, was[i])
		}
		if _, err := ask(t.Context(), dial(n.URL).topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: "kept"}); err != nil {
			t.Errorf("node %d: %v", n.Node, err)
		}
	}
}
