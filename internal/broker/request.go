package broker

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"log/slog"
	"net/http"
	"strings"

	"github.com/strandmq/strandmq/internal/httpapi"
)

// A request is what a call is found by, from its caller over every node that had a
// part in it to the answer, the error and the lines of the log:
//
//	caller ──X-Request-Id, traceparent──► guard ──context──► method, log
//	                                                └──the same headers──► hopEdge at another node ──context──► log
//	caller ◄──X-Request-Id, Problem.request_id── guard, edge
//
// It is made once, where a call comes in, and not changed.
type request struct {
	id     string // never empty
	given  bool   // by the caller
	parent string // the caller's traceparent; empty: there is none that is valid
}

// The headers that a request comes with, between nodes too.
const (
	requestHeader = httpapi.RequestHeader
	parentHeader  = "Traceparent"
	stateHeader   = "Tracestate" // pages send it along; it is not looked at
)

// maxRequestHeader is the most bytes of a request id that a caller gives.
const maxRequestHeader = 128

// requestFrom reads what the caller calls its call. An id that is not fit to be
// written into logs and headers is replaced, not refused: a call does not fail for
// its name.
func requestFrom(h http.Header) *request {
	q := &request{id: h.Get(requestHeader), given: true}
	if !fitRequest(q.id) {
		q.id, q.given = newRequestID(), false
	}
	// Of two there is no telling which is meant.
	if in := h[parentHeader]; len(in) == 1 && validParent(in[0]) {
		q.parent = in[0]
	}
	return q
}

// fitRequest tells whether a request id can be taken as it is: printable ASCII
// without spaces.
func fitRequest(id string) bool {
	return id != "" && len(id) <= maxRequestHeader && printable(id)
}

// printable tells whether s is of printable ASCII without spaces.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// newRequestID makes the id of a call that came without one: 80 bits, so that even
// among 10 billion calls two that are the same are not to be expected.
func newRequestID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails
	var text [16]byte
	requestText.Encode(text[:], b[:])
	return string(text[:])
}

//nolint:gochecknoglobals // a constant that Go cannot spell as one
var requestText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567")

// Where the parts of a traceparent end: version-trace id-parent id-flags.
const (
	versionEnd = 2
	traceEnd   = versionEnd + 1 + 32
	spanEnd    = traceEnd + 1 + 16
	flagsEnd   = spanEnd + 1 + 2
)

// maxParent bounds what a version of the standard that is not written yet may add.
const maxParent = 256

// validParent tells whether a traceparent is one by W3C Trace Context, of version 00
// or of a later one, which may say more behind what this one says.
func validParent(s string) bool {
	if len(s) < flagsEnd || len(s) > maxParent || s[versionEnd] != '-' || s[traceEnd] != '-' || s[spanEnd] != '-' {
		return false
	}
	version, trace, span := s[:versionEnd], s[versionEnd+1:traceEnd], s[traceEnd+1:spanEnd]
	switch {
	case !lowerHex(version) || !lowerHex(trace) || !lowerHex(span) || !lowerHex(s[spanEnd+1:flagsEnd]):
		return false
	case version == "ff" || strings.Trim(trace, "0") == "" || strings.Trim(span, "0") == "":
		return false
	case version == "00":
		return len(s) == flagsEnd
	}
	return len(s) == flagsEnd || s[flagsEnd] == '-' && printable(s[flagsEnd:])
}

func lowerHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// name is the request's id; empty where nobody asked.
func (q *request) name() string {
	if q == nil {
		return ""
	}
	return q.id
}

// trace is the id of the trace that the call is a part of; empty: of none.
func (q *request) trace() string {
	if q == nil || q.parent == "" {
		return ""
	}
	return q.parent[versionEnd+1 : traceEnd]
}

// to puts the request on a call to another node.
func (q *request) to(h http.Header) {
	if q == nil {
		return
	}
	h[requestHeader] = []string{q.id}
	if q.parent != "" {
		h[parentHeader] = []string{q.parent}
	}
}

type requestKey struct{}

// withRequest is a context of what is done for a request.
func withRequest(ctx context.Context, q *request) context.Context {
	if q == nil {
		return ctx
	}
	return context.WithValue(ctx, requestKey{}, q)
}

// requestOf is the request that something is done for; nil: the node does it by
// itself.
func requestOf(ctx context.Context) *request {
	q, _ := ctx.Value(requestKey{}).(*request)
	return q
}

// identified gives a call that comes in its request, and the answer the id.
func identified(w http.ResponseWriter, r *http.Request) *http.Request {
	q := requestFrom(r.Header)
	w.Header()[requestHeader] = []string{q.id}
	return r.WithContext(withRequest(r.Context(), q))
}

// requestLog has each line of the log that is written for a request say for which.
type requestLog struct{ slog.Handler }

// Handle implements slog.Handler.
func (l requestLog) Handle(ctx context.Context, line slog.Record) error {
	if q := requestOf(ctx); q != nil {
		line = line.Clone()
		line.AddAttrs(slog.String("request_id", q.id))
		if t := q.trace(); t != "" {
			line.AddAttrs(slog.String("trace_id", t))
		}
	}
	return l.Handler.Handle(ctx, line)
}

// WithAttrs implements slog.Handler.
func (l requestLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return requestLog{l.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (l requestLog) WithGroup(name string) slog.Handler { return requestLog{l.Handler.WithGroup(name)} }
