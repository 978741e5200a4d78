//go:build !linux

package main

import (
	"net"
	"strconv"
	"testing"
)

// heldPort is an address that nobody listens at now. It cannot be held here.
func heldPort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// heldPorts is a port such that others at some distances above it are likely to be free.
func heldPorts(t testing.TB, _ ...int) (base int) {
	t.Helper()
	_, port, err := net.SplitHostPort(heldPort(t))
	if err == nil {
		base, err = strconv.Atoi(port)
	}
	if err != nil {
		t.Fatal(err)
	}
	return base
}
