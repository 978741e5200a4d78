package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
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
	calls    *way // of Admin, and of what publishers ask

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
// that began, settlements that came too late. Default: nothing is told.
func WithLogger(l *slog.Logger) Option {
	return func(c *Client) { c.log = l }
}

// WithRetryFor is how long the calls of Admin, and the first call of a publisher,
// are made again while no node answers. Default 10 s. 0: not again. Publishers and
// consumers that run go on trying for as long as their callers wait.
func WithRetryFor(d time.Duration) Option {
	return func(c *Client) { c.retryFor = d }
}

// New makes a client for the addresses of a broker's nodes, such as
// http://127.0.0.1:7171. Any node takes every call; with several addresses, the
// next is asked when one does not answer. Nothing is sent until the first call.
func New(servers []string, opts ...Option) (*Client, error) {
	if len(servers) == 0 {
		return nil, errors.New("strandmq: no address of a broker: give at least one, such as http://127.0.0.1:7171")
	}
	c := &Client{log: slog.New(slog.DiscardHandler), retryFor: 10 * time.Second}
	for _, o := range opts {
		o(c)
	}
	for _, s := range servers {
		u, err := url.Parse(s)
		if err != nil {
			return nil, fmt.Errorf("strandmq: %w", err)
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("strandmq: %q is no address of a broker: write it as http://host:port", s)
		}
		c.servers = append(c.servers, strings.TrimSuffix(s, "/"))
	}
	c.calls = newWay(c.servers)
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c, nil
}

// Dial is New, and waits until a broker answers.
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
// as they do when their context ends: Flush and drain before.
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	return retry.Do(ctx, retry.Config{Limit: c.retryFor, Waiting: func(err error, d time.Duration) {
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
			return nil, ctx.Err()
		}
		err = explain(err, n.url)
		c.calls.blame(n, err)
		return nil, err
	})
}
