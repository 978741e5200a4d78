package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	protocolFrames = "strandmq-frames/1"
	protocolCalls  = "h2"
	protocolJoin   = "strandmq-join/1"

	// gathered is how much of what is queued becomes one write. Larger messages are
	// written from where they are.
	gathered = 64 << 10
)

// outgoing is the connection over which messages go to a node.
type outgoing struct {
	conn  *tls.Conn
	below *gathering // what conn writes to
	since time.Duration
	ended chan struct{} // closed by fail

	once sync.Once
	why  error // written before ended is closed
}

// fail ends the connection. The first reason counts.
func (o *outgoing) fail(why error) {
	o.once.Do(func() {
		o.why = why
		close(o.ended)
		drop(o.conn)
	})
}

// run keeps a connection to the node until ctx ends.
func (p *peer) run(ctx context.Context, random *mathrand.Rand) {
	first := p.t.cfg.Backoff / 20
	wait := first
	for {
		began := p.t.now()
		err := p.connect(ctx)
		if ctx.Err() != nil {
			return
		}
		p.failed(err)
		if p.t.now()-began > p.t.cfg.Silence {
			wait = first
		}
		// Between half and the whole: nodes that lost the same one do not come together.
		pause := time.NewTimer(wait/2 + time.Duration(random.Int64N(int64(wait/2)+1)))
		wait = min(2*wait, p.t.cfg.Backoff)
		select {
		case <-ctx.Done():
		case <-pause.C:
		case <-p.kick:
			wait = first
		}
		pause.Stop()
	}
}

// failed notes why there is no connection.
func (p *peer) failed(err error) {
	p.t.mu.Lock()
	p.last = err
	p.t.mu.Unlock()
	var refused *ErrRefused
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		// The machine is there and says that nobody listens: no need to wait for silence.
		p.refused.Store(true)
		notify(p.t.nudge)
	case errors.As(err, &refused):
		p.t.tells.warn("no connection to a node: "+err.Error(), "node", p.node)
		return
	}
	p.t.cfg.Logger.Debug("no connection to a node", "node", p.node, "error", err)
}

// connect makes one connection and uses it until it ends.
func (p *peer) connect(ctx context.Context) error {
	hs, cancel := context.WithTimeout(ctx, p.t.cfg.Timeout)
	defer cancel()
	below := new(gathering)
	conn, err := p.dial(hs, protocolFrames, func(c net.Conn) net.Conn { below.Conn = c; return below })
	if err != nil {
		return err
	}
	o := &outgoing{conn: conn, below: below, ended: make(chan struct{})}
	unhook := context.AfterFunc(ctx, func() { o.fail(ctx.Err()) })
	defer unhook()
	defer o.fail(net.ErrClosed)
	deadline, _ := hs.Deadline()
	_ = conn.SetDeadline(deadline)
	if err := p.greet(o); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	p.count.connects.Add(1)
	var group sync.WaitGroup
	group.Go(func() { o.fail(p.readAnswers(o)) })
	o.fail(p.write(o))
	group.Wait()
	p.t.mu.Lock()
	p.out = nil
	p.t.mu.Unlock()
	return o.why
}

// greet says hello, judges the welcome, and makes the connection the node's.
func (p *peer) greet(o *outgoing) error {
	h := p.t.self
	h.to, h.clock = p.node, p.t.cfg.Now().UnixMilli()
	if _, err := o.conn.Write(appendFrame(nil, kindHello, h.encode())); err != nil {
		return err
	}
	body, err := expect(o.conn, kindWelcome, helloLimit)
	if err != nil {
		return err
	}
	w, err := parseHello(body)
	if err != nil {
		return err
	}
	if w.node != p.node {
		return refuse(WrongNode, "node %d answers at the address of node %d", w.node, p.node)
	}
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	if p.t.closed || (*p.t.peers.Load())[p.node] != p {
		return &ErrClosed{}
	}
	if refused := p.t.meet(w, p.node); refused != nil {
		return refused
	}
	o.since = p.t.now()
	p.answered.Store(int64(o.since))
	p.refused.Store(false)
	p.out, p.last = o, nil
	p.queue.start()
	notify(p.t.nudge)
	return nil
}

// dial makes a TLS connection to the node and makes sure that it is that one. wrap
// gives what lies below TLS.
func (p *peer) dial(ctx context.Context, protocol string, wrap func(net.Conn) net.Conn) (*tls.Conn, error) {
	p.t.mu.Lock()
	address := p.address
	p.t.mu.Unlock()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	raw = wrap(raw)
	held := p.t.cfg.Identity.held.Load()
	conn := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocol}, Certificates: []tls.Certificate{held.cert},
		SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true, Time: p.t.cfg.Now,
		InsecureSkipVerify: true, // names of machines prove nothing here: VerifyConnection asks for the node
		VerifyConnection: func(s tls.ConnectionState) error {
			node, err := verify(s.PeerCertificates, held.roots, held.cluster, p.t.cfg.Now(), x509.ExtKeyUsageServerAuth)
			if err == nil && node != p.node {
				err = refuse(WrongNode, "the certificate at %s is of node %d, and node %d was called: correct the address", address, node, p.node)
			}
			return err
		},
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, handshakeError(err)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; got != protocol {
		_ = raw.Close()
		return nil, refuse(UnknownVersion, "node %d does not speak %s: run versions of the broker that are closer to each other", p.node, protocol)
	}
	return conn, nil
}

// handshakeError gives the one alert of TLS a type that has a meaning here.
func handshakeError(err error) error {
	if strings.Contains(err.Error(), "tls: no application protocol") {
		return &ErrRefused{Reason: UnknownVersion, Remote: true, Text: "it does not speak this protocol between nodes: run versions of the broker that are closer to each other"}
	}
	return err
}

// write sends what is queued, and beats, until the connection ends.
func (p *peer) write(o *outgoing) error {
	w := bufio.NewWriterSize(o.conn, gathered)
	beat := time.NewTicker(p.t.cfg.Beat)
	defer beat.Stop()
	var spare, rest [][]byte
	defer func() {
		p.count.dropped.Add(uint64(p.queue.stop() + len(rest)))
	}()
	o.below.gather()
	p.beat(w)
	for {
		if err := w.Flush(); err != nil {
			return err
		}
		if err := o.below.flush(); err != nil {
			return err
		}
		select {
		case <-o.ended:
			return o.why
		case <-beat.C:
			p.beat(w)
			continue
		case <-p.queue.signal:
		}
		all := p.queue.take(spare)
		if err := p.writeUrgent(w); err != nil {
			return err
		}
		written := 0 // and not yet given back to the queue
		for rest = all; len(rest) > 0; rest = rest[1:] {
			if err := p.writeMessage(w, rest[0]); err != nil {
				return err
			}
			if written += len(rest[0]) + overhead; written >= gathered {
				p.queue.free(written, false)
				written = 0
				// What was taken may be much, and the network slow: neither beats nor
				// what is urgent wait until all of it is through.
				select {
				case <-beat.C:
					p.beat(w)
				default:
				}
				if err := p.writeUrgent(w); err != nil {
					return err
				}
			}
			rest[0] = nil
		}
		p.queue.free(written, false)
		spare = all
	}
}

// writeUrgent writes what is urgent now.
func (p *peer) writeUrgent(w *bufio.Writer) error {
	all := p.queue.takeUrgent()
	for i, b := range all {
		if err := p.writeMessage(w, b); err != nil {
			p.count.dropped.Add(uint64(len(all) - i))
			return err
		}
		p.queue.free(len(b)+overhead, true)
	}
	return nil
}

// beat writes a beat. An error stays in the writer.
func (p *peer) beat(w *bufio.Writer) {
	h := appendHeader(w.AvailableBuffer(), kindBeat, beatSize)
	_, _ = w.Write(binary.LittleEndian.AppendUint64(h, uint64(p.t.now())))
}

func (p *peer) writeMessage(w *bufio.Writer, b []byte) error {
	if _, err := w.Write(appendHeader(w.AvailableBuffer(), kindMessage, len(b))); err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	p.count.sent.Add(1)
	p.count.sentBytes.Add(uint64(len(b)))
	return nil
}

// readAnswers reads what comes back: answers, and nothing else.
func (p *peer) readAnswers(o *outgoing) error {
	for {
		k, body, err := readFrame(o.conn, answerSize)
		if err != nil {
			return err
		}
		if k != kindAnswer {
			return refuse(Malformed, "a frame of kind %d came back", k)
		}
		stamp, clock, err := parseAnswer(body)
		if err != nil {
			return err
		}
		now := p.t.now()
		p.answered.Store(int64(now))
		if trip := now - time.Duration(stamp); stamp > 0 && trip >= 0 && trip <= now {
			p.measure(trip, clock)
		}
	}
}

// measure notes a round trip, and how far the other's clock is ahead: it was read
// about half a trip ago.
func (p *peer) measure(trip time.Duration, clock int64) {
	skew := time.UnixMilli(clock).Sub(p.t.cfg.Now()) + trip/2
	p.count.rtt.Store(int64(trip))
	p.count.skew.Store(int64(skew))
	if skew.Abs()-trip/2 > p.t.cfg.MaxSkew {
		p.t.tells.warn("the clocks of two nodes differ: set both right, timers and retention go by them", "node", p.node, "ahead", skew.Round(100*time.Millisecond))
	}
}
