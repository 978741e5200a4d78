package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/strandmq/strandmq/client"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon bounds the waits for what comes within moments on a machine that does
// nothing else.
const soon = time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
	t.Cleanup(cancel)
	return ctx
}

// until waits for a condition.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, soon)
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
}

// tells is a logger that tells each message.
type tells func(string)

func (f tells) Enabled(context.Context, slog.Level) bool { return true }
func (f tells) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	f(line)
	return nil
}
func (f tells) WithAttrs([]slog.Attr) slog.Handler { return f }
func (f tells) WithGroup(string) slog.Handler      { return f }

// ptr is for optional fields of the API.
func ptr[T any](v T) *T { return &v }

func group(t testing.TB, c *client.Client, topic, name string, p *strandmqv1.GroupPolicy) {
	t.Helper()
	if _, err := c.Admin().CreateGroup(within(t), &strandmqv1.CreateGroupRequest{Topic: topic, Group: name, Policy: p}); err != nil {
		t.Fatal(err)
	}
}

func counts(t testing.TB, c *client.Client, topic, name string) *strandmqv1.GroupCounts {
	t.Helper()
	res, err := c.Admin().DescribeGroup(within(t), topic, name)
	if err != nil {
		t.Fatal(err)
	}
	return res.GetCounts()
}

// replays has all dead letters of a group delivered again.
func replays(t testing.TB, url, topic, group string) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	dead := strandmqv1connect.NewDeadLetterServiceClient(&http.Client{Transport: transport}, url)
	if _, err := dead.ReplayDeadLetters(within(t), &strandmqv1.ReplayDeadLettersRequest{Topic: topic, Group: group, Which: &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_All{All: true}}}); err != nil {
		t.Fatal(err)
	}
}

// members describes those of a group.
func members(t testing.TB, c *client.Client, topic, name string) []*strandmqv1.Member {
	t.Helper()
	res, err := c.Admin().DescribeGroup(within(t), topic, name)
	if err != nil {
		t.Fatal(err)
	}
	return res.GetMembers()
}

// stored tells how many messages a topic has.
func stored(t testing.TB, c *client.Client, topic string) (n uint64) {
	t.Helper()
	res, err := c.Admin().DescribeTopic(within(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range res.GetPartitions() {
		n += p.GetEndOffset()
	}
	return n
}

// runs runs a consumer until stop, which waits for it and gives its error.
func runs(t testing.TB, x *client.Consumer, h client.Handler) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- x.Run(ctx, h) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-over:
			return err
		case <-time.After(2 * soon):
			return fmt.Errorf("Run has not returned for %v", 2*soon)
		}
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// A relay stands between a client and a broker: it can be cut, and lead to another
// broker afterwards.
type relay struct {
	URL string
	l   net.Listener

	mu     sync.Mutex
	target string
	held   chan struct{} // nil: bytes to the broker pass; else they wait until it is closed
	conns  map[net.Conn]bool
	over   bool
	wg     sync.WaitGroup
}

func newRelay(t testing.TB, target string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{URL: "http://" + l.Addr().String(), l: l, conns: map[net.Conn]bool{}}
	r.lead(t, target)
	r.wg.Go(r.accept)
	t.Cleanup(r.stop)
	return r
}

// stop breaks all connections and takes no more.
func (r *relay) stop() {
	_ = r.l.Close()
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.pass()
	r.cut()
	r.wg.Wait()
}

// lead leads to the broker at a URL; "" to none.
func (r *relay) lead(t testing.TB, target string) {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = u.Host
}

// hold lets nothing pass to the broker; pass lets it again.
func (r *relay) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held == nil {
		r.held = make(chan struct{})
	}
}

func (r *relay) pass() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held != nil {
		close(r.held)
		r.held = nil
	}
}

// cut breaks all connections and tells how many there were.
func (r *relay) cut() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
		n++
	}
	clear(r.conns)
	return n / 2
}

func (r *relay) accept() {
	for {
		in, err := r.l.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		target := r.target
		r.mu.Unlock()
		out, err := net.Dial("tcp", target)
		if err != nil {
			_ = in.Close()
			continue
		}
		r.mu.Lock()
		if r.over { // it came just before the listener was closed
			_, _ = in.Close(), out.Close()
		}
		r.conns[in], r.conns[out] = true, true
		r.mu.Unlock()
		r.wg.Go(func() { r.copy(out, in, true) })
		r.wg.Go(func() { r.copy(in, out, false) })
	}
}

// copy copies one way until either end is closed.
func (r *relay) copy(to, from net.Conn, holds bool) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		r.mu.Lock()
		held := r.held
		r.mu.Unlock()
		if holds && held != nil {
			<-held
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
