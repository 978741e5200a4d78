package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// calls are the methods of the API.
type calls struct {
	publish strandmqv1connect.PublishServiceClient
	topics  strandmqv1connect.TopicServiceClient
	consume strandmqv1connect.ConsumeServiceClient
	groups  strandmqv1connect.GroupServiceClient
	read    strandmqv1connect.ReadServiceClient
}

func newCalls(cfg Config) calls {
	c := inProcess{cfg.Calls, cfg.Panicked}
	opts := []connect.ClientOption{connect.WithAcceptCompression("gzip", nil, nil)} // nothing goes over a wire
	return calls{
		publish: strandmqv1connect.NewPublishServiceClient(c, "http://broker", opts...),
		topics:  strandmqv1connect.NewTopicServiceClient(c, "http://broker", opts...),
		consume: strandmqv1connect.NewConsumeServiceClient(c, "http://broker", opts...),
		groups:  strandmqv1connect.NewGroupServiceClient(c, "http://broker", opts...),
		read:    strandmqv1connect.NewReadServiceClient(c, "http://broker", opts...),
	}
}

// inProcess carries calls to the handler that serves them, without a connection.
type inProcess struct {
	serve    http.Handler
	panicked func(ctx context.Context, path string, p any) (id string)
}

// Do implements connect.HTTPClient.
func (c inProcess) Do(req *http.Request) (res *http.Response, err error) {
	r := req.Clone(req.Context())
	r.Proto, r.ProtoMajor, r.ProtoMinor, r.RequestURI = "HTTP/1.1", 1, 1, req.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	defer func() { _ = r.Body.Close() }()
	defer func() {
		// What the edge does not turn into an answer ends the call, not the process.
		if p := recover(); p != nil {
			id := c.panicked(r.Context(), r.URL.Path, p)
			res, err = nil, refuse("INTERNAL", "", "the broker failed to handle this; its log has the details under request id %s", id)
		}
	}()
	w := &taken{header: http.Header{}, status: http.StatusOK}
	c.serve.ServeHTTP(w, r)
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: req,
	}, nil
}

// taken is an answer as it was written.
type taken struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (t *taken) Header() http.Header         { return t.header }
func (t *taken) WriteHeader(status int)      { t.status = status }
func (t *taken) Write(p []byte) (int, error) { return t.body.Write(p) }

// calledProblem is the problem that a call, or the reading of a request, ended with.
func calledProblem(err error) *problem {
	var own *connect.Error
	if errors.As(err, &own) {
		for _, d := range own.Details() {
			v, bad := d.Value()
			if p, ok := v.(*strandmqv1.Problem); bad == nil && ok {
				return problemFrom(p)
			}
		}
	}
	switch connect.CodeOf(err) {
	case connect.CodeCanceled:
		return &problem{reason: "CANCELED", detail: "the caller gave up", counted: true}
	case connect.CodeDeadlineExceeded:
		return &problem{reason: "DEADLINE", detail: "the time of the call ran out before the answer; what was asked may still happen", counted: true}
	default:
		return &problem{reason: "INTERNAL", detail: "the broker failed to handle this"}
	}
}

// problemFrom is a problem of the API. Fields have their names of this one.
func problemFrom(p *strandmqv1.Problem) *problem {
	field := p.GetField()
	switch field {
	case "max_messages":
		field = "max"
	case "wait_ms":
		field = "wait"
	case "create_group":
		field = "create"
	default:
		field = strings.TrimPrefix(field, "config.")
	}
	return &problem{
		reason: p.GetReason(), detail: p.GetMessage(), field: field,
		retryAfter: time.Duration(p.GetRetryAfterMs()) * time.Millisecond, counted: true,
	}
}
