package broker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// wireError is a refusal as the RPC library sends it: the table's code, the
// words, and a Problem as detail.
func wireError(r *refusal, by *request) *connect.Error {
	var code connect.Code
	if err := code.UnmarshalText([]byte(rowOf(r.reason).code)); err != nil {
		code = connect.CodeInternal // the table is tested
	}
	// The words go into a header too, for gRPC, so they must be valid text.
	e := connect.NewError(code, errors.New(valid(r.text)))
	if d, err := connect.NewErrorDetail(r.problem(by)); err == nil {
		e.AddDetail(d)
	}
	if r.route != nil {
		if d, err := connect.NewErrorDetail(r.route); err == nil {
			e.AddDetail(d)
		}
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
	memory  *pool
	// newer, if set, sees to it that the map is as new as the leader's, and tells
	// whether it is newer now than it was at this revision.
	revision func() uint64
	newer    func(ctx context.Context, seen uint64) bool
}

// missing tells an error that a map which is behind can be the reason of. Nothing
// was done then.
func missing(err error) bool {
	switch reasonOf(err) {
	case "UNKNOWN_TOPIC", "UNKNOWN_GROUP", "IN_PROGRESS":
		return true
	}
	return false
}

var _ connect.Interceptor = (*edge)(nil)

// WrapUnary implements connect.Interceptor.
func (e *edge) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		done := e.metrics.call(req.Spec().Procedure)
		began := time.Now()
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler { //nolint:errorlint // the value itself is the signal
					panic(p)
				}
				logPanic(ctx, e.log, "panic in a call", req.Spec().Procedure, p)
				res, err = nil, wireError(internal(requestOf(ctx)), requestOf(ctx))
			}
			done(codeName(err))
		}()
		if r := decodeFailure(req.Any()); r != nil {
			return nil, e.fail(ctx, req.Spec(), r)
		}
		if r := e.ready(); r != nil {
			return nil, e.fail(ctx, req.Spec(), r)
		}
		release, ok := e.holdInflated(req)
		if !ok {
			return nil, e.fail(ctx, req.Spec(), busyReading())
		}
		defer release()
		var seen uint64
		if e.newer != nil {
			seen = e.revision()
		}
		res, err = next(ctx, req)
		if err != nil && e.newer != nil && missing(err) && e.newer(ctx, seen) {
			res, err = next(ctx, req)
		}
		if err != nil {
			return nil, e.fail(ctx, req.Spec(), err)
		}
		logAnswer(ctx, e.log, req.Spec().Procedure, res.Any(), time.Since(began))
		return res, nil
	}
}

// fail translates an error and logs it: when it is ours, as such. What health checks
// say for themselves stays.
func (e *edge) fail(ctx context.Context, spec connect.Spec, err error) error {
	var own *connect.Error
	if errors.As(err, &own) {
		if e.log.Enabled(ctx, slog.LevelDebug) {
			e.log.DebugContext(ctx, "a call was refused", "method", spec.Procedure, "code", own.Code().String(), "reason", reasonIn(own))
		}
		return own
	}
	r := e.explain(err)
	if r.reason == "INTERNAL" {
		e.log.ErrorContext(ctx, "a call failed", "method", spec.Procedure, "code", rowOf(r.reason).code, "reason", r.reason, "err", err)
		r = internal(requestOf(ctx))
	} else {
		logRefusal(ctx, e.log, spec.Procedure, r.reason)
	}
	e.metrics.rejected(r.reason)
	return wireError(r, requestOf(ctx))
}

// reasonIn is the reason that an error of the RPC library has with it; empty: none.
func reasonIn(e *connect.Error) string {
	for _, d := range e.Details() {
		v, err := d.Value()
		if p, ok := v.(*strandmqv1.Problem); err == nil && ok {
			return p.GetReason()
		}
	}
	return ""
}

// WrapStreamingClient implements connect.Interceptor; the broker is no client.
func (e *edge) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor. The streams of health
// and reflection have errors of their own, which stay.
func (e *edge) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		done := e.metrics.call(conn.Spec().Procedure)
		began := time.Now()
		defer func() {
			if p := recover(); p != nil {
				logPanic(ctx, e.log, "panic in a stream", conn.Spec().Procedure, p)
				err = wireError(internal(requestOf(ctx)), requestOf(ctx))
			}
			done(codeName(err))
		}()
		if !streams[conn.Spec().Procedure] {
			return next(ctx, conn)
		}
		if r := e.ready(); r != nil {
			return e.fail(ctx, conn.Spec(), r)
		}
		f := flowOf(ctx)
		if f.mem, err = e.memory.open(); err != nil {
			return e.fail(ctx, conn.Spec(), err)
		}
		defer f.mem.close()
		err = next(ctx, &streamConn{StreamingHandlerConn: conn, flow: f, zipped: zips(conn.RequestHeader())})
		if err == nil {
			if e.log.Enabled(ctx, slog.LevelDebug) {
				e.log.DebugContext(ctx, "a stream ended", "method", conn.Spec().Procedure, "code", "ok", "took", time.Since(began))
			}
			return nil
		}
		if own := (*connect.Error)(nil); errors.As(err, &own) && len(own.Details()) == 0 {
			err = frameError(own, f) // the library's, without a reason
		}
		return e.fail(ctx, conn.Spec(), err)
	}
}

// streamConn refuses frames that did not decode, in words.
type streamConn struct {
	connect.StreamingHandlerConn
	flow   *flow
	zipped bool // the caller compresses what it sends
}

// Receive implements connect.StreamingHandlerConn.
func (c *streamConn) Receive(m any) error {
	if err := c.StreamingHandlerConn.Receive(m); err != nil {
		return frameError(err, c.flow)
	}
	c.flow.arrived()
	if r := decodeFailure(m); r != nil {
		return r
	}
	if msg, ok := m.(proto.Message); ok && c.zipped {
		return c.flow.inflated(int64(proto.Size(msg)))
	}
	return nil
}

// frameError is why a frame could not be read. The end of a stream stays what
// it is.
func frameError(err error, f *flow) error {
	if errors.Is(err, io.EOF) {
		return err
	}
	if own := (*connect.Error)(nil); errors.As(err, &own) && len(own.Details()) > 0 {
		return own // ours, from reading or inflating
	}
	if r := f.refused(); r != nil {
		return r
	}
	switch connect.CodeOf(err) {
	case connect.CodeCanceled:
		return context.Canceled
	case connect.CodeDeadlineExceeded:
		return context.DeadlineExceeded
	case connect.CodeResourceExhausted:
		return tooLarge(f.limit)
	case connect.CodeInvalidArgument, connect.CodeInternal:
		return refuse("BAD_REQUEST", "", "a frame of the stream cannot be read: %s", plainText(err))
	case connect.CodeUnimplemented:
		return refuse("BAD_REQUEST", "", "the stream takes one request, no less and no more")
	}
	return context.Canceled // the connection is gone
}

// codeName is the code of an answer, for a label.
func codeName(err error) string {
	if err == nil {
		return "ok"
	}
	return connect.CodeOf(err).String()
}

// From how many bytes on answers are compressed, for callers that take it.
// Every Connect client takes it without being told to, and on loopback it costs
// more than it saves. So answers of the data plane are compressed only for those
// who compress what they send, and so mean it; bodies that shrink are better
// compressed once, by their publisher.
const (
	compressNever = 1 << 30
	compressLarge = 32 << 10
	compressSmall = 1 << 10
)

// zips tells a caller that compresses what it sends.
func zips(h http.Header) bool {
	for _, header := range []string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"} {
		if v := h.Get(header); v != "" && v != "identity" {
			return true
		}
	}
	return false
}

// handlerOptions are the same for every service, but for the size from which
// answers are compressed.
func handlerOptions(e *edge, compressFrom int) []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithInterceptors(e),
		connect.WithCodec(protoCodec{}),
		connect.WithCodec(jsonCodec{name: "json"}),
		connect.WithCodec(jsonCodec{name: "json; charset=utf-8"}),
		connect.WithCompressMinBytes(compressFrom),
		connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
			limit := maxBody(spec.Procedure)
			return []connect.HandlerOption{connect.WithReadMaxBytes(int(limit)), inflating(e, limit)}
		}),
	}
}
