package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A publishing is a client's end of a publish stream, over any library.
type publishing interface {
	Send(*strandmqv1.PublishStreamRequest) error
	Receive() (*strandmqv1.PublishStreamResponse, error)
	CloseRequest() error
}

// grpcPublishing is Google's own client.
type grpcPublishing struct{ grpc.ClientStream }

func (g grpcPublishing) Send(m *strandmqv1.PublishStreamRequest) error { return g.SendMsg(m) }
func (g grpcPublishing) CloseRequest() error                           { return g.CloseSend() }
func (g grpcPublishing) Receive() (*strandmqv1.PublishStreamResponse, error) {
	m := new(strandmqv1.PublishStreamResponse)
	return m, g.RecvMsg(m)
}

// publishings opens a stream with each client library and protocol.
func publishings(t *testing.T, b *Broker) map[string]func(context.Context) publishing {
	t.Helper()
	over := streamsOver(t, b, "PublishService/PublishStream",
		func(a api, c context.Context) publishing { return a.publishStream(t, c) },
		func(s grpc.ClientStream) publishing { return grpcPublishing{s} })
	web := apiOver(httpClient(t, true), b.URL(), connect.WithGRPCWeb())
	over["grpc-web"] = func(c context.Context) publishing { return web.publishStream(t, c) }
	return over
}

func (a api) publishStream(t testing.TB, c context.Context) publishing { //nolint:revive // as all helpers here
	t.Helper()
	s, err := a.publish.PublishStream(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sends(t testing.TB, s publishing, batches ...*strandmqv1.PublishBatch) {
	t.Helper()
	if err := s.Send(&strandmqv1.PublishStreamRequest{Batches: batches}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

// rest reads a stream to its end.
func rest(s publishing) (out map[uint64]*strandmqv1.PublishBatchResult, frames int, err error) {
	out = map[uint64]*strandmqv1.PublishBatchResult{}
	for {
		res, err := s.Receive()
		if errors.Is(err, io.EOF) {
			return out, frames, nil
		}
		if err != nil {
			return out, frames, err
		}
		frames++
		for _, r := range res.GetResults() {
			if out[r.GetBatch()] != nil {
				return out, frames, fmt.Errorf("batch %d was answered twice", r.GetBatch())
			}
			out[r.GetBatch()] = r
		}
	}
}
