package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	publishStream = "/strandmq.v1.PublishService/PublishStream"
	consumeStream = "/strandmq.v1.ConsumeService/Consume"
)

const (
	// What the broker may send before it is read: enough for a few of the largest
	// frames. A window that is fixed spares the pings by which gRPC would find one.
	streamWindow = 16 << 20
	// The largest frame to take or send; the broker's limits are below it.
	streamMessage = 16 << 20
	// One read or write of the socket carries many small frames.
	streamBuffer = 64 << 10
)

// stream is a call in both directions by gRPC, on a connection of its own, so
// that publishers and members are as independent as if each were a process.
// Send and Receive may run at the same time, each in one goroutine; the rest at
// any time. Close ends it, and has to be called.
type stream struct {
	conn  *grpc.ClientConn
	call  grpc.ClientStream
	ctx   context.Context
	end   context.CancelCauseFunc
	limit *time.Timer // ends a Receive that lasts too long; stopped at first

	sending sync.Mutex
	ended   bool // guarded by sending: nothing more is sent
}

var (
	errSendEnded = errors.New("the sending side of the stream was closed")
	errCut       = fmt.Errorf("the broker ended the stream: %w", io.ErrUnexpectedEOF)
)

// openStream connects to a server's URL and begins a call. ctx bounds that, not
// the call.
func openStream(ctx context.Context, server, method string) (*stream, error) {
	return openStreamAt(ctx, &doors{}, server, method)
}

// openStreamAt is openStream at whichever of the nodes can be reached.
func openStreamAt(ctx context.Context, at *doors, server, method string) (*stream, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("%q is no http:// address of a server; streams do without TLS here", server)
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "80")
	}
	s := &stream{}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	stop := context.AfterFunc(ctx, func() { s.end(ctx.Err()) })
	defer stop()
	// gRPC wraps why it could not connect in text, so it is kept aside.
	var dialing sync.Mutex
	var undialed error
	s.conn, err = grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := at.dial(ctx, "tcp", address)
			dialing.Lock()
			defer dialing.Unlock()
			undialed = err
			return c, err
		}),
		grpc.WithAuthority(u.Host),
		// A stream that breaks is opened again by whoever knows what was on it.
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
		grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(streamWindow),
		grpc.WithReadBufferSize(streamBuffer), grpc.WithWriteBufferSize(streamBuffer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(streamMessage), grpc.MaxCallSendMsgSize(streamMessage)),
	)
	if err != nil {
		return nil, err
	}
	s.call, err = s.conn.NewStream(s.ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, u.Path+method)
	if err != nil {
		dialing.Lock()
		defer dialing.Unlock()
		if undialed != nil {
			err = undialed
		}
		return nil, errors.Join(s.why(err), s.Close())
	}
	s.limit = time.AfterFunc(time.Hour, func() { s.end(errLate) })
	s.limit.Stop()
	return s, nil
}

var errLate = &Refusal{Text: fmt.Sprintf("the broker has not answered on a stream for %v", answerTime)}

// answerTime is how long answers may take.
const answerTime = 30 * time.Second

// why is the error of a call that was perhaps ended here.
func (s *stream) why(err error) error {
	if cause := context.Cause(s.ctx); cause != nil && !errors.Is(err, io.EOF) {
		return cause
	}
	return err
}

// Send sends a message. It is the caller's again afterwards.
func (s *stream) Send(m proto.Message) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.ended {
		return errSendEnded
	}
	err := s.call.SendMsg(m)
	if errors.Is(err, io.EOF) { // Receive says why
		err = errCut
	}
	return s.why(err)
}

// Receive reads the next message. io.EOF: the broker has ended the call, and all
// is well.
func (s *stream) Receive(m proto.Message) error {
	err := s.call.RecvMsg(m)
	if err != nil {
		return s.why(err)
	}
	return nil
}

// Patience ends the stream when a Receive lasts longer than this; 0: it may.
func (s *stream) Patience(t time.Duration) {
	if t == 0 {
		s.limit.Stop()
		return
	}
	s.limit.Reset(t)
}

// CloseSend says that nothing more will be sent.
func (s *stream) CloseSend() error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.ended {
		return nil
	}
	s.ended = true
	return s.why(s.call.CloseSend())
}

// Close ends the connection, wherever the call is.
func (s *stream) Close() error {
	s.end(net.ErrClosed)
	if s.limit != nil {
		s.limit.Stop()
	}
	if err := s.conn.Close(); status.Code(err) != codes.Canceled { // which says that it is closed
		return err
	}
	return nil
}
