package httpapi

import (
	"context"
	_ "embed" // the description
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/strandmq/strandmq/internal/plain"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Prefix is what the paths of this API begin with.
const Prefix = "/v1/"

// RequestHeader is the header of the answer that has the request's id, which whoever
// serves this API has set by then. Problems repeat it.
const RequestHeader = "X-Request-Id"

// Config is what the API stands on.
type Config struct {
	// Calls serves the methods of strandmq.v1.
	Calls http.Handler
	// Row tells a reason's code, when it is met, and what to do about it.
	Row func(reason string) (code, when, what string)
	// Rejected counts and logs refusals that no call was made for.
	Rejected func(ctx context.Context, path, reason string)
	// Panicked logs a panic that the call of a path ended with, and tells the id that the
	// lines of the request have.
	Panicked func(ctx context.Context, path string, p any) (id string)
	// WriteTime is how long a caller may take over an answer, or a part of one
	// that is a stream.
	WriteTime time.Duration
	// Topic tells how many partitions a topic has, and its incarnation.
	Topic func(name string) (partitions int, incarnation uint64, err error)
	// Stream makes room for one more stream, or refuses it.
	Stream func() (Memory, error)
}

// Memory is what a stream may hold.
type Memory interface {
	// Take counts n bytes in, or tells when to ask again.
	Take(n int64) (taken bool, freed <-chan struct{})
	// Give gives n bytes back.
	Give(n int64)
	// Close gives all back.
	Close()
}

type api struct {
	cfg   Config
	calls calls
}

// A route is one method of one path.
type route struct {
	method, path string
	serve        func(*api, http.ResponseWriter, *http.Request) error
}

const groupPath = "/v1/topics/{topic}/groups/{group}"

// routes are all there are; openapi.json describes them, which a test holds.
//
//nolint:gochecknoglobals // a constant that Go cannot spell as one
var routes = []route{
	{http.MethodPost, "/v1/topics/{topic}/messages", (*api).publish},
	{http.MethodGet, "/v1/topics/{topic}/messages", (*api).read},
	{http.MethodGet, "/v1/topics/{topic}/messages/{partition}/{offset}", (*api).readOne},
	{http.MethodPost, groupPath + "/poll", (*api).poll},
	{http.MethodPost, groupPath + "/ack", settle(strandmqv1.SettleAction_SETTLE_ACTION_ACK, false, false)},
	{http.MethodPost, groupPath + "/nack", settle(strandmqv1.SettleAction_SETTLE_ACTION_NACK, true, true)},
	{http.MethodPost, groupPath + "/reject", settle(strandmqv1.SettleAction_SETTLE_ACTION_REJECT, false, true)},
	{http.MethodPost, groupPath + "/extend", settle(strandmqv1.SettleAction_SETTLE_ACTION_EXTEND, true, false)},
	{http.MethodPost, groupPath + "/release", settle(strandmqv1.SettleAction_SETTLE_ACTION_RELEASE, false, false)},
	{http.MethodPost, groupPath + "/seek", (*api).seek},
	{http.MethodDelete, groupPath + "/members/{member}", (*api).leave},
	{http.MethodGet, "/v1/openapi.json", (*api).description},
	{http.MethodGet, "/v1/topics", (*api).listTopics},
	{http.MethodGet, "/v1/topics/{topic}", (*api).describeTopic},
	{http.MethodPut, "/v1/topics/{topic}", (*api).createTopic},
	{http.MethodDelete, "/v1/topics/{topic}", (*api).deleteTopic},
}

// New makes the handler of everything under Prefix.
func New(cfg Config) http.Handler {
	a := &api{cfg: cfg, calls: newCalls(cfg)}
	mux := http.NewServeMux()
	methods := map[string]map[string]route{}
	for _, r := range routes {
		if methods[r.path] == nil {
			methods[r.path] = map[string]route{}
		}
		methods[r.path][r.method] = r
	}
	for path, of := range methods {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { a.dispatch(w, r, of) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.refuse(w, r, refuse("UNKNOWN_METHOD", "", "there is nothing at %s: GET /v1/openapi.json lists what there is", plain.Quote(r.URL.Path)))
	})
	return mux
}

// dispatch finds the route by method.
func (a *api) dispatch(w http.ResponseWriter, r *http.Request, of map[string]route) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	found, ok := of[method]
	if !ok {
		var allow []string
		for m := range of {
			allow = append(allow, m)
		}
		slices.Sort(allow)
		w.Header().Set("Allow", strings.Join(allow, ", "))
		a.refuse(w, r, refuse("BAD_METHOD", "", "%s is not used here: use %s", plain.Quote(r.Method), strings.Join(allow, " or ")))
		return
	}
	if err := found.serve(a, w, r); err != nil {
		a.refuse(w, r, err)
	}
}

// ContentTypeAllowed tells whether a POST may have a content type. Those that a
// web page can send elsewhere, or have sent, without asking first are not among them, nor is none.
func ContentTypeAllowed(value string) bool {
	kind, _, err := mime.ParseMediaType(value)
	if err != nil || strings.HasPrefix(kind, "multipart/") {
		return false
	}
	switch kind {
	case "text/plain", "application/x-www-form-urlencoded": // of forms and scripts
		return false
	case "text/ping", "application/csp-report", "application/reports+json": // of the browser itself, to where a page says
		return false
	}
	return true
}

// WhyContentType is what a POST is told that may not have its content type.
func WhyContentType(given string) string {
	return fmt.Sprintf("the content type %s is one that any web page can send, so it is not taken here: with curl add -H 'Content-Type: application/octet-stream' for a value as it is, application/x-ndjson for lines of JSON, or application/json where the path takes JSON", plain.Quote(given))
}

// openapi describes the routes, for programs that make clients of it.
//
//go:embed openapi.json
var openapi []byte

func (a *api) description(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openapi)
	return nil
}

// plainBody refuses bodies that are encoded.
func plainBody(r *http.Request) error {
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return refuse("BAD_CONTENT_TYPE", "Content-Encoding", "the content encoding %s is not one that is read here: send the body as it is", plain.Quote(e))
	}
	return nil
}
