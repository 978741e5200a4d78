package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Config is what a Transport needs. Zero means the default where one is named.
type Config struct {
	// Identity says which node of which cluster this is.
	Identity *Identity
	// Store is the data folder, and Boot how often it has been started, this time
	// included. Both are needed: they tell a copy of the folder from the folder.
	Store StoreID
	Boot  uint64
	// Life is a random number of this start, and Earlier the starts of the folder that
	// it knows of, in order: the latest 32 are told. They tell a copy of the folder that
	// was started later. Life 0 takes one.
	Life    uint64
	Earlier []Start
	// Listen is the address to listen on for nodes, as host:port. Listener, if there is
	// one, listens already; New owns it, and closes it when it fails too.
	Listen   string
	Listener net.Listener

	// Deliver takes a message, and owns its bytes. It is called by one goroutine for
	// each node, in the order of the node's connection. While it does not return,
	// nothing more is read from that node, and after Silence the node takes this one
	// to be down.
	Deliver func(from uint64, b []byte)
	// Alive is told when a node comes up and goes down; of a node that never comes
	// up, after Silence that it is down. Always from one goroutine. It must not block,
	// nor call Close or SetNodes.
	Alive func(node uint64, up bool)
	// Handler serves calls of nodes; From names the caller. Nil: there are none.
	Handler http.Handler
	// OnJoin decides on a machine that wants to join: whether the secret is that of a
	// valid join token (an *ErrRefused with TokenUnknown, TokenExpired or TokenUsed
	// says why not), and what it is given. Whoever asks has proven nothing else. Nil:
	// none can join here.
	OnJoin func(ctx context.Context, secret, request []byte) (answer []byte, err error)

	// Logger is told of what a person should know. Default: none.
	Logger *slog.Logger

	// Beat is the time between two beats. Default 200 ms, at least 1 ms. Each costs
	// about 150 bytes and four wake-ups for a pair of nodes.
	Beat time.Duration
	// Silence is after what time without a sign a node is down. Default 1 s, at least
	// four beats. Longer lengthens every failover by as much; shorter takes a machine
	// that was paused to be down.
	Silence time.Duration
	// Timeout is how long making a connection may take, and a join but for OnJoin.
	// Default 5 s.
	Timeout time.Duration
	// Backoff is the longest time between two attempts to reach a node that does not
	// answer. Default 1 s, at least 10 ms. Each attempt costs a packet.
	Backoff time.Duration
	// QueueBytes bounds what waits to be sent to one node, beside an eighth of it for
	// what is urgent. Default 32 MiB, at least MaxMessage. Memory for each node that is
	// slow.
	QueueBytes int
	// MaxMessage bounds one message. Default 16 MiB, at most 1 GiB. Memory for each
	// node that sends one.
	MaxMessage int
	// MaxSkew is how far two clocks may be apart before it is told. Default 500 ms.
	MaxSkew time.Duration
	// Now is the wall clock. Default time.Now.
	Now func() time.Time
	// Versions are the lowest and the highest version of the protocol that it says to
	// speak. Default: those that this program speaks. Others are for tests.
	Versions [2]uint16
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Beat, 200*time.Millisecond)
	def(&c.Silence, time.Second)
	def(&c.Timeout, 5*time.Second)
	def(&c.Backoff, time.Second)
	def(&c.MaxSkew, 500*time.Millisecond)
	if c.QueueBytes == 0 {
		c.QueueBytes = 32 << 20
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = 16 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Versions == [2]uint16{} {
		c.Versions = [2]uint16{lowestVersion, highestVersion}
	}
	return c
}

// Validate lists every fault.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(c.Identity != nil, "Identity is missing")
	check(c.Store != StoreID{}, "Store is missing")
	check(c.Boot > 0, "Boot is missing: the first start has number 1")
	check(c.Listen != "" || c.Listener != nil, "Listen is missing")
	check(c.Deliver != nil, "Deliver is missing")
	check(c.Alive != nil, "Alive is missing")
	check(c.Beat >= time.Millisecond, "Beat is %v, at least 1 ms", c.Beat)
	check(c.Silence >= 4*c.Beat, "Silence is %v, at least four beats of %v", c.Silence, c.Beat)
	check(c.Timeout > 0, "Timeout is %v", c.Timeout)
	check(c.Backoff >= 10*time.Millisecond, "Backoff is %v, at least 10 ms", c.Backoff)
	check(c.MaxMessage >= 1 && c.MaxMessage <= 1<<30, "MaxMessage is %d, at most 1 GiB", c.MaxMessage)
	check(c.QueueBytes >= c.MaxMessage, "QueueBytes is %d, at least MaxMessage, %d", c.QueueBytes, c.MaxMessage)
	check(c.MaxSkew > 0, "MaxSkew is %v", c.MaxSkew)
	return errors.Join(faults...)
}
