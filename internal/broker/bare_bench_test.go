package broker

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// bareAPI is the publish service without a broker behind it: it decodes what comes and
// answers as if it were stored. What it carries is what the calls alone cost.
type bareAPI struct {
	strandmqv1connect.UnimplementedPublishServiceHandler
}

func (bareAPI) Publish(_ context.Context, req *strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
	res := &strandmqv1.PublishResponse{}
	for i := range req.GetMessages() {
		res.Results = append(res.Results, &strandmqv1.PublishResult{Receipt: &strandmqv1.Receipt{Partition: 1, Offset: uint64(i)}})
	}
	return res, nil
}

func (bareAPI) PublishStream(_ context.Context, s *connect.BidiStream[strandmqv1.PublishStreamRequest, strandmqv1.PublishStreamResponse]) error {
	for n := uint64(1); ; {
		req, err := s.Receive()
		if err != nil {
			return nil //nolint:nilerr // the client has what it wanted
		}
		res := &strandmqv1.PublishStreamResponse{}
		for range req.GetBatches() {
			res.Results = append(res.Results, &strandmqv1.PublishBatchResult{Batch: n, Run: &strandmqv1.ReceiptRun{FirstOffset: n, Count: 1}})
			n++
		}
		if err := s.Send(res); err != nil {
			return err
		}
	}
}

// bareCalls is how many calls a second bareAPI answers to so many callers: for each, open
// gives what makes one. What that opens ends with its context.
func bareCalls(b *testing.B, callers int, over func(url string) api, open func(context.Context, api) (call func() error)) float64 {
	b.Helper()
	c, cancel := context.WithCancel(b.Context())
	mux := http.NewServeMux()
	mux.Handle(strandmqv1connect.NewPublishServiceHandler(bareAPI{}))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = s.Serve(ln) }() // ends with Close
	defer func() { _ = s.Close() }()
	defer cancel()
	a := over("http://" + ln.Addr().String())
	var calls atomic.Int64
	var running sync.WaitGroup
	began := time.Now()
	for range callers {
		call := open(c, a)
		running.Go(func() {
			for time.Since(began) < time.Second {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	running.Wait()
	return float64(calls.Load()) / time.Since(began).Seconds()
}
