package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// consumeStream is the client's end of a Consume stream.
type consumeStream interface {
	Send(*strandmqv1.ConsumeRequest) error
	Receive() (*strandmqv1.ConsumeResponse, error)
	CloseRequest() error
	CloseResponse() error
}

// session is one Consume stream and its two goroutines: one reads frames, the
// other writes them. The goroutine of Consumer.Run gives the writer a frame only
// when it has sent the one before, so that settlements gather meanwhile.
type session struct {
	node   *node
	frames chan *strandmqv1.ConsumeResponse // what came
	out    chan *strandmqv1.ConsumeRequest  // one place
	sent   chan struct{}                    // one place: the writer is free
	over   chan error                       // one place: why the stream ended
	cut    context.CancelCauseFunc

	// Those of Run's goroutine.
	open  bool  // the first frame came
	free  bool  // the writer is
	every int64 // how often the member gives a sign of life, in milliseconds; 0: not
	spoke int64 // when it sent something, in milliseconds since Run began
}

// began takes the first frame. Signs come so often that one or two may be late.
func (s *session) began(f *strandmqv1.ConsumeResponse) {
	s.open = true
	if timeout := f.GetSessionTimeoutMs(); timeout > 0 {
		s.every = max(1, timeout/4)
		s.spoke = -timeout // the first one at once: what comes has to go on
	}
}

var errSilent = errors.New("the broker has sent nothing for a whole session timeout")

// openSession begins a stream. It ends with an error in over, after cut at the
// latest.
func openSession(ctx context.Context, n *node, first *strandmqv1.ConsumeRequest) *session {
	s := &session{
		node: n, frames: make(chan *strandmqv1.ConsumeResponse), out: make(chan *strandmqv1.ConsumeRequest, 1),
		sent: make(chan struct{}, 1), over: make(chan error, 1),
	}
	ctx, s.cut = context.WithCancelCause(ctx)
	s.out <- first
	go func() { s.over <- s.serve(ctx) }()
	return s
}

func (s *session) serve(ctx context.Context) error {
	defer s.cut(nil)
	stream, err := s.node.consume.Consume(ctx)
	if err != nil {
		return err
	}
	var writer sync.WaitGroup
	writer.Go(func() { s.write(ctx, stream) })
	err = s.read(ctx, stream)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	s.cut(nil)
	_ = stream.CloseRequest()
	writer.Wait()
	_ = stream.CloseResponse()
	return err
}

// read passes frames on until the stream ends.
func (s *session) read(ctx context.Context, stream consumeStream) error {
	timeout := callTime
	silence := time.AfterFunc(timeout, func() { s.cut(&Error{Message: fmt.Sprintf("%v (%v)", errSilent, timeout), passes: true}) })
	defer silence.Stop()
	for {
		f, err := stream.Receive()
		if err != nil {
			return err
		}
		if d := time.Duration(f.GetSessionTimeoutMs()) * time.Millisecond; d > 0 {
			timeout = d
		}
		silence.Reset(timeout)
		select {
		case s.frames <- f:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// write sends frames until the stream ends. Of a failure the reader knows why.
func (s *session) write(ctx context.Context, stream consumeStream) {
	for {
		select {
		case f := <-s.out:
			if stream.Send(f) != nil {
				return
			}
			if f.GetLeave() {
				_ = stream.CloseRequest()
				return
			}
			s.sent <- struct{}{}
		case <-ctx.Done():
			return
		}
	}
}
