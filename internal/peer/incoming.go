package peer

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"
)

// incoming is the connection over which a node's messages come.
type incoming struct {
	conn  *tls.Conn
	since time.Duration
	ended chan struct{} // closed by close
	once  sync.Once
}

// close ends the connection. What it is delivering right now goes on.
func (in *incoming) close() {
	in.once.Do(func() {
		close(in.ended)
		drop(in.conn)
	})
}

// serveFrames takes a connection of a node until it ends. subject is the node of
// its certificate; refused says why that is not good.
func (t *Transport) serveFrames(conn *tls.Conn, subject uint64, refused error) error {
	_ = conn.SetDeadline(time.Now().Add(t.cfg.Timeout))
	// The hello is read even where the certificate is refused: closing a connection
	// with bytes unread would take the refusal back before it arrives.
	body, err := expect(conn, kindHello, helloLimit)
	if err != nil {
		return err
	}
	if refused != nil {
		return t.sendRefusal(conn, refused)
	}
	h, err := parseHello(body)
	if err != nil {
		return t.sendRefusal(conn, err)
	}
	in := &incoming{conn: conn, since: t.now(), ended: make(chan struct{})}
	p, err := t.admit(in, h, subject)
	if err != nil {
		return t.sendRefusal(conn, err)
	}
	defer func() {
		t.mu.Lock()
		if p.in == in {
			p.in = nil
		}
		t.mu.Unlock()
	}()
	// Messages of one node are delivered one at a time, in order: those of the earlier
	// connection first. Who waits here in vain was followed by a third.
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-in.ended:
		return errReplaced
	case <-t.ctx.Done():
		return &ErrClosed{}
	}
	version, _ := t.self.version(h)
	w := t.self
	w.lowest, w.highest, w.to, w.clock = version, version, h.node, t.cfg.Now().UnixMilli()
	if _, err := conn.Write(appendFrame(nil, kindWelcome, w.encode())); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	p.heard.Store(int64(t.now()))
	notify(p.kick) // it is there, so it can be reached
	notify(t.nudge)
	return p.read(conn)
}

// admit makes a connection that of the node, and ends the one before.
func (t *Transport) admit(in *incoming, h hello, subject uint64) (*peer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, refuse(Busy, "node %d is stopping", t.self.node)
	}
	if refused := t.running(h); refused != nil {
		return nil, refused
	}
	if refused := t.meet(h, subject); refused != nil {
		return nil, refused
	}
	p := (*t.peers.Load())[h.node]
	if p.in != nil {
		p.in.close()
	}
	p.in = in
	return p, nil
}

// sendRefusal tells the other side, and returns what it told.
func (t *Transport) sendRefusal(conn *tls.Conn, err error) error {
	var refused *ErrRefused
	if !errors.As(err, &refused) || refused.Remote {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(t.cfg.Silence))
	if _, werr := conn.Write(appendFrame(nil, kindRefusal, encodeRefusal(refused))); werr != nil {
		return err
	}
	// Wait until the other side has read it and closed, or time is up.
	_ = conn.CloseWrite()
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, helloLimit))
	return err
}

// read delivers messages until the connection ends.
func (p *peer) read(conn *tls.Conn) error {
	l := &listening{p: p, conn: conn}
	r := bufio.NewReaderSize(l, gathered)
	var h [headerSize]byte
	for {
		if _, err := io.ReadFull(r, h[:]); err != nil {
			return err
		}
		k, n, err := parseHeader(h, p.t.cfg.MaxMessage)
		if err != nil {
			return err
		}
		switch k {
		case kindBeat:
			if n != beatSize {
				return refuse(Malformed, "a beat has %d bytes", n)
			}
			var stamp [beatSize]byte
			if _, err := io.ReadFull(r, stamp[:]); err != nil {
				return err
			}
			if err := l.answer(stamp); err != nil {
				return err
			}
		case kindMessage:
			body, err := readBody(r, n)
			if err != nil {
				return err
			}
			p.count.received.Add(1)
			p.count.receivedBytes.Add(uint64(n))
			p.busy.Store(true)
			p.t.cfg.Deliver(p.node, body)
			p.heard.Store(int64(p.t.now()))
			p.busy.Store(false)
		default:
			return refuse(Malformed, "a frame of kind %d came among messages", k)
		}
	}
}

// listening notes that the node is heard, and answers in the middle of what takes
// long to arrive, so that a slow network is not taken for a dead node.
type listening struct {
	p    *peer
	conn *tls.Conn
	last time.Duration // when it answered last
}

func (l *listening) Read(b []byte) (int, error) {
	n, err := l.conn.Read(b)
	if n > 0 {
		now := l.p.t.now()
		l.p.heard.Store(int64(now))
		if now-l.last > 2*l.p.t.cfg.Beat {
			if aerr := l.answer([beatSize]byte{}); err == nil {
				err = aerr
			}
		}
	}
	return n, err
}

// answer tells the node that it is heard. Who does not read answers is cut.
func (l *listening) answer(stamp [beatSize]byte) error {
	l.last = l.p.t.now()
	var buf [headerSize + answerSize]byte
	b := append(appendHeader(buf[:0], kindAnswer, answerSize), stamp[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(l.p.t.cfg.Now().UnixMilli()))
	_ = l.conn.SetWriteDeadline(time.Now().Add(l.p.t.cfg.Silence))
	_, err := l.conn.Write(b)
	return err
}
