//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/heldport"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// devCluster is `strandmq dev` as a process.
type devCluster struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended <-chan struct{} // closed when it is gone
	talk  lockedBuffer
	nodes []devRow
}

// startDev starts a cluster and waits until it is whole. It ends with the test.
func startDev(t *testing.T, binary, folder string, args ...string) *devCluster {
	d := &devCluster{t: t}
	d.cmd = exec.Command(binary, append([]string{"dev", "--data", folder, "--output", "json"}, args...)...)
	d.cmd.Stderr = &d.talk
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if d.ended, err = startTied(d.cmd, here); err != nil {
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
	select {
	case <-d.ended:
		return
	default:
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	<-d.ended
	if !d.cmd.ProcessState.Success() {
		d.t.Errorf("strandmq dev: %v\n%s", d.cmd.ProcessState, d.talk.String())
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

// A cluster of processes starts again what ends, has its folder for itself, ends when its
// process is killed, and comes back in its folder with what it holds.
func TestDevAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("three processes, twice")
	}
	t.Parallel()
	binary, folder := buildBroker(t), filepath.Join(t.TempDir(), "cluster")
	base := heldport.Ports(t, 1, 2, 100, 101, 102) // where its nodes are, and come back
	d := startDev(t, binary, folder, "--port", strconv.Itoa(base), "--restart-after", "500ms", "--metrics-per-partition", "--log-level", "debug")
	if _, err := ask(t.Context(), dial(d.nodes[1].URL).topics.CreateTopic, &strandmqv1.CreateTopicRequest{Topic: "kept", Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	// As the docs look for a call.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.nodes[0].URL+"/v1/topics/nowhere", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Request-Id", "shop-4711")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	until(t, "the log of n1 tells of the call", func() bool {
		b, _ := os.ReadFile(d.nodes[0].Log)
		return strings.Contains(string(b), `"request_id":"shop-4711"`)
	})
	until(t, "a node tells of a partition", func() bool {
		return slices.ContainsFunc(d.nodes, func(n devRow) bool {
			return strings.Contains(scrape(t, n.URL), `strandmq_partition_log_end_offset{partition="1",topic="kept"} 0`)
		})
	})
	// One that is killed is started again meanwhile.
	if err := syscall.Kill(d.nodes[2].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "node n3 is started again", func() bool { return strings.Contains(d.talk.String(), "node n3 is process ") })
	d.awaitThere(dial(d.nodes[0].URL))
	was := d.nodes
	out, err := exec.Command(binary, "dev", "--data", folder, "--nodes", "5").CombinedOutput()
	if want := fmt.Sprintf("runs already in %s, as process %d", folder, d.cmd.Process.Pid); err == nil || !strings.Contains(string(out), want) {
		t.Errorf("a second one: %v, %s; want %s", err, out, want)
	}
	// Killed, it leaves nodes that end by themselves.
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-d.ended
	d = startDev(t, binary, folder)
	if len(d.nodes) != len(was) {
		t.Errorf("%d nodes, and there were %d", len(d.nodes), len(was))
	}
	for i, n := range d.nodes {
		if n.URL != was[i].URL || n.PID == was[i].PID {
			t.Errorf("node %d: %+v was %+v", n.Node, n, was[i])
		}
		if _, err := ask(t.Context(), dial(n.URL).topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: "kept"}); err != nil {
			t.Errorf("node %d: %v", n.Node, err)
		}
	}
}
