package heldport

import (
	"fmt"
	"net"
	"runtime"
	"testing"
)

// A held port takes a listener, again and again, and is not given to who asks for any.
func TestHeld(t *testing.T) {
	at, base := Address(t), Ports(t, 1, 5)
	for _, a := range []string{at, fmt.Sprintf("127.0.0.1:%d", base), fmt.Sprintf("127.0.0.1:%d", base+1), fmt.Sprintf("127.0.0.1:%d", base+5)} {
		for range 2 {
			l, err := net.Listen("tcp", a)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if runtime.GOOS != "linux" {
		return // what is not held may be given
	}
	for range 2000 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Addr().String(); got == at {
			t.Fatalf("%s was given to somebody else", got)
		}
		_ = l.Close()
	}
}
