// Package duplex is a stream of messages in both directions, on a connection of
// its own: a call of the Connect protocol over HTTP/2, and nothing else.
//
// It owns the connection, the framing and the flow control; messages are bytes
// to it. It exists because a general HTTP/2 client passes every frame through
// several goroutines and copies, which costs more than the message when each
// frame carries one. Here the caller's goroutine writes to the socket in Send
// and reads from it in Receive, and nothing is allocated for a message.
//
//	Send ──► envelope ─► DATA frames ─► ┌──────┐
//	                                    │ TCP  │ ◄─► a broker
//	Receive ◄ envelope ◄ DATA frames ◄─ └──────┘
//	   └─ answers SETTINGS, PING and WINDOW_UPDATE on the way
//
// It promises that what Receive gives is whole, and that a refusal by the other
// side is an *Error with its details. It starts no goroutine. It refuses TLS,
// compression, and a second call on a connection. Flow control moves only while
// somebody is in Receive: a Send of more than the other side's window (Go's: 1
// MiB) blocks until then.
package duplex

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"time"

	"golang.org/x/net/http2/hpack"
)

// Headroom is what Send needs in front of a message: a frame's and an envelope's
// header, so that all goes to the socket in one piece.
const Headroom = frameHeader + envelopeHeader

const (
	frameHeader    = 9
	envelopeHeader = 5

	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	framePing         = 6
	frameGoAway       = 7
	frameWindow       = 8
	frameContinuation = 9

	flagEndStream  = 1
	flagAck        = 1
	flagEndHeaders = 4
	flagPadded     = 8
	flagPriority   = 32

	settingWindow = 4
	settingFrame  = 5

	// What the other side may send before it is read: enough for a few of the
	// largest messages.
	window = 16 << 20
	// The largest frame to take, and the largest message.
	maxFrame   = 1 << 20
	maxMessage = 16 << 20
	maxHeaders = 64 << 10
	maxRefusal = 64 << 10

	stream = 1
)

// Stream is one call. Send and CloseSend are for one goroutine, Receive for one;
// both may run at the same time, and Close at any time.
type Stream struct {
	conn net.Conn
	in   *bufio.Reader

	write  sync.Mutex                  // a frame at a time
	update [2 * (frameHeader + 4)]byte // a window update, twice

	flow      sync.Mutex
	moved     sync.Cond
	room      int64 // bytes that may be sent on the stream
	roomConn  int64 // and on the connection
	initial   int64 // the window that streams begin with
	frame     int   // the largest frame to send
	failed    error // no more sending
	sendEnded bool

	// Receive's own.
	headers  []byte // of a header block that goes on
	decoder  *hpack.Decoder
	status   string
	left     int    // of the DATA frame that is being read
	padding  int    // behind it
	ended    bool   // the other side ended the stream
	consumed int    // bytes of DATA that no window update told of yet
	message  []byte // the message that is being read
	prefix   [envelopeHeader]byte
	end      error // what every later Receive says
}

// Dial opens a connection to a server's URL and begins a call of a procedure,
// such as /strandmq.v1.PublishService/PublishStream. ctx bounds the connecting.
func Dial(ctx context.Context, server, procedure string) (*Stream, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, fmt.Errorf("duplex: %w", err)
	}
	if u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("duplex: %q is no http:// address of a server; streams do without TLS here", server)
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "80")
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	s := &Stream{
		conn: conn, in: bufio.NewReaderSize(conn, 64<<10),
		room: 65535, roomConn: 65535, initial: 65535, frame: 16384,
	}
	s.moved.L = &s.flow
	s.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":status" {
			s.status = f.Value
		}
	})
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(30 * time.Second)
	}
	_ = conn.SetWriteDeadline(deadline)
	if _, err := conn.Write(opening(u.Host, u.Path+procedure)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetWriteDeadline(time.Time{})
	return s, nil
}

// opening is everything up to the first message.
func opening(host, path string) []byte {
	b := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	b = appendHeader(b, 12, frameSettings, 0, 0)
	b = binary.BigEndian.AppendUint16(b, settingWindow)
	b = binary.BigEndian.AppendUint32(b, window)
	b = binary.BigEndian.AppendUint16(b, settingFrame)
	b = binary.BigEndian.AppendUint32(b, maxFrame)
	b = appendHeader(b, 4, frameWindow, 0, 0)
	b = binary.BigEndian.AppendUint32(b, window-65535)
	var block headerBlock
	e := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":authority", host}, {":path", path},
		{"content-type", "application/connect+proto"}, {"connect-protocol-version", "1"},
	} {
		// Writing to memory does not fail.
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	b = appendHeader(b, len(block), frameHeaders, flagEndHeaders, stream)
	return append(b, block...)
}

type headerBlock []byte

func (h *headerBlock) Write(p []byte) (int, error) { *h = append(*h, p...); return len(p), nil }

func appendHeader(b []byte, length int, kind, flags byte, id uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), kind, flags)
	return binary.BigEndian.AppendUint32(b, id)
}

func putHeader(b []byte, length int, kind, flags byte, id uint32) {
	b[0], b[1], b[2], b[3], b[4] = byte(length>>16), byte(length>>8), byte(length), kind, flags
	binary.BigEndian.PutUint32(b[5:], id)
}

// Send sends b[Headroom:] as one message, and uses b[:Headroom] for itself; what
// is in b afterwards is not the message any more.
func (s *Stream) Send(b []byte) error {
	n := len(b) - Headroom
	b[frameHeader] = 0
	binary.BigEndian.PutUint32(b[frameHeader+1:], uint32(n))
	at := frameHeader
	for at < len(b) {
		n, err := s.reserve(len(b) - at)
		if err != nil {
			return err
		}
		// What stands in front was sent already, so the next header goes there.
		putHeader(b[at-frameHeader:], n, frameData, 0, stream)
		if err := s.put(b[at-frameHeader : at+n]); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// reserve takes room for up to n bytes, and waits until there is some.
func (s *Stream) reserve(n int) (int, error) {
	s.flow.Lock()
	defer s.flow.Unlock()
	for s.failed == nil && (s.room <= 0 || s.roomConn <= 0) {
		s.moved.Wait()
	}
	if s.failed != nil {
		return 0, s.failed
	}
	n = int(min(int64(n), int64(s.frame), s.room, s.roomConn))
	s.room -= int64(n)
	s.roomConn -= int64(n)
	return n, nil
}

func (s *Stream) put(b []byte) error {
	s.write.Lock()
	defer s.write.Unlock()
	_, err := s.conn.Write(b)
	return err
}

// CloseSend says that nothing more will be sent.
func (s *Stream) CloseSend() error {
	s.flow.Lock()
	again := s.sendEnded || s.failed != nil
	s.sendEnded = true
	if s.failed == nil {
		s.failed = errSendEnded
	}
	s.flow.Unlock()
	if again {
		return nil
	}
	return s.put(appendHeader(nil, 0, frameData, flagEndStream, stream))
}

var errSendEnded = errors.New("duplex: sending has ended")

// Close ends the connection, wherever the call is.
func (s *Stream) Close() error {
	s.fail(net.ErrClosed)
	return s.conn.Close()
}

// fail ends the sending.
func (s *Stream) fail(err error) {
	s.flow.Lock()
	if s.failed == nil {
		s.failed = err
	}
	s.flow.Unlock()
	s.moved.Broadcast()
}

// SetReadDeadline bounds the Receive that runs and later ones; a Receive that
// it cut short leaves the stream unusable. The zero time: no bound.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.conn.SetReadDeadline(t) }

// Receive gives the next message. It is valid until the next call. io.EOF: the
// other side has ended the call, and all is well; an *Error: it refused it.
func (s *Stream) Receive() ([]byte, error) {
	if s.end != nil {
		return nil, s.end
	}
	m, err := s.receive()
	if err != nil {
		s.end = err
		s.fail(err)
		return nil, err
	}
	return m, nil
}

func (s *Stream) receive() ([]byte, error) {
	if err := s.read(s.prefix[:], true); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(s.prefix[1:])
	if n > maxMessage {
		return nil, fmt.Errorf("duplex: a message of %d bytes; at most %d are taken", n, maxMessage)
	}
	if cap(s.message) < int(n) {
		s.message = make([]byte, n, n+n/2)
	}
	s.message = s.message[:n]
	if err := s.read(s.message, false); err != nil {
		return nil, err
	}
	switch s.prefix[0] {
	case 0:
		return s.message, nil
	case 2: // the end of the call
		return nil, endOf(s.message)
	}
	return nil, fmt.Errorf("duplex: an envelope with flags %#x: it was not asked to compress", s.prefix[0])
}

// read fills b from DATA frames. first: the stream may end before it.
func (s *Stream) read(b []byte, first bool) error {
	for at := 0; at < len(b); {
		if s.left == 0 {
			if s.padding > 0 {
				if _, err := s.in.Discard(s.padding); err != nil {
					return cut(err)
				}
				s.padding = 0
			}
			if s.ended {
				if first && at == 0 {
					return fmt.Errorf("duplex: the stream ended without a word: %w", io.ErrUnexpectedEOF)
				}
				return io.ErrUnexpectedEOF
			}
			if err := s.next(); err != nil {
				return err
			}
			continue
		}
		n, err := s.in.Read(b[at:min(len(b), at+s.left)])
		at += n
		s.left -= n
		if err != nil {
			return cut(err)
		}
	}
	return nil
}

// cut is the error of a connection that ended in the middle.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
