//go:build !linux

package main

import "os/exec"

// startTied starts a process; here nothing ends it with this one. ended is closed when
// it is gone.
func startTied(cmd *exec.Cmd, within func(func() error) error) (ended <-chan struct{}, err error) {
	gone := make(chan struct{})
	if err := within(cmd.Start); err != nil {
		return gone, err
	}
	go func() {
		_ = cmd.Wait() // the state says it
		close(gone)
	}()
	return gone, nil
}
