package broker

import (
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/strandmq/strandmq/internal/plain"
)

// unary stands before the methods of the API, none of which streams. The RPC
// library answers what breaks the protocol with an empty body, or without a
// Problem; here it is refused first, in words, with a reason of the table.
func (b *Broker) unary(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status, refused := checkUnary(r); refused != nil {
			switch status {
			case http.StatusMethodNotAllowed:
				w.Header().Set("Allow", http.MethodPost)
			case http.StatusUnsupportedMediaType:
				w.Header().Set("Accept-Post", acceptPost)
			}
			b.metrics.rejected(refused.reason)
			writeRefusal(w, status, refused)
			return
		}
		next.ServeHTTP(w, r)
	})
}

const acceptPost = "application/json, application/proto, application/grpc, application/grpc-web"

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
		return http.StatusUnsupportedMediaType, refuse("BAD_CONTENT_TYPE", "Content-Type", "%s is for streams, and no method here is one: send content-type: application/json or application/proto", plain.Quote(given))
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
