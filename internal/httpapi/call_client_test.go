package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A panic of a call is logged, and the caller gets the id and no more.
func TestPanicOfACall(t *testing.T) {
	var path string
	var what any
	api := New(Config{
		Calls:    http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("secret") }),
		Row:      func(string) (code, when, todo string) { return "internal", "", "" },
		Rejected: func(context.Context, string, string) {},
		Panicked: func(_ context.Context, of string, p any) string { path, what = of, p; return "r%d-1" }, // an id may look like a verb
	})
	w := httptest.NewRecorder()
	w.Header().Set(RequestHeader, "r-1") // as the broker has it
	api.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/topics", http.NoBody))
	if got := w.Body.String(); w.Code != 500 || strings.Contains(got, "secret") || !strings.Contains(got, "INTERNAL") || !strings.Contains(got, `"request_id":"r-1"`) || !strings.Contains(got, "under request id r%d-1") {
		t.Fatalf("%d %s", w.Code, got)
	}
	if path != "/strandmq.v1.TopicService/ListTopics" || what != "secret" {
		t.Fatalf("logged %v of %s", what, path)
	}
}
