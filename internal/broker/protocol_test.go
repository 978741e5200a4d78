package broker

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// Whatever is wrong with the way a call is made, the answer says so in words and
// with a reason of the table: an empty body helps nobody with curl.
func TestWrongWaysToCall(t *testing.T) {
	b := start(t, t.TempDir())
	newAPI(t, b.URL()).topic(t, "t", 1)
	const list = "/strandmq.v1.TopicService/ListTopics"
	for _, c := range []struct {
		name, method, path string
		headers            map[string]string
		body               io.Reader
		status             int
		reason             string // empty: it works
	}{
		{"right", "POST", list, nil, nil, 200, ""},
		{"charset", "POST", list, map[string]string{"Content-Type": "application/json; charset=UTF-8"}, nil, 200, ""},
		{"version", "POST", list, map[string]string{"Connect-Protocol-Version": "1", "Connect-Timeout-Ms": "5000"}, nil, 200, ""},
		{"get", "GET", list, map[string]string{"Content-Type": ""}, http.NoBody, 405, "BAD_METHOD"},
		{"get of Connect", "GET", "/strandmq.v1.NodeService/NodeInfo?connect=v1&encoding=json&message=%7B%7D", map[string]string{"Content-Type": ""}, http.NoBody, 405, "BAD_METHOD"},
		{"head", "HEAD", list, map[string]string{"Content-Type": ""}, http.NoBody, 405, "-"},
		{"put", "PUT", list, nil, nil, 405, "BAD_METHOD"},
		{"other charset", "POST", list, map[string]string{"Content-Type": "application/json; charset=latin1"}, nil, 415, "BAD_CONTENT_TYPE"},
		{"other parameter", "POST", list, map[string]string{"Content-Type": "application/proto; version=2"}, nil, 415, "BAD_CONTENT_TYPE"},
		{"stream", "POST", list, map[string]string{"Content-Type": "application/connect+json"}, nil, 415, "BAD_CONTENT_TYPE"},
		{"form", "POST", list, map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, nil, 415, "BAD_CONTENT_TYPE"},
		{"encoding", "POST", list, map[string]string{"Content-Encoding": "br"}, nil, 415, "BAD_CONTENT_TYPE"},
		{"other version", "POST", list, map[string]string{"Connect-Protocol-Version": "9"}, nil, 400, "BAD_REQUEST"},
		{"negative timeout", "POST", list, map[string]string{"Connect-Timeout-Ms": "-1"}, nil, 400, "BAD_REQUEST"},
		{"absurd timeout", "POST", list, map[string]string{"Connect-Timeout-Ms": "99999999999"}, nil, 400, "BAD_REQUEST"},
		{"no method", "POST", "/strandmq.v1.TopicService/Nothing", nil, nil, 404, "UNKNOWN_METHOD"},
		{"large, length told", "POST", list, nil, strings.NewReader(`{"x":"` + strings.Repeat("x", 2<<20) + `"}`), 413, "REQUEST_TOO_LARGE"},
		{"large, in chunks", "POST", list, nil, struct{ io.Reader }{strings.NewReader(`{"x":"` + strings.Repeat("x", 2<<20) + `"}`)}, 413, "REQUEST_TOO_LARGE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.body == nil {
				c.body = strings.NewReader("{}")
			}
			req, err := http.NewRequestWithContext(ctx(t), c.method, b.URL()+c.path, c.body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			for name, value := range c.headers {
				req.Header.Set(name, value)
				if value == "" {
					req.Header.Del(name)
				}
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != c.status {
				t.Errorf("status %d, want %d", res.StatusCode, c.status)
			}
			if c.reason != "" && c.reason != "-" { // an answer to HEAD has no body
				if got := wireReason(t, res); got != c.reason {
					t.Errorf("reason %s, want %s", got, c.reason)
				}
			}
		})
	}
}
