package broker

import (
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/strandmq/strandmq/internal/plain"
)

// streams are the paths of the methods that stream, with whether both ways.
//
//nolint:gochecknoglobals // a constant that Go cannot spell as one
var streams, bothWays = streamsOf(services())

func streamsOf(services []string) (any, both map[string]bool) {
	any, both = map[string]bool{}, map[string]bool{}
	for _, s := range services {
		for m := range methodsOf(s) {
			if path := "/" + s + "/" + string(m.Name()); m.IsStreamingServer() || m.IsStreamingClient() {
				any[path], both[path] = true, m.IsStreamingClient()
			}
		}
	}
	return any, both
}

// protocol stands before the methods of the API. The RPC library answers what
// breaks the protocol with an empty body, or without a Problem; here it is
// refused first, in words, with a reason of the table.
func (b *Broker) protocol(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		check := checkUnary
		if streams[r.URL.Path] {
			check = checkStream
		}
		if status, refused := check(r); refused != nil {
			switch status {
			case http.StatusMethodNotAllowed:
				w.Header().Set("Allow", http.MethodPost)
			case http.StatusUnsupportedMediaType:
				w.Header().Set("Accept-Post", acceptPost)
			}
			b.refused(r.Context(), r.URL.Path, refused.reason)
			writeRefusal(w, status, refused, requestOf(r.Context()))
			return
		}
		next.ServeHTTP(w, r)
	})
}

const acceptPost = "application/json, application/proto, application/grpc, application/grpc-web"

// checkStream finds what keeps a request from being a call of a method that
// streams.
func checkStream(r *http.Request) (int, *refusal) {
	if r.Method != http.MethodPost {
		return http.StatusMethodNotAllowed, refuse("BAD_METHOD", "", "%s is not used here: a stream is opened with POST", plain.Quote(r.Method))
	}
	given := r.Header.Get("Content-Type")
	kind, params, err := mime.ParseMediaType(given)
	switch {
	case err != nil || !contentTypeAllowed(given) || len(params) > 0:
		return http.StatusUnsupportedMediaType, badContentType(given)
	case kind == "application/json" || kind == "application/proto":
		return http.StatusUnsupportedMediaType, refuse("BAD_CONTENT_TYPE", "Content-Type", "%s is for calls with one answer, and this is a stream: use a client library of Connect, gRPC or gRPC-Web, or from curl the call without a stream (Publish, Receive)", plain.Quote(given))
	case bothWays[r.URL.Path] && r.ProtoMajor < 2:
		return http.StatusHTTPVersionNotSupported, refuse("BAD_REQUEST", "", "this stream goes both ways and needs HTTP/2 (without TLS, by prior knowledge); over HTTP/1.1 use Publish, or Subscribe and Settle")
	case strings.HasPrefix(kind, "application/grpc"):
		return 0, nil // it has its own headers, and errors that its clients know
	}
	switch encoding := r.Header.Get("Connect-Content-Encoding"); encoding {
	case "", "identity", "gzip":
	default:
		return http.StatusUnsupportedMediaType, refuse("BAD_CONTENT_TYPE", "Connect-Content-Encoding", "the content encoding %s is not one that is read here: send frames as they are, or with gzip", plain.Quote(encoding))
	}
	return checkConnect(r)
}

// checkUnary finds what keeps a request from being a call of a unary method.
func checkUnary(r *http.Request) (int, *refusal) {
	if r.Method != http.MethodPost {
		return http.StatusMethodNotAllowed, refuse("BAD_METHOD", "", "%s is not used here: API calls are POST with a body, at least {}; curl sends that with -d '{}'", plain.Quote(r.Method))
	}
	given := r.Header.Get("Content-Type")
	kind, params, err := mime.ParseMediaType(given)
	if err != nil || !contentTypeAllowed(given) {
		return http.StatusUnsupportedMediaType, badContentType(given)
	}
	if strings.HasPrefix(kind, "application/connect+") {
		return http.StatusUnsupportedMediaType, refuse("BAD_CONTENT_TYPE", "Content-Type", "%s is for streams, and this method is none: send content-type: application/json or application/proto", plain.Quote(given))
	}
	for name, value := range params {
		if name != "charset" || !strings.EqualFold(value, "utf-8") || !strings.HasSuffix(kind, "json") {
			return http.StatusUnsupportedMediaType, refuse("BAD_CONTENT_TYPE", "Content-Type", "the content type %s has a parameter that is not used here: send JSON in UTF-8 with content-type: application/json", plain.Quote(given))
		}
	}
	if strings.HasPrefix(kind, "application/grpc") {
		return 0, nil // it has its own headers, and errors that its clients know
	}
	if kind == "application/json" {
		r.Header.Set("Content-Type", kind) // all that the parameter could say is so anyhow
	}
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity", "gzip":
	default:
		return http.StatusUnsupportedMediaType, refuse("BAD_CONTENT_TYPE", "Content-Encoding", "the content encoding %s is not one that is read here: send the body as it is, or with gzip", plain.Quote(encoding))
	}
	return checkConnect(r)
}

// checkConnect looks at the headers of the Connect protocol.
func checkConnect(r *http.Request) (int, *refusal) {
	if v := r.Header.Get("Connect-Protocol-Version"); v != "" && v != "1" {
		return http.StatusBadRequest, refuse("BAD_REQUEST", "Connect-Protocol-Version", "version %s of the Connect protocol is not known here: send 1, or leave the header out", plain.Quote(v))
	}
	if t := r.Header.Get("Connect-Timeout-Ms"); t != "" {
		if _, err := strconv.ParseUint(t, 10, 64); err != nil || len(t) > 10 {
			return http.StatusBadRequest, refuse("BAD_REQUEST", "Connect-Timeout-Ms", "%s is not a time in milliseconds: send at most 10 digits, or leave the header out", plain.Quote(t))
		}
	}
	return 0, nil
}

// badContentType is a content type that no call has.
func badContentType(given string) *refusal {
	return refuse("BAD_CONTENT_TYPE", "Content-Type", "the content type %s is not one of an API call: send content-type: application/json", plain.Quote(given))
}
