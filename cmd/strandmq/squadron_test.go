//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/strandmq/strandmq/internal/heldport"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// squadron is a cluster of real processes, each started by `strandmq serve`, which a test
// kills, stops and cuts off as it likes.
type squadron struct {
	t      *testing.T
	binary string
	args   []string // further ones of serve, of every node
	nodes  []*ship
	any    *clients // by whichever node takes the connection
}

// ship is one node of a squadron, over its restarts. One goroutine, the test's, starts and
// ends it.
type ship struct {
	number       int                      // from 0; what the cluster calls it may differ
	data, log    string                   // the folder and the file
	args         []string                 // further ones of serve
	listen, peer string                   // for clients and for other nodes
	within       func(func() error) error // where its process and connections to it are made
	dial         func() (net.Conn, error) // a connection to listen
	url          string                   // the same for clients
	api          *clients                 // at url
	cmd          *exec.Cmd                // nil: it never ran
	ended        <-chan struct{}          // closed when the process is gone
	hurt         bool                     // its disk was full or hung since it was started
}

// berth is where a node runs: on this machine's loopback, unless a test has better.
type berth struct {
	folder string
	peer   string   // address and port for other nodes
	args   []string // further ones of serve, of this node
	within func(func() error) error
	dial   func(address string) (net.Conn, error)
}

// loopback is a berth for each of so many nodes, all on this machine.
func loopback(t *testing.T, nodes int) (berths []berth) {
	for range nodes {
		berths = append(berths, berth{
			folder: t.TempDir(), peer: heldport.Address(t), within: here,
			dial: func(address string) (net.Conn, error) { return net.Dial("tcp", address) },
		})
	}
	return berths
}

// here is where this process is.
func here(f func() error) error { return f() }

// startSquadron starts a node in each berth, the first alone and the others by joining it,
// and waits until the cluster is whole. It ends with the test.
func startSquadron(t *testing.T, berths []berth, args ...string) *squadron {
	f := &squadron{t: t, binary: buildBroker(t), args: args}
	logs := t.TempDir()
	for i, p := range berths {
		s := &ship{
			number: i, data: filepath.Join(p.folder, "data"), log: filepath.Join(logs, fmt.Sprintf("n%d.log", i+1)),
			args: p.args, listen: heldport.Address(t), peer: p.peer, within: p.within,
		}
		s.dial = func() (net.Conn, error) { return p.dial(s.listen) }
		s.url = f.door(s)
		s.api = dial(s.url)
		f.nodes = append(f.nodes, s)
	}
	f.any = dial(f.door(f.nodes...))
	t.Cleanup(func() {
		for _, s := range f.nodes {
			s.kill()
		}
	})
	for i, s := range f.nodes {
		if i == 0 {
			f.start(s, "")
		} else {
			f.join(s, f.nodes[0])
		}
		f.serves(s)
	}
	f.whole()
	return f
}

// door is an address whose connections go to the nodes in turn, to those that take them.
func (f *squadron) door(nodes ...*ship) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var turn atomic.Uint64
	carry := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		for range nodes {
			to, err := nodes[turn.Add(1)%uint64(len(nodes))].dial()
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
	f.t.Cleanup(func() {
		cancel()
		_ = l.Close()
		running.Wait()
	})
	return "http://" + l.Addr().String()
}

// start starts a node's process; with a token and whom to ask, as a new node.
func (f *squadron) start(s *ship, token string, more ...string) {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	defer log.Close()
	args := append([]string{"serve", "--data", s.data, "--listen", s.listen, "--peer-listen", s.peer, "--log-format", "text"}, f.args...)
	args = append(append(args, s.args...), more...)
	s.cmd = exec.Command(f.binary, args...)
	s.cmd.Stderr = log
	s.cmd.Env = append(os.Environ(), "STRANDMQ_JOIN_TOKEN="+token)
	ended, err := startTied(s.cmd, s.within)
	if err != nil {
		f.t.Fatal(err)
	}
	s.ended, s.hurt = ended, false
}

// join starts a node as a new one of the cluster that another is of.
func (f *squadron) join(s, by *ship) {
	res, err := ask(f.t.Context(), by.api.cluster.CreateJoinToken, &strandmqv1.CreateJoinTokenRequest{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.start(s, res.GetToken(), "--join", by.peer)
}

// gone tells whether the process has ended.
func (s *ship) gone() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// signal sends one, and does nothing to a process that has ended.
func (s *ship) signal(sig syscall.Signal) {
	if s.cmd != nil && !s.gone() {
		_ = s.cmd.Process.Signal(sig)
	}
}

// kill ends the process at once, as a crash does.
func (s *ship) kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	s.signal(syscall.SIGKILL)
	<-s.ended
}

// stop has the process end as it likes to. An error says that it did otherwise.
func (s *ship) stop() error {
	s.signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(time.Minute):
		s.kill()
		return errors.New("it was told to stop, and did not within a minute")
	}
	if !s.cmd.ProcessState.Success() {
		return fmt.Errorf("it was told to stop, and ended with %v", s.cmd.ProcessState)
	}
	return nil
}

// squadronPatience is how long a cluster may take to be whole again after anything.
const squadronPatience = 2 * time.Minute

// serves waits until a node answers.
func (f *squadron) serves(s *ship) {
	f.t.Helper()
	f.until(fmt.Sprintf("node %d serves", s.number+1), func() error {
		if s.gone() {
			f.showLogs()
			f.t.Fatalf("node %d ended: %v", s.number+1, s.cmd.ProcessState)
		}
		res, err := look(f.t.Context(), s.api.node.NodeInfo, &strandmqv1.NodeInfoRequest{})
		if err == nil && res.GetNode() == 0 {
			return errors.New("it has no number yet")
		}
		return err
	})
}

// whole waits until the cluster is healthy.
func (f *squadron) whole() {
	f.t.Helper()
	f.until("the cluster is whole", f.healthy)
}

// healthy is what is missing until every node sees every other, all vote for the
// metadata, and nothing is on the move; nil: nothing.
func (f *squadron) healthy() error {
	for _, s := range f.nodes {
		if err := f.sees(s); err != nil {
			return fmt.Errorf("by node %d: %w", s.number+1, err)
		}
	}
	return nil
}

// sees is the same as one node sees it.
func (f *squadron) sees(s *ship) error {
	res, err := look(f.t.Context(), s.api.cluster.DescribeCluster, &strandmqv1.DescribeClusterRequest{})
	if err != nil {
		return err
	}
	there, votes := 0, 0
	for _, n := range res.GetNodes() {
		if n.SilentMs != nil && n.GetSilentMs() == 0 {
			there++
		}
		if n.GetVotes() {
			votes++
		}
	}
	if len(res.GetNodes()) != len(f.nodes) || there != len(f.nodes) || votes != len(f.nodes) || len(res.GetMoving())+len(res.GetStuck()) > 0 {
		return fmt.Errorf("%d nodes, %d there, %d vote, %d partitions moving, %d stuck", len(res.GetNodes()), there, votes, len(res.GetMoving()), len(res.GetStuck()))
	}
	return nil
}

// until waits for a condition.
func (f *squadron) until(what string, holds func() error) {
	f.t.Helper()
	deadline := time.Now().Add(squadronPatience)
	for {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			f.showLogs()
			f.t.Fatalf("%s: not after %v: %v", what, squadronPatience, err)
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
}

// look makes one call that is not worth waiting for: it is made again anyhow.
func look[Req, Res any](ctx context.Context, call func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // a node that is stopped or cut off never answers
	defer cancel()
	return call(ctx, req)
}

// showLogs shows the end of each node's log.
func (f *squadron) showLogs() {
	for _, s := range f.nodes {
		b, _ := os.ReadFile(s.log)
		f.t.Logf("node %d:\n%s", s.number+1, b[max(0, len(b)-6000):])
	}
}
