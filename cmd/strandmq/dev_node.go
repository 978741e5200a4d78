package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// devNode is one process of a cluster, over its restarts.
type devNode struct {
	d      *dev
	number int
	at     devAddress

	mu    sync.Mutex
	cmd   *exec.Cmd     // guarded by mu
	ended chan struct{} // guarded by mu: closed when the process has ended for good
	why   error         // guarded by mu: how it ended
}

func (n *devNode) data() string { return filepath.Join(n.d.folder, fmt.Sprintf("n%d", n.number)) }
func (n *devNode) log() string  { return n.data() + ".log" }
func (n *devNode) url() string  { return "http://" + n.at.API }

func (n *devNode) pid() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cmd.Process.Pid
}

// start starts the process, and keeps it until ctx ends.
func (n *devNode) start(ctx context.Context, token string) error {
	n.mu.Lock()
	n.ended = make(chan struct{})
	n.mu.Unlock()
	if err := n.launch(token); err != nil {
		return err
	}
	n.d.group.Go(func() { n.keep(ctx) })
	return nil
}

// launch starts the process. The token goes by the environment, which other users of
// the machine cannot see.
func (n *devNode) launch(token string) error {
	log, err := os.OpenFile(n.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	args := []string{"serve", "--data", n.data(), "--listen", n.at.API, "--peer-listen", n.at.Peer, "--log-format", "json", "--log-level", n.d.level, "--" + untilEOF}
	if n.d.detailed {
		args = append(args, "--"+metricsPerPartition)
	}
	if token != "" {
		args = append(args, "--join", n.d.plan.Nodes[0].Peer)
	}
	cmd := exec.Command(n.d.binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "STRANDMQ_JOIN_TOKEN="+token)
	apart(cmd)
	// Nothing is written: it ends with this process, however that ends.
	if _, err := cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	n.mu.Lock()
	n.cmd = cmd
	n.mu.Unlock()
	return nil
}

// keep waits for the process, starts it again when it ended by itself, and ends it
// when ctx does.
func (n *devNode) keep(ctx context.Context) {
	n.mu.Lock()
	cmd, ended := n.cmd, n.ended
	n.mu.Unlock()
	defer close(ended)
	for {
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case err := <-done:
			n.mu.Lock()
			n.why = err
			n.mu.Unlock()
			if n.d.again == 0 || !n.joined() {
				n.d.a.talk("node n%d ended: %v; its log is %s", n.number, orExited(err), n.log())
				return
			}
			n.d.a.talk("node n%d ended: %v; it is started again in %v", n.number, orExited(err), n.d.again)
			if !sleepFor(ctx, n.d.again) {
				return
			}
			if err := n.launch(""); err != nil {
				n.d.a.talk("node n%d cannot be started: %v", n.number, err)
				return
			}
			n.d.a.talk("node n%d is process %d now", n.number, n.pid())
			n.mu.Lock()
			cmd = n.cmd
			n.mu.Unlock()
		case <-ctx.Done():
			end(cmd, done)
			return
		}
	}
}

// end has a process stop, and kills it when it takes too long.
func end(cmd *exec.Cmd, done <-chan error) {
	askToStop(cmd)
	timer := time.NewTimer(closeTime)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		_ = cmd.Process.Kill()
		<-done
	}
}

func orExited(err error) error {
	if err == nil {
		return errors.New("it was told to stop")
	}
	return err
}

// sleepFor is false when ctx ended first.
func sleepFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// serves waits until the node answers.
func (n *devNode) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, devPatience)
	defer cancel()
	n.mu.Lock()
	ended := n.ended
	n.mu.Unlock()
	api := dial(n.url())
	for {
		res, err := ask(ctx, api.node.NodeInfo, &strandmqv1.NodeInfoRequest{})
		if err == nil && res.GetNode() != 0 {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("node n%d does not start:\n%s", n.number, n.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("node n%d does not answer: its log is %s", n.number, n.log())
		case <-time.After(20 * time.Millisecond): // between two looks
		}
	}
}

// lastWords is the end of the node's log.
func (n *devNode) lastWords() string {
	b, err := os.ReadFile(n.log())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "\n")
}
