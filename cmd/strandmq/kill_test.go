//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/check"
	"github.com/strandmq/strandmq/internal/heldport"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// TestKill kills the real binary again and again while publishers and members
// of two groups work, lets it drain, and judges the whole history: P1 to P9.
//
// STRANDMQ_KILLS says how often (default 4, with -short 1; make test says 10),
// STRANDMQ_SEED which run.
func TestKill(t *testing.T) {
	t.Parallel()
	kills := 4
	if testing.Short() {
		kills = 1
	}
	kills = envNumber(t, "STRANDMQ_KILLS", kills)
	seed := envNumber(t, "STRANDMQ_SEED", int(time.Now().UnixNano()%1_000_000))
	t.Logf("STRANDMQ_KILLS=%d STRANDMQ_SEED=%d", kills, seed)
	p := startProcess(t, buildBroker(t))
	s := &storm{t: t, api: dial(p.url), seed: uint64(seed), ctx: t.Context()}
	s.setUp(4)
	publishing, stopPublishing := context.WithCancel(t.Context())
	consuming, stopConsuming := context.WithCancel(t.Context())
	defer stopConsuming()
	defer stopPublishing()
	var publishers, members sync.WaitGroup
	for i := range 4 {
		publishers.Go(func() { s.publisher(publishing, i) })
	}
	for _, g := range s.groups {
		for i := range 3 {
			members.Go(func() { s.member(consuming, g, i) })
		}
	}
	r := s.random(99)
	for range kills {
		s.goesOn()
		time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond) // so that kills come at any moment of the load
		p.kill()
		p.start()
	}
	stopPublishing()
	publishers.Wait()
	killed := time.Now()
	s.drain()
	t.Logf("drained in %v", time.Since(killed))
	stopConsuming()
	members.Wait()
	h := s.history()
	lost, refused := 0, 0
	for _, e := range h.Events {
		if e.Lost {
			lost++
		}
		for _, x := range e.Settled {
			if x.Refused {
				refused++
			}
		}
	}
	t.Logf("%d events, %d answers lost, %d settlements refused, %d messages in the log", len(h.Events), lost, refused, len(h.Log))
	for _, g := range h.Groups {
		t.Logf("group %s: %d dead letters", g.Name, len(g.Dead))
	}
	if len(h.Log) < 100 || lost < kills {
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
		p.showLog()
	}
}

func envNumber(t *testing.T, name string, otherwise int) int {
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("%s=%q: %v", name, v, err)
	}
	return n
}

// process is the broker's process and the binary that it runs.
type process struct {
	t        *testing.T
	binary   string
	args     []string // further ones of serve
	dir      string
	url      string
	listen   string
	cmd      *exec.Cmd
	ended    <-chan struct{} // closed when it is gone
	log      bytes.Buffer
	starting int
}

// builtBroker builds the binary once for all tests, into the folder that
// leakChecked.Run removes.
var builtBroker = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "strandmq-built")
	if err != nil {
		return "", err
	}
	removed = append(removed, dir)
	binary := filepath.Join(dir, "strandmq")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
})

// buildBroker gives the binary.
func buildBroker(t testing.TB) string {
	t.Helper()
	binary, err := builtBroker()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// startProcess starts a broker on a fresh folder. It ends with the test.
func startProcess(t *testing.T, binary string, args ...string) *process {
	// The port stays the same over restarts, so that clients find it again.
	p := &process{t: t, dir: t.TempDir(), binary: binary, args: args, listen: heldport.Address(t)}
	p.url = "http://" + p.listen
	p.start()
	t.Cleanup(p.kill)
	return p
}

// start starts the broker and waits until it serves.
func (p *process) start() {
	p.starting++
	args := append([]string{"serve", "--data", filepath.Join(p.dir, "data"), "--listen", p.listen, "--log-level", "warn"}, p.args...)
	p.cmd = exec.Command(p.binary, args...)
	p.cmd.Stderr = &p.log
	var err error
	if p.ended, err = startTied(p.cmd, here); err != nil {
		p.t.Fatal(err)
	}
	api := dial(p.url)
	deadline := time.Now().Add(patience)
	for {
		if _, err := ask(p.t.Context(), api.node.NodeInfo, &strandmqv1.NodeInfoRequest{}); err == nil {
			return
		}
		if time.Now().After(deadline) {
			p.kill()
			p.t.Fatalf("start %d: the broker does not serve:\n%s", p.starting, p.log.String())
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
}

// kill ends the process at once, as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.ended
}

// showLog ends the process, since it may still write, and shows what it wrote.
func (p *process) showLog() {
	p.kill()
	log := p.log.Bytes()
	p.t.Logf("the broker's log, its end:\n%s", log[max(0, len(log)-8000):])
}
