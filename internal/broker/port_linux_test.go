package broker

import (
	"fmt"
	"syscall"
	"testing"
)

// heldPort is an address at which a node can listen, again and again, and that nobody
// else is given until the test ends, not even while the node is away: a socket that is
// bound and does not listen. One that has SO_REUSEADDR as well, as every listener of Go,
// may bind to the same.
func heldPort(t testing.TB) string {
	t.Helper()
	syscall.ForkLock.RLock() // as net does: no process that is started inherits it
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
}
