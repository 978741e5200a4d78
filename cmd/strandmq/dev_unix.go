//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// apart keeps the terminal's Ctrl-C from a process: it is told to stop in turn.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func askToStop(cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGTERM) }
