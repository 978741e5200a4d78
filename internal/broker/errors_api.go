package broker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"

	"connectrpc.com/connect"
)

// wireError is a refusal as the RPC library sends it: the table's code, the
// words, and a Problem as detail.
func wireError(r *refusal) *connect.Error {
	var code connect.Code
	if err := code.UnmarshalText([]byte(rowOf(r.reason).code)); err != nil {
		code = connect.CodeInternal // the table is tested
	}
	// The words go into a header too, for gRPC, so they must be valid text.
	e := connect.NewError(code, errors.New(valid(r.text)))
	if d, err := connect.NewErrorDetail(r.problem()); err == nil {
		e.AddDetail(d)
	}
	return e
}

// edge is the interceptor around every method: it refuses requests that did not
// decode, turns whatever error a method gives into one of the table, and a
// panic into an internal error without detail; it counts and times the call.
type edge struct {
	log     *slog.Logger
	metrics *metrics
	ready   func() *refusal // nil once the node takes calls
	explain func(error) *refusal
	flight  *flight
}

var _ connect.Interceptor = (*edge)(nil)

// WrapUnary implements connect.Interceptor.
func (e *edge) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		done := e.metrics.call(req.Spec().Procedure)
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler { //nolint:errorlint // the value itself is the signal
					panic(p)
				}
				ref := newReference()
				e.log.Error("panic in a call", "ref", ref, "method", req.Spec().Procedure, "panic", p, "stack", string(debug.Stack()))
				res, err = nil, wireError(internal(ref))
			}
			done(codeName(err))
		}()
		if r := decodeFailure(req.Any()); r != nil {
			return nil, e.fail(req, r)
		}
		if r := e.ready(); r != nil {
			return nil, e.fail(req, r)
		}
		release, ok := e.holdInflated(req)
		if !ok {
			return nil, e.fail(req, busyReading())
		}
		defer release()
		res, err = next(ctx, req)
		if err != nil {
			return nil, e.fail(req, err)
		}
		return res, nil
	}
}

// fail translates an error and logs it when it is ours. What health checks say
// for themselves stays.
func (e *edge) fail(req connect.AnyRequest, err error) error {
	var own *connect.Error
	if errors.As(err, &own) {
		return own
	}
	r := e.explain(err)
	if r.reason == "INTERNAL" {
		ref := newReference()
		e.log.Error("a call failed", "ref", ref, "method", req.Spec().Procedure, "err", err)
		r = internal(ref)
	}
	e.metrics.rejected(r.reason)
	return wireError(r)
}

// WrapStreamingClient implements connect.Interceptor; the broker is no client.
func (e *edge) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor. Health and reflection
// are the only streams so far and have errors of their own.
func (e *edge) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		done := e.metrics.call(conn.Spec().Procedure)
		defer func() {
			if p := recover(); p != nil {
				ref := newReference()
				e.log.Error("panic in a stream", "ref", ref, "method", conn.Spec().Procedure, "panic", p, "stack", string(debug.Stack()))
				err = wireError(internal(ref))
			}
			done(codeName(err))
		}()
		return next(ctx, conn)
	}
}

// newReference names one failure in the answer and in the log.
func newReference() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// codeName is the code of an answer, for a label.
func codeName(err error) string {
	if err == nil {
		return "ok"
	}
	return connect.CodeOf(err).String()
}

// handlerOptions are the same for every service. Answers of the data plane are
// never compressed on the way: that costs more than loopback saves, and bodies
// that shrink were better compressed by their publisher.
func handlerOptions(e *edge, dataPlane bool) []connect.HandlerOption {
	minBytes := 32 << 10
	if dataPlane {
		minBytes = 1 << 30
	}
	return []connect.HandlerOption{
		connect.WithInterceptors(e),
		connect.WithCodec(protoCodec{}),
		connect.WithCodec(jsonCodec{name: "json"}),
		connect.WithCodec(jsonCodec{name: "json; charset=utf-8"}),
		connect.WithCompressMinBytes(minBytes),
		connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
			limit := maxBody(spec.Procedure)
			return []connect.HandlerOption{connect.WithReadMaxBytes(int(limit)), inflating(e, limit)}
		}),
	}
}
