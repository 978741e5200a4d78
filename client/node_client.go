package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/internal/retry"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// node is the API of one node.
type node struct {
	url     string
	topics  strandmqv1connect.TopicServiceClient
	groups  strandmqv1connect.GroupServiceClient
	publish strandmqv1connect.PublishServiceClient
	consume strandmqv1connect.ConsumeServiceClient
	read    strandmqv1connect.ReadServiceClient
	info    strandmqv1connect.NodeServiceClient
}

// newTransport makes the connections of a client: HTTP/2 throughout, without TLS
// for http:// addresses. A peer that is silent is asked for a sign of life, so
// that a machine that vanished is noticed while nothing is sent.
func newTransport() *http.Transport {
	var p http.Protocols
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Protocols:   &p,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		HTTP2:       &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 10 * time.Second, MaxReadFrameSize: 256 << 10},
	}
}

// way is a connection of its own to one of the nodes. Publishers and consumers have
// one each: on a shared one, a publisher whom the broker holds back would hold back
// the settlements of others, since HTTP/2 bounds what is on its way per connection.
type way struct {
	transport *http.Transport
	nodes     []*node
	at        atomic.Uint32 // which of nodes is asked
}

func newWay(servers []string) *way {
	w := &way{transport: newTransport()}
	hc := &http.Client{Transport: w.transport}
	for _, s := range servers {
		w.nodes = append(w.nodes, newNode(hc, s))
	}
	return w
}

// node is the one to ask.
func (w *way) node() *node { return w.nodes[int(w.at.Load())%len(w.nodes)] }

// blame has another node asked when one failed in a way that passes: it may be
// this node's alone.
func (w *way) blame(n *node, err error) {
	at := w.at.Load()
	if Retryable(err) && w.nodes[int(at)%len(w.nodes)] == n {
		w.at.CompareAndSwap(at, at+1)
	}
}

// close ends the connections. Nothing is on its way any more.
func (w *way) close() { w.transport.CloseIdleConnections() }

// newNode makes the stubs for one address. Nothing is sent until the first call.
func newNode(hc connect.HTTPClient, server string) *node {
	opts := []connect.ClientOption{
		// Record batches are not compressed, and small calls gain nothing.
		connect.WithAcceptCompression("gzip", nil, nil),
	}
	return &node{
		url:     server,
		topics:  strandmqv1connect.NewTopicServiceClient(hc, server, opts...),
		groups:  strandmqv1connect.NewGroupServiceClient(hc, server, opts...),
		publish: strandmqv1connect.NewPublishServiceClient(hc, server, opts...),
		consume: strandmqv1connect.NewConsumeServiceClient(hc, server, opts...),
		read:    strandmqv1connect.NewReadServiceClient(hc, server, opts...),
		info:    strandmqv1connect.NewNodeServiceClient(hc, server, opts...),
	}
}

// explain turns an error of the library into an *Error. What no broker said
// passes: the way to it broke, and there may be another in a moment.
func explain(err error, server string) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := &Error{Message: err.Error(), err: err, passes: true}
	var ce *connect.Error
	code := connect.CodeUnavailable
	if errors.As(err, &ce) {
		code = ce.Code()
		e.Message = ce.Message()
		e.RequestID = ce.Meta().Get("X-Request-Id")
		if p := problem(ce); p != nil {
			told := refused(p, code == connect.CodeUnavailable || code == connect.CodeAborted)
			told.RequestID = cmp.Or(told.RequestID, e.RequestID)
			return told
		}
	}
	var op *net.OpError
	var bad *url.Error
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		e.Message = "no broker answers at " + server + ": " + op.Err.Error()
	case errors.Is(err, io.EOF) && ce == nil:
		e.Message = "the broker at " + server + " ended the stream"
	case code == connect.CodeDeadlineExceeded || errors.Is(err, context.DeadlineExceeded):
		e.Message = "the broker at " + server + " did not answer in time"
	case errors.As(err, &bad):
		e.Message = "the way to the broker at " + server + " broke: " + bad.Err.Error()
	case code == connect.CodeUnimplemented || code == connect.CodeUnknown && !retry.Broke(err) || strings.HasPrefix(e.Message, "invalid content-type"):
		e.Message = "what answers at " + server + " is no StrandMQ broker of this version: " + e.Message
		e.passes = code != connect.CodeUnimplemented
	default:
		e.Message = "the way to the broker at " + server + " broke: " + e.Message
	}
	return e
}

// refused is the error of a typed refusal.
func refused(p *strandmqv1.Problem, passes bool) *Error {
	e := &Error{
		Reason: Reason(p.GetReason()), Message: p.GetMessage(), Field: p.GetField(),
		RetryAfter: time.Duration(p.GetRetryAfterMs()) * time.Millisecond, RequestID: p.GetRequestId(),
	}
	e.passes = passes || e.RetryAfter > 0 || e.Reason == ErrOutcomeUnknown
	return e
}

// problem finds the typed refusal among an error's details.
func problem(ce *connect.Error) *strandmqv1.Problem {
	for _, d := range ce.Details() {
		if v, err := d.Value(); err == nil {
			if p, ok := v.(*strandmqv1.Problem); ok {
				return p
			}
		}
	}
	return nil
}
