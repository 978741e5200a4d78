package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A panic of a call is logged, and the caller gets the reference and no more.
func TestPanicOfACall(t *testing.T) {
	var path string
	var what any
	api := New(Config{
		Calls:    http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("secret") }),
		Row:      func(string) (code, when, todo string) { return "internal", "", "" },
		Rejected: func(string) {},
		Panicked: func(of string, p any) string { path, what = of, p; return "r-1" },
	})
	w := httptest.NewRecorder()
	api.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/topics", http.NoBody))
	if got := w.Body.String(); w.Code != 500 || strings.Contains(got, "secret") || !strings.Contains(got, "INTERNAL") || !strings.Contains(got, "reference r-1") {
		t.Fatalf("%d %s", w.Code, got)
	}
	if path != "/strandmq.v1.TopicService/ListTopics" || what != "secret" {
		t.Fatalf("logged %v of %s", what, path)
	}
}
