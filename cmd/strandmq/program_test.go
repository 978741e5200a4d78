package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
)

// programs are what the test binary is under other names: programs of users, as processes.
var programs = map[string]func(){
	"member-of-a-user":  memberOfAUser,
	"session-of-a-load": sessionOfALoad,
}

// program is a process that a test talks with, by lines of JSON: it reads what it is told
// on its standard input, and tells on its standard output.
type program struct {
	cmd   *exec.Cmd
	ended <-chan struct{} // closed when the process is gone
	says  *lockedBuffer   // its standard error

	mu sync.Mutex // for tell
	in *os.File

	out  *bufio.Scanner
	from *os.File // of out; hear closes it at its end
}

// startProgram starts one of programs.
func startProgram(t testing.TB, name string, args ...string) (*program, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &program{cmd: &exec.Cmd{Path: self, Args: append([]string{name}, args...)}, says: &lockedBuffer{}}
	in, tells, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, told, err := os.Pipe()
	if err != nil {
		_, _ = in.Close(), tells.Close()
		return nil, err
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = in, told, p.says
	p.in, p.out, p.from = tells, bufio.NewScanner(out), out
	p.out.Buffer(nil, 64<<20)
	p.ended, err = startTied(p.cmd, here)
	_, _ = in.Close(), told.Close() // the process has its own
	if err != nil {
		_, _ = tells.Close(), out.Close()
		return nil, err
	}
	go func() {
		<-p.ended
		_ = tells.Close()
	}()
	return p, nil
}

// tell tells it something. It may have ended.
func (p *program) tell(what any) error {
	raw, err := json.Marshal(what)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = p.in.Write(append(raw, '\n'))
	return err
}

// hear reads what it tells next; io.EOF: nothing any more.
func (p *program) hear(what any) error {
	if !p.out.Scan() {
		_ = p.from.Close()
		if err := p.out.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	return json.Unmarshal(p.out.Bytes(), what)
}

// signal sends one, and does nothing to a process that has ended.
func (p *program) signal(sig syscall.Signal) {
	select {
	case <-p.ended:
	default:
		_ = p.cmd.Process.Signal(sig)
	}
}

// kill ends it at once.
func (p *program) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// fault is what went wrong with a process that ended, in its own words.
func (p *program) fault(err error) error {
	return fmt.Errorf("%s: %w (%v)\n%s", p.cmd.Args[0], err, p.cmd.ProcessState, p.says)
}

// teller is the other end: what a program tells, from any goroutine.
type teller struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (t *teller) tell(what any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.out.Encode(what); err != nil {
		os.Exit(1) // nobody listens any more
	}
}

// listen reads what a program is told until it is told nothing any more.
func listen[T any](to func(T)) error {
	in := json.NewDecoder(os.Stdin)
	for {
		var q T
		if err := in.Decode(&q); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		to(q)
	}
}
