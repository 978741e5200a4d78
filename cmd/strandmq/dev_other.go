//go:build !unix

package main

import (
	"context"
	"os"
	"os/exec"
)

func untilHangUp(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(ctx)
}

func apart(*exec.Cmd) {}

func askToStop(cmd *exec.Cmd) { _ = cmd.Process.Signal(os.Interrupt) }
