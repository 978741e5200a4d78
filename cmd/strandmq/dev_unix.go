//go:build unix

package main

import (
	"context"
	"os/exec"
	"os/signal"
	"syscall"
)

// untilHangUp ends a context when the terminal goes, and lets writing to what nobody
// reads any more fail instead of ending the process: its nodes would be left.
func untilHangUp(ctx context.Context) (context.Context, context.CancelFunc) {
	signal.Ignore(syscall.SIGPIPE)
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}

// apart keeps the terminal's Ctrl-C from a process: it is told to stop in turn.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func askToStop(cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGTERM) }
