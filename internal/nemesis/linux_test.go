package nemesis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// echo answers in a namespace until the test ends.
func echo(t *testing.T, s *Space) string {
	var l net.Listener
	err := s.Do(func() (err error) {
		l, err = net.Listen("tcp", s.Address()+":7000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			// The end of a connection may have been lost on a link that was cut.
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			running.Go(func() {
				defer stop()
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	return l.Addr().String()
}

// arrives tells whether a word comes back over a connection within a while.
func arrives(c net.Conn, within time.Duration) error {
	word, back := []byte("hello"), make([]byte, 5)
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := c.Write(word); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, back); err != nil {
		return err
	}
	if string(back) != string(word) {
		return fmt.Errorf("%q came back", back)
	}
	return nil
}

func TestNet(t *testing.T) {
	n, err := NewNet(3)
	if err != nil {
		t.Skipf("this machine has no networks to cut: %v", err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	address := echo(t, n.Space(1))
	talk := func(from int) net.Conn {
		c, err := n.Space(from).Dial(address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := arrives(c, time.Minute); err != nil {
			t.Fatalf("an open link: %v", err)
		}
		return c
	}
	// A silence cannot be waited for, so it is looked at for a moment; what comes in
	// spite of a cut comes at once.
	silent := func(c net.Conn, what string) {
		t.Helper()
		if err := arrives(c, 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, w := range []Way{{0, 1}, {1, 0}} {
		a, c := talk(0), talk(2)
		if err := n.Cut(w); err != nil {
			t.Fatal(err)
		}
		silent(a, fmt.Sprintf("a connection that is open, %v cut", w))
		if err := arrives(c, time.Minute); err != nil {
			t.Errorf("%v cut, and another way: %v", w, err)
		}
		if err := n.Heal(w); err != nil {
			t.Fatal(err)
		}
		talk(0)
	}
	// All that is sent gets lost, and with a narrow link it arrives late.
	a := talk(0)
	if err := n.Lose(0, 1); err != nil {
		t.Fatal(err)
	}
	silent(a, "everything lost")
	if err := n.Plain(0); err != nil {
		t.Fatal(err)
	}
	talk(0)
	// One of thirty: what is sent again within a minute is all lost less often than
	// once in 10^9 runs.
	if err := n.Lose(0, 0.03); err != nil {
		t.Fatal(err)
	}
	talk(0)
	if err := n.Narrow(0, 64_000); err != nil {
		t.Fatal(err)
	}
	a = talk(0)
	begin, body := time.Now(), make([]byte, 40_000)
	if err := a.SetDeadline(begin.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write(body); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(a, body); err != nil {
		t.Fatal(err)
	}
	// 32 kB at 8 kB a second: never sooner, however fast the machine.
	if took := time.Since(begin); took < 2*time.Second {
		t.Errorf("40 kB went through 64 kbit/s in %v", took)
	}
}

func TestDisk(t *testing.T) {
	d, err := NewDisk(t.TempDir(), "disk", 64<<20)
	if err != nil {
		t.Skipf("this machine has no disks to cut off: %v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	for range 3 {
		if err := d.SelfTest(); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Fill(0); err != nil {
		t.Fatal(err)
	}
	if free, err := d.free(); err != nil || free > 4096 {
		t.Errorf("%d bytes are left on a full disk: %v", free, err)
	}
	if err := os.WriteFile(filepath.Join(d.Dir(), "more"), make([]byte, 1<<20), 0o600); err == nil {
		t.Error("a full disk takes more")
	}
	if err := d.Empty(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.Dir(), "more"), make([]byte, 1<<20), 0o600); err != nil {
		t.Errorf("an emptied disk: %v", err)
	}
	if err := d.Fill(1 << 20); err != nil {
		t.Fatal(err)
	}
	if free, err := d.free(); err != nil || free < 1<<20 {
		t.Errorf("%d bytes are left of 1 MiB: %v", free, err)
	}
	if err := d.Empty(); err != nil {
		t.Fatal(err)
	}
	// A frozen disk answers when it is thawed, and not before.
	if err := d.Freeze(); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- os.WriteFile(filepath.Join(d.Dir(), "late"), []byte("x"), 0o600) }()
	select {
	case err := <-wrote:
		t.Errorf("a frozen disk took a file: %v", err)
		wrote <- err
	case <-time.After(200 * time.Millisecond): // nothing to wait for: see that it hangs
	}
	if err := d.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}
