//go:build !unix

package main

import (
	"os"
	"os/exec"
)

func apart(*exec.Cmd) {}

func askToStop(cmd *exec.Cmd) { _ = cmd.Process.Signal(os.Interrupt) }
