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

// lockDev locks nothing: the nodes' own locks have to do.
func lockDev(string) (release func(), err error) { return func() {}, nil }

func askToStop(cmd *exec.Cmd) { _ = cmd.Process.Signal(os.Interrupt) }
