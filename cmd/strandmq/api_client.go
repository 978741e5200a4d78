package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/internal/doctor"
	"github.com/strandmq/strandmq/internal/retry"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// clients are the API of one broker.
type clients struct {
	way     *servers
	topics  strandmqv1connect.TopicServiceClient
	groups  strandmqv1connect.GroupServiceClient
	dead    strandmqv1connect.DeadLetterServiceClient
	trace   strandmqv1connect.TraceServiceClient
	node    strandmqv1connect.NodeServiceClient
	cluster strandmqv1connect.ClusterServiceClient
	publish strandmqv1connect.PublishServiceClient
	consume strandmqv1connect.ConsumeServiceClient
	read    strandmqv1connect.ReadServiceClient
}

// dial makes the clients of the broker at an address.
func dial(server string) *clients { return dialAny(nil, server) }

// dialAny makes the clients of a broker at any of some addresses. Nothing is sent until
// the first call.
func dialAny(told func(doctor.Unreached), names ...string) *clients {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	way := newServers(transport, told, names...)
	hc, server := &http.Client{Transport: way}, way.base.String()
	opts := []connect.ClientOption{
		// Between programs of one machine, gzip costs more than it saves.
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
				res, err := next(ctx, req)
				switch {
				case err == nil:
					return res, nil
				case errors.Is(ctx.Err(), context.Canceled):
					return nil, ctx.Err() // by our own side
				}
				return nil, explain(err, server)
			}
		})),
	}
	return &clients{
		way:     way,
		topics:  strandmqv1connect.NewTopicServiceClient(hc, server, opts...),
		groups:  strandmqv1connect.NewGroupServiceClient(hc, server, opts...),
		dead:    strandmqv1connect.NewDeadLetterServiceClient(hc, server, opts...),
		trace:   strandmqv1connect.NewTraceServiceClient(hc, server, opts...),
		node:    strandmqv1connect.NewNodeServiceClient(hc, server, opts...),
		cluster: strandmqv1connect.NewClusterServiceClient(hc, server, opts...),
		publish: strandmqv1connect.NewPublishServiceClient(hc, server, opts...),
		consume: strandmqv1connect.NewConsumeServiceClient(hc, server, opts...),
		read:    strandmqv1connect.NewReadServiceClient(hc, server, opts...),
	}
}

// dial makes the clients of whoever answers at --server, and tells who does not.
func (a *app) dial() *clients {
	return dialAny(func(u doctor.Unreached) { a.talk("not asked: %s: %s", u.What, u.Why) }, a.servers...)
}

// server is the address of whoever answers at --server, for what dials by itself.
func (a *app) server(ctx context.Context) (string, error) {
	to, err := a.dial().way.choose(ctx)
	if err != nil {
		return "", err
	}
	return to.String(), nil
}

// others are the addresses of --server but the one that is taken.
func (a *app) others(taken string) (out []string) {
	for _, name := range a.servers {
		if !strings.Contains(name, "://") {
			name = "http://" + name
		}
		if name != taken {
			out = append(out, name)
		}
	}
	return out
}

// apiError is a refusal by a broker, or by the way to it.
type apiError struct {
	reason     string        // a stable name of docs/errors.md; empty: no broker said it
	text       string        // what went wrong and what to do
	requestID  string        // of the call, by which the broker's logs tell of it; empty: no broker heard it
	retryAfter time.Duration // for what passes; 0: it does not, or nobody said when
	passing    bool          // trying again may help
	elsewhere  bool          // it broke on its way, and there are other addresses
	err        error
}

func (e *apiError) Error() string { return e.text }
func (e *apiError) Unwrap() error { return e.err }

// Passes implements retry.Passing.
func (e *apiError) Passes() (time.Duration, bool) { return e.retryAfter, e.passing }

// explain turns the error of a call that nobody here gave up into words.
func explain(err error, server string) error {
	// The error comes back through the interceptor's caller once more.
	var known *apiError
	if errors.As(err, &known) {
		return known
	}
	e := &apiError{text: err.Error(), err: err, passing: retry.Broke(err)}
	var broken *brokenWay
	if errors.As(err, &broken) {
		server, e.elsewhere = broken.server, broken.elsewhere
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return e
	}
	e.text = ce.Message()
	e.requestID = ce.Meta().Get("X-Request-Id")
	code := ce.Code()
	switch code {
	case connect.CodeUnavailable, connect.CodeAborted,
		connect.CodeDeadlineExceeded,
		// The library's word for a connection that the other side reset.
		connect.CodeCanceled:
		e.passing = true
	}
	if p := problem(ce); p != nil {
		e.reason = p.GetReason()
		if p.GetMessage() != "" {
			e.text = p.GetMessage()
		}
		e.retryAfter = time.Duration(p.GetRetryAfterMs()) * time.Millisecond
		e.passing = e.passing || e.retryAfter > 0
	}
	if e.reason == "" {
		e.text = unanswered(err, code, server, e.text)
	}
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

// unanswered words an error that no broker sent.
func unanswered(err error, code connect.Code, server, text string) string {
	var op *net.OpError
	var bad *url.Error
	var none noneAnswers
	switch wrong := wrongDoor(err); {
	case errors.As(err, &none):
		return none.Error()
	case wrong != "":
		return fmt.Sprintf("no broker answers at %s: %s", server, wrong)
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Sprintf("no broker answers at %s (%v): start one with 'strandmq serve', or name another with --server", server, op.Err)
	case errors.Is(err, context.DeadlineExceeded) || code == connect.CodeDeadlineExceeded:
		return fmt.Sprintf("the broker at %s did not answer in time: look at its log, then try again", server)
	case errors.As(err, &bad):
		return fmt.Sprintf("the way to the broker at %s broke: %v", server, bad.Err)
	case code == connect.CodeUnimplemented || code == connect.CodeUnknown || otherContent(text):
		return fmt.Sprintf("what answers at %s is no StrandMQ broker of this version: %s", server, text)
	}
	return text
}

// otherContent tells the library's words for an answer that is not of the kind that was
// asked for: another service's, in JSON or as a page.
func otherContent(text string) bool { return strings.HasPrefix(text, "invalid content-type") }

// wrongDoor is what is at an address where something listens and the protocol of clients
// is not spoken, and what to do; empty: that is not how err came.
func wrongDoor(err error) string {
	var header tls.RecordHeaderError
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &header) || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "what is there speaks no TLS; a broker itself does not, so give the address with http://"
	case errors.As(err, &untrusted):
		return fmt.Sprintf("the certificate there is not one that this machine trusts (%v); a broker speaks TLS to nodes alone: give the address of its --listen, with http://, or that of a proxy whose certificate is trusted", untrusted.Err)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || strings.Contains(err.Error(), "malformed HTTP response"):
		return "what is there takes connections and ends them without an answer; it is stopping, or that is a port for nodes (--peer-listen), and --listen has the one for clients"
	}
	return ""
}

// badInput tells refusals of what was typed from refusals of what was asked.
func badInput(err error) bool {
	var ce *connect.Error
	var e *apiError
	return errors.As(err, &e) && e.reason != "" && errors.As(err, &ce) && ce.Code() == connect.CodeInvalidArgument
}

// callTime bounds the calls that do not wait for anything.
const callTime = 30 * time.Second

// startTime is how long a command waits for a broker that is there and says that
// it will answer soon: it starts, or makes what was asked for.
const startTime = 10 * time.Second

// looked is how long a broker that finds no leader at once takes at least before it says
// so: it has looked for one for as long as it may come soon.
const looked = time.Second

// ask makes one such call. What the broker refuses as bad input is wrong usage.
func ask[Req, Res any](ctx context.Context, call func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	return retry.Do(ctx, retry.Config{Limit: startTime}, func() (*Res, error) {
		began := time.Now()
		res, err := once(ctx, call, req)
		var e *apiError
		if errors.As(err, &e) && (e.retryAfter == 0 || e.reason == "NO_QUORUM" && time.Since(began) > looked) {
			return nil, &final{err}
		}
		return res, err
	})
}

// patiently makes one such call, and waits for a broker that is away too.
func patiently[Req, Res any](ctx context.Context, limit time.Duration, waiting func(error, time.Duration), call func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	return retry.Do(ctx, retry.Config{Limit: limit, Waiting: waiting}, func() (*Res, error) { return once(ctx, call, req) })
}

func once[Req, Res any](ctx context.Context, call func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	res, err := call(ctx, req)
	if badInput(err) {
		return nil, &usageError{text: err.Error(), err: err}
	}
	return res, err
}

// final is an error that is not waited for, whatever it says of itself.
type final struct{ err error }

func (f *final) Error() string                 { return f.err.Error() }
func (f *final) Unwrap() error                 { return f.err }
func (f *final) Passes() (time.Duration, bool) { return 0, false }

// isReason tells whether a broker refused for a given reason.
func isReason(err error, reason string) bool {
	var e *apiError
	return errors.As(err, &e) && e.reason == reason
}

// deadlinePassed tells whether a call had no answer in time.
func deadlinePassed(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && ce.Code() == connect.CodeDeadlineExceeded
}

// notThere tells whether a broker has no such call: it is of an earlier version.
func notThere(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && ce.Code() == connect.CodeUnimplemented
}
