package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type passing struct {
	after time.Duration
	yes   bool
}

func (p passing) Error() string                 { return "not now" }
func (p passing) Passes() (time.Duration, bool) { return p.after, p.yes }

func TestDo(t *testing.T) {
	gone := errors.New("gone")
	for _, c := range []struct {
		name   string
		limit  time.Duration
		fails  []error // then it succeeds
		calls  int
		err    error
		atMost time.Duration
	}{
		{"at once", time.Minute, nil, 1, nil, time.Second},
		{"after what passes", time.Minute, []error{passing{0, true}, fmt.Errorf("wrapped: %w", passing{time.Millisecond, true})}, 3, nil, time.Second},
		{"for good", time.Minute, []error{passing{0, true}, gone}, 2, gone, time.Second},
		{"says no", time.Minute, []error{passing{time.Millisecond, false}}, 1, passing{time.Millisecond, false}, time.Second},
		{"once", 0, []error{passing{time.Millisecond, true}, nil}, 1, passing{time.Millisecond, true}, time.Second},
		{"a wait beyond the limit", 20 * time.Millisecond, []error{passing{time.Hour, true}, nil}, 1, passing{time.Hour, true}, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // its clock is that of the waits alone
				calls := 0
				began := time.Now()
				got, err := Do(t.Context(), Config{Limit: c.limit, First: time.Millisecond, Most: 2 * time.Millisecond}, func() (int, error) {
					calls++
					if calls <= len(c.fails) {
						return 0, c.fails[calls-1]
					}
					return 7, nil
				})
				if calls != c.calls || !errors.Is(err, c.err) || c.err == nil && got != 7 || time.Since(began) > c.atMost {
					t.Errorf("%d calls, %d, %v, in %v", calls, got, err, time.Since(began))
				}
			})
		})
	}
}

func TestDoEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	told := 0
	_, err := Do(ctx, Config{Limit: time.Hour, Waiting: func(err error, wait time.Duration) {
		told++
		if !errors.Is(err, passing{time.Minute, true}) {
			t.Errorf("told of %v", err)
		}
		cancel()
	}}, func() (int, error) { return 0, passing{time.Minute, true} })
	if told != 1 || !errors.Is(err, context.Canceled) {
		t.Errorf("%v after %d waits", err, told)
	}
}

func TestBroke(t *testing.T) {
	// A real one: the other side resets the connection.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}()
	c, reset := net.Dial("tcp", l.Addr().String())
	if reset == nil {
		_, reset = c.Read(make([]byte, 1))
		c.Close()
	}
	l.Close()
	_, refused := net.Dial("tcp", l.Addr().String())
	for _, err := range []error{reset, refused, io.EOF, io.ErrUnexpectedEOF, fmt.Errorf("write: %w", syscall.EPIPE), net.ErrClosed} {
		if !Broke(err) {
			t.Errorf("%v is no broken connection", err)
		}
	}
	for _, err := range []error{nil, errors.New("no"), context.DeadlineExceeded, context.Canceled} {
		if Broke(err) {
			t.Errorf("%v is a broken connection", err)
		}
	}
}
