//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/strandmq/strandmq/internal/plain"
)

// untilHangUp ends a context when the terminal goes, and lets writing to what nobody
// reads any more fail instead of ending the process: its nodes would be left.
func untilHangUp(ctx context.Context) (context.Context, context.CancelFunc) {
	signal.Ignore(syscall.SIGPIPE)
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}

// apart keeps the terminal's Ctrl-C from a process: it is told to stop in turn.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// lockDev has a file for this process alone, until it ends or releases it.
func lockDev(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		by, _ := io.ReadAll(io.LimitReader(f, 20))
		_ = f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return nil, fmt.Errorf("strandmq dev runs already in %s, as process %s: use that one, or another folder", filepath.Dir(path), plain.Text(string(by)))
	}
	if err := f.Truncate(0); err == nil {
		_, err = fmt.Fprintf(f, "%d", os.Getpid())
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

func askToStop(cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGTERM) }
