package main

import (
	"os/exec"
	"runtime"
	"syscall"
)

// startTied starts a process that is killed when this one ends, however it ends; within
// is where it is started. ended is closed when the process is gone.
func startTied(cmd *exec.Cmd, within func(func() error) error) (ended <-chan struct{}, err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	gone, started := make(chan struct{}), make(chan error, 2)
	go func() {
		// What the kernel ties a process to is the thread that started it, and a thread
		// may end before: this one waits.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- within(func() error {
			err := cmd.Start()
			started <- err
			if err == nil {
				_ = cmd.Wait() // the state says it
				close(gone)
			}
			return err
		})
	}()
	return gone, <-started
}
