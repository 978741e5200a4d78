package broker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/httpapi"
	"github.com/strandmq/strandmq/internal/plain"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// guard stands before everything that the port serves. Without access tokens
// these checks are what keeps a web page, opened in a browser on this machine,
// from using the broker:
//
//   - the host allow-list stops a name that was rebound to 127.0.0.1: such
//     requests are same-origin, so nothing else would see them;
//   - the cross-origin check stops other sites' requests that change something;
//   - the content types are such that a browser asks first (and is told no),
//     which leaves forms and beacons out;
//   - no GET changes anything, and one of the plain API, which could hold a wait or
//     a stream open, is not for other sites' pages.
//
// Origins that the configuration names are let through to publish and consume
// (see guests).
//
// It also bounds what one request, and all together, may make the node hold:
// bytes and time of a body, time to take an answer.
type guard struct {
	log     *slog.Logger
	next    http.Handler
	hosts   map[string]bool // lower case, without port
	origins *http.CrossOriginProtection
	guests  *guests // nil: no other origin may call

	bodyTime time.Duration // for a body to arrive, and for an answer to be taken
	flight   *flight
	rejected func(reason string)
}

// flight bounds the bytes of requests that are held at once.
type flight struct {
	held atomic.Int64
	max  int64
}

// take counts bytes in; false when they are too many. They are counted in any
// case, until they are given back.
func (f *flight) take(n int64) bool { return f.held.Add(n) <= f.max }

func (f *flight) full() bool { return f.held.Load() > f.max }

func (f *flight) give(n int64) { f.held.Add(-n) }

func busyReading() *refusal {
	return &refusal{reason: "BUSY", retryAfter: 100 * time.Millisecond, text: "too many requests are being read at once: wait and send it again"}
}

// streaming are paths whose calls live as long as the caller likes: their
// bodies have no time limit.
func streaming(path string) bool {
	return strings.HasPrefix(path, "/grpc.reflection.") || strings.HasPrefix(path, "/grpc.health.")
}

// maxBody is the most bytes that a request to path may carry, for a stream one
// frame of it. Publishing takes 4 MiB of messages, written as JSON with base64.
func maxBody(path string) int64 {
	switch {
	case strings.HasSuffix(path, "/Publish"), strings.HasSuffix(path, "/PublishStream"), strings.HasPrefix(path, httpapi.Prefix) && strings.HasSuffix(path, "/messages"):
		return 8 << 20
	case strings.HasSuffix(path, "/Settle"), strings.HasSuffix(path, "/Consume"):
		return 4 << 20
	default:
		return 1 << 20
	}
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = identified(w, r)
	defer g.recover(w, r)
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")

	if !g.hostAllowed(r.Host) {
		g.refuse(w, r, http.StatusForbidden, refuse("HOST_NOT_ALLOWED", "Host", "this broker does not answer to the host name %s: use localhost or 127.0.0.1, or start it with --allowed-host", plain.Quote(r.Host)))
		return
	}
	if p := path.Clean(r.URL.Path); strings.HasPrefix(p+"/", httpapi.Prefix) && p != strings.TrimSuffix(r.URL.Path, "/") {
		// The router would send to the clean path, with an answer that no program reads.
		g.refusePlainly(w, r, refuse("UNKNOWN_METHOD", "", "there is nothing at %s: the path has empty parts or dots; it would be %s without", plain.Quote(r.URL.Path), plain.Quote(p)))
		return
	}
	answered, welcome := g.guests.greet(w, r)
	if answered {
		return
	}
	if err := g.origins.Check(r); err != nil && !welcome {
		g.refuse(w, r, http.StatusForbidden, g.guests.refusal(r))
		return
	}
	plainly := strings.HasPrefix(r.URL.Path, httpapi.Prefix)
	if (plainly || strings.HasPrefix(r.URL.Path, profilePath)) && fetchedFromElsewhere(r) {
		g.refuse(w, r, http.StatusForbidden, g.guests.refusal(r))
		return
	}
	switch {
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		// Changes nothing: no method of the API takes GET, and no GET of the plain one
		// does more than look.
	case plainly && r.Method == http.MethodPost:
		if given := r.Header.Get("Content-Type"); !httpapi.ContentTypeAllowed(given) {
			g.refuse(w, r, http.StatusUnsupportedMediaType, refuse("BAD_CONTENT_TYPE", "Content-Type", "%s", httpapi.WhyContentType(given)))
			return
		}
	case plainly:
		// PUT and DELETE: a browser asks first, whatever the content type. Others the API
		// refuses, which knows what a path takes.
	case r.Method == http.MethodPost:
		if !contentTypeAllowed(r.Header.Get("Content-Type")) {
			h.Set("Accept-Post", acceptPost)
			g.refuse(w, r, http.StatusUnsupportedMediaType, badContentType(r.Header.Get("Content-Type")))
			return
		}
	default:
		h.Set("Allow", "POST, GET, HEAD")
		g.refuse(w, r, http.StatusMethodNotAllowed, refuse("BAD_METHOD", "", "%s is not used here: API calls are POST", plain.Quote(r.Method)))
		return
	}

	if streams[r.URL.Path] {
		f := newFlow(g, w, r, maxBody(r.URL.Path))
		defer f.end()
		r = r.WithContext(context.WithValue(r.Context(), flowKey{}, f))
		r.Body = f
		g.next.ServeHTTP(f, r)
		return
	}
	rc := http.NewResponseController(w)
	var sent *body
	// net/http clears both deadlines before a connection's next request.
	if r.Body != nil && r.Body != http.NoBody {
		limit := maxBody(r.URL.Path)
		if r.ContentLength > limit {
			h.Set("Connection", "close") // the rest of the body is not worth reading
			g.refuse(w, r, http.StatusRequestEntityTooLarge, tooLarge(limit))
			return
		}
		b := &body{guard: g, of: r, from: http.MaxBytesReader(w, r.Body, limit), limit: limit, want: r.ContentLength, chunked: len(r.TransferEncoding) > 0}
		defer b.release()
		if !streaming(r.URL.Path) {
			_ = rc.SetReadDeadline(time.Now().Add(g.bodyTime))
			b.arrived = func() { _ = rc.SetReadDeadline(time.Time{}) }
		}
		r.Body, sent = b, b
	}
	if !streaming(r.URL.Path) {
		w = &answer{ResponseWriter: w, rc: rc, time: g.bodyTime, to: sent}
	}
	g.next.ServeHTTP(w, r)
}

// fetchedFromElsewhere tells whether a page of another origin makes a GET: the
// cross-origin check passes all of them. A link that someone follows is none.
func fetchedFromElsewhere(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false // seen to by the cross-origin check; OPTIONS does nothing
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "":
	case "same-origin", "none":
		return false
	default:
		return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host != r.Host
}

// recover turns a panic into an answer without detail. The one panic that
// net/http uses itself goes on.
func (g *guard) recover(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // the value itself is the signal
		panic(p)
	}
	logPanic(r.Context(), g.log, "panic in a request", r.URL.Path, p)
	g.refuse(w, r, http.StatusInternalServerError, internal(requestOf(r.Context())))
}

// panicked logs a panic of a call that a request of the plain API made.
func (b *Broker) panicked(ctx context.Context, path string, p any) (id string) {
	logPanic(ctx, b.log, "panic in a request", path, p)
	return requestOf(ctx).name()
}

func logPanic(ctx context.Context, log *slog.Logger, text, method string, p any) {
	log.ErrorContext(ctx, text, "method", method, "panic", p, "stack", string(debug.Stack()))
}

// refuse answers in the form of the API that was asked for.
func (g *guard) refuse(w http.ResponseWriter, r *http.Request, status int, why *refusal) {
	if strings.HasPrefix(r.URL.Path, httpapi.Prefix) {
		g.refusePlainly(w, r, why)
		return
	}
	g.reject(r.Context(), r.URL.Path, why.reason)
	writeRefusal(w, status, why, requestOf(r.Context()))
}

func (g *guard) refusePlainly(w http.ResponseWriter, r *http.Request, why *refusal) {
	g.reject(r.Context(), r.URL.Path, why.reason)
	httpapi.Refuse(w, rowFor, why.reason, valid(why.field), valid(why.text), why.retryAfter)
}

// reject counts and logs a refusal that no method is asked for.
func (g *guard) reject(ctx context.Context, path, reason string) {
	g.rejected(reason)
	logRefusal(ctx, g.log, path, reason)
}

// logRefusal writes the one line that a call leaves which was refused. What is no
// fault of the broker's is of interest to who looks for it.
func logRefusal(ctx context.Context, log *slog.Logger, method, reason string) {
	if log.Enabled(ctx, slog.LevelDebug) {
		log.DebugContext(ctx, "a call was refused", "method", method, "code", rowOf(reason).code, "reason", reason)
	}
}

// refused counts and logs a refusal of a path, or a method, that no interceptor saw.
func (b *Broker) refused(ctx context.Context, method, reason string) {
	b.metrics.rejected(reason)
	logRefusal(ctx, b.log, method, reason)
}

// hostAllowed compares the Host header, without its port, to the allow-list.
// An address of loopback written as numbers cannot have been rebound.
func (g *guard) hostAllowed(host string) bool {
	name := hostName(host)
	if ip := net.ParseIP(name); ip != nil && ip.IsLoopback() {
		return true
	}
	return g.hosts[name]
}

// hostName takes the port and the brackets off and lowers the case.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if inner, ok := strings.CutPrefix(host, "["); ok && strings.HasSuffix(inner, "]") {
		host = strings.TrimSuffix(inner, "]")
	}
	return strings.ToLower(host)
}

// contentTypeAllowed holds the content types of Connect, gRPC and gRPC-Web. A
// browser asks the server before it sends any of them across origins.
func contentTypeAllowed(value string) bool {
	t, _, err := mime.ParseMediaType(value)
	if err != nil {
		return false
	}
	switch t {
	case "application/json", "application/proto",
		"application/connect+json", "application/connect+proto",
		"application/grpc", "application/grpc+proto", "application/grpc+json",
		"application/grpc-web", "application/grpc-web+proto", "application/grpc-web+json":
		return true
	}
	return false
}

// A body is a request's body with its bounds: its own size, and its part of the
// bytes that all requests may hold at once.
type body struct {
	guard   *guard
	of      *http.Request
	from    io.ReadCloser
	limit   int64
	want    int64 // Content-Length, -1 when unknown
	read    int64
	held    int64 // counted into guard.flight
	chunked bool  // it comes in chunks, of HTTP/1.1
	over    bool  // it was cut at its limit
	late    bool  // it did not arrive in its time
	arrived func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	b.read += int64(n)
	if n > 0 {
		b.held += int64(n)
		if !b.guard.flight.take(int64(n)) {
			return 0, b.refuse(busyReading())
		}
	}
	if (errors.Is(err, io.EOF) || b.read == b.want) && b.arrived != nil {
		b.arrived() // waiting for deliveries is not slowness
		b.arrived = nil
	}
	var over *http.MaxBytesError
	if errors.As(err, &over) {
		b.over = true
		return n, b.refuse(tooLarge(b.limit))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return n, b.broke(err)
	}
	return n, err
}

// refuse is a refusal on its way through the RPC library, which answers with it by
// itself.
func (b *body) refuse(r *refusal) error { return wireError(r, requestOf(b.of.Context())) }

// broke words why a body did not come whole. What the network says has addresses
// in it, which are nobody's business.
func (b *body) broke(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.late = true
		b.guard.reject(b.of.Context(), b.of.URL.Path, "REQUEST_SLOW")
		return b.refuse(&refusal{reason: "REQUEST_SLOW", text: fmt.Sprintf("the request's body was not here within %v: send it in one go", b.guard.bodyTime)})
	case errors.Is(err, io.ErrUnexpectedEOF):
		return b.refuse(refuse("BAD_REQUEST", "", "the request ended before its body was whole: send as many bytes as Content-Length says"))
	}
	if b.chunked && !errors.As(err, new(net.Error)) { // not of the network, so of what came
		return b.refuse(refuse("BAD_REQUEST", "", "the request's body is not in chunks as HTTP has them: send it with Content-Length, or with a library that writes chunks"))
	}
	return b.refuse(&refusal{reason: "CANCELED", text: "the connection broke while the request was read"})
}

func (b *body) Close() error { return b.from.Close() }

func (b *body) release() { b.guard.flight.give(b.held) }

// An answer is cut when the caller does not take it in time; what is buffered
// for a slow reader is at most one answer.
type answer struct {
	http.ResponseWriter
	rc      *http.ResponseController
	time    time.Duration
	to      *body // nil: the request has none
	started bool
}

func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) Flush() { _ = a.rc.Flush() }

// WriteHeader gives a body that proved too large on the way the same status as
// one that said so beforehand: the RPC library's would have clients try again.
// After a body that did not come in time the connection ends: what else of it
// comes would be taken for the next request.
func (a *answer) WriteHeader(status int) {
	if status == http.StatusTooManyRequests && a.to != nil && a.to.over {
		status = http.StatusRequestEntityTooLarge
	}
	if a.to != nil && a.to.late {
		a.Header().Set("Connection", "close")
		if status == http.StatusGatewayTimeout {
			status = http.StatusRequestTimeout
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	if !a.started {
		a.started = true
		_ = a.rc.SetWriteDeadline(time.Now().Add(a.time))
	}
	return a.ResponseWriter.Write(p)
}

func tooLarge(limit int64) *refusal {
	return refuse("REQUEST_TOO_LARGE", "", "the request is larger than %d bytes: split it", limit)
}

// internal is what a caller hears of a fault of ours.
func internal(by *request) *refusal {
	return &refusal{reason: "INTERNAL", text: "the broker failed to handle this" + underID(by)}
}

// underID says where the details are.
func underID(by *request) string {
	if by == nil {
		return "; its log has the details"
	}
	return "; its log has the details under request id " + by.id
}

// problem is the refusal as the API writes it, to who asked.
func (r *refusal) problem(by *request) *strandmqv1.Problem {
	p := &strandmqv1.Problem{Reason: r.reason, Message: valid(r.text), Field: valid(r.field), RequestId: by.name()}
	if r.retryAfter > 0 {
		p.RetryAfterMs = max(1, r.retryAfter.Milliseconds())
	}
	return p
}

// writeRefusal answers before any protocol was spoken, in the shape of a Connect
// error, which people can read and which the clients of all protocols map from
// the status.
func writeRefusal(w http.ResponseWriter, status int, r *refusal, by *request) {
	p := r.problem(by)
	wire, err := proto.Marshal(p)
	if err != nil {
		wire = nil // cannot be: a Problem of valid strings
	}
	text, _ := protojson.Marshal(p)
	out, _ := json.Marshal(map[string]any{
		"code":    rowOf(r.reason).code,
		"message": p.GetMessage(),
		"details": []map[string]any{{
			"type":  "strandmq.v1.Problem",
			"value": base64.RawStdEncoding.EncodeToString(wire),
			"debug": json.RawMessage(text),
		}},
	})
	w.Header().Set("Content-Type", "application/json")
	if r.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((r.retryAfter+time.Second-1)/time.Second)))
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(out, '\n'))
}

// valid makes a string fit for a protobuf field.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
