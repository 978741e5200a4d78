//go:build !linux

package heldport

import (
	"net"
	"strconv"
	"testing"
)

// Address is an address that nobody listens at now. It cannot be held here.
func Address(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Ports is a port such that others at some distances above it are likely to be free.
func Ports(t testing.TB, _ ...int) (base int) {
	t.Helper()
	_, port, err := net.SplitHostPort(Address(t))
	if err == nil {
		base, err = strconv.Atoi(port)
	}
	if err != nil {
		t.Fatal(err)
	}
	return base
}
