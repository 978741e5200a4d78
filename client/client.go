package client

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/strandmq/strandmq/internal/retry"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// callTime bounds a call that waits for nothing.
const callTime = 30 * time.Second

// Client is the way to one broker, or to the nodes of one cluster. It is safe for
// concurrent use. Publishers and consumers that it made end with it.
type Client struct {
	log      *slog.Logger
	observed observed
	retryFor time.Duration
	servers  []string
	wrong    []error // what options were refused for
	calls    *way    // of Admin, and of what publishers ask

	// ctx ends when Close begins; it is the life of what the client made.
	ctx  context.Context //nolint:containedctx // as the comment says
	stop context.CancelFunc

	mu     sync.Mutex
	closed bool           // guarded by mu
	made   sync.WaitGroup // added to under mu while not closed
}

// Option sets one thing of a client.
type Option func(*Client)

// WithLogger takes what operators should know: connections that broke, sessions
// that began, settlements that the broker refused. Default, and nil: nothing is told.
func WithLogger(l *slog.Logger) Option {
	return func(c *Client) {
		if l == nil {
			l = slog.New(slog.DiscardHandler)
		}
		c.log = l
	}
}

// WithRetryFor is how long the calls of Admin, and the first call of a publisher,
// are made again while no node answers: up to 24 h. Default 10 s. 0: not again.
// Publishers and consumers that run go on trying for as long as their callers wait.
func WithRetryFor(d time.Duration) Option {
	return func(c *Client) { c.retryFor = span(&c.wrong, "WithRetryFor", d, longestRetry) }
}

// New makes a client for the addresses of a broker's nodes, such as
// http://127.0.0.1:7171. Any node takes every call; with several addresses, the
// next is asked when one does not answer. Nothing is sent until the first call. The
// error names each address and option that is none.
func New(servers []string, opts ...Option) (*Client, error) {
	c := &Client{log: slog.New(slog.DiscardHandler), retryFor: 10 * time.Second}
	for _, o := range opts {
		o(c)
	}
	if len(servers) == 0 {
		c.wrong = append(c.wrong, badOption("servers", "there is no address of a broker: give at least one, such as http://127.0.0.1:7171"))
	}
	for i, s := range servers {
		address, err := addressOf(s, i)
		if err != nil {
			c.wrong = append(c.wrong, err)
		}
		c.servers = append(c.servers, address)
	}
	if err := allOf(c.wrong); err != nil {
		return nil, err
	}
	c.calls = newWay(c.servers)
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c, nil
}

// Dial is New, and waits until a broker answers. When ctx ends first, the error says
// why none did, and wraps ctx's.
func Dial(ctx context.Context, servers []string, opts ...Option) (*Client, error) {
	c, err := New(servers, opts...)
	if err != nil {
		return nil, err
	}
	if _, err := ask(ctx, c, func(ctx context.Context, n *node) (*strandmqv1.NodeInfoResponse, error) {
		return n.info.NodeInfo(ctx, &strandmqv1.NodeInfoRequest{})
	}); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close ends everything that the client made, and waits for it. What publishers
// have not been told of is answered with ErrOutcomeUnknown, and consumers leave
// as they do when their context ends, and Run returns ErrClosed: Flush and drain
// before. It waits for handlers as a drain does, so it is not for a handler to call,
// which would wait for itself until the drain gives it up: end the context of Run there.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.made.Wait()
	c.calls.close()
	return nil
}

// begin notes that something lives until the client is closed.
func (c *Client) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.made.Add(1)
	return nil
}

// ask makes a call at one node after the other until it has an answer, or a
// refusal that does not pass. Only calls that can be repeated are made by it.
func ask[Res any](ctx context.Context, c *Client, call func(context.Context, *node) (*Res, error)) (*Res, error) {
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.made.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })()
	var last error // of the way to the broker
	res, err := retry.Do(ctx, retry.Config{Limit: c.retryFor, Waiting: func(err error, d time.Duration) {
		c.log.Warn("a call is made again", "err", err, "in", d)
	}}, func() (*Res, error) {
		n := c.calls.node()
		once, done := context.WithTimeout(ctx, callTime)
		defer done()
		res, err := call(once, n)
		if err == nil {
			return res, nil
		}
		if ctx.Err() != nil {
			if last == nil {
				last = explain(err, n.url)
			}
			return nil, ctx.Err()
		}
		last = explain(err, n.url)
		c.calls.blame(n, last)
		return nil, last
	})
	if err != nil && ctx.Err() != nil {
		if ended := context.Cause(ctx); errors.Is(ended, ErrClosed) {
			return nil, ended
		}
		return nil, gaveUp(ctx.Err(), last)
	}
	return res, err
}
