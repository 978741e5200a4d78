package heldport

import (
	"fmt"
	"syscall"
	"testing"
)

// Address is an address at which a broker can listen, again and again, and that nobody
// else is given until the test ends: neither who asks for any free port nor an outgoing
// connection. A port that is only found free may be somebody's when the broker starts,
// and when it starts again.
//
// It is a socket that is bound and does not listen. One that has SO_REUSEADDR as well,
// as every listener of Go, may bind to the same.
func Address(t testing.TB) string {
	t.Helper()
	fd, at, err := hold(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	return fmt.Sprintf("127.0.0.1:%d", at)
}

// Ports is a base such that base+d is held, as by Address, for each of some distances
// above 0, and base itself.
func Ports(t testing.TB, distances ...int) (base int) {
	t.Helper()
	var last error
	for range 1000 { // some port of each row may be taken
		fd, base, err := hold(0)
		if err != nil {
			t.Fatal(err)
		}
		held := []int{fd}
		for _, d := range distances {
			if fd, _, err = hold(base + d); err != nil {
				break
			}
			held = append(held, fd)
		}
		release := func() {
			for _, fd := range held {
				_ = syscall.Close(fd)
			}
		}
		if err == nil {
			t.Cleanup(release)
			return base
		}
		last = err
		release()
	}
	t.Fatalf("no row of free ports: %v", last)
	return 0
}

// hold holds a port, or some free one for 0.
func hold(port int) (fd, at int, err error) {
	syscall.ForkLock.RLock() // as net does: no process that is started inherits it
	defer syscall.ForkLock.RUnlock()
	if fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0); err != nil {
		return -1, 0, err
	}
	if err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	}
	var name syscall.Sockaddr
	if err == nil {
		name, err = syscall.Getsockname(fd)
	}
	if err != nil {
		_ = syscall.Close(fd)
		return -1, 0, err
	}
	return fd, name.(*syscall.SockaddrInet4).Port, nil
}
