//go:build !linux

package broker

import "testing"

// heldPort lets a node look for a port. It cannot be held here while the node is away.
func heldPort(testing.TB) string { return "127.0.0.1:0" }
